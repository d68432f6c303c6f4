package stopwatch

import (
	"bytes"

	"enginebroker/matrix"
)

// openai reads choices and usage.
func (st *stream) openai(e *matrix.StreamEvent) {
	c := &st.c
	var role, ids bool
	var n int64
	for i := range c.choices {
		x := &c.choices[i]
		st.choice(x.index)
		role = role || x.role
		if k := x.ids; k.Present() {
			ids = true
			n += k.Or(0)
		}
		st.output(e, x.index, matrix.EventReasoning, x.reasoning)
		st.output(e, x.index, matrix.EventText, x.content)
		if x.tool && !e.Kind.Token() {
			e.Kind = matrix.EventTool
		}
		if !x.finish.empty() {
			st.finish(e, x.index, x.finish, nil)
		}
	}
	for _, a := range c.arguments {
		st.output(e, c.choices[a.choice].index, matrix.EventTool, a.text)
	}
	if ids {
		st.tallies[tallyIDs].add(n)
	}
	if n, ok := c.counts.completion.Get(); ok && st.ask.running && c.hasChoices {
		st.tallies[tallyRunning].set(n)
	}
	if n, ok := c.predicted.Get(); ok {
		st.tallies[tallyTimings].set(n)
	}
	if c.usage != nil {
		st.counts = c.counts
	}
	if c.cacheN.Present() {
		st.cacheN = c.cacheN
	}
	if e.Kind == matrix.EventOther {
		switch {
		case e.Finish:
			e.Kind = matrix.EventFinish
		case c.usage != nil:
			e.Kind = matrix.EventUsage
		case role:
			e.Kind = matrix.EventRole
		}
	}
}

// llamacpp reads /completion: deltas with a running count, and a final event with stop true.
func (st *stream) llamacpp(e *matrix.StreamEvent) {
	c := &st.c
	st.output(e, 0, matrix.EventText, c.content)
	if n, ok := c.ids.Get(); ok && !c.stop { // in a stream the ids of held-back tokens are missing: a lossy source
		st.tallies[tallyIDs].add(n)
	}
	if n, ok := c.predicted.Get(); ok {
		st.tallies[tallyPredicted].set(n)
	}
	if c.stop {
		st.finish(e, 0, c.stopType, nil)
		st.counts = usage{prompt: c.evaluated, completion: c.predicted, cached: c.cacheN}
		st.cacheN = c.cacheN
		if e.Kind == matrix.EventOther {
			e.Kind = matrix.EventFinish
		}
	}
}

// sglang reads /generate: text and ids are running totals unless the server was started for deltas.
func (st *stream) sglang(e *matrix.StreamEvent) {
	c := &st.c
	if st.ask.cumulative {
		if !c.content.empty() && !bytes.Equal(c.content.raw, st.last) {
			e.Kind = matrix.EventText
			st.last = append(st.last[:0], c.content.raw...)
		}
	} else {
		st.output(e, 0, matrix.EventText, c.content)
	}
	if n, ok := c.ids.Get(); ok {
		if st.ask.cumulative {
			st.tallies[tallyIDs].set(n)
		} else {
			st.tallies[tallyIDs].add(n)
		}
	}
	if c.hasMeta {
		st.counts = c.counts
		if n, ok := c.counts.completion.Get(); ok && st.ask.running {
			st.tallies[tallyRunning].set(n)
		}
	}
	if !c.metaEnd.empty() {
		st.finish(e, 0, c.metaEnd, c.metaRaw)
		if e.Kind == matrix.EventOther {
			e.Kind = matrix.EventFinish
		}
	}
}
