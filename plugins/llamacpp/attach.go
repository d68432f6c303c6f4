package main

import (
	"context"
	"errors"
	"time"

	"enginebroker/engines/openai"
	"enginebroker/engines/process"
	"enginebroker/matrix"
)

// attach describes a server that somebody else runs. Where it runs on this machine, the owner of the listening socket is
// the arm, whatever started it.
func (e *engine) attach(ctx context.Context, url string, r matrix.StartRequest, progress func(matrix.Progress)) (matrix.Ready, error) {
	srv := &server{client: openai.New(url, nil), request: r, pids: func() ([]matrix.Process, error) { return process.Owners(url) }}
	start := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, min(r.ReadyLimit, 30*time.Second), errors.New("the attached server generated nothing"))
	defer cancel()
	fail := func(err error) (matrix.Ready, error) {
		srv.client.Close()
		if f, ok := errors.AsType[*matrix.StartFailure](err); ok {
			return matrix.Ready{}, f
		}
		return matrix.Ready{}, &matrix.StartFailure{Code: process.CodeNotReady, Phase: "generate", Message: url + ": " + err.Error()}
	}
	first, err := openai.Ready(ctx, srv.client, openai.Readiness{Model: r.ModelName, Prompt: "Hello", Tokens: 2, Extra: sampling(), Echoes: true, Progress: progress})
	if err != nil {
		return fail(err)
	}
	s, err := readBack(ctx, srv.client, srv.request.Policy)
	if err != nil {
		return fail(err)
	}
	tree, err := srv.pids()
	if err != nil {
		return fail(err)
	}
	ready := matrix.Ready{FirstToken: time.Since(start), Processes: tree, Granted: s.granted, Dialect: dialectOf(url, first.Model, s.granted, 0)}
	if ready.Facts, ready.Print, err = e.identity(ctx, srv, tree, s, nil); err != nil {
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
