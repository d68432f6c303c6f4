package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"enginebroker/engines"
	"enginebroker/engines/artifact"
	"enginebroker/engines/fingerprint"
	"enginebroker/engines/openai"
	"enginebroker/engines/process"
	"enginebroker/matrix"
)

// engine is one instance of the adapter.
type engine struct {
	runtime process.Runtime
	sums    *artifact.Sums
	slot    process.Slot

	mu       sync.Mutex
	settings engines.Settings
	server   *server
}

// server is the one that runs, or that the instance is attached to.
type server struct {
	client  *openai.Client
	request matrix.StartRequest
	in      install
	pids    func() ([]matrix.Process, error)
	more    matrix.Facts // of the start, which asking again does not renew
}

var _ engines.Engine = (*engine)(nil)

func newEngine() *engine {
	sums, err := artifact.OpenSums("") // in memory: it cannot fail
	if err != nil {
		panic(err)
	}
	return &engine{runtime: process.Local{}, sums: sums}
}

func (e *engine) values() openai.Values {
	e.mu.Lock()
	defer e.mu.Unlock()
	return openai.NewValues(schema, e.settings)
}

func (e *engine) configured() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.settings != nil
}

// Configure takes the settings.
func (e *engine) Configure(_ context.Context, s engines.Settings) ([]engines.FieldError, error) {
	if faults := check(s); len(faults) > 0 {
		return faults, nil
	}
	in, err := locate(openai.NewValues(schema, s))
	if errors.Is(err, errBackend) && len(in.backends) > 0 {
		return []engines.FieldError{{Field: "backend", Message: err.Error()}}, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.settings = maps.Clone(s); e.settings == nil {
		e.settings = engines.Settings{}
	}
	return nil, nil
}

// Start launches a server, or describes the one it is attached to.
func (e *engine) Start(ctx context.Context, r matrix.StartRequest, progress func(matrix.Progress)) (matrix.Ready, error) {
	if !e.configured() {
		return matrix.Ready{}, engines.ErrNotConfigured
	}
	v := e.values()
	if url := v.Text("attach"); url != "" {
		return e.attach(ctx, url, r, progress)
	}
	in, err := locate(v)
	if err != nil {
		return matrix.Ready{}, &matrix.StartFailure{Code: "not_installed", Phase: "launch", Message: err.Error() + "; looked for " + strings.Join(in.looked, ", "), Fix: "set binary or root"}
	}
	model, err := modelFile(r.Artifact)
	if err != nil {
		return matrix.Ready{}, err
	}
	help, err := in.ask(ctx, "--help")
	if err != nil {
		return matrix.Ready{}, &matrix.StartFailure{Code: "not_installed", Phase: "launch", Message: err.Error()}
	}
	args, waived, err := arguments(r, v, model, parseHelp(help))
	if err != nil {
		return matrix.Ready{}, err
	}
	env := map[string]string{}
	if r.CacheDir != "" {
		env["CUDA_CACHE_PATH"] = filepath.Join(r.CacheDir, "cuda") // compiled kernels decide speed: never those of somebody else
	}
	maps.Copy(env, v.Map("env"))
	maps.Copy(env, in.env)
	client := openai.New("http://"+net.JoinHostPort(r.Host, strconv.Itoa(r.Port)), nil)
	limit := v.Duration("ready_timeout")
	if limit == 0 {
		limit = r.ReadyLimit
	}
	var ready matrix.Ready
	srv := &server{client: client, request: r, in: in}
	for _, w := range waived {
		srv.more = append(srv.more, said(fingerprint.FactConfig+"waived."+w, "not known to this build", in.binary+" --help"))
	}
	tree, err := e.slot.Start(ctx, process.Start{
		Runtime: e.runtime, Limit: limit, Causes: causes, Progress: progress,
		Spec: process.Spec{LoadID: r.LoadID, Argv: append(slices.Clone(in.command), args...), Env: env, Links: in.links,
			Host: r.Host, Port: r.Port, LogPath: r.LogPath, StatePath: r.StatePath},
		Ready: func(ctx context.Context, t process.Tree, progress func(matrix.Progress)) error {
			srv.pids = t.Processes
			ready, err = e.ready(ctx, srv, v, model, t.Launched(), progress)
			return err
		},
	})
	if err != nil {
		client.Close()
		return matrix.Ready{}, err
	}
	launched := tree.Launched()
	for _, name := range launched.Scrubbed {
		ready.Facts = append(ready.Facts, seen(fingerprint.FactConfig+"withheld."+name, "not passed on", "environment of the adapter"))
	}
	ready.LogPath = launched.LogPath
	e.mu.Lock()
	e.server = srv
	e.mu.Unlock()
	return ready, nil
}

// probePrompt is long enough to be worth caching and no text of any corpus.
var probePrompt = strings.Repeat("The broker asks this once and then once more. ", 6)

// ready waits for a token, then reads back what was started.
func (e *engine) ready(ctx context.Context, srv *server, v openai.Values, model string, l process.Launched, progress func(matrix.Progress)) (matrix.Ready, error) {
	r := srv.request
	var ready matrix.Ready
	phase := func(p matrix.Progress) {
		if p.Phase == "generate" {
			ready.LoadTime = time.Since(l.Start)
		}
		progress(p)
	}
	_, err := openai.Ready(ctx, srv.client, openai.Readiness{Model: r.ModelName, Gate: "/health", Prompt: "Hello", Tokens: 2, Extra: sampling(), Echoes: true, Progress: phase})
	if err != nil {
		return ready, err
	}
	ready.FirstToken = time.Since(l.Start)
	var s state
	if s, err = readBack(ctx, srv.client, srv.request.Policy); err != nil {
		return ready, err
	}
	if err := s.compare(r); err != nil {
		return ready, err
	}
	cache, added, err := probe(ctx, srv.client, r.ModelName)
	if err != nil {
		return ready, err
	}
	srv.more = append(srv.more, cache, said(matrix.FactKVDtype, v.Text("kv_dtype"), "--cache-type-k, --cache-type-v"))
	if ready.Processes, err = srv.pids(); err != nil {
		return ready, err
	}
	ready.LoadedFiles = []string{model}
	if ready.Facts, ready.Print, err = e.identity(ctx, srv, ready.Processes, s, []string{model}); err != nil {
		return ready, err
	}
	if err := checkBackend(ready.Facts, srv.in, v.Text("backend")); err != nil {
		return ready, err
	}
	ready.Granted = s.granted
	ready.Dialect = dialectOf(srv.client.Base, r.ModelName, s.granted, added)
	ready.Argv, ready.Env = fingerprint.ScrubArgv(l.Argv), fingerprint.ScrubEnv(l.Env)
	return ready, nil
}

// probe sends one prompt twice: nothing of the second may come from a cache. The same answer tells how many tokens the
// server adds to a prompt.
func probe(ctx context.Context, c *openai.Client, model string) (fact matrix.Fact, added int, err error) {
	var last openai.Completion
	for range 2 {
		if last, err = c.Complete(ctx, model, probePrompt, 1, sampling()); err != nil {
			return fact, 0, fmt.Errorf("prefix cache probe: %w", err)
		}
	}
	cached, ok := last.CachedTokens.Get()
	switch {
	case ok && cached > 0:
		return fact, 0, &matrix.StartFailure{Code: "prefix_cache", Message: fmt.Sprintf("the prefix cache is on: %d prompt tokens of an equal prompt came from it", cached)}
	case ok:
		fact = seen(matrix.FactPrefixCache, "off", "two equal prompts, cached_tokens 0 in the second")
	default:
		fact = said(matrix.FactPrefixCache, "off", "--no-cache-prompt; the answers do not say how much was cached")
	}
	ids, err := c.Tokenize(ctx, "/tokenize", map[string]any{"content": probePrompt})
	if err != nil {
		return fact, 0, err
	}
	n, ok := last.PromptTokens.Get()
	if !ok {
		return fact, 0, errors.New("the answer has no usage.prompt_tokens")
	}
	return fact, int(n) - len(ids), nil
}

// identity reads what runs: mapped objects, the proof of the weights, and what the server says.
func (e *engine) identity(ctx context.Context, srv *server, tree []matrix.Process, s state, weights []string) (matrix.Facts, string, error) {
	facts := matrix.Facts{said(matrix.FactEngine, kind, "setting plugin")}
	pids := make([]int, len(tree))
	for i, p := range tree {
		pids[i] = p.PID
	}
	if len(pids) > 0 {
		print, err := fingerprint.Of(ctx, fingerprint.Options{PIDs: pids, Launch: srv.in.binary, Sum: e.sums.Sum, Private: srv.request.CacheDir})
		if err != nil {
			return nil, "", err
		}
		facts = append(facts, print.Facts...)
		if len(weights) > 0 {
			proof, err := fingerprint.Weights("", pids, weights)
			if err != nil {
				return nil, "", err
			}
			facts = append(facts, proof.Fact())
		}
	}
	if p := packageVersion(srv.in.status); p != "" {
		facts = append(facts, said(fingerprint.FactPackage+"llama.cpp-tools", p, srv.in.status))
	}
	facts = append(append(facts, s.facts...), srv.more...)
	print, err := fingerprint.ArmPrint(facts)
	return facts, print, err
}

func (e *engine) running() (*server, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.server == nil {
		return nil, engines.ErrNotStarted
	}
	return e.server, nil
}

// Observe asks the server what it is and does now.
func (e *engine) Observe(ctx context.Context) (matrix.State, error) {
	srv, err := e.running()
	if err != nil {
		return matrix.State{}, err
	}
	var st matrix.State
	if t, err := e.slot.Tree(); err == nil {
		if x, ok := t.Exit().Get(); ok {
			st.Exit = matrix.Some(x.Code)
			st.Processes, err = srv.pids()
			return st, err
		}
	}
	if st.Processes, err = srv.pids(); err != nil {
		return st, err
	}
	s, err := readBack(ctx, srv.client, srv.request.Policy)
	if err != nil {
		return st, err
	}
	st.Alive = true
	var weights []string
	if srv.request.Artifact.Path != "" && srv.in.binary != "" {
		model, err := modelFile(srv.request.Artifact)
		if err != nil {
			return st, err
		}
		weights = []string{model}
	}
	if st.Facts, st.Print, err = e.identity(ctx, srv, st.Processes, s, weights); err != nil {
		return st, err
	}
	m, err := srv.client.Metrics(ctx, "/metrics")
	if openai.IsStatus(err, 501) {
		return st, nil // an attached server without --metrics: the counters stay unknown
	}
	if err != nil {
		return st, err
	}
	counters(&st, m)
	return st, nil
}

func counters(st *matrix.State, m openai.Metrics) {
	st.Running = m.Count("llamacpp:requests_processing")
	st.Generated = m.Count("llamacpp:tokens_predicted_total")
	st.CachedTokens = m.Count("llamacpp:prompt_tokens_cached_total")
	st.DraftedTokens = m.Count("llamacpp:spec_decode_num_draft_tokens_total")
	st.AcceptedTokens = m.Count("llamacpp:spec_decode_num_accepted_tokens_total")
}

// Tokenize returns the engine's ids of a text, without the tokens that it adds to a prompt.
func (e *engine) Tokenize(ctx context.Context, text string) ([]int, error) {
	srv, err := e.running()
	if err != nil {
		return nil, err
	}
	return srv.client.Tokenize(ctx, "/tokenize", map[string]any{"content": text, "add_special": false})
}

// Stop ends the server and proves it gone. From an attached one it only lets go: How is detached, and nothing is proved.
func (e *engine) Stop(ctx context.Context, deadline time.Duration) (matrix.Stopped, error) {
	e.mu.Lock()
	srv := e.server
	attached := srv != nil && srv.in.binary == ""
	if attached {
		e.server = nil
	}
	e.mu.Unlock()
	if attached {
		srv.client.Close()
		return matrix.Stopped{How: "detached"}, nil
	}
	if srv != nil {
		srv.client.Close() // llama-server waits 5 s for idle connections before it exits
	}
	stopped, err := e.slot.Stop(ctx, deadline)
	if stopped.Gone() {
		e.mu.Lock()
		e.server = nil
		e.mu.Unlock()
	}
	return stopped, err
}

// Preflight starts once, answers one request with the exact ids, and stops.
func (e *engine) Preflight(ctx context.Context, r matrix.StartRequest, progress func(matrix.Progress)) (matrix.PreflightResult, error) {
	if e.values().Text("attach") != "" {
		return matrix.PreflightResult{}, engines.ErrUnsupported
	}
	ready, err := e.Start(ctx, r, progress)
	if err != nil {
		return matrix.PreflightResult{}, err
	}
	result := matrix.PreflightResult{Ready: matrix.Some(ready)}
	srv, err := e.running()
	if err == nil {
		body := sampling()
		// Ids of a stream are lossy; an unstreamed answer has them all.
		body["verbose"], body["return_tokens"], body["ignore_eos"] = true, true, true
		var a openai.Completion
		if a, err = srv.client.Complete(ctx, r.ModelName, preflightPrompt, 16, body); err == nil {
			result.Text, result.IDs = a.Text, a.IDs
			result.Made = made(ready.Facts)
		}
	}
	stopped, serr := e.Stop(context.WithoutCancel(ctx), process.DefaultCleanup)
	result.Stopped = stopped
	return result, errors.Join(err, serr)
}

const preflightPrompt = "Once upon a time"

// made picks what the engine made of the file.
func made(facts matrix.Facts) matrix.Facts {
	var out matrix.Facts
	for _, f := range facts {
		if f.Name == matrix.FactBackend || f.Name == matrix.FactKVDtype || f.Name == matrix.FactWeightsProof || f.Name == fingerprint.FactConfig+"model_ftype" {
			out = append(out, f)
		}
	}
	return out
}
