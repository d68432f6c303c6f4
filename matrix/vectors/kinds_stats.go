package vectors

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"enginebroker/matrix"
	"enginebroker/matrix/gates"
	"enginebroker/matrix/schedule"
	"enginebroker/matrix/stats"
	"enginebroker/matrix/verdict"
)

func legFold(in struct{ Reps []float64 }) (any, error) {
	f, err := stats.Fold(in.Reps)
	out := object{"n": f.N, "median": f.Median, "min": f.Min, "max": f.Max}
	if f.HasRelative {
		out["spread"], out["cv_pct"] = f.Spread, f.CVPct
	}
	return out, err
}

func percentile(in struct{ Values, P []float64 }) (any, error) {
	got, err := stats.Percentiles(in.Values, in.P...)
	return object{"out": got}, err
}

func blockLogRatio(in struct {
	A, B   float64
	Better string
}) (any, error) {
	if in.Better != "higher" && in.Better != "lower" {
		return nil, fmt.Errorf("input: better is %q: higher or lower", in.Better)
	}
	d, err := stats.LogRatio(in.A, in.B, in.Better == "higher")
	return object{"d": d, "ratio": math.Exp(d)}, err
}

func estimate(e stats.Estimate) object {
	return object{"n": e.N, "theta": e.Theta, "sd": e.SD, "se": e.SE, "df": e.DF, "lo": e.Lo, "hi": e.Hi, "slope": e.Slope,
		"ratio": math.Exp(e.Theta), "ratio_lo": math.Exp(e.Lo), "ratio_hi": math.Exp(e.Hi),
		"median_ratio": math.Exp(e.Median), "min_ratio": math.Exp(e.Min), "max_ratio": math.Exp(e.Max)}
}

func pairedCI(in struct {
	D           []float64
	Conf, Kappa float64
}) (any, error) {
	e, err := stats.PairedCI(in.D, in.Conf, in.Kappa)
	return estimate(e), err
}

func lagAdjustedCI(in struct {
	D, Lag      []float64
	Conf, Kappa float64
}) (any, error) {
	e, err := stats.LagAdjustedCI(in.D, in.Lag, in.Conf, in.Kappa)
	return estimate(e), err
}

func tQuantile(in struct {
	P  float64
	DF []int
}) (any, error) {
	q := make([]float64, len(in.DF))
	for i, df := range in.DF {
		var err error
		if q[i], err = stats.TQuantile(in.P, df); err != nil {
			return nil, err
		}
	}
	return object{"q": q}, nil
}

func signRuleTable(in struct{ Rows [][2]int }) (any, error) {
	var rows []object
	for _, r := range in.Rows {
		if err := bounded("n", r[0]); err != nil {
			return nil, err
		}
		p, err := stats.SignP(r[0], r[1])
		if err != nil {
			return nil, err
		}
		// The table's ok is p alone; the product's rule is wider below n = 6 (protocol §9).
		rows = append(rows, object{"n": r[0], "reversed": r[1], "p": p, "ok": p <= stats.Alpha})
	}
	return object{"rows": rows}, nil
}

func pValues(in struct {
	Theta, SE    float64
	DF           int
	Kappa, Delta float64
}) (any, error) {
	dir, eq, err := stats.PValues(in.Theta, in.SE, in.DF, in.Kappa, in.Delta)
	return object{"p_dir": dir, "p_eq": eq}, err
}

func bh(in struct{ P []float64 }) (any, error) {
	q, err := stats.BH(in.P)
	return object{"q": q}, err
}

func decide(in struct {
	D            []float64
	Kappa, Delta float64
	QDir         *float64 `json:"q_dir"`
	QEq          *float64 `json:"q_eq"`
}) (any, error) {
	e, err := stats.PairedCI(in.D, 0.95, in.Kappa)
	if err != nil {
		return nil, err
	}
	dir, eq, err := stats.PValues(e.Theta, e.SE, e.DF, in.Kappa, in.Delta)
	if err != nil {
		return nil, err
	}
	if in.QDir != nil {
		dir = *in.QDir
	}
	if in.QEq != nil {
		eq = *in.QEq
	}
	d, err := verdict.Decide(in.D, e.Theta, dir, eq)
	return object{"direction": d.Direction, "detected": d.Detected, "reasons": append(d.Reasons, verdict.CountReasons(len(in.D))...)}, err
}

func splitMix64(in struct {
	Seed0, Seed1 string
	PermN        int `json:"perm_n"`
}) (any, error) {
	if err := bounded("perm_n", in.PermN); err != nil {
		return nil, err
	}
	draw := func(seed string) ([]string, *stats.SplitMix64, error) {
		n, err := schedule.ParseSeed(seed)
		if err != nil {
			return nil, nil, err
		}
		g, out := stats.NewSplitMix64(n), []string{}
		for range 3 {
			out = append(out, strconv.FormatUint(g.Next(), 10))
		}
		return out, stats.NewSplitMix64(n), nil
	}
	a, _, err := draw(in.Seed0)
	if err != nil {
		return nil, err
	}
	b, g, err := draw(in.Seed1)
	if err != nil {
		return nil, err
	}
	perm := g.Perm(in.PermN)
	return object{"seed0": a, "seed1": b, fmt.Sprintf("perm_seed%s_n%d", in.Seed1, in.PermN): perm}, nil
}

