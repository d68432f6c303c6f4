package main

import (
	"regexp"

	"enginebroker/engines/process"
)

// causes are the log lines of vLLM that explain a failed start, the most telling first. The cause stands far above the last
// line, which only says "See root cause above"; and a clean stop ends with an EngineDeadError traceback too, so that the last
// traceback is never taken for the cause (engines.md C1, C7b).
var causes = []process.Cause{
	{Pattern: regexp.MustCompile(`vllm serve: error: |unrecognized arguments: `), Code: "unsupported_flag", Fix: "remove the argument, or use a build that knows it"},
	{Pattern: regexp.MustCompile(`\[Errno 98\]|[Aa]ddress already in use`), Code: process.CodePortTaken, Fix: "choose another port"},
	{Pattern: regexp.MustCompile(`is less than desired GPU memory utilization`), Code: "limits", Fix: "drop the page cache, which counts as used on unified memory, or lower gpu_memory_utilization"},
	{Pattern: regexp.MustCompile(`No available memory for the cache blocks|larger than the available KV cache memory|KV cache is needed`), Code: "limits", Fix: "raise gpu_memory_utilization or kv_cache_space, or lower the context"},
	{Pattern: regexp.MustCompile(`torch\.(cuda\.)?OutOfMemoryError|CUDA out of memory|DefaultCPUAllocator: can't allocate memory`), Code: "limits", Fix: "lower the context, the concurrency or gpu_memory_utilization, or free memory"},
	{Pattern: regexp.MustCompile(`max_model_len.*is greater than the derived max_model_len|User-specified max_model_len`), Code: "limits", Fix: "the model's own context is shorter than the workload asks"},
	{Pattern: regexp.MustCompile(`Invalid quantization method|[Qq]uantization method .* does not match|Unknown quantization method|is not supported for the current GPU`), Code: "bad_artifact", Fix: "see the setting quantization, and what the checkpoint declares"},
	{Pattern: regexp.MustCompile(`Model architectures .* are not supported|has no vLLM implementation|does not recognize this architecture`), Code: "bad_artifact", Fix: "this build does not know the architecture"},
	{Pattern: regexp.MustCompile(`SafetensorError|Error while deserializing header|Cannot find any model weights|Invalid repository ID or local directory`), Code: "bad_artifact", Fix: "the files are damaged or missing: compare their sha256 with the source"},
	{Pattern: regexp.MustCompile(`PackageNotFoundError: No package metadata was found for vllm`), Code: "not_installed", Fix: "the environment has no metadata of a distribution called vllm: install it again (engines/install/vllm.sh)"},
	{Pattern: regexp.MustCompile(`ModuleNotFoundError|ImportError|undefined symbol|cannot open shared object file`), Code: "not_installed", Fix: "the environment is not whole: install it again"},
	{Pattern: regexp.MustCompile(`(CUDA error|cudaError\w+|NVIDIA driver on your system is too old|No CUDA GPUs are available|Failed to infer device type)`), Fix: "see the GPU and its driver"},
	{Pattern: regexp.MustCompile(`\((EngineCore|Worker|VllmWorker)[^)]*\).*\b[A-Z]\w*(Error|Exception): `)},
	{Pattern: regexp.MustCompile(`^(\(APIServer[^)]*\) )?(pydantic\S*ValidationError|[A-Za-z_.]*(ValueError|OSError|TypeError|KeyError|AssertionError|NotImplementedError|FileNotFoundError)): `)},
	{Pattern: regexp.MustCompile(`Engine core initialization failed`)},
}
