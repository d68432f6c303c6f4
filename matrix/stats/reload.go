package stats

import (
	"fmt"
	"math"
	"slices"
)

// ModeVerdict says whether loads of one arm have more than one state.
type ModeVerdict string

const (
	SingleMode     ModeVerdict = "SINGLE_MODE"
	MultiMode      ModeVerdict = "MULTI_MODE"
	ModesUndecided ModeVerdict = "UNDECIDED"
)

// ModeReason says which line of the rule decided.
type ModeReason string

const (
	TooFewLoads            ModeReason = "TOO_FEW_LOADS"
	SpreadWithinMargin     ModeReason = "SPREAD_WITHIN_MARGIN"
	Gap                    ModeReason = "GAP"
	StepChange             ModeReason = "STEP_CHANGE"
	OutlierLoad            ModeReason = "OUTLIER_LOAD"
	DispersionWithinMargin ModeReason = "DISPERSION_WITHIN_MARGIN"
	Dispersed              ModeReason = "DISPERSED"
)

// Thresholds of the reload rule (protocol §5).
const (
	ReloadMargin  = 0.02  // δ_m: a state is worth the name from 2 %
	modeFloor     = 0.002 // a cluster is never taken to be narrower than 0.2 %
	minReload     = 6     // loads
	maxReload     = 200   // loads; the exact trend test is quadratic in pairs and no experiment is longer
	gapQuantile10 = 1.5   // q_n from ten loads [sim]
)

// gapQuantile is the 99 % point of the gap ratio under a normal law [sim], n = 6..9.
var gapQuantile = map[int]float64{6: 3.3, 7: 2.4, 8: 2.0, 9: 1.6}

// Reloaded is the result of a reload experiment.
type Reloaded struct {
	N          int
	Spread     float64 // max/min over loads
	Median     float64
	MissedUpTo float64  // a state rarer than this could have been missed
	TrendP     *float64 // exact two-sided Kendall trend over load order; nil when values tie
	TrendPct   float64  // Theil–Sen slope of ln value per load, percent; meaningful beside TrendP
	Modes      []float64
	Sizes      []int
	Runs       int // runs of one cluster in load order; 0 where no clusters were found
	Verdict    ModeVerdict
	Reason     ModeReason
}

// Reload decides whether a leg value is fixed at load time in more than one state (protocol §5). Values are leg values in
// load order; margin is a fraction.
func Reload(values []float64, margin float64) (Reloaded, error) {
	if err := atLeast("reload", len(values), 1); err != nil {
		return Reloaded{}, err
	}
	if len(values) > maxReload {
		return Reloaded{}, &InputError{Of: "reload", Index: -1, Value: float64(len(values)), Why: fmt.Sprintf("at most %d loads", maxReload)}
	}
	if err := positive("reload", values...); err != nil {
		return Reloaded{}, err
	}
	if !(margin > 0) || math.IsInf(margin, 0) {
		return Reloaded{}, &InputError{Of: "reload", Value: margin, Why: "a margin is positive"}
	}
	n := len(values)
	sorted := slices.Sorted(slices.Values(values))
	r := Reloaded{N: n, Spread: sorted[n-1] / sorted[0], Median: quantileSorted(sorted, 50)}
	if err := finite("reload", r.Spread); err != nil {
		return Reloaded{}, err
	}
	r.MissedUpTo, _ = MissedStateBound(n)
	if p, ok := kendallP(values); ok {
		r.TrendP, r.TrendPct = &p, 100*theilSen(values)
	}
	r.decide(values, margin)
	return r, nil
}

func (r *Reloaded) decide(values []float64, margin float64) {
	cut := Margin(margin)
	logs := make([]float64, r.N) // in load order
	for i, v := range values {
		logs[i] = math.Log(v)
	}
	s := slices.Sorted(slices.Values(logs))
	q, ok := gapQuantile[r.N]
	if !ok {
		q = gapQuantile10
	}
	switch {
	case r.N < minReload:
		r.Verdict, r.Reason = ModesUndecided, TooFewLoads
	case r.Spread <= 1+margin:
		r.Verdict, r.Reason = SingleMode, SpreadWithinMargin
	case r.split(logs, s, everyGap(s, cut), cut, q), r.split(logs, s, widestGap(s), cut, q):
	case outlier(s, cut):
		r.Verdict, r.Reason = ModesUndecided, OutlierLoad
	case sampleSD(logs) <= cut/2:
		r.Verdict, r.Reason = SingleMode, DispersionWithinMargin
	default:
		r.Verdict, r.Reason = ModesUndecided, Dispersed
	}
}

