package main

import (
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"enginebroker/engines/adapter"
	"enginebroker/engines/openai"
	"enginebroker/engines/process"
	"enginebroker/matrix"
)

var rules = adapter.Rules{Schema: schema, Forbidden: forbidden, Own: own, Places: []string{"binary", "root"}, More: check}

var schema = append([]matrix.Setting{
	{Name: "binary", Type: "path", Help: "path of llama-server; without binary and root, it is looked for in PATH"},
	{Name: "root", Type: "path", Help: "a Debian tree that holds the package llama.cpp-tools; its own loader runs it"},
	{Name: "backend", Type: "string", Default: "auto", Help: "CPU backend library: auto (the engine's own choice), haswell, x64 and so on; with binary, the path of a library"},
	{Name: "threads", Type: "int", Help: "compute threads; unset: the engine's own choice"},
	{Name: "ngl", Type: "int", Default: "999", Help: "layers to keep on a GPU, where the build has one"},
	{Name: "flash_attention", Type: "string", Default: "auto", Values: []string{"auto", "on", "off"}, Help: "auto, on or off"},
	{Name: "kv_dtype", Type: "string", Default: "f16", Help: "type of the KV cache, keys and values alike"},
	{Name: "batch", Type: "int", Help: "logical batch size; unset: the engine's default"},
	{Name: "ubatch", Type: "int", Help: "physical batch size; unset: the engine's default"},
}, slices.Concat(process.ContainerSettings, adapter.Common(", as --sse-ping-interval"))...)

// forbidden are the arguments that would make the arm something else than it is recorded as, each with the reason.
var forbidden = map[string]string{
	"--spec-synth": "synthetic acceptance forges the speed of drafting",
	"--models-":    "router mode loads models by request; one server serves one model here",
	"--rpc":        "workers on other hosts are not supported (MULTI_NODE_UNSUPPORTED)",
	"--hf-":        "downloads are not supported: name local files", "-hf": "downloads are not supported: name local files",
	"--model-url": "downloads are not supported: name local files", "-mu": "downloads are not supported: name local files",
	"--mmproj": "text runs have no projector: with one, cache and context behave otherwise", "-mm": "text runs have no projector",
	"--reuse-port": "a shared port splits the requests between two servers",
	"--sleep-idle": "a server that sleeps pays for it in the next request",
	"--spec-":      adapter.PolicyOnly, "--draft": adapter.PolicyOnly,
	"-md": adapter.PolicyOnly, "--model-draft": adapter.PolicyOnly,
	"--lookup-cache": adapter.PolicyOnly,
	"--api-key":      "the server listens on this machine for this run only, and a key would stand in the record",
	"--ssl-":         "the timed client speaks plain HTTP to this machine", "--api-prefix": "the adapter needs the known paths",
}

// own are the flags that the adapter sets itself, by every spelling.
var own = []string{
	"-m", "--model", "--host", "--port", "-a", "--alias", "-c", "--ctx-size", "-np", "--parallel", "--fit", "-fit", "--cache-prompt", "--no-cache-prompt",
	"-cram", "--cache-ram", "--context-shift", "--no-context-shift", "--sse-ping-interval", "-s", "--seed", "--offline", "--metrics", "--slots", "--no-slots",
	"-kvu", "--kv-unified", "-no-kvu", "--no-kv-unified", "-ctk", "--cache-type-k", "-ctv", "--cache-type-v", "-ngl", "--gpu-layers", "--n-gpu-layers",
	"-fa", "--flash-attn", "-t", "--threads", "-b", "--batch-size", "-ub", "--ubatch-size", "--webui", "--no-webui", "--ui", "--no-ui",
}

// check finds the faults that only these settings can have. Whether a tree has the backend is looked up where all else is
// well.
func check(v openai.Values, clean bool, add func(field, message, fix string)) {
	if v.Text("binary") != "" && v.Text("root") != "" {
		add("root", "binary and root are both given", "name one installation")
	}
	if v.Text("image") != "" && v.Text("backend") != "auto" {
		add("backend", "an image chooses its backend itself", "use an image that was built for one")
	}
	if b := v.Text("backend"); v.Text("root") == "" && b != "auto" && !filepath.IsAbs(b) {
		add("backend", "without root, a backend is named by the path of its library", "write /…/libggml-cpu-"+b+".so, or auto")
	}
	env := v.Map("env")
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if strings.HasPrefix(name, "LLAMA_ARG_") || name == "LLAMA_API_KEY" {
			add("env."+name, "sets an argument silently", "use extra_args, or a setting")
			clean = false
		}
	}
	if !clean || v.Text("image") != "" {
		return
	}
	if in, err := locate(v); errors.Is(err, errBackend) && len(in.backends) > 0 {
		add("backend", err.Error(), "")
	}
}
