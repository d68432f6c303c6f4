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
	name  string
	value string // empty: a switch
	why   string // what it secures
}

func unsupported(format string, args ...any) *matrix.StartFailure {
	return &matrix.StartFailure{Code: "unsupported_flag", Phase: "launch", Message: fmt.Sprintf(format, args...)}
}

// arguments translates a start request. Every flag must be known to the build, or be waived: a flag that is left out in
// silence would leave the engine's default in force.
func arguments(r matrix.StartRequest, v openai.Values, w weights, cpu bool, known map[string]bool) (argv, waived []string, err error) {
	flags, err := wanted(r, v, w, cpu)
	if err != nil {
		return nil, nil, err
	}
	waive := v.List("waive")
	argv = []string{"serve", w.model}
	for _, f := range flags {
		switch {
		case known[f.name] && f.value != "":
			argv = append(argv, f.name, f.value)
		case known[f.name]:
			argv = append(argv, f.name)
		case slices.Contains(waive, f.name):
			waived = append(waived, f.name)
		default:
			x := unsupported("this build does not know %s, which secures %s", f.name, f.why)
			x.Fix = "use another build, or waive the flag where the build predates the feature (setting waive)"
			return nil, nil, x
		}
	}
	for _, a := range v.List("extra_args") {
		if name := canonicalFlag(a); isFlag(a) && !known[name] {
			x := unsupported("this build does not know %s of extra_args", name)
			x.Fix = "see vllm serve --help=all"
			return nil, nil, x
		}
		argv = append(argv, a)
	}
	return argv, waived, nil
}

func wanted(r matrix.StartRequest, v openai.Values, w weights, cpu bool) ([]flag, error) {
	if r.Limits.ContextTokens <= 0 {
		return nil, &matrix.StartFailure{Code: "limits", Phase: "launch", Message: "the request names no context per request"}
	}
	if r.PrefixCache != "off" && r.PrefixCache != "" {
		return nil, unsupported("prefix cache %s is not offered, only off", r.PrefixCache)
	}
	dtype := r.ComputeDtype
	if dtype == "" {
		dtype = "auto"
	}
	flags := []flag{
		{"--served-model-name", r.ModelName, "the served name"},
		{"--host", r.Host, "the address"},
		{"--port", strconv.Itoa(r.Port), "the port"},
		{"--dtype", dtype, "the compute dtype"},
		{"--max-model-len", strconv.Itoa(r.Limits.ContextTokens), "the context"},
		{"--max-num-seqs", strconv.Itoa(max(1, r.Limits.Concurrency)), "the concurrency"},
		{"--seed", strconv.FormatInt(r.Seed, 10), "the seed"},
		{"--no-enable-prefix-caching", "", "that no prompt is cached"},
		{"--enable-prompt-tokens-details", "", "that cached tokens are counted in every answer"},
		{"--generation-config", "vllm", "that the checkpoint sets no sampling defaults"},
		{"--stream-interval", "1", "that every token is sent when it is there"},
		{"--kv-cache-dtype", v.Text("kv_dtype"), "the type of the KV cache"},
	}
	if cpu && v.Text("enforce_eager") == "auto" || v.Text("enforce_eager") == "on" {
		flags = append(flags, flag{"--enforce-eager", "", "a start without compilation"})
	}
	if u := v.Text("gpu_memory_utilization"); u != "" {
		flags = append(flags, flag{"--gpu-memory-utilization", u, "the setting gpu_memory_utilization"})
	}
	if n, ok := v.Int("max_num_batched_tokens").Get(); ok {
		flags = append(flags, flag{"--max-num-batched-tokens", strconv.Itoa(n), "the setting max_num_batched_tokens"})
	}
	if q := v.Text("quantization"); q != "" {
		flags = append(flags, flag{"--quantization", q, "the setting quantization"})
	}
	switch v.Text("flashinfer_autotune") {
	case "on":
		flags = append(flags, flag{"--enable-flashinfer-autotune", "", "the setting flashinfer_autotune"})
	case "off":
		flags = append(flags, flag{"--no-enable-flashinfer-autotune", "", "the setting flashinfer_autotune"})
	}
	if w.vision {
		flags = append(flags, flag{"--language-model-only", "", "a text run without the vision tower"})
	}
	if w.gguf {
		flags = append(flags, flag{"--load-format", "gguf", "the container"}, flag{"--config-format", "gguf", "the container"})
	}
	if r.Policy.Kind == matrix.Drafted {
		c, err := speculation(r.Policy)
		if err != nil {
			return nil, err
		}
		flags = append(flags, flag{"--speculative-config", c, "the drafter"})
	}
	return flags, nil
}

