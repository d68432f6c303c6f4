package main

import (
	"bytes"
	"errors"
	"fmt"
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
	"enginebroker/engines/openai"
	"enginebroker/matrix"
)

const captured = "testdata/0.5.23"

// fake is an environment whose interpreter is the fake server.
var fake string

func TestMain(m *testing.M) {
	adaptertest.Main(m, func(dir string) error {
		fake, realCache = filepath.Join(dir, "venv"), filepath.Join(dir, "real-cache")
		return makeFake(fake)
	})
}

func makeFake(venv string) error {
	data, err := filepath.Abs(captured)
	if err != nil {
		return err
	}
	if err := adaptertest.WriteFiles(venv, map[string]string{
		"pyvenv.cfg": "home = /usr/bin\n",
		"bin/data":   data,
		"lib/python3.11/site-packages/sglang-0.5.23.dist-info/RECORD":  "sglang/__init__.py,sha256=x,1\n",
		"lib/python3.11/site-packages/torch-2.13.0.dist-info/METADATA": "Name: torch\n",
	}); err != nil {
		return err
	}
	return adaptertest.Build(filepath.Join(venv, "bin/python"))
}

func fakeRequest(t testing.TB) matrix.StartRequest {
	r := request(t)
	r.Artifact = adaptertest.Checkpoint(t, `{"architectures":["Qwen3ForCausalLM"]}`)
	return r
}

func TestFakeStart(t *testing.T) {
	e := configured(t, engines.Settings{"venv": fake, "device": "cpu", "env.SOME_KEY": "hush", "extra_args": "--log-level,info", "chunked_prefill_size": "512"})
	r := fakeRequest(t)
	var phases []string
	ready, err := e.Start(t.Context(), r, func(p matrix.Progress) { phases = append(phases, p.Phase) })
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(slices.Compact(phases), " "); got != "launch load listen generate ready" {
		t.Errorf("phases %s", got)
	}
	line := strings.Join(ready.Argv, " ")
	for _, want := range []string{"--dtype float32", "--context-length 512", "--max-running-requests 2", "--max-total-tokens 1024", "--disable-radix-cache", "--enable-cache-report", "--enable-metrics",
		"--sampling-defaults openai", "--stream-interval 1", "--random-seed 0", "--device cpu", "--attention-backend torch_native", "--chunked-prefill-size 512", "--log-level info"} {
		if !strings.Contains(line, want) {
			t.Errorf("argv lacks %s: %s", want, line)
		}
	}
	if strings.Contains(line, "speculative") || strings.Contains(line, "language-only") || strings.Contains(line, "sleep") {
		t.Errorf("argv %s", line)
	}
	if ready.Env["SGLANG_USE_CPU_ENGINE"] != "1" || !strings.HasPrefix(ready.Env["TRITON_CACHE_DIR"], r.CacheDir) {
		t.Errorf("env %v", ready.Env)
	}
	if strings.Contains(fmt.Sprint(ready), "hush") {
		t.Error("a secret of the environment is in the record")
	}
	adaptertest.Observed(t, ready.Facts, map[string]string{matrix.FactComputeDtype: "float32", matrix.FactActivationDtype: "float32", matrix.FactKVDtype: "float32", matrix.FactPrefixCache: "off",
		matrix.FactSpeculation: "none", matrix.FactQuantization: "none", matrix.FactSleepOnIdle: "off", matrix.FactBackend: "torch_native", "config.cuda_graph": "decode disabled, prefill disabled"})
	d := ready.Dialect
	if d.EchoesModel || !d.CachedReported || d.AddedPrompt != 0 || d.ContextTokens != 512 || d.ClipMargin != 2 || d.MaxPromptTokens != 505 || d.Liveness.Kind != "tcp" || d.Body["return_token_ids"] != true {
		t.Errorf("dialect %+v", d)
	}
	st, err := e.Observe(t.Context())
	if err != nil || !st.Alive || st.Print != ready.Print || st.Generated.Or(0) == 0 || st.CachedTokens != matrix.Some[int64](0) || st.DraftedTokens.Present() {
		t.Errorf("%+v %v", st, err)
	}
	adaptertest.Stop(t, e, "term")
}

