package verdict_test

import (
	"math"
	"slices"
	"testing"

	"enginebroker/matrix"
	"enginebroker/matrix/gates"
	"enginebroker/matrix/verdict"
)

// Protocol §4.6, the ten worked rows: facts of the seeds and what must come out.

// Row 1: #349 c1, two grids. The figures of both grids stand side by side and no ratio does.
func TestWorked01GridsOf349(t *testing.T) {
	r := newRun(t, 3, "ours", "vllm")
	r.grid(3, values(map[string]float64{"ours": 9.366, "vllm": 11.3646}))
	r.grid(2, values(map[string]float64{"ours": 10.756, "vllm": 11.250}))
	for g := range r.grids {
		for i := range r.grids[g].Loads {
			ready, _ := r.grids[g].Loads[i].Ready.Get()
			ready.Facts = slices.DeleteFunc(slices.Clone(ready.Facts), func(f matrix.Fact) bool { return f.Name == matrix.FactBuild })
			r.grids[g].Loads[i].Ready = matrix.Some(ready)
		}
	}
	c := judge(t, r.input(t)).Cells[0]
	want(t, c, matrix.NotReproduced, matrix.DirNone, matrix.GridShiftArm, matrix.GridShiftRatio, matrix.BuildUnrecorded, matrix.GridInterval)
	n, _ := c.Numbers.Get()
	if n.ShowRatio || n.Interval.Present() || len(n.Grids) != 2 {
		t.Fatalf("numbers %+v: want the medians of two grids and nothing else", n)
	}
	for i, w := range [][2]float64{{9.366, 11.3646}, {10.756, 11.250}} {
		for j := range w {
			if got := n.Grids[i][j].Median.Or(0); math.Abs(got/w[j]-1) > 0.002 {
				t.Errorf("grid %d, arm %d: %v, want about %v", i, j, got, w[j])
			}
		}
	}
	k, err := verdict.Compare(matrix.NewPair("ours", "vllm"),
		verdict.Session{A: verdict.Figures{9.366, 1.0068, 3}, B: verdict.Figures{11.3646, 1.006, 3}},
		verdict.Session{A: verdict.Figures{10.756, 1.005, 3}, B: verdict.Figures{11.250, 1.006, 3}})
	if err != nil || !slices.Equal(k.Moved, []string{"ours"}) {
		t.Errorf("moved %v (%v), want ours", k.Moved, err)
	}
	wantCodes(t, k.Reasons, matrix.NotReproduced, matrix.GridShiftArm, matrix.GridShiftRatio)
}

func wantCodes(t *testing.T, reasons []matrix.CellReason, v matrix.Verdict, codes ...matrix.Reason) {
	t.Helper()
	var got []matrix.Reason
	for _, r := range reasons {
		got = append(got, r.Code)
	}
	slices.Sort(got)
	slices.Sort(codes)
	is, err := verdict.Of(got)
	if err != nil || is != v || !slices.Equal(got, codes) {
		t.Errorf("%v %v (%v), want %v %v", is, got, err, v, codes)
	}
}

// Row 2: the published ratio of grid 1 is not the ratio of its arms.
func TestWorked02PublishedRatio(t *testing.T) {
	reasons, err := verdict.Published(verdict.Session{A: verdict.Figures{9.366, 1.0068, 3}, B: verdict.Figures{11.3646, 1.006, 3}, Ratio: matrix.Some(0.8384)})
	if err != nil {
		t.Fatal(err)
	}
	wantCodes(t, reasons, matrix.Withheld, matrix.RatioInconsistent)
	if reasons, err = verdict.Published(verdict.Session{A: verdict.Figures{10.756, 1.005, 3}, B: verdict.Figures{11.25, 1.006, 3}, Ratio: matrix.Some(0.9561)}); err != nil || len(reasons) != 0 {
		t.Errorf("a consistent ratio: %v, %v", reasons, err)
	}
}

// Row 3: a 5-token prompt against a 1024-token one.
func TestWorked03ReloadAgainstGrid(t *testing.T) {
	m := matrix.Method{Points: []matrix.Point{{ID: "c1", PromptTokens: 5}}}
	a, err1 := m.ID()
	m.Points[0].PromptTokens = 1024
	b, err2 := m.ID()
	if err1 != nil || err2 != nil || a == b {
		t.Fatalf("method ids %s and %s (%v, %v)", a, b, err1, err2)
	}
	k, err := verdict.Compare(matrix.NewPair("ours", "vllm"), verdict.Session{MethodID: a}, verdict.Session{MethodID: b})
	if err != nil {
		t.Fatal(err)
	}
	wantCodes(t, k.Reasons, matrix.NotComparable, matrix.MethodMismatch)
}

// Row 4: a reference without a declared pin is provisional, not shown to be wrong.
func TestWorked04RollbackOracle(t *testing.T) {
	r := twoGrids(t, map[string]float64{"ours": 10, "vllm": 11}, "ours", "vllm")
	r.plan.Groups[0].Arms[1].Pin = ""
	c := judge(t, r.input(t)).Cells[0]
	want(t, c, matrix.Provisional, matrix.DirSlower, matrix.ReferenceNotPin)
	if n, _ := c.Numbers.Get(); !n.ShowRatio {
		t.Error("a provisional cell prints its ratio")
	}
}

