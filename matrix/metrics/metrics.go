// Package metrics turns the arrival log of a repetition into numbers, each under a named and versioned formula.
//
// Stance: the names TTFT, TPOT, ITL and E2EL mean nothing without the formula that computed them: one stream of ten
// tokens gives a TPOT of 17 to 39 ms by six clients in use (harnesses.md §4.3). broker/1 is the formula of verdicts; the
// peers' formulas are computed beside it from the same log, and two formulas never meet in one ratio. A number that
// cannot be derived is absent with a reason, never zero. Failed and suspect requests are in no number but keep the window
// of all attempts open, and a void leg has no number at all.
//
// The way it works:
//
//  1. Accumulator: one request after the other, its stream events once, in bounded memory
//  2. Repetition: one timed pass → a number per metric of the formula
//  3. Leg: the median over repetitions with spread and CV; tails only above their sample floor
//
// Formulas live in broker1.go and peers.go, the metrics each of them gives in catalog.go.
package metrics

import (
	"fmt"
	"slices"

	"enginebroker/matrix"
	"enginebroker/matrix/stats"
)

// Broker1 is the formula of verdicts.
const Broker1 = "broker/1"

// Names of the metrics that other rooms ask for. Times are ms, rates are per second of the wall window of all attempts.
const (
	OutputTokS     = "output_tok_s"
	TotalTokS      = "total_tok_s"
	ReqS           = "req_s"
	TPOTMedian     = "tpot_median"
	TTFTMedian     = "ttft_median"
	E2ELMedian     = "e2el_median"
	ITLMedian      = "itl_median"
	PrefillTokS    = "prefill_tok_s"
	PeakMemDelta   = "peak_mem_delta"
	EnergyPerToken = "energy_per_output_token"
)

// Repetition computes every metric that a formula gives for one repetition; what cannot be derived is absent. Metrics of
// a whole leg (memory, energy) are in Leg alone, and so are the sample floors of tails.
func Repetition(formula string, rep matrix.Repetition) (map[string]matrix.Opt[float64], error) {
	a, err := accumulated(formula, rep)
	if err != nil {
		return nil, err
	}
	return a.Result(rep.End - rep.Start), nil
}

// result is one number, or why there is none.
type result struct {
	x   matrix.Opt[float64]
	why string
}

func accumulated(formula string, rep matrix.Repetition) (*Accumulator, error) {
	a, err := NewAccumulator(formula)
	if err != nil {
		return nil, err
	}
	for _, r := range rep.Requests {
		if err := a.Add(r, slices.Values(r.Stream)); err != nil {
			return nil, fmt.Errorf("repetition %d: %w", rep.Index, err)
		}
	}
	return a, nil
}

// Leg folds the repetitions of a leg: the value is their median, beside it max/min and the population CV (protocol §3.1).
// A metric that one repetition lacks is absent for the leg, with the reason. A void leg gives nothing at all, and neither
// does a formula that does not exist (CatalogOf names those that do).
func Leg(formula string, rec matrix.LegRecord, gate matrix.GateResult) map[string]matrix.Value {
	if !gate.Valid() {
		return nil
	}
	catalog, err := CatalogOf(formula)
	if err != nil {
		return nil
	}
	var reps []map[string]result
	answered, broken := 0, ""
	for _, r := range rec.Repetitions {
		a, err := accumulated(formula, r)
		if err != nil {
			broken = err.Error()
			break
		}
		reps = append(reps, a.results(r.End-r.Start))
		answered += a.ok
	}
	out := make(map[string]matrix.Value, len(catalog))
	for _, m := range catalog {
		v := matrix.Value{Metric: m.Name, N: len(rec.Repetitions)}
		switch withheld := withheld(m, gate, answered); {
		case broken != "":
			v.Why = broken
		case withheld != "":
			v.Why = withheld
		case m.Class == matrix.ClassMemory || m.Class == matrix.ClassEnergy:
			v.X, v.Why = ofBox(m.Name, rec)
			v.N = 1
		default:
			fold(&v, reps)
		}
		out[m.Name] = v
	}
	return out
}

// withheld says why a leg must not show a metric although it could be computed.
func withheld(m matrix.Metric, gate matrix.GateResult, answered int) string {
	if m.Class == matrix.ClassITL && slices.Contains(gate.Flags, string(matrix.ITLCoalesced)) {
		return string(matrix.ITLCoalesced) + ": per-token gaps cannot be told from this stream (protocol §4.1)"
	}
	if m.Percentile == 0 {
		return ""
	}
	floor, err := stats.TailFloor(m.Percentile)
	if err != nil {
		return err.Error()
	}
	if answered < floor {
		return fmt.Sprintf("%s: %d requests, p%d needs %d (protocol §1)", matrix.TailUndersampled, answered, m.Percentile, floor)
	}
	return ""
}

func fold(v *matrix.Value, reps []map[string]result) {
	xs := make([]float64, 0, len(reps))
	for i, rep := range reps {
		r := rep[v.Metric]
		x, ok := r.x.Get()
		if !ok {
			v.Why = fmt.Sprintf("repetition %d: %s", i, r.why)
			return
		}
		xs = append(xs, x)
	}
	f, err := stats.Fold(xs)
	if err != nil {
		v.Why = err.Error()
		return
	}
	v.X = matrix.Some(f.Median)
	if f.HasRelative {
		v.Spread, v.CV = matrix.Some(f.Spread), matrix.Some(f.CVPct)
	}
}

// ofBox computes what the box measured over the whole leg.
func ofBox(name string, rec matrix.LegRecord) (matrix.Opt[float64], string) {
	if name == PeakMemDelta {
		if kib, ok := rec.Env.PeakMemDeltaKiB.Get(); ok {
			return matrix.Some(float64(kib) / 1024), ""
		}
		return matrix.Opt[float64]{}, "the box did not record available memory"
	}
	mj, ok := rec.Env.EnergyMilliJoule.Get()
	if !ok {
		return matrix.Opt[float64]{}, "the box has no energy counter"
	}
	var tokens int64
	for _, r := range rec.Repetitions {
		for _, q := range r.Requests {
			n, known := q.CompletionTokens.Get()
			if !known {
				return matrix.Opt[float64]{}, fmt.Sprintf("request %d has no token count", q.Index)
			}
			tokens += n
		}
	}
	if tokens == 0 {
		return matrix.Opt[float64]{}, "no output token"
	}
	return matrix.Some(float64(mj) / 1000 / float64(tokens)), ""
}
