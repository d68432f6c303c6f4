package main

import (
	"enginebroker/engines/adapter"
	"enginebroker/engines/openai"
	"enginebroker/matrix"
)

// dialectOf describes how SGLang answers (engines.md D3, D8). ids: this build returns token ids when asked.
func dialectOf(base, model string, s state, p adapter.Probed) matrix.Dialect {
	d := openai.BaseDialect(base, model)
	if p.IDs { // chunks are not tokens, not even alone: incomplete text is held back
		d.Body["return_token_ids"] = true
		d.Sources = append(d.Sources, matrix.TokenSource{Name: "token_ids", Kind: matrix.CountExact})
	}
	d.EchoesModel = false // the answer repeats whatever name was asked for
	d.CachedReported = p.Reported
	d.AddedPrompt = p.Added
	d.TokenizePath = "/tokenize"
	d.ContextTokens = s.granted.ContextTokens
	// Prompt and output together beyond the context are a 400. Within the last two tokens the answer is shortened in silence:
	// 4089 + 7 of 4096 gave 5.
	d.ClipMargin = 2
	d.MaxPromptTokens = s.maxInput - 1
	// /health generates a token, and /server_info hangs with the scheduler.
	d.Liveness = matrix.Probe{Kind: "tcp"}
	return d
}
