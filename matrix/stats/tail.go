package stats

import (
	"math"
	"sync"
)

// TailFloor is the smallest number of requests per leg for which percentile p may be more than a description: the
// smallest N with P(Binom(N, 1−p) ≤ 1) ≤ 1 % (protocol §1; 64, 130 and 662 for p90, p95 and p99). Below p90 nothing is a
// tail and one request is enough.
func TailFloor(p int) (int, error) {
	if p < 0 || p > 99 {
		return 0, &InputError{Of: "tail floor", Value: float64(p), Why: "a percentile lies in 0..99"}
	}
	if p < 90 {
		return 1, nil
	}
	return tailFloors()[p-90], nil
}

// tailFloors are the floors of p90 to p99, found once: every leg asks for several.
var tailFloors = sync.OnceValue(func() (floors [10]int) {
	for i := range floors {
		q := float64(10-i) / 100
		few := func(n int) float64 { // none or one of n requests beyond the percentile
			return math.Pow(1-q, float64(n)) + float64(n)*q*math.Pow(1-q, float64(n-1))
		}
		floors[i] = 2
		for few(floors[i]) > 0.01 {
			floors[i]++
		}
	}
	return floors
})

// MissedStateBound is the largest frequency of a second load state that N loads of one state do not exclude at 95 %:
// 1 − 0.05^(1/N) (protocol §5).
func MissedStateBound(loads int) (float64, error) {
	if err := atLeast("missed-state bound", loads, 1); err != nil {
		return 0, err
	}
	return 1 - math.Pow(0.05, 1/float64(loads)), nil
}

// MissedState is the chance that N loads never show a state of frequency p.
func MissedState(loads int, p float64) (float64, error) {
	if err := atLeast("missed state", loads, 1); err != nil {
		return 0, err
	}
	if !(p >= 0 && p <= 1) {
		return 0, &InputError{Of: "missed state", Value: p, Why: "a frequency lies in 0..1"}
	}
	return math.Pow(1-p, float64(loads)), nil
}
