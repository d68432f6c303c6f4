package main

import (
	"context"
	"errors"
	"strings"

	"enginebroker/engines/fingerprint"
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

// Describe answers from package metadata alone: asking SGLang itself takes half a minute.
func (e *engine) Describe(ctx context.Context) (matrix.Description, error) {
	v := e.values()
	d := matrix.Description{Engine: kind, Capabilities: capabilities(), Refuses: refuses, Settings: schema}
	if url := v.Text("attach"); url != "" {
		d.Installed = true
		d.Identity = matrix.Facts{said(matrix.FactEngine, kind, "the attached server "+url)}
		return d, nil
	}
	in, err := locate(v)
	if errors.Is(err, errNotInstalled) {
		d.LookedFor = append(in.looked, err.Error())
		return d, nil
	}
	if err != nil {
		return d, err
	}
	facts, gone, err := e.onDisk(ctx, in)
	if err != nil {
		return d, err
	}
	d.Identity, d.Installed = facts, gone == ""
	if gone != "" {
		d.LookedFor = append(in.looked, gone)
	}
	return d, nil
}

// onDisk is the identity of an environment before anything runs. gone says why a recorded install does not run.
func (e *engine) onDisk(ctx context.Context, in install) (facts matrix.Facts, gone string, err error) {
	version, where := in.version()
	facts = matrix.Facts{said(matrix.FactEngine, kind, in.python), said(matrix.FactVersion, version, where)}
	static, err := fingerprint.Static(ctx, in.python, e.sums.Sum)
	if err != nil {
		return nil, "", err
	}
	facts = append(facts, static...)
	if c := static.Value(fingerprint.FactPackage + "sglang.commit"); c.Present() {
		facts = append(facts, said(matrix.FactCommit, c.Or(""), where))
	}
	if origin := static.Value(fingerprint.FactPackage + "sglang.origin").Or(""); strings.HasSuffix(origin, fingerprint.Gone) {
		gone = "it is recorded in " + where + " but does not run: " + origin
	}
	key, err := in.key()
	if err != nil {
		return nil, "", err
	}
	return append(facts, seen(matrix.FactBuild, key, in.site+": distributions and their RECORD")), gone, nil
}

func seen(name, value, where string) matrix.Fact {
	return matrix.Fact{Name: name, Value: value, Where: where, Standing: matrix.Observed}
}

func said(name, value, where string) matrix.Fact {
	return matrix.Fact{Name: name, Value: value, Where: where, Standing: matrix.Claimed}
}
