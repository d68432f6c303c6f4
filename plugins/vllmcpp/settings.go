package main

import (
	"slices"
	"strings"

	"enginebroker/engines"
	"enginebroker/engines/openai"
	"enginebroker/matrix"
)

var schema = []matrix.Setting{
	{Name: "binary", Type: "path", Help: "path of the built server (build/examples/server)"},
	{Name: "device", Type: "string", Default: "auto", Values: []string{"auto", "cpu", "cuda"}, Help: "auto, cpu or cuda"},
	{Name: "block_size", Type: "int", Default: "32", Help: "tokens per block of the KV cache, a multiple of 16"},
	{Name: "max_batched_tokens", Type: "int", Help: "tokens per scheduling step; unset: the engine's default"},
	{Name: "kv_dtype", Type: "string", Help: "type of the KV cache; unset: the engine's default"},
	{Name: "extra_args", Type: "list", Help: "further arguments, none of those that the adapter sets itself"},
	{Name: "waive", Type: "list", Help: "flags of a fair run that this build may lack because it predates the feature"},
	{Name: "env", Type: "map", Help: "variables for the server"},
	{Name: "ready_timeout", Type: "duration", Help: "limit of a start; unset: the run's"},
	{Name: "attach", Type: "string", Help: "base URL of a running server; it is described, never started, stopped or compared"},
}

// own are the flags that the adapter sets itself.
var own = []string{
	"--model", "--host", "--port", "--served-model-name", "--max-model-len", "--max-num-seqs", "--block-size", "--num-blocks", "--kv-cache-memory",
	"--enable-prefix-caching", "--no-enable-prefix-caching", "--enable-radix-attention", "--disable-radix-attention", "--kv-cache-dtype", "--device",
	"--max-num-batched-tokens", "--speculative-config", "--generation-config", "--enable-server-dev-mode",
}

func check(s engines.Settings) []engines.FieldError {
	faults := openai.CheckSettings(schema, s)
	v := openai.NewValues(schema, s)
	add := func(field, msg, fix string) {
		faults = append(faults, engines.FieldError{Field: field, Message: msg, Fix: fix})
	}
	if u := s["attach"]; u != "" {
		if msg := openai.CheckURL(u); msg != "" {
			add("attach", msg, "")
		}
	}
	if n, ok := v.Int("block_size").Get(); ok && (n <= 0 || n%16 != 0) {
		add("block_size", "is no multiple of 16", "")
	}
	for _, a := range v.List("extra_args") {
		name, _, _ := strings.Cut(a, "=")
		switch {
		case slices.Contains(own, name):
			add("extra_args", a+": the adapter sets this from the workload and the other settings", "remove it")
		case name == "--mmproj" || name == "--kv-transfer-config":
			add("extra_args", a+": text runs on one host only", "remove it")
		}
	}
	return faults
}
