package main

import (
	"context"
	"net/http"
	"time"

	"enginebroker/engines/adapter"
	"enginebroker/engines/fingerprint"
	"enginebroker/engines/openai"
	"enginebroker/matrix"
)

// newEngine is one instance of the adapter.
func newEngine() *adapter.Instance {
	return adapter.New(adapter.Adapter{
		Kind: kind, Rules: rules, Capabilities: capabilities(install{}), Refuses: refuses, Causes: causes,
		Ready: openai.Readiness{Echoes: true}, Streams: true,
		Exact: map[string]any{"ignore_eos": true, "return_token_ids": true},
		Made: []string{matrix.FactQuantization, matrix.FactComputeDtype, matrix.FactActivationDtype, matrix.FactKVDtype, matrix.FactBackend, matrix.FactWeightsProof,
			fingerprint.FactKernel},
		Images: images, Inside: inside,
		Describe: describe, Prepare: prepare,
	})
}

// prepare checks everything that can be checked before the launch.
func prepare(ctx context.Context, v openai.Values, s *adapter.Server) (adapter.Session, error) {
	if s.Attached() {
		return &session{Server: s}, nil
	}
	r := s.Request
	in, err := locate(ctx, v, s.Image)
	if err != nil {
		return nil, err
	}
	if _, err := in.onDisk(ctx, s.Sum); err != nil {
		return nil, err
	}
	w, err := open(r.Artifact, in)
	if err != nil {
		return nil, err
	}
	build, err := in.flags(ctx, r.CacheDir)
	if err != nil {
		return nil, err
	}
	flags, err := wanted(r, v, w, in.cpu())
	if err != nil {
		return nil, err
	}
	args, waived, err := build.Arguments(flags, v)
	if err != nil {
		return nil, err
	}
	if s.Env, err = environment(r, v, in); err != nil {
		return nil, err
	}
	command, err := in.command(ctx, w.model)
	if err != nil {
		return nil, err
	}
	s.Argv, s.Launch, s.Weights = append(command, args...), in.Launch(), w.files
	s.Notes = adapter.WaivedFacts(waived, build.Help)
	return &session{s, w}, nil
}

// session asks one running vLLM.
type session struct {
	*adapter.Server
	weights weights
}

// logLines is how much of a load's log is searched for the kernels in use; a load with graphs prints some hundred lines.
const logLines = 5000

// Accept reads back what was started, compares it, and shows that no prompt is cached.
func (x *session) Accept(ctx context.Context, first openai.Completion) (adapter.Accepted, error) {
	var got adapter.Accepted
	s, err := readBack(ctx, x.Client, x.Request.ModelName)
	if err != nil {
		return got, err
	}
	p := adapter.Probed{Reported: first.CachedTokens.Present()}
	if !x.Attached() {
		if err := s.compare(x.Request, x.weights); err != nil {
			return got, err
		}
		p, err = adapter.Probe{Client: x.Client, Model: x.Request.ModelName, Room: s.granted.ContextTokens - 1, Tokenize: x.Tokenize, Cached: cachedTotal, Feature: "prefix"}.Run(ctx)
		if err != nil {
			return got, err
		}
		log, err := x.LogTail(logLines)
		if err != nil {
			return got, err
		}
		x.Notes = append(append(x.Notes, adapter.Seen(matrix.FactPrefixCache, "off", p.Where+", and /server_info")), adapter.LogFacts(logged, log)...)
		if first.Fingerprint != "" {
			x.Notes = append(x.Notes, adapter.Seen(fingerprint.FactConfig+"system_fingerprint", first.Fingerprint, "system_fingerprint of an answer"))
		}
	}
	return adapter.Accepted{Facts: x.facts(s), Granted: s.granted, Dialect: dialectOf(x.Client.Base, x.Request.ModelName, s.granted, p)}, nil
}

// facts are what the server says of itself, with what its start showed.
func (x *session) facts(s state) matrix.Facts {
	facts := append(matrix.Facts{adapter.Said(matrix.FactEngine, kind, "owned_by of /v1/models")}, s.facts()...)
	return append(facts, x.Notes...)
}

// observeLimit bounds the questions to a server whose worker may hang.
const observeLimit = 10 * time.Second

// Observe asks the server what it is and does now.
func (x *session) Observe(ctx context.Context, st *matrix.State) (matrix.Facts, error) {
	if adapter.Halted(st.Processes) {
		return nil, nil // every endpoint would still answer 200
	}
	ctx, cancel := context.WithTimeout(ctx, observeLimit)
	defer cancel()
	if _, err := x.Client.Raw(ctx, http.MethodGet, "/health", nil); openai.IsStatus(err, http.StatusServiceUnavailable) {
		return nil, nil // the engine core is dead, and the API server is about to end
	}
	s, err := readBack(ctx, x.Client, x.Request.ModelName)
	if err != nil {
		return nil, err
	}
	st.Alive = true
	m, err := x.Client.Metrics(ctx, "/metrics")
	switch {
	case err == nil:
		counters(st, m)
	case x.Attached() && openai.IsStatus(err, http.StatusNotFound):
		err = nil // an attached server without metrics: the counters stay unknown
	}
	return x.facts(s), err
}

// Tokenize returns the engine's ids of a text, without the tokens that it adds to a prompt.
func (x *session) Tokenize(ctx context.Context, text string) ([]int, error) {
	return x.Client.Tokenize(ctx, "/tokenize", map[string]any{"model": x.Request.ModelName, "prompt": text, "add_special_tokens": false})
}
