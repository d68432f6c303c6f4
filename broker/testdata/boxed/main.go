// Command boxed is an engine for tests of the box: the simulated engine beside it without its stamp, so that a run of it gets
// the box profile, and with it the gates, of an engine that really loads. Its version still says SIMULATED.
package main

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"time"

	"enginebroker/engines"
	"enginebroker/engines/host"
	"enginebroker/engines/plugin"
	"enginebroker/matrix"
)

func main() { plugin.Serve(func() engines.Engine { return &engine{} }) }

type engine struct {
	mu    sync.Mutex
	inner *host.Instance
}

// simulated launches the plugin that does the work; it ends with this process.
func (e *engine) simulated(ctx context.Context) (*host.Instance, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.inner == nil {
		exe, err := os.Executable()
		if err != nil {
			return nil, err
		}
		path := filepath.Join(filepath.Dir(exe), "simulated")
		if e.inner, err = host.Launch(ctx, host.Config{Plugin: host.Plugin{Path: path}, Label: "boxed"}); err != nil {
			return nil, err
		}
	}
	return e.inner, nil
}

func (e *engine) Describe(ctx context.Context) (matrix.Description, error) {
	in, err := e.simulated(ctx)
	if err != nil {
		return matrix.Description{}, err
	}
	d, err := in.Describe(ctx)
	d.Engine, d.Simulated = "boxed", false
	return d, err
}

func (e *engine) Configure(ctx context.Context, s engines.Settings) ([]engines.FieldError, error) {
	in, err := e.simulated(ctx)
	if err != nil {
		return nil, err
	}
	return in.Configure(ctx, s)
}

func (e *engine) Preflight(ctx context.Context, r matrix.StartRequest, progress func(matrix.Progress)) (matrix.PreflightResult, error) {
	return e.inner.Preflight(ctx, r, progress)
}

func (e *engine) Start(ctx context.Context, r matrix.StartRequest, progress func(matrix.Progress)) (matrix.Ready, error) {
	return e.inner.Start(ctx, r, progress)
}

func (e *engine) Observe(ctx context.Context) (matrix.State, error) { return e.inner.Observe(ctx) }

func (e *engine) Tokenize(ctx context.Context, text string) ([]int, error) {
	return e.inner.Tokenize(ctx, text)
}

func (e *engine) Stop(ctx context.Context, deadline time.Duration) (matrix.Stopped, error) {
	return e.inner.Stop(ctx, deadline)
}
