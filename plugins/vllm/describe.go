package main

import (
	"context"

	"enginebroker/engines/fingerprint"
	"enginebroker/engines/openai"
	"enginebroker/engines/process"
	"enginebroker/matrix"
)

const (
	kind       = "vllm"
	ggufPlugin = "vllm-gguf-plugin"
)

// capabilities are the methods the engine registers (engines.md C5); no statement here is a proof: whether a build opens an
// artifact is known after a preflight. GGUF is a property of the installed environment, not of a version.
func capabilities(in install) []matrix.Capability {
	claim := func(container, quantization, source string, conditions ...string) matrix.Capability {
		return matrix.Capability{Container: container, Quantization: quantization,
			Statement: matrix.Statement{Status: matrix.StatusClaimed, Why: "a method or type that vLLM registers", Source: source, Conditions: conditions}}
	}
	var list []matrix.Capability
	for _, q := range []string{"bf16", "fp16", "f16", "fp32", "f32"} {
		list = append(list, claim("safetensors", q, "vllm serve --help: --dtype"))
	}
	const registry = "vllm/model_executor/layers/quantization/__init__.py"
	for _, q := range []string{"nvfp4", "fp8", "mxfp4", "mxfp8", "awq", "gptq", "int8", "compressed-tensors", "modelopt"} {
		var conditions []string
		switch q {
		case "nvfp4":
			conditions = []string{"a GPU with FP4 kernels; on GB10 from 0.24 on"}
		case "mxfp4":
			conditions = []string{"mixture-of-experts models only on NVIDIA"}
		}
		list = append(list, claim("safetensors", q, registry, conditions...))
	}
	if v := in.Dists[ggufPlugin]; v != "" {
		list = append(list, claim("gguf", "*", in.Site+": "+ggufPlugin+" "+v, "the plugin knows the architecture: qwen3_5 only after its 0.0.5"))
	} else {
		list = append(list, matrix.Capability{Container: "gguf", Quantization: "*", Statement: matrix.Statement{Status: matrix.StatusRefused,
			Why: "vLLM opens GGUF only with the distribution " + ggufPlugin + ", which is not installed", Source: "vllm#39612"}})
	}
	return append(list, matrix.Capability{Container: "exl3", Quantization: "*",
		Statement: matrix.Statement{Status: matrix.StatusRefused, Why: "vLLM registers no EXL3 method", Source: registry}})
}

var refuses = []matrix.Statement{
	{Status: matrix.StatusRefused, Why: "several hosts or ranks (--nnodes, --data-parallel-*, --headless): MULTI_NODE_UNSUPPORTED"},
	{Status: matrix.StatusRefused, Why: "the gRPC server (--grpc): it is another process than the one people run"},
	{Status: matrix.StatusRefused, Why: "sleep mode and --disable-log-stats: the server must not sleep, and its counters are evidence"},
}

// describe answers from package metadata alone: asking vLLM itself takes half a minute.
func describe(ctx context.Context, v openai.Values, sum fingerprint.Sum, d *matrix.Description) error {
	in, err := locate(ctx, v, nil)
	d.Capabilities = capabilities(in)
	if err != nil {
		return err
	}
	d.Identity, err = in.onDisk(ctx, sum)
	d.Installed = err == nil
	return err
}

// inside says what an image holds, by its own package metadata.
func inside(ctx context.Context, image *process.Container, d *matrix.Description) error {
	in, err := locate(ctx, openai.Values{}, image)
	if err != nil {
		return err
	}
	facts, err := in.onDisk(ctx, nil)
	d.Capabilities, d.Identity = capabilities(in), append(d.Identity, facts...)
	return err
}
