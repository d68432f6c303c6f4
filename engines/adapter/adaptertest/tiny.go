package adaptertest

import (
	"slices"
	"testing"

	"enginebroker/engines/adapter"
	"enginebroker/matrix"
)

// What four engines answer with the tiny model in float32 to Prompt: 24 tokens, greedy, ignoring the end of text.
const (
	Prompt = "the cat in an old"
	Answer = `0l0lE andrEEEE0M2EW" p theEW"thg`
)

var promptIDs = []int{257, 281, 272, 32, 259, 32, 260, 32, 111, 108, 100}

// Tiny checks that a running server of the tiny model tokenizes and answers as the others do. lengths are the tokens it gives
// near the end of its context, by the number asked for behind Prompt's eleven.
func Tiny(t testing.TB, e *adapter.Instance, lengths map[int]int64) {
	t.Helper()
	if ids, err := e.Tokenize(t.Context(), Prompt); err != nil || !slices.Equal(ids, promptIDs) {
		t.Errorf("ids %v %v", ids, err)
	}
	srv, err := e.Server()
	if err != nil {
		t.Fatal(err)
	}
	exact := map[string]any{"ignore_eos": true}
	a, err := srv.Client.Complete(t.Context(), srv.Request.ModelName, Prompt, 24, exact)
	if err != nil || a.Text != Answer {
		t.Errorf("text %q, want %q: %v", a.Text, Answer, err)
	}
	for asked, want := range lengths {
		a, err := srv.Client.Complete(t.Context(), srv.Request.ModelName, Prompt, asked, exact)
		if err != nil || a.CompletionTokens != matrix.Some(want) {
			t.Errorf("11 + %d: %v tokens, want %d: %v", asked, a.CompletionTokens, want, err)
		}
	}
}
