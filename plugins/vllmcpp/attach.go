package main

import (
	"context"
	"errors"
	"time"

	"enginebroker/engines/openai"
	"enginebroker/engines/process"
	"enginebroker/matrix"
)

// attach describes a server that somebody else runs.
func (e *engine) attach(ctx context.Context, url string, r matrix.StartRequest, progress func(matrix.Progress)) (matrix.Ready, error) {
	srv := &server{client: openai.New(url, nil), request: r, pids: func() ([]matrix.Process, error) { return process.Owners(url) }}
	start := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, min(r.ReadyLimit, 30*time.Second), errors.New("the attached server generated nothing"))
	defer cancel()
	ready, err := func() (matrix.Ready, error) {
		var ready matrix.Ready
		_, err := openai.Ready(ctx, srv.client, openai.Readiness{Model: r.ModelName, Prompt: "Hello", Tokens: 2, Progress: progress})
		if err != nil {
			return ready, err
		}
		ready.FirstToken = time.Since(start)
		if ready.Processes, err = srv.pids(); err != nil {
			return ready, err
		}
		ready.Facts, ready.Granted, ready.Print, err = e.identity(ctx, srv, ready.Processes)
		ready.Dialect = dialectOf(url, r, ready.Granted, srv.tokenize)
		return ready, err
	}()
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil && e.server != nil {
		err = &matrix.StartFailure{Code: process.CodeBusy, Message: "this instance runs or describes a server already"}
	}
	if err != nil {
		srv.client.Close()
		if f, ok := errors.AsType[*matrix.StartFailure](err); ok {
			return matrix.Ready{}, f
		}
		return matrix.Ready{}, &matrix.StartFailure{Code: process.CodeNotReady, Phase: "generate", Message: url + ": " + err.Error()}
	}
	e.server = srv
	return ready, nil
}
