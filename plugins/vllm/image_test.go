package main

import (
	"slices"
	"strings"
	"testing"

	"enginebroker/engines"
	"enginebroker/engines/adapter"
	"enginebroker/engines/adapter/adaptertest"
	"enginebroker/engines/openai"
	"enginebroker/engines/process"
	"enginebroker/matrix"
)

const listed = `a banner of the entrypoint
{"interpreter":"/usr/bin/python3","prefix":"/usr","dists":[["vllm","0.32.0","/usr/local/lib/python3.12/dist-packages"],["torch","2.13.0","/usr/local/lib/python3.12/dist-packages"],["vllm","0.1","/old"]]}`

// The command line follows the image's entrypoint, and its flags are those of its own --help.
func TestImageCommandLines(t *testing.T) {
	for name, c := range map[string]struct {
		tool       string
		entrypoint []string
		settings   engines.Settings
		argv       string // how the server's arguments begin
		asks       string // how the image is asked for its flags, less the options
	}{
		"vllm/vllm-openai": {"docker", []string{"vllm", "serve"}, engines.Settings{"gpu": "all"}, "MODEL --served-model-name tiny", "IMAGE --help=all"},
		"an older one":     {"docker", []string{"python3", "-m", "vllm.entrypoints.openai.api_server"}, nil, "--model MODEL --served-model-name tiny", "IMAGE --help"},
		"a wrapper":        {"podman", []string{"/opt/nvidia/nvidia_entrypoint.sh"}, engines.Settings{"gpu": "all"}, "MODEL --served-model-name tiny", "IMAGE vllm serve --help=all"},
		"no entrypoint":    {"podman", nil, nil, "MODEL --served-model-name tiny", "IMAGE vllm serve --help=all"},
	} {
		t.Run(name, func(t *testing.T) {
			tool, id, calls := adaptertest.Tool(t, c.tool, c.entrypoint, listed, help(t))
			settings := engines.Settings{"image": id, "runtime": tool, "user": "7:8", "run_args": "--ipc=host"}
			for k, v := range c.settings {
				settings[k] = v
			}
			v := openai.NewValues(schema, settings)
			image, bad := process.NewContainer(v.Text, images...)
			if len(bad) > 0 {
				t.Fatal(bad)
			}
			s := &adapter.Server{Request: fakeRequest(t), Image: image}
			if _, err := prepare(t.Context(), v, s); err != nil {
				t.Fatal(err)
			}
			argv := strings.ReplaceAll(strings.Join(s.Argv, " "), s.Request.Artifact.Path, "MODEL")
			if !strings.HasPrefix(argv, c.argv) || !strings.Contains(argv, "--no-enable-prefix-caching") || strings.Contains(argv, "--enforce-eager") || s.Launch != "" {
				t.Errorf("argv %s, launch %s", argv, s.Launch)
			}
			for name, want := range map[string]string{"HF_HUB_OFFLINE": "1", "VLLM_SERVER_DEV_MODE": "1", "PYTHONDONTWRITEBYTECODE": "1", "USER": "broker"} {
				if s.Env[name] != want {
					t.Errorf("%s=%q", name, s.Env[name])
				}
			}
			for _, name := range []string{"HOME", "TRITON_CACHE_DIR", "VLLM_CACHE_ROOT"} {
				if !strings.HasPrefix(s.Env[name], s.Request.CacheDir+"/") {
					t.Errorf("%s=%q is not private", name, s.Env[name])
				}
			}
			if s.Env["VIRTUAL_ENV"] != "" || s.Env["PATH"] != "" {
				t.Errorf("paths of this machine in the container: %v", s.Env)
			}
			last := calls()[len(calls())-1]
			gpu := map[string]string{"docker": "--gpus=all", "podman": "--device=nvidia.com/gpu=all"}[c.tool]
			if !strings.HasSuffix(last, " --ipc=host "+strings.Replace(c.asks, "IMAGE", id, 1)) || !strings.HasPrefix(last, "run --rm --pull=never --network=none --name=broker-ask-") ||
				!strings.Contains(last, " --user=7:8 ") || strings.Contains(last, gpu) != (settings["gpu"] != "") {
				t.Errorf("asked by %s", last)
			}
		})
	}
}

func TestImageDescribes(t *testing.T) {
	tool, id, _ := adaptertest.Tool(t, "docker", []string{"vllm", "serve"}, listed, "")
	d, err := configured(t, engines.Settings{"image": "vllm/vllm-openai@" + id, "runtime": tool}).Describe(t.Context())
	if err != nil || !d.Installed {
		t.Fatalf("%+v %v", d, err)
	}
	for name, want := range map[string]string{matrix.FactVersion: "0.32.0", "package.torch": "2.13.0", matrix.FactBuild: id, matrix.FactEngine: kind} {
		if got := d.Identity.Value(name).Or(""); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if container(d, "gguf").Status != matrix.StatusRefused {
		t.Errorf("%+v", d.Capabilities)
	}
}

// An image of something else is not this engine, and the answer says what was found.
func TestImageOfAnotherEngine(t *testing.T) {
	for name, packages := range map[string]string{
		"no distribution vllm": strings.ReplaceAll(listed, `"vllm"`, `"other"`),
		"does not list":        "Traceback: no module",
	} {
		tool, id, _ := adaptertest.Tool(t, "podman", nil, packages, "")
		e := configured(t, engines.Settings{"image": id, "runtime": tool})
		d, err := e.Describe(t.Context())
		if err != nil || d.Installed || !strings.Contains(strings.Join(d.LookedFor, "\n"), name) {
			t.Errorf("%s: %+v %v", name, d.LookedFor, err)
		}
	}
}

func TestImageBesideAnInstallation(t *testing.T) {
	adaptertest.Refuses(t, newEngine(), engines.Settings{"image": "sha256:" + strings.Repeat("a", 64), "runtime": "podman", "venv": "/v"}, "venv")
	adaptertest.Refuses(t, newEngine(), engines.Settings{"image": "vllm/vllm-openai:latest", "runtime": "podman", "binary": "/v"}, "binary", "image")
}

// A real podman, a real python3, and an image laid out as vllm/vllm-openai: the packages it names are read from the running
// process, through its own root.
func TestImageRuns(t *testing.T) {
	root := adaptertest.PythonRoot(t, captured, map[string]string{
		"vllm-0.32.0.dist-info/METADATA": "Name: vllm\nVersion: 0.32.0\n", "torch-2.13.0.dist-info/METADATA": "Name: torch\nVersion: 2.13.0\n"})
	if err := adaptertest.WriteProgram(root, "usr/local/bin/vllm", "#!/usr/bin/python3\n"+adaptertest.Serve("[]")); err != nil {
		t.Fatal(err)
	}
	image := adaptertest.Image(t, root, `ENTRYPOINT ["vllm","serve"]`)
	ready := adaptertest.Contained(t, newEngine(), image, fakeRequest(t), "vllm", "serve")
	for _, want := range []string{"vllm 0.32.0", "torch 2.13.0"} {
		if !slices.ContainsFunc(ready.Facts, func(f matrix.Fact) bool {
			return f.Standing == matrix.Observed && "package."+want == f.Name+" "+f.Value
		}) {
			t.Errorf("%s was not read from what runs", want)
		}
	}
	if ready.Processes[0].Exe != "/usr/local/bin/fake" || len(ready.Processes) != 2 {
		t.Errorf("the owner of the socket comes first: %+v", ready.Processes)
	}
}
