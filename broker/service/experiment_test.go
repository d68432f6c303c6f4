package service

import (
	"math"
	"slices"
	"testing"

	"enginebroker/matrix"
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
	} {
		cells := JudgeAB(c.report, AB{New: c.arm, Margin: 0.02})
		err := JudgeMargin(cells)
		if (err == nil) != c.holds || err != nil && FailureOf(err).GetExitCode() != 11 {
			t.Errorf("%s: %v", name, err)
		}
		if name == "nothing is shown" && slices.ContainsFunc(cells, func(x ABCell) bool { m := ToMarginCell(x); return m.RatioLo != nil || m.RatioHi != nil }) {
			t.Errorf("%s: a cell without numbers has limits", name)
		}
	}
}
