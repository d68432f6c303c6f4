// Package stats holds the statistics of the measurement protocol: how repetitions fold, what an interval over cold
// loads is, when a difference is a direction, whether two sessions agree.
//
// It is opinionated. The unit of replication is the load, so there is one interval (a paired t over blocks, protocol
// §3.3), one sign rule beside it (§3.4) and one correction over cells (§3.5). Nothing here knows an engine, a metric or
// a verdict: the package takes numbers and gives numbers. It draws only from its own SplitMix64, so equal input and
// seed give equal output.
//
// A statistic that cannot be computed is an error that names the value, never a NaN, an Inf or a zero.
package stats

import (
	"fmt"
	"math"
	"slices"
)

// InputError names a value from which a statistic cannot be computed.
type InputError struct {
	Of    string  // the statistic
	Index int     // of the value in its input; -1 when the count is wrong
	Value float64 // the value, or the count
	Why   string
}

func (e *InputError) Error() string {
	if e.Index < 0 {
		return fmt.Sprintf("%s: %v values: %s", e.Of, e.Value, e.Why)
	}
	return fmt.Sprintf("%s: value %d is %v: %s", e.Of, e.Index, e.Value, e.Why)
}

// atLeast refuses fewer than min values.
func atLeast(of string, n, min int) error {
	if n < min {
		return &InputError{Of: of, Index: -1, Value: float64(n), Why: fmt.Sprintf("needs at least %d", min)}
	}
	return nil
}

// finite refuses NaN and infinities.
func finite(of string, xs ...float64) error {
	for i, x := range xs {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return &InputError{Of: of, Index: i, Value: x, Why: "not a finite number"}
		}
	}
	return nil
}

// positive refuses NaN, infinities, zero and negative values: none of them has a ratio.
func positive(of string, xs ...float64) error {
	if err := finite(of, xs...); err != nil {
		return err
	}
	for i, x := range xs {
		if x <= 0 {
			return &InputError{Of: of, Index: i, Value: x, Why: "a ratio needs positive values"}
		}
	}
	return nil
}

func mean(xs []float64) float64 {
	sum := 0.0
	for _, x := range xs {
		sum += x
	}
	return sum / float64(len(xs))
}

// sampleSD is the standard deviation with n−1 in the denominator; xs has at least two values.
func sampleSD(xs []float64) float64 {
	m, ss := mean(xs), 0.0
	for _, x := range xs {
		ss += (x - m) * (x - m)
	}
	return math.Sqrt(ss / float64(len(xs)-1))
}

// quantileSorted interpolates linearly at h = (n−1)p/100 (protocol §3.1).
func quantileSorted(s []float64, p float64) float64 {
	h := float64(len(s)-1) * p / 100
	i := int(math.Floor(h))
	if i+1 >= len(s) {
		return s[len(s)-1]
	}
	return s[i] + (h-float64(i))*(s[i+1]-s[i])
}

// Percentiles returns the p-th percentiles of values, linear interpolation at h = (n−1)p/100 (protocol §3.1).
func Percentiles(values []float64, p ...float64) ([]float64, error) {
	if err := atLeast("percentile", len(values), 1); err != nil {
		return nil, err
	}
	if err := finite("percentile", values...); err != nil {
		return nil, err
	}
	s := slices.Sorted(slices.Values(values))
	out := make([]float64, len(p))
	for i, q := range p {
		if !(q >= 0 && q <= 100) {
			return nil, &InputError{Of: "percentile", Index: i, Value: q, Why: "a percentile lies in 0..100"}
		}
		out[i] = quantileSorted(s, q)
	}
	return out, nil
}

// Median returns the 50th percentile.
func Median(values []float64) (float64, error) {
	out, err := Percentiles(values, 50)
	if err != nil {
		return 0, err
	}
	return out[0], nil
}

// Mean returns the arithmetic mean.
func Mean(values []float64) (float64, error) {
	if err := atLeast("mean", len(values), 1); err != nil {
		return 0, err
	}
	if err := finite("mean", values...); err != nil {
		return 0, err
	}
	return mean(values), nil
}

// Folded is one leg value and how much its repetitions differed.
type Folded struct {
	N           int
	Median      float64
	Min, Max    float64
	Spread      float64 // max/min
	CVPct       float64 // population CV, percent
	HasRelative bool    // Spread and CVPct exist: every repetition is positive
}

// Fold reduces the repetitions of one leg to its value, the median (protocol §3.1). Repetitions never enter an interval.
func Fold(reps []float64) (Folded, error) {
	if err := atLeast("fold", len(reps), 1); err != nil {
		return Folded{}, err
	}
	if err := finite("fold", reps...); err != nil {
		return Folded{}, err
	}
	s := slices.Sorted(slices.Values(reps))
	f := Folded{N: len(s), Median: quantileSorted(s, 50), Min: s[0], Max: s[len(s)-1]}
	if f.Min > 0 {
		m, ss := mean(reps), 0.0
		for _, x := range reps {
			ss += (x - m) * (x - m)
		}
		f.Spread, f.CVPct = f.Max/f.Min, 100*math.Sqrt(ss/float64(len(reps)))/m
		f.HasRelative = finite("fold", f.Spread, f.CVPct) == nil
	}
	return f, nil
}

// LogRatio is ln(a/b), direction-normalised: positive means a is better (protocol §3.2).
func LogRatio(a, b float64, higherIsBetter bool) (float64, error) {
	if err := positive("log ratio", a, b); err != nil {
		return 0, err
	}
	d := math.Log(a / b)
	if !higherIsBetter {
		d = -d
	}
	if err := finite("log ratio", d, math.Exp(d)); err != nil {
		return 0, err
	}
	return d, nil
}

// Margin turns a margin given as a fraction (0.02 for 2 %) into the δ of the formulas, ln(1+margin) (protocol §0).
func Margin(fraction float64) float64 { return math.Log(1 + fraction) }
