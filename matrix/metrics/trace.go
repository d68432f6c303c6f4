package metrics

import (
	"fmt"

	"enginebroker/matrix"
)

// stamp is a time in ns since the window's start, or none.
type stamp = matrix.Opt[int64]

// trace is what one request left behind: the anchors between which every formula measures.
type trace struct {
	req                   matrix.Request
	firstChunk, lastChunk stamp // events with a non-empty choices array, the role and finish chunks included
	firstToken, lastToken stamp
	usage, finish, done   stamp
	end                   stamp
	events, tokenEvents   int
	firstTokens           matrix.Opt[int64] // tokens of the first token event, from an exact source
	uneven                bool              // a token event of other than one token
}

// add takes one event. The first anchor of each kind stays, the last one moves on.
func (t *trace) add(e matrix.StreamEvent) {
	t.events++
	at := matrix.Some(e.At)
	if e.Choices {
		t.firstChunk, t.lastChunk = first(t.firstChunk, at), at
	}
	if e.Finish {
		t.finish = at
	}
	switch {
	case e.Kind.Token():
		n, counted := e.Tokens.Get()
		if t.tokenEvents == 0 && counted {
			t.firstTokens = matrix.Some(int64(n))
		}
		t.tokenEvents++
		t.firstToken, t.lastToken = first(t.firstToken, at), at
		t.uneven = t.uneven || (counted && n != 1)
	case e.Kind == matrix.EventUsage:
		t.usage = at
	case e.Kind == matrix.EventDone:
		t.done = at
	case e.Kind == matrix.EventEOF:
		t.end = at
	}
}

// settle lets the reduced record, which the ledger holds, have the last word on the anchors it knows: so a number is the
// same with and without the events.
func (t *trace) settle() {
	t.firstToken, t.lastToken = first(t.req.FirstToken, t.firstToken), first(t.req.LastToken, t.lastToken)
	t.end = first(t.req.End, t.end)
	t.firstTokens = first(t.req.FirstTokens, t.firstTokens)
}

// terminal is the end marker: [DONE] or its like, else the finish chunk.
func (t *trace) terminal() stamp { return first(t.done, t.finish) }

// coalesced reports whether per-token gaps cannot be told: chunks are not tokens, or they all came at one instant
// (protocol §4.1, corpus/sse rule 7).
func (t *trace) coalesced() bool {
	n, ok := t.req.CompletionTokens.Get()
	atOnce := t.tokenEvents > 1 && t.firstToken == t.lastToken
	return !ok || t.uneven || int64(t.tokenEvents) != n || atOnce
}

// check refuses stamps that no clock could have made.
func (t *trace) check() error {
	before, name := t.req.Sent, "send"
	for _, s := range []struct {
		at   stamp
		name string
	}{{t.firstToken, "first token"}, {t.lastToken, "last token"}, {t.end, "end"}} {
		at, ok := s.at.Get()
		if !ok {
			continue
		}
		if b, ok := before.Get(); ok && at < b {
			return fmt.Errorf("metrics: request %d: %s at %d ns lies before %s at %d ns", t.req.Index, s.name, at, name, b)
		}
		before, name = s.at, s.name
	}
	for _, n := range []matrix.Opt[int64]{t.req.PromptTokens, t.req.CompletionTokens, t.firstTokens} {
		if n.Or(0) < 0 {
			return fmt.Errorf("metrics: request %d counts %d tokens", t.req.Index, n.Or(0))
		}
	}
	return nil
}

// first returns the first present value.
func first[T any](xs ...matrix.Opt[T]) matrix.Opt[T] {
	for _, x := range xs {
		if x.Present() {
			return x
		}
	}
	return matrix.Opt[T]{}
}

// latest returns the later of two stamps, or the one that is there.
func latest(a, b stamp) stamp {
	if !a.Present() || (b.Present() && b.Or(0) > a.Or(0)) {
		return b
	}
	return a
}

// ms is the time from one stamp to another in milliseconds.
func ms(from, to stamp) (float64, bool) {
	a, ok := from.Get()
	b, ok2 := to.Get()
	return float64(b-a) / 1e6, ok && ok2
}
