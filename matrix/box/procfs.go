package box

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"enginebroker/matrix"
)

// procfs reads one /proc tree.
type procfs struct{ root string }

func (p procfs) path(name string) string { return filepath.Join(p.root, name) }

// read returns the file's text. Errors name the file.
func (p procfs) read(name string) ([]byte, error) { return os.ReadFile(p.path(name)) }

// line returns the first line of a file, empty where it cannot be read.
func (p procfs) line(name string) string {
	b, err := p.read(name)
	if err != nil {
		return ""
	}
	s, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSpace(s)
}

func (p procfs) bootID() (string, error) {
	b, err := p.read("sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	id := strings.TrimSpace(string(b))
	if id == "" {
		return "", fmt.Errorf("%s is empty", p.path("sys/kernel/random/boot_id"))
	}
	return id, nil
}

// cpuModel is the model name, or implementer and part on arm64, where the kernel gives no name.
func (p procfs) cpuModel() string {
	b, err := p.read("cpuinfo")
	if err != nil {
		return ""
	}
	var seen, arm []string
	add := func(list *[]string, v string) {
		for _, x := range *list {
			if x == v {
				return
			}
		}
		*list = append(*list, v)
	}
	implementer := ""
	for l := range strings.Lines(string(b)) {
		k, v, _ := strings.Cut(l, ":")
		v = strings.TrimSpace(v)
		switch strings.TrimSpace(k) {
		case "model name":
			add(&seen, v)
		case "CPU implementer":
			implementer = v
		case "CPU part":
			add(&arm, "arm "+implementer+"/"+v)
		}
	}
	return strings.Join(append(seen, arm...), " + ")
}

// meminfo is /proc/meminfo in KiB.
type meminfo struct {
	total, free, available int64
	fields                 map[string]int64 // every line of the file, HugePages_* in pages
}

// field is one line of the file, where it is there.
func (m meminfo) field(name string) matrix.Opt[int64] {
	if v, ok := m.fields[name]; ok {
		return matrix.Some(v)
	}
	return matrix.Opt[int64]{}
}

func (p procfs) meminfo() (meminfo, error) {
	b, err := p.read("meminfo")
	if err != nil {
		return meminfo{}, err
	}
	m, err := parseMeminfo(b)
	if err != nil {
		return m, fmt.Errorf("%s: %w", p.path("meminfo"), err)
	}
	m.fields[arcField] = p.arcKiB()
	return m, nil
}

// arcField holds ZFS's cache, which the kernel does not count as one.
const arcField = "ZFS ARC"

func (p procfs) arcKiB() int64 {
	b, err := p.read("spl/kstat/zfs/arcstats")
	if err != nil {
		return 0
	}
	for l := range strings.Lines(string(b)) {
		if f := strings.Fields(l); len(f) == 3 && f[0] == "size" {
			if v, err := strconv.ParseInt(f[2], 10, 64); err == nil && v > 0 {
				return v >> 10
			}
		}
	}
	return 0
}

func parseMeminfo(b []byte) (meminfo, error) {
	m := meminfo{fields: map[string]int64{}}
	for l := range bytes.Lines(b) {
		k, rest, ok := bytes.Cut(l, []byte(":"))
		f := bytes.Fields(rest)
		if !ok || len(f) == 0 {
			continue
		}
		if v, err := strconv.ParseInt(string(f[0]), 10, 64); err == nil && v >= 0 {
			m.fields[string(k)] = v
		}
	}
	for _, x := range []struct {
		name string
		to   *int64
	}{{"MemTotal", &m.total}, {"MemFree", &m.free}, {"MemAvailable", &m.available}} {
		v, ok := m.fields[x.name]
		if !ok {
			return m, errors.New("no " + x.name)
		}
		*x.to = v
	}
	if m.total <= 0 || m.available > m.total || m.free > m.total {
		return m, fmt.Errorf("MemTotal %d kB, MemAvailable %d kB, MemFree %d kB contradict each other", m.total, m.available, m.free)
	}
	return m, nil
}

// availableKiB reads MemAvailable alone, without allocating: the memory guard calls it ten times a second.
func availableKiB(b []byte) (int64, bool) {
	const key = "MemAvailable:"
	i := bytes.Index(b, []byte(key))
	if i < 0 {
		return 0, false
	}
	b = bytes.TrimLeft(b[i+len(key):], " ")
	var v int64
	n := 0
	for ; n < len(b) && n < 18 && b[n] >= '0' && b[n] <= '9'; n++ {
		v = v*10 + int64(b[n]-'0')
	}
	return v, n > 0
}

// known are the pools of meminfo that somebody answers for. Shmem is part of Cached, Mapped of Cached and AnonPages.
var known = []string{"Buffers", "Cached", "SwapCached", "AnonPages", "Slab", "KernelStack", "PageTables", "SecPageTables", "Percpu", "VmallocUsed", "Hugetlb", "Balloon", arcField}

// unattributed is the memory that is neither free nor owned by anything the kernel or the driver names, in KiB:
// MemTotal − MemFree − Σ known pools − what GPU processes hold. It is what a crashed container or driver leaves behind
// (bugs.md N13). The kernel's own text and structures are in it, some hundred MiB.
func (m meminfo) unattributed(gpuKiB int64) (int64, error) {
	v := m.total - m.free - gpuKiB
	for _, k := range known {
		v -= m.fields[k]
	}
	if _, ok := m.fields["AnonPages"]; !ok {
		return 0, errors.New("meminfo names no AnonPages")
	}
	return max(v, 0), nil
}

// cpuStat is the first line of /proc/stat, in clock ticks over all CPUs.
type cpuStat struct {
	busy, steal, total int64
	cpus               int
}

func (p procfs) stat() (cpuStat, error) {
	b, err := p.read("stat")
	if err != nil {
		return cpuStat{}, err
	}
	s, err := parseStat(b)
	if err != nil {
		return s, fmt.Errorf("%s: %w", p.path("stat"), err)
	}
	return s, nil
}

// parseStat takes user, nice, system, irq and softirq as busy; guest time is inside user.
func parseStat(b []byte) (cpuStat, error) {
	var s cpuStat
	seen := false
	for l := range bytes.Lines(b) {
		if !bytes.HasPrefix(l, []byte("cpu")) {
			break
		}
		f := strings.Fields(string(l))
		if f[0] != "cpu" {
			s.cpus++
			continue
		}
		if len(f) < 8 {
			return s, fmt.Errorf("the cpu line has %d columns, 8 are needed", len(f))
		}
		var v [8]int64 // user nice system idle iowait irq softirq steal
		for i := range v {
			if i+1 >= len(f) {
				break // kernels before steal time
			}
			x, err := strconv.ParseInt(f[i+1], 10, 64)
			if err != nil || x < 0 {
				return s, fmt.Errorf("column %d of the cpu line is %q", i+1, f[i+1])
			}
			v[i] = x
			s.total += x
		}
		s.busy = v[0] + v[1] + v[2] + v[5] + v[6]
		s.steal = v[7]
		seen = true
	}
	if !seen || s.cpus == 0 {
		return s, errors.New("no cpu lines")
	}
	return s, nil
}

// pidStat is what the CPU account needs of /proc/PID/stat, in clock ticks.
type pidStat struct {
	ppid          int
	own, children int64  // utime+stime; the same of reaped children
	start         uint64 // field 22: since boot
	gone          bool   // zombie or dead
}

func (p procfs) pid(pid int) (pidStat, error) {
	b, err := p.read(strconv.Itoa(pid) + "/stat")
	if err != nil {
		return pidStat{}, err
	}
	return parsePIDStat(b)
}

// parsePIDStat splits after the last parenthesis: a command name may hold anything, parentheses included.
func parsePIDStat(b []byte) (pidStat, error) {
	var s pidStat
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return s, errors.New("stat names no command")
	}
	f := strings.Fields(string(b[end+1:])) // f[0] is field 3, the state
	if len(f) < 20 {
		return s, fmt.Errorf("stat has %d fields after the command, 20 are needed", len(f))
	}
	num := func(field int) (int64, error) { return strconv.ParseInt(f[field-3], 10, 64) }
	var v [6]int64
	for i, field := range []int{4, 14, 15, 16, 17} {
		x, err := num(field)
		if err != nil || x < 0 {
			return s, fmt.Errorf("field %d of stat is %q", field, f[field-3])
		}
		v[i] = x
	}
	start, err := strconv.ParseUint(f[22-3], 10, 64)
	if err != nil {
		return s, fmt.Errorf("field 22 of stat is %q", f[22-3])
	}
	s.ppid, s.own, s.children, s.start = int(v[0]), v[1]+v[2], v[3]+v[4], start
	s.gone = f[0] == "Z" || f[0] == "X"
	return s, nil
}

