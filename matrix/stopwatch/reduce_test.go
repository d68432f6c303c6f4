package stopwatch

import (
	"bytes"
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
