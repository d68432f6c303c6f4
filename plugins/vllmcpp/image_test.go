package main

import (
	"path/filepath"
	"strings"
	"testing"

	"enginebroker/engines"
	"enginebroker/engines/adapter"
	"enginebroker/engines/adapter/adaptertest"
	"enginebroker/engines/openai"
	"enginebroker/engines/process"
)

const usage = "usage: server --model <dir> [--host H] [--port P] [--served-model-name N] [--block-size N] [--num-blocks N] [--max-model-len N] [--max-num-seqs N] [--[no-]enable-prefix-caching]"

func TestImageCommandLines(t *testing.T) {
	for name, c := range map[string]struct {
		tool       string
		entrypoint []string
		asks       string
	}{
		"the server":    {"docker", []string{"/opt/vllm.cpp/build/examples/server"}, "--help"},
		"a wrapper":     {"podman", []string{"/entry.sh"}, "server --help"},
		"no entrypoint": {"docker", nil, "server --help"},
	} {
		t.Run(name, func(t *testing.T) {
			tool, id, calls := adaptertest.Tool(t, c.tool, c.entrypoint, "", usage)
			v := openai.NewValues(schema, engines.Settings{"image": id, "runtime": tool})
			image, bad := process.NewContainer(v.Text, images...)
			if len(bad) > 0 {
				t.Fatal(bad)
			}
			s := &adapter.Server{Request: request(t), Image: image}
			if _, err := prepare(t.Context(), v, s); err != nil {
				t.Fatal(err)
			}
			if s.Argv[0] != "--model" || s.Argv[1] != s.Request.Artifact.Path || s.Launch != "" || !strings.HasPrefix(s.Env["CUDA_CACHE_PATH"], s.Request.CacheDir) {
				t.Errorf("%+v", s)
			}
			if last := calls()[len(calls())-1]; !strings.HasSuffix(last, " "+id+" "+c.asks) {
				t.Errorf("asked by %s", last)
			}
		})
	}
	adaptertest.Refuses(t, newEngine(), engines.Settings{"image": "sha256:" + strings.Repeat("a", 64), "runtime": "podman", "binary": "/b"}, "binary")
}

// A real podman, and an image that holds the server and nothing else.
func TestImageRuns(t *testing.T) {
	root := t.TempDir()
	if err := adaptertest.BuildStatic(filepath.Join(root, "server")); err != nil {
		t.Fatal(err)
	}
	adaptertest.Contained(t, newEngine(), adaptertest.Image(t, root, `ENTRYPOINT ["/server"]`), request(t), "/server", "--model")
}
