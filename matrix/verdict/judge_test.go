package verdict_test

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"enginebroker/matrix"
	"enginebroker/matrix/gates"
	"enginebroker/matrix/schedule"
	"enginebroker/matrix/simulate"
	"enginebroker/matrix/verdict"
)

// §0, §4.5: six blocks, a second boot, a dedicated A/A, everything observed.
func TestEstablished(t *testing.T) {
	c := judge(t, twoGrids(t, map[string]float64{"ours": 10.4, "vllm": 10}, "ours", "vllm").input(t)).Cells[0]
	want(t, c, matrix.Established, matrix.DirFaster)
	n, ok := c.Numbers.Get()
	i, ok2 := n.Interval.Get()
	if !ok || !ok2 || !n.ShowRatio || i.Kind != "grid_envelope" || math.Abs(i.Ratio.Or(0)-1.04) > 0.002 || !(i.RatioLo < i.Ratio.Or(0) && i.Ratio.Or(0) < i.RatioHi) || c.Blocks != 6 {
		t.Errorf("numbers %+v of %d blocks", n, c.Blocks)
	}
}

func TestEquivalentCarriesDetected(t *testing.T) {
	c := judge(t, twoGrids(t, map[string]float64{"a": 10.065, "b": 10}, "a", "b").input(t)).Cells[0]
	want(t, c, matrix.Established, matrix.DirEquivalent)
	if n, _ := c.Numbers.Get(); n.Detected != matrix.DirFaster {
		t.Errorf("detected %s, want FASTER inside the margin", n.Detected)
	}
}

func TestOneGridIsProvisional(t *testing.T) {
	r := newRun(t, 3, "a", "b")
	r.grid(3, values(map[string]float64{"a": 10.4, "b": 10}))
	want(t, judge(t, r.input(t)).Cells[0], matrix.Provisional, matrix.DirFaster, matrix.SingleGrid, matrix.LoadStateUntested)
}

// §4.4: a grid on the same boot confirms nothing.
func TestSameBootConfirmsNothing(t *testing.T) {
	r := twoGrids(t, map[string]float64{"a": 10.4, "b": 10}, "a", "b")
	r.grids[1].Info.BootID = r.grids[0].Info.BootID
	if got := judge(t, r.input(t)).Cells[0].Codes(); !slices.Contains(got, matrix.SingleGrid) {
		t.Errorf("reasons %v lack SINGLE_GRID", got)
	}
}

// §4.7: a grid under another clock cap does not merge with the first; one whose ceiling is unknown, or as good as equal, does.
func TestCeilingsOfGrids(t *testing.T) {
	for _, c := range []struct {
		second  matrix.Opt[int64]
		differs bool
	}{{matrix.Some(int64(2405)), true}, {matrix.Some(int64(2200)), false}, {matrix.Opt[int64]{}, false}} {
		r := twoGrids(t, map[string]float64{"a": 10.4, "b": 10}, "a", "b")
		r.grids[0].Info.CeilingMHz, r.grids[1].Info.CeilingMHz = matrix.Some(int64(2190)), c.second
		cell := judge(t, r.input(t)).Cells[0]
		if c.differs {
			want(t, cell, matrix.NotComparable, matrix.DirNone, matrix.MachineMismatch)
			if cell.Numbers.Present() {
				t.Errorf("numbers of grids that do not merge: %+v", cell.Numbers)
			}
		} else {
			want(t, cell, matrix.Established, matrix.DirFaster)
		}
	}
}

// §3.3, §4.4: n = 0, 2, 4 blocks; never a ratio below three.
func TestBlockCounts(t *testing.T) {
	for _, c := range []struct {
		superblocks int
		verdict     matrix.Verdict
		reason      matrix.Reason
	}{{0, matrix.Void, matrix.NoValidBlock}, {1, matrix.Withheld, matrix.InsufficientBlocks}, {2, matrix.Provisional, matrix.FewBlocks}} {
		r := newRun(t, 3, "a", "b")
		r.grid(c.superblocks, values(map[string]float64{"a": 11, "b": 10}))
		cell := judge(t, r.input(t)).Cells[0]
		if cell.Verdict != c.verdict || !slices.Contains(cell.Codes(), c.reason) || cell.Numbers.Present() != (c.verdict < matrix.Withheld) {
			t.Errorf("%d superblocks: %v %v, numbers %v", c.superblocks, cell.Verdict, cell.Codes(), cell.Numbers.Present())
		}
	}
	r := newRun(t, 3, "a", "b")
	if cell := judge(t, r.input(t)).Cells[0]; cell.Verdict != matrix.Void {
		t.Errorf("no grid at all: %v", cell.Verdict)
	}
}

