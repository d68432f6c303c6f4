package main

import (
	"regexp"

	"enginebroker/engines/process"
)

// causes are the log lines of SGLang that explain a failed start, the most telling first (engines.md D1, D8). A dead child
// makes the parent end itself a moment later with lines that say nothing.
var causes = []process.Cause{
	{Pattern: regexp.MustCompile(`launch_server\.py: error: |sglang serve: error: |unrecognized arguments: |invalid choice: `), Code: "unsupported_flag", Fix: "remove the argument, or use a build that knows it"},
	{Pattern: regexp.MustCompile(`\[Errno 98\]|[Aa]ddress already in use`), Code: process.CodePortTaken, Fix: "choose another port"},
	{Pattern: regexp.MustCompile(`Could not load any common_ops library|\[sgl_kernel\] CRITICAL`), Code: "not_installed", Fix: "the kernels of this environment do not fit the machine: on a CPU install with engines/install/sglang.sh"},
	{Pattern: regexp.MustCompile(`No module named 'vllm'`), Code: "not_installed", Fix: "set device=cpu on a machine without a GPU"},
	{Pattern: regexp.MustCompile(`torch\.(cuda\.)?OutOfMemoryError|CUDA out of memory|DefaultCPUAllocator: can't allocate memory|Not enough memory|Capture cuda graph failed`), Code: "limits", Fix: "lower the context, the concurrency or mem_fraction_static, or free memory"},
	{Pattern: regexp.MustCompile(`context_length .* is greater than the derived|larger than the derived context`), Code: "limits", Fix: "the model's own context is shorter than the workload asks"},
	{Pattern: regexp.MustCompile(`Unknown gguf model_type|Unknown quantization method|Quantization method specified .* does not match|does not match the quantization method`), Code: "bad_artifact", Fix: "see the setting quantization, and what the checkpoint declares"},
	{Pattern: regexp.MustCompile(`Model architectures .* are not supported|has no SGLang implementation|does not recognize this architecture`), Code: "bad_artifact", Fix: "this build does not know the architecture"},
	{Pattern: regexp.MustCompile(`SafetensorError|Error while deserializing header|Cannot find any model weights`), Code: "bad_artifact", Fix: "the files are damaged or missing: compare their sha256 with the source"},
	{Pattern: regexp.MustCompile(`(CUDA error|cudaError\w+|NVIDIA driver on your system is too old|No CUDA GPUs are available)`), Fix: "see the GPU and its driver"},
	{Pattern: regexp.MustCompile(`Scheduler hit an exception|Initialization failed\. warmup error|Detokenizer hit an exception`)},
	{Pattern: regexp.MustCompile(`^(ModuleNotFoundError|ImportError): |undefined symbol|cannot open shared object file`), Code: "not_installed", Fix: "the environment is not whole: install it again"},
	{Pattern: regexp.MustCompile(`^([A-Za-z_.]*(ValueError|OSError|RuntimeError|TypeError|KeyError|AssertionError|NotImplementedError|FileNotFoundError)): `)},
	{Pattern: regexp.MustCompile(`Subprocess \S+ .* crashed with exit code|Rank \d+ scheduler is dead`)},
}
