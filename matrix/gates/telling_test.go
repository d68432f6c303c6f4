package gates_test

import (
	"slices"
	"testing"

	"enginebroker/matrix"
	"enginebroker/matrix/gates"
)

// docs/protocol.md §6: a code that the box or the client explains is not the engine's, and an engine's failure stays one.
func TestExcusedCodes(t *testing.T) {
	for name, c := range map[string]struct {
		codes []matrix.LegCode
		cause matrix.Cause
	}{
		"a late reader squeezes a stream":      {[]matrix.LegCode{matrix.StreamSpread, matrix.ClientLag}, matrix.CauseHarness},
		"a late reader buffers a stream":       {[]matrix.LegCode{matrix.BufferedStream, matrix.ClientLag}, matrix.CauseHarness},
		"a late reader makes a step":           {[]matrix.LegCode{matrix.LoadStep, matrix.ClientLag}, matrix.CauseHarness},
		"a neighbour makes a step":             {[]matrix.LegCode{matrix.LoadStep, matrix.ForeignCPU}, matrix.CauseEnv},
		"both":                                 {[]matrix.LegCode{matrix.LoadStep, matrix.ForeignCPU, matrix.ClientLag}, matrix.CauseEnv},
		"a neighbour does not buffer":          {[]matrix.LegCode{matrix.BufferedStream, matrix.ForeignCPU}, matrix.CauseEngine},
		"a late reader loses no tokens":        {[]matrix.LegCode{matrix.TokenCountCode, matrix.ClientLag}, matrix.CauseEngine},
		"an engine that buffers all by itself": {[]matrix.LegCode{matrix.BufferedStream}, matrix.CauseEngine},
	} {
		if got, err := gates.Cause(c.codes); err != nil || got != c.cause {
			t.Errorf("%s: %s (%v), want %s", name, got, err, c.cause)
		}
		slices.Reverse(c.codes)
		if got, err := gates.Cause(c.codes); err != nil || got != c.cause {
			t.Errorf("%s, in the other order: %s (%v), want %s", name, got, err, c.cause)
		}
	}
}

// A buffered stream voids its whole load, unless the client was too late to tell.
func TestExcusedCodeVoidsNoLoad(t *testing.T) {
	legs := []matrix.LegRecord{{LoadID: "l", ID: matrix.LegID{Point: "c1"}}, {LoadID: "l", ID: matrix.LegID{Point: "c8"}}}
	for _, late := range []bool{true, false} {
		first := gates.Add(matrix.GateResult{}, matrix.BufferedStream, "x")
		if late {
			first = gates.Add(first, matrix.ClientLag, "x")
		}
		out := gates.Series("", nil, legs, []matrix.GateResult{first, {}})
		if out[1].Valid() != late {
			t.Errorf("client late %v: the other leg of the load has %v", late, out[1].Codes)
		}
	}
}

// Shares in details are percent with one decimal.
func TestSharesReadAsPercent(t *testing.T) {
	p, err := gates.ProfileByName("cpu")
	if err != nil {
		t.Fatal(err)
	}
	g := gates.Leg(matrix.LegRecord{Repetitions: []matrix.Repetition{{}}, Env: matrix.Env{ForeignCPU: matrix.Some(0.7872984129227565)}}, matrix.Arm{}, matrix.Point{}, p)
	if got := g.Detail[matrix.ForeignCPU]; got != "foreign processes took 78.7 % of the box, at most 5 allowed" {
		t.Errorf("%q", got)
	}
}

// Issue 6, bad input: stamps that go backwards are a fault of the record, never an engine's.
func TestClocksThatGoBackwards(t *testing.T) {
	p, err := gates.ProfileByName("simulated")
	if err != nil {
		t.Fatal(err)
	}
	q := func(sent, first, last int64) matrix.Request {
		return matrix.Request{Outcome: matrix.OutcomeOK, Requested: 4, CompletionTokens: matrix.Some(int64(4)), TokenEvents: 4, FinishReason: "length",
			Sent: matrix.Some(sent), FirstToken: matrix.Some(first), LastToken: matrix.Some(last)}
	}
	for name, rep := range map[string]matrix.Repetition{
		"a repetition":       {Start: 9e9, End: 1e9, Planned: 1, Requests: []matrix.Request{q(0, 1e8, 1e9)}},
		"a first token":      {Start: 0, End: 1e9, Planned: 1, Requests: []matrix.Request{q(2e8, 1e8, 1e9)}},
		"a last token":       {Start: 0, End: 1e9, Planned: 1, Requests: []matrix.Request{q(0, 5e8, 1e8)}},
		"nothing, by a hair": {Start: 0, End: 1e9, Planned: 1, Requests: []matrix.Request{q(0, 0, 1e9)}},
	} {
		g := gates.Leg(matrix.LegRecord{Repetitions: []matrix.Repetition{rep}}, matrix.Arm{}, matrix.Point{}, p)
		if want := name != "nothing, by a hair"; slices.Contains(g.Codes, matrix.EvidenceMissing) != want || want && g.Cause != matrix.CauseHarness {
			t.Errorf("%s: %v, %s", name, g.Codes, g.Cause)
		}
	}
}