// §4.4: an engine's failure withholds every cell of its arm at the point and no other pair's.
func TestEngineVoid(t *testing.T) {
	r := twoGrids(t, map[string]float64{"a": 11, "b": 10, "c": 10}, "a", "b", "c")
	void(&r.grids[0], 1, 1, "c", matrix.FailedRequests)
	in := r.input(t)
	res := judge(t, in)
	for _, c := range res.Cells {
		touched := c.ID.Pair.B == "c"
		if touched != slices.Contains(c.Codes(), matrix.EngineVoidOnRecord) {
			t.Errorf("%s: %v", c.ID, c.Codes())
		}
		if touched && (c.Verdict != matrix.Withheld || c.Numbers.Present()) {
			t.Errorf("%s: %v with numbers %v", c.ID, c.Verdict, c.Numbers.Present())
		}
		if !touched && c.Blocks != 6 {
			t.Errorf("%s keeps %d blocks, want 6", c.ID, c.Blocks)
		}
	}
	// The numbers of a withheld cell do not come back through the list of legs.
	for _, l := range res.Legs {
		if l.ID.Arm == "c" && len(l.Values) > 0 {
			t.Errorf("leg %s of a withheld arm shows %v", l.LoadID, l.Values)
		}
	}
}

// §4.4: an engine's failure is released by an operator re-run of its superblock that passes, and by nothing else.
func TestOperatorRerun(t *testing.T) {
	by := map[string]float64{"a": 11, "b": 10}
	const failed, again, third = 1, 3, 4
	for name, c := range map[string]struct {
		codes    map[int]matrix.LegCode // of arm b, by superblock re-run
		redone   []verdict.Redone
		released bool
		blocks   int
	}{
		"run again and passed":                        {nil, []verdict.Redone{{Superblock: again, Replaces: failed, Operator: true}}, true, 6},
		"a passing superblock nobody asked for":       {nil, nil, false, 6},
		"run again by the judge, not by the operator": {nil, []verdict.Redone{{Superblock: again, Replaces: failed}}, false, 6},
		"of another superblock":                       {nil, []verdict.Redone{{Superblock: again, Replaces: 0, Operator: true}}, false, 6},
		"of another grid":                             {nil, []verdict.Redone{{Grid: 1, Superblock: again, Replaces: failed, Operator: true}}, false, 6},
		"replaces itself":                             {nil, []verdict.Redone{{Superblock: failed, Replaces: failed, Operator: true}}, false, 6},
		"failed again":                                {map[int]matrix.LegCode{again: matrix.FailedRequests}, []verdict.Redone{{Superblock: again, Replaces: failed, Operator: true}}, false, 6},
		"void by the box":                             {map[int]matrix.LegCode{again: matrix.SwapActivity}, []verdict.Redone{{Superblock: again, Replaces: failed, Operator: true}}, false, 6},
		"void by the box, its replacement passed":     {map[int]matrix.LegCode{again: matrix.SwapActivity}, []verdict.Redone{{Superblock: again, Replaces: failed, Operator: true}, {Superblock: third, Replaces: again}}, true, 6},
		"failed again, the third passed":              {map[int]matrix.LegCode{again: matrix.FailedRequests}, []verdict.Redone{{Superblock: again, Replaces: failed, Operator: true}, {Superblock: third, Replaces: again, Operator: true}}, true, 6},
		"failed again, the third is not of it":        {map[int]matrix.LegCode{again: matrix.FailedRequests}, []verdict.Redone{{Superblock: again, Replaces: failed, Operator: true}, {Superblock: third, Replaces: failed, Operator: true}}, false, 6},
	} {
		r := newRun(t, 3, "a", "b")
		g := r.grid(5, values(by))
		g.Target = map[string]int{r.plan.Groups[0].ID: 3}
		void(g, failed, 1, "b", matrix.FailedRequests)
		for sb, code := range c.codes {
			void(g, sb, 0, "b", code)
		}
		in := r.input(t)
		for i := range c.redone {
			c.redone[i].Group, c.redone[i].Who, c.redone[i].Why = r.plan.Groups[0].ID, "ana", "driver reset"
		}
		in.Redone = c.redone
		res := judge(t, in)
		cell := res.Cells[0]
		if withheld := slices.Contains(cell.Codes(), matrix.EngineVoidOnRecord); withheld == c.released || withheld != (len(res.EngineVoids) > 0) {
			t.Errorf("%s: %v, owed %+v", name, cell.Codes(), res.EngineVoids)
		}
		if c.released && (cell.Blocks != c.blocks || !cell.Numbers.Present()) {
			t.Errorf("%s: %d blocks, numbers %v", name, cell.Blocks, cell.Numbers.Present())
		}
		if c.released && (len(cell.Annotated) == 0 || !strings.Contains(cell.Annotated[0], "by ana (driver reset)") || !strings.Contains(cell.Annotated[0], "FAILED_REQUESTS")) {
			t.Errorf("%s: a released cell does not say so: %q", name, cell.Annotated)
		}
		if !c.released && cell.Numbers.Present() {
			t.Errorf("%s: a withheld cell shows numbers", name)
		}
	}
}

