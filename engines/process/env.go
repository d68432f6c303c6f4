package process

import (
	"slices"
	"strings"
)

// DefaultInherit are the variables that every server inherits: what a program needs to run at all, nothing that tunes one.
var DefaultInherit = []string{"PATH", "HOME", "USER", "LANG", "LC_*", "TZ", "TMPDIR", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"}

// influential are the variables that are known to change an engine silently. They are withheld like all others, and named
// in the record because a user may have expected them to count.
var influential = []string{
	"LLAMA_*", "GGML_*", "VLLM_*", "VT_*", "SGLANG_*", "SGL_*", "TORCH*", "PYTORCH_*", "TRITON_*", "FLASHINFER_*", "CUDA_*", "NVIDIA_*", "NCCL_*",
	"OMP_*", "MKL_*", "OPENBLAS_*", "KMP_*", "HF_*", "TRANSFORMERS_*", "PYTHON*", "LD_*", "MALLOC_*", "GLIBC_TUNABLES", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY",
}

// BuildEnv makes the environment of a server from the inherited one by allow-list, then adds the declared variables.
// The second result names the influential variables that were withheld, sorted.
func BuildEnv(inherited []string, allow []string, declared map[string]string) (env map[string]string, withheld []string) {
	env = map[string]string{}
	for _, kv := range inherited {
		name, value, ok := strings.Cut(kv, "=")
		if !ok || name == "" || name == MarkerName {
			continue
		}
		switch {
		case matchesAny(name, DefaultInherit), matchesAny(name, allow):
			env[name] = value
		case matchesAny(strings.ToUpper(name), influential):
			if _, set := declared[name]; !set {
				withheld = append(withheld, name)
			}
		}
	}
	for name, value := range declared {
		env[name] = value
	}
	slices.Sort(withheld)
	return env, withheld
}

func matchesAny(name string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		if prefix, ok := strings.CutSuffix(p, "*"); ok {
			return strings.HasPrefix(name, prefix)
		}
		return name == p
	})
}

func environ(env map[string]string) []string {
	list := make([]string, 0, len(env))
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	slices.Sort(list)
	return list
}
