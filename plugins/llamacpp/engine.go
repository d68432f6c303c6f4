package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"enginebroker/engines/adapter"
	"enginebroker/engines/fingerprint"
	"enginebroker/engines/openai"
	"enginebroker/matrix"
)

// images is the command of the server in an image.
var images = [][]string{{"llama-server"}}

// newEngine is one instance of the adapter.
func newEngine() *adapter.Instance {
	exact := sampling()
	// Ids of a stream are lossy; an unstreamed answer has them all.
	exact["verbose"], exact["return_tokens"], exact["ignore_eos"] = true, true, true
	return adapter.New(adapter.Adapter{
		Kind: kind, Rules: rules, Capabilities: capabilities(), Refuses: refuses, Causes: causes,
		Ready: openai.Readiness{Gate: "/health", Extra: sampling(), Echoes: true}, Exact: exact,
		Images:   images,
		Made:     []string{matrix.FactBackend, matrix.FactKVDtype, matrix.FactWeightsProof, fingerprint.FactConfig + "model_ftype"},
		Describe: describe, Prepare: prepare,
	})
}

// prepare checks everything that can be checked before the launch.
func prepare(ctx context.Context, v openai.Values, s *adapter.Server) (adapter.Session, error) {
	if s.Attached() {
		return &session{Server: s}, nil
	}
	r := s.Request
	in, ask, err := found(v, s)
	if err != nil {
		return nil, err
	}
	model, err := modelFile(r.Artifact)
	if err != nil {
		return nil, err
	}
	help, err := ask(ctx, "--help")
	if err != nil {
		return nil, &adapter.NotInstalled{Err: err}
	}
	flags, err := wanted(r, v, model)
	if err != nil {
		return nil, err
	}
	args, waived, err := adapter.Build{Known: parseHelp(help), Help: in.binary + " --help"}.Arguments(flags, v)
	if err != nil {
		return nil, err
	}
	s.Env = map[string]string{}
	if r.CacheDir != "" {
		s.Env["CUDA_CACHE_PATH"] = filepath.Join(r.CacheDir, "cuda") // compiled kernels decide speed: never those of somebody else
	}
	maps.Copy(s.Env, v.Map("env"))
	maps.Copy(s.Env, in.env)
	s.Argv, s.Links, s.Launch, s.Weights = append(slices.Clone(in.command), args...), in.links, in.program(), []string{model}
	s.Notes = adapter.WaivedFacts(waived, in.binary+" --help")
	return &session{s, in, v.Text("kv_dtype"), in.wantedBackend(v.Text("backend"))}, nil
}

// found is where the server comes from, and how it is asked for its flags: an installation, or an image.
func found(v openai.Values, s *adapter.Server) (install, func(context.Context, string) (string, error), error) {
	if s.Image != nil {
		return install{binary: s.Image.Image}, func(ctx context.Context, arg string) (string, error) { return s.Image.Help(ctx, nil, arg) }, nil
	}
	in, err := locate(v)
	return in, in.ask, err
}

// session asks one running llama-server.
type session struct {
	*adapter.Server
	in      install
	kvDtype string
	backend string // the library that must be mapped; empty: any
}

// probePrompt is long enough to be worth caching and no text of any corpus.
var probePrompt = strings.Repeat("The broker asks this once and then once more. ", 6)

// Accept reads back what was started, compares it, and shows that no prompt is cached.
func (x *session) Accept(ctx context.Context, _ openai.Completion) (adapter.Accepted, error) {
	var got adapter.Accepted
	s, err := readBack(ctx, x.Client, x.Request.Policy)
	if err != nil {
		return got, err
	}
	added := 0
	if !x.Attached() {
		if err := s.compare(x.Request); err != nil {
			return got, err
		}
		var cache matrix.Fact
		if cache, added, err = x.probe(ctx); err != nil {
			return got, err
		}
		log, err := x.LogTail(logLines)
		if err != nil {
			return got, err
		}
		x.Notes = append(append(x.Notes, offloaded(log)...), cache, adapter.Said(matrix.FactKVDtype, x.kvDtype, "--cache-type-k, --cache-type-v"))
	}
	return adapter.Accepted{Facts: x.facts(s), Granted: s.granted, Dialect: dialectOf(x.Client.Base, x.Request.ModelName, s.granted, added), Backend: x.backend}, nil
}

