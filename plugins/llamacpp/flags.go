package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"enginebroker/engines/openai"
	"enginebroker/matrix"
)

// flag is one argument of a fair run, by the spellings of the builds seen; the first that a build knows is used.
type flag struct {
	names []string
	value string // empty: a switch
	why   string // what it secures
}

// arguments translates a start request. Every flag must be known to the build, or be waived: a flag that is left out in
// silence would leave the engine's default in force.
func arguments(r matrix.StartRequest, v openai.Values, model string, known map[string]bool) (argv, waived []string, err error) {
	flags, err := wanted(r, v, model)
	if err != nil {
		return nil, nil, err
	}
	waive := v.List("waive")
	for _, f := range flags {
		i := slices.IndexFunc(f.names, func(n string) bool { return known[n] })
		switch {
		case i >= 0 && f.value != "":
			argv = append(argv, f.names[i], f.value)
		case i >= 0:
			argv = append(argv, f.names[i])
		case slices.ContainsFunc(f.names, func(n string) bool { return slices.Contains(waive, n) }):
			waived = append(waived, f.names[0])
		default:
			return nil, nil, &matrix.StartFailure{Code: "unsupported_flag", Phase: "launch",
				Message: fmt.Sprintf("this build does not know %s, which secures %s", strings.Join(f.names, " or "), f.why),
				Fix:     "use another build, or waive the flag where the build predates the feature (setting waive)"}
		}
	}
	for _, a := range v.List("extra_args") {
		if name, _, _ := strings.Cut(a, "="); strings.HasPrefix(a, "-") && len(a) > 1 && (a[1] < '0' || a[1] > '9') && !known[name] {
			return nil, nil, &matrix.StartFailure{Code: "unsupported_flag", Phase: "launch", Message: "this build does not know " + name + " of extra_args", Fix: "see its --help"}
		}
		argv = append(argv, a)
	}
	return argv, waived, nil
}

func wanted(r matrix.StartRequest, v openai.Values, model string) ([]flag, error) {
	slots, ctx := max(1, r.Limits.Concurrency), r.Limits.ContextTokens
	if ctx <= 0 {
		return nil, &matrix.StartFailure{Code: "limits", Phase: "launch", Message: "the request names no context per request"}
	}
	if r.ComputeDtype != "" {
		return nil, &matrix.StartFailure{Code: "unsupported_flag", Phase: "launch", Message: "llama.cpp has no flag for the compute dtype " + r.ComputeDtype + "; its backend decides", Fix: "remove compute_dtype from this instance and choose a backend"}
	}
	if r.PrefixCache != "off" && r.PrefixCache != "" {
		return nil, &matrix.StartFailure{Code: "unsupported_flag", Phase: "launch", Message: "prefix cache " + r.PrefixCache + " is not offered, only off"}
	}
	flags := []flag{
		{[]string{"--model", "-m"}, model, "the weights"},
		{[]string{"--alias", "-a"}, r.ModelName, "the served name"},
		{[]string{"--host"}, r.Host, "the address"},
		{[]string{"--port"}, strconv.Itoa(r.Port), "the port (defaults differ by distribution)"},
		{[]string{"--parallel", "-np"}, strconv.Itoa(slots), "the concurrency"},
		// The context is a total over the slots, unless they share one.
		{[]string{"--ctx-size", "-c"}, strconv.Itoa(ctx * slots), "the context"},
		{[]string{"--no-kv-unified", "-no-kvu"}, "", "one context per slot"},
		{[]string{"--fit", "-fit"}, "off", "that no unset argument is changed to fit memory"},
		{[]string{"--no-cache-prompt"}, "", "that no prompt is cached"},
		{[]string{"--cache-ram", "-cram"}, "0", "that no prompt is kept in host memory"},
		{[]string{"--no-context-shift"}, "", "that a full context ends a request"},
		{[]string{"--sse-ping-interval"}, "-1", "a stream without comment frames"},
		{[]string{"--seed", "-s"}, strconv.FormatInt(r.Seed, 10), "the seed"},
		{[]string{"--offline"}, "", "that nothing is downloaded"},
		{[]string{"--metrics"}, "", "the counters of /metrics"},
		{[]string{"--slots"}, "", "the limits and speculation of /slots"},
		{[]string{"--no-webui", "--no-ui"}, "", "a server without the user interface"},
		{[]string{"--no-mmproj"}, "", "that no projector is loaded"},
		{[]string{"--flash-attn", "-fa"}, v.Text("flash_attention"), "the attention kernel"},
		{[]string{"--cache-type-k", "-ctk"}, v.Text("kv_dtype"), "the type of the KV cache"},
		{[]string{"--cache-type-v", "-ctv"}, v.Text("kv_dtype"), "the type of the KV cache"},
		{[]string{"--n-gpu-layers", "--gpu-layers", "-ngl"}, v.Text("ngl"), "where the layers are"},
	}
	for _, o := range []struct {
		setting string
		names   []string
	}{{"threads", []string{"--threads", "-t"}}, {"batch", []string{"--batch-size", "-b"}}, {"ubatch", []string{"--ubatch-size", "-ub"}}} {
		if n, ok := v.Int(o.setting).Get(); ok {
			flags = append(flags, flag{o.names, strconv.Itoa(n), "the setting " + o.setting})
		}
	}
	return append(flags, speculation(r.Policy)...), nil
}

