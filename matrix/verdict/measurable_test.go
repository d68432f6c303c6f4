package verdict_test

import (
	"slices"
	"testing"

	"enginebroker/matrix"
	"enginebroker/matrix/simulate"
	"enginebroker/matrix/verdict"
)

// A metric that nothing here can measure has no cell; it is listed with why. One that some leg has keeps its cell.
func TestUnmeasurableMetrics(t *testing.T) {
	extra := []matrix.Metric{
		{Name: "energy", Class: matrix.ClassEnergy},
		{Name: "memory", Class: matrix.ClassMemory},
		{Name: "prefill", Class: matrix.ClassPhase},
		{Name: "gap", Class: matrix.ClassITL},
	}
	in := func(t *testing.T, change func(*verdict.Leg)) verdict.Input {
		r := newRun(t, 3, "ours", "vllm")
		r.grid(3, values(map[string]float64{"ours": 10, "vllm": 11}))
		for i := range r.grids[0].Legs {
			l := &r.grids[0].Legs[i]
			l.Values["prefill"] = matrix.Value{Metric: "prefill", Why: "the engine reports no prompt count"}
			l.Values["gap"] = matrix.Value{Metric: "gap", Why: string(matrix.ITLCoalesced) + ": chunks are not tokens"}
			if change != nil {
				change(l)
			}
		}
		x := r.input(t)
		x.Metrics = append([]matrix.Metric{simulate.Metric}, extra...)
		return x
	}
	names := func(r verdict.Result) (out []string) {
		for _, c := range r.Cells {
			out = append(out, c.Metric.Name)
		}
		return out
	}
	res := judge(t, in(t, nil))
	if got := names(res); !slices.Equal(got, []string{simulate.Metric.Name, "gap"}) {
		t.Errorf("cells of %v", got)
	}
	for _, want := range []string{"metric energy: the box has no energy counter", "metric memory: the box did not record available memory",
		"metric prefill of ours at c1: the engine reports no prompt count"} {
		if !slices.Contains(res.Absent, want) {
			t.Errorf("absent %q lacks %q", res.Absent, want)
		}
	}
	once := true
	res = judge(t, in(t, func(l *verdict.Leg) {
		l.Record.Env.EnergyMilliJoule = matrix.Some(int64(1))
		if once && l.Record.ID.Arm == "ours" {
			l.Values["prefill"], once = matrix.Value{Metric: "prefill", X: matrix.Some(5.0)}, false
		}
	}))
	// vllm still has no prompt count in any leg, so that its cell stays out; energy could be measured here and is owed.
	if got := names(res); !slices.Equal(got, []string{simulate.Metric.Name, "energy", "gap"}) {
		t.Errorf("cells of %v", got)
	}
}
