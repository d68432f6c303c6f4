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
	{Name: "venv", Type: "path", Help: "the virtual environment that holds SGLang; without venv and python: $SGLANG, beside sglang in PATH, " + defaultVenv},
	{Name: "python", Type: "path", Help: "the interpreter that has SGLang, where it lies in no virtual environment"},
	{Name: "device", Type: "string", Default: "auto", Values: []string{"auto", "cuda", "cpu"}, Help: "auto (cuda where an NVIDIA device is visible), cuda or cpu"},
	{Name: "attention_backend", Type: "string", Help: "attention kernels; unset: torch_native on a CPU, the engine's own choice on a GPU"},
	{Name: "mem_fraction_static", Type: "string", Help: "fraction of memory for weights and KV cache, above 0 and up to 1"},
	{Name: "kv_dtype", Type: "string", Default: "auto", Help: "type of the KV cache; auto: the checkpoint's or the model's"},
	{Name: "chunked_prefill_size", Type: "int", Help: "tokens of one prefill step; unset: the engine's default"},
	{Name: "quantization", Type: "string", Help: "method to force; unset: what the checkpoint declares"},
	{Name: "flashinfer_autotune", Type: "string", Default: "on", Values: []string{"on", "off"}, Help: "on (the engine's default) or off; tactics found anew at each boot alone moved one configuration by a fifth"},
	{Name: "extra_args", Type: "list", Help: "further arguments, none of those that the adapter sets itself"},
	{Name: "waive", Type: "list", Help: "flags of a fair run that this build may lack because it predates the feature"},
	{Name: "env", Type: "map", Help: "variables for the server"},
	{Name: "ready_timeout", Type: "duration", Help: "limit of a start; unset: the run's"},
	{Name: "attach", Type: "string", Help: "base URL of a running server; it is described, never started, stopped or compared"},
}

// forbidden are the arguments that would make the arm something else than it is recorded as, each with the reason.
var forbidden = []struct{ prefix, why string }{
	{"--nnodes", multiNode}, {"--node-rank", multiNode}, {"--dist-init-addr", multiNode}, {"--nccl-init-addr", multiNode}, {"--disaggregation-", multiNode},
	{"--dp-size", multiNode}, {"--data-parallel-size", multiNode}, {"--use-ray", multiNode},
	{"--config", "a file of arguments hides what was asked"},
	{"--grpc", "the timed client speaks HTTP"}, {"--smg-", "the timed client speaks HTTP"}, {"--ssl-", "the timed client speaks plain HTTP to this machine"},
	{"--fastapi-root-path", "the adapter needs the known paths"},
	{"--api-key", "the server listens on this machine alone; a key would be on record"}, {"--admin-api-key", "the server listens on this machine alone; a key would be on record"},
	{"--sleep-on-idle", "a server that sleeps pays for it in the next request"},
	{"--allow-auto-truncate", "a prompt that is shortened is another prompt"},
	{"--speculative-", policyOnly},
	{"--preferred-sampling-params", "sampling is the client's"},
	{"--skip-tokenizer-init", "the client sends text"}, {"--is-embedding", "the model generates"},
}

const (
	multiNode  = "servers over several hosts or ranks are not supported (MULTI_NODE_UNSUPPORTED)"
	policyOnly = "speculation is the policy of the instance, not an argument"
)

// own are the flags that the adapter sets itself.
var own = []string{
	"--model-path", "--model", "--served-model-name", "--host", "--port", "--dtype", "--context-length", "--max-running-requests", "--max-total-tokens", "--random-seed",
	"--disable-radix-cache", "--enable-cache-report", "--enable-metrics", "--sampling-defaults", "--stream-interval", "--kv-cache-dtype", "--mem-fraction-static",
	"--chunked-prefill-size", "--quantization", "--device", "--attention-backend", "--language-only", "--disable-flashinfer-autotune", "--load-format",
}

// ownEnv are the variables that the adapter sets itself, or that must stay unset.
var ownEnv = map[string]string{
	"SGLANG_USE_CPU_ENGINE": "set device", "TRITON_CACHE_DIR": privateCache, "TORCHINDUCTOR_CACHE_DIR": privateCache, "FLASHINFER_WORKSPACE_BASE": privateCache,
	"TILELANG_CACHE_DIR": privateCache, "CUDA_CACHE_PATH": privateCache, "VIRTUAL_ENV": "set venv",
	"SGLANG_ENABLE_GRPC": "the timed client speaks HTTP", "PYTHONPATH": "it would shadow the packages that are recorded", "PYTHONHOME": "it would replace the interpreter that is recorded",
}

const privateCache = "compile caches are private to the build"

// canonicalFlag is the flag of an argument, without =value and with dashes.
func canonicalFlag(a string) string {
	name, _, _ := strings.Cut(a, "=")
	if !strings.HasPrefix(name, "--") {
		return name
	}
	return strings.ReplaceAll(name, "_", "-")
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
	if s["python"] != "" && s["venv"] != "" {
		add("venv", "python and venv are both given", "name one installation")
	}
	if u := s["attach"]; u != "" {
		if msg := openai.CheckURL(u); msg != "" {
			add("attach", msg, "")
		}
	}
	if u := s["mem_fraction_static"]; u != "" {
		if f, err := strconv.ParseFloat(u, 64); err != nil || !(f > 0 && f <= 1) {
			add("mem_fraction_static", strconv.Quote(u)+" is not a fraction above 0 and up to 1", "")
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
