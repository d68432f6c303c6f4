package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"enginebroker/engines"
	"enginebroker/engines/adapter"
	"enginebroker/engines/adapter/adaptertest"
	"enginebroker/engines/enginetest"
	"enginebroker/engines/openai"
	"enginebroker/matrix"
)

const (
	repo  = "../.."
	model = repo + "/testdata/models/tiny-qwen3/hf"
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
	r := adaptertest.Request(t, matrix.Artifact{ID: "tiny-qwen3@bf16", Container: "safetensors", Path: model})
	r.ComputeDtype, r.Limits.KVTokens, r.CacheDir, r.ReadyLimit = "float32", 1024, realCache, 5*time.Minute
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
	adaptertest.Observed(t, ready.Facts, map[string]string{
		matrix.FactSpeculation: "none", matrix.FactPrefixCache: "off", matrix.FactContextTokens: "512", matrix.FactConcurrency: "2", matrix.FactComputeDtype: "float32",
		matrix.FactActivationDtype: "float32", matrix.FactKVDtype: "float32", matrix.FactQuantization: "none", matrix.FactModelPath: r.Artifact.Path, matrix.FactSleepOnIdle: "off",
	})
	described, _ := d.Identity.Value(matrix.FactVersion).Get()
	if running, _ := ready.Facts.Value(matrix.FactVersion).Get(); !strings.HasPrefix(described, running) || running == "" {
		t.Errorf("version %q on disk, %q running", described, running)
	}
	if !ready.Dialect.CachedReported || ready.Dialect.AddedPrompt != 0 {
		t.Errorf("dialect %+v", ready.Dialect)
	}
	// The last two tokens of the context are not given, in silence; beyond the context it is a 400.
	adaptertest.Tiny(t, e, map[int]int64{499: 499, 501: 499})
	srv, err := e.Server()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := srv.Client.Complete(t.Context(), r.ModelName, adaptertest.Prompt, 502, nil); !openai.IsStatus(err, 400) {
		t.Errorf("beyond the context: %v", err)
	}
	// A wrong name is accepted and echoed: the dialect must not take it for proof.
	if a, err := srv.Client.Complete(t.Context(), "no-such-model", adaptertest.Prompt, 1, nil); err != nil || a.Model != "no-such-model" || ready.Dialect.EchoesModel {
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
	adaptertest.Stop(t, e, "")
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
	adaptertest.Stop(t, e, "")
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
	adaptertest.Halt(t, scheduler(t, ready))
	if st, err := e.Observe(t.Context()); err != nil || st.Alive {
		t.Errorf("a server that hangs is said to be alive: %+v", st)
	}
	adaptertest.Stop(t, e, "")
}

func TestRealConformance(t *testing.T) {
	venv := realVenv(t)
	enginetest.Run(t, enginetest.Config{New: func() engines.Engine { return newEngine() }, Settings: engines.Settings{"venv": venv, "env.SOME_API_KEY": "hush-hush-hush"},
		Bad: engines.Settings{"venv": "", "chunked_prefill_size": "much"}, Request: adaptertest.Conformance(realRequest(t)), Secrets: []string{"hush-hush-hush"}, StopDeadline: 30 * time.Second})
}

func request(t testing.TB) matrix.StartRequest {
	r := adaptertest.Request(t, matrix.Artifact{})
	r.ComputeDtype, r.Limits.KVTokens = "float32", 1024
	return r
}

func configured(t testing.TB, s engines.Settings) *adapter.Instance {
	return adaptertest.Configured(t, newEngine(), s)
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
