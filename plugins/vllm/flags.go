package main

import (
	"encoding/json"
	"maps"
	"strconv"
	"strings"

	"enginebroker/engines/adapter"
	"enginebroker/engines/openai"
	"enginebroker/matrix"
)

// wanted are the flags of a fair run.
func wanted(r matrix.StartRequest, v openai.Values, w weights, cpu bool) ([]adapter.Flag, error) {
	if err := adapter.CheckRequest(r); err != nil {
		return nil, err
	}
	dtype := r.ComputeDtype
	if dtype == "" {
		dtype = "auto"
	}
	flags := []adapter.Flag{
		adapter.Arg("--served-model-name", r.ModelName, "the served name"),
		adapter.Arg("--host", r.Host, "the address"),
		adapter.Arg("--port", strconv.Itoa(r.Port), "the port"),
		adapter.Arg("--dtype", dtype, "the compute dtype"),
		adapter.Arg("--max-model-len", strconv.Itoa(r.Limits.ContextTokens), "the context"),
		adapter.Arg("--max-num-seqs", strconv.Itoa(max(1, r.Limits.Concurrency)), "the concurrency"),
		adapter.Arg("--seed", strconv.FormatInt(r.Seed, 10), "the seed"),
		adapter.Switch("--no-enable-prefix-caching", "that no prompt is cached"),
		adapter.Switch("--enable-prompt-tokens-details", "that cached tokens are counted in every answer"),
		adapter.Arg("--generation-config", "vllm", "that the checkpoint sets no sampling defaults"),
		adapter.Arg("--stream-interval", "1", "that every token is sent when it is there"),
		adapter.Arg("--kv-cache-dtype", v.Text("kv_dtype"), "the type of the KV cache"),
	}
	if cpu && v.Text("enforce_eager") == "auto" || v.Text("enforce_eager") == "on" {
		flags = append(flags, adapter.Switch("--enforce-eager", "a start without compilation"))
	}
	if u := v.Text("gpu_memory_utilization"); u != "" {
		flags = append(flags, adapter.Arg("--gpu-memory-utilization", u, "the setting gpu_memory_utilization"))
	}
	if n, ok := v.Int("max_num_batched_tokens").Get(); ok {
		flags = append(flags, adapter.Arg("--max-num-batched-tokens", strconv.Itoa(n), "the setting max_num_batched_tokens"))
	}
	if q := v.Text("quantization"); q != "" {
		flags = append(flags, adapter.Arg("--quantization", q, "the setting quantization"))
	}
	switch v.Text("flashinfer_autotune") {
	case "on":
		flags = append(flags, adapter.Switch("--enable-flashinfer-autotune", "the setting flashinfer_autotune"))
	case "off":
		flags = append(flags, adapter.Switch("--no-enable-flashinfer-autotune", "the setting flashinfer_autotune"))
	}
	if w.vision {
		flags = append(flags, adapter.Switch("--language-model-only", "a text run without the vision tower"))
	}
	if w.gguf {
		flags = append(flags, adapter.Arg("--load-format", "gguf", "the container"), adapter.Arg("--config-format", "gguf", "the container"))
	}
	if r.Policy.Kind == matrix.Drafted {
		c, err := speculation(r.Policy)
		if err != nil {
			return nil, err
		}
		flags = append(flags, adapter.Arg("--speculative-config", c, "the drafter"))
	}
	return flags, nil
}

// speculation translates the policy. A drafter is a method of the build (mtp, ngram), a method and its model (eagle3:PATH),
// or the path of a draft model.
func speculation(p matrix.Policy) (string, error) {
	if p.Length < 1 {
		return "", adapter.Unsupported("the policy %s names no draft length", p)
	}
	c := map[string]any{"num_speculative_tokens": p.Length}
	method, model, _ := strings.Cut(p.Drafter, ":")
	switch {
	case strings.HasPrefix(p.Drafter, "/"):
		c["method"], c["model"] = "draft_model", p.Drafter
	case model != "":
		c["method"], c["model"] = method, model
	case method != "":
		c["method"] = method
	default:
		return "", adapter.Unsupported("the policy %s names no drafter", p)
	}
	if method == "ngram" {
		c["prompt_lookup_max"] = p.Length
	}
	b, err := json.Marshal(c)
	return string(b), err
}

// environment is what the server gets: the route to its configuration, and where it keeps the KV cache of a CPU.
func environment(r matrix.StartRequest, v openai.Values, in install) (map[string]string, error) {
	key, err := in.key()
	if err != nil {
		return nil, err
	}
	env, err := in.Env(r.CacheDir, key, map[string]string{"VLLM_CACHE_ROOT": "vllm"})
	if err != nil {
		return nil, err
	}
	maps.Copy(env, map[string]string{"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"})
	if in.cpu() {
		env["VLLM_CPU_KVCACHE_SPACE"] = v.Text("kv_cache_space")
	}
	maps.Copy(env, v.Map("env"))
	return env, nil
}

// weights is an artifact as the engine opens it.
type weights struct {
	model  string   // the directory, or the file of a GGUF
	files  []string // of weights, absolute
	gguf   bool
	vision bool // the checkpoint has a vision tower
}

// open finds the weight files of an artifact and refuses what cannot be one, before minutes are spent on a start.
func open(a matrix.Artifact, in install) (weights, error) {
	if a.Container != "gguf" {
		c, err := adapter.OpenSafetensors(a, "vLLM")
		return weights{model: a.Path, files: c.Files, vision: c.Vision}, err
	}
	if in.Dists[ggufPlugin] == "" {
		return weights{}, adapter.BadArtifact("vLLM opens GGUF only with the distribution %s, which %s does not hold", ggufPlugin, in.Site)
	}
	file, err := adapter.OpenGGUF(a)
	return weights{model: file, files: []string{file}, gguf: true}, err
}
