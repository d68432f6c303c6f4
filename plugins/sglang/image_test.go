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

const listed = `{"interpreter":"/usr/bin/python3","prefix":"/usr","dists":[["sglang","0.5.23","/usr/local/lib/python3.12/dist-packages"],["sgl_kernel","0.4.1","/usr/local/lib/python3.12/dist-packages"]]}`

// SGLang's own images have no server as entrypoint; others do. Without a GPU in the container the server runs on the CPU.
func TestImageCommandLines(t *testing.T) {
	const launch = "python3 -m sglang.launch_server "
	for name, c := range map[string]struct {
		tool       string
		entrypoint []string
		gpu        string
		asks       string
	}{
		"lmsysorg/sglang": {"docker", []string{"/opt/nvidia/nvidia_entrypoint.sh"}, "all", launch},
		"no entrypoint":   {"podman", nil, "", launch},
		"the module":      {"podman", []string{"python3", "-m", "sglang.launch_server"}, "all", ""},
		"the command":     {"docker", []string{"/usr/local/bin/sglang", "serve"}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			tool, id, calls := adaptertest.Tool(t, c.tool, c.entrypoint, listed, help(t))
			v := openai.NewValues(schema, engines.Settings{"image": id, "runtime": tool, "gpu": c.gpu})
			image, bad := process.NewContainer(v.Text, images...)
			if len(bad) > 0 {
				t.Fatal(bad)
			}
			s := &adapter.Server{Request: fakeRequest(t), Image: image}
			if _, err := prepare(t.Context(), v, s); err != nil {
				t.Fatal(err)
			}
			if s.Argv[0] != "--model-path" || s.Argv[1] != s.Request.Artifact.Path || s.Launch != "" {
				t.Errorf("argv %q, launch %q", s.Argv, s.Launch)
			}
			cpu := c.gpu == ""
			if slices.Contains(s.Argv, "cpu") != cpu || (s.Env["SGLANG_USE_CPU_ENGINE"] == "1") != cpu {
				t.Errorf("gpu %q: %q %v", c.gpu, s.Argv, s.Env)
			}
			gpu := map[string]string{"docker": " --gpus=all ", "podman": " --device=nvidia.com/gpu=all "}[c.tool]
			if last := calls()[len(calls())-1]; !strings.HasSuffix(last, " "+id+" "+c.asks+"--help") || strings.Contains(last, gpu) == cpu {
				t.Errorf("asked by %s", last)
			}
		})
	}
}

func TestImageDescribes(t *testing.T) {
	tool, id, _ := adaptertest.Tool(t, "docker", nil, listed, "")
	d, err := configured(t, engines.Settings{"image": id, "runtime": tool}).Describe(t.Context())
	if err != nil || !d.Installed || d.Identity.Value(matrix.FactVersion).Or("") != "0.5.23" || d.Identity.Value("package.sgl-kernel").Or("") != "0.4.1" {
		t.Errorf("%+v %v", d, err)
	}
	adaptertest.Refuses(t, newEngine(), engines.Settings{"image": id, "runtime": tool, "python": "/usr/bin/python3"}, "python")
}

// A real podman and a real python3, in an image without an entrypoint.
func TestImageRuns(t *testing.T) {
	root := adaptertest.PythonRoot(t, captured, map[string]string{
		"sglang-0.5.23.dist-info/METADATA": "Name: sglang\nVersion: 0.5.23\n", "sglang/__init__.py": "", "sglang/launch_server.py": adaptertest.Serve(`["-m", "sglang.launch_server"]`)})
	ready := adaptertest.Contained(t, newEngine(), adaptertest.Image(t, root, ""), fakeRequest(t), "python3", "-m", "sglang.launch_server", "--model-path")
	if f, _ := ready.Facts.Get("package.sglang"); f.Value != "0.5.23" || f.Standing != matrix.Observed {
		t.Errorf("package.sglang: %+v", f)
	}
}
