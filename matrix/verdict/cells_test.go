package verdict_test

import (
	"math"
	"slices"
	"strconv"
	"testing"

	"enginebroker/matrix"
	"enginebroker/matrix/gates"
	"enginebroker/matrix/simulate"
	"enginebroker/matrix/stats"
	"enginebroker/matrix/verdict"
)

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
	if n, _ := c.Numbers.Get(); n.ShowRatio || n.Interval.Or(matrix.Interval{}).Ratio.Present() || n.Detected != "" {
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

// A metric that some legs alone can tell is withheld by itself: the A/A of its series is no less known.
func TestWithheldMetricKeepsTheAAOfItsSeries(t *testing.T) {
	r := twoGrids(t, map[string]float64{"a": 11, "b": 10}, "a", "b")
	in := r.input(t)
	gap := simulate.Metric
	gap.Name, gap.Class = "gap", matrix.ClassITL
	in.Metrics, in.AA = append(in.Metrics, gap), verdict.AAMissing
	for g := range in.Grids {
		for i := range in.Grids[g].Legs {
			l := &in.Grids[g].Legs[i]
			l.Values = map[string]matrix.Value{simulate.Metric.Name: l.Values[simulate.Metric.Name]}
			if id := l.Record.ID; id.Superblock == 0 {
				l.Values["gap"] = matrix.Value{X: matrix.Some(0.01)}
			} else {
				l.Gate.Flags = []string{gates.FlagITLCoalesced}
			}
		}
	}
	for _, c := range judge(t, in).Cells {
		if slices.Contains(c.Codes(), matrix.AAMissing) || !slices.Contains(c.Codes(), matrix.AAEmbeddedOnly) {
			t.Errorf("%s: %v %v", c.ID, c.Verdict, c.Codes())
		}
		if c.ID.Metric == "gap" && (c.Verdict != matrix.Inconclusive || c.Numbers.Present()) {
			t.Errorf("%s: %v %v", c.ID, c.Verdict, c.Codes())
		}
	}
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
	for name, c := range map[string]struct {
		x    matrix.Opt[float64]
		want matrix.Reason
	}{
		"NaN": {matrix.Some(math.NaN()), matrix.HarnessFault}, "+Inf": {matrix.Some(math.Inf(1)), matrix.HarnessFault}, "-Inf": {matrix.Some(math.Inf(-1)), matrix.HarnessFault},
		"zero": {matrix.Some(0.0), matrix.NoValidBlock}, "negative": {matrix.Some(-1.0), matrix.NoValidBlock}, "absent": {matrix.Opt[float64]{}, matrix.NoValidBlock},
	} {
		r := twoGrids(t, map[string]float64{"a": 11, "b": 10}, "a", "b")
		spoil(&r.grids[0], "a", -1, c.x)
		cell := judge(t, r.input(t)).Cells[0]
		if !slices.Contains(cell.Codes(), c.want) || cell.Verdict < matrix.Withheld || cell.Numbers.Present() || cell.Direction != matrix.DirNone {
			t.Errorf("%s: %v %v, numbers %v, want %s", name, cell.Verdict, cell.Codes(), cell.Numbers.Present(), c.want)
		}
	}
}

// spoil sets the value of an arm's scored legs, of one superblock or of all (-1).
func spoil(g *verdict.Grid, arm string, superblock int, x matrix.Opt[float64]) {
	for i := range g.Legs {
		if id := g.Legs[i].Record.ID; id.Arm == arm && !id.LeadIn && (superblock < 0 || id.Superblock == superblock) {
			g.Legs[i].Values = map[string]matrix.Value{simulate.Metric.Name: {X: x, Why: "scripted"}}
		}
	}
}

// n = 0, 1, 2 and 3 blocks: a superblock that was cut short leaves one.
func TestFewBlocks(t *testing.T) {
	for n, want := range []matrix.Reason{matrix.NoValidBlock, matrix.InsufficientBlocks, matrix.InsufficientBlocks, matrix.FewBlocks} {
		r := newRun(t, 3, "a", "b")
		g := r.grid(2, values(map[string]float64{"a": 11, "b": 10}))
		g.Target = map[string]int{r.plan.Groups[0].ID: 2}
		g.Legs = slices.DeleteFunc(g.Legs, func(l verdict.Leg) bool { return !l.Record.ID.LeadIn && l.Record.ID.Block >= n })
		c := judge(t, r.input(t)).Cells[0]
		if c.Blocks != n || !slices.Contains(c.Codes(), want) || n < 3 && (c.Numbers.Present() || c.Direction != matrix.DirNone) {
			t.Errorf("%d blocks: %d, %v %v, numbers %v", n, c.Blocks, c.Verdict, c.Codes(), c.Numbers.Present())
		}
	}
}

// A thousand cells: those of a bad arm are named and show nothing, and no other cell is touched.
func TestThousandCells(t *testing.T) {
	r := newRun(t, 3, "a", "b", "c", "d", "e")
	for i := range 99 {
		r.plan.Method.Points = append(r.plan.Method.Points, matrix.Point{ID: "p" + strconv.Itoa(i)})
	}
	g := r.grid(3, values(map[string]float64{"a": 10, "b": 10.5, "c": 11, "d": 11.5, "e": 12}))
	spoil(g, "e", 1, matrix.Some(math.NaN()))
	res := judge(t, r.input(t))
	if len(res.Cells) != 1000 {
		t.Fatalf("%d cells", len(res.Cells))
	}
	for _, c := range res.Cells {
		bad := c.ID.Pair.A == "e" || c.ID.Pair.B == "e"
		if bad != slices.Contains(c.Codes(), matrix.HarnessFault) || bad == c.Numbers.Present() || !bad && (c.Blocks != 6 || c.Direction != matrix.DirSlower) {
			t.Fatalf("%s: %v %s %v, %d blocks, numbers %v", c.ID, c.Verdict, c.Direction, c.Codes(), c.Blocks, c.Numbers.Present())
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
