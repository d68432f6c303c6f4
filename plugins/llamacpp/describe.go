package main

import (
	"context"
	"fmt"
	"path/filepath"

	"enginebroker/engines/adapter"
	"enginebroker/engines/fingerprint"
	"enginebroker/engines/openai"
	"enginebroker/matrix"
)

const kind = "llamacpp"

// capabilities are the tensor types a GGUF file may mix, by the label of the whole file (engines.md E5). No statement here
// is a proof: whether a build opens an artifact is known after a preflight.
func capabilities() []matrix.Capability {
	var list []matrix.Capability
	for _, q := range []string{
		"f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k_s", "q3_k_m", "q3_k_l", "q4_k_s", "q4_k_m", "q5_k_s", "q5_k_m", "q6_k",
		"iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq2_m", "iq3_xxs", "iq3_xs", "iq3_s", "iq3_m", "iq4_xs", "iq4_nl", "tq1_0", "tq2_0", "mxfp4", "nvfp4", "q1_0", "q2_0",
	} {
		list = append(list, matrix.Capability{Container: "gguf", Quantization: q,
			Statement: matrix.Statement{Status: matrix.StatusClaimed, Why: "a file type of llama.cpp b11669", Source: "include/llama.h, llama_ftype", Conditions: []string{"the build knows the architecture"}}})
	}
	return append(list,
		matrix.Capability{Container: "safetensors", Quantization: "*", Statement: matrix.Statement{Status: matrix.StatusRefused, Why: "llama.cpp opens GGUF only; a conversion is another artifact", Source: "llama-server --help: --model"}},
		matrix.Capability{Container: "exl3", Quantization: "*", Statement: matrix.Statement{Status: matrix.StatusRefused, Why: "llama.cpp opens GGUF only", Source: "llama-server --help: --model"}},
	)
}

var refuses = []matrix.Statement{
	{Status: matrix.StatusRefused, Why: "router mode: a server without a model loads one by request and serves it from a child"},
	{Status: matrix.StatusRefused, Why: "workers on other hosts (--rpc): MULTI_NODE_UNSUPPORTED"},
	{Status: matrix.StatusRefused, Why: "synthetic speculation (--spec-synth-*): forged acceptance"},
	{Status: matrix.StatusRefused, Why: "multimodal projectors (--mmproj): text runs only"},
}

// describe answers from the files of the installation, and from --version, which takes 10 ms.
func describe(ctx context.Context, v openai.Values, sum fingerprint.Sum, d *matrix.Description) error {
	in, err := locate(v)
	if err != nil {
		return err
	}
	static, err := fingerprint.Static(ctx, in.binary, sum)
	if err != nil {
		return err
	}
	d.Identity = append(matrix.Facts{adapter.Said(matrix.FactEngine, kind, in.binary)}, static...)
	d.Identity = append(d.Identity, in.packageFacts()...)
	out, err := in.ask(ctx, "--version")
	if err != nil {
		return &adapter.NotInstalled{Err: fmt.Errorf("it is there but does not run: %w", err), Looked: in.looked}
	}
	version, err := versionFacts(out, in.binary)
	if err != nil {
		return err
	}
	build, where, err := in.buildOnDisk(ctx, sum)
	if err != nil {
		return err
	}
	d.Identity = append(append(d.Identity, version...), adapter.Seen(matrix.FactBuild, build, where))
	d.Installed = true
	return nil
}

func versionFacts(out, binary string) (matrix.Facts, error) {
	build, commit, err := parseVersion(out)
	if err != nil {
		return nil, err
	}
	facts := matrix.Facts{adapter.Said(matrix.FactVersion, build, binary+" --version")}
	if commit != "" {
		facts = append(facts, adapter.Said(matrix.FactCommit, commit, binary+" --version"))
	}
	return facts, nil
}

// buildOnDisk is the digest of the binary, its package's libraries and the backends on offer: what is installed, before it
// is known what of it a process will map.
func (in install) buildOnDisk(ctx context.Context, sum fingerprint.Sum) (digest, where string, err error) {
	paths := append([]string{in.binary}, in.libs...)
	for _, l := range in.links {
		paths = append(paths, l)
	}
	if b := in.env["GGML_BACKEND_PATH"]; b != "" {
		paths = append(paths, b)
	}
	sums := map[string]string{}
	for _, p := range paths {
		if sums[filepath.Base(p)], err = sum(ctx, p); err != nil {
			return "", "", err
		}
	}
	digest, err = matrix.Digest(sums)
	return digest, in.binary + ", its libraries and the backends on offer", err
}
