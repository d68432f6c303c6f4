package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"enginebroker/engines"
	"enginebroker/engines/adapter"
	"enginebroker/engines/enginetest"
	"enginebroker/engines/process"
	"enginebroker/matrix"
)

const (
	repo  = "../.."
	model = repo + "/testdata/models/tiny-qwen3/hf"
	// oracle is what four engines answer in float32 to oraclePrompt, 24 tokens, greedy, ignoring the end of text.
	oraclePrompt = "the cat in an old"
	oracle       = `0l0lE andrEEEE0M2EW" p theEW"thg`
)

// realVenv is the environment that engines/install/vllm.sh makes.
func realVenv(t testing.TB) string {
	t.Helper()
	venv, err := filepath.Abs(filepath.Join(repo, place.Default))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(venv, "bin/vllm")); err != nil {
		t.Skip(`vLLM is not installed: run make engines ENGINES=vllm`)
	}
	if testing.Short() {
		t.Skip("a start takes a minute")
	}
	return venv
}

// realCache is kept between tests, as between loads, so that --help is read once.
var realCache string

func realRequest(t testing.TB) matrix.StartRequest {
	t.Helper()
	r := request(t)
	if realCache == "" {
		var err error
		if realCache, err = os.MkdirTemp("", "vllm-cache-"); err != nil {
			t.Fatal(err)
		}
	}
	path, err := filepath.Abs(model)
	if err != nil {
		t.Fatal(err)
	}
	r.Artifact = matrix.Artifact{ID: "tiny-qwen3@bf16", Container: "safetensors", Path: path}
	r.CacheDir, r.ReadyLimit = realCache, 5*time.Minute
	return r
}

