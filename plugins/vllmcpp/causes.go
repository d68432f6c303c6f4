package main

import (
	"regexp"

	"enginebroker/engines/process"
)

// causes are the log lines of vllm.cpp that explain a failed start, the most telling first (engines.md B1, B5, B9).
var causes = []process.Cause{
	{Pattern: regexp.MustCompile(`gguf dequant: unsupported ggml type|unrecognized pre-tokenizer|unexpected architecture|tensor not found: |the ONE element a per-tensor scale is|nothing in this build can execute them`), Code: "bad_artifact", Fix: "this build cannot open the artifact"},
	{Pattern: regexp.MustCompile(`server: failed to bind`), Code: process.CodePortTaken, Fix: "choose another port"},
	{Pattern: regexp.MustCompile(`out of memory|cudaErrorMemoryAllocation|bad_alloc`), Code: "limits", Fix: "lower the context or the concurrency, or free memory"},
	{Pattern: regexp.MustCompile(`model path is not a directory|No such file or directory`), Code: "bad_artifact"},
	{Pattern: regexp.MustCompile(`^usage: `), Code: "unsupported_flag", Fix: "the build does not know one of the arguments: see its --help"},
	{Pattern: regexp.MustCompile(`no kernel for op|has NO native kernel`), Fix: "the build lacks a kernel for this device"},
	{Pattern: regexp.MustCompile(`server: fatal: |engine-fatal: `)},
	{Pattern: regexp.MustCompile(`error while loading shared libraries`), Code: "not_installed"},
}
