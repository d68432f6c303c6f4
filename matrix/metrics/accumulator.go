package metrics

import (
	"cmp"
	"fmt"
	"iter"
	"math"

	"enginebroker/matrix"
)

// formula is one way to turn a log into numbers.
type formula struct {
	name   string // with the version or commit of the tool it restates
	rates  bool   // output, total and request rate over the window
	invert bool   // percentiles by the inverted weighted distribution instead of linear interpolation
	shows  []shown
	tokens func(*trace) matrix.Opt[int64]                 // output tokens of a request
	gap    func(*Accumulator, *trace, matrix.StreamEvent) // on every event, before the trace has it; nil: no gaps
	done   func(*Accumulator, *trace)                     // once per request
}

// shown is a quantity and its statistics.
type shown struct {
	of    quantity
	stats []string
}

// Accumulator computes the metrics of one repetition, one request after the other. Its memory does not grow with the
// length of streams. It is not for concurrent use.
type Accumulator struct {
	f        formula
	dists    map[quantity]*dist
	why      map[quantity]string // what is withheld, and why
	ok       int                 // requests in the numbers
	from, to int64               // window over all attempts, ns
	open     bool                // an attempt has no end
	output   tally
	total    tally
}

// tally sums token counts as long as every request has one.
type tally struct {
	n   int64
	why string
}

func (t *tally) add(n matrix.Opt[int64], index int) {
	x, ok := n.Get()
	if !ok && t.why == "" {
		t.why = fmt.Sprintf("request %d has no token count", index)
	}
	t.n += x
}

// NewAccumulator starts a repetition under a formula.
func NewAccumulator(formula string) (*Accumulator, error) {
	f, err := find(formula)
	if err != nil {
		return nil, err
	}
	return &Accumulator{f: f, dists: map[quantity]*dist{}, why: map[quantity]string{}, from: math.MaxInt64, to: math.MinInt64}, nil
}

// Add takes one finished request and the events of its stream, which are read once and not kept. An error names the
// request: an outcome that does not exist, or stamps that no clock could have made.
func (a *Accumulator) Add(r matrix.Request, events iter.Seq[matrix.StreamEvent]) error {
	t := trace{req: r}
	switch r.Outcome {
	case matrix.OutcomeOK:
	case matrix.OutcomeSuspect, matrix.OutcomeFailed, matrix.OutcomeNotReady:
		a.stretch(r, r.End) // in no number, but part of the window
		return nil
	default:
		return fmt.Errorf("metrics: request %d has outcome %q, which does not exist", r.Index, r.Outcome)
	}
	last := int64(math.MinInt64)
	for e := range events {
		if e.At < last {
			return fmt.Errorf("metrics: request %d: an event at %d ns follows one at %d ns", r.Index, e.At, last)
		}
		last = e.At
		if a.f.gap != nil {
			a.f.gap(a, &t, e)
		}
		t.add(e)
	}
	t.settle()
	if err := t.check(); err != nil {
		return err
	}
	if t.events == 0 {
		a.unlogged()
	}
	a.stretch(r, t.end)
	a.ok++
	n := a.f.tokens(&t)
	a.output.add(n, r.Index)
	a.total.add(n, r.Index)
	a.total.add(r.PromptTokens, r.Index)
	a.f.done(a, &t)
	return nil
}

// unlogged withholds what cannot be derived from reduced records: gaps, the end marker (a record has the finish chunk, not
// [DONE]), and everything of the peers, whose anchors differ.
func (a *Accumulator) unlogged() {
	for _, s := range a.f.shows {
		if a.f.name != Broker1 || s.of == itl || s.of == chunkGap || s.of == e2elTerminal {
			a.withhold(s.of, "the events of the streams are not at hand")
		}
	}
}

// stretch widens the window to one attempt, whatever became of it.
func (a *Accumulator) stretch(r matrix.Request, end stamp) {
	if s, ok := first(r.Sent, r.Scheduled).Get(); ok {
		a.from = min(a.from, s)
	}
	if e, ok := end.Get(); ok {
		a.to = max(a.to, e)
	} else {
		a.open = true
	}
}

