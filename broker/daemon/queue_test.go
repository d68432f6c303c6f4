package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"enginebroker/broker/service"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

// reason is the code and the ErrorInfo reason of an error.
func reason(err error) string {
	st := status.Convert(err)
	for _, d := range st.Details() {
		if i, ok := d.(*errdetails.ErrorInfo); ok {
			return st.Code().String() + " " + i.GetReason()
		}
	}
	return st.Code().String()
}

func TestRunFromCreateToEnd(t *testing.T) {
	f := newFake(t)
	f.run = func(_ context.Context, _ string, on func(service.Event)) error {
		on(service.Event{At: time.Now(), Kind: "leg", Arm: "a", Point: "c1", Codes: []string{"CLIENT_LAG"}, LoadsDone: 1, LoadsTotal: 4})
		return nil
	}
	s := serve(t, f, true)
	if r := s.create(t, "r1"); r.GetState() != brokerv1.RunState_RUN_STATE_QUEUED || r.GetQueuePosition() != 1 {
		t.Fatalf("created as %v", r)
	}
	list := s.events(t, "r1", "")
	gapless(t, list, 1)
	if got, want := fmt.Sprint(states(list)), "[QUEUED PREPARING RUNNING COMPLETE]"; got != want {
		t.Errorf("states %s, want %s", got, want)
	}
	// Every token gives exactly what follows.
	for i, m := range list {
		if m.GetProgress() {
			continue
		}
		rest := s.events(t, "r1", m.GetResumeToken())
		if len(rest) != len(list)-i-1 {
			t.Errorf("after event %d there are %d, want %d", i, len(rest), len(list)-i-1)
		}
	}
	if f.seeds[0] != 7 {
		t.Errorf("the run has seed %d, the plan that was told has 7", f.seeds[0])
	}
	// A report of a void cell has no numbers, and its judgement names cell and reason.
	_, err := s.runs.JudgeRun(t.Context(), &brokerv1.JudgeRunRequest{Name: new("runs/r1")})
	if got := reason(err); got != "FailedPrecondition NO_VALID_BLOCK" {
		t.Errorf("judged %s", got)
	}
}

func TestQueueHasPositionsAndOneTurn(t *testing.T) {
	f := newFake(t)
	began, let := make(chan string, 3), make(chan struct{})
	f.run = hold(began, let)
	s := serve(t, f, true)
	s.create(t, "r1")
	<-began
	s.create(t, "r2")
	if r := s.create(t, "r3"); r.GetQueuePosition() != 2 {
		t.Errorf("the third run has place %d in the queue, want 2", r.GetQueuePosition())
	}
	l, err := s.runs.ListRuns(t.Context(), &brokerv1.ListRunsRequest{PageSize: new(int64(2))})
	if err != nil || len(l.GetRuns()) != 2 || l.GetRuns()[0].GetName() != "runs/r1" || l.GetRuns()[1].GetName() != "runs/r2" || l.NextPageToken == nil {
		t.Fatalf("first page %v, %v", l, err)
	}
	l, err = s.runs.ListRuns(t.Context(), &brokerv1.ListRunsRequest{PageSize: new(int64(2)), PageToken: l.NextPageToken})
	if err != nil || len(l.GetRuns()) != 1 || l.GetRuns()[0].GetName() != "runs/r3" || l.NextPageToken != nil {
		t.Fatalf("second page %v, %v", l, err)
	}
	l, err = s.runs.ListRuns(t.Context(), &brokerv1.ListRunsRequest{States: []brokerv1.RunState{brokerv1.RunState_RUN_STATE_RUNNING}})
	if err != nil || len(l.GetRuns()) != 1 {
		t.Fatalf("filtered %v, %v", l, err)
	}
	// Cancel in the queue, twice; then the one in flight, twice.
	for range 2 {
		r, err := s.runs.CancelRun(t.Context(), &brokerv1.CancelRunRequest{Name: new("runs/r2")})
		if err != nil || r.GetRun().GetState() != brokerv1.RunState_RUN_STATE_CANCELLED {
			t.Fatalf("%v, %v", r, err)
		}
	}
	if r, _ := s.runs.GetRun(t.Context(), &brokerv1.GetRunRequest{Name: new("runs/r3")}); r.GetRun().GetQueuePosition() != 1 {
		t.Errorf("the third run did not move up: %v", r)
	}
	for range 2 {
		if _, err := s.runs.CancelRun(t.Context(), &brokerv1.CancelRunRequest{Name: new("runs/r1")}); err != nil && reason(err) != "FailedPrecondition RUN_ENDED" {
			t.Fatal(err)
		}
	}
	list := s.events(t, "r1", "")
	if got := fmt.Sprint(states(list)); got != "[QUEUED PREPARING RUNNING CANCELLING INTERRUPTED]" {
		t.Errorf("states %s", got)
	}
	if f := list[len(list)-1].GetFailure(); f.GetExitCode() != 130 || !strings.Contains(f.GetFix(), "broker resume r1") {
		t.Errorf("failure %v", f)
	}
	<-began
	close(let)
	if got := fmt.Sprint(states(s.events(t, "r3", ""))); got != "[QUEUED PREPARING RUNNING COMPLETE]" {
		t.Errorf("states %s", got)
	}
	if _, err := s.runs.CancelRun(t.Context(), &brokerv1.CancelRunRequest{Name: new("runs/r3")}); reason(err) != "FailedPrecondition RUN_ENDED" {
		t.Errorf("cancelling an ended run: %v", err)
	}
}

