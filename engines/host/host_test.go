package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"enginebroker/engines"
	"enginebroker/matrix"
)

// TestProblems launches every way not to be a plugin. Each is one line with the plugin, what it did and the fix, and leaves
// neither process nor socket.
func TestProblems(t *testing.T) {
	dir := install(t, "good", "telemetry", "chatty", "flood", "empty", "quits", "silent", "leaver", "future", "netrpc", "nobody", "dies", "killed", "hangs", "frozen", "nameless")
	for _, file := range []struct {
		name, text string
		mode       os.FileMode
	}{{"plain", "#!/bin/sh\n", 0o644}, {"noise", "\x00\x01\x02", 0o755}, {"nointerpreter", "#!/no/such/python\n", 0o755}} {
		if err := os.WriteFile(filepath.Join(dir, file.name), []byte(file.text), file.mode); err != nil {
			t.Fatal(err)
		}
	}
	sockets := t.TempDir()
	t.Setenv("TMPDIR", sockets)
	for _, test := range []struct {
		name   string
		change func(*Config)
		kind   Kind
		say    []string
	}{
		{"absent", nil, Missing, []string{"no such file or directory", "install it"}},
		{"plain", nil, NotExecutable, []string{"it is not executable", "chmod +x"}},
		{"noise", nil, NotExecutable, []string{"exec format error", "install a build for this machine"}},
		{"nointerpreter", nil, NotExecutable, []string{"no such file or directory"}},
		{"good", func(c *Config) { c.Pin = strings.Repeat("ab", 32) }, Checksum, []string{"its SHA-256 is ", "not the one that was pinned, abab"}},
		{"good", func(c *Config) { c.Pin = "latest" }, Checksum, []string{`"latest" is not 64 hex digits`}},
		{"good", func(c *Config) { c.Settings = engines.Settings{} }, Settings, []string{"binary: it is required (name the server); cache: no such directory"}},
		{"telemetry", nil, WrongKind, []string{"does not serve what was asked for"}},
		{"chatty", nil, Stdout, []string{`"loading 3 libraries" on stdout before the handshake`}},
		{"flood", nil, Stdout, []string{"bytes without a newline", `"xxxxxxxxxx`}},
		{"empty", nil, Stdout, []string{`it printed "" on stdout`}},
		{"quits", nil, Died, []string{"exit status 3", "libcuda.so.1: not found"}},
		{"silent", func(c *Config) { c.StartTimeout = 300 * time.Millisecond }, Hung, []string{"no handshake within 300ms"}},
		{"leaver", func(c *Config) { c.StartTimeout = 300 * time.Millisecond }, Hung, []string{"no handshake within 300ms"}},
		{"future", nil, Protocol, []string{"it speaks protocol 9 and this broker speaks 1", "rebuild the older"}},
		{"netrpc", nil, Protocol, []string{"netrpc"}},
		{"nobody", func(c *Config) { c.DescribeTimeout = time.Second }, Hung, []string{"Describe"}},
		{"dies", nil, Died, []string{"during Describe", "exit status 2", "panic: index out of range"}},
		{"killed", nil, Died, []string{"during Describe", "signal: killed, sender unknown"}},
		{"hangs", func(c *Config) { c.DescribeTimeout = 300 * time.Millisecond }, Hung, []string{"did not answer Describe within 300ms"}},
		{"frozen", func(c *Config) { c.DescribeTimeout = 300 * time.Millisecond }, Hung, []string{"did not answer Describe within 300ms"}},
		{"nameless", nil, Protocol, []string{"without naming its engine"}},
	} {
		t.Run(test.name+"/"+string(test.kind), func(t *testing.T) {
			c := Config{Plugin: Plugin{Path: filepath.Join(dir, test.name)}, Label: "mine"}
			if test.change != nil {
				test.change(&c)
			}
			i, err := Launch(t.Context(), c)
			p, ok := errors.AsType[*Problem](err)
			if !ok || i != nil {
				t.Fatalf("got %v, %v", i, err)
			}
			if p.Kind != test.kind {
				t.Errorf("kind %s: %v", p.Kind, p)
			}
			for _, s := range append(test.say, test.name, "(mine)") {
				if !strings.Contains(p.Error(), s) {
					t.Errorf("%q does not say %q", p, s)
				}
			}
			if strings.Contains(p.Error(), "\n") {
				t.Errorf("more than one line: %q", p)
			}
			if test.kind == Settings && len(p.Fields) != 2 {
				t.Errorf("fields %v", p.Fields)
			}
		})
	}
	nothingLeft(t, dir, sockets)
	p, ok := errors.AsType[*Problem](func() error {
		_, err := LaunchTelemetry(t.Context(), Config{Plugin: Plugin{Path: filepath.Join(dir, "good")}})
		return err
	}())
	if !ok || p.Kind != WrongKind {
		t.Errorf("an engine as telemetry: %v", p)
	}
	nothingLeft(t, dir, sockets)
}

