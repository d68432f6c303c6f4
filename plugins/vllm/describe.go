package main

import (
	"context"
	"errors"
	"strings"

	"enginebroker/engines/fingerprint"
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
	if v := in.dists[ggufPlugin]; v != "" {
		list = append(list, claim("gguf", "*", in.site+": "+ggufPlugin+" "+v, "the plugin knows the architecture: qwen3_5 only after its 0.0.5"))
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

// Describe answers from package metadata alone: asking vLLM itself takes half a minute.
func (e *engine) Describe(ctx context.Context) (matrix.Description, error) {
	v := e.values()
	d := matrix.Description{Engine: kind, Refuses: refuses, Settings: schema}
	if url := v.Text("attach"); url != "" {
		d.Installed, d.Capabilities = true, capabilities(install{})
		d.Identity = matrix.Facts{said(matrix.FactEngine, kind, "the attached server "+url)}
		return d, nil
	}
	in, err := locate(v)
	d.Capabilities = capabilities(in)
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
	facts = matrix.Facts{said(matrix.FactEngine, kind, in.binary), said(matrix.FactVersion, version, where)}
	static, err := fingerprint.Static(ctx, in.binary, e.sums.Sum)
	if err != nil {
		return nil, "", err
	}
	facts = append(facts, static...)
	if c := static.Value(fingerprint.FactPackage + "vllm.commit"); c.Present() {
		facts = append(facts, said(matrix.FactCommit, c.Or(""), where))
	}
	if origin := static.Value(fingerprint.FactPackage + "vllm.origin").Or(""); strings.HasSuffix(origin, fingerprint.Gone) {
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
