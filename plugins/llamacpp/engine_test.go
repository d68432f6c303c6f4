package main

import (
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
	"enginebroker/engines/fingerprint"
	"enginebroker/engines/openai"
	"enginebroker/matrix"
)

// fake is the built fake server, with the help of b11669 beside it.
var fake string

func TestMain(m *testing.M) {
	adaptertest.Main(m, func(dir string) error {
		fake = filepath.Join(dir, "llama-server")
		help, err := os.ReadFile("testdata/b11669/help.txt")
		return errors.Join(err, adaptertest.Build(fake), adaptertest.WriteFiles(dir, map[string]string{"help.txt": string(help)}))
	})
}

func TestFakeStart(t *testing.T) {
	e := configured(t, engines.Settings{"binary": fake, "env.SOME_KEY": "hush", "extra_args": "--verbose"})
	r := request(t)
	var phases []string
	ready, err := e.Start(t.Context(), r, func(p matrix.Progress) { phases = append(phases, p.Phase) })
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(slices.Compact(phases), " "); got != "launch load listen generate ready" {
		t.Errorf("phases %s", got)
	}
	line := strings.Join(ready.Argv, " ")
	for _, want := range []string{"--ctx-size 1024", "--parallel 2", "--fit off", "--no-cache-prompt", "--cache-ram 0", "--no-context-shift", "--sse-ping-interval -1", "--spec-type none", "--verbose"} {
		if !strings.Contains(line, want) {
			t.Errorf("argv lacks %s: %s", want, line)
		}
	}
	if strings.Contains(fmt.Sprint(ready), "hush") {
		t.Error("a secret of the environment is in the record")
	}
	if ready.Dialect.AddedPrompt != 1 { // the fake counts one token more than /tokenize
		t.Errorf("added %d", ready.Dialect.AddedPrompt)
	}
	if _, err := e.Start(t.Context(), r, nil); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("a second server: %v", err)
	}
	adaptertest.Stop(t, e, "term")
	if _, err := e.Stop(t.Context(), time.Second); !errors.Is(err, engines.ErrNotStarted) {
		t.Errorf("second stop: %v", err)
	}
}

func TestFakeConformance(t *testing.T) {
	enginetest.Run(t, enginetest.Config{
		New: func() engines.Engine { return newEngine() }, Settings: engines.Settings{"binary": fake, "env.SERVICE_TOKEN": "hush-hush"},
		Bad: engines.Settings{"threads": "many", "flash_attention": "maybe"}, Request: adaptertest.Conformance(request(t)), Secrets: []string{"hush-hush"}, StopDeadline: 5 * time.Second,
	})
}

func TestFakeFailures(t *testing.T) {
	adaptertest.Fails(t, newEngine, request, engines.Settings{"binary": fake}, []adaptertest.Failure{
		{Mode: "exit", Code: "bad_artifact", Text: "unknown model architecture"},
		{Mode: "loading", Code: "not_ready", Text: "Loading model", Change: adaptertest.Set("ready_timeout", "400ms")},
		{Mode: "hangs", Code: "not_ready", Text: "not ready within", Change: adaptertest.Set("ready_timeout", "400ms")},
		{Mode: "wrong_model", Code: "wrong_model", Text: "another"},
		{Mode: "router", Code: "unsupported_flag", Text: "router"},
		{Mode: "caches", Code: "prefix_cache", Text: "cache is on"},
		{Mode: "drafts", Code: "policy", Text: "speculative: true"},
		{Mode: "clips", Code: "limits", Text: "granted 256"},
		{Code: "bad_artifact", Text: "GGUF, and x@nvfp4 is safetensors", Change: func(r *matrix.StartRequest, _ engines.Settings) {
			r.Artifact = matrix.Artifact{ID: "x@nvfp4", Container: "safetensors", Path: "/x"}
		}},
		{Code: "unsupported_flag", Text: "--no-such-flag", Change: adaptertest.Set("extra_args", "--no-such-flag")},
		{Code: "unsupported_flag", Text: "compute dtype", Change: func(r *matrix.StartRequest, _ engines.Settings) { r.ComputeDtype = "float32" }},
		{Code: "not_installed", Text: "/nowhere/llama-server", Change: adaptertest.Set("binary", "/nowhere/llama-server")},
	})
}

func arguments(r matrix.StartRequest, v openai.Values, model string, known map[string]bool) (argv, waived []string, err error) {
	flags, err := wanted(r, v, model)
	if err != nil {
		return nil, nil, err
	}
	return adapter.Build{Known: known}.Arguments(flags, v)
}

// A build that does not know a flag of a fair run is refused by the flag's name, unless the flag is waived.
func TestUnknownFlag(t *testing.T) {
	known := parseHelp(help(t))
	delete(known, "--sse-ping-interval")
	r := request(t)
	_, _, err := arguments(r, openai.NewValues(schema, nil), "m.gguf", known)
	if f, ok := errors.AsType[*matrix.StartFailure](err); !ok || f.Code != "unsupported_flag" || !strings.Contains(f.Message, "--sse-ping-interval") {
		t.Errorf("%v", err)
	}
	_, waived, err := arguments(r, openai.NewValues(schema, engines.Settings{"waive": "--sse-ping-interval"}), "m.gguf", known)
	if err != nil || !slices.Equal(waived, []string{"--sse-ping-interval"}) {
		t.Errorf("%v %v", waived, err)
	}
}

