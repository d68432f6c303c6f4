package adapter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
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

// Instance is one instance of an adapter: an engines.Engine.
type Instance struct {
	adapter Adapter
	runtime process.Runtime
	sums    *artifact.Sums
	slot    process.Slot

	mu       sync.Mutex
	settings engines.Settings // nil until configured
	running  *running
}

// running is the server that runs, or that the instance is attached to.
type running struct {
	*Server
	session Session
}

var _ engines.Engine = (*Instance)(nil)

// New makes an instance that is not configured.
func New(a Adapter) *Instance {
	sums, err := artifact.OpenSums("") // in memory: it cannot fail
	if err != nil {
		panic(err)
	}
	return &Instance{adapter: a, runtime: process.Local{}, sums: sums}
}

func (i *Instance) values() (v openai.Values, configured bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return openai.NewValues(i.adapter.Rules.Schema, i.settings), i.settings != nil
}

// Describe answers from files on disk; of an attached server it says only that it is one.
func (i *Instance) Describe(ctx context.Context) (matrix.Description, error) {
	a := i.adapter
	v, _ := i.values()
	d := matrix.Description{Engine: a.Kind, Capabilities: a.Capabilities, Refuses: a.Refuses, Settings: a.Rules.Schema}
	if url := v.Text("attach"); url != "" {
		d.Installed = true
		d.Identity = matrix.Facts{Said(matrix.FactEngine, a.Kind, "the attached server "+url)}
		return d, nil
	}
	if c, _ := i.image(v); c != nil {
		facts, err := c.Installed(ctx)
		if err != nil {
			d.LookedFor = []string{err.Error()}
			return d, nil
		}
		d.Installed, d.Identity = true, append(matrix.Facts{Said(matrix.FactEngine, a.Kind, "setting plugin")}, facts...)
		if a.Inside != nil {
			err = a.Inside(ctx, c, &d)
		}
		return found(d, err)
	}
	return found(d, a.Describe(ctx, v, i.sums.Sum, &d))
}

// found turns the reason why an engine is not installed into the answer that it is not.
func found(d matrix.Description, err error) (matrix.Description, error) {
	if x, ok := errors.AsType[*NotInstalled](err); ok {
		d.Installed = false
		for _, l := range x.Looked {
			d.LookedFor = append(d.LookedFor, "looked for "+l)
		}
		d.LookedFor = append(d.LookedFor, x.Error())
		return d, nil
	}
	return d, err
}

