package service

import (
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"enginebroker/broker/catalog"
	"enginebroker/broker/config"
	"enginebroker/matrix"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

// What an experiment refuses it refuses before anything is launched, whoever asks.
func TestExperimentsThatMakeNoSense(t *testing.T) {
	s := &Service{}
	for name, q := range map[string]Request{
		"a build against itself":     {Experiment: Experiment{AB: &AB{New: "a", Old: "a"}}},
		"a margin of all":            {Experiment: Experiment{AB: &AB{New: "a", Old: "b", Margin: 1}}},
		"a margin below nothing":     {Experiment: Experiment{AB: &AB{New: "a", Old: "b", Margin: -0.1}}},
		"a margin that is no number": {Experiment: Experiment{AB: &AB{New: "a", Old: "b", Margin: math.NaN()}}},
		"builds and engines":         {Engines: []string{"a"}, Experiment: Experiment{AB: &AB{New: "a", Old: "b"}}},
		"loads and pairs":            {Pairs: []string{"a:b"}, Experiment: Experiment{Reload: &Reload{Instance: "a"}}},
		"too few loads":              {Experiment: Experiment{Reload: &Reload{Instance: "a", Loads: MinReloads - 1}}},
		"too many loads":             {Experiment: Experiment{Reload: &Reload{Instance: "a", Loads: math.MaxInt}}},
		"two points":                 {Points: []string{"c1", "c8"}, Experiment: Experiment{Reload: &Reload{Instance: "a"}}},
		"an A/A of nobody":           {Experiment: Experiment{AA: true}},
		"an A/A of two":              {Engines: []string{"a", "b"}, Experiment: Experiment{AA: true}},
	} {
		if _, err := s.shaped(q); err == nil || FailureOf(err).GetCause() != string(CauseUsage) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A request that cannot be planned is refused without anything being launched, and the refusal names its field.
func TestFieldsOfRequestsThatCannotBePlanned(t *testing.T) {
	c, err := catalog.Load(nil)
	if err != nil {
		t.Fatal(err)
	}
	s := testService(t)
	s.catalog = c
	s.cfg = config.Config{Subject: "a", Instances: []config.Instance{{Label: "a"}, {Label: "b"}}}
	model := c.Names()[0]
	good := func(change func(*Request)) Request {
		q := Request{Model: model}
		change(&q)
		return q
	}
	for name, x := range map[string]struct {
		q     Request
		field string
	}{
		"good":               {good(func(*Request) {}), ""},
		"a model":            {Request{Model: "x"}, "spec.model"},
		"an engine":          {good(func(q *Request) { q.Engines = []string{"a", "x"} }), "spec.engines[1]"},
		"a profile":          {good(func(q *Request) { q.Profile = "x" }), "spec.profile"},
		"a workload":         {good(func(q *Request) { q.Workload = "x" }), "spec.workload"},
		"a point":            {good(func(q *Request) { q.Points = []string{"c1", "x"} }), "spec.points[1]"},
		"a pair":             {good(func(q *Request) { q.Pairs = []string{"a:b", "a:x"} }), "spec.pairs[1]"},
		"a pair of none":     {good(func(q *Request) { q.Engines, q.Pairs = []string{"a"}, []string{"a:b"} }), "spec.pairs[0]"},
		"a budget":           {good(func(q *Request) { q.Budget = -1 }), "spec.budget"},
		"a build":            {good(func(q *Request) { q.AB = &AB{New: "x", Old: "a"} }), "spec.ab.new_build"},
		"an old build":       {good(func(q *Request) { q.AB = &AB{New: "a", Old: "x"} }), "spec.ab.old_build"},
		"a build by itself":  {good(func(q *Request) { q.AB = &AB{New: "a", Old: "a"} }), "spec.ab.old_build"},
		"a margin":           {good(func(q *Request) { q.AB = &AB{New: "a", Old: "b", Margin: 2} }), "spec.ab.margin"},
		"builds and engines": {good(func(q *Request) { q.Engines, q.AB = []string{"a"}, &AB{New: "a", Old: "b"} }), "spec.engines"},
		"loads":              {good(func(q *Request) { q.Reload = &Reload{Instance: "a", Loads: 1} }), "spec.reload.loads"},
		"an instance":        {good(func(q *Request) { q.Reload = &Reload{Instance: "a", With: "x"} }), "spec.reload.with"},
		"a reload's point":   {good(func(q *Request) { q.Points, q.Reload = []string{"x"}, &Reload{Instance: "a"} }), "spec.points[0]"},
		"an A/A of pairs":    {good(func(q *Request) { q.AA, q.Pairs = true, []string{"a:b"} }), "spec.pairs"},
	} {
		_, planned := s.Plan(t.Context(), x.q)
		checked := s.Check(x.q)
		if x.field == "" {
			if checked != nil {
				t.Errorf("%s: %v", name, checked)
			}
			continue
		}
		if checked == nil || planned == nil || planned.Error() != checked.Error() {
			t.Errorf("%s: planned %v, checked %v", name, planned, checked)
		}
		if got := fieldsOf(checked); got != x.field {
			t.Errorf("%s: field %q, want %q", name, got, x.field)
		}
	}
	for name, x := range map[string]struct {
		t     Trial
		field string
	}{
		"a model":   {Trial{Preflight: &PreflightRequest{Model: "x", Engines: []string{"a"}}}, "trial.preflight.model"},
		"an engine": {Trial{Gate: &GateRequest{Model: model, Engines: []string{"a", "x"}}}, "trial.gate.engines[1]"},
		"prompts":   {Trial{Gate: &GateRequest{Model: model, Engines: []string{"a"}, Prompts: -1}}, "trial.gate.prompts"},
		"a check":   {Trial{CheckPin: &PinRequest{Model: model, Label: "x"}}, "trial.check_pin.engine"},
		"a record":  {Trial{RecordPin: &PinAct{Start: PinRequest{Model: "x", Label: "a"}}}, "trial.record_pin.start.model"},
		"a move":    {Trial{Advance: &PinAct{Start: PinRequest{Model: model, Label: "x"}}}, "trial.advance_pin.start.engine"},
	} {
		if got := fieldsOf(s.CheckTrial(x.t)); got != x.field {
			t.Errorf("trial of %s: field %q, want %q", name, got, x.field)
		}
	}
	// Zero that is given is not what is left out.
	zero := int64(0)
	_, err = SpecOf(&brokerv1.RunSpec{Model: new("models/m"), Experiment: &brokerv1.RunSpec_Reload{Reload: &brokerv1.ReloadSpec{Engine: new("engines/a"), Loads: &zero}}})
	if got := fieldsOf(err); got != "spec.reload.loads" {
		t.Errorf("no loads: %v", err)
	}
	_, err = SpecOf(&brokerv1.RunSpec{Model: new("models/m"), Experiment: &brokerv1.RunSpec_Ab{Ab: &brokerv1.AbSpec{NewBuild: new("engines/a"), OldBuild: new("engines/b"), Margin: new(0.0)}}})
	if got := fieldsOf(err); got != "spec.ab.margin" {
		t.Errorf("no margin: %v", err)
	}
	_, err = TrialOf(&brokerv1.TrialSpec{Kind: &brokerv1.TrialSpec_Gate{Gate: &brokerv1.GateSpec{Engines: []string{"engines/a"}, Model: new("models/m"), Prompts: &zero}}})
	if got := fieldsOf(err); got != "trial.gate.prompts" {
		t.Errorf("no prompts: %v", err)
	}
}

// fieldsOf are the fields that the status of an error says cannot be used.
func fieldsOf(err error) string {
	var out []string
	for _, d := range StatusOf(err).Details() {
		if b, ok := d.(*errdetails.BadRequest); ok {
			for _, v := range b.GetFieldViolations() {
				out = append(out, v.GetField())
			}
		}
	}
	return strings.Join(out, " ")
}

// What runs is as long as what was shown, whatever the noise on record says meanwhile.
func TestPlanThatWasShownIsThePlanThatRuns(t *testing.T) {
	q := Request{Model: "m", Experiment: Experiment{AB: &AB{New: "a", Old: "b", Margin: 0.01}}}
	p := Planned{Plan: matrix.Plan{Seed: "9", Groups: []matrix.Group{{Superblocks: make([]matrix.Superblock, 5)}}}}
	shown, err := p.As(q)
	if err != nil {
		t.Fatal(err)
	}
	if shown, err = (&Service{}).shaped(shown); err != nil {
		t.Fatal(err)
	}
	if m := (&Service{}).margined(t.Context(), &shown); m != nil || shown.special.superblocks != 5 || shown.Seed.Or(0) != 9 {
		t.Errorf("%v superblocks, seed %v, margin %v", shown.special.superblocks, shown.Seed, m)
	}
	if q.AB.Superblocks != 0 {
		t.Error("the request that was asked has changed")
	}
}

func TestMarginIsJudged(t *testing.T) {
	of := func(lo, hi float64) matrix.Report {
		c := cell()
		c.Metric.Primary, c.Verdict = true, matrix.Provisional
		c.Numbers = matrix.Some(matrix.Numbers{Interval: matrix.Some(matrix.Interval{Lo: lo, Hi: hi})})
		return matrix.Report{Cells: []matrix.Cell{c}}
	}
	simulated := func(r matrix.Report) matrix.Report {
		r.Cells[0].Simulated = true
		return r
	}
	for name, c := range map[string]struct {
		report matrix.Report
		arm    string
		holds  bool
	}{
		"faster":            {of(0.1, 0.2), "a", true},
		"within":            {of(-0.01, 0.2), "a", true},
		"undecided":         {of(-0.05, 0.2), "a", false},
		"slower":            {of(-0.2, -0.1), "a", false},
		"the other is new":  {of(-0.2, -0.1), "b", true},
		"nothing is shown":  {matrix.Report{Cells: []matrix.Cell{func() matrix.Cell { c := cell(); c.Metric.Primary = true; return c }()}}, "a", false},
		"no primary figure": {matrix.Report{}, "a", false},
		"nobody's":          {simulated(of(-0.2, -0.1)), "a", false},
	} {
		cells := JudgeAB(c.report, AB{New: c.arm, Margin: 0.02})
		err := JudgeMargin(cells)
		if (err == nil) != c.holds || err != nil && FailureOf(err).GetExitCode() != 11 {
			t.Errorf("%s: %v", name, err)
		}
		for _, x := range cells {
			stamped := ToMarginCell(x).GetSimulated()
			if stamped != (name == "nobody's") || stamped && !strings.Contains(err.Error(), "SIMULATED") {
				t.Errorf("%s: stamped %v, %v", name, stamped, err)
			}
		}
		if name == "nothing is shown" && slices.ContainsFunc(cells, func(x ABCell) bool { m := ToMarginCell(x); return m.RatioLo != nil || m.RatioHi != nil }) {
			t.Errorf("%s: a cell without numbers has limits", name)
		}
	}
}