func williamsBase(in struct{ T []int }) (any, error) {
	rows, distinct := [][]int{}, []int{}
	for _, t := range in.T {
		if t < 1 || t > 1000 {
			return nil, fmt.Errorf("input: t is %d: must be 1..1000", t)
		}
		rows, distinct = append(rows, schedule.WilliamsBase(t)), append(distinct, schedule.Rows(t))
	}
	return object{"rows": rows, "distinct_superblocks": distinct}, nil
}

func balanced(b schedule.Balance) object {
	return object{"first": b.First, "transitions": b.Transitions, "lag_sum": b.LagSum, "loads": b.Loads, "blocks": b.Blocks}
}

func scheduleDraw(in struct {
	Arms        []string
	Superblocks int
	Seed        string
	LeadIn      bool `json:"lead_in"`
}) (any, error) {
	if !in.LeadIn {
		return nil, fmt.Errorf("input: lead_in is false: this protocol version always has a lead-in")
	}
	seed, err := schedule.ParseSeed(in.Seed)
	if err != nil {
		return nil, err
	}
	sbs, err := schedule.Draw(in.Arms, in.Superblocks, seed)
	if err != nil {
		return nil, err
	}
	if err := schedule.Check(in.Arms, schedule.Legs(sbs)); err != nil {
		return nil, err
	}
	return object{"superblocks": sbs, "balance": balanced(schedule.Measure(schedule.Legs(sbs)))}, nil
}

func balance(in struct{ Legs [][3]any }) (any, error) {
	var legs []schedule.Leg
	for i, l := range in.Legs {
		sb, ok1 := l[0].(float64)
		block, ok2 := l[1].(float64)
		arm, ok3 := l[2].(string)
		if !ok1 || !ok2 || !ok3 {
			return nil, fmt.Errorf("input: leg %d is not [superblock, block, arm]", i)
		}
		legs = append(legs, schedule.Leg{Superblock: int(sb), Block: int(block), Arm: arm, LeadIn: block < 0})
	}
	b := schedule.Measure(legs)
	var arms []string
	for a := range b.First {
		arms = append(arms, a)
	}
	out := balanced(b)
	out["valid"] = schedule.Check(arms, legs) == nil
	return out, nil
}

func designCost(in struct {
	T    []int
	NMin int `json:"n_min"`
}) (any, error) {
	var rows []object
	for _, t := range in.T {
		d, err := schedule.NewDesign(t, in.NMin)
		if err != nil {
			return nil, err
		}
		rows = append(rows, object{"min_blocks": d.MinBlocks, "cycle_blocks": d.CycleBlocks, "recommended_blocks": d.RecommendedBlocks,
			"loads_min": d.LoadsMin, "loads_recommended": d.LoadsRecommended})
	}
	return object{"rows": rows}, nil
}

func reload(in struct {
	Values []float64
	DeltaM float64 `json:"delta_m"`
}) (any, error) {
	r, err := stats.Reload(in.Values, in.DeltaM)
	if err != nil {
		return nil, err
	}
	out := object{"n": r.N, "spread": r.Spread, "median": r.Median, "missed_state_bound": r.MissedUpTo, "trend_p": r.TrendP,
		"verdict": r.Verdict, "reason": r.Reason}
	if r.Runs > 0 {
		out["modes"], out["sizes"], out["runs"] = r.Modes, r.Sizes, r.Runs
	}
	return out, nil
}

func missedState(in struct {
	Loads []int
	P     float64
}) (any, error) {
	var bound, missed []float64
	for _, n := range in.Loads {
		b, err := stats.MissedStateBound(n)
		if err != nil {
			return nil, err
		}
		m, err := stats.MissedState(n, in.P)
		if err != nil {
			return nil, err
		}
		bound, missed = append(bound, b), append(missed, m)
	}
	return object{"bound": bound, "p_missed": missed}, nil
}

func gridShift(in struct {
	M1, M2, S1, S2 float64
	N1, N2         int
}) (any, error) {
	s, err := stats.GridShift(in.M1, in.M2, in.S1, in.S2, in.N1, in.N2)
	return object{"shift_log": s.Log, "shift_pct": s.Pct, "within_log": s.Within, "multiple": s.Multiple, "verdict": s.Verdict}, err
}

