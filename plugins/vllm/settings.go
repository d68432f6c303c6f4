package main

import (
	"slices"

	"enginebroker/engines/adapter"
	"enginebroker/engines/openai"
	"enginebroker/engines/process"
	"enginebroker/matrix"
)

var rules = adapter.Rules{Schema: schema, Forbidden: forbidden, Own: own, Places: []string{"venv", "binary"}, OwnEnv: ownEnv, More: check}

var schema = append([]matrix.Setting{
	{Name: "venv", Type: "path", Help: "the virtual environment that holds vLLM; without venv and binary: $VLLM, vllm in PATH, " + place.Default},
	{Name: "binary", Type: "path", Help: "path of the vllm script, where it lies in no virtual environment"},
	{Name: "gpu_memory_utilization", Type: "string", Help: "fraction of the GPU's memory, above 0 and up to 1; on unified memory it reserves host memory"},
	{Name: "kv_cache_space", Type: "int", Default: "1", Help: "GiB of KV cache of a CPU build (VLLM_CPU_KVCACHE_SPACE)"},
	{Name: "kv_dtype", Type: "string", Default: "auto", Help: "type of the KV cache; auto: the checkpoint's or the model's"},
	{Name: "max_num_batched_tokens", Type: "int", Help: "tokens per step; unset: the engine's default"},
	{Name: "quantization", Type: "string", Help: "method to force; unset: what the checkpoint declares"},
	{Name: "enforce_eager", Type: "string", Default: "auto", Values: []string{"auto", "on", "off"}, Help: "auto (on with a CPU build, off on a GPU, where graphs are the engine's normal way), on or off"},
	{Name: "flashinfer_autotune", Type: "string", Default: "auto", Values: []string{"auto", "on", "off"}, Help: "auto (the engine's own choice, which is read back), on or off"},
}, slices.Concat(process.ContainerSettings, adapter.Common(""))...)

// forbidden are the arguments that would make the arm something else than it is recorded as, each with the reason.
var forbidden = map[string]string{
	"--nnodes": adapter.MultiNode, "--node-rank": adapter.MultiNode, "--master-": adapter.MultiNode, "--headless": adapter.MultiNode, "--data-parallel": adapter.MultiNode, "-dp": adapter.MultiNode,
	"--distributed-executor-backend": adapter.MultiNode, "--kv-transfer-config": adapter.MultiNode, "--ec-transfer-config": adapter.MultiNode,
	"--config": "a file of arguments hides what was asked",
	"--grpc":   "the timed client speaks HTTP", "--uds": "the timed client speaks TCP", "--ssl-": "the timed client speaks plain HTTP to this machine",
	"--root-path":        "the adapter needs the known paths",
	"--api-key":          "the server listens on this machine alone; a key would be on record",
	"--api-server-count": "several API servers share the port", "-asc": "several API servers share the port",
	"--disable-log-stats": "the counters of /metrics are evidence",
	"--enable-sleep-mode": "a server that sleeps pays for it in the next request",
	"--speculative-":      adapter.PolicyOnly, "-sc": adapter.PolicyOnly, "--spec-": adapter.PolicyOnly,
	"--override-generation-config": "sampling is the client's",
}

// own are the flags that the adapter sets itself.
var own = []string{
	"--model", "--served-model-name", "--host", "--port", "--dtype", "--max-model-len", "--max-num-seqs", "--seed", "--enable-prefix-caching", "--no-enable-prefix-caching",
	"--enable-prompt-tokens-details", "--no-enable-prompt-tokens-details", "--generation-config", "--stream-interval", "--kv-cache-dtype", "--gpu-memory-utilization",
	"--device-memory-utilization", "--max-num-batched-tokens", "--quantization", "-q", "--enforce-eager", "--no-enforce-eager", "--load-format", "--config-format",
	"--language-model-only", "--no-language-model-only", "--enable-flashinfer-autotune", "--no-enable-flashinfer-autotune",
}

// ownEnv are the variables that the adapter sets itself, or that must stay unset.
var ownEnv = adapter.OwnPythonEnv(map[string]string{
	"VLLM_SERVER_DEV_MODE": "the adapter needs /server_info", "VLLM_CPU_KVCACHE_SPACE": "set kv_cache_space", "VLLM_CACHE_ROOT": adapter.PrivateCache,
	"VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "a dead engine must end the server", "VLLM_SLEEP_WHEN_IDLE": "a server that sleeps pays for it in the next request",
	"VLLM_API_KEY": "the server listens on this machine alone",
})

// check finds the faults that only these settings can have.
func check(v openai.Values, _ bool, add func(field, message, fix string)) {
	if v.Text("binary") != "" && v.Text("venv") != "" {
		add("venv", "binary and venv are both given", "name one installation")
	}
	if msg := adapter.CheckFraction(v, "gpu_memory_utilization"); msg != "" {
		add("gpu_memory_utilization", msg, "")
	}
	for _, name := range []string{"kv_cache_space", "max_num_batched_tokens"} {
		if n, ok := v.Int(name).Get(); ok && n < 1 {
			add(name, "must be at least 1", "")
		}
	}
}
