package main

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"enginebroker/engines"
	"enginebroker/engines/enginetest"
	"enginebroker/engines/process"
	"enginebroker/matrix"
	"enginebroker/plugins/simulated/server"
)

// The test binary is the server too, as the plugin's is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "serve" || os.Args[1] == "worker") {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

func request(t *testing.T) matrix.StartRequest {
	t.Helper()
	port, err := process.FreePort("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	return matrix.StartRequest{LoadID: "load-" + filepath.Base(dir) + t.Name(), ModelName: "m", Host: "127.0.0.1", Port: port,
		Artifact: matrix.Artifact{ID: "m@bf16", Quantization: "bf16", Container: "safetensors", KVDtype: "bfloat16"},
		Policy:   matrix.Policy{Kind: matrix.Raw}, Limits: matrix.Limits{ContextTokens: 256, Concurrency: 4},
		LogPath: filepath.Join(dir, "log"), StatePath: filepath.Join(dir, "state"), ReadyLimit: 20 * time.Second}
}

func configured(t *testing.T, s engines.Settings) *Engine {
	t.Helper()
	e := New()
	if s["ttft"] == "" {
		s["ttft"], s["itl"] = "1ms", "1ms"
	}
	if bad, err := e.Configure(t.Context(), s); err != nil || len(bad) > 0 {
		t.Fatal(bad, err)
	}
	return e
}

func say(matrix.Progress) {}

func TestStartObserveStop(t *testing.T) {
	for _, d := range server.Dialects {
		t.Run(d, func(t *testing.T) {
			e := configured(t, engines.Settings{"dialect": d, "commit": "abc", "compute_dtype": "float32"})
			r := request(t)
			ready, err := e.Start(t.Context(), r, say)
			if err != nil {
				t.Fatal(err)
			}
			for name, want := range map[string]string{matrix.FactVersion: "SIMULATED-1.0", matrix.FactCommit: "abc", matrix.FactComputeDtype: "float32",
				matrix.FactQuantization: "bf16", matrix.FactContextTokens: "256", matrix.FactConcurrency: "4", matrix.FactPrefixCache: "off", matrix.FactKVDtype: "bfloat16"} {
				f, ok := ready.Facts.Get(name)
				if !ok || f.Value != want || f.Standing != matrix.Observed || f.Where == "" {
					t.Errorf("fact %s: %+v, want %s", name, f, want)
				}
			}
			if ready.Granted.ContextTokens != 256 || ready.Granted.Concurrency != 4 || len(ready.Processes) == 0 {
				t.Errorf("ready: %+v", ready)
			}
			s, err := e.Observe(t.Context())
			if err != nil || !s.Alive || s.Print != ready.Print || s.Generated.Or(0) < 1 || s.CachedTokens.Or(-1) != 0 {
				t.Errorf("observed %+v, %v", s, err)
			}
			stopped, err := e.Stop(t.Context(), 10*time.Second)
			if err != nil || !stopped.Gone() || stopped.Exit.Or(0) != 0 {
				t.Errorf("stopped %+v, %v", stopped, err)
			}
			if _, err := e.Observe(t.Context()); !errors.Is(err, engines.ErrNotStarted) {
				t.Errorf("observe after stop: %v", err)
			}
		})
	}
}

