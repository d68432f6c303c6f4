// Package adaptertest is what the tests of the adapters share: requests, a built fake server, the checks that every adapter
// owes beside the conformance suite, and what the tiny model answers.
package adaptertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"enginebroker/engines"
	"enginebroker/engines/adapter"
	"enginebroker/engines/openai"
	"enginebroker/engines/process"
	"enginebroker/matrix"
)

// Main runs a package's tests with a directory that prepare fills, and fails them where a goroutine is left.
func Main(m *testing.M, prepare func(dir string) error) {
	dir, err := os.MkdirTemp("", "fake-")
	if err != nil {
		panic(err)
	}
	if err := prepare(dir); err != nil {
		fmt.Fprintln(os.Stderr, "fake server:", err)
		os.RemoveAll(dir)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// Build builds the fake server of the package under test, testdata/fake.
func Build(path string) error {
	if out, err := exec.Command("go", "build", "-o", path, "./testdata/fake").CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// WriteFiles writes texts below a directory.
func WriteFiles(dir string, files map[string]string) error {
	for path, text := range files {
		path = filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			return err
		}
	}
	return nil
}

// Request is a start of the tiny model with 512 tokens of context, in directories of its own and on a free port. Paths of
// the artifact are relative to the package under test.
func Request(t testing.TB, a matrix.Artifact) matrix.StartRequest {
	t.Helper()
	port, err := process.FreePort("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	if a.Path != "" {
		if a.Path, err = filepath.Abs(a.Path); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	return matrix.StartRequest{
		// A load's processes are found by its id, and tests of other packages run beside this one under the same name.
		LoadID:    fmt.Sprintf("%d-%s", os.Getpid(), strings.ReplaceAll(t.Name(), "/", "-")),
		ModelName: "tiny", Artifact: a, Policy: matrix.Policy{Kind: matrix.Raw},
		Limits: matrix.Limits{ContextTokens: 512, Concurrency: 2}, PrefixCache: "off", Host: "127.0.0.1", Port: port,
		LogPath: filepath.Join(dir, "log"), CacheDir: filepath.Join(dir, "cache"), StatePath: filepath.Join(dir, "state"), ReadyLimit: time.Minute,
	}
}

// Conformance is a request for enginetest, which fills in files and port.
func Conformance(r matrix.StartRequest) matrix.StartRequest {
	r.LoadID, r.LogPath, r.StatePath, r.Port = "", "", "", 0
	return r
}

// Checkpoint is a directory that looks like one of safetensors.
func Checkpoint(t testing.TB, config string) matrix.Artifact {
	t.Helper()
	dir := t.TempDir()
	if err := WriteFiles(dir, map[string]string{"config.json": config, "model.safetensors": "weights"}); err != nil {
		t.Fatal(err)
	}
	return matrix.Artifact{ID: "tiny@bf16", Container: "safetensors", Path: dir}
}

// Configured gives an instance its settings, and stops its server at the end of the test.
func Configured(t testing.TB, e *adapter.Instance, s engines.Settings) *adapter.Instance {
	t.Helper()
	if faults, err := e.Configure(t.Context(), s); err != nil || len(faults) > 0 {
		t.Fatalf("%v %v", faults, err)
	}
	t.Cleanup(func() { _, _ = e.Stop(context.Background(), 20*time.Second) })
	return e
}

// Stop ends the server; how is the way it must go, empty: any.
func Stop(t testing.TB, e *adapter.Instance, how string) {
	t.Helper()
	if s, err := e.Stop(t.Context(), 30*time.Second); err != nil || !s.Gone() || how != "" && s.How != how {
		t.Errorf("stop: %+v %v", s, err)
	}
}

// Observed checks facts that must have been observed.
func Observed(t testing.TB, facts matrix.Facts, want map[string]string) {
	t.Helper()
	for name, value := range want {
		if f, _ := facts.Get(name); f.Value != value || f.Standing != matrix.Observed {
			t.Errorf("%s: %+v, want %s observed", name, f, value)
		}
	}
}

// Failure is one start that must fail.
type Failure struct {
	Mode       string // FAKE_MODE of the fake server
	Code, Text string // of the *matrix.StartFailure; Text stands in the message or the root cause
	Change     func(*matrix.StartRequest, engines.Settings)
}

// Set is a change of one setting.
func Set(name, value string) func(*matrix.StartRequest, engines.Settings) {
	return func(_ *matrix.StartRequest, s engines.Settings) { s[name] = value }
}

// Fails starts each of them anew and checks that it fails so, and that nothing is left running.
func Fails(t *testing.T, fresh func() *adapter.Instance, request func(testing.TB) matrix.StartRequest, settings engines.Settings, cases []Failure) {
	for _, c := range cases {
		t.Run(c.Mode+" "+c.Text, func(t *testing.T) {
			r, s := request(t), engines.Settings{"env.FAKE_MODE": c.Mode}
			for k, v := range settings {
				s[k] = v
			}
			if c.Change != nil {
				c.Change(&r, s)
			}
			e := Configured(t, fresh(), s)
			_, err := e.Start(t.Context(), r, nil)
			f, ok := errors.AsType[*matrix.StartFailure](err)
			if !ok || f.Code != c.Code || !strings.Contains(err.Error()+strings.Join(f.RootCause, "\n"), c.Text) {
				t.Errorf("%+v", err)
			}
			if _, err := e.Observe(t.Context()); !errors.Is(err, engines.ErrNotStarted) {
				t.Errorf("after a failed start: %v", err)
			}
		})
	}
}

// Causes checks that each log line, far above the last ones, explains a failed start by its code.
func Causes(t *testing.T, causes []process.Cause, want map[string]string) {
	t.Helper()
	for line, code := range want {
		log := append([]string{"loading", line}, slices.Repeat([]string{"  frame of a traceback"}, 50)...)
		if row, lines := process.RootCause(log, causes); row.Code != code || len(lines) == 0 || lines[0] != line {
			t.Errorf("%q: code %q of %q, want %s", line, row.Code, lines, code)
		}
	}
}

// Refuses checks that every bad setting is named, by its field, and that none is kept.
func Refuses(t *testing.T, e *adapter.Instance, bad engines.Settings, fields ...string) {
	t.Helper()
	faults, err := e.Configure(t.Context(), bad)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range faults {
		got = append(got, f.Field)
	}
	slices.Sort(got)
	if !slices.Equal(got, fields) {
		t.Errorf("%v", faults)
	}
	if _, err := e.Start(t.Context(), matrix.StartRequest{}, nil); !errors.Is(err, engines.ErrNotConfigured) {
		t.Errorf("refused settings were kept: %v", err)
	}
}

// Attaches starts a server with one instance, attaches another to it, and lets go.
func Attaches(t *testing.T, host, e *adapter.Instance, r matrix.StartRequest) {
	ready, err := host.Start(t.Context(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	Configured(t, e, engines.Settings{"attach": ready.Dialect.BaseURL})
	got, err := e.Start(t.Context(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Processes) != 1 || got.Processes[0].PID != ready.Processes[0].PID {
		t.Errorf("the owner of the socket: %v, want %v", got.Processes, ready.Processes)
	}
	if st, err := e.Observe(t.Context()); err != nil || !st.Alive {
		t.Errorf("%+v %v", st, err)
	}
	if s, err := e.Stop(t.Context(), time.Second); err != nil || s.How != "detached" || s.Gone() {
		t.Errorf("%+v %v: a detached server is not proved gone", s, err)
	}
	if st, err := host.Observe(t.Context()); err != nil || !st.Alive {
		t.Errorf("the attached server was stopped: %+v %v", st, err)
	}
	if _, err := e.Preflight(t.Context(), r, nil); !errors.Is(err, engines.ErrUnsupported) {
		t.Errorf("preflight: %v", err)
	}
}

// NotInstalled checks that settings which lead nowhere are described with what was looked for.
func NotInstalled(t *testing.T, fresh func() *adapter.Instance, kind string, settings ...engines.Settings) {
	for _, s := range settings {
		d, err := Configured(t, fresh(), s).Describe(t.Context())
		if err != nil || d.Installed || len(d.LookedFor) == 0 || len(d.Capabilities) == 0 || len(d.Settings) == 0 || d.Engine != kind {
			t.Errorf("%v: %+v %v", s, d, err)
		}
	}
}

// Halt stops a process by a signal and waits until the kernel has done it, which on a busy machine takes its time.
func Halt(t testing.TB, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	halted := func(context.Context) error {
		if !adapter.Halted([]matrix.Process{{PID: pid}}) {
			return fmt.Errorf("process %d does not stop", pid)
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := openai.Poll(ctx, time.Second, halted); err != nil {
		t.Fatal(err)
	}
}
