package main

import (
	"context"
	"fmt"

	"enginebroker/engines/adapter"
	"enginebroker/engines/fingerprint"
	"enginebroker/engines/openai"
	"enginebroker/matrix"
)

const kind = "vllmcpp"

// ggufArchitectures are those its GGUF loader names (engines.md B5).
var ggufArchitectures = []string{"qwen35", "qwen35moe", "deepseek4", "laguna", "llama"}

// capabilities are what the source claims to open (engines.md B5); whether a build does is known after a preflight.
func capabilities() []matrix.Capability {
	claim := func(container, quantization string, architectures []string, conditions ...string) matrix.Capability {
		return matrix.Capability{Container: container, Quantization: quantization, Architectures: architectures,
			Statement: matrix.Statement{Status: matrix.StatusClaimed, Why: "its loader has it", Source: "docs/FEATURES.md", Conditions: conditions}}
	}
	list := []matrix.Capability{
		claim("safetensors", "bf16", nil), claim("safetensors", "f16", nil),
		claim("safetensors", "nvfp4", nil, "W4A4 or W4A16, compressed-tensors or ModelOpt", "no FP8 group with per-channel weights"),
		claim("safetensors", "fp8", nil, "per-tensor scales"), claim("safetensors", "mxfp4", nil, "compressed-tensors W4A16"),
		claim("exl3", "*", nil),
	}
	for _, q := range []string{"f32", "f16", "bf16", "q4_0", "q8_0", "q2_k", "q3_k_m", "q4_k_s", "q4_k_m", "q5_k_m", "q6_k", "mxfp4"} {
		list = append(list, claim("gguf", q, ggufArchitectures))
	}
	return list
}

var refuses = []matrix.Statement{
	{Status: matrix.StatusRefused, Why: "prompts as token ids over HTTP: an array becomes an empty prompt and stops the engine"},
	{Status: matrix.StatusRefused, Why: "workers on other hosts (--kv-transfer-config): MULTI_NODE_UNSUPPORTED"},
	{Status: matrix.StatusRefused, Why: "multimodal projectors (--mmproj): text runs only"},
}

// describe answers from the binary, its build directory and source tree, and --version where the build has it.
func describe(ctx context.Context, v openai.Values, sum fingerprint.Sum, d *matrix.Description) error {
	binary, err := locate(v)
	if err != nil {
		return err
	}
	static, err := fingerprint.Static(ctx, binary, sum)
	if err != nil {
		return err
	}
	d.Identity = append(matrix.Facts{adapter.Said(matrix.FactEngine, kind, binary)}, static...)
	help, err := adapter.Ask(ctx, binary, "--help")
	if err != nil {
		return &adapter.NotInstalled{Err: fmt.Errorf("it is there but does not run: %w", err), Looked: []string{binary}}
	}
	if parseHelp(help)["--version"] {
		out, err := adapter.Ask(ctx, binary, "--version")
		if err != nil {
			return err
		}
		version, abi, err := parseVersion(out)
		if err != nil {
			return err
		}
		d.Identity = append(d.Identity, adapter.Said(matrix.FactVersion, version, binary+" --version"), adapter.Said(fingerprint.FactConfig+"c_abi", abi, binary+" --version"))
	}
	if file, ok := static.Value(fingerprint.FactBinarySHA256).Get(); ok {
		build, err := matrix.Digest(map[string]string{"server": file, "cmake": static.Value(fingerprint.FactCMakeDigest).Or("")})
		if err != nil {
			return err
		}
		d.Identity = append(d.Identity, adapter.Seen(matrix.FactBuild, build, "binary and build configuration"))
	}
	d.Installed = true
	return nil
}

// dialectOf describes how this engine answers (engines.md B3, B9).
func dialectOf(base string, r matrix.StartRequest, granted matrix.Limits, tokenize bool) matrix.Dialect {
	d := openai.BaseDialect(base, r.ModelName)
	d.ContextTokens = granted.ContextTokens
	if d.ContextTokens == 0 { // not told: what it was started with
		d.ContextTokens = r.Limits.ContextTokens
	}
	// Prompt and output together beyond the context are shortened without an error, exactly there. A prompt that is too
	// long ends the process of older builds.
	d.MaxPromptTokens = d.ContextTokens - 1
	d.Body["stream_interval"] = 1
	if tokenize {
		d.TokenizePath = "/tokenize"
	}
	return d
}
