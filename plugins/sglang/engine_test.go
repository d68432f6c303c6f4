package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"enginebroker/engines"
	"enginebroker/engines/adapter"
	"enginebroker/engines/enginetest"
	"enginebroker/engines/openai"
	"enginebroker/matrix"
)

const captured = "testdata/0.5.23"

// fake is an environment whose interpreter is the fake server.
var fake string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "fake-")
	if err != nil {
		panic(err)
	}
	fake = filepath.Join(dir, "venv")
	if err := makeFake(fake); err != nil {
		fmt.Fprintln(os.Stderr, "fake environment:", err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	if realCache != "" {
		os.RemoveAll(realCache)
	}
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func makeFake(venv string) error {
	data, err := filepath.Abs(captured)
	if err != nil {
		return err
	}
	for path, text := range map[string]string{
		"pyvenv.cfg": "home = /usr/bin\n",
		"bin/data":   data,
		"lib/python3.11/site-packages/sglang-0.5.23.dist-info/RECORD":  "sglang/__init__.py,sha256=x,1\n",
		"lib/python3.11/site-packages/torch-2.13.0.dist-info/METADATA": "Name: torch\n",
	} {
		path = filepath.Join(venv, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			return err
		}
	}
	if out, err := exec.Command("go", "build", "-o", filepath.Join(venv, "bin/python"), "./testdata/fake").CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// checkpoint is a directory that looks like one.
func checkpoint(t testing.TB, config string) matrix.Artifact {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"config.json": config, "model.safetensors": "weights"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return matrix.Artifact{ID: "tiny@bf16", Container: "safetensors", Path: dir}
}

func fakeRequest(t testing.TB) matrix.StartRequest {
	r := request(t)
	r.Artifact = checkpoint(t, `{"architectures":["Qwen3ForCausalLM"]}`)
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
	for name, want := range map[string]string{matrix.FactComputeDtype: "float32", matrix.FactActivationDtype: "float32", matrix.FactKVDtype: "float32", matrix.FactPrefixCache: "off",
		matrix.FactSpeculation: "none", matrix.FactQuantization: "none", matrix.FactSleepOnIdle: "off", matrix.FactBackend: "torch_native", "config.cuda_graph": "decode disabled, prefill disabled"} {
		if f, _ := ready.Facts.Get(name); f.Value != want || f.Standing != matrix.Observed {
			t.Errorf("%s: %+v, want %s observed", name, f, want)
		}
	}
	d := ready.Dialect
	if d.EchoesModel || !d.CachedReported || d.AddedPrompt != 0 || d.ContextTokens != 512 || d.ClipMargin != 2 || d.MaxPromptTokens != 505 || d.Liveness.Kind != "tcp" || d.Body["return_token_ids"] != true {
		t.Errorf("dialect %+v", d)
	}
	st, err := e.Observe(t.Context())
	if err != nil || !st.Alive || st.Print != ready.Print || st.Generated.Or(0) == 0 || st.CachedTokens != matrix.Some[int64](0) || st.DraftedTokens.Present() {
		t.Errorf("%+v %v", st, err)
	}
	stop(t, e, "term")
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
	set := func(name, value string) func(*matrix.StartRequest, engines.Settings) {
		return func(_ *matrix.StartRequest, s engines.Settings) { s[name] = value }
	}
	for _, c := range []struct {
		mode, code, text string
		change           func(*matrix.StartRequest, engines.Settings)
	}{
		{mode: "exit", code: "limits", text: "Not enough memory"},
		{mode: "hangs", code: "not_ready", text: "not ready within", change: set("ready_timeout", "500ms")},
		{mode: "wrong_model", code: "wrong_model", text: "another"},
		{mode: "other_weights", code: "wrong_model", text: "/somewhere/else"},
		{mode: "other_engine", code: "wrong_model", text: "vllm"},
		{mode: "caches", code: "prefix_cache", text: "cache is on"},
		{mode: "counts_hits", code: "prefix_cache", text: "counters: 16"},
		{mode: "uncounted", code: "prefix_cache", text: "not shown to be off"},
		{mode: "radix_on", code: "prefix_cache", text: "/server_info"},
		{mode: "drafts", code: "policy", text: "NGRAM"},
		{mode: "clips", code: "limits", text: "granted 256"},
		{mode: "bfloat16", code: "compute_dtype", text: "computes in bfloat16"},
		{mode: "sleeps", code: "unsupported_flag", text: "sleeps on idle"},
		{code: "bad_artifact", text: "safetensors here", change: func(r *matrix.StartRequest, _ engines.Settings) { r.Artifact.Container = "gguf" }},
		{code: "bad_artifact", text: "no such file", change: func(r *matrix.StartRequest, _ engines.Settings) { r.Artifact.Path += "/nowhere" }},
		{code: "bad_artifact", text: "holds no *.safetensors", change: func(r *matrix.StartRequest, _ engines.Settings) { r.Artifact.Path = t.TempDir() }},
		{code: "bad_artifact", text: "config.json", change: func(r *matrix.StartRequest, _ engines.Settings) { r.Artifact = checkpoint(t, `{"arch`) }},
		{code: "unsupported_flag", text: "--no-such-flag", change: set("extra_args", "--no-such-flag")},
		{code: "unsupported_flag", text: "prefix cache on", change: func(r *matrix.StartRequest, _ engines.Settings) { r.PrefixCache = "on" }},
		{code: "limits", text: "no context", change: func(r *matrix.StartRequest, _ engines.Settings) { r.Limits.ContextTokens = 0 }},
		{code: "not_installed", text: "/nowhere/bin/python", change: set("venv", "/nowhere")},
	} {
		t.Run(c.mode+" "+c.text, func(t *testing.T) {
			r, s := fakeRequest(t), engines.Settings{"venv": fake, "env.FAKE_MODE": c.mode}
			if c.change != nil {
				c.change(&r, s)
			}
			e := configured(t, s)
			_, err := e.Start(t.Context(), r, nil)
			f, ok := errors.AsType[*matrix.StartFailure](err)
			if !ok || f.Code != c.code || !strings.Contains(err.Error()+strings.Join(f.RootCause, "\n"), c.text) {
				t.Errorf("%+v", err)
			}
			if _, err := e.Observe(t.Context()); !errors.Is(err, engines.ErrNotStarted) {
				t.Errorf("after a failed start: %v", err)
			}
		})
	}
}

func TestConformance(t *testing.T) {
	r := fakeRequest(t)
	r.LoadID, r.LogPath, r.StatePath, r.Port = "", "", "", 0
	enginetest.Run(t, enginetest.Config{New: func() engines.Engine { return newEngine() }, Settings: engines.Settings{"venv": fake, "env.SOME_API_KEY": "hush-hush-hush"},
		Bad:     engines.Settings{"venv": "", "device": "tpu", "mem_fraction_static": "85", "ready_timeout": "-1s", "attach": "localhost", "extra_args": "--nnodes,2"},
		Request: r, Secrets: []string{"hush-hush-hush"}, StopDeadline: 10 * time.Second})
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
	e := newEngine()
	faults, err := e.Configure(t.Context(), engines.Settings{
		"python": "/b", "venv": "/v", "mem_fraction_static": "1.5", "device": "tpu", "ready_timeout": "0s", "vnev": "x", "attach": "localhost",
		"extra_args": "--node_rank=1,--port,--speculative-algorithm,ngram,--dp-size,2,--sleep-on-idle", "env.TRITON_CACHE_DIR": "/c",
	})
	if err != nil {
		t.Fatal(err)
	}
	var fields []string
	for _, f := range faults {
		fields = append(fields, f.Field)
	}
	slices.Sort(fields)
	if want := []string{"attach", "device", "env.TRITON_CACHE_DIR", "extra_args", "extra_args", "extra_args", "extra_args", "extra_args", "mem_fraction_static", "ready_timeout", "venv", "vnev"}; !slices.Equal(fields, want) {
		t.Errorf("%v", faults)
	}
	if _, err := e.Start(t.Context(), matrix.StartRequest{}, nil); !errors.Is(err, engines.ErrNotConfigured) {
		t.Error("refused settings were kept")
	}
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
	for _, s := range []engines.Settings{{"venv": "/nowhere"}, {"python": "/nowhere/python"}, nil} {
		d, err := configured(t, s).Describe(t.Context())
		if err != nil || d.Installed || len(d.LookedFor) == 0 || len(d.Capabilities) == 0 || len(d.Settings) == 0 || d.Engine != kind {
			t.Errorf("%v: %+v %v", s, d, err)
		}
	}
}

func TestAttachDescribesAndLetsGo(t *testing.T) {
	host := configured(t, engines.Settings{"venv": fake})
	r := fakeRequest(t)
	ready, err := host.Start(t.Context(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	e := configured(t, engines.Settings{"attach": ready.Dialect.BaseURL})
	got, err := e.Start(t.Context(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Processes) != 1 || got.Processes[0].PID != ready.Processes[0].PID {
		t.Errorf("the owner of the socket: %v, want %v", got.Processes, ready.Processes)
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
