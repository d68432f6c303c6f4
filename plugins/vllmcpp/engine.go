package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
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
	client   *openai.Client
	request  matrix.StartRequest
	binary   string // empty when attached
	files    []string
	pids     func() ([]matrix.Process, error)
	more     matrix.Facts // of the start, which asking again does not renew
	tokenize bool
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
	binary, looked, err := locate(v)
	if err != nil {
		return matrix.Ready{}, &matrix.StartFailure{Code: "not_installed", Phase: "launch", Message: err.Error() + "; looked for " + strings.Join(looked, ", "), Fix: "set binary"}
	}
	model, files, err := weights(r.Artifact)
	if err != nil {
		return matrix.Ready{}, err
	}
	help, err := ask(ctx, binary, "--help")
	if err != nil {
		return matrix.Ready{}, &matrix.StartFailure{Code: "not_installed", Phase: "launch", Message: err.Error()}
	}
	args, waived, err := arguments(r, v, model, parseHelp(help))
	if err != nil {
		return matrix.Ready{}, err
	}
	// Builds before the fix sent a comment frame every 15 s of silence.
	env := map[string]string{"VT_SERVER_SSE_PING_S": "0"}
	if r.CacheDir != "" {
		env["CUDA_CACHE_PATH"] = filepath.Join(r.CacheDir, "cuda") // compiled kernels decide speed: never those of somebody else
	}
	maps.Copy(env, v.Map("env"))
	srv := &server{client: openai.New("http://"+net.JoinHostPort(r.Host, strconv.Itoa(r.Port)), nil), request: r, binary: binary, files: files}
	for _, w := range waived {
		srv.more = append(srv.more, said(fingerprint.FactConfig+"waived."+w, "not known to this build", binary+" --help"))
	}
	limit := v.Duration("ready_timeout")
	if limit == 0 {
		limit = r.ReadyLimit
	}
	var ready matrix.Ready
	tree, err := e.slot.Start(ctx, process.Start{
		Runtime: e.runtime, Limit: limit, Causes: causes, Progress: progress,
		Spec: process.Spec{LoadID: r.LoadID, Argv: append([]string{binary}, args...), Env: env, Host: r.Host, Port: r.Port, LogPath: r.LogPath, StatePath: r.StatePath},
		Ready: func(ctx context.Context, t process.Tree, progress func(matrix.Progress)) error {
			srv.pids = t.Processes
			ready, err = e.ready(ctx, srv, t, progress)
			return err
		},
	})
	if err != nil {
		srv.client.Close()
		return matrix.Ready{}, err
	}
	l := tree.Launched()
	for _, name := range l.Scrubbed {
		ready.Facts = append(ready.Facts, seen(fingerprint.FactConfig+"withheld."+name, "not passed on", "environment of the adapter"))
	}
	ready.Argv, ready.Env, ready.LogPath, ready.LoadedFiles = fingerprint.ScrubArgv(l.Argv), fingerprint.ScrubEnv(l.Env), l.LogPath, files
	e.mu.Lock()
	e.server = srv
	e.mu.Unlock()
	return ready, nil
}

// ready waits for a token, then reads back what was started.
func (e *engine) ready(ctx context.Context, srv *server, t process.Tree, progress func(matrix.Progress)) (matrix.Ready, error) {
	r, start := srv.request, t.Launched().Start
	var ready matrix.Ready
	phase := func(p matrix.Progress) {
		if p.Phase == "generate" {
			ready.LoadTime = time.Since(start)
		}
		progress(p)
	}
	// Connections are refused until the model is loaded; the name in an answer is the request's, so /v1/models tells it.
	if _, err := openai.Ready(ctx, srv.client, openai.Readiness{Model: r.ModelName, Prompt: "Hello", Tokens: 2, Progress: phase}); err != nil {
		return ready, err
	}
	ready.FirstToken = time.Since(start)
	log, err := t.LogTail(process.TailLines)
	if err != nil {
		return ready, err
	}
	if srv.more, err = cacheFacts(ctx, srv.client, r.ModelName, log, srv.more); err != nil {
		return ready, err
	}
	if ready.Processes, err = srv.pids(); err != nil {
		return ready, err
	}
	ready.Facts, ready.Granted, ready.Print, err = e.identity(ctx, srv, ready.Processes)
	if err != nil {
		return ready, err
	}
	if g := ready.Granted.ContextTokens; g != 0 && g < r.Limits.ContextTokens {
		return ready, &matrix.StartFailure{Code: "limits", Message: fmt.Sprintf("asked for %d tokens per request, granted %d (/tokenize max_model_len)", r.Limits.ContextTokens, g)}
	}
	if got, ok := ready.Facts.Value(matrix.FactSpeculation).Get(); ok && (got != "none") != (r.Policy.Kind == matrix.Drafted) {
		return ready, &matrix.StartFailure{Code: "policy", Message: fmt.Sprintf("the policy is %s, and /metrics says speculation %s", r.Policy, got)}
	}
	ready.Dialect = dialectOf(srv.client.Base, r, ready.Granted, srv.tokenize)
	return ready, nil
}

