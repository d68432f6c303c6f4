package main

import (
	"context"

	"enginebroker/engines/fingerprint"
	"enginebroker/engines/openai"
	"enginebroker/engines/process"
	"enginebroker/matrix"
)

const kind = "sglang"

// capabilities are the methods the engine registers (engines.md D5); no statement here is a proof: whether a build opens an
// artifact is known after a preflight.
func capabilities() []matrix.Capability {
	claim := func(quantization, source string, conditions ...string) matrix.Capability {
		return matrix.Capability{Container: "safetensors", Quantization: quantization,
			Statement: matrix.Statement{Status: matrix.StatusClaimed, Why: "a method or type that SGLang registers", Source: source, Conditions: conditions}}
	}
	var list []matrix.Capability
	for _, q := range []string{"bf16", "fp16", "f16", "fp32", "f32"} {
		list = append(list, claim(q, "python -m "+launcher+" --help: --dtype"))
	}
	for _, q := range []string{"nvfp4", "fp8", "mxfp4", "mxfp8", "awq", "gptq", "int8", "compressed-tensors", "modelopt"} {
		var conditions []string
		if q == "nvfp4" {
			conditions = []string{"a GPU with FP4 kernels", "uniform NVFP4: v0.5.15 takes a mixed ModelOpt checkpoint for w4afp8"}
		}
		list = append(list, claim(q, "python -m "+launcher+" --help: --quantization", conditions...))
	}
	refuse := func(container, why, source string) matrix.Capability {
		return matrix.Capability{Container: container, Quantization: "*", Statement: matrix.Statement{Status: matrix.StatusRefused, Why: why, Source: source}}
	}
	return append(list,
		refuse("gguf", "its GGUF loader does not reach qwen3_5 and skips unmapped tensors in silence", "sglang/srt/model_loader/loader.py"),
		refuse("exl3", "SGLang registers no EXL3 method", "python -m "+launcher+" --help: --quantization"),
	)
}

var refuses = []matrix.Statement{
	{Status: matrix.StatusRefused, Why: "several hosts or ranks (--nnodes, --dp-size, --disaggregation-*): MULTI_NODE_UNSUPPORTED"},
	{Status: matrix.StatusRefused, Why: "the gRPC modes (--grpc-mode, SGLANG_ENABLE_GRPC): they are not the server that people run"},
	{Status: matrix.StatusRefused, Why: "--sleep-on-idle: the server must not sleep between requests"},
}

// describe answers from package metadata alone: asking SGLang itself takes half a minute.
func describe(ctx context.Context, v openai.Values, sum fingerprint.Sum, d *matrix.Description) error {
	in, err := locate(ctx, v, nil)
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
	d.Identity = append(d.Identity, facts...)
	return err
}
