// Package engines says what an engine is: the contract an adapter fulfils, in plain Go values.
//
// An adapter answers questions and never measures anything. It describes itself from files on disk, takes the settings of
// one instance, starts one server tree with a policy and limits, reads back what that server really is and grants, and
// stops it with proof that it is gone. The timed client speaks to the server itself, guided by the dialect the adapter
// hands over.
//
// Author an adapter by implementing Engine and calling plugin.Serve from main; run enginetest against it.
package engines

import (
	"context"
	"errors"
	"time"

	"enginebroker/matrix"
)

// Sentinels that cross the wire.
var (
	// ErrUnsupported says that the engine has no such ability; it is an answer, not a fault.
	ErrUnsupported = errors.New("the engine does not offer this")
	// ErrNotConfigured says that Configure has not succeeded yet.
	ErrNotConfigured = errors.New("the instance is not configured")
	// ErrNotStarted says that no server of this instance is running.
	ErrNotStarted = errors.New("no server of this instance is running")
	// ErrGone says that the adapter's process is gone; the host returns it, never an adapter.
	ErrGone = errors.New("the plugin's process is gone")
)

// FieldError is one setting that cannot be used, found before anything starts.
type FieldError struct {
	Field   string // path of the field: llama.binary, env.CUDA_VISIBLE_DEVICES
	Message string
	Fix     string
}

func (e FieldError) Error() string {
	s := e.Field + ": " + e.Message
	if e.Fix != "" {
		s += " (" + e.Fix + ")"
	}
	return s
}

// Settings are the settings of one instance, flat, as the plugin's schema names them.
type Settings map[string]string

// Engine is one instance of an adapter. Calls may come in any order from several goroutines; an instance runs at most one
// server at a time.
type Engine interface {
	// Describe answers from files on disk, in milliseconds, without starting the engine and without a GPU.
	// Before Configure it describes what is found in the default places.
	Describe(ctx context.Context) (matrix.Description, error)
	// Configure takes the settings of this instance. Field errors are complete: all of them, not the first.
	Configure(ctx context.Context, s Settings) ([]FieldError, error)
	// Preflight starts once, opens this artifact, reads help and version, answers one request and stops.
	// The error is a *matrix.StartFailure where the engine could not do it.
	Preflight(ctx context.Context, r matrix.StartRequest, progress func(matrix.Progress)) (matrix.PreflightResult, error)
	// Start launches one server and returns once it generated a token of the right model.
	// The error is a *matrix.StartFailure; nothing is left running then.
	Start(ctx context.Context, r matrix.StartRequest, progress func(matrix.Progress)) (matrix.Ready, error)
	// Observe asks the running server what it is and does now. It must not be called inside a timed window.
	Observe(ctx context.Context) (matrix.State, error)
	// Tokenize returns the engine's own token ids of a text, or ErrUnsupported.
	Tokenize(ctx context.Context, text string) ([]int, error)
	// Stop ends the server tree and proves it gone, within the deadline; what survives is in the result.
	Stop(ctx context.Context, deadline time.Duration) (matrix.Stopped, error)
}

// Telemetry is a source of device readings. It serves no numbers of its own making.
type Telemetry interface {
	// Describe lists the devices and what each field of theirs is on this box.
	Describe(ctx context.Context) (matrix.Telemetry, error)
	// Sample calls fn at the rate until ctx ends. A reading that did not come in time is stale, never repeated.
	Sample(ctx context.Context, hz int, fn func(matrix.Sample)) error
}