// cacheFacts shows that the prefix cache is off: by an equal prompt where the answers or counters tell, else by the line
// that the server logs about it.
func cacheFacts(ctx context.Context, c *openai.Client, model string, log []string, facts matrix.Facts) (matrix.Facts, error) {
	prompt := strings.Repeat("The broker asks this once and then once more. ", 6)
	cached, err := openai.CacheProof(ctx, c, model, prompt, nil)
	if err != nil {
		return facts, err
	}
	where := "two equal prompts, cached_tokens 0 in the second"
	if !cached.Present() {
		if m, err := c.Metrics(ctx, "/metrics"); err == nil {
			cached, where = m.Count("vllm:prefix_cache_hits_total"), "two equal prompts, no hit in vllm:prefix_cache_hits_total"
		}
	}
	n, told := cached.Get()
	switch {
	case n > 0 || slices.Contains(log, "server: prefix caching enabled"):
		return facts, &matrix.StartFailure{Code: "prefix_cache", Message: "the prefix cache is on"}
	case told:
		return append(facts, seen(matrix.FactPrefixCache, "off", where)), nil
	case slices.Contains(log, "server: prefix caching disabled"):
		return append(facts, seen(matrix.FactPrefixCache, "off", "the server's log: prefix caching disabled")), nil
	}
	return append(facts, said(matrix.FactPrefixCache, "off", "--no-enable-prefix-caching")), nil
}

// identity reads what runs, and what the server says of itself on the routes that this build has.
func (e *engine) identity(ctx context.Context, srv *server, tree []matrix.Process) (matrix.Facts, matrix.Limits, string, error) {
	facts := matrix.Facts{said(matrix.FactEngine, kind, "setting plugin")}
	var granted matrix.Limits
	var pids []int
	for _, p := range tree {
		pids = append(pids, p.PID)
	}
	if len(pids) > 0 {
		print, err := fingerprint.Of(ctx, fingerprint.Options{PIDs: pids, Launch: srv.binary, Sum: e.sums.Sum, Private: srv.request.CacheDir})
		if err != nil {
			return nil, granted, "", err
		}
		facts = append(facts, print.Facts...)
		if len(srv.files) > 0 {
			proof, err := fingerprint.Weights("", pids, srv.files)
			if err != nil {
				return nil, granted, "", err
			}
			facts = append(facts, proof.Fact())
		}
	}
	var version struct{ Version string }
	if err := srv.client.Get(ctx, "/version", &version); err == nil {
		facts = append(facts, said(matrix.FactVersion, version.Version, "/version"))
	} else if !openai.IsStatus(err, http.StatusNotFound) {
		return nil, granted, "", err
	}
	var tokens struct {
		Max int `json:"max_model_len"`
	}
	if err := srv.client.Post(ctx, "/tokenize", map[string]any{"prompt": "a"}, &tokens); err == nil {
		srv.tokenize, granted.ContextTokens = true, tokens.Max
		facts = append(facts, seen(matrix.FactContextTokens, strconv.Itoa(tokens.Max), "/tokenize max_model_len"))
	} else if !openai.IsStatus(err, http.StatusNotFound) {
		return nil, granted, "", err
	} else if srv.binary != "" {
		facts = append(facts, said(matrix.FactContextTokens, strconv.Itoa(srv.request.Limits.ContextTokens), "--max-model-len; this build does not tell"))
	}
	if srv.binary != "" {
		facts = append(facts, said(matrix.FactConcurrency, strconv.Itoa(srv.request.Limits.Concurrency), "--max-num-seqs; no route tells"))
	}
	m, err := srv.client.Metrics(ctx, "/metrics")
	switch {
	case err == nil && m.Has("vllm:spec_decode_num_drafts_total"): // exists only where a configuration was given
		facts = append(facts, seen(matrix.FactSpeculation, cmp.Or(srv.request.Policy.Drafter, "unknown method"), "/metrics has the spec_decode families; the method is the one asked for"))
	case err == nil:
		facts = append(facts, seen(matrix.FactSpeculation, "none", "/metrics has no spec_decode families"))
	case !openai.IsStatus(err, http.StatusNotFound):
		return nil, granted, "", err
	case srv.binary != "" && srv.request.Policy.Kind != matrix.Drafted:
		facts = append(facts, said(matrix.FactSpeculation, "none", "no --speculative-config; this build has no /metrics"))
	}
	facts = append(facts, srv.more...)
	print, err := fingerprint.ArmPrint(facts)
	return facts, granted, print, err
}

