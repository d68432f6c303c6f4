package workload

import (
	"enginebroker/matrix"
)

// Tokenizer says who counts the tokens of a corpus.
type Tokenizer struct {
	Name        string `json:"name"`                  // llamacpp /tokenize, tokenizer.json …
	Fingerprint string `json:"fingerprint,omitempty"` // sha256 of the tokenizer's file or of the artifact it belongs to
}

// Prompt is one prompt of a corpus.
type Prompt struct {
	ID     string          `json:"id"` // point/partition/number
	Text   string          `json:"text"`
	Tokens matrix.Opt[int] `json:"tokens,omitzero"` // exact; absent where nobody counted
	IDs    []int           `json:"ids,omitempty"`   // token ids, where the spec asked to keep them
}

// WarmUp is the repetition of the untimed requests of a load, from a partition of their own.
const WarmUp = -1

// LeadIn is the block of a superblock's lead-in load, which no scored block shares prompts with.
func LeadIn(superblock int) int { return -1 - superblock }
