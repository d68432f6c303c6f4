package main

import (
	"slices"

	"enginebroker/engines/adapter"
	"enginebroker/engines/openai"
	"enginebroker/engines/process"
	"enginebroker/matrix"
)

var rules = adapter.Rules{Schema: schema, Forbidden: forbidden, Own: own, Places: []string{"binary"}, More: check}

var schema = append([]matrix.Setting{
	{Name: "binary", Type: "path", Help: "path of the built server (build/examples/server)"},
	{Name: "device", Type: "string", Default: "auto", Values: []string{"auto", "cpu", "cuda"}, Help: "auto, cpu or cuda"},
	{Name: "block_size", Type: "int", Default: "32", Help: "tokens per block of the KV cache, a multiple of 16"},
	{Name: "max_batched_tokens", Type: "int", Help: "tokens per scheduling step; unset: the engine's default"},
	{Name: "kv_dtype", Type: "string", Help: "type of the KV cache; unset: the engine's default"},
}, slices.Concat(process.ContainerSettings, adapter.Common(""))...)

// forbidden are the arguments that would make the arm something else than it is recorded as, each with the reason.
var forbidden = map[string]string{"--mmproj": "text runs on one host only", "--kv-transfer-config": "text runs on one host only"}

// own are the flags that the adapter sets itself.
var own = []string{
	"--model", "--host", "--port", "--served-model-name", "--max-model-len", "--max-num-seqs", "--block-size", "--num-blocks", "--kv-cache-memory",
	"--enable-prefix-caching", "--no-enable-prefix-caching", "--enable-radix-attention", "--disable-radix-attention", "--kv-cache-dtype", "--device",
	"--max-num-batched-tokens", "--speculative-config", "--generation-config", "--enable-server-dev-mode",
}

// check finds the faults that only these settings can have.
func check(v openai.Values, _ bool, add func(field, message, fix string)) {
	if n, ok := v.Int("block_size").Get(); ok && (n <= 0 || n%16 != 0) {
		add("block_size", "is no multiple of 16", "")
	}
}
