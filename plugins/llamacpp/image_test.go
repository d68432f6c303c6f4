package main

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"enginebroker/engines"
	"enginebroker/engines/adapter"
	"enginebroker/engines/adapter/adaptertest"
	"enginebroker/engines/openai"
	"enginebroker/engines/process"
)

func TestImageCommandLines(t *testing.T) {
	for name, c := range map[string]struct {
		tool       string
		entrypoint []string
		asks       string
	}{
		"ggml-org/llama.cpp:server": {"docker", []string{"/app/llama-server"}, "--help"},
		"a wrapper":                 {"podman", []string{"/entry.sh"}, "llama-server --help"},
		"no entrypoint":             {"docker", nil, "llama-server --help"},
	} {
		t.Run(name, func(t *testing.T) {
			tool, id, calls := adaptertest.Tool(t, c.tool, c.entrypoint, "", help(t))
			v := openai.NewValues(schema, engines.Settings{"image": id, "runtime": tool})
			image, bad := process.NewContainer(v.Text, images...)
			if len(bad) > 0 {
				t.Fatal(bad)
			}
			s := &adapter.Server{Request: request(t), Image: image}
			if _, err := prepare(t.Context(), v, s); err != nil {
				t.Fatal(err)
			}
			if line := strings.Join(s.Argv, " "); !strings.HasPrefix(line, "--model /") || len(s.Links) > 0 || s.Launch != "" {
				t.Errorf("argv %s, links %v, launch %q", line, s.Links, s.Launch)
			}
			if last := calls()[len(calls())-1]; !strings.HasSuffix(last, " "+id+" "+c.asks) {
				t.Errorf("asked by %s", last)
			}
		})
	}
	adaptertest.Refuses(t, newEngine(), engines.Settings{"image": "sha256:" + strings.Repeat("a", 64), "runtime": "podman", "root": "/r"}, "root")
}

// A real podman, and an image that holds the server and nothing else.
func TestImageRuns(t *testing.T) {
	root := t.TempDir()
	if err := errors.Join(adaptertest.BuildStatic(filepath.Join(root, "app/llama-server")), adaptertest.WriteFiles(root, map[string]string{"app/help.txt": help(t)})); err != nil {
		t.Fatal(err)
	}
	adaptertest.Contained(t, newEngine(), adaptertest.Image(t, root, `ENTRYPOINT ["/app/llama-server"]`), request(t), "/app/llama-server")
}
