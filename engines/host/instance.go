package host

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"enginebroker/engines"
	"enginebroker/engines/plugin"
	"enginebroker/matrix"
)

// Instance is a running engine plugin.
type Instance struct {
	*launched
	engine      engines.Engine
	description matrix.Description
	close       func(context.Context) error
}

var _ engines.Engine = (*Instance)(nil)

// Launch starts an engine plugin, describes it, and configures it where Settings is not nil. The error is a *Problem and
// leaves nothing behind.
func Launch(ctx context.Context, c Config) (*Instance, error) {
	l, service, err := launch(ctx, c, plugin.KindEngine)
	if err != nil {
		return nil, err
	}
	i := &Instance{launched: l, engine: service.(engines.Engine)}
	i.close = closing(i.stopAndEnd)
	i.description, err = l.described(ctx, i.engine)
	if err == nil && c.Settings != nil {
		if err = l.configured(ctx, i.engine); err == nil {
			i.description, err = l.described(ctx, i.engine)
		}
	}
	if err != nil {
		l.end()
		p := l.asProblem(err)
		for _, x := range i.description.Settings {
			p.Known = append(p.Known, x.Name)
		}
		return nil, p
	}
	return i, nil
}

// asProblem makes a plugin's own refusal of Describe or Configure a problem too.
func (l *launched) asProblem(err error) *Problem {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p
	}
	return l.problem(Refused, err.Error(), "", err)
}

// Label is the name of the instance.
func (i *Instance) Label() string { return i.config.Label }

// Plugin is the executable that runs, with the checksum it was launched with.
func (i *Instance) Plugin() Plugin { return i.config.Plugin }

// PID is the process id of the plugin.
func (i *Instance) PID() int { return i.child.pid }

// Description is what the plugin said when it was launched: after Configure, where it was configured.
func (i *Instance) Description() matrix.Description { return i.description }

// Gone is closed once the plugin's process has ended.
func (i *Instance) Gone() <-chan struct{} { return i.child.done }

// Describe implements engines.Engine, within DescribeTimeout.
func (i *Instance) Describe(ctx context.Context) (matrix.Description, error) {
	return i.described(ctx, i.engine)
}

// Configure implements engines.Engine, within DescribeTimeout.
func (i *Instance) Configure(ctx context.Context, s engines.Settings) ([]engines.FieldError, error) {
	limited, cancel := i.limited(ctx)
	defer cancel()
	f, err := i.engine.Configure(limited, s)
	return f, i.callProblem(ctx, "Configure", err)
}

// Preflight implements engines.Engine.
func (i *Instance) Preflight(ctx context.Context, r matrix.StartRequest, progress func(matrix.Progress)) (matrix.PreflightResult, error) {
	p, err := i.engine.Preflight(ctx, r, progress)
	return p, i.callProblem(ctx, "Preflight", err)
}

// Start implements engines.Engine.
func (i *Instance) Start(ctx context.Context, r matrix.StartRequest, progress func(matrix.Progress)) (matrix.Ready, error) {
	s, err := i.engine.Start(ctx, r, progress)
	return s, i.callProblem(ctx, "Start", err)
}

// Observe implements engines.Engine.
func (i *Instance) Observe(ctx context.Context) (matrix.State, error) {
	s, err := i.engine.Observe(ctx)
	return s, i.callProblem(ctx, "Observe", err)
}

// Tokenize implements engines.Engine.
func (i *Instance) Tokenize(ctx context.Context, text string) ([]int, error) {
	ids, err := i.engine.Tokenize(ctx, text)
	return ids, i.callProblem(ctx, "Tokenize", err)
}

// Stop implements engines.Engine.
func (i *Instance) Stop(ctx context.Context, deadline time.Duration) (matrix.Stopped, error) {
	s, err := i.engine.Stop(ctx, deadline)
	return s, i.callProblem(ctx, "Stop", err)
}

// Close stops the engine's server, ends the plugin, and leaves no process and no socket behind. ctx bounds the stop of the
// server alone, beyond plugin.DefaultStop; the plugin is ended in any case. The error says what of the server survives.
func (i *Instance) Close(ctx context.Context) error { return i.close(ctx) }

func (i *Instance) stopAndEnd(ctx context.Context) error {
	defer i.end()
	ctx, cancel := context.WithTimeout(ctx, plugin.DefaultStop+killGrace)
	defer cancel()
	s, err := i.Stop(ctx, plugin.DefaultStop)
	switch {
	case errors.Is(err, engines.ErrNotStarted), errors.Is(err, engines.ErrNotConfigured):
		return nil
	case err != nil:
		return fmt.Errorf("stopping the server of %s: %w", i.config.Label, err)
	case !s.Gone():
		return fmt.Errorf("stopping the server of %s: %d of its processes survive, port free: %t", i.config.Label, len(s.Survivors), s.PortFree)
	}
	return nil
}

// closing makes a close that runs once and answers the same again.
func closing(f func(context.Context) error) func(context.Context) error {
	var once sync.Once
	var err error
	return func(ctx context.Context) error {
		once.Do(func() { err = f(ctx) })
		return err
	}
}

// Telemetry is a running telemetry plugin.
type Telemetry struct {
	*launched
	telemetry engines.Telemetry
	close     func(context.Context) error
}

var _ engines.Telemetry = (*Telemetry)(nil)

// LaunchTelemetry starts a telemetry plugin and describes it. The error is a *Problem and leaves nothing behind.
func LaunchTelemetry(ctx context.Context, c Config) (*Telemetry, error) {
	l, service, err := launch(ctx, c, plugin.KindTelemetry)
	if err != nil {
		return nil, err
	}
	t := &Telemetry{launched: l, telemetry: service.(engines.Telemetry)}
	t.close = closing(func(context.Context) error { l.end(); return nil })
	if _, err := t.Describe(ctx); err != nil {
		l.end()
		return nil, l.asProblem(err)
	}
	return t, nil
}

// Plugin is the executable that runs, with the checksum it was launched with.
func (t *Telemetry) Plugin() Plugin { return t.config.Plugin }

// PID is the process id of the plugin.
func (t *Telemetry) PID() int { return t.child.pid }

// Gone is closed once the plugin's process has ended: a driver call may end it, which costs samples and no run.
func (t *Telemetry) Gone() <-chan struct{} { return t.child.done }

// Describe implements engines.Telemetry, within DescribeTimeout.
func (t *Telemetry) Describe(ctx context.Context) (matrix.Telemetry, error) {
	limited, cancel := t.limited(ctx)
	defer cancel()
	d, err := t.telemetry.Describe(limited)
	return d, t.callProblem(ctx, "Describe", err)
}

// Sample implements engines.Telemetry.
func (t *Telemetry) Sample(ctx context.Context, hz int, fn func(matrix.Sample)) error {
	return t.callProblem(ctx, "Sample", t.telemetry.Sample(ctx, hz, fn))
}

// Close ends the plugin and leaves no process and no socket behind.
func (t *Telemetry) Close(ctx context.Context) error { return t.close(ctx) }
