package stats

import (
	"math"
	"slices"
)

// Alpha is the level of every decision (protocol §0).
const Alpha = 0.05

// PValues returns p_dir, against "no difference beyond κ", and p_eq, against "a difference of δ or more": the whole 95 %
// interval lies inside (−δ, δ) iff p_eq ≤ 0.05 (protocol §3.4).
func PValues(theta, se float64, df int, kappa, delta float64) (pDir, pEq float64, err error) {
	if err := finite("p values", theta, se, kappa, delta); err != nil {
		return 1, 1, err
	}
	if df < 1 || se < 0 || kappa < 0 || delta <= 0 {
		return 1, 1, &InputError{Of: "p values", Index: -1, Value: float64(df), Why: "needs df ≥ 1, se ≥ 0, κ ≥ 0 and δ > 0"}
	}
	upper := func(gap float64) float64 {
		if se == 0 { // identical blocks: certain on the right side of the bound, nothing on it
			if gap > 0 {
				return 0
			}
			return 1
		}
		return upperT(gap/se, df)
	}
	pDir = 1
	if math.Abs(theta) > kappa {
		pDir = math.Min(1, 2*upper(math.Abs(theta)-kappa))
	}
	pEq = math.Min(1, 2*math.Max(upper(delta-kappa-theta), upper(delta-kappa+theta)))
	return pDir, pEq, nil
}

// Reversed counts the blocks that do not point the way θ does; a block of exactly zero counts (protocol §3.4).
func Reversed(d []float64, theta float64) int {
	n := 0
	for _, x := range d {
		if x*theta <= 0 {
			n++
		}
	}
	return n
}

// SignP is the exact two-sided sign test: 2·Σ_{k≤reversed} C(n,k)/2ⁿ, at most 1.
func SignP(n, reversed int) (float64, error) {
	if n < 1 || reversed < 0 || reversed > n {
		return 1, &InputError{Of: "sign test", Index: -1, Value: float64(n), Why: "needs n ≥ 1 and 0 ≤ reversed ≤ n"}
	}
	return math.Min(1, 2*binomialCDF(n, reversed, 0.5)), nil
}

// SignOK is the sign rule beside the t interval: no reversed block below six blocks, the exact test at 5 % from six
// (protocol §3.4).
func SignOK(n, reversed int) (bool, error) {
	p, err := SignP(n, reversed)
	if err != nil || n < 6 {
		return err == nil && reversed == 0, err
	}
	return p <= Alpha, nil
}

// binomialCDF is P(Binom(n, p) ≤ k), summed in logarithms so that large n neither overflow nor vanish.
func binomialCDF(n, k int, p float64) float64 {
	sum := 0.0
	for i := 0; i <= k; i++ {
		sum += math.Exp(logChoose(n, i) + float64(i)*math.Log(p) + float64(n-i)*math.Log1p(-p))
	}
	return math.Min(1, sum)
}

func logChoose(n, k int) float64 {
	a, _ := math.Lgamma(float64(n + 1))
	b, _ := math.Lgamma(float64(k + 1))
	c, _ := math.Lgamma(float64(n - k + 1))
	return a - b - c
}

// BH returns the Benjamini–Hochberg adjusted p values in the order of p (protocol §3.5).
func BH(p []float64) ([]float64, error) {
	for i, x := range p {
		if !(x >= 0 && x <= 1) {
			return nil, &InputError{Of: "Benjamini–Hochberg", Index: i, Value: x, Why: "a p value lies in 0..1"}
		}
	}
	order := make([]int, len(p))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case p[a] < p[b]:
			return -1
		case p[a] > p[b]:
			return 1
		}
		return 0
	})
	q, least, m := make([]float64, len(p)), 1.0, float64(len(p))
	for r := len(order); r >= 1; r-- {
		i := order[r-1]
		least = math.Min(least, p[i]*(m/float64(r)))
		q[i] = least
	}
	return q, nil
}
