package main

import (
	"slices"
	"strconv"
	"strings"

	"enginebroker/engines"
	"enginebroker/engines/openai"
	"enginebroker/matrix"
)

var schema = []matrix.Setting{
	{Name: "venv", Type: "path", Help: "the virtual environment that holds vLLM; without venv and binary: $VLLM, vllm in PATH, " + defaultVenv},
	{Name: "binary", Type: "path", Help: "path of the vllm script, where it lies in no virtual environment"},
	{Name: "gpu_memory_utilization", Type: "string", Help: "fraction of the GPU's memory, above 0 and up to 1; on unified memory it reserves host memory"},
	{Name: "kv_cache_space", Type: "int", Default: "1", Help: "GiB of KV cache of a CPU build (VLLM_CPU_KVCACHE_SPACE)"},
	{Name: "kv_dtype", Type: "string", Default: "auto", Help: "type of the KV cache; auto: the checkpoint's or the model's"},
	{Name: "max_num_batched_tokens", Type: "int", Help: "tokens per step; unset: the engine's default"},
	{Name: "quantization", Type: "string", Help: "method to force; unset: what the checkpoint declares"},
	{Name: "enforce_eager", Type: "string", Default: "auto", Values: []string{"auto", "on", "off"}, Help: "auto (on with a CPU build, off on a GPU, where graphs are the engine's normal way), on or off"},
	{Name: "flashinfer_autotune", Type: "string", Default: "auto", Values: []string{"auto", "on", "off"}, Help: "auto (the engine's own choice, which is read back), on or off"},
	{Name: "extra_args", Type: "list", Help: "further arguments, none of those that the adapter sets itself"},
	{Name: "waive", Type: "list", Help: "flags of a fair run that this build may lack because it predates the feature"},
	{Name: "env", Type: "map", Help: "variables for the server"},
	{Name: "ready_timeout", Type: "duration", Help: "limit of a start; unset: the run's"},
	{Name: "attach", Type: "string", Help: "base URL of a running server; it is described, never started, stopped or compared"},
}

// forbidden are the arguments that would make the arm something else than it is recorded as, each with the reason.
var forbidden = []struct{ prefix, why string }{
	{"--nnodes", multiNode}, {"--node-rank", multiNode}, {"--master-", multiNode}, {"--headless", multiNode}, {"--data-parallel", multiNode}, {"-dp", multiNode},
	{"--distributed-executor-backend", multiNode}, {"--kv-transfer-config", multiNode}, {"--ec-transfer-config", multiNode},
	{"--config", "a file of arguments hides what was asked"},
	{"--grpc", "the timed client speaks HTTP"}, {"--uds", "the timed client speaks TCP"}, {"--ssl-", "the timed client speaks plain HTTP to this machine"},
	{"--root-path", "the adapter needs the known paths"},
	{"--api-key", "the server listens on this machine alone; a key would be on record"},
	{"--api-server-count", "several API servers share the port"}, {"-asc", "several API servers share the port"},
	{"--disable-log-stats", "the counters of /metrics are evidence"},
	{"--enable-sleep-mode", "a server that sleeps pays for it in the next request"},
	{"--speculative-", policyOnly}, {"-sc", policyOnly}, {"--spec-", policyOnly},
	{"--override-generation-config", "sampling is the client's"},
}

const (
	multiNode  = "servers over several hosts or ranks are not supported (MULTI_NODE_UNSUPPORTED)"
	policyOnly = "speculation is the policy of the instance, not an argument"
)

// own are the flags that the adapter sets itself.
var own = []string{
	"--model", "--served-model-name", "--host", "--port", "--dtype", "--max-model-len", "--max-num-seqs", "--seed", "--enable-prefix-caching", "--no-enable-prefix-caching",
	"--enable-prompt-tokens-details", "--no-enable-prompt-tokens-details", "--generation-config", "--stream-interval", "--kv-cache-dtype", "--gpu-memory-utilization",
	"--device-memory-utilization", "--max-num-batched-tokens", "--quantization", "-q", "--enforce-eager", "--no-enforce-eager", "--load-format", "--config-format",
	"--language-model-only", "--no-language-model-only", "--enable-flashinfer-autotune", "--no-enable-flashinfer-autotune",
}

// ownEnv are the variables that the adapter sets itself, or that must stay unset.
var ownEnv = map[string]string{
	"VLLM_SERVER_DEV_MODE": "the adapter needs /server_info", "VLLM_CPU_KVCACHE_SPACE": "set kv_cache_space", "VLLM_CACHE_ROOT": privateCache, "TRITON_CACHE_DIR": privateCache,
	"TORCHINDUCTOR_CACHE_DIR": privateCache, "FLASHINFER_WORKSPACE_BASE": privateCache, "TILELANG_CACHE_DIR": privateCache, "CUDA_CACHE_PATH": privateCache, "VIRTUAL_ENV": "set venv",
	"VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "a dead engine must end the server", "VLLM_SLEEP_WHEN_IDLE": "a server that sleeps pays for it in the next request",
	"VLLM_API_KEY": "the server listens on this machine alone", "PYTHONPATH": "it would shadow the packages that are recorded", "PYTHONHOME": "it would replace the interpreter that is recorded",
}

const privateCache = "compile caches are private to the build"

// canonicalFlag undoes the spellings vLLM takes for one flag: underscores, =value, and .key of a JSON argument.
func canonicalFlag(a string) string {
	name, _, _ := strings.Cut(a, "=")
	if !strings.HasPrefix(name, "--") {
		return name
	}
	name, _, _ = strings.Cut(name, ".")
	return strings.TrimSuffix(strings.ReplaceAll(name, "_", "-"), "+")
}

// isFlag tells a flag from a value: -1 is a number.
func isFlag(a string) bool { return len(a) > 1 && a[0] == '-' && (a[1] < '0' || a[1] > '9') }

// check finds every fault of the settings that needs no look at the disk.
func check(s engines.Settings) []engines.FieldError {
	faults := openai.CheckSettings(schema, s)
	v := openai.NewValues(schema, s)
	add := func(field, msg, fix string) {
		faults = append(faults, engines.FieldError{Field: field, Message: msg, Fix: fix})
	}
	if s["binary"] != "" && s["venv"] != "" {
		add("venv", "binary and venv are both given", "name one installation")
	}
	if u := s["attach"]; u != "" {
		if msg := openai.CheckURL(u); msg != "" {
			add("attach", msg, "")
		}
	}
	if u := s["gpu_memory_utilization"]; u != "" {
		if f, err := strconv.ParseFloat(u, 64); err != nil || !(f > 0 && f <= 1) {
			add("gpu_memory_utilization", strconv.Quote(u)+" is not a fraction above 0 and up to 1", "")
		}
	}
	for _, name := range []string{"kv_cache_space", "max_num_batched_tokens"} {
		if n, ok := v.Int(name).Get(); ok && n < 1 {
			add(name, "must be at least 1", "")
		}
	}
	for _, a := range v.List("extra_args") {
		name := canonicalFlag(a)
		for _, f := range forbidden {
			if strings.HasPrefix(name, f.prefix) {
				add("extra_args", a+": "+f.why, "remove it")
				break
			}
		}
		if slices.Contains(own, name) {
			add("extra_args", a+": the adapter sets this from the workload and the other settings", "remove it")
		}
	}
	env := v.Map("env")
	for _, name := range sortedKeys(env) {
		if why, ok := ownEnv[name]; ok {
			add("env."+name, "is not taken here: "+why, "remove it")
		}
	}
	return faults
}
