package main

import (
	"maps"
	"strconv"
	"strings"

	"enginebroker/engines/adapter"
	"enginebroker/engines/openai"
	"enginebroker/matrix"
)

// wanted are the flags of a fair run.
func wanted(r matrix.StartRequest, v openai.Values, c adapter.Checkpoint, cpu bool) ([]adapter.Flag, error) {
	slots := max(1, r.Limits.Concurrency)
	if err := adapter.CheckRequest(r); err != nil {
		return nil, err
	}
	dtype := r.ComputeDtype
	if dtype == "" {
		dtype = "auto"
	}
	// Unset, the pool takes most of the memory: 12.9 GB of a box of 24 (engines.md D8).
	pool := max(r.Limits.KVTokens, slots*r.Limits.ContextTokens)
	flags := []adapter.Flag{
		adapter.Arg("--model-path", r.Artifact.Path, "the weights"),
		adapter.Arg("--served-model-name", r.ModelName, "the served name"),
		adapter.Arg("--host", r.Host, "the address"),
		adapter.Arg("--port", strconv.Itoa(r.Port), "the port"),
		adapter.Arg("--dtype", dtype, "the compute dtype"),
		adapter.Arg("--context-length", strconv.Itoa(r.Limits.ContextTokens), "the context"),
		adapter.Arg("--max-running-requests", strconv.Itoa(slots), "the concurrency"),
		adapter.Arg("--max-total-tokens", strconv.Itoa(pool), "the KV cache"),
		adapter.Arg("--random-seed", strconv.FormatInt(r.Seed, 10), "the seed"),
		adapter.Switch("--disable-radix-cache", "that no prompt is cached"),
		adapter.Switch("--enable-cache-report", "that cached tokens are counted in the answers"),
		adapter.Switch("--enable-metrics", "the counters of /metrics"),
		adapter.Arg("--sampling-defaults", "openai", "that the checkpoint sets no sampling defaults"),
		adapter.Arg("--stream-interval", "1", "that every token is sent when it is there"),
		adapter.Arg("--kv-cache-dtype", v.Text("kv_dtype"), "the type of the KV cache"),
	}
	backend := v.Text("attention_backend")
	if cpu {
		flags = append(flags, adapter.Arg("--device", "cpu", "a run without a GPU"))
		if backend == "" {
			backend = "torch_native" // the others need AMX or a GPU
		}
	}
	if backend != "" {
		flags = append(flags, adapter.Arg("--attention-backend", backend, "the attention kernels"))
	}
	if f := v.Text("mem_fraction_static"); f != "" {
		flags = append(flags, adapter.Arg("--mem-fraction-static", f, "the setting mem_fraction_static"))
	}
	if n, ok := v.Int("chunked_prefill_size").Get(); ok {
		flags = append(flags, adapter.Arg("--chunked-prefill-size", strconv.Itoa(n), "the setting chunked_prefill_size"))
	}
	if q := v.Text("quantization"); q != "" {
		flags = append(flags, adapter.Arg("--quantization", q, "the setting quantization"))
	}
	if v.Text("flashinfer_autotune") == "off" {
		flags = append(flags, adapter.Switch("--disable-flashinfer-autotune", "the setting flashinfer_autotune"))
	}
	if c.Vision {
		flags = append(flags, adapter.Switch("--language-only", "a text run without the vision tower"))
	}
	if r.Policy.Kind == matrix.Drafted {
		more, err := speculation(r.Policy)
		if err != nil {
			return nil, err
		}
		flags = append(flags, more...)
	}
	return flags, nil
}

// speculation translates the policy: one chain of Length drafted tokens per step. A drafter is an algorithm of the build (mtp
// is its NEXTN, ngram), an algorithm and its model (eagle3:PATH), or the path of a draft model.
func speculation(p matrix.Policy) ([]adapter.Flag, error) {
	const why = "the drafter"
	if p.Length < 1 || p.Drafter == "" {
		return nil, adapter.Unsupported("the policy %s names no drafter or no draft length", p)
	}
	method, model, _ := strings.Cut(p.Drafter, ":")
	if strings.HasPrefix(p.Drafter, "/") {
		method, model = "standalone", p.Drafter
	}
	if method == "mtp" {
		method = "nextn"
	}
	method = strings.ToUpper(method)
	flags := []adapter.Flag{adapter.Arg("--speculative-algorithm", method, why)}
	if model != "" {
		flags = append(flags, adapter.Arg("--speculative-draft-model-path", model, why))
	}
	if method == "NGRAM" {
		return append(flags, adapter.Arg("--speculative-num-draft-tokens", strconv.Itoa(p.Length), why)), nil
	}
	// The count of draft tokens includes the verified one.
	return append(flags, adapter.Arg("--speculative-num-steps", strconv.Itoa(p.Length), why), adapter.Arg("--speculative-eagle-topk", "1", why),
		adapter.Arg("--speculative-num-draft-tokens", strconv.Itoa(p.Length+1), why)), nil
}

// environment is what the server gets. Without the variable, --device cpu looks for vLLM's kernels.
func environment(r matrix.StartRequest, v openai.Values, in install, cpu bool) (map[string]string, error) {
	key, err := in.key()
	if err != nil {
		return nil, err
	}
	env, err := in.Env(r.CacheDir, key, nil)
	if err != nil {
		return nil, err
	}
	if cpu {
		env["SGLANG_USE_CPU_ENGINE"] = "1"
	}
	maps.Copy(env, v.Map("env"))
	return env, nil
}