// A build whose answers carry no token ids is not asked for them in a timed request (v0.5.15).
func TestFakeWithoutIDs(t *testing.T) {
	e := configured(t, engines.Settings{"venv": fake, "env.FAKE_MODE": "no_ids"})
	ready, err := e.Start(t.Context(), fakeRequest(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, asked := ready.Dialect.Body["return_token_ids"]; asked || len(ready.Dialect.Sources) != 2 {
		t.Errorf("dialect %+v", ready.Dialect)
	}
}

func TestFakeFailures(t *testing.T) {
	adaptertest.Fails(t, newEngine, fakeRequest, engines.Settings{"venv": fake}, []adaptertest.Failure{
		{Mode: "exit", Code: "limits", Text: "Not enough memory"},
		{Mode: "hangs", Code: "not_ready", Text: "not ready within", Change: adaptertest.Set("ready_timeout", "500ms")},
		{Mode: "wrong_model", Code: "wrong_model", Text: "another"},
		{Mode: "other_weights", Code: "wrong_model", Text: "/somewhere/else"},
		{Mode: "other_engine", Code: "wrong_model", Text: "vllm"},
		{Mode: "caches", Code: "prefix_cache", Text: "cache is on"},
		{Mode: "counts_hits", Code: "prefix_cache", Text: "counters: 16"},
		{Mode: "uncounted", Code: "prefix_cache", Text: "not shown to be off"},
		{Mode: "radix_on", Code: "prefix_cache", Text: "/server_info"},
		{Mode: "drafts", Code: "policy", Text: "NGRAM"},
		{Mode: "clips", Code: "limits", Text: "granted 256"},
		{Mode: "bfloat16", Code: "compute_dtype", Text: "computes in bfloat16"},
		{Mode: "sleeps", Code: "unsupported_flag", Text: "sleeps on idle"},
		{Code: "bad_artifact", Text: "safetensors here", Change: func(r *matrix.StartRequest, _ engines.Settings) { r.Artifact.Container = "gguf" }},
		{Code: "bad_artifact", Text: "no such file", Change: func(r *matrix.StartRequest, _ engines.Settings) { r.Artifact.Path += "/nowhere" }},
		{Code: "bad_artifact", Text: "holds no *.safetensors", Change: func(r *matrix.StartRequest, _ engines.Settings) { r.Artifact.Path = t.TempDir() }},
		{Code: "bad_artifact", Text: "config.json", Change: func(r *matrix.StartRequest, _ engines.Settings) { r.Artifact = adaptertest.Checkpoint(t, `{"arch`) }},
		{Code: "unsupported_flag", Text: "--no-such-flag", Change: adaptertest.Set("extra_args", "--no-such-flag")},
		{Code: "unsupported_flag", Text: "prefix cache on", Change: func(r *matrix.StartRequest, _ engines.Settings) { r.PrefixCache = "on" }},
		{Code: "limits", Text: "no context", Change: func(r *matrix.StartRequest, _ engines.Settings) { r.Limits.ContextTokens = 0 }},
		{Code: "not_installed", Text: "/nowhere/bin/python", Change: adaptertest.Set("venv", "/nowhere")},
	})
}

func TestConformance(t *testing.T) {
	enginetest.Run(t, enginetest.Config{New: func() engines.Engine { return newEngine() }, Settings: engines.Settings{"venv": fake, "env.SOME_API_KEY": "hush-hush-hush"},
		Bad:     engines.Settings{"venv": "", "device": "tpu", "mem_fraction_static": "85", "ready_timeout": "-1s", "attach": "localhost", "extra_args": "--nnodes,2"},
		Request: adaptertest.Conformance(fakeRequest(t)), Secrets: []string{"hush-hush-hush"}, StopDeadline: 10 * time.Second})
}

func arguments(r matrix.StartRequest, v openai.Values, c adapter.Checkpoint, cpu bool, known map[string]bool) (argv, waived []string, err error) {
	flags, err := wanted(r, v, c, cpu)
	if err != nil {
		return nil, nil, err
	}
	return adapter.Build{Known: known}.Arguments(flags, v)
}

// A build that does not know a flag of a fair run is refused by the flag's name, unless the flag is waived.
func TestUnknownFlag(t *testing.T) {
	known := adapter.ParseHelp(help(t))
	delete(known, "--enable-cache-report")
	r := request(t)
	w := adapter.Checkpoint{}
	_, _, err := arguments(r, openai.NewValues(schema, nil), w, false, known)
	if f, ok := errors.AsType[*matrix.StartFailure](err); !ok || f.Code != "unsupported_flag" || !strings.Contains(f.Message, "--enable-cache-report") {
		t.Errorf("%v", err)
	}
	argv, waived, err := arguments(r, openai.NewValues(schema, engines.Settings{"waive": "--enable-cache-report"}), w, false, known)
	if err != nil || !slices.Equal(waived, []string{"--enable-cache-report"}) || slices.Contains(argv, "--device") {
		t.Errorf("%v %v %v", argv, waived, err)
	}
}

func TestDraftedArguments(t *testing.T) {
	r := request(t)
	for drafter, want := range map[string]string{
		"mtp":       "--speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
		"ngram":     "--speculative-algorithm NGRAM --speculative-num-draft-tokens 3",
		"eagle3:/d": "--speculative-algorithm EAGLE3 --speculative-draft-model-path /d --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
		"/d":        "--speculative-algorithm STANDALONE --speculative-draft-model-path /d --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
	} {
		r.Policy = matrix.Policy{Kind: matrix.Drafted, Drafter: drafter, Length: 3}
		argv, _, err := arguments(r, openai.NewValues(schema, nil), adapter.Checkpoint{}, false, adapter.ParseHelp(help(t)))
		if err != nil || !strings.HasSuffix(strings.Join(argv, " "), want) {
			t.Errorf("%s: %v %v", drafter, argv, err)
		}
	}
	r.Policy.Length = 0
	if _, _, err := arguments(r, openai.NewValues(schema, nil), adapter.Checkpoint{}, false, adapter.ParseHelp(help(t))); err == nil {
		t.Error("a policy without a length starts")
	}
}

func TestConfigureNamesEveryField(t *testing.T) {
	adaptertest.Refuses(t, newEngine(), engines.Settings{
		"python": "/b", "venv": "/v", "mem_fraction_static": "1.5", "device": "tpu", "ready_timeout": "0s", "vnev": "x", "attach": "localhost",
		"extra_args": "--node_rank=1,--port,--speculative-algorithm,ngram,--dp-size,2,--sleep-on-idle", "env.TRITON_CACHE_DIR": "/c",
	}, "attach", "device", "env.TRITON_CACHE_DIR", "extra_args", "extra_args", "extra_args", "extra_args", "extra_args", "mem_fraction_static", "ready_timeout", "venv", "vnev")
}

func TestDescribe(t *testing.T) {
	d, err := configured(t, engines.Settings{"venv": fake}).Describe(t.Context())
	if err != nil || !d.Installed {
		t.Fatalf("%+v %v", d, err)
	}
	for name, want := range map[string]string{matrix.FactVersion: "0.5.23", "package.torch": "2.13.0", "package.sglang": "0.5.23"} {
		if f, _ := d.Identity.Get(name); f.Value != want {
			t.Errorf("%s: %+v", name, f)
		}
	}
	if !d.Identity.Value(matrix.FactBuild).Present() || container(d, "gguf").Status != matrix.StatusRefused {
		t.Errorf("%+v", d)
	}
}

// An editable install whose source is gone is recorded and does not run.
func TestDescribeGoneSource(t *testing.T) {
	venv := copyFake(t)
	path := filepath.Join(venv, "lib/python3.11/site-packages/sglang-0.5.23.dist-info/direct_url.json")
	if err := os.WriteFile(path, []byte(`{"url":"file:///nowhere/sglang","dir_info":{"editable":true}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	e := configured(t, engines.Settings{"venv": venv})
	d, err := e.Describe(t.Context())
	if err != nil || d.Installed || !strings.Contains(strings.Join(d.LookedFor, "\n"), "does not run") {
		t.Errorf("%+v %v", d.LookedFor, err)
	}
	_, err = e.Start(t.Context(), fakeRequest(t), nil)
	if f, ok := errors.AsType[*matrix.StartFailure](err); !ok || f.Code != "not_installed" || !strings.Contains(f.Message, "does not run") {
		t.Errorf("%v", err)
	}
}

func TestDescribeNotInstalled(t *testing.T) {
	t.Setenv("PATH", "")
	t.Setenv("SGLANG", "")
	t.Chdir(t.TempDir())
	adaptertest.NotInstalled(t, newEngine, kind, engines.Settings{"venv": "/nowhere"}, engines.Settings{"python": "/nowhere/python"}, nil)
}

func TestAttachDescribesAndLetsGo(t *testing.T) {
	adaptertest.Attaches(t, configured(t, engines.Settings{"venv": fake}), newEngine(), fakeRequest(t))
}

func TestParseHelp(t *testing.T) {
	known := adapter.ParseHelp(help(t))
	for _, name := range []string{"--context-length", "--model", "--model-path", "--tensor-parallel-size", "--disable-radix-cache", "--speculative-algorithm", "--no-enable-tf32-matmul", "--host"} {
		if !known[name] {
			t.Errorf("%s is not read", name)
		}
	}
	if known["--context"] || known["--"] {
		t.Error("a prefix of a flag is taken for one")
	}
}

// What was asked and what is in effect stand side by side in the answer (bugs.md F06); keys of the server stand there too.
func TestReadBack(t *testing.T) {
	b, err := os.ReadFile(captured + "/server_info.json")
	if err != nil {
		t.Fatal(err)
	}
	i, err := parseServerInfo(bytes.Replace(b, []byte(`"api_key":null`), []byte(`"api_key":"hush"`), 1))
	if err != nil {
		t.Fatal(err)
	}
	facts := state{info: i}.facts()
	if got := facts.Value("config.cuda_graph").Or(""); got != "decode disabled, prefill disabled" {
		t.Errorf("cuda graph %s", got)
	}
	if strings.Contains(fmt.Sprint(i, facts), "hush") {
		t.Error("a key is in the record")
	}
	for _, broken := range []string{"", "{}", `{"version":7}`, `[]`} {
		if _, err := parseServerInfo([]byte(broken)); err == nil {
			t.Errorf("%q is taken for an answer", broken)
		}
	}
}

// The log knows the dtype of the KV cache that /server_info calls auto.
func TestLogFacts(t *testing.T) {
	b, err := os.ReadFile(captured + "/load.log")
	if err != nil {
		t.Fatal(err)
	}
	facts := adapter.LogFacts(logged, strings.Split(string(b), "\n"))
	if f, _ := facts.Get(matrix.FactKVDtype); f.Value != "float32" || f.Standing != matrix.Observed {
		t.Errorf("%+v", facts)
	}
}

// Cached tokens are known before the first hit: all prompt tokens less those that were computed.
func TestCachedTotal(t *testing.T) {
	b, err := os.ReadFile(captured + "/metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]matrix.Opt[int64]{
		string(b): matrix.Some[int64](0),
		strings.ReplaceAll(string(b), `sglang:uncached_prompt_tokens_histogram_sum{engine_type="unified",model_name="tiny-qwen3"} 4222.0`, `sglang:uncached_prompt_tokens_histogram_sum{engine_type="unified",model_name="tiny-qwen3"} 4000.0`): matrix.Some[int64](222),
		"": {},
	} {
		m, err := openai.ParseMetrics([]byte(text))
		if got := cachedTotal(m); err != nil || got != want {
			t.Errorf("%v, want %v: %v", got, want, err)
		}
	}
}

func FuzzParseServerInfo(f *testing.F) {
	b, err := os.ReadFile(captured + "/server_info.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"version":"1","max_req_input_len":1,"max_running_requests":1,"dtype":"half","quantization":"fp8","internal_states":[{}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		i, err := parseServerInfo(b)
		if err != nil {
			return
		}
		for _, x := range (state{info: i}).facts() {
			if x.Name == "" || x.Where == "" || x.Standing == "" {
				t.Fatalf("%+v", x)
			}
		}
	})
}

func container(d matrix.Description, name string) matrix.Capability {
	for _, c := range d.Capabilities {
		if c.Container == name {
			return c
		}
	}
	return matrix.Capability{}
}

// copyFake is the fake environment in a place of its own.
func copyFake(t testing.TB) string {
	t.Helper()
	venv := filepath.Join(t.TempDir(), "venv")
	if err := os.CopyFS(venv, os.DirFS(fake)); err != nil {
		t.Fatal(err)
	}
	return venv
}

func help(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile(captured + "/help.txt")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Every line that a failed start is explained by, as SGLang writes it.
func TestCauses(t *testing.T) {
	adaptertest.Causes(t, causes, map[string]string{
		"launch_server.py: error: unrecognized arguments: --no-such-flag":                        "unsupported_flag",
		"[Errno 98] error while attempting to bind on address ('127.0.0.1', 30000)":              "port_taken",
		"RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.":         "limits",
		"ValueError: context_length (262144) is greater than the derived context length (32768)": "limits",
		"ValueError: Model architectures ['Gemma9ForCausalLM'] are not supported for now.":       "bad_artifact",
		"safetensors_rust.SafetensorError: Error while deserializing header: header too large":   "bad_artifact",
		"ValueError: Unknown quantization method: exl9.":                                         "bad_artifact",
		"ModuleNotFoundError: No module named 'vllm'":                                            "not_installed",
		"ImportError: [sgl_kernel] CRITICAL: Could not load any common_ops library!":             "not_installed",
	})
}
