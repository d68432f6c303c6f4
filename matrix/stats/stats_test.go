package stats_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"enginebroker/matrix/stats"
)

// The vectors of protocol §9 run in matrix/vectors; here stand what they cannot say: refusals, properties and tables.

var nan, inf = math.NaN(), math.Inf(1)

// Issue 6, bad input: NaN, Inf, zero, negative, n = 0, 1, 2. Always a named error, never a number.
func TestBadInput(t *testing.T) {
	one := func(_ any, err error) error { return err }
	for name, err := range map[string]error{
		"fold of nothing":       one(stats.Fold(nil)),
		"fold of NaN":           one(stats.Fold([]float64{1, nan})),
		"mean of nothing":       one(stats.Mean(nil)),
		"mean of Inf":           one(stats.Mean([]float64{inf})),
		"median of nothing":     one(stats.Median(nil)),
		"percentile 101":        one(stats.Percentiles([]float64{1}, 101)),
		"percentile NaN":        one(stats.Percentiles([]float64{1}, nan)),
		"ratio of zero":         one(stats.LogRatio(0, 1, true)),
		"ratio to zero":         one(stats.LogRatio(1, 0, true)),
		"ratio of negative":     one(stats.LogRatio(-1, 1, true)),
		"ratio of NaN":          one(stats.LogRatio(nan, 1, true)),
		"ratio of Inf":          one(stats.LogRatio(inf, 1, true)),
		"ratio that overflows":  one(stats.LogRatio(1e308, 5e-324, true)),
		"interval n=0":          one(stats.PairedCI(nil, 0.95, 0)),
		"interval n=1":          one(stats.PairedCI([]float64{0.1}, 0.95, 0)),
		"interval of NaN":       one(stats.PairedCI([]float64{0.1, nan}, 0.95, 0)),
		"interval of Inf":       one(stats.PairedCI([]float64{0.1, inf}, 0.95, 0)),
		"negative allowance":    one(stats.PairedCI([]float64{0.1, 0.2}, 0.95, -1)),
		"NaN allowance":         one(stats.PairedCI([]float64{0.1, 0.2}, 0.95, nan)),
		"confidence 1":          one(stats.PairedCI([]float64{0.1, 0.2}, 1, 0)),
		"overflowing interval":  one(stats.PairedCI([]float64{1e300, -1e300}, 0.95, 0)),
		"lag n=2":               one(stats.LagAdjustedCI([]float64{1, 2}, []float64{1, -1}, 0.95, 0)),
		"lag NaN":               one(stats.LagAdjustedCI([]float64{1, 2, 3}, []float64{1, -1, nan}, 0.95, 0)),
		"lag of one order":      one(stats.LagAdjustedCI([]float64{1, 2, 3}, []float64{1, 1, 1}, 0.95, 0)),
		"t quantile p=0":        one(stats.TQuantile(0, 5)),
		"t quantile p=1":        one(stats.TQuantile(1, 5)),
		"t quantile df=0":       one(stats.TQuantile(0.975, 0)),
		"sign n=0":              one(stats.SignP(0, 0)),
		"sign reversed > n":     one(stats.SignP(3, 4)),
		"BH of NaN":             one(stats.BH([]float64{0.1, nan})),
		"BH of 2":               one(stats.BH([]float64{2})),
		"tail p100":             one(stats.TailFloor(100)),
		"tail p-1":              one(stats.TailFloor(-1)),
		"missed n=0":            one(stats.MissedStateBound(0)),
		"reload of nothing":     one(stats.Reload(nil, 0.02)),
		"reload of zero":        one(stats.Reload([]float64{1, 0}, 0.02)),
		"reload of NaN":         one(stats.Reload([]float64{1, nan}, 0.02)),
		"reload margin 0":       one(stats.Reload([]float64{1, 2}, 0)),
		"reload of 201":         one(stats.Reload(make([]float64, 201), 0.02)),
		"between-load R=0":      one(stats.BetweenLoadSD(1, 1, 0)),
		"shift of zero":         one(stats.GridShift(0, 1, 1, 1, 3, 3)),
		"shift, spread below 1": one(stats.GridShift(1, 1, 0.9, 1, 3, 3)),
		"shift n=0":             one(stats.GridShift(1, 1, 1, 1, 0, 3)),
		"consistency of zero":   one(stats.RatioConsistency(1, 0, 1, 1, 1)),
		"envelope of nothing":   one(stats.GridEnvelope(nil)),
		"envelope of NaN":       one(stats.GridEnvelope([]stats.Bounds{{Lo: nan}})),
		"embedded of nothing":   one(stats.Embedded(nil, 6)),
		"embedded of zero":      one(stats.Embedded([][2]float64{{0, 1}}, 6)),
		"embedded for no block": one(stats.Embedded([][2]float64{{1, 1}}, 0)),
	} {
		if in, ok := errors.AsType[*stats.InputError](err); !ok || in.Of == "" || in.Why == "" {
			t.Errorf("%s: %v, want an input error that says of what and why", name, err)
		}
	}
	if _, _, err := stats.PValues(nan, 1, 5, 0, 0.02); err == nil {
		t.Error("p values of NaN")
	}
	if _, _, err := stats.PValues(0, 1, 0, 0, 0.02); err == nil {
		t.Error("p values with df = 0")
	}
	if _, _, err := stats.Drift(0, 1, 0.06); err == nil {
		t.Error("drift from zero")
	}
}