func TestRealStart(t *testing.T) {
	venv := realVenv(t)
	e := configured(t, engines.Settings{"venv": venv})
	d, err := e.Describe(t.Context())
	if err != nil || !d.Installed {
		t.Fatalf("%+v %v", d, err)
	}
	r := realRequest(t)
	ready, err := e.Start(t.Context(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("ready after %s, granted %+v, added %d", ready.FirstToken.Round(time.Second), ready.Granted, ready.Dialect.AddedPrompt)
	for _, f := range ready.Facts {
		if !strings.HasPrefix(f.Name, "library") && !strings.HasPrefix(f.Name, "package.nvidia") {
			t.Logf("%s = %s (%s, %s)", f.Name, f.Value, f.Where, f.Standing)
		}
	}
	for name, want := range map[string]string{
		matrix.FactSpeculation: "none", matrix.FactPrefixCache: "off", matrix.FactContextTokens: "512", matrix.FactConcurrency: "2", matrix.FactComputeDtype: "float32",
		matrix.FactActivationDtype: "float32", matrix.FactKVDtype: "float32", matrix.FactQuantization: "none", matrix.FactModelPath: r.Artifact.Path, matrix.FactSleepOnIdle: "off",
	} {
		if f, _ := ready.Facts.Get(name); f.Value != want || f.Standing != matrix.Observed {
			t.Errorf("%s: %+v, want %s observed", name, f, want)
		}
	}
	described, _ := d.Identity.Value(matrix.FactVersion).Get()
	if running, _ := ready.Facts.Value(matrix.FactVersion).Get(); !strings.HasPrefix(described, running) || running == "" {
		t.Errorf("version %q on disk, %q running", described, running)
	}
	if !ready.Dialect.CachedReported || ready.Dialect.AddedPrompt != 0 {
		t.Errorf("dialect %+v", ready.Dialect)
	}
	ids, err := e.Tokenize(t.Context(), oraclePrompt)
	if want := []int{257, 281, 272, 32, 259, 32, 260, 32, 111, 108, 100}; err != nil || !slices.Equal(ids, want) {
		t.Errorf("ids %v %v", ids, err)
	}
	srv, err := e.Server()
	if err != nil {
		t.Fatal(err)
	}
	a, err := srv.Client.Complete(t.Context(), r.ModelName, oraclePrompt, 24, map[string]any{"ignore_eos": true})
	if err != nil || a.Text != oracle {
		t.Errorf("text %q, want %q: %v", a.Text, oracle, err)
	}
	// Prompt and output fill the context exactly; beyond it the answer is shortened without an error.
	for asked, want := range map[int]int64{501: 501, 502: 501} {
		a, err := srv.Client.Complete(t.Context(), r.ModelName, oraclePrompt, asked, map[string]any{"ignore_eos": true})
		if err != nil || a.CompletionTokens != matrix.Some(want) {
			t.Errorf("11 + %d of 512: %v tokens, want %d: %v", asked, a.CompletionTokens, want, err)
		}
	}
	st, err := e.Observe(t.Context())
	if err != nil || !st.Alive || st.Running != matrix.Some[int64](0) || st.CachedTokens != matrix.Some[int64](0) || st.Generated.Or(0) < 24 {
		t.Errorf("%+v %v", st.Running, err)
	}
	if st.Print != ready.Print || st.Print == "" {
		t.Errorf("print moved within a load: %s, %s", ready.Print, st.Print)
	}
	if len(ready.Processes) < 3 {
		t.Errorf("tree %+v", ready.Processes)
	}
	stop(t, e, "")
	if _, err := e.Observe(t.Context()); err != engines.ErrNotStarted {
		t.Errorf("after stop: %v", err)
	}
}

// A worker that outlives the killed engine core is stopped with the tree (engines.md C8).
func TestRealKilledCore(t *testing.T) {
	e := configured(t, engines.Settings{"venv": realVenv(t)})
	r := realRequest(t)
	ready, err := e.Start(t.Context(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	core := 0
	for _, p := range ready.Processes {
		if b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.PID), "comm")); err == nil && strings.HasPrefix(string(b), "VLLM::EngineCor") {
			core = p.PID
		}
	}
	if core == 0 {
		t.Fatalf("no engine core in %+v", ready.Processes)
	}
	if err := syscall.Kill(core, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	srv, err := e.Server()
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-srv.Done():
	case <-time.After(time.Minute):
		t.Log("the API server survives its engine core for a minute")
	}
	st, err := e.Observe(t.Context())
	t.Logf("after the kill: %+v %v", st, err)
	if err == nil && st.Alive {
		t.Error("a server without its engine core is said to be alive")
	}
	s, err := e.Stop(t.Context(), 30*time.Second)
	if err != nil || !s.Gone() {
		t.Errorf("stop: %+v %v", s, err)
	}
}

// A stopped worker leaves every endpoint answering; nothing but a token proves life, and the tree still ends.
func TestRealStoppedWorker(t *testing.T) {
	e := configured(t, engines.Settings{"venv": realVenv(t)})
	r := realRequest(t)
	ready, err := e.Start(t.Context(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	last := ready.Processes[len(ready.Processes)-1]
	if err := syscall.Kill(last.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if st, err := e.Observe(t.Context()); err != nil || st.Alive {
		t.Errorf("a server that hangs is said to be alive: %v", err)
	}
	if s, err := e.Stop(t.Context(), 20*time.Second); err != nil || !s.Gone() {
		t.Errorf("stop: %+v %v", s, err)
	}
}

func TestRealConformance(t *testing.T) {
	venv := realVenv(t)
	r := realRequest(t)
	r.LoadID, r.LogPath, r.StatePath, r.Port = "", "", "", 0
	enginetest.Run(t, enginetest.Config{New: func() engines.Engine { return newEngine() }, Settings: engines.Settings{"venv": venv, "env.SOME_API_KEY": "hush-hush-hush"},
		Bad: engines.Settings{"venv": "", "kv_cache_space": "much"}, Request: r, Secrets: []string{"hush-hush-hush"}, StopDeadline: 30 * time.Second})
}

func request(t testing.TB) matrix.StartRequest {
	t.Helper()
	port, err := process.FreePort("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	return matrix.StartRequest{
		LoadID: strings.ReplaceAll(t.Name(), "/", "-"), ModelName: "tiny", Policy: matrix.Policy{Kind: matrix.Raw}, ComputeDtype: "float32",
		Limits: matrix.Limits{ContextTokens: 512, Concurrency: 2, KVTokens: 1024}, PrefixCache: "off",
		Host: "127.0.0.1", Port: port, LogPath: filepath.Join(dir, "log"), CacheDir: filepath.Join(dir, "cache"), StatePath: filepath.Join(dir, "state"), ReadyLimit: 60 * time.Second,
	}
}

func configured(t testing.TB, s engines.Settings) *adapter.Instance {
	t.Helper()
	e := newEngine()
	if faults, err := e.Configure(t.Context(), s); err != nil || len(faults) > 0 {
		t.Fatalf("%v %v", faults, err)
	}
	t.Cleanup(func() { _, _ = e.Stop(context.Background(), 20*time.Second) })
	return e
}

func stop(t *testing.T, e *adapter.Instance, how string) {
	t.Helper()
	if s, err := e.Stop(t.Context(), 30*time.Second); err != nil || !s.Gone() || how != "" && s.How != how {
		t.Errorf("stop: %+v %v", s, err)
	}
}

// BenchmarkDescribe measures the first answer of an instance, from the files of a real environment.
func BenchmarkDescribe(b *testing.B) {
	venv := realVenv(b)
	for b.Loop() {
		e := newEngine()
		if _, err := e.Configure(b.Context(), engines.Settings{"venv": venv}); err != nil {
			b.Fatal(err)
		}
		if d, err := e.Describe(b.Context()); err != nil || !d.Installed {
			b.Fatal(d.LookedFor, err)
		}
	}
}
