package main

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"enginebroker/engines"
	"enginebroker/engines/adapter"
	"enginebroker/engines/adapter/adaptertest"
	"enginebroker/engines/enginetest"
	"enginebroker/engines/openai"
	"enginebroker/engines/process"
	"enginebroker/matrix"
)

// july and newer are the built fake server under its two names.
var july, newer string

func TestMain(m *testing.M) {
	adaptertest.Main(m, func(dir string) error {
		july, newer = filepath.Join(dir, "server"), filepath.Join(dir, "server-newer")
		if err := adaptertest.Build(july); err != nil {
			return err
		}
		return os.Link(july, newer)
	})
}

func request(t testing.TB) matrix.StartRequest {
	r := adaptertest.Request(t, matrix.Artifact{ID: "tiny-qwen3@bf16", Container: "safetensors", Path: "../../testdata/models/tiny-qwen3/hf"})
	r.Limits.Concurrency = 4
	return r
}

func configured(t testing.TB, s engines.Settings) *adapter.Instance {
	return adaptertest.Configured(t, newEngine(), s)
}

func fact(t *testing.T, facts matrix.Facts, name, value string, standing matrix.Standing) {
	t.Helper()
	if f, _ := facts.Get(name); f.Value != value || f.Standing != standing {
		t.Errorf("%s: %+v, want %s %s", name, f, value, standing)
	}
}

