package process

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"enginebroker/matrix"
)

func TestParseStat(t *testing.T) {
	for _, c := range []struct {
		line string
		want stat
		bad  bool
	}{
		{line: "12 (llama-server) S 1 12 12 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 5 0 99887 1 2", want: stat{pid: 12, ppid: 1, pgrp: 12, session: 12, start: 99887}},
		{line: "12 (VLLM::Wor) k) (er) Z 7 8 9 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 5 0 5 1 2", want: stat{pid: 12, ppid: 7, pgrp: 8, session: 9, start: 5, zombie: true}},
		{line: "", bad: true},
		{line: "12 (x", bad: true},
		{line: "12 (x) S 1 2", bad: true},
		{line: "12 (x) S a b c 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 5 0 5 1 2", bad: true},
	} {
		got, err := parseStat(12, []byte(c.line))
		if (err != nil) != c.bad || !c.bad && got != c.want {
			t.Errorf("%q: %+v %v", c.line, got, err)
		}
	}
}

// TestAbsence: a root that forks and ends while the table is read leaves a child that this reading missed.
func TestAbsence(t *testing.T) {
	root := matrix.Process{PID: 1 << 30, StartTime: 5} // no process of this machine
	worker := stat{pid: root.PID + 1, ppid: 1, pgrp: root.PID, session: root.PID, start: 6}
	tr := newTree("load", root)
	looks := 0
	tr.table = func() ([]stat, error) {
		if looks++; looks == 1 {
			return nil, nil
		}
		return []stat{worker}, nil
	}
	if live, _, err := tr.members(); err != nil || len(live) != 1 || live[0].PID != worker.pid {
		t.Errorf("%v %v", live, err)
	}
	tr = newTree("load", root)
	tr.table = func() ([]stat, error) { return nil, nil }
	if live, _, err := tr.members(); err != nil || len(live) != 0 {
		t.Errorf("nobody: %v %v", live, err)
	}
}

func TestParseListener(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 0000000000000000 100 0 0 10 0", "127.0.0.1:8080 4242"},
		{"   1: 00000000000000000000000001000000:1F90 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 7 1 0", "[::1]:8080 7"},
		{"   1: 0000000000000000FFFF00000100007F:1F90 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 7 1 0", "127.0.0.1:8080 7"},
		{"   0: 0100007F:1F90 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 4242 1 0", ""}, // connected
		{"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode", ""},
		{"   0: zz:1F90 00000000:0000 0A 0 0 0 0 0 4242", ""},
		{"", ""},
	} {
		got := ""
		if l, ok := parseListener(c.line); ok {
			got = fmt.Sprintf("%s %d", l.Address, l.Inode)
		}
		if got != c.want {
			t.Errorf("%q: %q, want %q", c.line, got, c.want)
		}
	}
}

func FuzzParseProc(f *testing.F) {
	f.Add("12 (x) S 1 2 3 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 5 0 5 1 2")
	f.Add("   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 0")
	f.Fuzz(func(t *testing.T, line string) {
		if s, err := parseStat(1, []byte(line)); err == nil && s.pid != 1 {
			t.Errorf("%+v", s)
		}
		if l, ok := parseListener(line); ok && !l.Address.IsValid() {
			t.Errorf("%+v", l)
		}
	})
}

func TestRootCause(t *testing.T) {
	table := []Cause{
		{Pattern: regexp.MustCompile(`out of memory`), Code: "limits"},
		{Pattern: regexp.MustCompile(`initialization failed`), Code: "exited"},
	}
	lines := []string{"loading", "CUDA out of memory", "trace", "initialization failed. See root cause above"}
	if row, got := RootCause(lines, table); row.Code != "limits" || !slices.Equal(got, lines[1:2]) {
		t.Errorf("%v %v", row, got)
	}
	if row, got := RootCause([]string{"a", "b"}, table); row.Pattern != nil || !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("without a match: %v %v", row, got)
	}
	if _, got := RootCause(nil, table); len(got) != 0 {
		t.Errorf("empty log: %v", got)
	}
}

func TestTailGoesBackOverARotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if _, err := Tail(path, 3); err == nil {
		t.Error("no error for a missing log")
	}
	for name, text := range map[string]string{path + ".1": "1\n2\n", path: "3\r\n4\xff\n"} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := Tail(path, 3); err != nil || strings.Join(got, "|") != "2|3|4\uFFFD" {
		t.Errorf("%q %v", got, err)
	}
}

func TestFollower(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f := follower{path: path}
	var got []string
	for _, step := range []struct {
		text string
		flag int
	}{{"a\nb", os.O_APPEND}, {"c\nd\n", os.O_APPEND}, {"e\n", os.O_TRUNC}} {
		w, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|step.flag, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = w.WriteString(step.text)
		w.Close()
		got = append(got, f.next()...)
	}
	if strings.Join(got, "|") != "a|bc|d|e" {
		t.Errorf("%q", got)
	}
}

func TestExitSaysNoMoreThanIsKnown(t *testing.T) {
	for _, c := range []struct {
		exit Exit
		want string
	}{
		{Exit{Code: 3}, "exit code 3"},
		{Exit{Code: 137}, "exit code 137"}, // a wrapper's own code is no signal
		{Exit{Code: 137, Signal: syscall.SIGKILL}, "SIGKILL, sender unknown"},
		{Exit{Code: 137, Signal: syscall.SIGKILL, ByUs: true}, "SIGKILL, sent by us"},
		{Exit{Code: 137, Signal: syscall.SIGKILL, OOM: true}, "SIGKILL, killed by its cgroup limit (memory.events counts an oom_kill)"},
		{Exit{Code: 143, Signal: syscall.SIGTERM, OOM: true}, "SIGTERM, sender unknown"},
		{Exit{Code: 139, Signal: syscall.SIGSEGV, ByUs: true}, "SIGSEGV, it crashed"},
	} {
		if got := c.exit.String(); got != c.want {
			t.Errorf("%+v: %q", c.exit, got)
		}
	}
}