// logLines is how much of a load's log is searched for the layers on the GPU; a load prints some hundred lines.
const logLines = 5000

var offloadedLine = regexp.MustCompile(`offloaded (\d+)/(\d+) layers to GPU`)

// offloaded says how many layers a build with a GPU put there. Where it is not all of them the rest runs on the CPU, many
// times slower, which no route tells (bugs.md G06).
func offloaded(log []string) matrix.Facts {
	for _, line := range log {
		m := offloadedLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		facts := matrix.Facts{adapter.Seen(fingerprint.FactConfig+"offloaded_layers", m[1]+"/"+m[2], "server log")}
		if m[1] != m[2] {
			facts = append(facts, adapter.Seen(fingerprint.FactWarning, m[1]+" of "+m[2]+" layers are on the GPU", "server log"))
		}
		return facts
	}
	return nil
}

// probe sends one prompt twice: nothing of the second may come from a cache. The same answer tells how many tokens the
// server adds to a prompt.
func (x *session) probe(ctx context.Context) (fact matrix.Fact, added int, err error) {
	var last openai.Completion
	for range 2 {
		if last, err = x.Client.Complete(ctx, x.Request.ModelName, probePrompt, 1, sampling()); err != nil {
			return fact, 0, fmt.Errorf("prefix cache probe: %w", err)
		}
	}
	cached, ok := last.CachedTokens.Get()
	switch {
	case ok && cached > 0:
		return fact, 0, &matrix.StartFailure{Code: "prefix_cache", Message: fmt.Sprintf("the prefix cache is on: %d prompt tokens of an equal prompt came from it", cached)}
	case ok:
		fact = adapter.Seen(matrix.FactPrefixCache, "off", "two equal prompts, cached_tokens 0 in the second")
	default:
		fact = adapter.Said(matrix.FactPrefixCache, "off", "--no-cache-prompt; the answers do not say how much was cached")
	}
	ids, err := x.Client.Tokenize(ctx, "/tokenize", map[string]any{"content": probePrompt})
	if err != nil {
		return fact, 0, err
	}
	n, ok := last.PromptTokens.Get()
	if !ok {
		return fact, 0, errors.New("the answer has no usage.prompt_tokens")
	}
	return fact, int(n) - len(ids), nil
}

// facts are what the server says of itself, with what its package says and its start showed.
func (x *session) facts(s state) matrix.Facts {
	facts := append(matrix.Facts{adapter.Said(matrix.FactEngine, kind, "setting plugin")}, x.in.packageFacts()...)
	return append(append(facts, s.facts...), x.Notes...)
}

// Observe asks the server what it is and does now.
func (x *session) Observe(ctx context.Context, st *matrix.State) (matrix.Facts, error) {
	s, err := readBack(ctx, x.Client, x.Request.Policy)
	if err != nil {
		return nil, err
	}
	st.Alive = true
	m, err := x.Client.Metrics(ctx, "/metrics")
	switch {
	case err == nil:
		counters(st, m)
	case openai.IsStatus(err, http.StatusNotImplemented):
		err = nil // an attached server without --metrics: the counters stay unknown
	}
	return x.facts(s), err
}

func counters(st *matrix.State, m openai.Metrics) {
	st.Running = m.Count("llamacpp:requests_processing")
	st.Generated = m.Count("llamacpp:tokens_predicted_total")
	st.CachedTokens = m.Count("llamacpp:prompt_tokens_cached_total")
	st.DraftedTokens = m.Count("llamacpp:spec_decode_num_draft_tokens_total")
	st.AcceptedTokens = m.Count("llamacpp:spec_decode_num_accepted_tokens_total")
}

// Tokenize returns the engine's ids of a text, without the tokens that it adds to a prompt.
func (x *session) Tokenize(ctx context.Context, text string) ([]int, error) {
	return x.Client.Tokenize(ctx, "/tokenize", map[string]any{"content": text, "add_special": false})
}