// Text says what the loads show, and what they do not test (protocol §5).
func (r Reloaded) Text() string {
	text := fmt.Sprintf("%s (%s): %d loads, spread %.4f", r.Verdict, r.Reason, r.N, r.Spread)
	if r.TrendP != nil {
		direction := "upward"
		if r.TrendPct < 0 {
			direction = "downward"
		}
		text += fmt.Sprintf(", %s trend p = %.3f (%.2f %%/load)", direction, *r.TrendP, math.Abs(r.TrendPct))
	}
	text += ". "
	if r.Verdict == MultiMode {
		for i, m := range r.Modes {
			text += fmt.Sprintf("%d loads near %.4g, ", r.Sizes[i], m)
		}
		return text + "interleaved in time. Any single ratio for this arm is a mixture; report per state and find what decides it."
	}
	return text + fmt.Sprintf("A second state occurring in up to %.0f %% of loads could have been missed; a state chosen at boot, build or session level is not tested by this experiment.", 100*r.MissedUpTo)
}

// split takes sorted s apart before each index of cuts and decides if what results are clusters: each of two loads or
// more, and apart by the larger of the margin and q times the widest cluster.
func (r *Reloaded) split(logs, s []float64, cuts []int, cut, q float64) bool {
	if len(cuts) == 0 {
		return false
	}
	minGap, widest, from := math.Inf(1), modeFloor, 0
	var modes []float64
	var sizes []int
	for _, to := range append(slices.Clone(cuts), len(s)) {
		if to-from < 2 {
			return false
		}
		if from > 0 {
			minGap = math.Min(minGap, s[from]-s[from-1])
		}
		widest = math.Max(widest, s[to-1]-s[from])
		modes, sizes = append(modes, math.Exp(mean(s[from:to]))), append(sizes, to-from)
		from = to
	}
	if minGap < cut || minGap < q*widest {
		return false
	}
	r.Modes, r.Sizes, r.Runs = modes, sizes, runs(logs, s, cuts)
	r.Verdict, r.Reason = MultiMode, Gap
	if r.Runs == len(modes) { // one switch in time: an environment that changed, not a lottery at load
		r.Verdict, r.Reason = ModesUndecided, StepChange
	}
	return true
}

func everyGap(s []float64, cut float64) []int {
	var out []int
	for i := 1; i < len(s); i++ {
		if s[i]-s[i-1] >= cut {
			out = append(out, i)
		}
	}
	return out
}

// widestGap is the two-cluster split k = 2..n−2 with the largest gap.
func widestGap(s []float64) []int {
	best := 2
	for k := 3; k <= len(s)-2; k++ {
		if s[k]-s[k-1] > s[best]-s[best-1] {
			best = k
		}
	}
	return []int{best}
}

// outlier reports one load alone beyond a gap that is also at least the range of the rest.
func outlier(s []float64, cut float64) bool {
	n := len(s)
	low, high := s[1]-s[0], s[n-1]-s[n-2]
	return low >= cut && low >= s[n-1]-s[1] || high >= cut && high >= s[n-2]-s[0]
}

func runs(logs, s []float64, cuts []int) int {
	cluster := func(x float64) int {
		c := 0
		for _, k := range cuts {
			if x >= s[k] {
				c++
			}
		}
		return c
	}
	n, last := 0, -1
	for _, x := range logs {
		if c := cluster(x); c != last {
			n, last = n+1, c
		}
	}
	return n
}

// kendallP is the exact two-sided p of Kendall's trend, from the distribution of inversions of a random order. It does
// not exist where values tie, nor for one value.
func kendallP(values []float64) (float64, bool) {
	n, inv := len(values), 0
	if n < 2 {
		return 0, false
	}
	for i := range values {
		for j := i + 1; j < n; j++ {
			switch {
			case values[i] == values[j]:
				return 0, false
			case values[i] > values[j]:
				inv++
			}
		}
	}
	// P(k inversions among i items) is the mean of i neighbouring probabilities among i−1.
	prob := []float64{1}
	for i := 2; i <= n; i++ {
		next, window := make([]float64, len(prob)+i-1), 0.0
		for k := range next {
			if k < len(prob) {
				window += prob[k]
			}
			if k >= i {
				window -= prob[k-i]
			}
			next[k] = math.Max(0, window) / float64(i)
		}
		prob = next
	}
	few := min(inv, len(prob)-1-inv)
	p := 0.0
	for _, x := range prob[:few+1] {
		p += x
	}
	return math.Min(1, 2*p), true
}

// theilSen is the median slope of ln value over load order.
func theilSen(values []float64) float64 {
	var slopes []float64
	for i := range values {
		for j := i + 1; j < len(values); j++ {
			slopes = append(slopes, math.Log(values[j]/values[i])/float64(j-i))
		}
	}
	slices.Sort(slopes)
	return quantileSorted(slopes, 50)
}

// BetweenLoadSD separates the SD of leg values over loads into what repetitions explain and what loads add:
// σ_l² = max(0, s² − σ_w²/R) (protocol §5). s and within are SDs of logarithms.
func BetweenLoadSD(s, within float64, repetitions int) (float64, error) {
	if err := atLeast("between-load SD", repetitions, 1); err != nil {
		return 0, err
	}
	if err := finite("between-load SD", s, within); err != nil {
		return 0, err
	}
	return math.Sqrt(math.Max(0, s*s-within*within/float64(repetitions))), nil
}