// §3.1: a fold of values with a zero has a median and no spread.
func TestFoldWithoutSpread(t *testing.T) {
	f, err := stats.Fold([]float64{0, 1, 2})
	if err != nil || f.Median != 1 || f.HasRelative {
		t.Errorf("%+v, %v", f, err)
	}
}

// §3.3, the table of half-widths: t/√n of the paired form, and of the lag-adjusted form on a balanced or nearly balanced design.
func TestHalfWidthTable(t *testing.T) {
	for n, want := range map[int]float64{3: 2.484, 4: 1.591, 5: 1.242, 6: 1.049, 8: 0.836, 10: 0.715} {
		q, err := stats.TQuantile(0.975, n-1)
		if err != nil || math.Abs(q/math.Sqrt(float64(n))-want) > 0.001 {
			t.Errorf("n=%d: %v (%v), want %v", n, q/math.Sqrt(float64(n)), err, want)
		}
	}
}

// §3.3, the sign test column; §3.4, where the rule allows how many reversed blocks.
func TestSignTable(t *testing.T) {
	for n, want := range map[int]float64{3: 0.25, 4: 0.125, 5: 0.0625, 6: 0.03125, 8: 0.0078125, 10: 0.001953125} {
		if p, err := stats.SignP(n, 0); err != nil || math.Abs(p-want) > 1e-12 {
			t.Errorf("n=%d: %v, want %v", n, p, want)
		}
	}
	for n, most := range map[int]int{1: 0, 3: 0, 5: 0, 6: 0, 8: 0, 9: 1, 11: 1, 12: 2} {
		for k := 0; k <= n; k++ {
			ok, err := stats.SignOK(n, k)
			if err != nil || ok != (k <= most) {
				t.Errorf("n=%d reversed=%d: %v, %v", n, k, ok, err)
			}
		}
	}
}

// Student's t against the closed forms for one and two degrees of freedom, and symmetry.
func TestTQuantileClosedForms(t *testing.T) {
	for _, p := range []float64{1e-6, 0.025, 0.1, 0.3, 0.7, 0.95, 0.975, 0.9999} {
		q1, err1 := stats.TQuantile(p, 1)
		q2, err2 := stats.TQuantile(p, 2)
		w1, w2 := math.Tan(math.Pi*(p-0.5)), (2*p-1)*math.Sqrt(2/(4*p*(1-p)))
		if err1 != nil || err2 != nil || math.Abs(q1/w1-1) > 1e-9 || math.Abs(q2/w2-1) > 1e-9 {
			t.Errorf("p=%v: %v and %v, want %v and %v", p, q1, q2, w1, w2)
		}
		for _, df := range []int{3, 11, 100} {
			a, err1 := stats.TQuantile(p, df)
			b, err2 := stats.TQuantile(1-p, df)
			if err1 != nil || err2 != nil || math.Abs(a+b) > 1e-6*math.Abs(a) {
				t.Errorf("df=%d p=%v: %v and %v are no mirror", df, p, a, b)
			}
		}
	}
}

// §3.4: p_dir ≤ 0.05 iff the interval excludes zero, p_eq ≤ 0.05 iff it lies inside (−δ, δ). Identical blocks are certain.
func TestPValuesAgreeWithInterval(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 2000 {
		d := make([]float64, 3+rng.IntN(8))
		mu, sd := 0.04*rng.Float64()-0.02, 0.02*rng.Float64()
		for i := range d {
			d[i] = mu + sd*rng.NormFloat64()
		}
		kappa, delta := 0.005*rng.Float64(), stats.Margin(0.02)
		e, err := stats.PairedCI(d, 0.95, kappa)
		if err != nil {
			t.Fatal(err)
		}
		dir, eq, err := stats.PValues(e.Theta, e.SE, e.DF, kappa, delta)
		if err != nil {
			t.Fatal(err)
		}
		if (dir <= 0.05) != (e.Lo > 0 || e.Hi < 0) || (eq <= 0.05) != (e.Lo > -delta && e.Hi < delta) {
			t.Fatalf("%+v: p_dir %v, p_eq %v", e, dir, eq)
		}
		m := slices.Clone(d)
		for i := range m {
			m[i] = -m[i]
		}
		em, _ := stats.PairedCI(m, 0.95, kappa)
		if em.Lo != -e.Hi || em.Hi != -e.Lo || em.Theta != -e.Theta {
			t.Fatalf("mirror of %+v is %+v", e, em)
		}
	}
	for _, c := range []struct{ theta, dir, eq float64 }{{0.01, 0, 0}, {-0.01, 0, 0}, {0, 1, 0}, {0.03, 0, 1}, {stats.Margin(0.02), 0, 1}} {
		dir, eq, err := stats.PValues(c.theta, 0, 5, 0, stats.Margin(0.02))
		if err != nil || dir != c.dir || eq != c.eq {
			t.Errorf("identical blocks at %v: %v, %v (%v)", c.theta, dir, eq, err)
		}
	}
}

