package service

import (
	"slices"
	"strings"
	"testing"

	"enginebroker/matrix"
	"enginebroker/matrix/gates"
	"enginebroker/matrix/run"
	"enginebroker/matrix/schedule"
)

// A leg whose window the daemon disturbed is void by its record alone: the run asks for its superblock again, the cell
// rests on the others, and the audit derives the same.
func TestDisturbedWindowIsRunAgain(t *testing.T) {
	s := testService(t)
	p := evidencePlan(t, 3, []string{"c1"}, "ours", "vllm")
	passAA(t, s, p)
	r := newEvidence(t, s, "r", p, map[string]float64{"ours": 10, "vllm": 11})
	r.leg = func(l *matrix.LegRecord) {
		rep := &l.Repetitions[0]
		window := rep.End - rep.Start
		rep.Daemon = []matrix.DaemonWork{{Request: "WatchRun", Times: 100, Busy: window / 100}} // all of the budget, and no more
		if l.ID.Superblock == 1 && l.ID.Block == 3 && l.ID.Arm == "ours" {
			rep.Daemon = append(rep.Daemon, matrix.DaemonWork{Request: "ListRuns", Times: 7, Busy: window / 50})
		}
	}
	r.grid(3)
	ev, err := s.evidence(t.Context(), r.led)
	if err != nil {
		t.Fatal(err)
	}
	profile, err := gates.ProfileByName(p.Box)
	if err != nil {
		t.Fatal(err)
	}
	var legs []run.Leg
	for _, l := range ev.grids[0].Legs {
		legs = append(legs, run.Leg{Record: l.Record, Gate: l.Gate, Values: l.Values})
	}
	judge := &liveJudge{plan: p, profile: profile, extended: map[string]int{}}
	next, err := judge.Next(ev.grids[0].Info, ev.grids[0].Loads, legs, nil)
	if err != nil || len(next.Rerun) != 1 || next.Rerun[0].Group != 0 || next.Rerun[0].Replaces != 1 {
		t.Fatalf("after a disturbed window: %+v, %v; want the group's superblock again", next, err)
	}
	r.grids = 0
	r.superblock("boot-0", schedule.Next(p, 0, 3))
	r.close()
	rep := r.report()
	var void []string
	for _, l := range rep.Legs {
		if slices.Contains(l.Gate.Codes, matrix.ClientLag) {
			void = append(void, l.Gate.Detail[matrix.ClientLag])
		}
	}
	if len(void) != 1 || !strings.Contains(void[0], "ListRuns ×7") {
		t.Errorf("void legs %q, want one that names ListRuns", void)
	}
	if a, err := s.Audit(t.Context(), "r"); err != nil || len(a.Findings) != 0 {
		t.Errorf("audit: %+v, %v", a, err)
	}
}
