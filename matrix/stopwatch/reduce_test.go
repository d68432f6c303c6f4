package stopwatch

import (
	"bytes"
	"slices"
	"testing"

	"enginebroker/matrix"
)

// A whole stream is framed, located, counted and hashed without allocation once the buffers have grown.
func TestNoAllocations(t *testing.T) {
	body := append(bytes.Repeat([]byte(tokenEvent(" and")), 1000), ending...)
	r := newReducer(&Recording{}, matrix.Dialect{EchoesModel: true, Model: "toy"}, matrix.Point{OutputTokens: 1000})
	emit := func(matrix.StreamEvent) {}
	whole := func() {
		r.begin(emit)
		r.r.status, r.r.eventStream = 200, true
		for at := 0; at < len(body); at += 1000 { // cut inside events
			r.payload(int64(at), body[at:min(at+1000, len(body))])
		}
	}
	whole()
	// The finish reason, the model's name and the like cost a few per stream; none per event.
	if n := testing.AllocsPerRun(10, whole); n > 20 {
		t.Errorf("%v allocations for 1000 events", n)
	}
	if r.stream.tokenEvents != 1000 {
		t.Errorf("%d events with output", r.stream.tokenEvents)
	}
}

// Reducing twice gives the same, and one answer leaves nothing behind for the next.
func TestReduceIsPure(t *testing.T) {
	rec := sample(t)
	d, p := matrix.Dialect{RunningUsage: true}, matrix.Point{OutputTokens: 16}
	all := Reduce(rec, d, p)
	for i := range rec.Exchanges {
		one := *rec
		one.Exchanges = rec.Exchanges[i : i+1]
		alone := Reduce(&one, d, p)[0]
		a, b := all[i], alone
		if a.TextSHA256 != b.TextSHA256 || a.Outcome != b.Outcome || a.Bytes != b.Bytes || a.Events != b.Events || a.LagP99 != b.LagP99 || len(a.Stream) != len(b.Stream) || a.Model != b.Model {
			t.Errorf("exchange %d: %+v\nalone: %+v", i, a, b)
		}
	}
}

// Protocol §1: n₁ is 1 where no exact source counts the first token event, and the request says so.
func TestFirstTokensAssumed(t *testing.T) {
	counted := `data: {"choices":[{"index":0,"text":"two small"}],"usage":{"prompt_tokens":2,"completion_tokens":2}}` + "\n\n" +
		`data: {"choices":[{"index":0,"text":" boats","finish_reason":"length"}],"usage":{"prompt_tokens":2,"completion_tokens":3}}` + "\n\n" + doneEvent
	exact := matrix.Dialect{RunningUsage: true, Sources: []matrix.TokenSource{{Name: "usage", Kind: matrix.CountExact}, {Name: "running_usage", Kind: matrix.CountCumulative}}}
	for name, c := range map[string]struct {
		body string
		d    matrix.Dialect
		n1   matrix.Opt[int64]
	}{
		"running usage counts it": {counted, exact, matrix.Some(int64(2))},
		"usage at the end alone":  {goodEvents, matrix.Dialect{}, matrix.Opt[int64]{}},
	} {
		rec := &Recording{Exchanges: []Exchange{{Wire: [][]byte{[]byte(sseHead + chunked(c.body) + "0\r\n\r\n")}}}}
		rec.Exchanges[0].Segments = []Segment{{At: 1, Lag: -1, Bytes: len(rec.Exchanges[0].Wire[0])}}
		q := Reduce(rec, c.d, matrix.Point{OutputTokens: 4})[0]
		if q.Outcome != matrix.OutcomeOK || q.FirstTokens != c.n1 || slices.Contains(q.Flags, FlagFirstAssumed) == c.n1.Present() {
			t.Errorf("%s: %s %v %s: n₁ %v, flags %v", name, q.Outcome, q.Reasons, q.Error, q.FirstTokens, q.Flags)
		}
	}
}

const goodEvents = `data: {"choices":[{"index":0,"text":"two"}]}` + "\n\n" + `data: {"choices":[{"index":0,"text":" boats"}]}` + "\n\n" +
	`data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}` + "\n\n" + `data: {"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":2}}` + "\n\n" + doneEvent

// streamFlags are the flags that the corpus knows.
func streamFlags(q matrix.Request) []string {
	return slices.DeleteFunc(slices.Clone(q.Flags), func(f string) bool { return f == FlagFirstAssumed })
}
