package service

import (
	"context"

	"enginebroker/matrix"
)

// Windows is told when a timed window opens and closes, so that a process that does more than measuring keeps quiet
// meanwhile. Both calls return soon: the run waits for them.
type Windows interface {
	// Open returns when nothing expensive runs any more, or gives up waiting for it.
	Open()
	// Close returns what was done inside the window all the same. It is evidence of the window's repetition, and too much of
	// it voids the leg.
	Close() []matrix.DaemonWork
}

type windowsKey struct{}

// WithWindows makes the runs of a context tell w about their timed windows.
func WithWindows(ctx context.Context, w Windows) context.Context {
	return context.WithValue(ctx, windowsKey{}, w)
}

// WindowsOf is what WithWindows put there; nil where it was not called.
func WindowsOf(ctx context.Context) Windows {
	w, _ := ctx.Value(windowsKey{}).(Windows)
	return w
}

type pauseKey struct{}

// WithPause lets what takes long on behalf of somebody else, hashing and reading evidence, call pause between its parts; pause
// may wait.
func WithPause(ctx context.Context, pause func(context.Context) error) context.Context {
	return context.WithValue(ctx, pauseKey{}, pause)
}

// pauseOf is what WithPause put there; nil where it was not called.
func pauseOf(ctx context.Context) func(context.Context) error {
	p, _ := ctx.Value(pauseKey{}).(func(context.Context) error)
	return p
}

// Pause is called between two parts of long work. That its context ended is an error.
func Pause(ctx context.Context) error {
	if p := pauseOf(ctx); p != nil {
		return p(ctx)
	}
	return ctx.Err()
}

// windowHook is what a run calls around every timed window; nil where nobody wants to know.
func windowHook(ctx context.Context) func() func() []matrix.DaemonWork {
	w := WindowsOf(ctx)
	if w == nil {
		return nil
	}
	return func() func() []matrix.DaemonWork {
		w.Open()
		return w.Close
	}
}
