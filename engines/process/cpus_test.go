package process

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The server keeps off the CPUs that stay with the client, and this process keeps all of its own.
func TestSpareCPUs(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("one CPU cannot be shared")
	}
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	s := spec(t, "listen,worker")
	s.SpareCPUs = 1
	tree := up(t, s, "stub: up")
	ps, err := tree.Processes()
	if err != nil || len(ps) < 2 {
		t.Fatal(ps, err)
	}
	first := 0
	for !all.IsSet(first) {
		first++
	}
	for _, p := range ps {
		var got unix.CPUSet
		if err := unix.SchedGetaffinity(p.PID, &got); err != nil || got.IsSet(first) || got.Count() != all.Count()-1 {
			t.Errorf("%s runs on %d CPUs, on the spared one: %v, %v", p.Exe, got.Count(), got.IsSet(first), err)
		}
	}
	threads, err := filepath.Glob("/proc/self/task/*")
	if err != nil || len(threads) == 0 {
		t.Fatal(threads, err)
	}
	for _, path := range threads {
		tid, err := strconv.Atoi(filepath.Base(path))
		if err != nil {
			t.Fatal(err)
		}
		var got unix.CPUSet
		if err := unix.SchedGetaffinity(tid, &got); err == nil && got != all { // a thread may have ended
			t.Errorf("a thread of the broker was left with %d CPUs of %d", got.Count(), all.Count())
		}
	}
}

func TestCPUs(t *testing.T) {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, want, _ := strings.Cut(string(status), "Cpus_allowed_list:\t")
	want, _, _ = strings.Cut(want, "\n")
	if got, err := CPUs(0); err != nil || got != want {
		t.Errorf("%s, want %s (%v)", got, want, err)
	}
}

func TestSpareCPUsLeaveOneToTheServer(t *testing.T) {
	s := spec(t, "listen")
	s.SpareCPUs = runtime.NumCPU()
	if _, err := (Local{}).Start(t.Context(), s); err == nil || !strings.Contains(err.Error(), "spare_cpus leaves none") {
		t.Errorf("started: %v", err)
	}
}