func TestStartFailures(t *testing.T) {
	for name, c := range map[string]struct {
		settings engines.Settings
		code     string
	}{
		"exits during load": {engines.Settings{"exit_during_load": "true"}, process.CodeExited},
		"another model":     {engines.Settings{"serves_model": "other"}, "wrong_model"},
		"never ready":       {engines.Settings{"never_ready": "true", "health_lies": "true"}, process.CodeNotReady},
	} {
		t.Run(name, func(t *testing.T) {
			e := configured(t, c.settings)
			r := request(t)
			if c.code == process.CodeNotReady {
				r.ReadyLimit = 500 * time.Millisecond
			}
			_, err := e.Start(t.Context(), r, say)
			var f *matrix.StartFailure
			if !errors.As(err, &f) || f.Code != c.code {
				t.Fatalf("got %#v", err)
			}
			if c.code == process.CodeExited && (len(f.RootCause) == 0 || !strings.Contains(f.RootCause[0], "fatal")) {
				t.Errorf("root cause %q", f.RootCause)
			}
			if err := process.CheckPortFree(r.Host, r.Port); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("not configured", func(t *testing.T) {
		if _, err := New().Start(t.Context(), request(t), say); !errors.Is(err, engines.ErrNotConfigured) {
			t.Error(err)
		}
	})
}

// A server that ignores SIGTERM, and a worker that outlives its parent, are ended as well.
func TestStopStubborn(t *testing.T) {
	e := configured(t, engines.Settings{"ignore_sigterm": "true", "fork_child": "true"})
	if _, err := e.Start(t.Context(), request(t), say); err != nil {
		t.Fatal(err)
	}
	s, err := e.Observe(t.Context())
	if err != nil || len(s.Processes) < 2 {
		t.Errorf("the worker is not seen: %+v %v", s.Processes, err)
	}
	stopped, err := e.Stop(t.Context(), time.Second)
	if err != nil || !stopped.Gone() || stopped.How != "kill" {
		t.Errorf("%+v %v", stopped, err)
	}
}

func TestDies(t *testing.T) {
	e := configured(t, engines.Settings{"die_after_requests": "1"})
	r := request(t)
	if _, err := e.Start(t.Context(), r, say); err != nil {
		t.Fatal(err)
	}
	defer e.Stop(context.WithoutCancel(t.Context()), 5*time.Second)
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for i, broken := range []bool{false, true} {
		resp, err := c.Post(e.client.Base+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"x","max_tokens":8,"stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		_, err = b.ReadFrom(resp.Body)
		resp.Body.Close()
		if (err != nil) != broken {
			t.Errorf("request %d: %v", i, err)
		}
	}
	<-e.tree.Done()
	s, err := e.Observe(t.Context())
	if err != nil || s.Alive || s.Exit.Or(0) != 139 {
		t.Errorf("observed %+v %v", s, err)
	}
}

func TestPreflight(t *testing.T) {
	e := configured(t, engines.Settings{"dialect": "llamacpp"})
	res, err := e.Preflight(t.Context(), request(t), say)
	if err != nil || !strings.Contains(res.Text, "437") || !res.Stopped.Gone() {
		t.Errorf("%+v %v", res, err)
	}
}

func TestDescribe(t *testing.T) {
	e := configured(t, engines.Settings{"opens": "gguf/q4_k_m, safetensors/bf16"})
	d, err := e.Describe(t.Context())
	if err != nil || !d.Simulated || !d.Installed || len(d.Capabilities) != 2 || d.Capabilities[1].Container != "safetensors" || len(d.Settings) < 20 {
		t.Errorf("%+v %v", d, err)
	}
	bad, err := New().Configure(t.Context(), engines.Settings{"itl": "x", "nonsense": "y"})
	if err != nil || len(bad) != 2 {
		t.Errorf("%v %v", bad, err)
	}
}

func TestConformance(t *testing.T) {
	r := request(t)
	enginetest.Run(t, enginetest.Config{New: func() engines.Engine { return New() },
		Settings: engines.Settings{"ttft": "1ms", "itl": "1ms"}, Bad: engines.Settings{"itl": "x", "nonsense": "y"},
		Request: matrix.StartRequest{ModelName: "m", Artifact: r.Artifact, Policy: r.Policy, Limits: r.Limits, ReadyLimit: r.ReadyLimit}})
}

func TestCarry(t *testing.T) {
	file := filepath.Join(t.TempDir(), "last")
	a := configured(t, engines.Settings{"carry_over": "-0.1", "carry_file": file, "version": "a"})
	b := configured(t, engines.Settings{"carry_over": "-0.1", "carry_file": file, "version": "b"})
	for i, c := range []struct {
		e    *Engine
		want bool
	}{{a, false}, {a, false}, {b, true}, {a, true}, {a, false}} {
		if got, err := c.e.carry(); err != nil || got != c.want {
			t.Errorf("step %d: %v %v", i, got, err)
		}
	}
}

func TestServeFlags(t *testing.T) {
	for _, args := range [][]string{{"--itl", "x"}, {"--nope"}, {"stray"}, {"--fail_every", "3"}} {
		var log bytes.Buffer
		if err := serve(args, &log); err == nil || !strings.Contains(err.Error(), "fatal") {
			t.Errorf("%q: %v", args, err)
		}
	}
	var log bytes.Buffer
	if err := serve([]string{"--help"}, &log); err != nil || !strings.Contains(log.String(), "-ttft") {
		t.Errorf("%v %s", err, log.String())
	}
}
