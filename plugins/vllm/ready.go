package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"time"

	"enginebroker/engines/fingerprint"
	"enginebroker/engines/openai"
	"enginebroker/engines/process"
	"enginebroker/matrix"
)

// logLines is how much of a load's log is searched for the kernels in use; a load with graphs prints some hundred lines.
const logLines = 5000

// ready waits for a token, then reads back what was started.
func (e *engine) ready(ctx context.Context, srv *server, t process.Tree, progress func(matrix.Progress)) (matrix.Ready, error) {
	r := srv.request
	loading := watchWeights(ctx, srv.pids, srv.weights.files)
	first, err := openai.Ready(ctx, srv.client, openai.Readiness{Model: r.ModelName, Prompt: "Hello", Tokens: 2, Echoes: true, Progress: progress})
	srv.proof = loading()
	if err != nil {
		return matrix.Ready{}, err
	}
	took := time.Since(t.Launched().Start)
	ready := matrix.Ready{FirstToken: took, LoadTime: took}
	s, err := readBack(ctx, srv.client, r.ModelName)
	if err != nil {
		return ready, err
	}
	if err := s.compare(r, srv.weights); err != nil {
		return ready, err
	}
	cache, added, cached, err := probe(ctx, srv.client, r.ModelName, s.granted.ContextTokens)
	if err != nil {
		return ready, err
	}
	log, err := t.LogTail(logLines)
	if err != nil {
		return ready, err
	}
	srv.more = append(append(srv.more, cache), logFacts(log)...)
	if first.Fingerprint != "" {
		srv.more = append(srv.more, seen(fingerprint.FactConfig+"system_fingerprint", first.Fingerprint, "system_fingerprint of an answer"))
	}
	if ready.Processes, err = srv.pids(); err != nil {
		return ready, err
	}
	if ready.Facts, ready.Print, err = e.identity(ctx, srv, ready.Processes, s); err != nil {
		return ready, err
	}
	ready.Granted = s.granted
	ready.Dialect = dialectOf(srv.client.Base, r.ModelName, s.granted, added, cached)
	return ready, nil
}

// watchWeights looks for proof of the weights while they load, and the returned function stops and gives the best: loaders
// that read and close leave no trace later.
func watchWeights(ctx context.Context, pids func() ([]matrix.Process, error), files []string) func() fingerprint.Proof {
	ctx, cancel := context.WithCancel(ctx)
	best := fingerprint.Proof{Rung: fingerprint.RungNone, Detail: "not seen"}
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for {
			// A process that ends meanwhile, or that cannot be read yet, is no news about the weights.
			if tree, err := pids(); err == nil {
				if p, err := fingerprint.Weights("", numbers(tree), files); err == nil {
					best = best.Better(p)
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	return func() fingerprint.Proof {
		cancel()
		wg.Wait()
		return best
	}
}

func numbers(tree []matrix.Process) []int {
	pids := make([]int, len(tree))
	for i, p := range tree {
		pids[i] = p.PID
	}
	return pids
}

// probePrompt is longer than the largest cache block of the engine (128 tokens on CPU), or nothing could be reused, and
// no text of any corpus.
var probePrompt = strings.Repeat("The broker asks this once and then once more. ", 16)

// probe sends one prompt twice: nothing of the second may come from a cache. The same answer tells how many tokens the
// server adds to a prompt.
func probe(ctx context.Context, c *openai.Client, model string, room int) (fact matrix.Fact, added int, reported bool, err error) {
	before, err := c.Metrics(ctx, "/metrics")
	if err != nil {
		return fact, 0, false, err
	}
	ids, err := tokenize(ctx, c, model, probePrompt)
	if err != nil {
		return fact, 0, false, err
	}
	ids = ids[:min(len(ids), room-1)]
	var last openai.Completion
	for range 2 {
		if last, err = c.Complete(ctx, model, ids, 1, nil); err != nil {
			return fact, 0, false, fmt.Errorf("prefix cache probe: %w", err)
		}
	}
	after, err := c.Metrics(ctx, "/metrics")
	if err != nil {
		return fact, 0, false, err
	}
	cached, reported := last.CachedTokens.Get()
	hits, counted := cachedTotal(after).Get()
	hits -= cachedTotal(before).Or(0)
	where := "two equal prompts"
	switch {
	case cached > 0 || hits > 0:
		return fact, 0, reported, &matrix.StartFailure{Code: "prefix_cache", Message: fmt.Sprintf("the prefix cache is on: of two equal prompts %d tokens came from it (counters: %d)", cached, hits)}
	case reported:
		where += ", cached_tokens 0 in the second"
	case counted:
		where += ", no hit counted in /metrics"
	default:
		return fact, 0, reported, &matrix.StartFailure{Code: "prefix_cache", Message: "neither an answer nor /metrics says how much was cached, so that the prefix cache is not shown to be off"}
	}
	text, err := c.Complete(ctx, model, "Hello", 1, nil)
	if err != nil {
		return fact, 0, reported, err
	}
	plain, err := tokenize(ctx, c, model, "Hello")
	if err != nil {
		return fact, 0, reported, err
	}
	n, ok := text.PromptTokens.Get()
	if !ok {
		return fact, 0, reported, errors.New("the answer has no usage.prompt_tokens")
	}
	return seen(matrix.FactPrefixCache, "off", where+", and /server_info"), int(n) - len(plain), reported, nil
}

func tokenize(ctx context.Context, c *openai.Client, model, text string) ([]int, error) {
	return c.Tokenize(ctx, "/tokenize", map[string]any{"model": model, "prompt": text, "add_special_tokens": false})
}

// identity reads what runs: mapped objects, packages, the proof of the weights, and what the server says.
func (e *engine) identity(ctx context.Context, srv *server, tree []matrix.Process, s state) (matrix.Facts, string, error) {
	facts := append(matrix.Facts{said(matrix.FactEngine, kind, "owned_by of /v1/models")}, s.facts()...)
	facts = append(facts, srv.more...)
	if len(tree) > 0 {
		print, err := e.fingerprint(ctx, srv, tree)
		if err != nil {
			return nil, "", err
		}
		facts = append(facts, print...)
	}
	if len(srv.weights.files) > 0 {
		facts = append(facts, srv.proof.Fact())
	}
	print, err := fingerprint.ArmPrint(facts)
	return facts, print, err
}

// fingerprint reads the processes. A helper that ends while it is read is tried once more, without it.
func (e *engine) fingerprint(ctx context.Context, srv *server, tree []matrix.Process) (matrix.Facts, error) {
	opt := fingerprint.Options{PIDs: numbers(tree), Launch: srv.in.binary, Sum: e.sums.Sum, Private: srv.request.CacheDir}
	print, err := fingerprint.Of(ctx, opt)
	if errors.Is(err, fs.ErrNotExist) {
		if tree, err = srv.pids(); err != nil {
			return nil, err
		}
		opt.PIDs = numbers(tree)
		print, err = fingerprint.Of(ctx, opt)
	}
	return print.Facts, err
}
