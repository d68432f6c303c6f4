package main

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"enginebroker/engines/adapter"
	"enginebroker/engines/openai"
	"enginebroker/matrix"
)

// wanted are the flags of a fair run, by the spellings of the builds seen.
func wanted(r matrix.StartRequest, v openai.Values, model string) ([]adapter.Flag, error) {
	slots, ctx := max(1, r.Limits.Concurrency), r.Limits.ContextTokens
	if err := adapter.CheckRequest(r); err != nil {
		return nil, err
	}
	if r.ComputeDtype != "" {
		x := adapter.Unsupported("llama.cpp has no flag for the compute dtype %s; its backend decides", r.ComputeDtype)
		x.Fix = "remove compute_dtype from this instance and choose a backend"
		return nil, x
	}
	flags := []adapter.Flag{
		adapter.Arg("--model", model, "the weights", "-m"),
		adapter.Arg("--alias", r.ModelName, "the served name", "-a"),
		adapter.Arg("--host", r.Host, "the address"),
		adapter.Arg("--port", strconv.Itoa(r.Port), "the port (defaults differ by distribution)"),
		adapter.Arg("--parallel", strconv.Itoa(slots), "the concurrency", "-np"),
		// The context is a total over the slots, unless they share one.
		adapter.Arg("--ctx-size", strconv.Itoa(ctx*slots), "the context", "-c"),
		adapter.Switch("--no-kv-unified", "one context per slot", "-no-kvu"),
		adapter.Arg("--fit", "off", "that no unset argument is changed to fit memory", "-fit"),
		adapter.Switch("--no-cache-prompt", "that no prompt is cached"),
		adapter.Arg("--cache-ram", "0", "that no prompt is kept in host memory", "-cram"),
		adapter.Switch("--no-context-shift", "that a full context ends a request"),
		adapter.Arg("--sse-ping-interval", "-1", "a stream without comment frames"),
		adapter.Arg("--seed", strconv.FormatInt(r.Seed, 10), "the seed", "-s"),
		adapter.Switch("--offline", "that nothing is downloaded"),
		adapter.Switch("--metrics", "the counters of /metrics"),
		adapter.Switch("--slots", "the limits and speculation of /slots"),
		adapter.Switch("--no-webui", "a server without the user interface", "--no-ui"),
		adapter.Switch("--no-mmproj", "that no projector is loaded"),
		adapter.Arg("--flash-attn", v.Text("flash_attention"), "the attention kernel", "-fa"),
		adapter.Arg("--cache-type-k", v.Text("kv_dtype"), "the type of the KV cache", "-ctk"),
		adapter.Arg("--cache-type-v", v.Text("kv_dtype"), "the type of the KV cache", "-ctv"),
		adapter.Arg("--n-gpu-layers", v.Text("ngl"), "where the layers are", "--gpu-layers", "-ngl"),
	}
	for _, o := range []struct{ setting, name, short string }{{"threads", "--threads", "-t"}, {"batch", "--batch-size", "-b"}, {"ubatch", "--ubatch-size", "-ub"}} {
		if n, ok := v.Int(o.setting).Get(); ok {
			flags = append(flags, adapter.Arg(o.name, strconv.Itoa(n), "the setting "+o.setting, o.short))
		}
	}
	return append(flags, speculation(r.Policy)...), nil
}

// speculation translates the policy. A drafter is a GGUF file, or the name of a method of the build.
func speculation(p matrix.Policy) []adapter.Flag {
	if p.Kind != matrix.Drafted {
		return []adapter.Flag{adapter.Arg("--spec-type", "none", "that nothing is drafted")}
	}
	k := adapter.Arg("--spec-draft-n-max", strconv.Itoa(p.Length), "the draft length")
	if strings.HasSuffix(p.Drafter, ".gguf") {
		return []adapter.Flag{adapter.Arg("--spec-type", "draft-simple", "the drafter"), adapter.Arg("--spec-draft-model", p.Drafter, "the drafter", "--model-draft"), k}
	}
	method := p.Drafter
	if method == "mtp" {
		method = "draft-mtp"
	}
	return []adapter.Flag{adapter.Arg("--spec-type", method, "the drafter"), k}
}

// modelFile is the GGUF file to open: the artifact's path, or its only file there; of a split model the first part.
func modelFile(a matrix.Artifact) (string, error) {
	bad := adapter.BadArtifact
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
