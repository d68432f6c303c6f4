package main

import (
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

// fake is the built fake server, with the help of b11669 beside it.
var fake string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "fake-")
	if err != nil {
		panic(err)
	}
	fake = filepath.Join(dir, "llama-server")
	out, err := exec.Command("go", "build", "-o", fake, "./testdata/fake").CombinedOutput()
	help, herr := os.ReadFile("testdata/b11669/help.txt")
	if err := errors.Join(err, herr, os.WriteFile(filepath.Join(dir, "help.txt"), help, 0o644)); err != nil {
		fmt.Fprintf(os.Stderr, "fake server: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
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
	stop(t, e, "term")
	if _, err := e.Stop(t.Context(), time.Second); !errors.Is(err, engines.ErrNotStarted) {
		t.Errorf("second stop: %v", err)
	}
}

func TestFakeConformance(t *testing.T) {
	enginetest.Run(t, enginetest.Config{
		New: func() engines.Engine { return newEngine() }, Settings: engines.Settings{"binary": fake, "env.SERVICE_TOKEN": "hush-hush"},
		Bad: engines.Settings{"threads": "many", "flash_attention": "maybe"}, Request: conformance(t), Secrets: []string{"hush-hush"}, StopDeadline: 5 * time.Second,
	})
}

func TestFakeFailures(t *testing.T) {
	for _, c := range []struct {
		mode, code, text string
		change           func(*matrix.StartRequest, engines.Settings)
	}{
		{mode: "exit", code: "bad_artifact", text: "unknown model architecture"},
		{mode: "loading", code: "not_ready", text: "Loading model", change: func(_ *matrix.StartRequest, s engines.Settings) { s["ready_timeout"] = "400ms" }},
		{mode: "hangs", code: "not_ready", text: "not ready within", change: func(_ *matrix.StartRequest, s engines.Settings) { s["ready_timeout"] = "400ms" }},
		{mode: "wrong_model", code: "wrong_model", text: "another"},
		{mode: "router", code: "unsupported_flag", text: "router"},
		{mode: "caches", code: "prefix_cache", text: "cache is on"},
		{mode: "drafts", code: "policy", text: "speculative: true"},
		{mode: "clips", code: "limits", text: "granted 256"},
		{mode: "", code: "bad_artifact", text: "GGUF, and x@nvfp4 is safetensors", change: func(r *matrix.StartRequest, _ engines.Settings) {
			r.Artifact = matrix.Artifact{ID: "x@nvfp4", Container: "safetensors", Path: "/x"}
		}},
		{mode: "", code: "unsupported_flag", text: "--no-such-flag", change: func(_ *matrix.StartRequest, s engines.Settings) { s["extra_args"] = "--no-such-flag" }},
		{mode: "", code: "unsupported_flag", text: "compute dtype", change: func(r *matrix.StartRequest, _ engines.Settings) { r.ComputeDtype = "float32" }},
		{mode: "", code: "not_installed", text: "/nowhere/llama-server", change: func(_ *matrix.StartRequest, s engines.Settings) { s["binary"] = "/nowhere/llama-server" }},
	} {
		t.Run(c.mode+" "+c.text, func(t *testing.T) {
			r, s := request(t), engines.Settings{"binary": fake, "env.FAKE_MODE": c.mode}
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
	e := newEngine()
	faults, err := e.Configure(t.Context(), engines.Settings{
		"binary": "/b", "root": "/r", "threads": "many", "flash_attention": "maybe", "ready_timeout": "0s", "bakend": "x64", "attach": "localhost",
		"extra_args": "--spec-synth-len,3,--port,--rpc,a:1", "env.LLAMA_ARG_CTX_SIZE": "1",
	})
	if err != nil {
		t.Fatal(err)
	}
	var fields []string
	for _, f := range faults {
		fields = append(fields, f.Field)
	}
	slices.Sort(fields)
	if want := []string{"attach", "bakend", "env.LLAMA_ARG_CTX_SIZE", "extra_args", "extra_args", "extra_args", "flash_attention", "ready_timeout", "root", "threads"}; !slices.Equal(fields, want) {
		t.Errorf("%v", faults)
	}
	if _, err := e.Start(t.Context(), matrix.StartRequest{}, nil); !errors.Is(err, engines.ErrNotConfigured) {
		t.Error("refused settings were kept")
	}
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
	host := configured(t, engines.Settings{"binary": fake})
	r := request(t)
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
	if st, err := e.Observe(t.Context()); err != nil || !st.Alive {
		t.Errorf("%+v %v", st, err)
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
