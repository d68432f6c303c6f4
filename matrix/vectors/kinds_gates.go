package vectors

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"enginebroker/matrix"
	"enginebroker/matrix/gates"
	"enginebroker/matrix/stats"
	"enginebroker/matrix/verdict"
)

// clockInput is one arm's window: busy samples as [MHz, count].
type clockInput struct {
	Busy        [][2]int64
	Idle        int
	Throttle    []string
	Boot        string
	Persistence string
	GPU         string
}

// clock makes the 1 s series that the input stands for.
func (in clockInput) clock() (matrix.Clock, error) {
	c := matrix.Clock{BootID: in.Boot}
	for _, b := range in.Busy {
		if err := bounded("busy samples", len(c.Seconds)+int(min(b[1], maxCount+1))); err != nil || b[1] < 0 {
			return c, fmt.Errorf("input: busy samples %v: at most %d in all", b, maxCount)
		}
		for range b[1] {
			c.Seconds = append(c.Seconds, matrix.ClockSecond{MHz: b[0], Util: 100})
		}
	}
	if err := bounded("idle", in.Idle); err != nil {
		return c, err
	}
	for range in.Idle {
		c.Seconds = append(c.Seconds, matrix.ClockSecond{})
	}
	mask, err := union(in.Throttle)
	if err != nil {
		return c, err
	}
	if mask != 0 {
		if len(c.Seconds) == 0 {
			return c, fmt.Errorf("input: throttle bits without a sample")
		}
		c.Seconds[0].Bits = mask
	}
	persistence := in.Persistence
	if persistence == "" {
		persistence = "Enabled"
	}
	c.Persistence = matrix.Some(persistence == "Enabled")
	c.Static = matrix.Facts{{Name: "persistence", Value: persistence}}
	if in.GPU != "" {
		c.Static = append(c.Static, matrix.Fact{Name: "name", Value: in.GPU})
	}
	return c, nil
}

func union(hex []string) (uint64, error) {
	mask := uint64(0)
	for _, h := range hex {
		n, err := strconv.ParseUint(strings.TrimPrefix(h, "0x"), 16, 64)
		if err != nil {
			return 0, fmt.Errorf("input: throttle %q is not a hexadecimal mask", h)
		}
		mask |= n
	}
	return mask, nil
}

func window(s gates.ClockStats) object {
	out := object{"n": s.Busy, "median": s.Median, "mean": s.Mean, "spread_pct": s.SpreadPct}
	return out
}

// compareClocks puts two windows through the leg rules and the block rules.
func compareClocks(a, b matrix.Clock) (any, error) {
	p, err := gates.ProfileByName("gb10")
	if err != nil {
		return nil, err
	}
	wa, wb := gates.ClockWindow(a), gates.ClockWindow(b)
	var reasons []string
	add := func(code string) {
		if !slices.Contains(reasons, code) {
			reasons = append(reasons, code)
		}
	}
	for i, w := range []gates.ClockStats{wa, wb} {
		for _, c := range gates.ClockCodes(w, p.ClockMask) {
			add(string(c))
		}
		if on, ok := []matrix.Clock{a, b}[i].Persistence.Get(); ok && !on {
			add(string(matrix.ClockPersistence))
		}
	}
	o, codes := gates.ClockCompare(wa, wb)
	for _, c := range codes {
		add(string(c))
	}
	if len(gates.StaticMismatch(a.Static, b.Static)) > 0 {
		add(string(matrix.MachineMismatch))
	}
	return object{"a": window(wa), "b": window(wb), "reasons": reasons, "median_offset_pct": o.MedianPct, "mean_offset_pct": o.MeanPct,
		"kappa": o.Kappa, "a_mean_cost_pct": wa.MeanCostPct(), "b_mean_cost_pct": wb.MeanCostPct(), "burden_difference_pct": o.BurdenPct}, nil
}

