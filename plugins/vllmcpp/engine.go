package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"enginebroker/engines"
	"enginebroker/engines/adapter"
	"enginebroker/engines/fingerprint"
	"enginebroker/engines/openai"
	"enginebroker/engines/process"
	"enginebroker/matrix"
)

// newEngine is one instance of the adapter. The name in an answer is the request's, so /v1/models tells the model; and this
// engine gives no ids over HTTP.
func newEngine() *adapter.Instance {
	return adapter.New(adapter.Adapter{
		Kind: kind, Rules: rules, Capabilities: capabilities(), Refuses: refuses, Causes: causes,
		Exact:    map[string]any{"ignore_eos": true},
		Made:     []string{matrix.FactWeightsProof, matrix.FactSpeculation, matrix.FactPrefixCache},
		Images:   images,
		Describe: describe, Prepare: prepare,
	})
}

// prepare checks everything that can be checked before the launch.
func prepare(ctx context.Context, v openai.Values, s *adapter.Server) (adapter.Session, error) {
	if s.Attached() {
		return &session{s}, nil
	}
	r := s.Request
	binary, ask, err := found(v, s.Image)
	if err != nil {
		return nil, err
	}
	model, files, err := weights(r.Artifact)
	if err != nil {
		return nil, err
	}
	help, err := ask(ctx)
	if err != nil {
		return nil, &adapter.NotInstalled{Err: err}
	}
	build := adapter.Build{Known: parseHelp(help), Help: binary + " --help"}
	if s.Image != nil {
		build.Help = s.Image.Image + " --help"
	}
	flags, err := wanted(r, v, model, build.Known)
	if err != nil {
		return nil, err
	}
	args, waived, err := build.Arguments(flags, v)
	if err != nil {
		return nil, err
	}
	// Builds before the fix sent a comment frame every 15 s of silence.
	s.Env = map[string]string{"VT_SERVER_SSE_PING_S": "0"}
	if r.CacheDir != "" {
		s.Env["CUDA_CACHE_PATH"] = filepath.Join(r.CacheDir, "cuda") // compiled kernels decide speed: never those of somebody else
	}
	maps.Copy(s.Env, v.Map("env"))
	s.Argv, s.Launch, s.Weights = args, binary, files
	if s.Image == nil {
		s.Argv = append([]string{binary}, args...)
	}
	s.Notes = adapter.WaivedFacts(waived, build.Help)
	return &session{s}, nil
}

// session asks one running server.
type session struct{ *adapter.Server }

// Accept shows that no prompt is cached, and compares what this build tells of itself.
func (x *session) Accept(ctx context.Context, _ openai.Completion) (adapter.Accepted, error) {
	var got adapter.Accepted
	r := x.Request
	if !x.Attached() {
		log, err := x.LogTail(process.TailLines)
		if err != nil {
			return got, err
		}
		cache, err := x.cacheFact(ctx, log)
		if err != nil {
			return got, err
		}
		x.Notes = append(x.Notes, cache)
	}
	s, err := x.ask(ctx)
	if err != nil {
		return got, err
	}
	if !x.Attached() {
		if n, ok := s.context.Get(); ok && n < r.Limits.ContextTokens {
			return got, &matrix.StartFailure{Code: "limits", Message: fmt.Sprintf("asked for %d tokens per request, granted %d (/tokenize max_model_len)", r.Limits.ContextTokens, n)}
		}
		if said, ok := s.facts.Value(matrix.FactSpeculation).Get(); ok && (said != "none") != (r.Policy.Kind == matrix.Drafted) {
			return got, &matrix.StartFailure{Code: "policy", Message: fmt.Sprintf("the policy is %s, and /metrics says speculation %s", r.Policy, said)}
		}
	}
	granted := matrix.Limits{ContextTokens: s.context.Or(0)}
	return adapter.Accepted{Facts: s.facts, Granted: granted, Dialect: dialectOf(x.Client.Base, r, granted, s.context.Present())}, nil
}

// cacheFact shows that the prefix cache is off: by an equal prompt where the answers or counters tell, else by the line that
// the server logs about it.
func (x *session) cacheFact(ctx context.Context, log []string) (matrix.Fact, error) {
	prompt := strings.Repeat("The broker asks this once and then once more. ", 6)
	cached, err := openai.CacheProof(ctx, x.Client, x.Request.ModelName, prompt, nil)
	if err != nil {
		return matrix.Fact{}, err
	}
	where := "two equal prompts, cached_tokens 0 in the second"
	if !cached.Present() {
		if m, err := x.Client.Metrics(ctx, "/metrics"); err == nil {
			cached, where = m.Count("vllm:prefix_cache_hits_total"), "two equal prompts, no hit in vllm:prefix_cache_hits_total"
		}
	}
	n, told := cached.Get()
	switch {
	case n > 0 || slices.Contains(log, "server: prefix caching enabled"):
		return matrix.Fact{}, &matrix.StartFailure{Code: "prefix_cache", Message: "the prefix cache is on"}
	case told:
		return adapter.Seen(matrix.FactPrefixCache, "off", where), nil
	case slices.Contains(log, "server: prefix caching disabled"):
		return adapter.Seen(matrix.FactPrefixCache, "off", "the server's log: prefix caching disabled"), nil
	}
	return adapter.Said(matrix.FactPrefixCache, "off", "--no-enable-prefix-caching"), nil
}

