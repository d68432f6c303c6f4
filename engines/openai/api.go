package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"

	"enginebroker/matrix"
)

// Model is one card of /v1/models.
type Model struct {
	ID          string           `json:"id"`
	OwnedBy     string           `json:"owned_by"`
	Root        string           `json:"root"`          // vLLM, SGLang: the model's path
	MaxModelLen matrix.Opt[int]  `json:"max_model_len"` // vLLM, SGLang
	Meta        *json.RawMessage `json:"meta"`          // llama.cpp; null while it loads
}

// Models lists what the server says it serves. Some servers answer this before they can generate.
func (c *Client) Models(ctx context.Context) ([]Model, error) {
	var list struct {
		Data []Model `json:"data"`
	}
	err := c.Get(ctx, "/v1/models", &list)
	return list.Data, err
}

// Completion is one answer of /v1/completions, not streamed.
type Completion struct {
	Model            string
	Text             string
	FinishReason     string
	Fingerprint      string
	PromptTokens     matrix.Opt[int64]
	CompletionTokens matrix.Opt[int64]
	CachedTokens     matrix.Opt[int64] // absent is unknown, not 0
	IDs              []int             // where the server was asked for them and gave them
	PromptIDs        []int
	Raw              []byte
}

// Greedy are the sampling fields that are always sent: no server's defaults, nor those of a checkpoint, may decide.
func Greedy() map[string]any {
	return map[string]any{"temperature": 0, "top_p": 1, "top_k": 1, "seed": 0}
}

// Complete sends one greedy, unstreamed completion of up to tokens tokens; extra adds or overrides body fields.
func (c *Client) Complete(ctx context.Context, model string, prompt any, tokens int, extra map[string]any) (Completion, error) {
	body := Greedy()
	body["model"], body["prompt"], body["max_tokens"], body["stream"] = model, prompt, tokens, false
	maps.Copy(body, extra)
	var raw json.RawMessage
	if err := c.Post(ctx, "/v1/completions", body, &raw); err != nil {
		return Completion{}, err
	}
	return ParseCompletion(raw)
}

// ParseCompletion reads an unstreamed completion. An answer without a choice or without its token count is an error: it
// is no proof of a generated token.
func ParseCompletion(raw []byte) (Completion, error) {
	var a struct {
		Model       string `json:"model"`
		Fingerprint string `json:"system_fingerprint"`
		Choices     []struct {
			Text         string `json:"text"`
			FinishReason string `json:"finish_reason"`
			TokenIDs     []int  `json:"token_ids"`
			PromptIDs    []int  `json:"prompt_token_ids"`
		} `json:"choices"`
		Usage struct {
			Prompt     matrix.Opt[int64] `json:"prompt_tokens"`
			Completion matrix.Opt[int64] `json:"completion_tokens"`
			Details    struct {
				Cached matrix.Opt[int64] `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
		Verbose struct {
			Tokens []int `json:"tokens"`
		} `json:"__verbose"` // llama.cpp, with verbose and return_tokens
	}
	if err := json.Unmarshal(raw, &a); err != nil {
		return Completion{}, fmt.Errorf("completion: %w", err)
	}
	if len(a.Choices) == 0 {
		return Completion{}, fmt.Errorf("completion: no choices in %.200s", raw)
	}
	ch := a.Choices[0]
	done := Completion{
		Model: a.Model, Text: ch.Text, FinishReason: ch.FinishReason, Fingerprint: a.Fingerprint,
		PromptTokens: a.Usage.Prompt, CompletionTokens: a.Usage.Completion, CachedTokens: a.Usage.Details.Cached,
		IDs: ch.TokenIDs, PromptIDs: ch.PromptIDs, Raw: bytes.Clone(raw),
	}
	if done.IDs == nil {
		done.IDs = a.Verbose.Tokens
	}
	if n, ok := done.CompletionTokens.Get(); !ok || n < 1 {
		return done, fmt.Errorf("completion: usage counts no generated token in %.200s", raw)
	}
	return done, nil
}

// Tokenize posts body to a tokenize route and reads {"tokens":[ids]}.
func (c *Client) Tokenize(ctx context.Context, path string, body any) ([]int, error) {
	var a struct {
		Tokens []int `json:"tokens"`
	}
	if err := c.Post(ctx, path, body, &a); err != nil {
		return nil, err
	}
	if a.Tokens == nil {
		return nil, fmt.Errorf("POST %s: no tokens in the answer", path)
	}
	return a.Tokens, nil
}

// BaseDialect is what all four engines share on /v1/completions; an adapter changes what its server does otherwise. What the
// method decides (lengths, ignore_eos) the client sends of itself.
func BaseDialect(base, model string) matrix.Dialect {
	body := Greedy()
	body["stream_options"] = map[string]any{"include_usage": true, "continuous_usage_stats": true}
	return matrix.Dialect{
		BaseURL: base, Path: "/v1/completions", ChatPath: "/v1/chat/completions", Form: "openai", Model: model,
		PromptForm: "text", MaxTokensField: "max_tokens", End: "done", Usage: "own_chunk", RunningUsage: true,
		Sources:  []matrix.TokenSource{{Name: "usage", Kind: matrix.CountExact}, {Name: "running_usage", Kind: matrix.CountCumulative}},
		Body:     body,
		Liveness: matrix.Probe{Kind: "tcp"},
	}
}
