package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"enginebroker/engines/openai"
	"enginebroker/matrix"
)

// flag is one argument of a fair run.
type flag struct {
	name, value string // empty value: a switch
	why         string
}

func unsupported(format string, args ...any) *matrix.StartFailure {
	return &matrix.StartFailure{Code: "unsupported_flag", Phase: "launch", Message: fmt.Sprintf(format, args...)}
}

// arguments translates a start request; a flag the build does not know is refused by name, or waived and said so.
func arguments(r matrix.StartRequest, v openai.Values, model string, known map[string]bool) (argv, waived []string, err error) {
	flags, err := wanted(r, v, model)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range flags {
		switch {
		case known[f.name] && f.value != "":
			argv = append(argv, f.name, f.value)
		case known[f.name]:
			argv = append(argv, f.name)
		case slices.Contains(v.List("waive"), f.name):
			waived = append(waived, f.name)
		default:
			fail := unsupported("this build does not know %s, which secures %s", f.name, f.why)
			fail.Fix = "use a newer build, or waive the flag where the build predates the feature (setting waive)"
			return nil, nil, fail
		}
	}
	// A checkpoint's sampling defaults are pinned by every request as well; older builds have no such defaults.
	if known["--generation-config"] {
		argv = append(argv, "--generation-config", "vllm")
	}
	for _, a := range v.List("extra_args") {
		if name, _, _ := strings.Cut(a, "="); strings.HasPrefix(a, "--") && !known[name] {
			return nil, nil, unsupported("this build does not know %s of extra_args", name)
		}
		argv = append(argv, a)
	}
	return argv, waived, nil
}

func wanted(r matrix.StartRequest, v openai.Values, model string) ([]flag, error) {
	ctx, seqs := r.Limits.ContextTokens, max(1, r.Limits.Concurrency)
	switch {
	case ctx <= 0:
		return nil, &matrix.StartFailure{Code: "limits", Phase: "launch", Message: "the request names no context per request"}
	case r.ComputeDtype != "":
		return nil, unsupported("vllm.cpp has no flag for the compute dtype %s: the checkpoint and the device decide", r.ComputeDtype)
	case r.PrefixCache != "off" && r.PrefixCache != "":
		return nil, unsupported("prefix cache %s is not offered, only off", r.PrefixCache)
	}
	block := v.Int("block_size").Or(32)
	// Every request may fill its context, rounded up to blocks, and one block is the engine's own.
	blocks := (max(r.Limits.KVTokens, ctx*seqs)+block-1)/block + seqs + 1
	flags := []flag{
		{"--model", model, "the weights"},
		{"--served-model-name", r.ModelName, "the served name"},
		{"--host", r.Host, "the address"},
		{"--port", strconv.Itoa(r.Port), "the port"},
		{"--max-model-len", strconv.Itoa(ctx), "the context"},
		{"--max-num-seqs", strconv.Itoa(seqs), "the concurrency"},
		{"--block-size", strconv.Itoa(block), "the layout of the KV cache"},
		{"--num-blocks", strconv.Itoa(blocks), "room for every request"},
		{"--no-enable-prefix-caching", "", "that no prompt is cached"},
	}
	if d := v.Text("device"); d != "auto" {
		flags = append(flags, flag{"--device", d, "the device"})
	}
	if n, ok := v.Int("max_batched_tokens").Get(); ok {
		flags = append(flags, flag{"--max-num-batched-tokens", strconv.Itoa(n), "the setting max_batched_tokens"})
	}
	if d := v.Text("kv_dtype"); d != "" {
		flags = append(flags, flag{"--kv-cache-dtype", d, "the type of the KV cache"})
	}
	if r.Policy.Kind == matrix.Drafted {
		config := map[string]any{"method": r.Policy.Drafter, "num_speculative_tokens": r.Policy.Length}
		if method, path, ok := strings.Cut(r.Policy.Drafter, ":"); ok {
			maps.Copy(config, map[string]any{"method": method, "model": path})
		}
		b, err := json.Marshal(config)
		if err != nil {
			return nil, err
		}
		flags = append(flags, flag{"--speculative-config", string(b), "the drafter"})
	}
	return flags, nil
}

// weights returns what --model is given and the weight files behind it: a directory of safetensors, or a GGUF file.
func weights(a matrix.Artifact) (model string, files []string, err error) {
	bad := func(format string, args ...any) error {
		return &matrix.StartFailure{Code: "bad_artifact", Phase: "launch", Message: fmt.Sprintf(format, args...)}
	}
	if a.Path == "" {
		return "", nil, bad("%s has no local path", a.ID)
	}
	info, err := os.Stat(a.Path)
	if err != nil {
		return "", nil, bad("%v", err)
	}
	if !info.IsDir() {
		return a.Path, []string{a.Path}, nil
	}
	pattern := "*.safetensors"
	if a.Container == "gguf" {
		pattern = "*.gguf"
	}
	if files, err = filepath.Glob(filepath.Join(a.Path, pattern)); err != nil || len(files) == 0 {
		return "", nil, bad("%s holds no %s", a.Path, pattern)
	}
	if a.Container == "gguf" {
		if len(files) > 1 {
			return "", nil, bad("%s holds %d GGUF files: name one", a.Path, len(files))
		}
		return files[0], files, nil
	}
	return a.Path, files, nil
}
