package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
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
	settings engines.Settings // nil until configured
	server   *server
}

// server is the one that runs, or that the instance is attached to.
type server struct {
	client  *openai.Client
	request matrix.StartRequest
	in      install // zero when attached
	weights weights
	pids    func() ([]matrix.Process, error)
	proof   fingerprint.Proof // the best one seen, some of it only during the load
	more    matrix.Facts      // of the start, which asking again does not renew
}

func (s *server) attached() bool { return s.in.python == "" }

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

func (e *engine) configured() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.settings != nil
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
	srv, spec, err := e.prepare(ctx, v, r)
	if err != nil {
		return matrix.Ready{}, launchFailure(err)
	}
	limit := v.Duration("ready_timeout")
	if limit == 0 {
		limit = r.ReadyLimit
	}
	var ready matrix.Ready
	tree, err := e.slot.Start(ctx, process.Start{
		Runtime: e.runtime, Spec: spec, Limit: limit, Causes: causes, Progress: progress,
		Ready: func(ctx context.Context, t process.Tree, progress func(matrix.Progress)) error {
			srv.pids = t.Processes
			var err error
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
	ready.Argv, ready.Env, ready.LogPath, ready.LoadedFiles = fingerprint.ScrubArgv(l.Argv), fingerprint.ScrubEnv(l.Env), l.LogPath, srv.weights.files
	e.mu.Lock()
	e.server = srv
	e.mu.Unlock()
	return ready, nil
}

// launchFailure types what went wrong before the launch.
func launchFailure(err error) error {
	if _, ok := errors.AsType[*matrix.StartFailure](err); ok {
		return err
	}
	f := &matrix.StartFailure{Code: process.CodeLaunch, Phase: "launch", Message: err.Error()}
	switch {
	case errors.Is(err, errNotInstalled):
		f.Code, f.Fix = "not_installed", "set venv or python"
	case errors.Is(err, context.Canceled):
		f.Code = process.CodeCancelled
	}
	return f
}

// prepare checks everything that can be checked before the launch.
func (e *engine) prepare(ctx context.Context, v openai.Values, r matrix.StartRequest) (*server, process.Spec, error) {
	var spec process.Spec
	in, err := locate(v)
	if err != nil {
		return nil, spec, fmt.Errorf("%w; looked for %s", err, strings.Join(in.looked, ", "))
	}
	_, gone, err := e.onDisk(ctx, in)
	if err != nil {
		return nil, spec, err
	}
	if gone != "" {
		return nil, spec, fmt.Errorf("%w: %s", errNotInstalled, gone)
	}
	w, err := open(r.Artifact)
	if err != nil {
		return nil, spec, err
	}
	known, err := in.flags(ctx, r.CacheDir, cpu(v))
	if err != nil {
		return nil, spec, err
	}
	args, waived, err := arguments(r, v, w, cpu(v), known)
	if err != nil {
		return nil, spec, err
	}
	env, err := environment(r, v, in)
	if err != nil {
		return nil, spec, err
	}
	srv := &server{client: openai.New("http://"+net.JoinHostPort(r.Host, strconv.Itoa(r.Port)), nil), request: r, in: in, weights: w}
	for _, name := range waived {
		srv.more = append(srv.more, said(fingerprint.FactConfig+"waived."+name, "not known to this build", in.python+" -m "+launcher+" --help"))
	}
	return srv, process.Spec{LoadID: r.LoadID, Argv: append([]string{in.python}, args...), Env: env, Host: r.Host, Port: r.Port, LogPath: r.LogPath, StatePath: r.StatePath}, nil
}

// logLines is how much of a load's log is searched for the kernels in use; a load with graphs prints some hundred lines.
const logLines = 5000

// ready waits for a token, then reads back what was started.
func (e *engine) ready(ctx context.Context, srv *server, t process.Tree, progress func(matrix.Progress)) (matrix.Ready, error) {
	r := srv.request
	loading := watchWeights(ctx, srv.pids, srv.weights.files)
	_, err := openai.Ready(ctx, srv.client, openai.Readiness{Model: r.ModelName, Prompt: "Hello", Tokens: 2, Progress: progress})
	srv.proof = loading()
	if err != nil {
		return matrix.Ready{}, err
	}
	took := time.Since(t.Launched().Start)
	ready := matrix.Ready{FirstToken: took, LoadTime: took}
	s, err := readBack(ctx, srv.client, r.ModelName)
	if err != nil {
		return ready, err
	}
	if err := s.compare(r, srv.weights); err != nil {
		return ready, err
	}
	p, err := probe(ctx, srv.client, r.ModelName, s.maxInput-1)
	if err != nil {
		return ready, err
	}
	log, err := t.LogTail(logLines)
	if err != nil {
		return ready, err
	}
	srv.more = append(append(srv.more, p.cache), logFacts(log)...)
	if ready.Processes, err = srv.pids(); err != nil {
		return ready, err
	}
	if ready.Facts, ready.Print, err = e.identity(ctx, srv, ready.Processes, s); err != nil {
		return ready, err
	}
	ready.Granted = s.granted
	ready.Dialect = dialectOf(srv.client.Base, r.ModelName, s, p)
	return ready, nil
}

// watchWeights looks for proof of the weights while they load, and the returned function stops and gives the best: loaders
// that read and close leave no trace later.
func watchWeights(ctx context.Context, pids func() ([]matrix.Process, error), files []string) func() fingerprint.Proof {
	ctx, cancel := context.WithCancel(ctx)
	best := fingerprint.Proof{Rung: fingerprint.RungNone, Detail: "not seen"}
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for {
			// A process that ends meanwhile, or that cannot be read yet, is no news about the weights.
			if tree, err := pids(); err == nil {
				if p, err := fingerprint.Weights("", numbers(tree), files); err == nil {
					best = best.Better(p)
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	return func() fingerprint.Proof {
		cancel()
		wg.Wait()
		return best
	}
}

func numbers(tree []matrix.Process) []int {
	pids := make([]int, len(tree))
	for i, p := range tree {
		pids[i] = p.PID
	}
	return pids
}

// probePrompt is long enough to be worth caching (a page is one token on CPU, up to 64 on a GPU) and no text of any corpus.
var probePrompt = strings.Repeat("The broker asks this once and then once more. ", 16)

// probed is what two equal prompts show of a server.
type probed struct {
	cache    matrix.Fact
	added    int  // tokens the server adds to a prompt
	reported bool // an answer counts its cached tokens, 0 included
	ids      bool // an answer carries its token ids when asked
}

// probe sends one prompt twice: nothing of the second may come from a cache. room is the longest prompt. A token id beyond
// the vocabulary would kill the server (engines.md D8); these come from its own tokenizer.
func probe(ctx context.Context, c *openai.Client, model string, room int) (p probed, err error) {
	before, err := c.Metrics(ctx, "/metrics")
	if err != nil {
		return p, err
	}
	ids, err := tokenize(ctx, c, model, probePrompt)
	if err != nil {
		return p, err
	}
	ids = ids[:min(len(ids), room)]
	var last openai.Completion
	for range 2 {
		if last, err = c.Complete(ctx, model, ids, 1, map[string]any{"return_token_ids": true}); err != nil {
			return p, fmt.Errorf("prefix cache probe: %w", err)
		}
	}
	p.ids = len(last.IDs) > 0
	after, err := c.Metrics(ctx, "/metrics")
	if err != nil {
		return p, err
	}
	var cached int64
	cached, p.reported = last.CachedTokens.Get()
	hits, counted := cachedTotal(after).Get()
	hits -= cachedTotal(before).Or(0)
	where := "two equal prompts, cached_tokens 0 in the second, and /server_info"
	switch {
	case cached > 0 || hits > 0:
		return p, &matrix.StartFailure{Code: "prefix_cache", Message: fmt.Sprintf("the radix cache is on: of two equal prompts %d tokens came from it (counters: %d)", cached, hits)}
	case !p.reported && !counted:
		return p, &matrix.StartFailure{Code: "prefix_cache", Message: "neither an answer nor /metrics says how much was cached, so that the radix cache is not shown to be off"}
	case !p.reported: // this build counts a hit only
		where = "two equal prompts, no hit counted in /metrics, and /server_info"
	}
	p.cache = seen(matrix.FactPrefixCache, "off", where)
	text, err := c.Complete(ctx, model, "Hello", 1, nil)
	if err != nil {
		return p, err
	}
	plain, err := tokenize(ctx, c, model, "Hello")
	if err != nil {
		return p, err
	}
	n, ok := text.PromptTokens.Get()
	if !ok {
		return p, errors.New("the answer has no usage.prompt_tokens")
	}
	p.added = int(n) - len(plain)
	return p, nil
}

func tokenize(ctx context.Context, c *openai.Client, model, text string) ([]int, error) {
	return c.Tokenize(ctx, "/tokenize", map[string]any{"model": model, "prompt": text, "add_special_tokens": false})
}

// identity reads what runs: mapped objects, packages, the proof of the weights, and what the server says.
func (e *engine) identity(ctx context.Context, srv *server, tree []matrix.Process, s state) (matrix.Facts, string, error) {
	facts := append(matrix.Facts{said(matrix.FactEngine, kind, "owned_by of /v1/models")}, srv.more...)
	facts = append(facts, s.facts()...)
	if len(tree) > 0 {
		print, err := e.fingerprint(ctx, srv, tree)
		if err != nil {
			return nil, "", err
		}
		facts = append(facts, print...)
	}
	if len(srv.weights.files) > 0 {
		facts = append(facts, srv.proof.Fact())
	}
	print, err := fingerprint.ArmPrint(facts)
	return facts, print, err
}

// fingerprint reads the processes. A helper that ends while it is read is tried once more, without it.
func (e *engine) fingerprint(ctx context.Context, srv *server, tree []matrix.Process) (matrix.Facts, error) {
	opt := fingerprint.Options{PIDs: numbers(tree), Launch: srv.in.python, Sum: e.sums.Sum, Private: srv.request.CacheDir}
	print, err := fingerprint.Of(ctx, opt)
	if errors.Is(err, fs.ErrNotExist) {
		if tree, err = srv.pids(); err != nil {
			return nil, err
		}
		opt.PIDs = numbers(tree)
		print, err = fingerprint.Of(ctx, opt)
	}
	return print.Facts, err
}

// attach describes a server that somebody else runs. Where it runs on this machine, the owner of the listening socket is
// the arm, whatever started it.
func (e *engine) attach(ctx context.Context, url string, r matrix.StartRequest, progress func(matrix.Progress)) (matrix.Ready, error) {
	srv := &server{client: openai.New(url, nil), request: r, pids: func() ([]matrix.Process, error) { return process.Owners(url) }}
	start := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, min(r.ReadyLimit, time.Minute), errors.New("the attached server generated nothing"))
	defer cancel()
	fail := func(err error) (matrix.Ready, error) {
		srv.client.Close()
		if f, ok := errors.AsType[*matrix.StartFailure](err); ok {
			return matrix.Ready{}, f
		}
		return matrix.Ready{}, &matrix.StartFailure{Code: process.CodeNotReady, Phase: "generate", Message: url + ": " + err.Error()}
	}
	first, err := openai.Ready(ctx, srv.client, openai.Readiness{Model: r.ModelName, Prompt: "Hello", Tokens: 2, Progress: progress})
	if err != nil {
		return fail(err)
	}
	s, err := readBack(ctx, srv.client, r.ModelName)
	if err != nil {
		return fail(err)
	}
	tree, err := srv.pids()
	if err != nil {
		return fail(err)
	}
	ready := matrix.Ready{FirstToken: time.Since(start), Processes: tree, Granted: s.granted,
		Dialect: dialectOf(url, r.ModelName, s, probed{reported: first.CachedTokens.Present()})}
	if ready.Facts, ready.Print, err = e.identity(ctx, srv, tree, s); err != nil {
		return fail(err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.server != nil {
		return fail(&matrix.StartFailure{Code: process.CodeBusy, Message: "this instance runs or describes a server already"})
	}
	e.server = srv
	return ready, nil
}

func (e *engine) running() (*server, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.server == nil {
		return nil, engines.ErrNotStarted
	}
	return e.server, nil
}

// observeLimit bounds one question to a server whose worker may hang.
const observeLimit = 10 * time.Second

// Observe asks the server what it is and does now.
func (e *engine) Observe(ctx context.Context) (matrix.State, error) {
	srv, err := e.running()
	if err != nil {
		return matrix.State{}, err
	}
	var st matrix.State
	if st.Processes, err = srv.pids(); err != nil {
		return st, err
	}
	if t, err := e.slot.Tree(); err == nil {
		if x, ok := t.Exit().Get(); ok {
			st.Exit = matrix.Some(x.Code) // what still runs of the tree is in Processes
			return st, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, observeLimit)
	defer cancel()
	s, err := readBack(ctx, srv.client, srv.request.ModelName)
	if err != nil {
		return st, err
	}
	if st.Facts, st.Print, err = e.identity(ctx, srv, st.Processes, s); err != nil {
		return st, err
	}
	m, err := srv.client.Metrics(ctx, "/metrics")
	if err != nil {
		return st, err
	}
	st.Alive = true
	counters(&st, m)
	return st, nil
}

// Tokenize returns the engine's ids of a text, without the tokens that it adds to a prompt.
func (e *engine) Tokenize(ctx context.Context, text string) ([]int, error) {
	srv, err := e.running()
	if err != nil {
		return nil, err
	}
	return tokenize(ctx, srv.client, srv.request.ModelName, text)
}

// Stop ends the server and proves it gone. From an attached one it only lets go: How is detached, and nothing is proved.
func (e *engine) Stop(ctx context.Context, deadline time.Duration) (matrix.Stopped, error) {
	e.mu.Lock()
	srv := e.server
	if srv != nil && srv.attached() {
		e.server = nil
	}
	e.mu.Unlock()
	if srv != nil {
		srv.client.Close() // a server that drains waits for idle connections
		if srv.attached() {
			return matrix.Stopped{How: "detached"}, nil
		}
	}
	stopped, err := e.slot.Stop(ctx, deadline)
	if stopped.Gone() {
		e.mu.Lock()
		e.server = nil
		e.mu.Unlock()
	}
	return stopped, err
}

const (
	preflightPrompt = "Once upon a time"
	preflightTokens = 16
)

// Preflight starts once, answers one request with the exact ids, and stops.
func (e *engine) Preflight(ctx context.Context, r matrix.StartRequest, progress func(matrix.Progress)) (matrix.PreflightResult, error) {
	if e.values().Text("attach") != "" {
		return matrix.PreflightResult{}, engines.ErrUnsupported
	}
	ready, err := e.Start(ctx, r, progress)
	if err != nil {
		return matrix.PreflightResult{}, err
	}
	result := matrix.PreflightResult{Ready: matrix.Some(ready), Made: made(ready.Facts)}
	srv, err := e.running()
	if err == nil {
		var a openai.Completion
		a, err = srv.client.Complete(ctx, r.ModelName, preflightPrompt, preflightTokens, map[string]any{"ignore_eos": true, "return_token_ids": true})
		result.Text, result.IDs = a.Text, a.IDs
	}
	stopped, serr := e.Stop(context.WithoutCancel(ctx), process.DefaultCleanup)
	result.Stopped = stopped
	return result, errors.Join(err, serr)
}

// made picks what the engine made of the file.
func made(facts matrix.Facts) matrix.Facts {
	var out matrix.Facts
	for _, f := range facts {
		switch f.Name {
		case matrix.FactQuantization, matrix.FactComputeDtype, matrix.FactActivationDtype, matrix.FactKVDtype, matrix.FactBackend, matrix.FactWeightsProof:
			out = append(out, f)
		default:
			if strings.HasPrefix(f.Name, fingerprint.FactKernel) {
				out = append(out, f)
			}
		}
	}
	return out
}
