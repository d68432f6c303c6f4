package process

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"enginebroker/matrix"
)

// Codes of matrix.StartFailure that this package gives.
const (
	CodeExited          = "exited"
	CodeKilled          = "killed"
	CodeNotReady        = "not_ready"
	CodePortTaken       = "port_taken"
	CodeForeignListener = "foreign_listener"
	CodeCancelled       = "cancelled"
	CodeLaunch          = "launch" // the program could not be executed, its log or state file not be written
	CodeLeftover        = "leftover"
	CodeBusy            = "busy"
	CodeRestarts        = "restarts" // an attached server that comes back by itself
)

// Start is one start of a server, as every adapter does it.
type Start struct {
	Runtime  Runtime
	Spec     Spec
	Limit    time.Duration // until ready
	Cleanup  time.Duration // for stopping a start that failed, or what an earlier one left; 0: DefaultCleanup
	Causes   []Cause       // the adapter's table of root causes
	Progress func(matrix.Progress)
	// Ready returns once a token of the right model was generated, or with the reason why that cannot happen any more: a
	// *matrix.StartFailure is kept as it is. Its context ends with the root process, the limit, or the caller's patience.
	Ready func(ctx context.Context, t Tree, progress func(matrix.Progress)) error
}

// DefaultCleanup lets an engine that drains before it exits do so: SGLang took 4.4 s idle (engines.md D8).
const DefaultCleanup = 15 * time.Second

// errRootGone ends the context of Ready.
var errRootGone = errors.New("the server's root process is gone")

// Launch starts a server and returns when it is ready. The error is always a *matrix.StartFailure, and then nothing of
// the tree is left running; should something survive, the message says so.
func Launch(ctx context.Context, s Start) (Tree, error) {
	if err := ctx.Err(); err != nil {
		return nil, &matrix.StartFailure{Code: CodeCancelled, Phase: "launch", Message: "cancelled before the launch"}
	}
	if s.Cleanup == 0 {
		s.Cleanup = DefaultCleanup
	}
	phase := &phases{last: "launch", report: s.Progress}
	phase.say(matrix.Progress{Phase: "launch"})
	if s.Spec.StatePath != "" {
		if _, err := s.Runtime.Recover(ctx, s.Spec.StatePath, s.Cleanup); err != nil {
			return nil, &matrix.StartFailure{Code: CodeLeftover, Phase: "launch", Message: err.Error()}
		}
	}
	if err := CheckPortFree(s.Spec.Host, s.Spec.Port); err != nil {
		return nil, &matrix.StartFailure{Code: CodePortTaken, Phase: "launch", Message: err.Error(), Fix: "stop the holder or choose another port"}
	}
	t, err := s.Runtime.Start(ctx, s.Spec)
	if err != nil {
		return nil, &matrix.StartFailure{Code: CodeLaunch, Phase: "launch", Message: err.Error()}
	}
	if err := s.await(ctx, t, phase); err != nil {
		return nil, s.fail(t, phase, err)
	}
	phase.say(matrix.Progress{Phase: "ready"})
	return t, nil
}

// await runs Ready under the limit, follows the log beside it, then checks who answers.
func (s Start) await(ctx context.Context, t Tree, phase *phases) error {
	limited, cancel := context.WithTimeoutCause(ctx, s.Limit, fmt.Errorf("not ready within %s", s.Limit))
	defer cancel()
	watched, gone := context.WithCancelCause(limited)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer gone(nil)
	wg.Go(func() {
		select {
		case <-t.Done():
			gone(errRootGone)
		case <-watched.Done():
		}
	})
	wg.Go(func() { phase.follow(watched, s.Spec.LogPath) })
	if err := s.Ready(watched, t, phase.say); err != nil {
		if cause := context.Cause(watched); cause != nil {
			if _, own := errors.AsType[*matrix.StartFailure](err); !own {
				return errors.Join(cause, err)
			}
		}
		return err
	}
	select {
	case <-t.Done(): // what answered is another process: the server restarts itself
		return errRootGone
	default:
	}
	strangers, err := t.Foreign()
	if err != nil {
		return err
	}
	if len(strangers) > 0 {
		return &matrix.StartFailure{Code: CodeForeignListener, Phase: "ready", Message: fmt.Sprintf("another process listens on the port too, so part of the requests would go there: %s", strangers[0]), Fix: "stop it or choose another port"}
	}
	return nil
}

// fail stops the tree and says why the start failed.
func (s Start) fail(t Tree, phase *phases, cause error) error {
	exit, exited := t.Exit().Get() // before our own signals
	stopped, err := t.Stop(context.Background(), s.Cleanup)
	f, typed := errors.AsType[*matrix.StartFailure](cause)
	if !typed {
		f = &matrix.StartFailure{Message: cause.Error()}
	}
	if f.Phase == "" {
		f.Phase = phase.at()
	}
	f.LogPath = s.Spec.LogPath
	switch {
	case exited:
		f.Exit = matrix.Some(exit.Code)
		if !typed {
			f.Code, f.Message = CodeExited, fmt.Sprintf("the server ended before it was ready: %s", exit)
			if exit.Signal != 0 && !exit.crashed() { // a crash is the engine's own
				f.Code = CodeKilled
			}
		}
	case typed:
	case errors.Is(cause, context.Canceled):
		f.Code, f.Message = CodeCancelled, "cancelled while the server started"
	default:
		f.Code = CodeNotReady
	}
	if row, lines := RootCause(stopped.LogTail, s.Causes); row.Pattern != nil || exited {
		f.RootCause = lines
		if row.Code != "" && (f.Code == CodeExited || f.Code == CodeNotReady) {
			f.Code = row.Code
		}
		if f.Fix == "" {
			f.Fix = row.Fix
		}
	}
	if err != nil || !stopped.Gone() {
		f.Message += fmt.Sprintf("; and it could not be proved gone: %d survivors %v, port free %t, %v", len(stopped.Survivors), pids(stopped.Survivors), stopped.PortFree, err)
	}
	return f
}

func pids(ps []matrix.Process) []int {
	var list []int
	for _, p := range ps {
		list = append(list, p.PID)
	}
	slices.Sort(list)
	return list
}

// phases hands progress on and remembers the phase.
type phases struct {
	mu     sync.Mutex
	last   string
	report func(matrix.Progress)
}

func (p *phases) say(m matrix.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m.Phase == "" {
		m.Phase = p.last
	}
	p.last = m.Phase
	if p.report != nil {
		p.report(m)
	}
}

func (p *phases) at() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

// follow reports the log's lines until ctx ends.
func (p *phases) follow(ctx context.Context, path string) {
	if p.report == nil {
		return
	}
	f := follower{path: path}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			for _, l := range f.next() {
				p.say(matrix.Progress{Line: l})
			}
		}
	}
}
