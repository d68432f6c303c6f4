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
	argv = []string{"-m", launcher}
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
			x.Fix = "see python -m " + launcher + " --help"
			return nil, nil, x
		}
		argv = append(argv, a)
	}
	return argv, waived, nil
}

func wanted(r matrix.StartRequest, v openai.Values, w weights, cpu bool) ([]flag, error) {
	slots := max(1, r.Limits.Concurrency)
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
	// Unset, the pool takes most of the memory: 12.9 GB of a box of 24 (engines.md D8).
	pool := max(r.Limits.KVTokens, slots*r.Limits.ContextTokens)
	flags := []flag{
		{"--model-path", w.model, "the weights"},
		{"--served-model-name", r.ModelName, "the served name"},
		{"--host", r.Host, "the address"},
		{"--port", strconv.Itoa(r.Port), "the port"},
		{"--dtype", dtype, "the compute dtype"},
		{"--context-length", strconv.Itoa(r.Limits.ContextTokens), "the context"},
		{"--max-running-requests", strconv.Itoa(slots), "the concurrency"},
		{"--max-total-tokens", strconv.Itoa(pool), "the KV cache"},
		{"--random-seed", strconv.FormatInt(r.Seed, 10), "the seed"},
		{"--disable-radix-cache", "", "that no prompt is cached"},
		{"--enable-cache-report", "", "that cached tokens are counted in the answers"},
		{"--enable-metrics", "", "the counters of /metrics"},
		{"--sampling-defaults", "openai", "that the checkpoint sets no sampling defaults"},
		{"--stream-interval", "1", "that every token is sent when it is there"},
		{"--kv-cache-dtype", v.Text("kv_dtype"), "the type of the KV cache"},
	}
	backend := v.Text("attention_backend")
	if cpu {
		flags = append(flags, flag{"--device", "cpu", "a run without a GPU"})
		if backend == "" {
			backend = "torch_native" // the others need AMX or a GPU
		}
	}
	if backend != "" {
		flags = append(flags, flag{"--attention-backend", backend, "the attention kernels"})
	}
	if f := v.Text("mem_fraction_static"); f != "" {
		flags = append(flags, flag{"--mem-fraction-static", f, "the setting mem_fraction_static"})
	}
	if n, ok := v.Int("chunked_prefill_size").Get(); ok {
		flags = append(flags, flag{"--chunked-prefill-size", strconv.Itoa(n), "the setting chunked_prefill_size"})
	}
	if q := v.Text("quantization"); q != "" {
		flags = append(flags, flag{"--quantization", q, "the setting quantization"})
	}
	if v.Text("flashinfer_autotune") == "off" {
		flags = append(flags, flag{"--disable-flashinfer-autotune", "", "the setting flashinfer_autotune"})
	}
	if w.vision {
		flags = append(flags, flag{"--language-only", "", "a text run without the vision tower"})
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
func speculation(p matrix.Policy) ([]flag, error) {
	const why = "the drafter"
	if p.Length < 1 || p.Drafter == "" {
		return nil, unsupported("the policy %s names no drafter or no draft length", p)
	}
	method, model, _ := strings.Cut(p.Drafter, ":")
	if strings.HasPrefix(p.Drafter, "/") {
		method, model = "standalone", p.Drafter
	}
	if method == "mtp" {
		method = "nextn"
	}
	method = strings.ToUpper(method)
	flags := []flag{{"--speculative-algorithm", method, why}}
	if model != "" {
		flags = append(flags, flag{"--speculative-draft-model-path", model, why})
	}
	if method == "NGRAM" {
		return append(flags, flag{"--speculative-num-draft-tokens", strconv.Itoa(p.Length), why}), nil
	}
	// The count of draft tokens includes the verified one.
	return append(flags, flag{"--speculative-num-steps", strconv.Itoa(p.Length), why}, flag{"--speculative-eagle-topk", "1", why},
		flag{"--speculative-num-draft-tokens", strconv.Itoa(p.Length + 1), why}), nil
}

// environment is what the server gets beside the inherited allow-list: its own compile caches, no network, no telemetry.
func environment(r matrix.StartRequest, v openai.Values, in install) (map[string]string, error) {
	key, err := in.key()
	if err != nil {
		return nil, err
	}
	env := map[string]string{
		"VIRTUAL_ENV": in.prefix, "PATH": filepath.Dir(in.python) + ":" + os.Getenv("PATH"),
		"DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
	}
	caches := filepath.Join(r.CacheDir, "compile-"+key[:16])
	for name, dir := range map[string]string{"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor",
		"FLASHINFER_WORKSPACE_BASE": "flashinfer", "TILELANG_CACHE_DIR": "tilelang", "CUDA_CACHE_PATH": "cuda"} {
		env[name] = filepath.Join(caches, dir)
		if err := os.MkdirAll(env[name], 0o755); err != nil {
			return nil, fmt.Errorf("compile cache: %w", err)
		}
	}
	if cpu(v) {
		env["SGLANG_USE_CPU_ENGINE"] = "1" // without it --device cpu looks for vLLM's kernels
	}
	maps.Copy(env, v.Map("env"))
	return env, nil
}

// weights is an artifact as the engine opens it.
type weights struct {
	model  string   // the directory
	files  []string // of weights, absolute
	vision bool     // the checkpoint has a vision tower
}

// open finds the weight files of an artifact and refuses what cannot be one, before minutes are spent on a start.
func open(a matrix.Artifact) (weights, error) {
	w := weights{model: a.Path}
	bad := func(format string, args ...any) (weights, error) {
		return w, &matrix.StartFailure{Code: "bad_artifact", Phase: "launch", Message: fmt.Sprintf(format, args...)}
	}
	if a.Path == "" {
		return bad("%s has no local path", a.ID)
	}
	if a.Container != "" && a.Container != "safetensors" {
		return bad("SGLang opens safetensors here, and %s is %s", a.ID, a.Container)
	}
	info, err := os.Stat(a.Path)
	if err != nil {
		return bad("%v", err)
	}
	if !info.IsDir() {
		return bad("%s is a file: SGLang opens the directory that holds config.json and the weights", a.Path)
	}
	for _, f := range a.Files {
		if strings.HasSuffix(f.Path, ".safetensors") {
			w.files = append(w.files, filepath.Join(a.Path, f.Path))
		}
	}
	if len(w.files) == 0 {
		w.files, _ = filepath.Glob(filepath.Join(a.Path, "*.safetensors")) // a directory of ours; no match is no file
	}
	if len(w.files) == 0 {
		return bad("%s holds no *.safetensors", a.Path)
	}
	for _, f := range w.files {
		if _, err := os.Stat(f); err != nil {
			return bad("%v", err)
		}
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