// §3.5: the adjusted values are never below the raw ones, keep their order and do not depend on that of the input.
func TestBHProperties(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for range 200 {
		p := make([]float64, rng.IntN(30))
		for i := range p {
			p[i] = math.Round(20*rng.Float64()) / 20
		}
		q, err := stats.BH(p)
		if err != nil {
			t.Fatal(err)
		}
		perm := rng.Perm(len(p))
		shuffled := make([]float64, len(p))
		for i, j := range perm {
			shuffled[i] = p[j]
		}
		qs, _ := stats.BH(shuffled)
		for i, j := range perm {
			if qs[i] != q[j] || q[j] < p[j] || q[j] > 1 {
				t.Fatalf("p %v, q %v, shuffled q %v", p, q, qs)
			}
		}
	}
}

// §5: what each line of the reload rule decides.
func TestReloadRule(t *testing.T) {
	for _, c := range []struct {
		name    string
		values  []float64
		verdict stats.ModeVerdict
		reason  stats.ModeReason
	}{
		{"one load", []float64{10}, stats.ModesUndecided, stats.TooFewLoads},
		{"exactly the margin", []float64{100, 102, 100, 102, 100, 102}, stats.SingleMode, stats.SpreadWithinMargin},
		{"one load alone below", []float64{10, 10.01, 10.02, 9.0, 10.01, 10.02}, stats.ModesUndecided, stats.OutlierLoad},
		{"one load alone above", []float64{10, 10.01, 10.02, 11.0, 10.01, 10.02}, stats.ModesUndecided, stats.OutlierLoad},
		{"three states", []float64{10, 11, 12, 10.01, 11.01, 12.01, 10, 11, 12}, stats.MultiMode, stats.Gap},
		{"three states in blocks of time", []float64{10, 10.01, 10, 11, 11.01, 11, 12, 12.01, 12}, stats.ModesUndecided, stats.StepChange},
		{"two near six loads need the wider gap", []float64{10, 10.25, 10.08, 10.33, 10.01, 10.26}, stats.ModesUndecided, stats.Dispersed},
	} {
		r, err := stats.Reload(c.values, stats.ReloadMargin)
		if err != nil || r.Verdict != c.verdict || r.Reason != c.reason {
			t.Errorf("%s: %s %s (%v), want %s %s", c.name, r.Verdict, r.Reason, err, c.verdict, c.reason)
		}
	}
}

// §5: Kendall's exact p against a count over all orders of six loads.
func TestKendallAgainstEnumeration(t *testing.T) {
	inversions := func(p []float64) (n int) {
		for i := range p {
			for j := i + 1; j < len(p); j++ {
				if p[i] > p[j] {
					n++
				}
			}
		}
		return n
	}
	var all [][]float64
	var permute func(p []float64, k int)
	permute = func(p []float64, k int) {
		if k == len(p) {
			all = append(all, slices.Clone(p))
			return
		}
		for i := k; i < len(p); i++ {
			p[k], p[i] = p[i], p[k]
			permute(p, k+1)
			p[k], p[i] = p[i], p[k]
		}
	}
	permute([]float64{1, 2, 3, 4, 5, 6}, 0)
	for _, p := range all[:200] {
		few, low, high := inversions(p), 0, 0
		for _, o := range all {
			if inversions(o) <= few {
				low++
			}
			if inversions(o) >= few {
				high++
			}
		}
		want := min(1, 2*float64(min(low, high))/720)
		r, err := stats.Reload(p, stats.ReloadMargin)
		if err != nil || r.TrendP == nil || math.Abs(*r.TrendP-want) > 1e-12 {
			t.Fatalf("%v: %v (%v), want %v", p, r.TrendP, err, want)
		}
	}
	if r, _ := stats.Reload([]float64{1, 1, 2}, stats.ReloadMargin); r.TrendP != nil {
		t.Errorf("tied values have a trend p of %v", *r.TrendP)
	}
}