// observe takes one observation, in ms or tokens per second, with its weight in means and percentiles.
func (a *Accumulator) observe(of quantity, x, weight float64) {
	d := a.dists[of]
	if d == nil {
		d = &dist{}
		a.dists[of] = d
	}
	d.add(x, weight)
}

// between observes the time from one stamp of a request to another. Where one is missing the quantity is withheld: a mean
// over the requests that happen to have it would be of another set.
func (a *Accumulator) between(of quantity, t *trace, from, to stamp) {
	if x, ok := ms(from, to); ok {
		a.observe(of, x, 1)
	} else {
		a.withhold(of, fmt.Sprintf("request %d lacks a stamp of it", t.req.Index))
	}
}

// since observes a gap from the stamp before, if there is one.
func (a *Accumulator) since(of quantity, before stamp, at int64) {
	if x, ok := ms(before, matrix.Some(at)); ok {
		a.observe(of, x, 1)
	}
}

// perToken observes the time from one stamp to another over the tokens that came after the first of them. A request that
// has none of these has no such time.
func (a *Accumulator) perToken(t *trace, from, to stamp, firstTokens int64) {
	n, counted := a.f.tokens(t).Get()
	x, ok := ms(from, to)
	switch rest := n - firstTokens; {
	case !counted || !ok:
		a.withhold(tpot, fmt.Sprintf("request %d lacks a stamp or a token count of it", t.req.Index))
	case rest > 0:
		a.observe(tpot, x/float64(rest), 1)
	}
}

// withhold keeps a quantity out of the results, with the first reason given.
func (a *Accumulator) withhold(of quantity, why string) {
	if a.why[of] == "" {
		a.why[of] = why
	}
}

// Result gives every metric of the formula over what was added; what cannot be derived is absent. length is the
// repetition's own length in ns, which stands in for the end of an attempt that has none.
func (a *Accumulator) Result(length int64) map[string]matrix.Opt[float64] {
	rs := a.results(length)
	out := make(map[string]matrix.Opt[float64], len(rs))
	for name, r := range rs {
		out[name] = r.x
	}
	return out
}

// results makes the numbers, or says why not.
func (a *Accumulator) results(length int64) map[string]result {
	if a.open {
		a.to = max(a.to, length)
	}
	out := map[string]result{}
	for _, c := range a.f.columns() {
		switch {
		case c.Class == matrix.ClassMemory || c.Class == matrix.ClassEnergy: // of a leg, not of a repetition
		case a.ok == 0:
			out[c.Name] = result{why: "no request was answered in full"}
		case c.of == "":
			out[c.Name] = a.rate(c.Name)
		default:
			out[c.Name] = a.statistic(c)
		}
	}
	return out
}

func (a *Accumulator) rate(name string) result {
	if a.from >= a.to {
		return result{why: "the window has no length: requests have no send or no end"}
	}
	seconds := float64(a.to-a.from) / 1e9
	t := map[string]tally{OutputTokS: a.output, TotalTokS: a.total, ReqS: {n: int64(a.ok)}}[name]
	if t.why != "" {
		return result{why: t.why}
	}
	return result{x: matrix.Some(float64(t.n) / seconds)}
}

func (a *Accumulator) statistic(c column) result {
	d := a.dists[c.of]
	switch {
	case a.why[c.of] != "":
		return result{why: a.why[c.of]}
	case d == nil:
		return result{why: "no request gives a " + string(c.of)}
	}
	var x float64
	var ok bool
	switch p := float64(c.Percentile); {
	case c.stat == "mean":
		x, ok = d.mean()
	case a.f.invert:
		x, ok = d.inverted(cmp.Or(p, 50))
	default:
		x, ok = d.linear(cmp.Or(p, 50))
	}
	if !ok || math.IsNaN(x) || math.IsInf(x, 0) {
		return result{why: "its observations give no number"}
	}
	return result{x: matrix.Some(x)}
}
