package daemon

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"enginebroker/broker/service"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

func trial() *brokerv1.TrialSpec {
	return service.ToTrial(service.Trial{Preflight: &service.PreflightRequest{Engines: []string{"a"}, Model: "m"}})
}

// A trial goes the way of a run: it waits its turn, is told by events, and what came of it is there for whoever asks later.
func TestTrialFromCreateToEnd(t *testing.T) {
	f, s, _, let := occupied(t)
	req := &brokerv1.CreateRunRequest{Trial: trial(), RunId: new("t1"), RequestId: new("once")}
	r, err := s.runs.CreateRun(t.Context(), req)
	if err != nil || r.GetRun().GetQueuePosition() != 1 || r.GetRun().GetModel() != "m" || !proto.Equal(r.GetRun().GetTrial(), trial()) {
		t.Fatalf("%v, %v", r, err)
	}
	if again, err := s.runs.CreateRun(t.Context(), req); err != nil || again.GetRun().GetName() != "runs/t1" {
		t.Errorf("sent again: %v, %v", again, err)
	}
	other := proto.CloneOf(req)
	other.Trial = service.ToTrial(service.Trial{Gate: &service.GateRequest{Engines: []string{"a"}, Model: "m"}})
	if _, err := s.runs.CreateRun(t.Context(), other); reason(err) != "AlreadyExists REQUEST_ID_REUSED" {
		t.Errorf("the same id with other content: %v", err)
	}
	close(let)
	if got := fmt.Sprint(states(s.events(t, "t1", ""))); got != "[QUEUED PREPARING RUNNING COMPLETE]" {
		t.Errorf("states %s", got)
	}
	check := func(s *server) {
		t.Helper()
		g, err := s.runs.GetRun(t.Context(), &brokerv1.GetRunRequest{Name: new("runs/t1")})
		if p := g.GetRun().GetResult().GetPreflights(); err != nil || len(p) != 1 || p[0].GetFailure().GetCode() != "exited" || g.GetRun().GetResult().GetPassed() {
			t.Errorf("%v, %v", g, err)
		}
	}
	check(s)
	if list, err := s.Runs(t.Context()); err != nil || len(list) != 1 || list[0].Name != "r1" {
		t.Errorf("a listing of runs has %v, %v", list, err)
	}
	if _, err := s.runs.ResumeRun(t.Context(), &brokerv1.ResumeRunRequest{Name: new("runs/t1")}); reason(err) != "FailedPrecondition RUN_UNBEGUN" {
		t.Errorf("resumed: %v", err)
	}
	s.stop()
	check(serve(t, f, true))
	if len(f.tried) != 1 {
		t.Errorf("tried %d times", len(f.tried))
	}
}

func TestTrialIsCancelled(t *testing.T) {
	f := newFake(t)
	began, let := make(chan string, 1), make(chan struct{})
	f.run = hold(began, let)
	s := serve(t, f, true)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-began; cancel() }()
	_, err := s.Preflight(ctx, service.PreflightRequest{Engines: []string{"a"}, Model: "m"}, func(service.Event) {})
	if err == nil || service.FailureOf(err).GetExitCode() != 130 {
		t.Errorf("a trial whose client was interrupted: %v", err)
	}
	if got := fmt.Sprint(states(s.events(t, "made", ""))); got != "[QUEUED PREPARING RUNNING CANCELLING CANCELLED]" {
		t.Errorf("states %s", got)
	}
}