// §4.4: the environment drops the whole superblock of the pairs it touches; it is run again, and no other pair gets more blocks.
func TestEnvironmentVoid(t *testing.T) {
	by := map[string]float64{"a": 11, "b": 10, "c": 9}
	r := newRun(t, 3, "a", "b", "c")
	g := r.grid(3, values(by))
	void(g, 0, 1, "b", matrix.SwapActivity)
	res := judge(t, r.input(t))
	if len(res.Rerun) != 1 || res.Rerun[0].Superblock != 0 || !strings.Contains(res.Rerun[0].Why, "SWAP_ACTIVITY") {
		t.Errorf("re-run %+v, want superblock 0 for swap", res.Rerun)
	}
	if len(res.Extend) != 0 {
		t.Errorf("extension %v while a re-run is owed", res.Extend)
	}
	r.more(g, schedule.Next(r.plan, 0, 3), values(by))
	res = judge(t, r.input(t))
	if len(res.Rerun) != 0 {
		t.Errorf("still owed: %+v", res.Rerun)
	}
	for _, c := range res.Cells {
		if c.Blocks != 6 {
			t.Errorf("%s has %d blocks, want 6", c.ID, c.Blocks)
		}
	}
	// a:c never lost a block: its first three superblocks count, not the fourth.
	before := newRun(t, 3, "a", "b", "c")
	before.grid(3, values(by))
	interval := func(c matrix.Cell) matrix.Interval {
		return c.Numbers.Or(matrix.Numbers{}).Interval.Or(matrix.Interval{})
	}
	if a, b := interval(judge(t, before.input(t)).Cells[1]), interval(res.Cells[1]); a != b {
		t.Errorf("a re-run changed an unaffected pair: %+v, %+v", a, b)
	}
	void(g, 1, 0, "b", matrix.Cotenant)
	void(g, 2, 0, "b", matrix.Cotenant)
	res = judge(t, r.input(t))
	if c := res.Cells[0]; !slices.Contains(c.Codes(), matrix.TooManyEnvVoids) || c.Verdict != matrix.Void || len(res.Rerun) != 0 {
		t.Errorf("three of three: %v, re-run %v", c.Codes(), res.Rerun)
	}
}

func TestCotenantOnEverySuperblock(t *testing.T) {
	r := newRun(t, 3, "a", "b")
	g := r.grid(3, values(map[string]float64{"a": 11, "b": 10}))
	for sb := range 3 {
		void(g, sb, 0, "a", matrix.Cotenant)
	}
	if c := judge(t, r.input(t)).Cells[0]; !slices.Contains(c.Codes(), matrix.CotenantSeries) || c.Verdict != matrix.Void {
		t.Errorf("%v", c.Codes())
	}
}

// §4.4: the client's lateness is re-run within the allowance and a fault beyond it; any other harness code is a fault at once.
func TestHarness(t *testing.T) {
	r := newRun(t, 3, "a", "b")
	g := r.grid(3, values(map[string]float64{"a": 11, "b": 10}))
	void(g, 0, 0, "a", matrix.ClientLag)
	res := judge(t, r.input(t))
	if slices.Contains(res.Cells[0].Codes(), matrix.HarnessFault) || len(res.Rerun) != 1 {
		t.Errorf("one late superblock: %v, re-run %v", res.Cells[0].Codes(), res.Rerun)
	}
	void(g, 1, 0, "a", matrix.ClientLag)
	void(g, 2, 0, "a", matrix.ClientLag)
	if c := judge(t, r.input(t)).Cells[0]; !slices.Contains(c.Codes(), matrix.HarnessFault) {
		t.Errorf("three late superblocks of three: %v", c.Codes())
	}
	for _, code := range []matrix.LegCode{matrix.EvidenceMissing, matrix.MethodChanged} {
		r := newRun(t, 3, "a", "b")
		void(r.grid(3, values(map[string]float64{"a": 11, "b": 10})), 0, 0, "a", code)
		if c := judge(t, r.input(t)).Cells[0]; !slices.Contains(c.Codes(), matrix.HarnessFault) || c.Verdict != matrix.Void {
			t.Errorf("%s: %v", code, c.Codes())
		}
	}
}