func TestRequestIDs(t *testing.T) {
	f := newFake(t)
	s := serve(t, f, true)
	req := &brokerv1.CreateRunRequest{Spec: spec(), RunId: new("r1"), RequestId: new("id-1")}
	var names []string
	for range 3 {
		r, err := s.runs.CreateRun(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, r.GetRun().GetName())
	}
	if fmt.Sprint(names) != "[runs/r1 runs/r1 runs/r1]" {
		t.Errorf("names %v", names)
	}
	other := &brokerv1.CreateRunRequest{Spec: &brokerv1.RunSpec{Model: new("models/m"), Seed: new(uint64(0))}, RunId: new("r1"), RequestId: new("id-1")}
	if _, err := s.runs.CreateRun(t.Context(), other); reason(err) != "AlreadyExists REQUEST_ID_REUSED" {
		t.Errorf("other content: %v", err)
	}
	s.events(t, "r1", "")
	s.stop()
	// It is remembered by the next daemon.
	s = serve(t, f, true)
	if r, err := s.runs.CreateRun(t.Context(), req); err != nil || r.GetRun().GetName() != "runs/r1" {
		t.Errorf("after a restart: %v, %v", r, err)
	}
	if _, err := s.runs.CreateRun(t.Context(), other); reason(err) != "AlreadyExists REQUEST_ID_REUSED" {
		t.Errorf("other content after a restart: %v", err)
	}
	if _, err := s.runs.CreateRun(t.Context(), &brokerv1.CreateRunRequest{Spec: spec(), RunId: new("r1")}); reason(err) != "AlreadyExists RUN_EXISTS" {
		t.Errorf("a taken name: %v", err)
	}
}

func TestWaitLimitPasses(t *testing.T) {
	f := newFake(t)
	began, let := make(chan string, 2), make(chan struct{})
	f.run = hold(began, let)
	s := serve(t, f, true)
	s.create(t, "r1")
	<-began
	if _, err := s.runs.CreateRun(t.Context(), &brokerv1.CreateRunRequest{Spec: spec(), RunId: new("r2"), WaitLimit: durationpb.New(time.Millisecond)}); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, func() { close(let) }) // whichever comes first: r2 is looked at when r1 has ended
	list := s.events(t, "r2", "")
	if got := fmt.Sprint(states(list)); got != "[QUEUED FAILED]" {
		t.Errorf("states %s", got)
	}
	if c := list[len(list)-1].GetFailure().GetCause(); c != "busy" {
		t.Errorf("cause %s", c)
	}
}

func TestDrainAndGoOn(t *testing.T) {
	f := newFake(t)
	began := make(chan string, 2)
	f.run = hold(began, nil)
	s := serve(t, f, true)
	s.create(t, "r1")
	<-began
	s.create(t, "r2")
	s.stop()
	if f.runs["r1"] != service.StateInterrupted {
		t.Fatalf("r1 is %s", f.runs["r1"])
	}
	let := make(chan struct{})
	close(let)
	f.run = hold(nil, let)
	s = serve(t, f, true)
	list := s.events(t, "r1", "")
	gapless(t, list, 1)
	if got := fmt.Sprint(states(list)); got != "[QUEUED PREPARING RUNNING INTERRUPTED QUEUED PREPARING RUNNING COMPLETE]" {
		t.Errorf("states of r1 %s", got)
	}
	if got := fmt.Sprint(states(s.events(t, "r2", ""))); !strings.HasSuffix(got, "PREPARING RUNNING COMPLETE]") {
		t.Errorf("states of r2 %s", got)
	}
	if fmt.Sprint(f.resumed) != "[r1]" {
		t.Errorf("resumed %v", f.resumed)
	}
}