// children lists the children of a process, over all its threads. It needs CONFIG_PROC_CHILDREN, which distributions set.
func (p procfs) children(pid int) []int {
	tasks, err := os.ReadDir(p.path(strconv.Itoa(pid) + "/task"))
	if err != nil {
		return nil
	}
	var out []int
	for _, t := range tasks {
		b, err := p.read(strconv.Itoa(pid) + "/task/" + t.Name() + "/children")
		if err != nil {
			continue
		}
		for _, f := range strings.Fields(string(b)) {
			if n, err := strconv.Atoi(f); err == nil {
				out = append(out, n)
			}
		}
	}
	return out
}

// listsChildren reports whether the kernel was built to list children.
func (p procfs) listsChildren(pid int) bool {
	_, err := p.read(fmt.Sprintf("%d/task/%d/children", pid, pid))
	return err == nil
}

// scanChildren reads every visible process once and answers from that.
func (p procfs) scanChildren() func(pid int) []int {
	below := map[int][]int{}
	names, err := os.ReadDir(p.root)
	if err != nil {
		return func(int) []int { return nil }
	}
	for _, n := range names {
		if pid, err := strconv.Atoi(n.Name()); err == nil {
			if s, err := p.pid(pid); err == nil {
				below[s.ppid] = append(below[s.ppid], pid)
			}
		}
	}
	return func(pid int) []int { return below[pid] }
}

