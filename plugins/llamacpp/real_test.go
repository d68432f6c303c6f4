package main

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"enginebroker/engines"
	"enginebroker/engines/adapter"
	"enginebroker/engines/adapter/adaptertest"
	"enginebroker/engines/enginetest"
	"enginebroker/matrix"
)

const (
	repo  = "../.."
	model = repo + "/testdata/models/tiny-qwen3/tiny-qwen3-q8_0.gguf"
)

// realRoot is the tree that `make engines` installs.
func realRoot(t testing.TB) string {
	t.Helper()
	root, err := filepath.Abs(repo + "/.engines/llamacpp/sid")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "usr/bin/llama-server")); err != nil {
		t.Skip("llama.cpp is not installed: run `make engines`")
	}
	return root
}

func request(t testing.TB) matrix.StartRequest {
	return adaptertest.Request(t, matrix.Artifact{ID: "tiny-qwen3@q8_0", Container: "gguf", Path: model})
}

func configured(t testing.TB, s engines.Settings) *adapter.Instance {
	return adaptertest.Configured(t, newEngine(), s)
}

func TestRealConformance(t *testing.T) {
	enginetest.Run(t, enginetest.Config{
		New: func() engines.Engine { return newEngine() }, Settings: engines.Settings{"root": realRoot(t), "backend": "haswell"},
		Bad: engines.Settings{"threads": "many", "flash_attention": "maybe"}, Request: adaptertest.Conformance(request(t)), StopDeadline: 5 * time.Second,
	})
}

