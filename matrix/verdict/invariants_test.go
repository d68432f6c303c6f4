package verdict_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"enginebroker/matrix"
	"enginebroker/matrix/schedule"
	"enginebroker/matrix/simulate"
	"enginebroker/matrix/verdict"
)

// §4.5: whatever happens to a run, a cell says no more than its verdict allows, and a re-run never exceeds the allowance.
func TestInvariants(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	codes := []matrix.LegCode{matrix.FailedRequests, matrix.SwapActivity, matrix.Cotenant, matrix.ClientLag, matrix.EvidenceMissing, matrix.CanaryFailedCode,
		matrix.PromptTokensCode, matrix.LoadStep, matrix.KilledByHost, matrix.ClockSpread}
	seen := map[matrix.Verdict]int{}
	for range 400 {
		r := newRun(t, 1+rng.IntN(6), "a", "b", "c")
		r.plan.Method.Points = append(r.plan.Method.Points, matrix.Point{ID: "c8"})
		r.plan.Groups[0].Pairs = []matrix.Pair{{A: "a", B: "b"}, {A: "a", B: "c"}, {A: "b", B: "c"}}
		noise, effect := 0.05*rng.Float64()*rng.Float64(), 0.1*rng.Float64()*rng.Float64()
		script := func(l simulate.Load) float64 {
			x := 10 * math.Exp(noise*rng.NormFloat64()+map[string]float64{"a": effect, "b": 0, "c": -effect}[l.Arm])
			if rng.IntN(200) == 0 {
				x = []float64{0, -1, math.NaN(), math.Inf(1)}[rng.IntN(4)]
			}
			return x
		}
		for range 1 + rng.IntN(3) {
			r.grid(1+rng.IntN(4), script)
		}
		for range rng.IntN(4) {
			void(&r.grids[rng.IntN(len(r.grids))], rng.IntN(4), rng.IntN(2), []string{"a", "b", "c"}[rng.IntN(3)], codes[rng.IntN(len(codes))])
		}
		in := r.input(t)
		in.AA = []verdict.AA{verdict.AAPass, verdict.AAPass, verdict.AAMissing, verdict.AAFail}[rng.IntN(4)]
		res := judge(t, in)
		if len(res.Cells) != 6 {
			t.Fatalf("%d cells, want one for every pair, point and metric", len(res.Cells))
		}
		if target := in.Grids[len(in.Grids)-1].Target[r.plan.Groups[0].ID]; len(res.Rerun) > verdict.Allowance(target) {
			t.Errorf("%d re-runs for a target of %d", len(res.Rerun), target)
		}
		for _, c := range res.Cells {
			seen[c.Verdict]++
			n, has := c.Numbers.Get()
			i, interval := n.Interval.Get()
			if v, err := verdict.Of(c.Codes()); v != c.Verdict || err != nil {
				t.Errorf("%s: verdict %v of %v", c.ID, c.Verdict, c.Codes())
			}
			switch {
			case c.Verdict == matrix.Established && (len(c.Reasons) > 0 || c.Direction == matrix.DirNone),
				c.Verdict >= matrix.Inconclusive && c.Direction != matrix.DirNone,
				c.Verdict >= matrix.Withheld && has,
				c.Verdict == matrix.NotReproduced && (interval || n.ShowRatio || len(n.Arms) > 0),
				c.Verdict == matrix.Inconclusive && (n.ShowRatio || i.Ratio.Present() || i.Theta.Present() || i.SE.Present() || n.Detected != ""),
				c.Verdict <= matrix.Provisional && (!n.ShowRatio || !(i.RatioLo <= i.RatioHi) || math.IsNaN(i.Ratio.Or(math.NaN())) || c.Blocks < 3):
				t.Errorf("%s is %v %s with %+v", c.ID, c.Verdict, c.Direction, n)
			}
			for _, reason := range c.Reasons {
				if reason.Detail == "" || reason.Next == "" {
					t.Errorf("%s: %+v says too little", c.ID, reason)
				}
			}
		}
		for _, l := range res.Legs {
			used := slices.ContainsFunc(res.Cells, func(c matrix.Cell) bool {
				return c.ID.Point == l.ID.Point && (c.ID.Pair.A == l.ID.Arm || c.ID.Pair.B == l.ID.Arm) && c.Numbers.Present()
			})
			if len(l.Values) > 0 && (!l.Gate.Valid() || !used) {
				t.Errorf("leg %s shows %v, which no cell may", l.LoadID, l.Values)
			}
		}
		if _, err := json.Marshal(res.Cells); err != nil {
			t.Errorf("cells do not marshal: %v", err)
		}
	}
	for v := matrix.Established; v <= matrix.Void; v++ {
		if seen[v] == 0 && v != matrix.NotReproduced {
			t.Errorf("no cell was %v: %v", v, seen)
		}
	}
}

// §4.4: a run that follows the judge ends: what it asks for is bounded, whatever fails.
func TestFollowingTheJudgeEnds(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	for range 100 {
		r := newRun(t, 3, "a", "b")
		noise := 0.03 * rng.Float64()
		script := func(l simulate.Load) float64 { return 10 * math.Exp(noise*rng.NormFloat64()) }
		g := r.grid(3, script)
		id := r.plan.Groups[0].ID
		for drawn := 3; ; drawn++ {
			if rng.IntN(3) == 0 {
				void(g, drawn-1, rng.IntN(2), "a", matrix.SwapActivity)
			}
			res := judge(t, r.input(t))
			if len(res.Rerun) == 0 && len(res.Extend) == 0 {
				break
			}
			if len(res.Rerun) == 0 {
				g.Target[id]++
			}
			if g.Target[id] > matrix.MaxBlocks/2 || drawn > matrix.MaxBlocks/2+verdict.Allowance(matrix.MaxBlocks/2) {
				t.Fatalf("target %d after %d draws: %+v", g.Target[id], drawn, res.Rerun)
			}
			r.more(g, schedule.Next(r.plan, 0, drawn), script)
		}
	}
}