func (e *engine) running() (*server, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.server == nil {
		return nil, engines.ErrNotStarted
	}
	return e.server, nil
}

// Observe asks the server what it is and does now. Its /health answers 200 after the engine's loop has died, so life is
// shown by one generated token.
func (e *engine) Observe(ctx context.Context) (matrix.State, error) {
	srv, err := e.running()
	if err != nil {
		return matrix.State{}, err
	}
	var st matrix.State
	if st.Processes, err = srv.pids(); err != nil {
		return st, err
	}
	if t, terr := e.slot.Tree(); terr == nil {
		if x, ok := t.Exit().Get(); ok {
			st.Exit = matrix.Some(x.Code)
			return st, nil
		}
	}
	if _, err := srv.client.Complete(ctx, srv.request.ModelName, "Hello", 1, nil); err != nil {
		if status, ok := errors.AsType[*openai.StatusError](err); ok {
			st.Facts = matrix.Facts{seen(fingerprint.FactWarning, status.Error(), "one token was asked for")}
			return st, nil // it answers, and it is dead
		}
		return st, err
	}
	st.Alive = true
	if st.Facts, _, st.Print, err = e.identity(ctx, srv, st.Processes); err != nil {
		return st, err
	}
	if m, err := srv.client.Metrics(ctx, "/metrics"); err == nil {
		st.Running = m.Count("vllm:num_requests_running")
		st.Generated = m.Count("vllm:generation_tokens_total")
		st.CachedTokens = m.Count("vllm:prefix_cache_hits_total")
		st.DraftedTokens = m.Count("vllm:spec_decode_num_draft_tokens_total")
		st.AcceptedTokens = m.Count("vllm:spec_decode_num_accepted_tokens_total")
	}
	return st, nil
}

// Tokenize returns the engine's ids of a text where this build has the route.
func (e *engine) Tokenize(ctx context.Context, text string) ([]int, error) {
	srv, err := e.running()
	if err != nil {
		return nil, err
	}
	ids, err := srv.client.Tokenize(ctx, "/tokenize", map[string]any{"prompt": text, "add_special_tokens": false})
	if openai.IsStatus(err, http.StatusNotFound) {
		return nil, fmt.Errorf("this build has no /tokenize: %w", engines.ErrUnsupported)
	}
	return ids, err
}

// Stop ends the server and proves it gone. From an attached one it only lets go: How is detached, and nothing is proved.
func (e *engine) Stop(ctx context.Context, deadline time.Duration) (matrix.Stopped, error) {
	e.mu.Lock()
	srv := e.server
	attached := srv != nil && srv.binary == ""
	if attached {
		e.server = nil
	}
	e.mu.Unlock()
	if srv != nil {
		srv.client.Close() // the server waits 5 s for idle connections before it exits
	}
	if attached {
		return matrix.Stopped{How: "detached"}, nil
	}
	stopped, err := e.slot.Stop(ctx, deadline)
	if stopped.Gone() {
		e.mu.Lock()
		e.server = nil
		e.mu.Unlock()
	}
	return stopped, err
}

// Preflight starts once, answers one request and stops. This engine gives no ids over HTTP.
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
		var a openai.Completion
		if a, err = srv.client.Complete(ctx, r.ModelName, "Once upon a time", 16, map[string]any{"ignore_eos": true}); err == nil {
			result.Text = a.Text
			for _, f := range ready.Facts {
				if f.Name == matrix.FactWeightsProof || f.Name == matrix.FactSpeculation || f.Name == matrix.FactPrefixCache {
					result.Made = append(result.Made, f)
				}
			}
		}
	}
	stopped, serr := e.Stop(context.WithoutCancel(ctx), process.DefaultCleanup)
	result.Stopped = stopped
	return result, errors.Join(err, serr)
}