// loadAverage is the one-minute load average.
func (p procfs) loadAverage() (float64, error) {
	f := strings.Fields(p.line("loadavg"))
	if len(f) == 0 {
		return 0, errors.New("no " + p.path("loadavg"))
	}
	return strconv.ParseFloat(f[0], 64)
}

// vmCounters are the counters of /proc/vmstat that matter here; absent ones are missing from the map.
func (p procfs) vmCounters(names ...string) map[string]int64 {
	b, err := p.read("vmstat")
	if err != nil {
		return nil
	}
	out := map[string]int64{}
	for l := range strings.Lines(string(b)) {
		k, v, _ := strings.Cut(strings.TrimSpace(l), " ")
		for _, n := range names {
			if n == k {
				if x, err := strconv.ParseInt(v, 10, 64); err == nil {
					out[k] = x
				}
			}
		}
	}
	return out
}

// pressure is the total stall time of "some" in /proc/pressure/NAME, in microseconds.
func (p procfs) pressure(name string) (int64, bool) {
	b, err := p.read("pressure/" + name)
	if err != nil {
		return 0, false
	}
	l, _, _ := strings.Cut(string(b), "\n")
	if !strings.HasPrefix(l, "some ") {
		return 0, false
	}
	_, t, ok := strings.Cut(l, "total=")
	if !ok {
		return 0, false
	}
	v, err := strconv.ParseInt(strings.TrimSpace(t), 10, 64)
	return v, err == nil
}

// initialPIDNamespace reports whether this process sees the host's process numbers, as a driver reports them. The inode
// of the first PID namespace is fixed in the kernel (PROC_PID_INIT_INO).
func (p procfs) initialPIDNamespace() bool {
	l, err := os.Readlink(p.path("self/ns/pid"))
	return err == nil && l == "pid:[4026531836]"
}
