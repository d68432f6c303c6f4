package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"enginebroker/engines/adapter"
	"enginebroker/engines/fingerprint"
	"enginebroker/engines/openai"
	"enginebroker/matrix"
)

// props is what is used of GET /props.
type props struct {
	Settings struct {
		NCtx int `json:"n_ctx"` // of one slot; 0 for a router
	} `json:"default_generation_settings"`
	TotalSlots   int    `json:"total_slots"`
	Alias        string `json:"model_alias"`
	Ftype        string `json:"model_ftype"`
	Path         string `json:"model_path"`
	Template     string `json:"chat_template"`
	Build        string `json:"build_info"`
	Role         string `json:"role"` // "router" in router mode
	Sleeping     *bool  `json:"is_sleeping"`
	Modalities   struct{ Vision, Audio bool }
	SlotEndpoint bool `json:"endpoint_slots"`
}

// slot is what is used of one entry of GET /slots.
type slot struct {
	NCtx        int   `json:"n_ctx"`
	Speculative *bool `json:"speculative"`
	Processing  bool  `json:"is_processing"`
}

func parseProps(b []byte) (props, error) {
	var p props
	if err := json.Unmarshal(b, &p); err != nil {
		return p, fmt.Errorf("/props: %w", err)
	}
	if p.Role == "router" || p.Settings.NCtx == 0 || p.Path == "" {
		return p, &matrix.StartFailure{Code: "unsupported_flag", Message: "the server is a router: it has loaded no model (/props has no context)", Fix: "start llama-server with a model; router mode is refused"}
	}
	return p, nil
}

func parseSlots(b []byte) ([]slot, error) {
	var s []slot
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("/slots: %w", err)
	}
	return s, nil
}

// state is what a running server says of itself.
type state struct {
	facts   matrix.Facts
	granted matrix.Limits
	drafts  matrix.Opt[bool]
}

// readBack asks the server for limits and configuration.
func readBack(ctx context.Context, c *openai.Client, policy matrix.Policy) (state, error) {
	raw, err := c.Raw(ctx, http.MethodGet, "/props", nil)
	if err != nil {
		return state{}, err
	}
	p, err := parseProps(raw)
	if err != nil {
		return state{}, err
	}
	var slots []slot
	if raw, err = c.Raw(ctx, http.MethodGet, "/slots", nil); err == nil {
		if slots, err = parseSlots(raw); err != nil {
			return state{}, err
		}
	} else if !openai.IsStatus(err, http.StatusNotImplemented) {
		return state{}, err
	}
	return interpret(p, slots, policy), nil
}

// interpret turns the answers into facts. /props says speculation none even while the server drafts; /slots tells
// (engines.md E2).
func interpret(p props, slots []slot, policy matrix.Policy) state {
	s := state{granted: matrix.Limits{ContextTokens: p.Settings.NCtx, Concurrency: p.TotalSlots, KVTokens: p.Settings.NCtx * p.TotalSlots}}
	if len(slots) > 0 {
		s.granted = matrix.Limits{ContextTokens: slots[0].NCtx, Concurrency: len(slots)}
		for _, x := range slots {
			s.granted.ContextTokens = min(s.granted.ContextTokens, x.NCtx)
			s.granted.KVTokens += x.NCtx
			if x.Speculative != nil {
				s.drafts = matrix.Some(s.drafts.Or(false) || *x.Speculative)
			}
		}
	}
	template := sha256.Sum256([]byte(p.Template))
	s.facts = matrix.Facts{
		adapter.Said(matrix.FactVersion, p.Build, "/props build_info"),
		adapter.Seen(matrix.FactModelPath, p.Path, "/props model_path"),
		adapter.Seen(matrix.FactContextTokens, strconv.Itoa(s.granted.ContextTokens), "/slots n_ctx"),
		adapter.Seen(matrix.FactConcurrency, strconv.Itoa(s.granted.Concurrency), "/slots"),
		adapter.Seen(matrix.FactChatTemplate, hex.EncodeToString(template[:]), "/props chat_template"),
		// It echoes general.file_type and not the tensors.
		adapter.Said(fingerprint.FactConfig+"model_ftype", p.Ftype, "/props model_ftype"),
	}
	if p.Sleeping != nil {
		s.facts = append(s.facts, adapter.Said(matrix.FactSleepOnIdle, "off", "--sleep-idle-seconds is not among the arguments"))
	}
	switch drafts, ok := s.drafts.Get(); {
	case ok && !drafts:
		s.facts = append(s.facts, adapter.Seen(matrix.FactSpeculation, "none", "/slots speculative"))
	case ok:
		s.facts = append(s.facts, adapter.Seen(matrix.FactSpeculation, cmp.Or(policy.Drafter, "unknown method"), "/slots speculative; the method is the one asked for"))
	}
	return s
}

// compare checks what the server grants and does against the request.
func (s state) compare(r matrix.StartRequest) error {
	if s.granted.ContextTokens < r.Limits.ContextTokens || s.granted.Concurrency < r.Limits.Concurrency {
		return &matrix.StartFailure{Code: "limits", Message: fmt.Sprintf("asked for %d tokens per request and %d requests at once, granted %d and %d (/slots)",
			r.Limits.ContextTokens, r.Limits.Concurrency, s.granted.ContextTokens, s.granted.Concurrency), Fix: "the build clips the context or the slots: see its log"}
	}
	drafts, ok := s.drafts.Get()
	if want := r.Policy.Kind == matrix.Drafted; ok && drafts != want {
		return &matrix.StartFailure{Code: "policy", Message: fmt.Sprintf("the policy is %s, and /slots says speculative: %t", r.Policy, drafts)}
	}
	return nil
}
