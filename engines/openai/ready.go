package openai

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"enginebroker/matrix"
)

// Poll calls fn until it returns nil or ctx ends, waiting 50 ms at first and up to 1 s later. Each call has perCall for
// itself, so that a server that accepts and never answers is asked again. The error holds the last answer.
func Poll(ctx context.Context, perCall time.Duration, fn func(context.Context) error) error {
	wait := 50 * time.Millisecond
	for {
		one, cancel := context.WithTimeout(ctx, perCall)
		err := fn(one)
		cancel()
		if err == nil {
			return nil
		}
		if f, ok := errors.AsType[*matrix.StartFailure](err); ok {
			return f // an answer that will not change
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; last answer: %w", context.Cause(ctx), err)
		case <-time.After(wait):
			wait = min(wait*3/2, time.Second)
		}
	}
}

// Readiness is what Ready needs to know of a server.
type Readiness struct {
	Model    string // the served name
	Gate     string // a cheap GET that fails while the server loads, empty: none
	Prompt   any    // of the first generation
	Tokens   int
	Extra    map[string]any // body fields
	Echoes   bool           // the server answers with the loaded model's name whatever was asked, so the name proves something
	PerCall  time.Duration  // for one generation; 0: 60 s, above the slowest first token seen after a load
	Progress func(matrix.Progress)
}

// Ready waits until the server generated a token as the right model. The served name is compared in /v1/models and, where
// the server echoes what it loaded, in the answer; a wrong one is a *matrix.StartFailure at once.
func Ready(ctx context.Context, c *Client, r Readiness) (Completion, error) {
	say := func(phase string) {
		if r.Progress != nil {
			r.Progress(matrix.Progress{Phase: phase})
		}
	}
	say("load")
	if r.Gate != "" {
		if err := Poll(ctx, 2*time.Second, func(ctx context.Context) error {
			_, err := c.Raw(ctx, "GET", r.Gate, nil)
			return err
		}); err != nil {
			return Completion{}, err
		}
	}
	say("listen")
	if err := Poll(ctx, 2*time.Second, func(ctx context.Context) error { return c.serves(ctx, r.Model) }); err != nil {
		return Completion{}, err
	}
	say("generate")
	perCall := r.PerCall
	if perCall == 0 {
		perCall = time.Minute
	}
	var first Completion
	err := Poll(ctx, perCall, func(ctx context.Context) error {
		var err error
		first, err = c.Complete(ctx, r.Model, r.Prompt, r.Tokens, r.Extra)
		if final(err) {
			return &matrix.StartFailure{Code: "not_ready", Message: "the server refuses the first request: " + err.Error()}
		}
		return err
	})
	if err != nil {
		return first, err
	}
	if r.Echoes && first.Model != r.Model {
		return first, WrongModel(r.Model, first.Model, "the completion's model")
	}
	return first, nil
}

// final reports an answer that asking again will not change: the server understood the request and refuses it.
func final(err error) bool {
	return IsStatus(err, http.StatusBadRequest) || IsStatus(err, http.StatusUnauthorized) || IsStatus(err, http.StatusForbidden) || IsStatus(err, http.StatusUnprocessableEntity)
}

// serves checks the served name.
func (c *Client) serves(ctx context.Context, model string) error {
	list, err := c.Models(ctx)
	if err != nil {
		return err
	}
	var ids []string
	for _, m := range list {
		if m.ID == model {
			return nil
		}
		ids = append(ids, m.ID)
	}
	if len(ids) == 0 {
		return fmt.Errorf("GET /v1/models: no model yet")
	}
	return WrongModel(model, fmt.Sprint(ids), "/v1/models")
}

// WrongModel is the failure of a server that serves something else.
func WrongModel(want, got, where string) *matrix.StartFailure {
	return &matrix.StartFailure{Code: "wrong_model", Message: fmt.Sprintf("the server answers as %s, not as %s (%s)", got, want, where),
		Fix: "something else answers on this port, or the served name was not taken: check the log"}
}

// CacheProof sends the same prompt twice and reports the cached prompt tokens of the second answer; absent when the server
// does not say. The prompt must be longer than a cache block of the engine, or nothing could be reused.
func CacheProof(ctx context.Context, c *Client, model string, prompt any, extra map[string]any) (cached matrix.Opt[int64], err error) {
	for range 2 {
		a, err := c.Complete(ctx, model, prompt, 1, extra)
		if err != nil {
			return cached, fmt.Errorf("prefix cache probe: %w", err)
		}
		cached = a.CachedTokens
	}
	return cached, nil
}