// Configure takes the settings.
func (i *Instance) Configure(_ context.Context, s engines.Settings) ([]engines.FieldError, error) {
	faults := i.adapter.Rules.Check(s)
	_, more := i.image(openai.NewValues(i.adapter.Rules.Schema, s))
	if faults = append(faults, more...); len(faults) > 0 {
		return faults, nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.settings = maps.Clone(s); i.settings == nil {
		i.settings = engines.Settings{}
	}
	return nil, nil
}

// image is the image that the settings name; nil where the engine comes from an installation.
func (i *Instance) image(v openai.Values) (*process.Container, []engines.FieldError) {
	if i.adapter.Images == nil {
		return nil, nil
	}
	return process.NewContainer(v.Text, i.adapter.Images...)
}

// attachLimit bounds the questions to a server that claims to run already.
const attachLimit = time.Minute

// Start launches a server, or describes the one it is attached to.
func (i *Instance) Start(ctx context.Context, r matrix.StartRequest, progress func(matrix.Progress)) (matrix.Ready, error) {
	v, ok := i.values()
	if !ok {
		return matrix.Ready{}, engines.ErrNotConfigured
	}
	s := &Server{Request: r, Sum: i.sums.Sum}
	url := v.Text("attach")
	if s.attached = url != ""; s.attached {
		s.Client, s.pids = openai.New(url, nil), func() ([]matrix.Process, error) { return process.Owners(url) }
	} else {
		s.Client = openai.New("http://"+net.JoinHostPort(r.Host, strconv.Itoa(r.Port)), nil)
	}
	if !s.attached {
		s.Image, _ = i.image(v)
	}
	session, err := i.adapter.Prepare(ctx, v, s)
	if err == nil && s.Image != nil {
		s.Image.Mounts, err = process.Mounts(r)
	}
	if err != nil {
		s.Client.Close()
		return matrix.Ready{}, launchFailure(err)
	}
	start := i.launch
	if s.attached {
		start = i.attach
	}
	ready, err := start(ctx, v, &running{s, session}, progress)
	if err != nil {
		s.Client.Close()
		return matrix.Ready{}, err
	}
	return ready, nil
}

func (i *Instance) launch(ctx context.Context, v openai.Values, run *running, progress func(matrix.Progress)) (matrix.Ready, error) {
	r := run.Request
	limit := v.Duration("ready_timeout")
	if limit == 0 {
		limit = r.ReadyLimit
	}
	var ready matrix.Ready
	how, causes := i.runtime, i.adapter.Causes
	if run.Image != nil {
		how, causes = *run.Image, slices.Concat(causes, process.ContainerCauses)
	}
	tree, err := i.slot.Start(ctx, process.Start{
		Runtime: how, Limit: limit, Causes: causes, Progress: progress,
		Spec: process.Spec{LoadID: r.LoadID, Argv: run.Argv, Env: run.Env, SpareCPUs: v.Int("spare_cpus").Or(0), Links: run.Links, Host: r.Host, Port: r.Port, LogPath: r.LogPath, StatePath: r.StatePath},
		Ready: func(ctx context.Context, t process.Tree, progress func(matrix.Progress)) error {
			run.tree, run.pids = t, t.Processes
			var err error
			ready, err = i.ready(ctx, run, t.Launched().Start, progress)
			return err
		},
	})
	if err != nil {
		return ready, err
	}
	l := tree.Launched()
	for _, name := range l.Scrubbed {
		ready.Facts = append(ready.Facts, Seen(fingerprint.FactConfig+"withheld."+name, "not passed on", "environment of the adapter"))
	}
	ready.Argv, ready.Env, ready.LogPath, ready.LoadedFiles = fingerprint.ScrubArgv(l.Argv), fingerprint.ScrubEnv(l.Env), l.LogPath, run.Weights
	i.mu.Lock()
	defer i.mu.Unlock()
	i.running = run
	return ready, nil
}

// attach describes a server that somebody else runs. Where it runs on this machine, the owner of the listening socket is
// the arm, whatever started it.
func (i *Instance) attach(ctx context.Context, v openai.Values, run *running, progress func(matrix.Progress)) (matrix.Ready, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, min(run.Request.ReadyLimit, attachLimit), errors.New("the attached server generated nothing"))
	defer cancel()
	ready, err := i.ready(ctx, run, time.Now(), progress)
	if f, ok := errors.AsType[*matrix.StartFailure](err); ok {
		return ready, f
	}
	if err != nil {
		return ready, &matrix.StartFailure{Code: process.CodeNotReady, Phase: "generate", Message: run.Client.Base + ": " + err.Error()}
	}
	var tool []string
	if i.adapter.Images != nil {
		tool = strings.Fields(v.Text("runtime"))
	}
	for _, p := range ready.Processes {
		if _, err := process.InContainer(ctx, tool, p.PID); err != nil {
			return ready, &matrix.StartFailure{Code: process.CodeRestarts, Message: run.Client.Base + ": " + err.Error(), Fix: "start it with --restart=no"}
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.running != nil {
		return ready, &matrix.StartFailure{Code: process.CodeBusy, Message: "this instance runs or describes a server already"}
	}
	i.running = run
	return ready, nil
}

// ready waits for a token, then reads back what answers.
func (i *Instance) ready(ctx context.Context, run *running, start time.Time, progress func(matrix.Progress)) (matrix.Ready, error) {
	var ready matrix.Ready
	ask := i.adapter.Ready
	ask.Model, ask.Prompt, ask.Tokens, ask.Progress = run.Request.ModelName, "Hello", 2, progress
	if run.attached {
		ask.Gate = "" // it has loaded
	} else {
		ask.Progress = func(p matrix.Progress) {
			if p.Phase == "generate" {
				ready.LoadTime = time.Since(start)
			}
			progress(p)
		}
	}
	watched := func() fingerprint.Proof { return fingerprint.Proof{} }
	if i.adapter.Streams && len(run.Weights) > 0 {
		watched = watchWeights(ctx, run.pids, run.Weights)
	}
	first, err := openai.Ready(ctx, run.Client, ask)
	run.proof = watched()
	if err != nil {
		return ready, err
	}
	ready.FirstToken = time.Since(start)
	if i.adapter.Streams && !run.attached {
		ready.LoadTime = ready.FirstToken // such a server lists its model before it can generate
	}
	got, err := run.session.Accept(ctx, first)
	if err != nil {
		return ready, err
	}
	ready.Granted, ready.Dialect = got.Granted, got.Dialect
	if ready.Processes, err = run.pids(); err != nil {
		return ready, err
	}
	if ready.Facts, ready.Print, err = i.identity(ctx, run, got.Facts, ready.Processes); err != nil {
		return ready, err
	}
	if b := ready.Facts.Value(matrix.FactBackend).Or("none"); got.Backend != "" && b != got.Backend {
		return ready, &matrix.StartFailure{Code: "backend", Message: fmt.Sprintf("asked for the backend %s, mapped is %s", got.Backend, b), Fix: "this CPU may not have what the backend needs"}
	}
	return ready, nil
}

// Server is the server that runs, or engines.ErrNotStarted.
func (i *Instance) Server() (*Server, error) {
	run, err := i.current()
	if err != nil {
		return nil, err
	}
	return run.Server, nil
}

func (i *Instance) current() (*running, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.running == nil {
		return nil, engines.ErrNotStarted
	}
	return i.running, nil
}

// Observe asks the server what it is and does now.
func (i *Instance) Observe(ctx context.Context) (matrix.State, error) {
	run, err := i.current()
	if err != nil {
		return matrix.State{}, err
	}
	var st matrix.State
	if st.Processes, err = run.pids(); err != nil {
		return st, err
	}
	if run.tree != nil {
		if x, ok := run.tree.Exit().Get(); ok {
			st.Exit = matrix.Some(x.Code) // what still runs of the tree is in Processes
			return st, nil
		}
		strangers, err := run.tree.Foreign()
		if err != nil {
			return st, err
		}
		if len(strangers) > 0 {
			return st, fmt.Errorf("another process listens on the server's port too, so part of the requests goes there: %s: stop it and start the load anew", strangers[0])
		}
	}
	said, err := run.session.Observe(ctx, &st)
	if err != nil || !st.Alive {
		st.Facts = said
		return st, err
	}
	st.Facts, st.Print, err = i.identity(ctx, run, said, st.Processes)
	return st, err
}

// Tokenize returns the engine's ids of a text, without the tokens that it adds to a prompt.
func (i *Instance) Tokenize(ctx context.Context, text string) ([]int, error) {
	run, err := i.current()
	if err != nil {
		return nil, err
	}
	return run.session.Tokenize(ctx, text)
}

// Stop ends the server and proves it gone. From an attached one it only lets go: How is detached, and nothing is proved.
func (i *Instance) Stop(ctx context.Context, deadline time.Duration) (matrix.Stopped, error) {
	i.mu.Lock()
	run := i.running
	if run != nil && run.attached {
		i.running = nil
	}
	i.mu.Unlock()
	if run != nil {
		run.Client.Close() // a server that drains waits for idle connections, llama-server 5 s
		if run.attached {
			return matrix.Stopped{How: "detached"}, nil
		}
	}
	stopped, err := i.slot.Stop(ctx, deadline)
	if stopped.Gone() {
		i.mu.Lock()
		i.running = nil
		i.mu.Unlock()
	}
	return stopped, err
}

const (
	preflightPrompt = "Once upon a time"
	preflightTokens = 16
)

// Preflight starts once, answers one request, with the exact ids where the engine gives them, and stops.
func (i *Instance) Preflight(ctx context.Context, r matrix.StartRequest, progress func(matrix.Progress)) (matrix.PreflightResult, error) {
	if v, _ := i.values(); v.Text("attach") != "" {
		return matrix.PreflightResult{}, engines.ErrUnsupported
	}
	ready, err := i.Start(ctx, r, progress)
	if err != nil {
		return matrix.PreflightResult{}, err
	}
	result := matrix.PreflightResult{Ready: matrix.Some(ready), Made: pick(ready.Facts, i.adapter.Made)}
	run, err := i.current()
	if err == nil {
		var a openai.Completion
		a, err = run.Client.Complete(ctx, r.ModelName, preflightPrompt, preflightTokens, i.adapter.Exact)
		result.Text, result.IDs = a.Text, a.IDs
	}
	stopped, serr := i.Stop(context.WithoutCancel(ctx), process.DefaultCleanup)
	result.Stopped = stopped
	return result, errors.Join(err, serr)
}