// A trial that its daemon's end cut off is made by the next one: nothing of it is evidence.
func TestTrialIsMadeAgainByTheNextDaemon(t *testing.T) {
	f := newFake(t)
	began, let := make(chan string, 2), make(chan struct{})
	f.run = hold(began, let)
	s := serve(t, f, true)
	if _, err := s.runs.CreateRun(t.Context(), &brokerv1.CreateRunRequest{RunId: new("t1"), Trial: service.ToTrial(service.Trial{RecordPin: &service.PinAct{Pin: "ref",
		Start: service.PinRequest{Label: "a", Model: "m"}, Act: service.Act{By: "ana", Why: "first"}}})}); err != nil {
		t.Fatal(err)
	}
	<-began
	s.stop()
	close(let)
	s = serve(t, f, true)
	got := states(s.events(t, "t1", ""))
	if got[len(got)-1] != "COMPLETE" || len(f.tried) != 2 || len(f.resumed) != 0 {
		t.Errorf("states %v, tried %d times, resumed %v", got, len(f.tried), f.resumed)
	}
	if act := f.tried[1].RecordPin.Act; act.By != "ana" || act.Why != "first" || act.At == "" {
		t.Errorf("the pin is recorded as %+v", act)
	}
}

// While another broker holds the box a trial waits for it, as long as it may.
func TestTrialWaitsForTheBox(t *testing.T) {
	f := newFake(t)
	f.busy = true
	s := serve(t, f, true)
	const wait = 200 * time.Millisecond
	began := time.Now()
	if _, err := s.runs.CreateRun(t.Context(), &brokerv1.CreateRunRequest{Trial: trial(), RunId: new("t1"), WaitLimit: durationpb.New(wait)}); err != nil {
		t.Fatal(err)
	}
	list := s.events(t, "t1", "")
	if got := fmt.Sprint(states(list)); got != "[QUEUED PREPARING RUNNING FAILED]" || list[len(list)-1].GetFailure().GetExitCode() != 10 {
		t.Errorf("states %s, %v", got, list[len(list)-1])
	}
	if waited := time.Since(began); waited < wait {
		t.Errorf("it waited %v of %v", waited, wait)
	}
}

