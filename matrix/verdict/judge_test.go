package verdict_test

import (
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"enginebroker/matrix"
	"enginebroker/matrix/gates"
	"enginebroker/matrix/schedule"
	"enginebroker/matrix/simulate"
	"enginebroker/matrix/stats"
	"enginebroker/matrix/verdict"

	"github.com/google/go-cmp/cmp"
)

var cmpOpts = cmp.Exporter(func(reflect.Type) bool { return true })

// run is a scripted run of real-looking arms: pinned flat clocks, every fact observed, nothing simulated.
type run struct {
	plan  matrix.Plan
	grids []verdict.Grid
}

func newRun(t testing.TB, superblocks int, arms ...string) *run {
	t.Helper()
	p, err := simulate.Plan(arms, superblocks, 7)
	if err != nil {
		t.Fatal(err)
	}
	for i := range p.Groups[0].Arms {
		p.Groups[0].Arms[i].Simulated = false
		p.Groups[0].Arms[i].Engine = "engine-" + p.Groups[0].Arms[i].Label
	}
	return &run{plan: p}
}

// jitter is a small reproducible noise of a load, ±0.1 %.
func jitter(l simulate.Load) float64 {
	return 1 + 0.001*math.Sin(float64(l.Grid*31+l.Seq*7+len(l.Arm)))
}

// values scripts constant values per arm with jitter.
func values(by map[string]float64) simulate.Script {
	return func(l simulate.Load) float64 { return by[l.Arm] * jitter(l) }
}

// grid adds a grid of n superblocks, with flat clocks.
func (r *run) grid(n int, script simulate.Script) *verdict.Grid {
	g := simulate.NewGrid(r.plan, len(r.grids), n)
	r.grids = append(r.grids, g)
	last := &r.grids[len(r.grids)-1]
	for j := range n {
		r.more(last, schedule.Next(r.plan, 0, j), script)
	}
	return last
}

func (r *run) more(g *verdict.Grid, sb matrix.Superblock, script simulate.Script) {
	from := len(g.Legs)
	simulate.Append(g, r.plan, []matrix.Superblock{sb}, script)
	for i := from; i < len(g.Legs); i++ {
		seconds := make([]matrix.ClockSecond, 40)
		for k := range seconds {
			seconds[k] = matrix.ClockSecond{MHz: 2184, Util: 96}
		}
		g.Legs[i].Record.Clock = matrix.Some(matrix.Clock{Seconds: seconds, BootID: g.Info.BootID, Persistence: matrix.Some(true),
			Static: matrix.Facts{{Name: "uuid", Value: "GPU-1"}}})
	}
}

// void marks the scored legs of an arm in one block of a superblock.
func void(g *verdict.Grid, superblock, half int, arm string, codes ...matrix.LegCode) {
	for i := range g.Legs {
		id := g.Legs[i].Record.ID
		if !id.LeadIn && id.Superblock == superblock && id.Block%2 == half && (arm == "" || id.Arm == arm) {
			for _, c := range codes {
				g.Legs[i].Gate = gates.Add(g.Legs[i].Gate, c, "scripted")
			}
		}
	}
}

// clock sets the flat clock of an arm's scored legs in one superblock.
func clock(g *verdict.Grid, superblock int, arm string, mhz int64) {
	for i := range g.Legs {
		if id := g.Legs[i].Record.ID; !id.LeadIn && id.Superblock == superblock && id.Arm == arm {
			c, _ := g.Legs[i].Record.Clock.Get()
			c.Seconds = slices.Clone(c.Seconds)
			for k := range c.Seconds {
				c.Seconds[k].MHz = mhz
			}
			g.Legs[i].Record.Clock = matrix.Some(c)
		}
	}
}