func clockCompare(in struct{ A, B clockInput }) (any, error) {
	a, err := in.A.clock()
	if err != nil {
		return nil, err
	}
	b, err := in.B.clock()
	if err != nil {
		return nil, err
	}
	return compareClocks(a, b)
}

func clockCompareStatic(in struct {
	AGPU string `json:"a_gpu"`
	BGPU string `json:"b_gpu"`
	Busy [][2]int64
}) (any, error) {
	return clockCompare(struct{ A, B clockInput }{clockInput{Busy: in.Busy, GPU: in.AGPU}, clockInput{Busy: in.Busy, GPU: in.BGPU}})
}

func clockCompareMissingMean(in struct {
	AMissing bool `json:"a_mean_missing"`
	BMissing bool `json:"b_mean_missing"`
	Busy     [][2]int64
}) (any, error) {
	c, err := clockInput{Busy: in.Busy}.clock()
	if err != nil {
		return nil, err
	}
	a, b := c, c
	a.MeanMissing, b.MeanMissing = in.AMissing, in.BMissing
	return compareClocks(a, b)
}

func clockMerge(in struct{ Legs [][][2]int64 }) (any, error) {
	p, err := gates.ProfileByName("gb10")
	if err != nil {
		return nil, err
	}
	var windows []gates.ClockStats
	var means []float64
	for _, busy := range in.Legs {
		c, err := clockInput{Busy: busy}.clock()
		if err != nil {
			return nil, err
		}
		w := gates.ClockWindow(c)
		windows, means = append(windows, w), append(means, w.Mean.Or(0))
	}
	m, err := gates.ClockMerge(windows)
	if err != nil {
		return nil, err
	}
	unweighted, err := stats.Mean(means)
	out := window(m)
	out["reasons"], out["unweighted_mean_wrong"] = gates.ClockCodes(m, p.ClockMask), unweighted
	return out, err
}

func throttleNames(in struct{ Throttle []string }) (any, error) {
	mask, err := union(in.Throttle)
	return object{"names": gates.ThrottleNames(mask)}, err
}

