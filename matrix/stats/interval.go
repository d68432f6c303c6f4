package stats

import (
	"math"
	"slices"
)

// Estimate is an interval for a mean log-ratio. All fields but the counts are natural logarithms.
type Estimate struct {
	N        int
	Theta    float64 // mean of the block log-ratios; intercept at lag 0 for the lag-adjusted form
	SD       float64 // sample SD of the blocks
	SE       float64
	DF       int
	Lo, Hi   float64 // includes ±Kappa
	Kappa    float64
	Median   float64
	Min, Max float64
	Slope    float64 // per unit of lag; lag-adjusted form only
}

// PairedCI is θ ± t(df)·se ± κ over block log-ratios (protocol §3.3). conf is two-sided, 0.95 by protocol; κ ≥ 0 is the
// clock allowance.
func PairedCI(d []float64, conf, kappa float64) (Estimate, error) {
	e, err := describe("paired interval", d, conf, kappa, 2)
	if err != nil {
		return Estimate{}, err
	}
	e.Theta, e.DF = mean(d), e.N-1
	e.SE = e.SD / math.Sqrt(float64(e.N))
	return e.widen(conf)
}

// LagAdjustedCI regresses d on lag = pos_a − pos_b and takes the intercept (protocol §3.3). It is for blocks whose two
// orders are unbalanced because a superblock was cut short; on a balanced design PairedCI is narrower.
func LagAdjustedCI(d, lag []float64, conf, kappa float64) (Estimate, error) {
	const of = "lag-adjusted interval"
	e, err := describe(of, d, conf, kappa, 3)
	if err != nil {
		return Estimate{}, err
	}
	if len(lag) != len(d) {
		return Estimate{}, &InputError{Of: of, Index: -1, Value: float64(len(lag)), Why: "one lag for each block"}
	}
	if err := finite(of, lag...); err != nil {
		return Estimate{}, err
	}
	n, md, ml := float64(e.N), mean(d), mean(lag)
	var sll, sld float64
	for i := range d {
		sll += (lag[i] - ml) * (lag[i] - ml)
		sld += (lag[i] - ml) * (d[i] - md)
	}
	if sll == 0 {
		return Estimate{}, &InputError{Of: of, Value: lag[0], Why: "every block has the same order, so order and effect cannot be told apart"}
	}
	e.Slope = sld / sll
	e.Theta, e.DF = md-e.Slope*ml, e.N-2
	rss := 0.0
	for i := range d {
		r := d[i] - e.Theta - e.Slope*lag[i]
		rss += r * r
	}
	e.SE = math.Sqrt(rss / float64(e.DF) * (1/n + ml*ml/sll))
	return e.widen(conf)
}

func describe(of string, d []float64, conf, kappa float64, min int) (Estimate, error) {
	if err := atLeast(of, len(d), min); err != nil {
		return Estimate{}, err
	}
	if err := finite(of, d...); err != nil {
		return Estimate{}, err
	}
	if !(conf > 0 && conf < 1) {
		return Estimate{}, &InputError{Of: of, Value: conf, Why: "a confidence lies between 0 and 1"}
	}
	if !(kappa >= 0) || math.IsInf(kappa, 0) {
		return Estimate{}, &InputError{Of: of, Value: kappa, Why: "an allowance is zero or more"}
	}
	s := slices.Sorted(slices.Values(d))
	return Estimate{N: len(d), SD: sampleSD(d), Kappa: kappa, Median: quantileSorted(s, 50), Min: s[0], Max: s[len(s)-1]}, nil
}

func (e Estimate) widen(conf float64) (Estimate, error) {
	t, err := TQuantile(1-(1-conf)/2, e.DF)
	if err != nil {
		return Estimate{}, err
	}
	half := t*e.SE + e.Kappa
	e.Lo, e.Hi = e.Theta-half, e.Theta+half
	return e, finite("interval", e.Theta, e.SE, e.Lo, e.Hi, math.Exp(e.Lo), math.Exp(e.Hi))
}
