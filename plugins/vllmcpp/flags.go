package main

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"enginebroker/engines/adapter"
	"enginebroker/engines/openai"
	"enginebroker/matrix"
)

// wanted are the flags of a fair run.
func wanted(r matrix.StartRequest, v openai.Values, model string, known map[string]bool) ([]adapter.Flag, error) {
	ctx, seqs := r.Limits.ContextTokens, max(1, r.Limits.Concurrency)
	if err := adapter.CheckRequest(r); err != nil {
		return nil, err
	}
	if r.ComputeDtype != "" {
		return nil, adapter.Unsupported("vllm.cpp has no flag for the compute dtype %s: the checkpoint and the device decide", r.ComputeDtype)
	}
	block := v.Int("block_size").Or(32)
	// Every request may fill its context, rounded up to blocks, and one block is the engine's own.
	blocks := (max(r.Limits.KVTokens, ctx*seqs)+block-1)/block + seqs + 1
	flags := []adapter.Flag{
		adapter.Arg("--model", model, "the weights"),
		adapter.Arg("--served-model-name", r.ModelName, "the served name"),
		adapter.Arg("--host", r.Host, "the address"),
		adapter.Arg("--port", strconv.Itoa(r.Port), "the port"),
		adapter.Arg("--max-model-len", strconv.Itoa(ctx), "the context"),
		adapter.Arg("--max-num-seqs", strconv.Itoa(seqs), "the concurrency"),
		adapter.Arg("--block-size", strconv.Itoa(block), "the layout of the KV cache"),
		adapter.Arg("--num-blocks", strconv.Itoa(blocks), "room for every request"),
		adapter.Switch("--no-enable-prefix-caching", "that no prompt is cached"),
	}
	if d := v.Text("device"); d != "auto" {
		flags = append(flags, adapter.Arg("--device", d, "the device"))
	}
	if n, ok := v.Int("max_batched_tokens").Get(); ok {
		flags = append(flags, adapter.Arg("--max-num-batched-tokens", strconv.Itoa(n), "the setting max_batched_tokens"))
	}
	if d := v.Text("kv_dtype"); d != "" {
		flags = append(flags, adapter.Arg("--kv-cache-dtype", d, "the type of the KV cache"))
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
		flags = append(flags, adapter.Arg("--speculative-config", string(b), "the drafter"))
	}
	// A checkpoint's sampling defaults are pinned by every request as well; older builds have no such defaults.
	if known["--generation-config"] {
		flags = append(flags, adapter.Arg("--generation-config", "vllm", "that the checkpoint sets no sampling defaults"))
	}
	return flags, nil
}

// weights returns what --model is given and the weight files behind it: a directory of safetensors, or a GGUF file.
func weights(a matrix.Artifact) (model string, files []string, err error) {
	info, err := os.Stat(a.Path)
	if a.Container == "gguf" || err != nil || !info.IsDir() {
		model, err = adapter.OpenGGUF(a)
		return model, []string{model}, err
	}
	if files, err = filepath.Glob(filepath.Join(a.Path, "*.safetensors")); err != nil || len(files) == 0 {
		return "", nil, adapter.BadArtifact("%s holds no *.safetensors", a.Path)
	}
	return a.Path, files, nil
}