func cleanWindow(in struct {
	P        [2]float64 `json:"p_label_per_request"`
	Requests []int
}) (any, error) {
	var out []float64
	for _, n := range in.Requests {
		p, err := gates.CleanWindow(in.P[0]/in.P[1], n)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return object{"p_clean": out}, nil
}

type legExpected struct {
	Requests         int
	Concurrency      int
	PromptTokens     int64   `json:"prompt_tokens"`
	CompletionTokens int64   `json:"completion_tokens"`
	MinSpread        float64 `json:"min_stream_spread_s"`
	Policy           matrix.PolicyKind
}

type legRequest struct {
	OK         bool
	Prompt     matrix.Opt[int64] `json:"prompt_tokens"`
	Completion matrix.Opt[int64] `json:"completion_tokens"`
	Sum        matrix.Opt[int64] `json:"chunk_tokens"` // token sum from an exact source
	Chunks     int
	TTFT       float64 `json:"ttft_s"`
	Total      float64 `json:"total_s"`
}

type legEnv struct {
	ForeignGPU matrix.Opt[int64]   `json:"foreign_gpu_procs"`
	Baseline   matrix.Opt[int64]   `json:"mem_available_baseline_kib"`
	After      matrix.Opt[int64]   `json:"mem_available_after_kib"`
	Resident   matrix.Opt[int64]   `json:"resident_pages_before_load"`
	Load       matrix.Opt[float64] `json:"loadavg1_before"`
	LoadMax    matrix.Opt[float64] `json:"loadavg_max"`
	Thermal    matrix.Opt[int64]   `json:"thermal_counter_delta"`
	Swap       matrix.Opt[int64]   `json:"swap_pages_delta"`
}

func legGates(in struct {
	Expected legExpected
	Requests []legRequest
	Env      legEnv
}) (any, error) {
	p, err := gates.ProfileByName("gb10")
	if err != nil {
		return nil, err
	}
	p.StreamSpread = time.Duration(in.Expected.MinSpread * float64(time.Second))
	p.LoadAverage = in.Env.LoadMax
	rep := matrix.Repetition{Planned: in.Expected.Requests}
	for i, q := range in.Requests {
		rep.Requests = append(rep.Requests, q.record(i, in.Expected))
	}
	rec := matrix.LegRecord{Repetitions: []matrix.Repetition{rep}, Env: matrix.Env{
		ForeignGPU: in.Env.ForeignGPU, MemBaselineKiB: in.Env.Baseline, MemBeforeKiB: in.Env.After, ResidentPages: in.Env.Resident,
		LoadAverage: in.Env.Load, ThermalDelta: in.Env.Thermal, SwapDelta: in.Env.Swap,
	}}
	arm := matrix.Arm{Policy: matrix.Policy{Kind: in.Expected.Policy}, Cache: "off"}
	point := matrix.Point{Concurrency: in.Expected.Concurrency, OutputTokens: int(in.Expected.CompletionTokens), IgnoreEOS: true}
	g := gates.Leg(rec, arm, point, p)
	status, causes := "VALID", []matrix.Cause{}
	for _, code := range g.Codes {
		status = "VOID"
		c, err := code.Cause()
		if err != nil {
			return nil, err
		}
		if !slices.Contains(causes, c) {
			causes = append(causes, c)
		}
	}
	return object{"status": status, "codes": g.Codes, "causes": causes, "metric_flags": g.Flags}, nil
}

func (q legRequest) record(i int, e legExpected) matrix.Request {
	ns := func(s float64) matrix.Opt[int64] { return matrix.Some(int64(s * 1e9)) }
	r := matrix.Request{
		Index: i, Outcome: matrix.OutcomeOK, FinishReason: "length", Requested: e.CompletionTokens,
		Sent: matrix.Some[int64](0), FirstToken: ns(q.TTFT), LastToken: ns(q.Total),
		PromptTokens: q.Prompt, ExpectedPrompt: matrix.Some(e.PromptTokens), CompletionTokens: q.Completion, TokenEvents: q.Chunks,
	}
	if !q.OK {
		r.Outcome = matrix.OutcomeFailed
	}
	if n, ok := q.Sum.Get(); ok {
		r.Counts = []matrix.TokenCount{{Source: "token_ids", Kind: matrix.CountExact, Tokens: n}}
	}
	return r
}

func legCause(in struct{ Codes []matrix.LegCode }) (any, error) {
	c, err := gates.Cause(in.Codes)
	return object{"cause": c}, err
}

func cellReasons(in struct {
	Planned int `json:"superblocks_planned"`
	Blocks  []struct {
		Superblock int
		Status     string
		Cause      matrix.Cause
	}
	AA    verdict.AA
	Grids int
}) (any, error) {
	var blocks []verdict.Block
	for i, b := range in.Blocks {
		out := verdict.Block{Superblock: b.Superblock}
		switch {
		case b.Status == "VALID":
		case b.Status == "VOID" && slices.Contains([]matrix.Cause{matrix.CauseEngine, matrix.CauseEnv, matrix.CauseHarness}, b.Cause):
			out.Void, out.Causes = true, []matrix.Cause{b.Cause}
		default:
			return nil, fmt.Errorf("input: block %d: status %q, cause %q", i, b.Status, b.Cause)
		}
		blocks = append(blocks, out)
	}
	if !slices.Contains([]verdict.AA{verdict.AAPass, verdict.AAFail, verdict.AAMissing}, in.AA) {
		return nil, fmt.Errorf("input: aa %q: pass, fail or missing", in.AA)
	}
	t := verdict.Count(in.Planned, blocks)
	reasons := append(append(t.Reasons, verdict.CountReasons(t.N)...), verdict.AAReasons(in.AA, 0)...)
	if in.Grids < 2 {
		reasons = append(reasons, matrix.SingleGrid)
	}
	v, err := verdict.Of(reasons)
	return object{"n_valid": t.N, "reasons": reasons, "verdict": v, "prints": verdict.Prints(v, reasons...)}, err
}
