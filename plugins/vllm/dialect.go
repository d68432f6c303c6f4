package main

import (
	"enginebroker/engines/adapter"
	"enginebroker/engines/openai"
	"enginebroker/matrix"
)

// dialectOf describes how vLLM answers (engines.md C3, C8).
func dialectOf(base, model string, granted matrix.Limits, p adapter.Probed) matrix.Dialect {
	d := openai.BaseDialect(base, model)
	d.Body["return_token_ids"] = true // chunks are not tokens: under load one holds several
	d.Sources = append(d.Sources, matrix.TokenSource{Name: "token_ids", Kind: matrix.CountExact})
	d.EchoesModel = true // a wrong name is a 404
	d.CachedReported = p.Reported
	d.AddedPrompt = p.Added
	d.TokenizePath = "/tokenize"
	d.ContextTokens = granted.ContextTokens
	// Prompt and output together beyond the context are shortened without an error, exactly there; a longer prompt, and
	// max_tokens alone beyond the context, are a 400.
	d.ClipMargin = 0
	d.MaxPromptTokens = granted.ContextTokens - 1
	// /health and /v1/models answer 200 while the worker hangs, so that asking them tells nothing more than a connection does.
	d.Liveness = matrix.Probe{Kind: "tcp"}
	return d
}
