package matrix_test

import (
	"testing"

	"enginebroker/matrix"
)

func TestAnswered(t *testing.T) {
	ok := func(n int64) matrix.Request {
		return matrix.Request{Outcome: matrix.OutcomeOK, CompletionTokens: matrix.Some(n)}
	}
	leg := func(warm, a, b matrix.Request) matrix.LegRecord {
		return matrix.LegRecord{Warmup: []matrix.Request{warm}, Repetitions: []matrix.Repetition{{Planned: 2, Requests: []matrix.Request{a, b}}}}
	}
	failed := ok(3)
	failed.Outcome = matrix.OutcomeFailed
	short := leg(ok(2), ok(3), ok(4))
	short.Repetitions[0].Planned = 3
	cold := leg(ok(2), ok(3), ok(4))
	cold.Warmup = nil // its tokens are in the counter, and nobody knows how many
	for name, c := range map[string]struct {
		leg  matrix.LegRecord
		want int64
		ok   bool
	}{
		"all answered":    {leg(ok(2), ok(3), ok(4)), 9, true},
		"one failed":      {leg(ok(2), failed, ok(4)), 0, false},
		"one uncounted":   {leg(ok(2), ok(3), matrix.Request{Outcome: matrix.OutcomeOK}), 0, false},
		"warm-up failed":  {leg(failed, ok(3), ok(4)), 0, false},
		"one not sent":    {short, 0, false},
		"warm-up unknown": {cold, 0, false},
	} {
		if n, is := c.leg.Answered(); n != c.want && c.ok || is != c.ok {
			t.Errorf("%s: %d %v", name, n, is)
		}
	}
}
