package main

import (
	"context"
	"fmt"
	"strconv"

	"enginebroker/engines/fingerprint"
	"enginebroker/engines/openai"
	"enginebroker/engines/process"
	"enginebroker/matrix"
	"enginebroker/plugins/simulated/server"
)

// ready collects what the started server is.
func (e *Engine) ready(ctx context.Context, r matrix.StartRequest, addr string) (matrix.Ready, error) {
	rep, facts, err := e.facts(ctx)
	if err != nil {
		return matrix.Ready{}, err
	}
	l := e.tree.Launched()
	out := matrix.Ready{Dialect: e.dialect(addr, r, rep), Argv: fingerprint.ScrubArgv(l.Argv), Env: fingerprint.ScrubEnv(l.Env), Facts: facts,
		Granted: matrix.Limits{ContextTokens: rep.Context, Concurrency: rep.Slots, KVTokens: rep.Context * rep.Slots}, LogPath: l.LogPath}
	if out.Processes, err = e.tree.Processes(); err != nil {
		return out, err
	}
	out.Print, err = matrix.Digest(facts)
	return out, err
}

// facts are the identity of the running server: what it says when asked, and which binary it is.
func (e *Engine) facts(ctx context.Context) (server.Report, matrix.Facts, error) {
	var rep server.Report
	if err := e.client.Get(ctx, "/simulated", &rep); err != nil {
		return rep, nil, err
	}
	exe, build, err := binary()
	if err != nil {
		return rep, nil, err
	}
	outside, err := process.ContainerFacts(ctx, e.tree)
	if err != nil {
		return rep, nil, err
	}
	if e.image != nil {
		live, err := e.tree.Processes()
		if err != nil || len(live) == 0 {
			return rep, nil, fmt.Errorf("the container's processes cannot be read: %w", err)
		}
		exe = live[0].Exe
		if build, err = process.Sum(live[0]); err != nil {
			return rep, nil, err
		}
	}
	const asked = "GET /simulated"
	var f matrix.Facts
	add := func(name, value, where string) {
		if value != "" {
			f = append(f, matrix.Fact{Name: name, Value: value, Where: where, Standing: matrix.Observed})
		}
	}
	add(matrix.FactEngine, "simulated", asked)
	add(matrix.FactVersion, rep.Version, asked)
	add(matrix.FactCommit, rep.Commit, asked)
	add(matrix.FactBuild, buildPrint(build, e.config), "sha256 of the binary, dialect, version and commit")
	add(matrix.FactBinary, exe, "/proc/PID/exe")
	add(matrix.FactBackend, "simulated "+e.config.Dialect, "settings")
	add(matrix.FactQuantization, rep.Quantization, asked)
	add(matrix.FactComputeDtype, rep.Dtype, asked)
	add(matrix.FactActivationDtype, rep.Dtype, asked)
	add(matrix.FactKVDtype, rep.KVDtype, asked)
	add(matrix.FactPrefixCache, rep.PrefixCache, asked)
	add(matrix.FactSpeculation, rep.Speculation, asked)
	add(matrix.FactContextTokens, strconv.Itoa(rep.Context), asked)
	add(matrix.FactConcurrency, strconv.Itoa(rep.Slots), asked)
	add(matrix.FactModelPath, rep.Path, asked)
	add(matrix.FactWeightsProof, "argv", "a simulated engine opens no weights")
	return rep, append(f, outside...), nil
}

// dialect is the record of the dialect that is spoken.
func (e *Engine) dialect(addr string, r matrix.StartRequest, rep server.Report) matrix.Dialect {
	d := openai.BaseDialect("http://"+addr, r.ModelName)
	d.ContextTokens, d.MaxPromptTokens, d.TokenizePath = rep.Context, rep.Context-1, "/tokenize"
	d.EchoesModel = true
	switch e.config.Dialect {
	case "vllm":
		d.Body["return_token_ids"] = true
		d.Sources = append(d.Sources, matrix.TokenSource{Name: "token_ids", Kind: matrix.CountExact})
	case "sglang":
		d.EchoesModel = false
		d.Body["return_token_ids"] = true
		d.Sources = append(d.Sources, matrix.TokenSource{Name: "token_ids", Kind: matrix.CountExact})
	case "llamacpp":
		d.Usage, d.RunningUsage, d.CachedReported = "finish_chunk", false, true
		d.Body["timings_per_token"] = true
		d.Body["stream_options"] = map[string]any{"include_usage": true}
		d.Sources = []matrix.TokenSource{{Name: "usage", Kind: matrix.CountExact}, {Name: "timings", Kind: matrix.CountCumulative}}
	case "vllmcpp":
	default:
		panic(fmt.Sprintf("dialect %q passed its check", e.config.Dialect))
	}
	d.Sources = append(d.Sources, matrix.TokenSource{Name: matrix.SourceCounter, Kind: matrix.CountCumulative})
	return d
}
