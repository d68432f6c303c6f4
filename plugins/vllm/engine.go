package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
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

func (s *server) attached() bool { return s.in.binary == "" }

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
		f.Code, f.Fix = "not_installed", "set venv or binary"
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
	w, err := open(r.Artifact, in)
	if err != nil {
		return nil, spec, err
	}
	known, err := in.flags(ctx, r.CacheDir)
	if err != nil {
		return nil, spec, err
	}
	args, waived, err := arguments(r, v, w, in.cpu(), known)
	if err != nil {
		return nil, spec, err
	}
	env, err := environment(r, v, in)
	if err != nil {
		return nil, spec, err
	}
	srv := &server{client: openai.New("http://"+net.JoinHostPort(r.Host, strconv.Itoa(r.Port)), nil), request: r, in: in, weights: w}
	for _, name := range waived {
		srv.more = append(srv.more, said(fingerprint.FactConfig+"waived."+name, "not known to this build", in.binary+" serve --help=all"))
	}
	return srv, process.Spec{LoadID: r.LoadID, Argv: append([]string{in.binary}, args...), Env: env, Host: r.Host, Port: r.Port, LogPath: r.LogPath, StatePath: r.StatePath}, nil
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
	first, err := openai.Ready(ctx, srv.client, openai.Readiness{Model: r.ModelName, Prompt: "Hello", Tokens: 2, Echoes: true, Progress: progress})
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
		Dialect: dialectOf(url, r.ModelName, s.granted, 0, first.CachedTokens.Present())}
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
	if halted(st.Processes) {
		return st, nil // every endpoint would still answer 200
	}
	ctx, cancel := context.WithTimeout(ctx, observeLimit)
	defer cancel()
	if _, err := srv.client.Raw(ctx, http.MethodGet, "/health", nil); openai.IsStatus(err, http.StatusServiceUnavailable) {
		return st, nil // the engine core is dead, and the API server is about to end
	}
	s, err := readBack(ctx, srv.client, srv.request.ModelName)
	if err != nil {
		return st, err
	}
	if st.Facts, st.Print, err = e.identity(ctx, srv, st.Processes, s); err != nil {
		return st, err
	}
	st.Alive = true
	m, err := srv.client.Metrics(ctx, "/metrics")
	switch {
	case err == nil:
		counters(&st, m)
	case srv.attached() && openai.IsStatus(err, http.StatusNotFound):
		err = nil // an attached server without metrics: the counters stay unknown
	}
	return st, err
}

// halted reports a process of the tree that was stopped by a signal: it answers nothing until somebody lets it go on.
func halted(tree []matrix.Process) bool {
	return slices.ContainsFunc(tree, func(p matrix.Process) bool {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/stat")
		if err != nil {
			return false // gone meanwhile
		}
		// The name before the state may hold spaces and brackets (proc_pid_stat(5)).
		i := strings.LastIndexByte(string(b), ')')
		return i > 0 && len(b) > i+2 && (b[i+2] == 'T' || b[i+2] == 't')
	})
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