func TestBadTrials(t *testing.T) {
	s := serve(t, newFake(t), true)
	for _, c := range []struct {
		name string
		req  *brokerv1.CreateRunRequest
		want string
	}{
		{"both", &brokerv1.CreateRunRequest{Spec: spec(), Trial: trial()}, "trial: give spec or trial"},
		{"neither", &brokerv1.CreateRunRequest{}, "spec.model"},
		{"of no kind", &brokerv1.CreateRunRequest{Trial: &brokerv1.TrialSpec{}}, "trial: give one of"},
		{"unknown model", &brokerv1.CreateRunRequest{Trial: service.ToTrial(service.Trial{CheckPin: &service.PinRequest{Label: "a", Model: "x"}})}, `no model "x"`},
	} {
		if _, err := s.runs.CreateRun(t.Context(), c.req); err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(reason(err), "InvalidArgument") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestBadNamesOfRunsCellsAndArms(t *testing.T) {
	s := serve(t, newFake(t), true)
	ctx := t.Context()
	for name, call := range map[string]func() error{
		"compare a path": func() error { _, err := s.Compare(ctx, "r1", "../r2"); return err },
		"diff a path":    func() error { _, err := s.Diff(ctx, "/etc/passwd", "a"); return err },
		"hold a path": func() error {
			_, err := s.Hold(ctx, "../r1", []string{"c1"}, service.Held{Who: "w", Why: "y"})
			return err
		},
		"hold for no reason":   func() error { _, err := s.Hold(ctx, "r1", []string{"c1"}, service.Held{Who: "w"}); return err },
		"hold everything":      func() error { _, err := s.Hold(ctx, "r1", nil, service.Held{Who: "w", Why: "y"}); return err },
		"a pin that is a path": func() error { _, err := s.Carried(ctx, "../x"); return err },
	} {
		if err := call(); err == nil || service.FailureOf(err).GetExitCode() != 2 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.Diff(ctx, "runs", "r1:a"); err != nil {
		t.Error(err)
	}
}

// Runs that are not comparable are an answer that says what the command line would end with, and it has no number.
func TestComparisonWithoutFigures(t *testing.T) {
	s := serve(t, newFake(t), true)
	r, err := s.runs.CompareRuns(t.Context(), &brokerv1.CompareRunsRequest{First: new("runs/r1"), Second: new("runs/r2")})
	if err != nil || r.GetFailure().GetExitCode() != 3 || len(r.GetCells()) != 0 || r.GetReasons()[0].GetCode() != "METHOD_MISMATCH" {
		t.Errorf("%v, %v", r, err)
	}
}

func TestMarginThatCannotBeJudged(t *testing.T) {
	f := newFake(t)
	s := serve(t, f, true)
	f.set("r1", service.StateComplete)
	for name, m := range map[string]*brokerv1.Margin{"no arm": {Margin: new(0.1)}, "another arm": {Arm: new("z"), Margin: new(0.1)}, "no fraction": {Arm: new("a"), Margin: new(1.0)}, "nothing": {}} {
		_, err := s.runs.JudgeRun(t.Context(), &brokerv1.JudgeRunRequest{Name: new("runs/r1"), Margin: m})
		if reason(err) != "InvalidArgument USAGE" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An experiment that waited for its turn over the end of its daemon is still the experiment that was asked for.
func TestExperimentOutlivesItsDaemon(t *testing.T) {
	f, s, _, let := occupied(t)
	ab := spec()
	ab.Experiment = &brokerv1.RunSpec_Ab{Ab: &brokerv1.AbSpec{NewBuild: new("engines/a"), OldBuild: new("engines/b"), Margin: new(0.02)}}
	if _, err := s.runs.CreateRun(t.Context(), &brokerv1.CreateRunRequest{Spec: ab, RunId: new("ab1")}); err != nil {
		t.Fatal(err)
	}
	s.stop()
	close(let)
	s = serve(t, f, true)
	if got := states(s.events(t, "ab1", "")); got[len(got)-1] != "COMPLETE" {
		t.Errorf("states %v", got)
	}
	if x := f.asked[len(f.asked)-1]; x.AB == nil || x.AB.New != "a" || x.AB.Old != "b" || x.AB.Margin != 0.02 {
		t.Errorf("measured as %+v", x)
	}
	g, err := s.runs.GetRun(t.Context(), &brokerv1.GetRunRequest{Name: new("runs/ab1")})
	if err != nil || !proto.Equal(g.GetRun().GetSpec(), ab) {
		t.Errorf("%v, %v", g, err)
	}
}

// A re-run goes the way of a resumed run and says who wants it. One that its daemon's end cut off is gone on with like any
// run, or begun again where nothing of it is on record.
func TestRerun(t *testing.T) {
	f := newFake(t)
	f.set("r1", service.StateComplete)
	began, let := make(chan string, 2), make(chan struct{})
	f.run = hold(began, let)
	s := serve(t, f, true)
	for field, m := range map[string]*brokerv1.Rerun{"rerun.who": {Why: new("y")}, "rerun.why": {Who: new("ana")}} {
		_, err := s.runs.ResumeRun(t.Context(), &brokerv1.ResumeRunRequest{Name: new("runs/r1"), Rerun: m})
		if reason(err) != "InvalidArgument USAGE" || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := s.runs.ResumeRun(t.Context(), &brokerv1.ResumeRunRequest{Name: new("runs/r1"), Rerun: &brokerv1.Rerun{Words: []string{"c8"}, Who: new("ana"), Why: new("the fan")}}); err != nil {
		t.Fatal(err)
	}
	<-began
	s.stop()
	close(let)
	s = serve(t, f, true)
	if got := states(s.events(t, "r1", "")); got[len(got)-1] != "COMPLETE" || fmt.Sprint(f.rerun, f.resumed) != "[r1[c8] {ana the fan}] [r1]" {
		t.Errorf("states %v, reruns %q, resumed %v", got, f.rerun, f.resumed)
	}
	j := &job{Rerun: &rerun{}, found: true, Before: brokerv1.RunState_RUN_STATE_COMPLETE.String()}
	if !j.reruns() {
		t.Error("a re-run without a record is taken for one that was begun")
	}
}