// §6: c(n), and that fewer than three loads never say NOT_REPRODUCED.
func TestGridShiftFactors(t *testing.T) {
	for n, c := range map[int]float64{3: 3.0, 4: 1.7, 5: 1.3, 6: 1.0, 7: 0.85, 8: 0.75, 20: 0.75} {
		w := 0.05
		for _, k := range []struct {
			factor float64
			want   stats.GridVerdict
		}{{0.999, stats.GridUndecided}, {1.001, stats.NotReproduced}} {
			s, err := stats.ShiftWithin(k.factor*c*w, w, n, n+3)
			if err != nil || s.Verdict != k.want {
				t.Errorf("n=%d, %v·c·w: %s (%v), want %s", n, k.factor, s.Verdict, err, k.want)
			}
		}
	}
	if s, err := stats.GridShift(1, 10, 1, 1, 2, 9); err != nil || s.Verdict != stats.GridUndecided {
		t.Errorf("two loads: %+v, %v", s, err)
	}
	if s, err := stats.GridShift(1, 1.02, 1, 1, 3, 3); err != nil || s.Verdict != stats.Reproduced {
		t.Errorf("exactly 2 %%: %+v, %v", s, err)
	}
}

// §6: three grids are not widened; one claims nothing.
func TestEnvelope(t *testing.T) {
	e, err := stats.GridEnvelope([]stats.Bounds{{0.01, 0.03, 0.02}, {0.02, 0.04, 0.03}, {0.005, 0.02, 0.01}})
	if err != nil || e.Lo != 0.005 || e.Hi != 0.04 || e.WidenedBy != 0 || !e.Faster() || e.Slower() {
		t.Errorf("%+v, %v", e, err)
	}
	if e, _ := stats.GridEnvelope([]stats.Bounds{{0.01, 0.03, 0.02}}); e.Faster() || e.Slower() || e.Equivalent(1) {
		t.Errorf("one grid supports something: %+v", e)
	}
}

// §1: the floors are those of the exact binomial, and one request less is too few.
func TestTailFloorIsTheSmallest(t *testing.T) {
	for p := 90; p <= 99; p++ {
		n, err := stats.TailFloor(p)
		q := float64(100-p) / 100
		few := func(n int) float64 {
			return math.Pow(1-q, float64(n)) + float64(n)*q*math.Pow(1-q, float64(n-1))
		}
		if err != nil || few(n) > 0.01 || few(n-1) <= 0.01 {
			t.Errorf("p%d: %d (%v)", p, n, err)
		}
	}
}

// §2.2: permutations are permutations, and every one of them comes up.
func TestPermIsUniform(t *testing.T) {
	g, seen := stats.NewSplitMix64(1), map[[3]int]int{}
	for range 6000 {
		p := g.Perm(3)
		seen[[3]int(p)]++
	}
	for p, n := range seen {
		if n < 850 || n > 1150 {
			t.Errorf("%v came up %d times of 6000", p, n)
		}
	}
	if len(seen) != 6 || len(g.Perm(0)) != 0 {
		t.Errorf("%d permutations", len(seen))
	}
	before := *g
	g.Perm(1)
	if *g != before {
		t.Error("perm(1) draws")
	}
	for range 1000 {
		if x := g.Float64(); x < 0 || x >= 1 {
			t.Fatalf("%v", x)
		}
	}
}

func TestBetweenLoadSD(t *testing.T) {
	if s, err := stats.BetweenLoadSD(0.005, 0.003, 3); err != nil || math.Abs(s-math.Sqrt(0.000025-0.000003)) > 1e-12 {
		t.Errorf("%v, %v", s, err)
	}
	if s, err := stats.BetweenLoadSD(0.001, 0.003, 3); err != nil || s != 0 {
		t.Errorf("%v, %v: repetitions explain everything", s, err)
	}
}

// §5, the decision texts of the protocol's two examples.
func TestReloadText(t *testing.T) {
	for want, values := range map[string][]float64{
		"SINGLE_MODE (SPREAD_WITHIN_MARGIN): 6 loads, spread 1.0046, downward trend p = 0.017 (0.07 %/load). A second state occurring in up to 39 % of loads could have been missed; a state chosen at boot, build or session level is not tested by this experiment.": {11.7933, 11.7642, 11.7573, 11.7541, 11.7392, 11.7484},
		"MULTI_MODE (GAP): 8 loads, spread 1.1506, downward trend p = 1.000 (0.01 %/load). 4 loads near 9.375, 4 loads near 10.75, interleaved in time. Any single ratio for this arm is a mixture; report per state and find what decides it.":                        {10.76, 9.37, 9.38, 10.75, 9.36, 10.77, 10.74, 9.39},
	} {
		r, err := stats.Reload(values, stats.ReloadMargin)
		if err != nil || r.Text() != want {
			t.Errorf("%v:\n got %s\nwant %s", err, r.Text(), want)
		}
	}
}
