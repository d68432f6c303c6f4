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
	"enginebroker/engines/openai"
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

// realVenv is the environment that engines/install/sglang.sh makes.
func realVenv(t testing.TB) string {
	t.Helper()
	venv, err := filepath.Abs(filepath.Join(repo, place.Default))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(venv, "bin/sglang")); err != nil {
		t.Skip(`SGLang is not installed: run make engines ENGINES=sglang`)
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
		if realCache, err = os.MkdirTemp("", "sglang-cache-"); err != nil {
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
	// The last two tokens of the context are not given, in silence; beyond the context it is a 400.
	for asked, want := range map[int]int64{499: 499, 501: 499} {
		a, err := srv.Client.Complete(t.Context(), r.ModelName, oraclePrompt, asked, map[string]any{"ignore_eos": true})
		if err != nil || a.CompletionTokens != matrix.Some(want) {
			t.Errorf("11 + %d of 512: %v tokens, want %d: %v", asked, a.CompletionTokens, want, err)
		}
	}
	if _, err := srv.Client.Complete(t.Context(), r.ModelName, oraclePrompt, 502, nil); !openai.IsStatus(err, 400) {
		t.Errorf("beyond the context: %v", err)
	}
	// A wrong name is accepted and echoed: the dialect must not take it for proof.
	if a, err := srv.Client.Complete(t.Context(), "no-such-model", oraclePrompt, 1, nil); err != nil || a.Model != "no-such-model" || ready.Dialect.EchoesModel {
		t.Errorf("a wrong name: %q %v", a.Model, err)
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

// A killed scheduler makes the server end itself some seconds later (engines.md D8).
func TestRealKilledScheduler(t *testing.T) {
	e := configured(t, engines.Settings{"venv": realVenv(t)})
	ready, err := e.Start(t.Context(), realRequest(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(scheduler(t, ready), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	srv, err := e.Server()
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-srv.Done():
	case <-time.After(time.Minute):
		t.Error("the server survives its scheduler for a minute")
	}
	st, err := e.Observe(t.Context())
	if err != nil || st.Alive || !st.Exit.Present() {
		t.Errorf("after the kill: %+v %v", st, err)
	}
	stop(t, e, "")
}

func scheduler(t testing.TB, ready matrix.Ready) int {
	t.Helper()
	for _, p := range ready.Processes {
		if b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.PID), "cmdline")); err == nil && strings.HasPrefix(string(b), "sglang::scheduler") {
			return p.PID
		}
	}
	t.Fatalf("no scheduler in %+v", ready.Processes)
	return 0
}

// A stopped scheduler leaves /v1/models answering and /server_info hanging: Observe ends by itself, and the tree still ends.
func TestRealStoppedScheduler(t *testing.T) {
	e := configured(t, engines.Settings{"venv": realVenv(t)})
	ready, err := e.Start(t.Context(), realRequest(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(scheduler(t, ready), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if st, err := e.Observe(t.Context()); err != nil || st.Alive {
		t.Errorf("a server that hangs is said to be alive: %+v", st)
	}
	stop(t, e, "")
}

func TestRealConformance(t *testing.T) {
	venv := realVenv(t)
	r := realRequest(t)
	r.LoadID, r.LogPath, r.StatePath, r.Port = "", "", "", 0
	enginetest.Run(t, enginetest.Config{New: func() engines.Engine { return newEngine() }, Settings: engines.Settings{"venv": venv, "env.SOME_API_KEY": "hush-hush-hush"},
		Bad: engines.Settings{"venv": "", "chunked_prefill_size": "much"}, Request: r, Secrets: []string{"hush-hush-hush"}, StopDeadline: 30 * time.Second})
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