func (r *run) input(t testing.TB) verdict.Input {
	t.Helper()
	in, err := simulate.Input(r.plan, r.grids...)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func judge(t testing.TB, in verdict.Input) verdict.Result {
	t.Helper()
	res, err := verdict.Judge(in)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func want(t *testing.T, c matrix.Cell, v matrix.Verdict, dir matrix.Direction, codes ...matrix.Reason) {
	t.Helper()
	got := c.Codes()
	slices.Sort(got)
	slices.Sort(codes)
	if c.Verdict != v || c.Direction != dir || !slices.Equal(got, codes) {
		t.Errorf("%s is %v %s %v, want %v %s %v", c.ID, c.Verdict, c.Direction, got, v, dir, codes)
		for _, r := range c.Reasons {
			t.Logf("  %s: %s", r.Code, r.Detail)
		}
	}
	for _, r := range c.Reasons {
		if r.Detail == "" || r.Next == "" {
			t.Errorf("%s: reason %s has detail %q and next %q: a reason says what exactly and what would release it", c.ID, r.Code, r.Detail, r.Next)
		}
	}
}

func twoGrids(t testing.TB, by map[string]float64, arms ...string) *run {
	r := newRun(t, 3, arms...)
	r.grid(3, values(by))
	r.grid(2, values(by))
	return r
}

// §0, §4.5: six blocks, a second boot, a dedicated A/A, everything observed.
func TestEstablished(t *testing.T) {
	c := judge(t, twoGrids(t, map[string]float64{"ours": 10.4, "vllm": 10}, "ours", "vllm").input(t)).Cells[0]
	want(t, c, matrix.Established, matrix.DirFaster)
	n, ok := c.Numbers.Get()
	i, ok2 := n.Interval.Get()
	if !ok || !ok2 || !n.ShowRatio || i.Kind != "grid_envelope" || math.Abs(i.Ratio-1.04) > 0.002 || !(i.RatioLo < i.Ratio && i.Ratio < i.RatioHi) || c.Blocks != 6 {
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
	for _, l := range in.Grids[0].Legs {
		if l.Gate.Cause == matrix.CauseEngine {
			in.Released = append(in.Released, l.Record.ID)
		}
	}
	r.more(&in.Grids[0], schedule.Next(r.plan, 0, 3), values(map[string]float64{"a": 11, "b": 10, "c": 10}))
	if c := judge(t, in).Cells[1]; slices.Contains(c.Codes(), matrix.EngineVoidOnRecord) || c.Blocks != 6 {
		t.Errorf("released by an operator re-run: %v, %d blocks", c.Codes(), c.Blocks)
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
	if d := cmp.Diff(interval(judge(t, before.input(t)).Cells[1]), interval(res.Cells[1])); d != "" {
		t.Errorf("a re-run changed an unaffected pair:\n%s", d)
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
	if n, _ := c.Numbers.Get(); c.Blocks != 6 || math.Abs(n.Interval.Or(matrix.Interval{}).Ratio-1.1) > 0.01 {
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

// §3.6: without a dedicated A/A the embedded one stands in, and a direction must be above its noise.
func TestAA(t *testing.T) {
	r := twoGrids(t, map[string]float64{"a": 11, "b": 10}, "a", "b")
	in := r.input(t)
	for aa, reason := range map[verdict.AA]matrix.Reason{verdict.AAFail: matrix.AAFailed, verdict.AAMissing: matrix.AAEmbeddedOnly} {
		in.AA = aa
		if c := judge(t, in).Cells[0]; !slices.Contains(c.Codes(), reason) {
			t.Errorf("%s: %v", aa, c.Codes())
		}
	}
	in.AA = "unknown"
	if _, err := verdict.Judge(in); err == nil {
		t.Error("unknown A/A evidence is accepted")
	}
	in.AA = verdict.AAMissing
	for g := range in.Grids { // lead-ins with noise of ±2 % but a steady effect of 1.2 % in the blocks
		for i := range in.Grids[g].Legs {
			l := &in.Grids[g].Legs[i]
			x := 10.0
			if l.Record.ID.Arm == "a" {
				x = 10.12
			}
			if l.Record.ID.LeadIn {
				x *= 1 + 0.018*float64(1-2*(l.Record.ID.Superblock%2))
			}
			l.Values = map[string]matrix.Value{simulate.Metric.Name: {X: matrix.Some(x)}}
		}
	}
	in.Plan.Method.Margins = map[string]string{"integral": "0.005"}
	if c := judge(t, in).Cells[0]; !slices.Contains(c.Codes(), matrix.WideCI) || c.Direction != matrix.DirNone {
		t.Errorf("an effect below the noise floor: %s %v", c.Direction, c.Codes())
	}
	in.AA = verdict.AAPass
	if c := judge(t, in).Cells[0]; c.Direction != matrix.DirFaster {
		t.Errorf("with a dedicated A/A: %s %v", c.Direction, c.Codes())
	}
}

// §3.6, §5: a jump between adjacent loads of one arm is a suspect state; twelve loads of one state clear it, two states do not.
func TestLoadStates(t *testing.T) {
	r := twoGrids(t, map[string]float64{"a": 12, "b": 10}, "a", "b")
	for i := range r.grids[0].Legs {
		if l := &r.grids[0].Legs[i]; l.Record.ID.LeadIn {
			l.Values = map[string]matrix.Value{simulate.Metric.Name: {X: matrix.Some(l.Values[simulate.Metric.Name].X.Or(0) * 1.03)}}
		}
	}
	in := r.input(t)
	suspect := func() []matrix.Reason { return judge(t, in).Cells[0].Codes() }
	if !slices.Contains(suspect(), matrix.LoadStateSuspect) {
		t.Errorf("%v", suspect())
	}
	clean, err := stats.Reload([]float64{10, 10.01, 10.02, 10, 10.01, 10.02, 10, 10.01, 10.02, 10, 10.01, 10.02}, stats.ReloadMargin)
	if err != nil {
		t.Fatal(err)
	}
	in.Reloads = []verdict.Reload{{Arm: "a", Result: clean, ID: "r1"}, {Arm: "b", Result: clean, ID: "r2"}}
	if slices.Contains(suspect(), matrix.LoadStateSuspect) {
		t.Errorf("not cleared: %v", suspect())
	}
	two, err := stats.Reload([]float64{10, 9, 10.01, 9.01, 10.02, 9.02, 10, 9}, stats.ReloadMargin)
	if err != nil {
		t.Fatal(err)
	}
	in.Reloads[0].Result = two
	c := judge(t, in).Cells[0]
	if !slices.Contains(c.Codes(), matrix.LoadStateMulti) || c.Verdict != matrix.Inconclusive {
		t.Errorf("%v %v", c.Verdict, c.Codes())
	}
	if n, _ := c.Numbers.Get(); n.ShowRatio || n.Interval.Or(matrix.Interval{}).Ratio != 0 || n.Detected != "" {
		t.Errorf("an inconclusive cell has a ratio or a direction: %+v", n)
	}
}

// §4.3, §4.5: what each arm must show, and what it costs where it does not.
func TestFactsAndArms(t *testing.T) {
	ready := func(g *verdict.Grid, arm string, edit func(*matrix.Ready)) {
		for i := range g.Loads {
			if g.Loads[i].Slot.Arm == arm {
				r, _ := g.Loads[i].Ready.Get()
				r.Facts = slices.Clone(r.Facts)
				edit(&r)
				g.Loads[i].Ready = matrix.Some(r)
			}
		}
	}
	fact := func(name, value string) func(*matrix.Ready) {
		return func(r *matrix.Ready) {
			for i := range r.Facts {
				if r.Facts[i].Name == name {
					r.Facts[i].Value = value
				}
			}
		}
	}
	claimed := func(name string) func(*matrix.Ready) {
		return func(r *matrix.Ready) {
			for i := range r.Facts {
				if r.Facts[i].Name == name {
					r.Facts[i].Standing = matrix.Claimed
				}
			}
		}
	}
	for _, c := range []struct {
		name string
		edit func(*run)
		want matrix.Reason
	}{
		{"kv dtype", func(r *run) { ready(&r.grids[0], "b", fact(matrix.FactKVDtype, "fp8")) }, matrix.KVDtypeMismatch},
		{"prefix cache", func(r *run) { ready(&r.grids[0], "b", fact(matrix.FactPrefixCache, "on")) }, matrix.PrefixCacheMismatch},
		{"compute", func(r *run) { ready(&r.grids[0], "b", fact(matrix.FactComputeDtype, "float32")) }, matrix.ComputeDtypeMismatch},
		{"speculation", func(r *run) { ready(&r.grids[0], "b", fact(matrix.FactSpeculation, "mtp")) }, matrix.DraftedVsRaw},
		{"limits", func(r *run) { ready(&r.grids[0], "b", func(x *matrix.Ready) { x.Granted.Concurrency = 4 }) }, matrix.LimitsMismatch},
		{"claimed only", func(r *run) { ready(&r.grids[0], "b", claimed(matrix.FactPrefixCache)) }, matrix.FactUnobserved},
		{"no build", func(r *run) { ready(&r.grids[0], "b", fact(matrix.FactBuild, "")) }, matrix.BuildUnrecorded},
		{"claimed status", func(r *run) { r.plan.Groups[0].Arms[1].Status = matrix.StatusClaimed }, matrix.NotPreflighted},
		{"no pin", func(r *run) { r.plan.Groups[0].Arms[1].Pin = "" }, matrix.ReferenceNotPin},
		{"attached", func(r *run) { r.plan.Groups[0].Arms[1].Attached = true }, matrix.AttachedServer},
		{"simulated", func(r *run) { r.plan.Groups[0].Arms[1].Simulated = true }, matrix.Simulated},
		{"warm start", func(r *run) { r.grids[0].Loads[3].Env.ThermalOffset = true }, matrix.ThermalStartOffset},
		{"pin mismatch", func(r *run) {
			r.grids[0].Loads[3].Pin = matrix.Some(matrix.PinCheck{Pin: "p", Mismatch: []matrix.PinMismatch{{Field: "version"}}})
		}, matrix.IdentityAssertFailed},
		{"absent box gate", func(r *run) {
			for i := range r.grids[0].Legs {
				r.grids[0].Legs[i].Gate.Absent = []string{string(matrix.SwapActivity)}
			}
		}, matrix.BoxUncertified},
		{"another card", func(r *run) {
			for i := range r.grids[1].Legs {
				c, _ := r.grids[1].Legs[i].Record.Clock.Get()
				c.Static = matrix.Facts{{Name: "uuid", Value: "GPU-2"}}
				r.grids[1].Legs[i].Record.Clock = matrix.Some(c)
			}
		}, matrix.MachineMismatch},
		{"prompt tokens in every leg", func(r *run) {
			for g := range r.grids {
				for sb := range 3 {
					void(&r.grids[g], sb, 0, "b", matrix.PromptTokensCode)
					void(&r.grids[g], sb, 1, "b", matrix.PromptTokensCode)
				}
			}
		}, matrix.PromptTokensMismatch},
		{"canary in every load", func(r *run) {
			for g := range r.grids {
				for sb := range 3 {
					void(&r.grids[g], sb, 0, "b", matrix.CanaryFailedCode)
					void(&r.grids[g], sb, 1, "b", matrix.CanaryFailedCode)
				}
			}
		}, matrix.CanaryFailed},
		{"clocks apart in one block", func(r *run) { clock(&r.grids[0], 1, "a", 2140) }, matrix.FewBlocks},
		{"clocks move over the series", func(r *run) {
			for i, mhz := range []int64{2184, 2100, 2000} {
				clock(&r.grids[0], i, "a", mhz)
				clock(&r.grids[0], i, "b", mhz)
			}
		}, matrix.ClockSeries},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := twoGrids(t, map[string]float64{"a": 11, "b": 10}, "a", "b")
			c.edit(r)
			cell := judge(t, r.input(t)).Cells[0]
			if !slices.Contains(cell.Codes(), c.want) {
				t.Errorf("%v lack %s", cell.Codes(), c.want)
			}
			v, err := c.want.Verdict()
			if err != nil || cell.Verdict < v {
				t.Errorf("verdict %v is milder than %v (%v)", cell.Verdict, v, err)
			}
		})
	}
	// REFERENCE_NOT_PIN is about other engines than the subject's: two builds of one engine need no pin.
	r := twoGrids(t, map[string]float64{"a": 11, "b": 10}, "a", "b")
	for i := range r.plan.Groups[0].Arms {
		r.plan.Groups[0].Arms[i].Engine, r.plan.Groups[0].Arms[i].Pin = "same", ""
	}
	want(t, judge(t, r.input(t)).Cells[0], matrix.Established, matrix.DirFaster)
}

// §1, §4.5: what holds for one class of metric.
func TestMetricClasses(t *testing.T) {
	metric := func(class matrix.MetricClass, p int) matrix.Metric {
		m := simulate.Metric
		m.Class, m.Percentile = class, p
		return m
	}
	r := twoGrids(t, map[string]float64{"a": 11, "b": 10}, "a", "b")
	in := r.input(t)
	in.Metrics = []matrix.Metric{metric(matrix.ClassTail, 90)}
	if c := judge(t, in).Cells[0]; !slices.Contains(c.Codes(), matrix.TailUndersampled) {
		t.Errorf("tail of no requests: %v", c.Codes())
	}
	in.Metrics = []matrix.Metric{metric(matrix.ClassPhase, 0)}
	want(t, judge(t, in).Cells[0], matrix.Established, matrix.DirFaster) // pinned flat
	for g := range in.Grids {
		for i := range in.Grids[g].Legs {
			c, _ := in.Grids[g].Legs[i].Record.Clock.Get()
			c.Seconds = slices.Clone(c.Seconds)
			c.Seconds[3].MHz = 2240
			in.Grids[g].Legs[i].Record.Clock = matrix.Some(c)
		}
	}
	want(t, judge(t, in).Cells[0], matrix.Provisional, matrix.DirFaster, matrix.ClockHeadUnobserved)
	in.Metrics = []matrix.Metric{metric(matrix.ClassITL, 0)}
	in.Grids[0].Legs[2].Gate.Flags = []string{gates.FlagITLCoalesced}
	c := judge(t, in).Cells[0]
	want(t, c, matrix.Inconclusive, matrix.DirNone, matrix.ITLCoalesced)
	for g := range in.Grids { // the metrics room gives no ITL of such a leg at all
		for i := range in.Grids[g].Legs {
			in.Grids[g].Legs[i].Values = map[string]matrix.Value{simulate.Metric.Name: {Why: "ITL_COALESCED"}}
		}
	}
	bare := in
	bare.AA = verdict.AAPass
	want(t, judge(t, bare).Cells[0], matrix.Inconclusive, matrix.DirNone, matrix.ITLCoalesced)
	in = twoGrids(t, map[string]float64{"a": 11, "b": 10}, "a", "b").input(t)
	if c.Numbers.Present() {
		t.Error("an ITL cell whose gaps cannot be derived has numbers")
	}
	in.Metrics = []matrix.Metric{metric(matrix.ClassIntegral, 0)}
	in.Plan.Method.Primary = []string{"another"}
	if c := judge(t, in).Cells[0]; c.Direction != matrix.DirNone || !c.Numbers.Present() {
		t.Errorf("a secondary metric: %s, numbers %v", c.Direction, c.Numbers.Present())
	}
	in.Metrics[0].Class = "unknown"
	if _, err := verdict.Judge(in); err == nil {
		t.Error("an unknown class is accepted")
	}
}

// Issue 6, bad input: a named reason, never a ratio.
func TestBadValues(t *testing.T) {
	for name, x := range map[string]matrix.Opt[float64]{"NaN": matrix.Some(math.NaN()), "+Inf": matrix.Some(math.Inf(1)), "-Inf": matrix.Some(math.Inf(-1)),
		"zero": matrix.Some(0.0), "negative": matrix.Some(-1.0), "absent": {}, "tiny": matrix.Some(5e-324)} {
		r := twoGrids(t, map[string]float64{"a": 11, "b": 10}, "a", "b")
		for i := range r.grids[0].Legs {
			if id := r.grids[0].Legs[i].Record.ID; id.Arm == "a" && !id.LeadIn {
				r.grids[0].Legs[i].Values = map[string]matrix.Value{simulate.Metric.Name: {X: x, Why: "scripted"}}
			}
		}
		c := judge(t, r.input(t)).Cells[0]
		if c.Verdict < matrix.Withheld && name != "tiny" || c.Verdict < matrix.Withheld && c.Numbers.Or(matrix.Numbers{}).Interval.Or(matrix.Interval{Ratio: 1}).Ratio == 0 {
			t.Errorf("%s: %v %v", name, c.Verdict, c.Codes())
		}
	}
}

func TestForeignEvidence(t *testing.T) {
	for name, edit := range map[string]func(*verdict.Grid){
		"group":     func(g *verdict.Grid) { g.Legs[0].Record.ID.Group = "x" },
		"arm":       func(g *verdict.Grid) { g.Legs[0].Record.ID.Arm = "x" },
		"point":     func(g *verdict.Grid) { g.Legs[0].Record.ID.Point = "x" },
		"grid":      func(g *verdict.Grid) { g.Legs[0].Record.ID.Grid = 9 },
		"block":     func(g *verdict.Grid) { g.Legs[1].Record.ID.Block = -3 },
		"load":      func(g *verdict.Grid) { g.Loads[0].Group = "x" },
		"load arm":  func(g *verdict.Grid) { g.Loads[0].Slot.Arm = "x" },
		"load grid": func(g *verdict.Grid) { g.Loads[0].Grid = 9 },
	} {
		r := newRun(t, 3, "a", "b")
		edit(r.grid(3, values(map[string]float64{"a": 11, "b": 10})))
		if _, err := verdict.Judge(r.input(t)); err == nil {
			t.Errorf("a foreign %s is accepted", name)
		}
	}
}

func TestHoldAndRefusal(t *testing.T) {
	r := twoGrids(t, map[string]float64{"a": 11, "b": 10}, "a", "b")
	r.plan.Refusals = []matrix.Refusal{{Pair: matrix.NewPair("b", "z"), Reason: matrix.NoCommonQuant, Detail: "nothing in common", Fix: "convert"}}
	in := r.input(t)
	in.Holds = []verdict.Hold{{Pair: matrix.NewPair("a", "b"), Why: "the cooler was replaced"}, {Point: "c99", Why: "elsewhere"}}
	res := judge(t, in)
	want(t, res.Cells[0], matrix.Withheld, matrix.DirNone, matrix.OperatorHold)
	want(t, res.Cells[1], matrix.NotComparable, matrix.DirNone, matrix.NoCommonQuant)
}

// §3.4 (ii): the mirrored series gives the mirrored cell.
func TestAntisymmetry(t *testing.T) {
	mirror := map[matrix.Direction]matrix.Direction{matrix.DirFaster: matrix.DirSlower, matrix.DirSlower: matrix.DirFaster,
		matrix.DirEquivalent: matrix.DirEquivalent, matrix.DirNone: matrix.DirNone}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		effect, noise := math.Exp(0.06*rng.Float64()-0.03), 0.02*rng.Float64()
		draws := make([]float64, 64)
		for i := range draws {
			draws[i] = math.Exp(noise * rng.NormFloat64())
		}
		of := func(better string) matrix.Cell {
			r := newRun(t, 3, "a", "b")
			r.grid(3, func(l simulate.Load) float64 {
				// The better arm and its loads keep their values under either name.
				x := 10.0
				if l.Arm == better {
					x *= effect
				}
				k := 2 * max(0, l.Block)
				if l.LeadIn {
					k = 40 + l.Superblock
				} else if l.Arm == better {
					k++
				}
				return x * draws[k]
			})
			in := r.input(t)
			in.Profile.Drift = matrix.Opt[float64]{} // which arm opens a superblock differs between the two
			return judge(t, in).Cells[0]
		}
		x, y := of("a"), of("b")
		if x.Direction != mirror[y.Direction] || x.Verdict != y.Verdict {
			t.Fatalf("effect %v noise %v: %v %s %v and %v %s %v", effect, noise, x.Verdict, x.Direction, x.Codes(), y.Verdict, y.Direction, y.Codes())
		}
		nx, _ := x.Numbers.Get()
		ny, _ := y.Numbers.Get()
		ix, _ := nx.Interval.Get()
		iy, _ := ny.Interval.Get()
		for _, d := range []float64{ix.Theta + iy.Theta, ix.Lo + iy.Hi, ix.Hi + iy.Lo} {
			if math.Abs(d) > 1e-12 {
				t.Fatalf("not mirrored: %+v and %+v", ix, iy)
			}
		}
	}
}

// Equal evidence in any order gives equal cells, byte for byte.
func TestPermutation(t *testing.T) {
	r := twoGrids(t, map[string]float64{"a": 10.2, "b": 10, "c": 9.9}, "a", "b", "c")
	void(&r.grids[0], 1, 0, "b", matrix.SwapActivity, matrix.Cotenant)
	void(&r.grids[0], 2, 1, "c", matrix.FailedRequests, matrix.BufferedStream)
	in := r.input(t)
	first := judge(t, in)
	rng := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		for g := range in.Grids {
			in.Grids[g].Legs, in.Grids[g].Loads = slices.Clone(in.Grids[g].Legs), slices.Clone(in.Grids[g].Loads)
			rng.Shuffle(len(in.Grids[g].Legs), func(i, j int) { l := in.Grids[g].Legs; l[i], l[j] = l[j], l[i] })
			rng.Shuffle(len(in.Grids[g].Loads), func(i, j int) { l := in.Grids[g].Loads; l[i], l[j] = l[j], l[i] })
		}
		if d := cmp.Diff(first, judge(t, in), cmpOpts); d != "" {
			t.Fatalf("the order of the evidence shows:\n%s", d)
		}
	}
}

// Issue 6: judge 10,000 cells × 12 blocks in at most a second.
func BenchmarkJudge10000Cells(b *testing.B) {
	r := newRun(b, 6, "a", "b", "c", "d", "e")
	for i := range 99 {
		r.plan.Method.Points = append(r.plan.Method.Points, matrix.Point{ID: "p" + strconv.Itoa(i)})
	}
	r.grid(6, values(map[string]float64{"a": 10, "b": 10.1, "c": 10.2, "d": 10.3, "e": 10.4}))
	in := r.input(b)
	for i := range 10 {
		m := simulate.Metric
		if i > 0 {
			m.Name += strconv.Itoa(i)
			m.Primary = i < 3
		}
		in.Metrics = append(in.Metrics[:i:i], m)
	}
	for g := range in.Grids {
		for i := range in.Grids[g].Legs {
			l := &in.Grids[g].Legs[i]
			v := l.Values[simulate.Metric.Name]
			l.Values = map[string]matrix.Value{}
			for _, m := range in.Metrics {
				l.Values[m.Name] = v
			}
		}
	}
	for b.Loop() {
		if res := judge(b, in); len(res.Cells) != 10_000 {
			b.Fatalf("%d cells", len(res.Cells))
		}
	}
}