// state is what the server says of itself on the routes that this build has.
type state struct {
	facts   matrix.Facts
	context matrix.Opt[int] // absent where the build has no /tokenize
	metrics openai.Metrics  // nil where it has no /metrics
}

func (x *session) ask(ctx context.Context) (state, error) {
	s := state{facts: matrix.Facts{adapter.Said(matrix.FactEngine, kind, "setting plugin")}}
	add := func(f matrix.Fact) { s.facts = append(s.facts, f) }
	var version struct{ Version string }
	if err := x.Client.Get(ctx, "/version", &version); err == nil {
		add(adapter.Said(matrix.FactVersion, version.Version, "/version"))
	} else if !openai.IsStatus(err, http.StatusNotFound) {
		return s, err
	}
	var tokens struct {
		Max int `json:"max_model_len"`
	}
	if err := x.Client.Post(ctx, "/tokenize", map[string]any{"prompt": "a"}, &tokens); err == nil {
		s.context = matrix.Some(tokens.Max)
		add(adapter.Seen(matrix.FactContextTokens, strconv.Itoa(tokens.Max), "/tokenize max_model_len"))
	} else if !openai.IsStatus(err, http.StatusNotFound) {
		return s, err
	} else if !x.Attached() {
		add(adapter.Said(matrix.FactContextTokens, strconv.Itoa(x.Request.Limits.ContextTokens), "--max-model-len; this build does not tell"))
	}
	if !x.Attached() {
		add(adapter.Said(matrix.FactConcurrency, strconv.Itoa(x.Request.Limits.Concurrency), "--max-num-seqs; no route tells"))
	}
	m, err := x.Client.Metrics(ctx, "/metrics")
	switch {
	case err == nil && m.Has("vllm:spec_decode_num_drafts_total"): // exists only where a configuration was given
		add(adapter.Seen(matrix.FactSpeculation, cmp.Or(x.Request.Policy.Drafter, "unknown method"), "/metrics has the spec_decode families; the method is the one asked for"))
	case err == nil:
		add(adapter.Seen(matrix.FactSpeculation, "none", "/metrics has no spec_decode families"))
	case !openai.IsStatus(err, http.StatusNotFound):
		return s, err
	case !x.Attached() && x.Request.Policy.Kind != matrix.Drafted:
		add(adapter.Said(matrix.FactSpeculation, "none", "no --speculative-config; this build has no /metrics"))
	}
	s.metrics, s.facts = m, append(s.facts, x.Notes...)
	return s, nil
}

// Observe asks the server what it is and does now. Its /health answers 200 after the engine's loop has died, so life is
// shown by one generated token.
func (x *session) Observe(ctx context.Context, st *matrix.State) (matrix.Facts, error) {
	if _, err := x.Client.Complete(ctx, x.Request.ModelName, "Hello", 1, nil); err != nil {
		if status, ok := errors.AsType[*openai.StatusError](err); ok {
			return matrix.Facts{adapter.Seen(fingerprint.FactWarning, status.Error(), "one token was asked for")}, nil // it answers, and it is dead
		}
		return nil, err
	}
	s, err := x.ask(ctx)
	if err != nil {
		return nil, err
	}
	st.Alive = true
	st.Running = s.metrics.Count("vllm:num_requests_running")
	st.Generated = s.metrics.Count("vllm:generation_tokens_total")
	st.CachedTokens = s.metrics.Count("vllm:prefix_cache_hits_total")
	st.DraftedTokens = s.metrics.Count("vllm:spec_decode_num_draft_tokens_total")
	st.AcceptedTokens = s.metrics.Count("vllm:spec_decode_num_accepted_tokens_total")
	return s.facts, nil
}

// Tokenize returns the engine's ids of a text where this build has the route.
func (x *session) Tokenize(ctx context.Context, text string) ([]int, error) {
	ids, err := x.Client.Tokenize(ctx, "/tokenize", map[string]any{"prompt": text, "add_special_tokens": false})
	if openai.IsStatus(err, http.StatusNotFound) {
		return nil, fmt.Errorf("this build has no /tokenize: %w", engines.ErrUnsupported)
	}
	return ids, err
}
