package stats

import (
	"math"
)

// GridVerdict says whether a figure of one session came back in another.
type GridVerdict string

const (
	Reproduced    GridVerdict = "REPRODUCED"
	NotReproduced GridVerdict = "NOT_REPRODUCED"
	GridUndecided GridVerdict = "UNDECIDED"
)

// Thresholds of the across-grid rule (protocol §6).
const (
	GridMargin   = 0.02  // δ_r
	gridFloor    = 0.002 // a grid's own spread is never taken to be below 0.2 %
	gridFactor8  = 0.75  // c(n) from eight loads [sim]
	minGridLoads = 3
)

// gridFactor is c(n): the 99.9 % point of |Δ|/w without a between-grid component, normal law [sim].
var gridFactor = map[int]float64{3: 3.0, 4: 1.7, 5: 1.3, 6: 1.0, 7: 0.85}

// Shift is what one figure did from one grid to the next.
type Shift struct {
	Log      float64 // Δ = ln(m2/m1)
	Pct      float64
	Within   float64 // w, the wider log-spread of the two grids, at least the floor
	Multiple float64 // |Δ|/w
	Verdict  GridVerdict
}

// GridShift compares medians m1, m2 of two grids whose spreads over loads are s1, s2 (max/min) of n1, n2 loads (protocol §6).
func GridShift(m1, m2, s1, s2 float64, n1, n2 int) (Shift, error) {
	if err := positive("grid shift", m1, m2, s1, s2); err != nil {
		return Shift{}, err
	}
	for i, s := range []float64{s1, s2} {
		if s < 1 {
			return Shift{}, &InputError{Of: "grid shift", Index: 2 + i, Value: s, Why: "a spread max/min is at least 1"}
		}
	}
	return ShiftWithin(math.Log(m2/m1), math.Max(math.Log(s1), math.Log(s2)), n1, n2)
}

// ShiftWithin is the same rule on a log shift and the wider log-spread; block log-ratios come this way.
func ShiftWithin(delta, within float64, n1, n2 int) (Shift, error) {
	if err := finite("grid shift", delta, within, math.Exp(delta)); err != nil {
		return Shift{}, err
	}
	n := min(n1, n2)
	if err := atLeast("grid shift", n, 1); err != nil {
		return Shift{}, err
	}
	s := Shift{Log: delta, Pct: 100 * (math.Exp(delta) - 1), Within: math.Max(within, gridFloor)}
	s.Multiple = math.Abs(delta) / s.Within
	factor, ok := gridFactor[n]
	if !ok {
		factor = gridFactor8
	}
	switch {
	case math.Abs(delta) <= Margin(GridMargin):
		s.Verdict = Reproduced
	case n >= minGridLoads && s.Multiple > factor:
		s.Verdict = NotReproduced
	default:
		s.Verdict = GridUndecided
	}
	return s, nil
}

// Consistency says whether a stated ratio is the ratio of the stated arms.
type Consistency struct {
	Recomputed float64
	LogGap     float64
	Tolerance  float64
	Consistent bool
}

// RatioConsistency compares a stated ratio with a/b; sa and sb are the arms' spreads (max/min). The tolerance is
// max(0.001, ln sa + ln sb) (protocol §6).
func RatioConsistency(a, b, published, sa, sb float64) (Consistency, error) {
	if err := positive("ratio consistency", a, b, published, sa, sb, a/b); err != nil {
		return Consistency{}, err
	}
	c := Consistency{Recomputed: a / b, Tolerance: math.Max(0.001, math.Log(sa)+math.Log(sb))}
	c.LogGap = math.Abs(math.Log(published / c.Recomputed))
	c.Consistent = c.LogGap <= c.Tolerance
	return c, finite("ratio consistency", c.LogGap, c.Tolerance)
}

// Bounds is one grid's interval (its κ included) and median log-ratio.
type Bounds struct{ Lo, Hi, Median float64 }

// Envelope is the interval across grids. One grid makes no such claim, so Grids < 2 has no bounds.
type Envelope struct {
	Grids     int
	Lo, Hi    float64
	WidenedBy float64
}

// GridEnvelope spans the grids' intervals; with exactly two grids both ends widen by the range of the median log-ratios
// (protocol §6). Nothing is pooled.
func GridEnvelope(grids []Bounds) (Envelope, error) {
	e := Envelope{Grids: len(grids)}
	if err := atLeast("grid envelope", len(grids), 1); err != nil {
		return e, err
	}
	lo, hi := math.Inf(1), math.Inf(-1)
	mlo, mhi := math.Inf(1), math.Inf(-1)
	for _, g := range grids {
		if err := finite("grid envelope", g.Lo, g.Hi, g.Median); err != nil {
			return Envelope{}, err
		}
		lo, hi = math.Min(lo, g.Lo), math.Max(hi, g.Hi)
		mlo, mhi = math.Min(mlo, g.Median), math.Max(mhi, g.Median)
	}
	if len(grids) < 2 {
		return e, nil
	}
	if len(grids) == 2 {
		e.WidenedBy = mhi - mlo
	}
	e.Lo, e.Hi = lo-e.WidenedBy, hi+e.WidenedBy
	return e, nil
}

// Faster, Slower and Equivalent report what the interval across grids supports; one grid supports nothing.
func (e Envelope) Faster() bool { return e.Grids > 1 && e.Lo > 0 }

// Slower is Faster with the arms swapped.
func (e Envelope) Slower() bool { return e.Grids > 1 && e.Hi < 0 }

// Equivalent reports the whole interval inside (−δ, δ).
func (e Envelope) Equivalent(delta float64) bool { return e.Grids > 1 && e.Lo > -delta && e.Hi < delta }