// speculation translates the policy. A drafter is a method of the build (mtp, ngram), a method and its model (eagle3:PATH),
// or the path of a draft model.
func speculation(p matrix.Policy) (string, error) {
	if p.Length < 1 {
		return "", unsupported("the policy %s names no draft length", p)
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
		return "", unsupported("the policy %s names no drafter", p)
	}
	if method == "ngram" {
		c["prompt_lookup_max"] = p.Length
	}
	b, err := json.Marshal(c)
	return string(b), err
}

// environment is what the server gets beside the inherited allow-list: its own compile caches, no network, no telemetry.
func environment(r matrix.StartRequest, v openai.Values, in install) (map[string]string, error) {
	key, err := in.key()
	if err != nil {
		return nil, err
	}
	env := map[string]string{
		"VIRTUAL_ENV": in.prefix, "PATH": filepath.Dir(in.python) + ":" + os.Getenv("PATH"),
		"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
	}
	caches := filepath.Join(r.CacheDir, "compile-"+key[:16])
	for name, dir := range map[string]string{"VLLM_CACHE_ROOT": "vllm", "TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor",
		"FLASHINFER_WORKSPACE_BASE": "flashinfer", "TILELANG_CACHE_DIR": "tilelang", "CUDA_CACHE_PATH": "cuda"} {
		env[name] = filepath.Join(caches, dir)
		if err := os.MkdirAll(env[name], 0o755); err != nil {
			return nil, fmt.Errorf("compile cache: %w", err)
		}
	}
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
	var w weights
	bad := func(format string, args ...any) (weights, error) {
		return w, &matrix.StartFailure{Code: "bad_artifact", Phase: "launch", Message: fmt.Sprintf(format, args...)}
	}
	if a.Path == "" {
		return bad("%s has no local path", a.ID)
	}
	w.gguf = a.Container == "gguf"
	switch {
	case w.gguf && in.dists[ggufPlugin] == "":
		return bad("vLLM opens GGUF only with the distribution %s, which %s does not hold", ggufPlugin, in.site)
	case !w.gguf && a.Container != "" && a.Container != "safetensors":
		return bad("vLLM opens safetensors, and %s is %s", a.ID, a.Container)
	}
	info, err := os.Stat(a.Path)
	if err != nil {
		return bad("%v", err)
	}
	w.model = a.Path
	pattern := map[bool]string{true: "*.gguf", false: "*.safetensors"}[w.gguf]
	if w.gguf && !info.IsDir() {
		w.files = []string{a.Path}
		return w, nil
	}
	if !info.IsDir() {
		return bad("%s is a file: vLLM opens the directory that holds config.json and the weights", a.Path)
	}
	for _, f := range a.Files {
		if ok, _ := filepath.Match(pattern, filepath.Base(f.Path)); ok { // a fixed pattern cannot be malformed
			w.files = append(w.files, filepath.Join(a.Path, f.Path))
		}
	}
	if len(w.files) == 0 {
		w.files, _ = filepath.Glob(filepath.Join(a.Path, pattern))
	}
	if len(w.files) == 0 {
		return bad("%s holds no %s", a.Path, pattern)
	}
	for _, f := range w.files {
		if _, err := os.Stat(f); err != nil {
			return bad("%v", err)
		}
	}
	if w.gguf {
		if len(w.files) > 1 {
			return bad("%s holds %d GGUF files: name one", a.Path, len(w.files))
		}
		w.model = w.files[0]
		return w, nil
	}
	var c struct {
		Vision json.RawMessage `json:"vision_config"`
	}
	path := filepath.Join(a.Path, "config.json")
	b, err := os.ReadFile(path)
	if err != nil {
		return bad("%v", err)
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return bad("%s: %v", path, err)
	}
	w.vision = len(c.Vision) > 0 && string(c.Vision) != "null"
	return w, nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
