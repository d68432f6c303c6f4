package stats

import (
	"math"
	"sync"

	"gonum.org/v1/gonum/mathext"
	"gonum.org/v1/gonum/stat/distuv"
)

// TQuantile returns the p-quantile of Student's t with df degrees of freedom, 0 < p < 1 and df ≥ 1.
func TQuantile(p float64, df int) (float64, error) {
	if !(p > 0 && p < 1) {
		return 0, &InputError{Of: "t quantile", Value: p, Why: "a probability lies between 0 and 1"}
	}
	if p == 0.975 && df >= 1 && df <= len(t975()) {
		return t975()[df-1], nil
	}
	return tQuantile(p, df)
}

// t975 holds the quantile that every interval uses, for the degrees of freedom that series have: it is asked for tens of
// thousands of times in one judgement and costs a root search each.
var t975 = sync.OnceValue(func() []float64 {
	out := make([]float64, 64)
	for i := range out {
		out[i], _ = tQuantile(0.975, i+1) // cannot fail for these arguments
	}
	return out
})

func tQuantile(p float64, df int) (float64, error) {
	if df < 1 {
		return 0, &InputError{Of: "t quantile", Index: -1, Value: float64(df), Why: "degrees of freedom start at 1"}
	}
	// |T| > t has probability I_x(df/2, 1/2) at x = df/(df+t²).
	tail := 2 * math.Min(p, 1-p)
	nu := float64(df)
	x := mathext.InvRegIncBeta(nu/2, 0.5, tail)
	t := math.Sqrt(nu * (1 - x) / x)
	if p < 0.5 {
		t = -t
	}
	return t, finite("t quantile", t)
}

// upperT is P(T > t) with df ≥ 1. By symmetry it is computed on the lower tail, where small probabilities keep their digits.
func upperT(t float64, df int) float64 {
	return distuv.StudentsT{Mu: 0, Sigma: 1, Nu: float64(df)}.CDF(-t)
}