// Row 5: failed requests at c1 and c8 withhold those points, c4 stands.
func TestWorked05FailedRequests(t *testing.T) {
	r := newRun(t, 3, "ours", "vllm")
	r.plan.Method.Points = []matrix.Point{{ID: "c1"}, {ID: "c4"}, {ID: "c8"}}
	r.grid(3, values(map[string]float64{"ours": 10, "vllm": 11}))
	r.grid(2, values(map[string]float64{"ours": 10, "vllm": 11}))
	for i := range r.grids[0].Legs {
		l := &r.grids[0].Legs[i]
		if id := l.Record.ID; id.Arm == "ours" && !id.LeadIn && id.Superblock == 1 && id.Point != "c4" {
			l.Gate = gates.Add(l.Gate, matrix.FailedRequests, "1 of 6 failed")
		}
	}
	res := judge(t, r.input(t))
	want(t, res.Cells[0], matrix.Withheld, matrix.DirNone, matrix.EngineVoidOnRecord, matrix.FewBlocks)
	want(t, res.Cells[1], matrix.Established, matrix.DirSlower)
	want(t, res.Cells[2], matrix.Withheld, matrix.DirNone, matrix.EngineVoidOnRecord, matrix.FewBlocks)
}

// Rows 6 and 7: pairs that negotiation refuses are cells with a reason and both sides' words.
func TestWorked06And07Refusals(t *testing.T) {
	r := newRun(t, 3, "ours", "vllm")
	r.plan.Refusals = []matrix.Refusal{
		{Pair: matrix.NewPair("ours", "sglang"), Reason: matrix.DraftedVsRaw, Detail: "sglang is drafted, ours raw", Fix: "run both raw"},
		{Pair: matrix.NewPair("vllm", "llamacpp"), Reason: matrix.NoCommonQuant, Detail: "safetensors and GGUF", Fix: "none"},
		{Pair: matrix.NewPair("sglang", "llamacpp"), Reason: matrix.NoCommonQuant, Detail: "safetensors and GGUF", Fix: "none"},
	}
	cells := judge(t, r.input(t)).Cells
	want(t, cells[1], matrix.NotComparable, matrix.DirNone, matrix.DraftedVsRaw)
	want(t, cells[2], matrix.NotComparable, matrix.DirNone, matrix.NoCommonQuant)
	want(t, cells[3], matrix.NotComparable, matrix.DirNone, matrix.NoCommonQuant)
}

// Row 8: nine windows with a spread of 10–26 % and a throttle label on each: every leg void, cause ENV.
func TestWorked08NineWindows(t *testing.T) {
	p, err := gates.ProfileByName("gb10")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 9 {
		c := matrix.Clock{BootID: "b", Persistence: matrix.Some(true)}
		for k := range 60 {
			c.Seconds = append(c.Seconds, matrix.ClockSecond{MHz: 2400 - int64(k%2)*int64(240+48*i), Util: 95, Bits: uint64(k/59) * 0x20})
		}
		g := gates.Leg(matrix.LegRecord{Clock: matrix.Some(c), Repetitions: []matrix.Repetition{{}}}, matrix.Arm{}, matrix.Point{}, p)
		if !slices.Equal(g.Codes, []matrix.LegCode{matrix.ClockSpread, matrix.ClockThrottled}) || g.Cause != matrix.CauseEnv {
			t.Errorf("window %d: %v, cause %s", i, g.Codes, g.Cause)
		}
	}
}

// Row 9: two legs each are no comparison.
func TestWorked09TwoLegsEach(t *testing.T) {
	r := newRun(t, 3, "dequant", "packed")
	r.grid(1, values(map[string]float64{"packed": 11.195, "dequant": 9.79}))
	c := judge(t, r.input(t)).Cells[0]
	if c.Verdict != matrix.Withheld || !slices.Contains(c.Codes(), matrix.InsufficientBlocks) || c.Numbers.Present() {
		t.Errorf("%v %v", c.Verdict, c.Codes())
	}
}

// Row 10: 82.17 → 88.10 ms/step across boots is void as a pair of windows, and a common shift as two grids.
func TestWorked10AcrossBoots(t *testing.T) {
	p, err := gates.ProfileByName("gb10")
	if err != nil {
		t.Fatal(err)
	}
	window := func(boot string) gates.Window {
		return gates.Window{Env: matrix.Env{BootIDStart: boot, BootIDEnd: boot}}
	}
	if codes := gates.Block(window("one"), window("two"), p); !slices.Equal(codes, []matrix.LegCode{matrix.ClockBootMismatchC}) {
		t.Errorf("windows of two boots: %v", codes)
	}
	if v, err := verdict.Of([]matrix.Reason{matrix.ClockBootMismatch}); v != matrix.Void || err != nil {
		t.Errorf("as a pair: %v, %v", v, err)
	}
	r := newRun(t, 3, "ours", "vllm")
	r.grid(3, values(map[string]float64{"ours": 1000 / 82.17, "vllm": 1100 / 82.17}))
	r.grid(2, values(map[string]float64{"ours": 1000 / 88.10, "vllm": 1100 / 88.10}))
	want(t, judge(t, r.input(t)).Cells[0], matrix.Provisional, matrix.DirSlower, matrix.GridShiftCommon)
}