func ratioConsistency(in struct {
	A, B, Published float64
	SA              float64 `json:"s_a"`
	SB              float64 `json:"s_b"`
}) (any, error) {
	c, err := stats.RatioConsistency(in.A, in.B, in.Published, in.SA, in.SB)
	if err != nil {
		return nil, err
	}
	reasons, err := verdict.Published(verdict.Session{A: verdict.Figures{Median: in.A, Spread: in.SA}, B: verdict.Figures{Median: in.B, Spread: in.SB},
		Ratio: matrix.Some(in.Published)})
	reason := matrix.Reason("")
	for _, r := range reasons {
		reason = r.Code
	}
	return object{"recomputed": c.Recomputed, "log_gap": c.LogGap, "tolerance": c.Tolerance, "consistent": c.Consistent, "reason": reason}, err
}

func gridCell(in struct {
	ArmA  stats.GridVerdict `json:"arm_a"`
	ArmB  stats.GridVerdict `json:"arm_b"`
	Ratio stats.GridVerdict
}) (any, error) {
	for _, v := range []stats.GridVerdict{in.ArmA, in.ArmB, in.Ratio} {
		if v != stats.Reproduced && v != stats.NotReproduced && v != stats.GridUndecided {
			return nil, fmt.Errorf("input: unknown grid verdict %q", v)
		}
	}
	reasons, a, b := verdict.GridReasons(in.ArmA, in.ArmB, in.Ratio)
	moved := []string{}
	if a {
		moved = append(moved, "a")
	}
	if b {
		moved = append(moved, "b")
	}
	v, err := verdict.Of(reasons)
	return object{"reasons": reasons, "verdict": v, "moved": moved}, err
}

func gridEnvelope(in struct {
	Grids []struct {
		Lo, Hi float64
		Median float64 `json:"median_log"`
	}
	Delta float64
}) (any, error) {
	var bounds []stats.Bounds
	for _, g := range in.Grids {
		bounds = append(bounds, stats.Bounds{Lo: g.Lo, Hi: g.Hi, Median: g.Median})
	}
	e, err := stats.GridEnvelope(bounds)
	if err != nil {
		return nil, err
	}
	out := object{"lo": nil, "hi": nil, "widened_by": nil}
	if e.Grids > 1 {
		out["lo"], out["hi"], out["widened_by"] = e.Lo, e.Hi, e.WidenedBy
	}
	supports := []matrix.Direction{}
	for _, s := range []struct {
		ok  bool
		dir matrix.Direction
	}{{e.Faster(), matrix.DirFaster}, {e.Slower(), matrix.DirSlower}, {e.Equivalent(in.Delta), matrix.DirEquivalent}} {
		if s.ok {
			supports = append(supports, s.dir)
		}
	}
	out["supports"] = supports
	return out, nil
}

func embeddedAA(in struct {
	Pairs     [][2]float64
	Blocks    int          `json:"n_blocks"`
	FirstLast [][2]float64 `json:"first_last"`
}) (any, error) {
	e, err := stats.Embedded(in.Pairs, in.Blocks)
	if err != nil {
		return nil, err
	}
	p, err := gates.ProfileByName("gb10") // the limit that these vectors use (protocol §3.6)
	if err != nil {
		return nil, err
	}
	drift, void := []float64{}, []bool{}
	for _, fl := range in.FirstLast {
		d, v, err := stats.Drift(fl[0], fl[1], p.Drift.Or(0))
		if err != nil {
			return nil, err
		}
		drift, void = append(drift, d), append(void, v)
	}
	return object{"k": e.K, "rms": e.RMS, "noise_floor": e.NoiseFloor, "max_abs": e.MaxAbs, "jump": e.Jump, "drift_void": void, "drift": drift}, nil
}

func verdictOf(in struct{ Reasons []matrix.Reason }) (any, error) {
	v, err := verdict.Of(in.Reasons)
	return object{"verdict": v, "prints": verdict.Prints(v, in.Reasons...)}, err
}

func tailFloor(in struct{ Metric []string }) (any, error) {
	var out []int
	for _, m := range in.Metric {
		p, err := strconv.Atoi(strings.TrimPrefix(m, "p"))
		if err != nil || !strings.HasPrefix(m, "p") {
			return nil, fmt.Errorf("input: metric %q is not a percentile like p95", m)
		}
		n, err := stats.TailFloor(p)
		if err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	return object{"min_requests": out}, nil
}

func identity(in struct{ Object any }) (any, error) {
	b, err := matrix.Canonical(in.Object)
	if err != nil {
		return nil, err
	}
	sum, err := matrix.Digest(in.Object)
	return object{"canonical": string(b), "sha256": sum}, err
}

func identityPair(in struct{ A, B any }) (any, error) {
	a, err := matrix.Digest(in.A)
	if err != nil {
		return nil, err
	}
	b, err := matrix.Digest(in.B)
	reason := ""
	if a != b {
		reason = string(matrix.MethodMismatch)
	}
	return object{"equal": a == b, "reason": reason}, err
}
