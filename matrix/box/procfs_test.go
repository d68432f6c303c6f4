package box

import (
	"os"
	"testing"
)

func TestParseMeminfo(t *testing.T) {
	// H04: MemFree 41.5 GiB, MemAvailable 115.6 GiB, the difference is page cache.
	m, err := parseMeminfo([]byte("MemTotal: 127600748 kB\nMemFree: 43515904 kB\nMemAvailable: 121215385 kB\nCached: 76126617 kB\nAnonPages: 3145728 kB\nHugePages_Total: 0\n"))
	if err != nil || m.free != 43515904 || m.available != 121215385 {
		t.Fatalf("%+v, %v", m, err)
	}
	for name, text := range map[string]string{
		"empty": "", "no available": "MemTotal: 5 kB\nMemFree: 1 kB\n", "more than all": "MemTotal: 5 kB\nMemFree: 1 kB\nMemAvailable: 6 kB\n",
		"negative": "MemTotal: 5 kB\nMemFree: -1 kB\nMemAvailable: 1 kB\n", "words": "MemTotal: many kB\nMemFree: 1 kB\nMemAvailable: 1 kB\n",
	} {
		if _, err := parseMeminfo([]byte(text)); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

// N13: 33 GB gone after a crashed container, with no process and nothing in nvidia-smi.
func TestUnattributed(t *testing.T) {
	m, err := parseMeminfo([]byte("MemTotal: 127600748 kB\nMemFree: 85000000 kB\nMemAvailable: 86000000 kB\nBuffers: 100000 kB\nCached: 4000000 kB\nAnonPages: 3000000 kB\nSlab: 500000 kB\n"))
	if err != nil {
		t.Fatal(err)
	}
	if u, err := m.unattributed(0); err != nil || u != 127600748-85000000-7600000 || u < unattributedLimitKiB {
		t.Errorf("unattributed %d, %v", u, err)
	}
	// The same memory held by a process that the driver names is owned.
	if u, _ := m.unattributed(34 << 20); u > unattributedLimitKiB {
		t.Errorf("unattributed %d although a GPU process owns it", u)
	}
	m.fields[arcField] = 34 << 20
	if u, _ := m.unattributed(0); u > unattributedLimitKiB {
		t.Errorf("unattributed %d although ZFS caches with it", u)
	}
	delete(m.fields, "AnonPages")
	if _, err := m.unattributed(0); err == nil {
		t.Error("a meminfo without its pools is judged")
	}
}

func TestAvailableKiB(t *testing.T) {
	if v, ok := availableKiB([]byte("MemTotal:  1 kB\nMemAvailable:   121215385 kB\n")); !ok || v != 121215385 {
		t.Errorf("%d %v", v, ok)
	}
	for _, s := range []string{"", "MemAvailable:", "MemAvailable: x kB"} {
		if _, ok := availableKiB([]byte(s)); ok {
			t.Errorf("%q is taken", s)
		}
	}
}

func TestParsePIDStat(t *testing.T) {
	// The command may hold spaces and parentheses.
	s, err := parsePIDStat([]byte("77 (a) b (c)) R 12 0 0 0 0 0 0 0 0 0 30 4 50 6 20 0 1 0 9912 0 0"))
	if err != nil || s.ppid != 12 || s.own != 34 || s.children != 56 || s.start != 9912 || s.gone {
		t.Errorf("%+v, %v", s, err)
	}
	if s, _ := parsePIDStat([]byte("77 (x) Z 12 0 0 0 0 0 0 0 0 0 0 0 0 0 20 0 1 0 1 0 0")); !s.gone {
		t.Error("a zombie is alive")
	}
}

func TestParseStat(t *testing.T) {
	s, err := parseStat([]byte("cpu  10 2 3 100 5 1 4 7 9 0\ncpu0 1 1 1 1 1 1 1 1 1 1\ncpu1 1 1 1 1 1 1 1 1 1 1\nintr 0\n"))
	if err != nil || s.busy != 20 || s.steal != 7 || s.total != 132 || s.cpus != 2 {
		t.Errorf("%+v, %v", s, err)
	}
}

func FuzzProc(f *testing.F) {
	for _, s := range []string{"MemTotal: 5 kB\nMemFree: 1 kB\nMemAvailable: 2 kB\n", "cpu  1 2 3 4 5 6 7 8\ncpu0 1\n", "1 (a) S 1 2 3", "x) (", ""} {
		f.Add([]byte(s))
	}
	if own, err := os.ReadFile("/proc/self/stat"); err == nil {
		f.Add(own)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := parseMeminfo(b); err == nil && (m.available > m.total || m.total <= 0 || m.available < 0) {
			t.Errorf("%+v is taken", m)
		}
		if v, ok := availableKiB(b); ok && v < 0 {
			t.Errorf("%d available", v)
		}
		if s, err := parseStat(b); err == nil && (s.busy < 0 || s.steal < 0 || s.cpus <= 0) {
			t.Errorf("%+v is taken", s)
		}
		if s, err := parsePIDStat(b); err == nil && (s.own < 0 || s.children < 0) {
			t.Errorf("%+v is taken", s)
		}
	})
}