func TestDraftedArguments(t *testing.T) {
	r := request(t)
	for drafter, want := range map[string]string{
		"mtp": "--spec-type draft-mtp --spec-draft-n-max 3", "ngram-simple": "--spec-type ngram-simple --spec-draft-n-max 3",
		"/d.gguf": "--spec-type draft-simple --spec-draft-model /d.gguf --spec-draft-n-max 3",
	} {
		r.Policy = matrix.Policy{Kind: matrix.Drafted, Drafter: drafter, Length: 3}
		argv, _, err := arguments(r, openai.NewValues(schema, nil), "m.gguf", parseHelp(help(t)))
		if err != nil || !strings.HasSuffix(strings.Join(argv, " "), want) {
			t.Errorf("%s: %v %v", drafter, argv, err)
		}
	}
}

func TestConfigureNamesEveryField(t *testing.T) {
	adaptertest.Refuses(t, newEngine(), engines.Settings{
		"binary": "/b", "root": "/r", "threads": "many", "flash_attention": "maybe", "ready_timeout": "0s", "bakend": "x64", "attach": "localhost",
		"extra_args": "--spec-synth-len,3,--port,--rpc,a:1", "env.LLAMA_ARG_CTX_SIZE": "1",
	}, "attach", "bakend", "env.LLAMA_ARG_CTX_SIZE", "extra_args", "extra_args", "extra_args", "flash_attention", "ready_timeout", "root", "threads")
}

func TestDescribeNotInstalled(t *testing.T) {
	for _, s := range []engines.Settings{{"binary": "/nowhere/llama-server"}, {"root": "/nowhere"}, nil} {
		t.Setenv("PATH", "")
		e := configured(t, s)
		d, err := e.Describe(t.Context())
		if err != nil || d.Installed || len(d.LookedFor) == 0 || len(d.Capabilities) == 0 || len(d.Settings) == 0 || d.Engine != kind {
			t.Errorf("%v: %+v %v", s, d, err)
		}
	}
}

func TestDescribeInstalled(t *testing.T) {
	e := configured(t, engines.Settings{"binary": fake})
	d, err := e.Describe(t.Context())
	if err != nil || !d.Installed {
		t.Fatalf("%+v %v", d, err)
	}
	for name, want := range map[string]string{matrix.FactVersion: "b11669-10bf611", matrix.FactCommit: "10bf611"} {
		if f, _ := d.Identity.Get(name); f.Value != want || f.Standing != matrix.Claimed {
			t.Errorf("%s: %+v", name, f)
		}
	}
	if !d.Identity.Value(matrix.FactBuild).Present() {
		t.Error("no build")
	}
}

func TestAttachDescribesAndLetsGo(t *testing.T) {
	adaptertest.Attaches(t, configured(t, engines.Settings{"binary": fake}), newEngine(), request(t))
}

// Every line that a failed start is explained by, as llama-server writes it.
func TestCauses(t *testing.T) {
	adaptertest.Causes(t, causes, map[string]string{
		"error: invalid argument: --no-such-flag":                                                                                                  "unsupported_flag",
		"start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080":                                                                 "port_taken",
		"llama_model_load: error loading model: error loading model architecture: unknown model architecture: 'gemma9'":                            "bad_artifact",
		"llama_model_load: error loading model: tensor 'blk.3.ffn_up.weight' data is not within the file bounds, model is corrupted or incomplete": "bad_artifact",
		"gguf_init_from_file_impl: invalid magic characters: 'hell', expected 'GGUF'":                                                              "bad_artifact",
		"ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9000.00 MiB on device 0: cudaMalloc failed: out of memory":                         "limits",
		"llama_model_load_from_file_impl: no backends are loaded. hint: use ggml_backend_load()":                                                   "not_installed",
		"/srv/llama-server: /lib/libc.so.6: version `GLIBC_2.38' not found":                                                                        "not_installed",
	})
}

// A model that lies partly beside the GPU is slower by far, and only the log says so.
func TestPartialOffloadIsTold(t *testing.T) {
	for line, want := range map[string]string{
		"load_tensors: offloaded 65/65 layers to GPU": "offloaded_layers=65/65",
		"load_tensors: offloaded 20/65 layers to GPU": "offloaded_layers=20/65 warning=20 of 65 layers are on the GPU",
		"load_tensors: CPU model buffer size = 1 MiB": "",
	} {
		var got []string
		for _, f := range offloaded([]string{"x", line, line}) {
			got = append(got, strings.TrimPrefix(f.Name, fingerprint.FactConfig)+"="+f.Value)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q", line, got)
		}
	}
}
