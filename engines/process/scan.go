package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"enginebroker/matrix"
)

// stat is what /proc/PID/stat says of one process.
type stat struct {
	pid, ppid, pgrp, session int
	start                    uint64 // clock ticks since boot
	zombie                   bool
}

// readStat reads one process. The command name in it may hold spaces and parentheses; fields count from the last one.
func readStat(pid int) (stat, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, err
	}
	return parseStat(pid, b)
}

func parseStat(pid int, b []byte) (stat, error) {
	bad := fmt.Errorf("/proc/%d/stat: not understood", pid)
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return stat{}, bad
	}
	f := strings.Fields(string(b[i+1:])) // f[0] is field 3 of proc(5), the state
	if len(f) < 20 || len(f[0]) != 1 {
		return stat{}, bad
	}
	s := stat{pid: pid, zombie: f[0] == "Z" || f[0] == "X"}
	for field, into := range map[int]*int{1: &s.ppid, 2: &s.pgrp, 3: &s.session} {
		n, err := strconv.Atoi(f[field])
		if err != nil {
			return stat{}, bad
		}
		*into = n
	}
	var err error
	if s.start, err = strconv.ParseUint(f[19], 10, 64); err != nil {
		return stat{}, bad
	}
	return s, nil
}

// readAll reads every process. Processes that vanish while being read are left out.
func readAll() ([]stat, error) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var all []stat
	for _, n := range names {
		pid, err := strconv.Atoi(n)
		if err != nil {
			continue
		}
		if s, err := readStat(pid); err == nil {
			all = append(all, s)
		}
	}
	return all, nil
}

// marker returns the load id in a process's environment, empty where there is none or it cannot be read.
func marker(pid int) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return ""
	}
	for kv := range bytes.SplitSeq(b, []byte{0}) {
		if v, ok := bytes.CutPrefix(kv, []byte(MarkerName+"=")); ok {
			return string(v)
		}
	}
	return ""
}

// tree finds the members of one server tree in the process table. What was a member once stays one, whatever it calls
// itself and whoever its parent is now. A cgroup would hold them all too, but making one needs a subtree delegated to us,
// which a plugin run by a user seldom has.
type tree struct {
	loadID string
	root   matrix.Process
	adopts bool // started by us: its orphans come to us
	table  func() ([]stat, error)
	seen   map[int]uint64 // start time by pid
}

func newTree(loadID string, root matrix.Process) *tree {
	return &tree{loadID: loadID, root: root, table: readAll, seen: map[int]uint64{root.PID: root.StartTime}}
}

// members returns the live processes of the tree, root first, and the zombies of it that only we can reap.
//
// A process belongs to the tree if it was seen in it before, or carries its marker, or is in the root's session or process
// group, or descends from a member, or was orphaned to us after the root started (we are the subreaper). The marker of
// another load excludes.
//
// That nobody is left takes two looks: the process table is read one by one, and a member that forks and ends meanwhile leaves a
// child that the first look missed.
func (t *tree) members() (live []matrix.Process, reapable []int, err error) {
	if live, reapable, err = t.census(); err == nil && len(live) == 0 {
		live, reapable, err = t.census()
	}
	return live, reapable, err
}

func (t *tree) census() (live []matrix.Process, reapable []int, err error) {
	all, err := t.table()
	if err != nil {
		return nil, nil, fmt.Errorf("process table: %w", err)
	}
	c := census{self: os.Getpid(), in: map[int]bool{}, session: t.root.PID != 0}
	candidates := make([]stat, 0, len(all))
	for _, s := range all {
		// A session keeps its number reserved while it has members. A stranger under the root's number shows that ours has
		// none left.
		if s.pid == t.root.PID && s.start != t.root.StartTime {
			c.session = false
		}
		if s.pid == c.self {
			c.ownSession = s.session
		}
		if start, ok := t.seen[s.pid]; ok && start == s.start {
			c.in[s.pid] = true
		}
		// Nothing older than the root can be of its tree; most of the process table ends here.
		if s.start >= t.root.StartTime && s.pid != c.self {
			candidates = append(candidates, s)
		}
	}
	for grown := true; grown; {
		grown = false
		for _, s := range candidates {
			if c.in[s.pid] || !t.belongs(s, c) {
				continue
			}
			c.in[s.pid], grown = true, true
			t.seen[s.pid] = s.start
		}
	}
	for _, s := range candidates {
		switch {
		case !c.in[s.pid]:
		case !s.zombie && s.pid == t.root.PID:
			live = append([]matrix.Process{t.name(s)}, live...)
		case !s.zombie:
			live = append(live, t.name(s))
		case s.ppid == c.self && s.pid != t.root.PID:
			reapable = append(reapable, s.pid)
		}
	}
	return live, reapable, nil
}

// census is what one reading of the process table knows so far.
type census struct {
	in               map[int]bool // members
	self, ownSession int
	session          bool // the root's session and process group are still its own
}

func (t *tree) belongs(s stat, c census) bool {
	if s.zombie {
		return c.in[s.ppid]
	}
	if m := marker(s.pid); m != "" {
		return m == t.loadID
	}
	if c.session && (s.session == t.root.PID || s.pgrp == t.root.PID) || c.in[s.ppid] {
		return true
	}
	// A child of ours that we did not start and that is not in our session was orphaned to us.
	return t.adopts && s.ppid == c.self && s.session != c.ownSession && !children.started(s.pid)
}

func (t *tree) name(s stat) matrix.Process {
	exe, _ := os.Readlink("/proc/" + strconv.Itoa(s.pid) + "/exe") // unreadable for foreign owners: then it stays empty
	return matrix.Process{PID: s.pid, StartTime: s.start, BootID: t.root.BootID, Exe: exe}
}

// signal sends sig to exactly this process: the pidfd pins the number, the start time proves it is the right one.
func signal(p matrix.Process, sig unix.Signal) error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("pidfd of %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	if s, err := readStat(p.PID); err != nil || s.start != p.StartTime {
		return nil // gone, or somebody else by now
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("%s to %d: %w", unix.SignalName(sig), p.PID, err)
	}
	return nil
}

func reap(pids []int) {
	for _, pid := range pids {
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // somebody else may have been faster
	}
}

// pollEvery is how often the process table is read while waiting for a tree to go: memory of a server takes longer.
const pollEvery = 40 * time.Millisecond