// A build that tells little: what it does not tell is claimed, never observed.
func TestJulyBuild(t *testing.T) {
	e := configured(t, engines.Settings{"binary": july})
	ready, err := e.Start(t.Context(), request(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	fact(t, ready.Facts, matrix.FactPrefixCache, "off", matrix.Observed) // by its log
	fact(t, ready.Facts, matrix.FactContextTokens, "512", matrix.Claimed)
	fact(t, ready.Facts, matrix.FactSpeculation, "none", matrix.Claimed)
	if ready.Granted != (matrix.Limits{}) {
		t.Errorf("limits that no route tells were granted: %+v", ready.Granted)
	}
	if d := ready.Dialect; d.PromptForm != "text" || !d.RunningUsage || d.EchoesModel || d.ContextTokens != 512 || d.Liveness.Kind != "tcp" || d.TokenizePath != "" {
		t.Errorf("%+v", d)
	}
	line := strings.Join(ready.Argv, " ")
	for _, want := range []string{"--no-enable-prefix-caching", "--max-model-len 512", "--max-num-seqs 4", "--num-blocks 69", "--block-size 32"} {
		if !strings.Contains(line, want) {
			t.Errorf("argv lacks %s: %s", want, line)
		}
	}
	if _, err := e.Tokenize(t.Context(), "a"); !errors.Is(err, engines.ErrUnsupported) {
		t.Errorf("tokenize: %v", err)
	}
	st, err := e.Observe(t.Context())
	if err != nil || !st.Alive || st.Print != ready.Print || st.CachedTokens.Present() {
		t.Errorf("%+v %v", st, err)
	}
	s, err := e.Stop(t.Context(), 5*time.Second)
	if err != nil || !s.Gone() || s.Exit != matrix.Some(143) { // no handler: the default action
		t.Errorf("%+v %v", s, err)
	}
}

func TestNewerBuild(t *testing.T) {
	e := configured(t, engines.Settings{"binary": newer})
	d, err := e.Describe(t.Context())
	if err != nil || !d.Installed {
		t.Fatalf("%+v %v", d, err)
	}
	fact(t, d.Identity, matrix.FactVersion, "0.0.1+cuda", matrix.Claimed)
	r := request(t)
	r.Policy = matrix.Policy{Kind: matrix.Drafted, Drafter: "mtp", Length: 3}
	ready, err := e.Start(t.Context(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	fact(t, ready.Facts, matrix.FactContextTokens, "512", matrix.Observed)
	fact(t, ready.Facts, matrix.FactSpeculation, "mtp", matrix.Observed)
	if !slices.Contains(ready.Argv, `{"method":"mtp","num_speculative_tokens":3}`) || !strings.Contains(strings.Join(ready.Argv, " "), "--generation-config vllm") {
		t.Errorf("%q", ready.Argv)
	}
	if ids, err := e.Tokenize(t.Context(), "abc"); err != nil || len(ids) != 3 || ready.Dialect.TokenizePath == "" {
		t.Errorf("%v %v", ids, err)
	}
}

func TestFailures(t *testing.T) {
	adaptertest.Fails(t, newEngine, request, engines.Settings{"binary": july}, []adaptertest.Failure{
		{Mode: "fatal", Code: "bad_artifact", Text: "unexpected architecture"},
		{Mode: "wrong_model", Code: "wrong_model", Text: "another"},
		{Mode: "caches", Code: "prefix_cache", Text: "is on"},
		{Mode: "hangs", Code: "not_ready", Text: "not ready within", Change: adaptertest.Set("ready_timeout", "400ms")},
		{Code: "unsupported_flag", Text: "--speculative-config", Change: func(r *matrix.StartRequest, _ engines.Settings) {
			r.Policy = matrix.Policy{Kind: matrix.Drafted, Drafter: "mtp", Length: 3}
		}},
		{Code: "unsupported_flag", Text: "--kv-cache-dtype", Change: adaptertest.Set("kv_dtype", "fp8")},
		{Code: "unsupported_flag", Text: "float32", Change: func(r *matrix.StartRequest, _ engines.Settings) { r.ComputeDtype = "float32" }},
		{Code: "bad_artifact", Text: "no such file", Change: func(r *matrix.StartRequest, _ engines.Settings) { r.Artifact.Path = "/nowhere" }},
		{Code: "not_installed", Text: "/nowhere/server", Change: adaptertest.Set("binary", "/nowhere/server")},
	})
	adaptertest.Fails(t, newEngine, request, engines.Settings{"binary": newer}, []adaptertest.Failure{
		{Mode: "drafts", Code: "policy", Text: "unknown method"},
		{Mode: "clips", Code: "limits", Text: "granted 256"},
	})
}

// The engine's loop dies, /health stays 200: only a token proves life.
func TestHealthLies(t *testing.T) {
	e := configured(t, engines.Settings{"binary": july, "env.FAKE_MODE": "dies"})
	if _, err := e.Start(t.Context(), request(t), nil); err != nil {
		t.Fatal(err)
	}
	alive := []bool{}
	for range 2 {
		st, err := e.Observe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		alive = append(alive, st.Alive)
	}
	if !slices.Equal(alive, []bool{true, false}) {
		t.Errorf("alive %v", alive)
	}
}

func TestConfigureNamesEveryField(t *testing.T) {
	adaptertest.Refuses(t, newEngine(), engines.Settings{"binary": "", "block_size": "20", "device": "tpu", "attach": "x", "extra_args": "--model,--mmproj", "foo": "1"},
		"attach", "binary", "block_size", "device", "extra_args", "extra_args", "foo")
}

func TestDescribeNotInstalled(t *testing.T) {
	adaptertest.NotInstalled(t, newEngine, kind, nil, engines.Settings{"binary": "/nowhere/server"})
}

func TestParse(t *testing.T) {
	flags := parseHelp("usage: server --model <dir> [--[no-]enable-prefix-caching] [--max-num-seqs N]\n  --version")
	for _, f := range []string{"--model", "--enable-prefix-caching", "--no-enable-prefix-caching", "--max-num-seqs", "--version"} {
		if !flags[f] {
			t.Errorf("%s is missing", f)
		}
	}
	if v, abi, err := parseVersion("vllm.cpp 0.0.1+cuda c-abi=26\n"); err != nil || v != "0.0.1+cuda" || abi != "26" {
		t.Errorf("%s %s %v", v, abi, err)
	}
	if _, _, err := parseVersion("usage:"); err == nil {
		t.Error("no error")
	}
}

func FuzzParse(f *testing.F) {
	f.Add("usage: server --model <dir> [--[no-]enable-prefix-caching]")
	f.Add("vllm.cpp 0.0.1+cuda c-abi=26")
	f.Fuzz(func(t *testing.T, s string) {
		for name := range parseHelp(s) {
			if !strings.HasPrefix(name, "--") {
				t.Errorf("%q", name)
			}
		}
		_, _, _ = parseVersion(s)
	})
}

func TestConformance(t *testing.T) {
	enginetest.Run(t, enginetest.Config{
		New: func() engines.Engine { return newEngine() }, Settings: engines.Settings{"binary": newer, "env.SERVICE_TOKEN": "hush-hush"},
		Bad: engines.Settings{"block_size": "20", "device": "tpu"}, Request: adaptertest.Conformance(request(t)), Secrets: []string{"hush-hush"},
	})
}

// realServer is a built server, named by VLLMCPP_SERVER.
func realServer(t testing.TB) string {
	t.Helper()
	path := os.Getenv("VLLMCPP_SERVER")
	if path == "" {
		t.Skip("vllm.cpp is not here: set VLLMCPP_SERVER to a built server to run this")
	}
	return path
}

func TestRealStart(t *testing.T) {
	e := configured(t, engines.Settings{"binary": realServer(t)})
	d, err := e.Describe(t.Context())
	if err != nil || !d.Installed {
		t.Fatalf("%+v %v", d, err)
	}
	ready, err := e.Start(t.Context(), request(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	fact(t, ready.Facts, matrix.FactPrefixCache, "off", matrix.Observed)
	if commit, _ := d.Identity.Get(matrix.FactCommit); commit.Standing == matrix.Observed {
		t.Errorf("the source tree's commit is no proof: %+v", commit)
	}
	t.Logf("weights %v, backend %v", ready.Facts.Value(matrix.FactWeightsProof), ready.Facts.Value(matrix.FactBackend))
	srv, err := e.Server()
	if err != nil {
		t.Fatal(err)
	}
	// engines.md B9: the text that four engines agree on in float32.
	a, err := srv.Client.Complete(t.Context(), "tiny", "the cat in an old", 24, map[string]any{"ignore_eos": true})
	if err != nil || a.Text != `0l0lE andrEEEE0M2EW" p theEW"thg` {
		t.Errorf("%q %v", a.Text, err)
	}
	for asked, want := range map[int]int64{112: 112, 113: 112} {
		a, err := srv.Client.Complete(t.Context(), "tiny", strings.Repeat("q", 400), asked, map[string]any{"ignore_eos": true})
		if err != nil || a.CompletionTokens != matrix.Some(want) {
			t.Errorf("400 + %d of 512: %v %v", asked, a.CompletionTokens, err)
		}
	}
	st, err := e.Observe(t.Context())
	if err != nil || !st.Alive || st.Print != ready.Print {
		t.Errorf("%+v %v", st, err)
	}
	// A token array stops the engine's loop for good, and /health goes on answering 200.
	if _, err := srv.Client.Complete(t.Context(), "tiny", []int{1, 2, 3}, 4, nil); err == nil {
		t.Error("a token array was answered: the dialect may change")
	}
	if st, err := e.Observe(t.Context()); err != nil || st.Alive {
		t.Errorf("after the engine's death: %+v %v", st, err)
	}
	if s, err := e.Stop(t.Context(), 5*time.Second); err != nil || !s.Gone() {
		t.Errorf("%+v %v", s, err)
	}
}

func TestRealConformance(t *testing.T) {
	enginetest.Run(t, enginetest.Config{
		New: func() engines.Engine { return newEngine() }, Settings: engines.Settings{"binary": realServer(t)},
		Bad: engines.Settings{"device": "tpu"}, Request: adaptertest.Conformance(request(t)), StopDeadline: 5 * time.Second,
	})
}

func arguments(r matrix.StartRequest, v openai.Values, model string, known map[string]bool) (argv, waived []string, err error) {
	flags, err := wanted(r, v, model, known)
	if err != nil {
		return nil, nil, err
	}
	return adapter.Build{Known: known}.Arguments(flags, v)
}

// A twin of the same kind binds the same port without an error.
func TestRealTwinOnThePort(t *testing.T) {
	binary := realServer(t)
	first := configured(t, engines.Settings{"binary": binary})
	r := request(t)
	if _, err := first.Start(t.Context(), r, nil); err != nil {
		t.Fatal(err)
	}
	second := request(t)
	second.Port = r.Port
	_, err := configured(t, engines.Settings{"binary": binary}).Start(t.Context(), second, nil)
	if f, ok := errors.AsType[*matrix.StartFailure](err); !ok || f.Code != process.CodePortTaken {
		t.Errorf("%v", err)
	}
}

func TestUnknownFlagIsWaived(t *testing.T) {
	known := parseHelp("--model --served-model-name --host --port --max-model-len --max-num-seqs --block-size --num-blocks")
	r := request(t)
	if _, _, err := arguments(r, openai.NewValues(schema, nil), "m", known); err == nil || !strings.Contains(err.Error(), "--no-enable-prefix-caching") {
		t.Errorf("%v", err)
	}
	_, waived, err := arguments(r, openai.NewValues(schema, engines.Settings{"waive": "--no-enable-prefix-caching"}), "m", known)
	if err != nil || len(waived) != 1 {
		t.Errorf("%v %v", waived, err)
	}
}

// A twin that takes part of the port after the start is found when the server is asked next.
func TestObserveFindsATwinOnThePort(t *testing.T) {
	e := configured(t, engines.Settings{"binary": july})
	r := request(t)
	if _, err := e.Start(t.Context(), r, nil); err != nil {
		t.Fatal(err)
	}
	if st, err := e.Observe(t.Context()); err != nil || !st.Alive {
		t.Fatalf("%+v %v", st, err)
	}
	twin, err := net.Listen("tcp", net.JoinHostPort("127.0.0.2", strconv.Itoa(r.Port)))
	if err != nil {
		t.Fatal(err)
	}
	defer twin.Close()
	if st, err := e.Observe(t.Context()); err == nil || st.Alive || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("%+v %v", st, err)
	}
}

// Every line that a failed start is explained by, as the server writes it.
func TestCauses(t *testing.T) {
	adaptertest.Causes(t, causes, map[string]string{
		"server: fatal: vt: qwen3_5 gguf: unexpected architecture 'qwen3' at gguf.cpp:573": "bad_artifact",
		"server: failed to bind 127.0.0.1:8000":                                            "port_taken",
		"terminate called after throwing an instance of 'std::bad_alloc'":                  "limits",
		"usage: server --model <dir> [--host H]":                                           "unsupported_flag",
		"server: error while loading shared libraries: libcudart.so.13":                    "not_installed",
	})
}
