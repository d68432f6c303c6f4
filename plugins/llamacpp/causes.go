package main

import (
	"regexp"

	"enginebroker/engines/process"
)

// causes are the log lines of llama-server that explain a failed start, the most telling first (engines.md E1).
var causes = []process.Cause{
	{Pattern: regexp.MustCompile(`error: invalid argument: |error: the argument has been removed`), Code: "unsupported_flag", Fix: "remove the argument, or use a build that knows it"},
	{Pattern: regexp.MustCompile(`couldn't bind HTTP server socket`), Code: process.CodePortTaken, Fix: "choose another port"},
	{Pattern: regexp.MustCompile(`no backends are loaded`), Code: "not_installed", Fix: "the ggml backend libraries are missing: install libggml0, or set backend"},
	{Pattern: regexp.MustCompile(`unknown model architecture: `), Code: "bad_artifact", Fix: "this build does not know the architecture"},
	{Pattern: regexp.MustCompile(`data is not within the file bounds|invalid magic characters|model is corrupted or incomplete`), Code: "bad_artifact", Fix: "the file is damaged: compare its sha256 with the source"},
	{Pattern: regexp.MustCompile(`unknown pre-tokenizer type|missing tensor|wrong number of tensors|wrong shape`), Code: "bad_artifact"},
	{Pattern: regexp.MustCompile(`out of memory|unable to allocate .* buffer|failed to allocate`), Code: "limits", Fix: "lower the context or the concurrency, or free memory"},
	{Pattern: regexp.MustCompile(`Unsupported cache type`), Code: "unsupported_flag", Fix: "choose another kv_dtype"},
	{Pattern: regexp.MustCompile(`failed to load model|failed to open GGUF file|error loading model`), Code: "bad_artifact"},
	{Pattern: regexp.MustCompile(`router server|no model will be loaded`), Code: "unsupported_flag", Fix: "router mode is refused"},
	{Pattern: regexp.MustCompile(`(?i)error while loading shared libraries|GLIBC_\S+' not found`), Code: "not_installed", Fix: "the binary does not fit this system's libraries: use a tree of its own (setting root)"},
	{Pattern: regexp.MustCompile(`GGML_ASSERT|ggml_abort|terminate called`)},
}