// A daemon that was killed left a job that says it runs and a log whose last line is torn.
func TestKilledDaemon(t *testing.T) {
	for _, policy := range []bool{true, false} {
		f := newFake(t)
		s := serve(t, f, true)
		s.create(t, "r1")
		before := s.events(t, "r1", "")
		s.stop()
		dir := filepath.Join(f.StateDir("jobs"), "r1")
		data, err := os.ReadFile(filepath.Join(dir, jobFile))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, jobFile), []byte(strings.Replace(string(data), "RUN_STATE_COMPLETE", "RUN_STATE_RUNNING", 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		log, err := os.ReadFile(filepath.Join(dir, eventsFile))
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.SplitAfter(string(log), "\n")
		torn := strings.Join(lines[:len(lines)-2], "") + lines[len(lines)-2][:20]
		if err := os.WriteFile(filepath.Join(dir, eventsFile), []byte(torn), 0o600); err != nil {
			t.Fatal(err)
		}
		f.runs["r1"] = service.StateRunning
		s = serve(t, f, policy)
		list := s.events(t, "r1", "")
		gapless(t, list, 1)
		want := "[QUEUED PREPARING RUNNING QUEUED PREPARING RUNNING COMPLETE]"
		if !policy {
			want = "[QUEUED PREPARING RUNNING INTERRUPTED]"
		}
		if got := fmt.Sprint(states(list)); got != want {
			t.Errorf("resume %v: states %s, want %s", policy, got, want)
		}
		// A watcher of the first daemon goes on where it was.
		tok := before[len(before)-2].GetResumeToken()
		if got := s.events(t, "r1", tok); len(got) == 0 || got[0].GetSequence() != before[len(before)-2].GetSequence()+1 {
			t.Errorf("resume %v: after %s comes %v", policy, tok, got)
		}
		s.stop()
	}
}

func TestResumeOfACompleteRunLeavesItComplete(t *testing.T) {
	f := newFake(t)
	f.runs["old"] = service.StateComplete
	s := serve(t, f, true)
	_, err := s.Client.Resume(t.Context(), "old", func(service.Event) {})
	if e, ok := errors.AsType[*service.Error](err); !ok || e.Cause != service.CauseUsage || e.Error() != "the run is complete" {
		t.Errorf("error %v", err)
	}
	r, err := s.runs.GetRun(t.Context(), &brokerv1.GetRunRequest{Name: new("runs/old")})
	if err != nil || r.GetRun().GetState() != brokerv1.RunState_RUN_STATE_COMPLETE {
		t.Errorf("%v, %v", r, err)
	}
}

func TestRefusedPlanFailsWithBothSides(t *testing.T) {
	s := serve(t, newFake(t), true)
	sp := spec()
	sp.Profile = new("refused")
	if _, err := s.runs.CreateRun(t.Context(), &brokerv1.CreateRunRequest{Spec: sp, RunId: new("r1")}); err != nil {
		t.Fatal(err)
	}
	list := s.events(t, "r1", "")
	f := list[len(list)-1].GetFailure()
	if f.GetCause() != "not_comparable" || f.GetExitCode() != 3 || len(f.GetRefusals()) != 1 || len(f.GetRefusals()[0].GetSides()) != 2 {
		t.Errorf("failure %v", f)
	}
}

func TestClientFollowsLikeALocalRun(t *testing.T) {
	f := newFake(t)
	f.run = func(_ context.Context, _ string, on func(service.Event)) error {
		for i := range 5 {
			on(service.Event{At: time.Now(), Kind: "leg", Arm: "a", Load: "l", Point: fmt.Sprint("c", i), LoadsDone: i, LoadsTotal: 5})
		}
		return nil
	}
	s := serve(t, f, true)
	var lines []string
	on := func(e service.Event) { lines = append(lines, e.Line()) }
	q := service.Request{Model: "m", Run: "r1"}
	p, err := s.Prepare(t.Context(), q, on)
	if err != nil || p.Plan.Seed != "7" {
		t.Fatalf("%+v, %v", p, err)
	}
	out, err := s.Matrix(t.Context(), q, on)
	if err != nil || out.Run != "r1" || out.Report.State != service.StateComplete {
		t.Fatalf("%+v, %v", out, err)
	}
	if len(lines) != 6 || lines[0] != "corpus: counting tokens" || lines[5] != "[5/5] a c4 measured" {
		t.Errorf("lines %q", lines)
	}
}

func TestInterruptedClientEndsItsRun(t *testing.T) {
	f := newFake(t)
	began := make(chan string, 1)
	f.run = hold(began, nil)
	s := serve(t, f, true)
	ctx, interrupt := context.WithCancel(t.Context())
	q := service.Request{Model: "m", Run: "r1"}
	if _, err := s.Prepare(ctx, q, func(service.Event) {}); err != nil {
		t.Fatal(err)
	}
	go func() { <-began; interrupt() }()
	out, err := s.Matrix(ctx, q, func(service.Event) {})
	if e, ok := errors.AsType[*service.Error](err); !ok || e.Cause != service.CauseInterrupted || !strings.Contains(e.Fix, "broker resume r1") {
		t.Errorf("error %v", err)
	}
	if out.Run != "r1" {
		t.Error("the evidence that is kept has no report")
	}
}

func TestJobsThatCannotBeRead(t *testing.T) {
	f := newFake(t)
	dir := filepath.Join(f.StateDir("jobs"), "bad")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "{", `{"name":"other","state":"RUN_STATE_QUEUED"}`, `{"name":"bad","state":"SOMETHING"}`} {
		if err := os.WriteFile(filepath.Join(dir, jobFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		jobs, bad := store{f.StateDir("jobs")}.load()
		if len(jobs) != 0 || len(bad) != 1 {
			t.Errorf("%q: %d jobs, %v", text, len(jobs), bad)
		}
	}
	s := serve(t, f, true) // and serves all the same
	s.create(t, "r1")
	if !slices.Contains(states(s.events(t, "r1", "")), "COMPLETE") {
		t.Error("the run did not complete")
	}
}