// nothingLeft finds processes that run a program of dir, and sockets.
func nothingLeft(t *testing.T, dir, sockets string) {
	t.Helper()
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, l := range links {
		if exe, err := os.Readlink(l); err == nil && strings.HasPrefix(exe, dir+"/") {
			t.Errorf("%s still runs %s", l, exe)
		}
	}
	if left, _ := os.ReadDir(sockets); len(left) > 0 {
		t.Errorf("left in TMPDIR: %v", left)
	}
}

func TestCancelledLaunch(t *testing.T) {
	dir := install(t, "silent", "hangs")
	for _, name := range []string{"silent", "hangs"} {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		_, err := Launch(ctx, Config{Plugin: Plugin{Path: filepath.Join(dir, name)}})
		if err == nil || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Launch(ctx, Config{Plugin: Plugin{Path: filepath.Join(dir, "silent")}}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled before: %v", err)
	}
	nothingLeft(t, dir, t.TempDir())
}

// TestInstances runs one plugin twice under two labels and settings, and what each one logs and prints.
func TestInstances(t *testing.T) {
	dir := install(t, "good")
	sockets := t.TempDir()
	t.Setenv("TMPDIR", sockets)
	t.Setenv("BROKER_TEST_SECRET", "sesame")
	found, problems := Find([]string{dir})
	if len(problems) != 0 || len(found) != 1 || found[0].Name != "good" || len(found[0].SHA256) != 64 {
		t.Fatalf("found %v, %v", found, problems)
	}
	core, logs := observer.New(zap.DebugLevel)
	var all []*Instance
	for _, c := range []Config{
		{Label: "a", Settings: engines.Settings{"binary": "/a"}},
		{Label: "b", Settings: engines.Settings{"binary": "/b"}, Env: []string{"BROKER_TEST_SECRET", "BROKER_TEST_UNSET"}, Pin: found[0].SHA256},
	} {
		c.Plugin, c.Log = found[0], zap.New(core)
		i, err := Launch(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, i)
	}
	a, b := all[0], all[1]
	if d := a.Description(); d.LookedFor[0] != "/a" || d.LookedFor[1] != "" || !d.Installed {
		t.Errorf("a: %+v", d)
	}
	if d := b.Description(); d.LookedFor[0] != "/b" || d.LookedFor[1] != "sesame" {
		t.Errorf("b: %+v", d)
	}
	if _, err := a.Preflight(t.Context(), matrix.StartRequest{}, nil); !errors.Is(err, engines.ErrUnsupported) {
		t.Errorf("an answer became %v", err)
	}
	if ids, err := a.Tokenize(t.Context(), "four"); err != nil || ids[0] != 4 {
		t.Errorf("%v, %v", ids, err)
	}
	ready, err := b.Start(t.Context(), matrix.StartRequest{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range all {
		for range 2 { // again is the same
			if err := i.Close(t.Context()); err != nil {
				t.Errorf("close %s: %v", i.Label(), err)
			}
		}
	}
	if alive(ready.Processes[0].PID) {
		t.Error("the server survives Close")
	}
	nothingLeft(t, dir, sockets)
	entries := logs.FilterMessage("described").All()
	if len(entries) != 4 || entries[0].Level != zap.InfoLevel || entries[0].ContextMap()["n"] != 1.0 || entries[0].ContextMap()["instance"] == nil {
		t.Errorf("logged %v", entries)
	}
	if n := logs.FilterMessage("tokenizing").FilterField(zap.String("text", "four")).Len(); n != 1000 {
		t.Errorf("%d of 1000 lines arrived", n)
	}
	if _, err := a.Observe(t.Context()); !errors.Is(err, engines.ErrGone) {
		t.Errorf("after Close: %v", err)
	}
}

// TestJ05 kills a plugin in the middle of a stream; another one goes on.
func TestJ05(t *testing.T) {
	dir := install(t, "good")
	path := Plugin{Path: filepath.Join(dir, "good")}
	i, err := Launch(t.Context(), Config{Plugin: path, Label: "dying", Settings: engines.Settings{"binary": "x"}})
	if err != nil {
		t.Fatal(err)
	}
	other, err := Launch(t.Context(), Config{Plugin: path, Label: "other"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = i.Start(t.Context(), matrix.StartRequest{LoadID: "die"}, nil)
	p, ok := errors.AsType[*Problem](err)
	if !ok || p.Kind != Died || !errors.Is(err, engines.ErrGone) || !strings.Contains(p.Error(), "during Start: signal: killed, sender unknown") {
		t.Errorf("got %v", err)
	}
	<-i.Gone()
	if _, err := i.Describe(t.Context()); !errors.Is(err, engines.ErrGone) {
		t.Errorf("next call: %v", err)
	}
	if err := i.Close(t.Context()); !errors.Is(err, engines.ErrGone) {
		t.Errorf("close: %v", err)
	}
	if _, err := other.Describe(t.Context()); err != nil {
		t.Errorf("the other one: %v", err)
	}
	if err := other.Close(t.Context()); err != nil {
		t.Error(err)
	}
	nothingLeft(t, dir, t.TempDir())
}

func TestTelemetry(t *testing.T) {
	dir := install(t, "telemetry")
	tel, err := LaunchTelemetry(t.Context(), Config{Plugin: Plugin{Path: filepath.Join(dir, "telemetry")}})
	if err != nil {
		t.Fatal(err)
	}
	if d, err := tel.Describe(t.Context()); err != nil || d.Why != "no device" {
		t.Errorf("%v, %v", d, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	n := int64(0)
	err = tel.Sample(ctx, 10, func(s matrix.Sample) {
		if n++; s.At != n {
			t.Errorf("sample %v", s)
		}
		if n == 2 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	kill(tel.PID(), syscall.SIGKILL)
	if err := tel.Sample(t.Context(), 10, func(matrix.Sample) {}); !errors.Is(err, engines.ErrGone) {
		t.Errorf("after its death: %v", err)
	}
	if err := tel.Close(t.Context()); err != nil {
		t.Error(err)
	}
	nothingLeft(t, dir, t.TempDir())
}

// TestJ02 kills the broker: its plugin stops the engine's server and leaves, with the server up and with it on its way up.
func TestJ02(t *testing.T) {
	for _, when := range []string{"up", "slow"} {
		t.Run(when, func(t *testing.T) {
			dir, sockets := install(t, "good", "broker"), t.TempDir()
			cmd := exec.Command(filepath.Join(dir, "broker"), filepath.Join(dir, "good"), when)
			cmd.Env = append(os.Environ(), "TMPDIR="+sockets)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			plugin, server := readPIDs(t, out)
			kill(cmd.Process.Pid, syscall.SIGKILL)
			_ = cmd.Wait()
			for limit := time.Now().Add(30 * time.Second); alive(plugin) || alive(server); time.Sleep(5 * time.Millisecond) {
				if time.Now().After(limit) {
					kill(plugin, syscall.SIGKILL)
					kill(server, syscall.SIGKILL)
					t.Fatal("the plugin or its server outlived the broker")
				}
			}
			nothingLeft(t, dir, sockets)
		})
	}
}

// alive reports whether a process of that number exists and is no zombie.
func alive(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z")
}

func TestFind(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	for path, mode := range map[string]os.FileMode{
		first + "/vllm": 0o755, first + "/.hidden": 0o755, first + "/README": 0o644, first + "/lost": 0o644,
		second + "/vllm": 0o755, second + "/sglang": 0o755,
	} {
		if err := os.WriteFile(path, []byte("#!"+path), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(first+"/README", []byte("words"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(first+"/nowhere", first+"/dangling"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(second+"/sglang", first+"/link"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(first+"/folder", 0o755); err != nil {
		t.Fatal(err)
	}
	found, problems := Find([]string{first, second, "/no/such/dir"})
	var got []string
	for _, p := range found {
		got = append(got, p.Name+"="+p.Path)
	}
	want := []string{"link=" + second + "/sglang", "vllm=" + first + "/vllm", "sglang=" + second + "/sglang"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("found %v, want %v", got, want)
	}
	var kinds []string
	for _, p := range problems {
		kinds = append(kinds, filepath.Base(p.Plugin)+":"+string(p.Kind))
	}
	if fmt.Sprint(kinds) != "[dangling:missing lost:not_executable dir:missing]" {
		t.Errorf("problems %v", problems)
	}
}

// TestLogLines takes what would make go-plugin's own parser panic or lose the level.
func TestLogLines(t *testing.T) {
	for line, want := range map[string]string{
		`{"@level":"warn","@message":"m","@timestamp":1,"k":[1,"x"]}`: "warn m [k]",
		`{"@level":7,"@message":"m"}`:                                 "warn m []",
		`{"@message":7}`:                                              "",
		`{"@message":`:                                                "",
		`[1]`:                                                         "",
		`plain`:                                                       "",
	} {
		core, logs := observer.New(zap.DebugLevel)
		got := ""
		if message, level, ok := logLine(zap.New(core), line); ok {
			var keys []string
			for k := range logs.All()[0].ContextMap() {
				keys = append(keys, k)
			}
			got = fmt.Sprintf("%v %s %v", level, message, keys)
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", line, got, want)
		}
	}
}

// TestFlood: what nobody would read does not fill a terminal.
func TestFlood(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	say := printed(zap.New(core), "stderr")
	for range 1000 {
		say("y")
	}
	if n := logs.FilterLevelExact(zap.WarnLevel).Len(); n != printedLines || logs.Len() != 1000 {
		t.Errorf("%d warnings of %d lines", n, logs.Len())
	}
}

func FuzzOutput(f *testing.F) {
	f.Add([]byte("1|1|unix|/x|grpc\nrest\n"), 3)
	f.Add([]byte(strings.Repeat("x", 9000)), 4096)
	f.Add([]byte(`{"@message":7}`+"\n"), 1)
	f.Fuzz(func(t *testing.T, b []byte, chunk int) {
		if chunk < 1 || chunk > 1<<20 {
			return
		}
		first := newFirstLine(lines(func(string) {}))
		stderr := lines(func(s string) { logLine(zap.NewNop(), s) })
		for rest := b; len(rest) > 0; rest = rest[min(chunk, len(rest)):] {
			part := rest[:min(chunk, len(rest))]
			for _, w := range []interface{ Write([]byte) (int, error) }{first, stderr} {
				if n, err := w.Write(part); n != len(part) || err != nil {
					t.Fatalf("wrote %d of %d: %v", n, len(part), err)
				}
			}
		}
		first.end()
		want, _, complete := strings.Cut(string(b), "\n")
		line, gotComplete := first.seen()
		if len(want) < maxHandshake && (line != want || gotComplete != complete) {
			t.Errorf("first line %q %t, want %q %t", line, gotComplete, want, complete)
		}
	})
}

// BenchmarkLaunch is the time from the launch to an answered Describe; the goal is a median of at most 150 ms (issue 3).
func BenchmarkLaunch(b *testing.B) {
	dir := install(b, "good")
	found, _ := Find([]string{dir})
	for b.Loop() {
		i, err := Launch(b.Context(), Config{Plugin: found[0]})
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := i.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
