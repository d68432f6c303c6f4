package box

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"enginebroker/matrix"
)

// killers remembers, while the engine lives, what is needed to say later who ended it: its control groups with their
// counters, and the box's own OOM counter.
type killers struct {
	proc    procfs
	cgroups string // mount point of the control groups
	kmsg    string
	journal func(ctx context.Context, since time.Time) string
	since   time.Time
	boot    int64            // the same on the kernel's clock, ns
	ooms    int64            // vmstat oom_kill at the start; -1 unknown
	groups  map[string]int64 // counter file → oom_kill when first seen
	member  map[int][]string // pid → counter files of its control groups
	paths   map[int][]string // pid → its control groups
}

func newKillers(proc procfs, now int64) *killers {
	k := &killers{proc: proc, cgroups: "/sys/fs/cgroup", kmsg: "/dev/kmsg", journal: journal, since: time.Now(), boot: now, ooms: -1,
		groups: map[string]int64{}, member: map[int][]string{}, paths: map[int][]string{}}
	if v, ok := proc.vmCounters("oom_kill")["oom_kill"]; ok {
		k.ooms = v
	}
	return k
}

// follow notes the control groups of processes while they can still be asked.
func (k *killers) follow(pids []int) {
	for _, pid := range pids {
		if _, done := k.member[pid]; done {
			continue
		}
		files := k.counterFiles(pid)
		k.member[pid] = files // noted even when there are none, so that it is asked once
		for _, f := range files {
			if _, seen := k.groups[f]; !seen {
				if v, ok := oomKills(f); ok {
					k.groups[f] = v
				}
			}
		}
	}
}

// counterFiles names the files that count OOM kills of a process's control group: memory.events (v2) or
// memory.oom_control (v1).
func (k *killers) counterFiles(pid int) []string {
	b, err := k.proc.read(strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return nil
	}
	var out []string
	for l := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(l), ":", 3)
		if len(f) != 3 || f[2] == "/" {
			continue // the root group has no limit
		}
		k.paths[pid] = append(k.paths[pid], f[2])
		switch {
		case f[0] == "0":
			out = append(out, filepath.Join(k.cgroups, f[2], "memory.events"))
		case f[1] == "memory":
			out = append(out, filepath.Join(k.cgroups, "memory", f[2], "memory.oom_control"))
		}
	}
	return out
}

func oomKills(file string) (int64, bool) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	for l := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(l), "oom_kill "); ok {
			n, err := strconv.ParseInt(v, 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// who names what ended a process, from the most to the least specific evidence; empty where nothing on the box shows it.
func (k *killers) who(ctx context.Context, p matrix.Process) string {
	for _, f := range k.member[p.PID] {
		before, had := k.groups[f]
		if now, ok := oomKills(f); ok && had && now > before {
			return fmt.Sprintf("its control group's memory limit (%s: oom_kill rose by %d)", f, now-before)
		}
	}
	log, readable := readKmsg(k.kmsg, k.boot/1000)
	if line, ok := kernelKill(log, p.PID); ok {
		return "the kernel's OOM killer: " + line
	}
	if line, ok := daemonKill(k.journal(ctx, k.since), p.PID, k.paths[p.PID]); ok {
		return line
	}
	if now, ok := k.proc.vmCounters("oom_kill")["oom_kill"]; ok && k.ooms >= 0 && now > k.ooms && !readable {
		return fmt.Sprintf("probably the kernel's OOM killer (it ended %d processes since the load began; the kernel log, which would name them, is not readable)", now-k.ooms)
	}
	return ""
}

var (
	kernelKilled = regexp.MustCompile(`(?:Out of memory|Memory cgroup out of memory|oom-kill).*?(?:Killed process |pid=)(\d+)\b`)
	earlyoom     = regexp.MustCompile(`sending SIG(?:TERM|KILL) to process (\d+)\b`)
	oomd         = regexp.MustCompile(`Killed (/\S+) due to memory`)
)

// kernelKill finds the kernel's own line about ending this process. Other lines of a driver or the kernel (NVRM …
// NV_ERR_NO_MEMORY) prove nothing and are not looked at (bugs.md N10).
func kernelKill(log string, pid int) (string, bool) { return lastMatch(log, kernelKilled, pid) }

// daemonKill finds an out-of-memory daemon's line. systemd-oomd names a control group, not a process.
func daemonKill(log string, pid int, groups []string) (string, bool) {
	if line, ok := lastMatch(log, earlyoom, pid); ok {
		return "earlyoom: " + line, true
	}
	for l := range strings.Lines(log) {
		m := oomd.FindStringSubmatch(l)
		if m != nil && slices.ContainsFunc(groups, func(g string) bool { return g == m[1] || strings.HasPrefix(g, m[1]+"/") }) {
			return "systemd-oomd: " + strings.TrimSpace(l), true
		}
	}
	return "", false
}

func lastMatch(log string, re *regexp.Regexp, pid int) (string, bool) {
	found := ""
	for l := range strings.Lines(log) {
		if m := re.FindStringSubmatch(l); m != nil && m[1] == strconv.Itoa(pid) {
			found = strings.TrimSpace(l)
		}
	}
	return found, found != ""
}

// readKmsg reads what the kernel log holds since a time of its own clock, in µs since boot; reading it needs a permission
// that many boxes withhold.
func readKmsg(path string, since int64) (string, bool) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", false
	}
	defer unix.Close(fd)
	var out strings.Builder
	buf := make([]byte, 16<<10)
	for out.Len() < 8<<20 {
		n, err := unix.Read(fd, buf)
		if err == unix.EPIPE { // overwritten while reading; the next read goes on
			continue
		}
		if err != nil || n <= 0 {
			break
		}
		for l := range strings.Lines(string(buf[:n])) {
			head, text, ok := strings.Cut(l, ";") // priority,sequence,µs,flags;text; lines of a record's dictionary begin with a space
			f := strings.Split(head, ",")
			if !ok || l[0] == ' ' || len(f) < 3 {
				continue
			}
			if at, err := strconv.ParseInt(f[2], 10, 64); err == nil && at >= since {
				out.WriteString(strings.TrimSuffix(text, "\n") + "\n")
			}
		}
	}
	return out.String(), true
}

// journal reads the journals of the known out-of-memory daemons; empty where there is none or they may not be read.
func journal(ctx context.Context, since time.Time) string {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "journalctl", "--quiet", "--no-pager", "-o", "cat", "-b",
		"-u", "earlyoom", "-u", "systemd-oomd", "--since", "@"+strconv.FormatInt(since.Unix(), 10)).Output()
	if err != nil {
		return ""
	}
	return string(out)
}

// Killed says who ended the engine's process: a control group's limit, the kernel, earlyoom or systemd-oomd, by name and
// with the evidence. Empty means SIGKILL by an unknown sender, or no kill at all. The broker's own signals (stop, memory
// guard: see Trip) are known to the caller and not looked for.
func (w *Watch) Killed(p matrix.Process) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.killer.who(context.Background(), p)
}