func TestRealStart(t *testing.T) {
	root := realRoot(t)
	e := configured(t, engines.Settings{"root": root, "backend": "haswell", "threads": "1"})
	d, err := e.Describe(t.Context())
	if err != nil || !d.Installed {
		t.Fatalf("%+v %v", d, err)
	}
	r := request(t)
	ready, err := e.Start(t.Context(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		matrix.FactBackend: "libggml-cpu-haswell.so", matrix.FactSpeculation: "none", matrix.FactPrefixCache: "off", matrix.FactContextTokens: "512",
		matrix.FactConcurrency: "2", matrix.FactWeightsProof: "mappings",
	} {
		if f, _ := ready.Facts.Get(name); f.Value != want || f.Standing != matrix.Observed {
			t.Errorf("%s: %+v, want %s observed", name, f, want)
		}
	}
	described, _ := d.Identity.Value(matrix.FactVersion).Get()
	if running, _ := ready.Facts.Value(matrix.FactVersion).Get(); running != described || running == "" {
		t.Errorf("version %q on disk, %q running", described, running)
	}
	if f, _ := ready.Facts.Get(matrix.FactBinary); !strings.HasSuffix(f.Value, "/usr/bin/llama-server") {
		t.Errorf("the binary behind the loader: %+v", f)
	}
	if ready.Granted.ContextTokens != 512 || ready.Granted.Concurrency != 2 || ready.Dialect.AddedPrompt != 0 {
		t.Errorf("granted %+v, added %d", ready.Granted, ready.Dialect.AddedPrompt)
	}
	ids, err := e.Tokenize(t.Context(), "the cat in an old")
	if want := []int{257, 281, 272, 32, 259, 32, 260, 32, 111, 108, 100}; err != nil || !slices.Equal(ids, want) {
		t.Errorf("ids %v %v", ids, err)
	}
	st, err := e.Observe(t.Context())
	if err != nil || !st.Alive || st.Running != matrix.Some[int64](0) || st.CachedTokens != matrix.Some[int64](0) || st.Generated.Or(0) < 2 {
		t.Errorf("%+v %v", st, err)
	}
	if st.Print != ready.Print || st.Print == "" {
		t.Errorf("print moved within a load: %s, %s", ready.Print, st.Print)
	}
	adaptertest.Stop(t, e, "term")
	if _, err := e.Observe(t.Context()); err != engines.ErrNotStarted {
		t.Errorf("after stop: %v", err)
	}
}

// One build with another backend is another print, and by the measured texts another answer. On a processor without AVX-512
// auto is haswell.
func TestRealBackends(t *testing.T) {
	root := realRoot(t)
	prints := map[string]string{}
	for _, backend := range []string{"auto", "haswell", "x64"} {
		e := configured(t, engines.Settings{"root": root, "backend": backend})
		got, err := e.Preflight(t.Context(), request(t), nil)
		if err != nil {
			t.Fatalf("%s: %v", backend, err)
		}
		ready, _ := got.Ready.Get()
		t.Logf("%s: %s %q", backend, ready.Facts.Value(matrix.FactBackend).Or(""), got.Text)
		library := ready.Facts.Value(matrix.FactBackend).Or("")
		if before, ok := prints[library]; ok && before != ready.Print {
			t.Errorf("%s has two prints, %s and %s", library, before, ready.Print)
		}
		prints[library] = ready.Print
		if len(got.IDs) != 16 || !got.Stopped.Gone() || got.Text == "" {
			t.Errorf("%s: %+v", backend, got)
		}
	}
	if n := len(slices.Compact(slices.Sorted(maps.Values(prints)))); n < 2 || n != len(prints) {
		t.Errorf("%d prints of %d backends: %v", n, len(prints), prints)
	}
}

// Prompt and output fill the context exactly; beyond it the answer is shortened without an error.
func TestRealClip(t *testing.T) {
	e := configured(t, engines.Settings{"root": realRoot(t)})
	if _, err := e.Start(t.Context(), request(t), nil); err != nil {
		t.Fatal(err)
	}
	srv, err := e.Server()
	if err != nil {
		t.Fatal(err)
	}
	prompt := make([]int, 400)
	for i := range prompt {
		prompt[i] = 100 + i%50
	}
	body := sampling()
	body["ignore_eos"] = true
	for asked, want := range map[int]int64{112: 112, 113: 112} {
		a, err := srv.Client.Complete(t.Context(), "tiny", prompt, asked, body)
		if err != nil || a.CompletionTokens != matrix.Some(want) || a.PromptTokens != matrix.Some[int64](400) {
			t.Errorf("400 + %d of 512: %v tokens of %v, want %d: %v", asked, a.CompletionTokens, a.PromptTokens, want, err)
		}
	}
}

// A port that a real server holds is refused before the launch, and the state file leads a later start to a lost server.
func TestRealLeftoverIsFound(t *testing.T) {
	root := realRoot(t)
	lost := configured(t, engines.Settings{"root": root})
	r := request(t)
	ready, err := lost.Start(t.Context(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	other := request(t)
	other.Port = r.Port
	if _, err := configured(t, engines.Settings{"root": root}).Start(t.Context(), other, nil); err == nil || !strings.Contains(err.Error(), "taken") {
		t.Errorf("port of a running server: %v", err)
	}
	again := request(t)
	again.StatePath = r.StatePath
	next := configured(t, engines.Settings{"root": root})
	if _, err := next.Start(t.Context(), again, nil); err != nil {
		t.Fatal(err)
	}
	st, err := lost.Observe(t.Context())
	if err != nil || st.Alive || st.Exit != matrix.Some(0) {
		t.Errorf("the server under the same state file (pid %d) still runs: %+v %v", ready.Processes[0].PID, st, err)
	}
}

// /props says speculation none even while the server drafts; /slots and the counters tell.
func TestRealDrafted(t *testing.T) {
	e := configured(t, engines.Settings{"root": realRoot(t)})
	r := request(t)
	r.Policy = matrix.Policy{Kind: matrix.Drafted, Drafter: "ngram-simple", Length: 3}
	ready, err := e.Start(t.Context(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if f, _ := ready.Facts.Get(matrix.FactSpeculation); f.Value != "ngram-simple" || f.Standing != matrix.Observed {
		t.Errorf("%+v", f)
	}
	if st, err := e.Observe(t.Context()); err != nil || !st.DraftedTokens.Present() {
		t.Errorf("%+v %v", st, err)
	}
}

// A damaged file and another architecture are told by the line that says so.
func TestRealBadArtifacts(t *testing.T) {
	root := realRoot(t)
	good, err := os.ReadFile(model)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		content []byte
		cause   string
	}{
		"truncated": {good[:len(good)/2], "not within the file bounds"},
		"no GGUF":   {[]byte("hello, this is text"), "invalid magic"},
	} {
		r := request(t)
		r.Artifact.Path = filepath.Join(t.TempDir(), "m.gguf")
		if err := os.WriteFile(r.Artifact.Path, c.content, 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := configured(t, engines.Settings{"root": root}).Start(t.Context(), r, nil)
		f, ok := errors.AsType[*matrix.StartFailure](err)
		if !ok || f.Code != "bad_artifact" || len(f.RootCause) == 0 || !strings.Contains(f.RootCause[0], c.cause) || f.Exit != matrix.Some(1) {
			t.Errorf("%s: %+v", name, err)
		}
	}
}
