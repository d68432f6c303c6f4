package main

import (
	"slices"

	"enginebroker/engines/adapter"
	"enginebroker/engines/openai"
	"enginebroker/engines/process"
	"enginebroker/matrix"
)

var rules = adapter.Rules{Schema: schema, Forbidden: forbidden, Own: own, Places: []string{"venv", "python"}, OwnEnv: ownEnv, More: check}

var schema = append([]matrix.Setting{
	{Name: "venv", Type: "path", Help: "the virtual environment that holds SGLang; without venv and python: $SGLANG, beside sglang in PATH, " + place.Default},
	{Name: "python", Type: "path", Help: "the interpreter that has SGLang, where it lies in no virtual environment"},
	{Name: "device", Type: "string", Default: "auto", Values: []string{"auto", "cuda", "cpu"}, Help: "auto (cuda where an NVIDIA device is visible, or in an image with gpu), cuda or cpu"},
	{Name: "attention_backend", Type: "string", Help: "attention kernels; unset: torch_native on a CPU, the engine's own choice on a GPU"},
	{Name: "mem_fraction_static", Type: "string", Help: "fraction of memory for weights and KV cache, above 0 and up to 1"},
	{Name: "kv_dtype", Type: "string", Default: "auto", Help: "type of the KV cache; auto: the checkpoint's or the model's"},
	{Name: "chunked_prefill_size", Type: "int", Help: "tokens of one prefill step; unset: the engine's default"},
	{Name: "quantization", Type: "string", Help: "method to force; unset: what the checkpoint declares"},
	{Name: "flashinfer_autotune", Type: "string", Default: "on", Values: []string{"on", "off"}, Help: "on (the engine's default) or off; tactics found anew at each boot alone moved one configuration by a fifth"},
}, slices.Concat(process.ContainerSettings, adapter.Common(""))...)

// forbidden are the arguments that would make the arm something else than it is recorded as, each with the reason.
var forbidden = map[string]string{
	"--nnodes": adapter.MultiNode, "--node-rank": adapter.MultiNode, "--dist-init-addr": adapter.MultiNode, "--nccl-init-addr": adapter.MultiNode, "--disaggregation-": adapter.MultiNode,
	"--dp-size": adapter.MultiNode, "--data-parallel-size": adapter.MultiNode, "--use-ray": adapter.MultiNode,
	"--config": "a file of arguments hides what was asked",
	"--grpc":   "the timed client speaks HTTP", "--smg-": "the timed client speaks HTTP", "--ssl-": "the timed client speaks plain HTTP to this machine",
	"--fastapi-root-path": "the adapter needs the known paths",
	"--api-key":           "the server listens on this machine alone; a key would be on record", "--admin-api-key": "the server listens on this machine alone; a key would be on record",
	"--sleep-on-idle":             "a server that sleeps pays for it in the next request",
	"--allow-auto-truncate":       "a prompt that is shortened is another prompt",
	"--speculative-":              adapter.PolicyOnly,
	"--preferred-sampling-params": "sampling is the client's",
	"--skip-tokenizer-init":       "the client sends text", "--is-embedding": "the model generates",
}

// own are the flags that the adapter sets itself.
var own = []string{
	"--model-path", "--model", "--served-model-name", "--host", "--port", "--dtype", "--context-length", "--max-running-requests", "--max-total-tokens", "--random-seed",
	"--disable-radix-cache", "--enable-cache-report", "--enable-metrics", "--sampling-defaults", "--stream-interval", "--kv-cache-dtype", "--mem-fraction-static",
	"--chunked-prefill-size", "--quantization", "--device", "--attention-backend", "--language-only", "--disable-flashinfer-autotune", "--load-format",
}

// ownEnv are the variables that the adapter sets itself, or that must stay unset.
var ownEnv = adapter.OwnPythonEnv(map[string]string{"SGLANG_USE_CPU_ENGINE": "set device", "SGLANG_ENABLE_GRPC": "the timed client speaks HTTP"})

// check finds the faults that only these settings can have.
func check(v openai.Values, _ bool, add func(field, message, fix string)) {
	if v.Text("python") != "" && v.Text("venv") != "" {
		add("venv", "python and venv are both given", "name one installation")
	}
	if msg := adapter.CheckFraction(v, "mem_fraction_static"); msg != "" {
		add("mem_fraction_static", msg, "")
	}
}