// speculation translates the policy. A drafter is a GGUF file, or the name of a method of the build.
func speculation(p matrix.Policy) []flag {
	if p.Kind != matrix.Drafted {
		return []flag{{[]string{"--spec-type"}, "none", "that nothing is drafted"}}
	}
	k := flag{[]string{"--spec-draft-n-max"}, strconv.Itoa(p.Length), "the draft length"}
	if strings.HasSuffix(p.Drafter, ".gguf") {
		return []flag{{[]string{"--spec-type"}, "draft-simple", "the drafter"}, {[]string{"--spec-draft-model", "--model-draft"}, p.Drafter, "the drafter"}, k}
	}
	method := p.Drafter
	if method == "mtp" {
		method = "draft-mtp"
	}
	return []flag{{[]string{"--spec-type"}, method, "the drafter"}, k}
}

// modelFile is the GGUF file to open: the artifact's path, or its only file there; of a split model the first part.
func modelFile(a matrix.Artifact) (string, error) {
	bad := func(format string, args ...any) error {
		return &matrix.StartFailure{Code: "bad_artifact", Phase: "launch", Message: fmt.Sprintf(format, args...)}
	}
	if a.Container != "" && a.Container != "gguf" {
		return "", bad("llama.cpp opens GGUF, and %s is %s", a.ID, a.Container)
	}
	info, err := os.Stat(a.Path)
	switch {
	case a.Path == "":
		return "", bad("%s has no local path", a.ID)
	case err != nil:
		return "", bad("%v", err)
	case !info.IsDir():
		return a.Path, nil
	}
	var found []string
	if len(a.Files) > 0 {
		for _, f := range a.Files {
			found = append(found, filepath.Join(a.Path, f.Path))
		}
	} else if found, err = filepath.Glob(filepath.Join(a.Path, "*.gguf")); err != nil {
		return "", bad("%s: %v", a.Path, err)
	}
	found = slices.DeleteFunc(found, func(f string) bool {
		return !strings.HasSuffix(f, ".gguf") || strings.HasPrefix(filepath.Base(f), "mmproj")
	})
	slices.Sort(found)
	switch {
	case len(found) == 0:
		return "", bad("%s holds no GGUF file", a.Path)
	case len(found) > 1 && !strings.Contains(filepath.Base(found[0]), "-00001-of-"):
		return "", bad("%s holds %d GGUF files: name one (%s, %s …)", a.Path, len(found), filepath.Base(found[0]), filepath.Base(found[1]))
	}
	if _, err := os.Stat(found[0]); err != nil {
		return "", bad("%v", err)
	}
	return found[0], nil
}