// §1, §4.1: an arm that shows another print than at its first load voids every leg of that load.
func TestIdentityChanges(t *testing.T) {
	r := newRun(t, 3, "a", "b")
	r.plan.Method.Points = append(r.plan.Method.Points, matrix.Point{ID: "c8"})
	g := r.grid(3, values(map[string]float64{"a": 11, "b": 10}))
	for i := range g.Legs {
		if id := g.Legs[i].Record.ID; id.Arm == "a" && id.Superblock == 2 && id.Block%2 == 1 && id.Point == "c8" {
			g.Legs[i].Record.ArmPrint, g.Legs[i].Record.PrintEnd = "other", "other"
		}
	}
	res := judge(t, r.input(t))
	for _, c := range res.Cells {
		if !slices.Contains(c.Codes(), matrix.HarnessFault) {
			t.Errorf("%s: %v", c.ID, c.Codes())
		}
	}
}

// §2.7, §3.6: the arm that opens and closes a superblock may not drift by more than the profile's limit.
func TestTerminalControl(t *testing.T) {
	r := newRun(t, 3, "a", "b")
	r.grid(3, func(l simulate.Load) float64 {
		x := 10 * jitter(l)
		if l.Superblock == 1 && l.Block%2 == 1 && l.Position == 1 {
			x *= 0.93
		}
		return x
	})
	res := judge(t, r.input(t))
	if len(res.Rerun) != 1 || res.Rerun[0].Superblock != 1 || !strings.Contains(res.Rerun[0].Why, "SUPERBLOCK_DRIFT") {
		t.Errorf("re-run %+v", res.Rerun)
	}
	n := 0
	for _, l := range res.Legs {
		if slices.Contains(l.Gate.Codes, matrix.SuperblockDrift) {
			n++
		}
	}
	if n != 4 {
		t.Errorf("%d legs carry SUPERBLOCK_DRIFT, want the 4 of the superblock", n)
	}
}

// §3.7: undecided primary cells ask for one superblock more, from 6 blocks up to 12, and only on the primary grid.
func TestExtension(t *testing.T) {
	noisy := func(l simulate.Load) float64 {
		return 10 * (1 + 0.028*math.Sin(float64(l.Seq*l.Seq)))
	}
	for n, wanted := range map[int]bool{2: false, 3: true, 5: true, 6: false} {
		r := newRun(t, n, "a", "b")
		r.plan.Method.Margins = map[string]string{"integral": "0.005"}
		r.grid(n, noisy)
		res := judge(t, r.input(t))
		if res.Cells[0].Direction != matrix.DirNone {
			t.Fatalf("%d superblocks: decided %s", n, res.Cells[0].Direction)
		}
		if got := len(res.Extend) == 1; got != wanted {
			t.Errorf("%d superblocks: extend %v, want %v", n, res.Extend, wanted)
		}
	}
	if res := judge(t, twoGrids(t, map[string]float64{"a": 11, "b": 10}, "a", "b").input(t)); len(res.Extend) != 0 {
		t.Errorf("decided run extends %v", res.Extend)
	}
}

// §3.3: a series cut short inside a superblock uses the lone block with the lag-adjusted interval.
func TestLoneBlock(t *testing.T) {
	r := newRun(t, 3, "a", "b")
	g := r.grid(3, values(map[string]float64{"a": 11, "b": 10}))
	g.Info.Done = false
	g.Legs = slices.DeleteFunc(g.Legs, func(l verdict.Leg) bool { return l.Record.ID.Superblock == 2 && l.Record.ID.Block%2 == 1 })
	c := judge(t, r.input(t)).Cells[0]
	n, _ := c.Numbers.Get()
	if i, _ := n.Interval.Get(); c.Blocks != 5 || i.Kind != "lag_adjusted" || i.DF != 3 {
		t.Errorf("%d blocks, interval %+v", c.Blocks, i)
	}
}

