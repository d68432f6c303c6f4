package adapter

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"enginebroker/engines/openai"
	"enginebroker/matrix"
)

// ProbePrompt is no text of any corpus and longer than the largest cache block of an engine (128 tokens, vLLM on CPU), or
// nothing of it could be reused.
var ProbePrompt = strings.Repeat("The broker asks this once and then once more. ", 16)

// Probe asks one prompt twice: nothing of the second may come from a cache.
type Probe struct {
	Client   *openai.Client
	Model    string
	Room     int                                                   // tokens that the prompt may have
	Extra    map[string]any                                        // body fields
	Tokenize func(ctx context.Context, text string) ([]int, error) // as Session.Tokenize
	Cached   func(m openai.Metrics) matrix.Opt[int64]              // tokens that came from a cache since the server runs
	Feature  string                                                // what the engine calls the cache
}

// Probed is what two equal prompts show of a server.
type Probed struct {
	Added    int  // tokens the server adds to a prompt
	Reported bool // an answer counts its cached tokens, 0 included
	IDs      bool // an answer carries its token ids when asked
	Where    string
}

// Run sends the prompt. A cached token, counted in the answer or in /metrics, and a server that counts in neither, are a
// *matrix.StartFailure. The prompt is given as ids of the server's own tokenizer: others may kill it (engines.md D8).
func (p Probe) Run(ctx context.Context) (Probed, error) {
	var got Probed
	before, err := p.Client.Metrics(ctx, "/metrics")
	if err != nil {
		return got, err
	}
	ids, err := p.Tokenize(ctx, ProbePrompt)
	if err != nil {
		return got, err
	}
	ids = ids[:min(len(ids), p.Room)]
	var last openai.Completion
	for range 2 {
		if last, err = p.Client.Complete(ctx, p.Model, ids, 1, p.Extra); err != nil {
			return got, fmt.Errorf("prefix cache probe: %w", err)
		}
	}
	got.IDs = len(last.IDs) > 0
	after, err := p.Client.Metrics(ctx, "/metrics")
	if err != nil {
		return got, err
	}
	var cached int64
	cached, got.Reported = last.CachedTokens.Get()
	hits, counted := p.Cached(after).Get()
	hits -= p.Cached(before).Or(0)
	switch {
	case cached > 0 || hits > 0:
		return got, &matrix.StartFailure{Code: "prefix_cache", Message: fmt.Sprintf("the %s cache is on: of two equal prompts %d tokens came from it (counters: %d)", p.Feature, cached, hits)}
	case got.Reported:
		got.Where = "two equal prompts, cached_tokens 0 in the second"
	case counted: // such a build counts a hit only
		got.Where = "two equal prompts, no hit counted in /metrics"
	default:
		return got, &matrix.StartFailure{Code: "prefix_cache", Message: "neither an answer nor /metrics says how much was cached, so that the " + p.Feature + " cache is not shown to be off"}
	}
	got.Added, err = p.added(ctx)
	return got, err
}

// added counts what the server adds to a prompt of text.
func (p Probe) added(ctx context.Context) (int, error) {
	text, err := p.Client.Complete(ctx, p.Model, "Hello", 1, nil)
	if err != nil {
		return 0, err
	}
	plain, err := p.Tokenize(ctx, "Hello")
	if err != nil {
		return 0, err
	}
	n, ok := text.PromptTokens.Get()
	if !ok {
		return 0, errors.New("the answer has no usage.prompt_tokens")
	}
	return int(n) - len(plain), nil
}
