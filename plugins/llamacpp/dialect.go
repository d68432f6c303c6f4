package main

import (
	"maps"

	"enginebroker/engines/openai"
	"enginebroker/matrix"
)

// sampling are the body fields that pin every sampler of llama-server: its defaults are temperature 0.8, top_k 40,
// top_p 0.95, min_p 0.05 (engines.md E3), and the prompt cache is a field too.
func sampling() map[string]any {
	body := openai.Greedy()
	maps.Copy(body, map[string]any{"min_p": 0, "repeat_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0, "cache_prompt": false, "samplers": []string{"top_k"}})
	return body
}

// dialectOf describes how a llama-server of b11669's kind answers, with what this one grants.
func dialectOf(base, model string, granted matrix.Limits, added int) matrix.Dialect {
	d := openai.BaseDialect(base, model)
	body := sampling()
	body["timings_per_token"] = true
	body["sse_ping_interval"] = -1
	d.Body = body
	d.EchoesModel = true     // a wrong name is accepted and answered by the loaded model
	d.Usage = "finish_chunk" // with timings, whether or not it was asked for; chat has a chunk of its own
	d.RunningUsage = false   //
	d.CachedReported = true  // usage.prompt_tokens_details.cached_tokens and timings.cache_n
	d.AddedPrompt = added    //
	d.TokenizePath = "/tokenize"
	d.Sources = []matrix.TokenSource{
		{Name: "usage", Kind: matrix.CountExact},
		{Name: "timings", Kind: matrix.CountCumulative}, // predicted_n of every chunk
		{Name: "token_ids", Kind: matrix.CountLossy},    // ids of a held-back character are lost in a stream
	}
	d.ContextTokens = granted.ContextTokens
	// Prompt and output together beyond the context are shortened without an error, exactly there; a longer prompt is a 400.
	d.ClipMargin = 0
	d.MaxPromptTokens = granted.ContextTokens - 1
	d.Liveness = matrix.Probe{Kind: "http", Path: "/health"} // answered by the HTTP thread, generates nothing
	return d
}