// §4.4: an attempt at a superblock that was begun again does not count, but what the engine failed in it does.
func TestRestartedSuperblock(t *testing.T) {
	by := map[string]float64{"a": 11, "b": 10}
	r := newRun(t, 3, "a", "b")
	g := r.grid(2, values(by))
	g.Target = nil
	r.more(g, schedule.Next(r.plan, 0, 2), values(map[string]float64{"a": 5, "b": 10}))
	r.more(g, schedule.Next(r.plan, 0, 2), values(by))
	c := judge(t, r.input(t)).Cells[0]
	if n, _ := c.Numbers.Get(); c.Blocks != 6 || math.Abs(n.Interval.Or(matrix.Interval{}).Ratio.Or(0)-1.1) > 0.01 {
		t.Errorf("%d blocks, %+v", c.Blocks, n.Interval)
	}
	for i := range g.Legs {
		if v := g.Legs[i].Values[simulate.Metric.Name].X.Or(0); v < 6 && !g.Legs[i].Record.ID.LeadIn {
			g.Legs[i].Gate = gates.Add(g.Legs[i].Gate, matrix.ServerDied, "scripted")
		}
	}
	if c := judge(t, r.input(t)).Cells[0]; !slices.Contains(c.Codes(), matrix.EngineVoidOnRecord) {
		t.Errorf("%v lack the engine's failure in the abandoned attempt", c.Codes())
	}
}

// A scored load that failed before its legs is the engine's failure, unless the host explains it.
func TestFailedLoad(t *testing.T) {
	for _, c := range []struct {
		code string
		env  matrix.Env
		want matrix.Reason
	}{
		{"exited", matrix.Env{}, matrix.EngineVoidOnRecord},
		{"killed", matrix.Env{KilledByHost: "earlyoom"}, matrix.FewBlocks},
		{"port_taken", matrix.Env{}, matrix.HarnessFault},
	} {
		r := newRun(t, 3, "a", "b")
		g := r.grid(3, values(map[string]float64{"a": 11, "b": 10}))
		last := g.Loads[len(g.Loads)-1]
		g.Legs = slices.DeleteFunc(g.Legs, func(l verdict.Leg) bool { return l.Record.LoadID == last.ID })
		last.Ready, last.Failure, last.Env = matrix.Opt[matrix.Ready]{}, matrix.Some(matrix.StartFailure{Code: c.code, Message: c.code}), c.env
		g.Loads[len(g.Loads)-1] = last
		cell := judge(t, r.input(t)).Cells[0]
		if !slices.Contains(cell.Codes(), c.want) || cell.Blocks != 4 {
			t.Errorf("%s: %v, %d blocks", c.code, cell.Codes(), cell.Blocks)
		}
	}
}

// What a reader is told to do next is something the run can do: a plan of one boot has no grid to resume, a superblock is
// added to no run by wish, and a late client is not repaired.
func TestNextStepsExist(t *testing.T) {
	next := func(superblocks, grids int, change func(*verdict.Grid), code matrix.Reason) string {
		r := newRun(t, superblocks, "a", "b")
		r.plan.Grids, r.plan.Model, r.plan.Profile = grids, "toy", "standard"
		r.plan.Cost = matrix.Cost{Loads: 10, Estimate: 20 * time.Second}
		g := r.grid(superblocks, values(map[string]float64{"a": 11, "b": 10}))
		if change != nil {
			change(g)
		}
		in := r.input(t)
		in.AA = verdict.AAMissing
		for _, x := range judge(t, in).Cells[0].Reasons {
			if x.Code == code {
				return x.Next
			}
		}
		return ""
	}
	lag := func(code matrix.LegCode) func(*verdict.Grid) {
		return func(g *verdict.Grid) {
			for sb := range 3 {
				void(g, sb, 0, "a", code)
			}
		}
	}
	for _, c := range []struct{ got, want, not string }{
		{next(3, 2, nil, matrix.SingleGrid), "reboot, then broker resume", "compare"},
		{next(3, 1, nil, matrix.SingleGrid), "--profile binding", "resume"},
		{next(2, 1, nil, matrix.FewBlocks), "3 superblocks (--profile standard): 15 loads, about 30 s", "more superblocks"},
		{next(3, 1, lag(matrix.SwapActivity), matrix.NoValidBlock), "the series again: 15 loads", "more superblocks"},
		{next(3, 1, nil, matrix.AAEmbeddedOnly), "broker aa --model toy --profile standard", ""},
		{next(3, 1, lag(matrix.ClientLag), matrix.HarnessFault), "the timed client was late", "repair"},
		{next(3, 1, lag(matrix.EvidenceMissing), matrix.HarnessFault), "repair what the evidence names", "late"},
	} {
		if !strings.Contains(c.got, c.want) || c.not != "" && strings.Contains(c.got, c.not) {
			t.Errorf("%q, want %q and not %q", c.got, c.want, c.not)
		}
	}
}
