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

	"go.uber.org/zap/zaptest"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
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
	_, s, began, let := occupied(t)
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
		if _, err := s.runs.CancelRun(t.Context(), &brokerv1.CancelRunRequest{Name: new("runs/r1")}); err != nil {
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

// A run that waits too long ends at its deadline, not when the run before it does.
func TestWaitLimitPasses(t *testing.T) {
	_, s, _, let := occupied(t)
	if _, err := s.runs.CreateRun(t.Context(), &brokerv1.CreateRunRequest{Spec: spec(), RunId: new("r2"), WaitLimit: durationpb.New(time.Millisecond)}); err != nil {
		t.Fatal(err)
	}
	list := s.events(t, "r2", "")
	if got := fmt.Sprint(states(list)); got != "[QUEUED FAILED]" {
		t.Errorf("states %s", got)
	}
	if c := list[len(list)-1].GetFailure().GetCause(); c != "busy" {
		t.Errorf("cause %s", c)
	}
	if r, err := s.runs.GetRun(t.Context(), &brokerv1.GetRunRequest{Name: new("runs/r1")}); err != nil || r.GetRun().GetState() != brokerv1.RunState_RUN_STATE_RUNNING {
		t.Errorf("the run before it: %v, %v", r, err)
	}
	close(let)
}

// unwritable makes a folder one that nothing can be written into, also by root, until it is mended: it is a file then.
func unwritable(t *testing.T, dir string) (mend func()) {
	t.Helper()
	if err := errors.Join(os.Rename(dir, dir+".aside"), os.WriteFile(dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := errors.Join(os.Remove(dir), os.Rename(dir+".aside", dir)); err != nil {
			t.Fatal(err)
		}
	}
}

// Where a state cannot be written nobody hears of it: what cancelled nothing says so, and the run is what it was.
func TestStatesThatCannotBeWritten(t *testing.T) {
	f, s, _, let := occupied(t)
	s.create(t, "r2")
	mend := unwritable(t, filepath.Join(f.StateDir("jobs"), "r2"))
	_, err := s.runs.CancelRun(t.Context(), &brokerv1.CancelRunRequest{Name: new("runs/r2")})
	if reason(err) != "Internal INTERNAL" || !strings.Contains(err.Error(), "cannot be written") {
		t.Errorf("cancelled: %v", err)
	}
	r, err := s.runs.GetRun(t.Context(), &brokerv1.GetRunRequest{Name: new("runs/r2")})
	if err != nil || r.GetRun().GetState() != brokerv1.RunState_RUN_STATE_QUEUED || r.GetRun().GetQueuePosition() != 1 {
		t.Errorf("the run is %v, %v", r, err)
	}
	mend()
	for range 2 {
		if r, err := s.runs.CancelRun(t.Context(), &brokerv1.CancelRunRequest{Name: new("runs/r2")}); err != nil || r.GetRun().GetState() != brokerv1.RunState_RUN_STATE_CANCELLED {
			t.Errorf("cancelled at last: %v, %v", r, err)
		}
	}
	list := s.events(t, "r2", "")
	gapless(t, list, 1)
	if got := fmt.Sprint(states(list)); got != "[QUEUED CANCELLED]" {
		t.Errorf("states %s", got)
	}
	// A run that cannot be written is not taken, and nothing of it is left.
	mend = unwritable(t, f.StateDir("jobs"))
	_, err = s.runs.CreateRun(t.Context(), &brokerv1.CreateRunRequest{Spec: spec(), RunId: new("r3")})
	if reason(err) != "Internal INTERNAL" || !strings.Contains(fmt.Sprint(status.Convert(err).Details()), "with room") {
		t.Errorf("created: %v", err)
	}
	mend()
	s.create(t, "r3")
	close(let)
}

// The same holds for a run in flight, and for one that is to go on.
func TestEveryChangeOfStateIsWrittenFirst(t *testing.T) {
	f, s, began, let := occupied(t)
	name := new("runs/r1")
	job := filepath.Join(f.StateDir("jobs"), "r1")
	state := func(want brokerv1.RunState) {
		t.Helper()
		if r, err := s.runs.GetRun(t.Context(), &brokerv1.GetRunRequest{Name: name}); err != nil || r.GetRun().GetState() != want {
			t.Errorf("the run is %v, %v; want %v", r, err, want)
		}
	}
	refused := func(err error) {
		t.Helper()
		if reason(err) != "Internal INTERNAL" || !strings.Contains(err.Error(), "cannot be written") {
			t.Errorf("error %v", err)
		}
	}
	cancel := func() error {
		_, err := s.runs.CancelRun(t.Context(), &brokerv1.CancelRunRequest{Name: name})
		return err
	}
	resume := func() error {
		_, err := s.runs.ResumeRun(t.Context(), &brokerv1.ResumeRunRequest{Name: name})
		return err
	}
	mend := unwritable(t, job)
	refused(cancel()) // of a run in flight, which goes on
	state(brokerv1.RunState_RUN_STATE_RUNNING)
	mend()
	if err := cancel(); err != nil {
		t.Fatal(err)
	}
	s.events(t, "r1", "")
	state(brokerv1.RunState_RUN_STATE_INTERRUPTED)
	mend = unwritable(t, job)
	if err := resume(); reason(err) != "Internal INTERNAL" {
		t.Errorf("resumed: %v", err)
	}
	state(brokerv1.RunState_RUN_STATE_INTERRUPTED)
	mend()
	if err := resume(); err != nil {
		t.Fatal(err)
	}
	<-began
	close(let)
	list := s.events(t, "r1", "")
	gapless(t, list, 1)
	if got := fmt.Sprint(states(list)); got != "[QUEUED PREPARING RUNNING CANCELLING INTERRUPTED QUEUED PREPARING RUNNING COMPLETE]" {
		t.Errorf("states %s", got)
	}
}

// A deadline that passes while that cannot be written is told later.
func TestDeadlinesThatCannotBeWritten(t *testing.T) {
	q := newQueue(newFake(t), zaptest.NewLogger(t), newMetrics())
	now := time.Unix(1, 0)
	q.now = func() time.Time { return now }
	j := &job{Request: &service.Request{Model: "m"}}
	if _, err := q.create(j, "r1", time.Hour); err != nil {
		t.Fatal(err)
	}
	defer q.hangUp()
	defer q.drain()
	expire := func(want brokerv1.RunState, waiting int) {
		t.Helper()
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.expire(); j.state() != want || len(q.waiting) != waiting {
			t.Errorf("the run is %v and %d wait, want %v and %d", j.state(), len(q.waiting), want, waiting)
		}
	}
	now = now.Add(time.Hour - time.Minute)
	expire(brokerv1.RunState_RUN_STATE_QUEUED, 1)
	now = now.Add(time.Minute)
	mend := unwritable(t, filepath.Join(q.store.dir, "r1"))
	expire(brokerv1.RunState_RUN_STATE_QUEUED, 1)
	mend()
	expire(brokerv1.RunState_RUN_STATE_FAILED, 0)
}

// What cannot be listed is not absent: neither to a daemon that begins, nor to who asks while a window is open.
func TestRunsThatCannotBeListed(t *testing.T) {
	f := newFake(t)
	began, let := make(chan string, 2), make(chan struct{})
	f.run = func(ctx context.Context, name string, on func(service.Event)) error {
		w := service.WindowsOf(ctx)
		w.Open()
		defer w.Close()
		return hold(began, let)(ctx, name, on)
	}
	f.blind = errors.New("permission denied")
	s := serve(t, f, true)
	s.create(t, "r1")
	<-began
	ctx, stop := context.WithTimeout(t.Context(), retryAfter/2)
	defer stop()
	if _, err := s.runs.ListRuns(ctx, &brokerv1.ListRunsRequest{}); reason(err) != "Unavailable MEASURING" {
		t.Errorf("listed: %v", err)
	}
	s.stop()
	if err := Serve(t.Context(), f, Options{Listener: bufconn.Listen(1), Log: zaptest.NewLogger(t), Resume: true}); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("a daemon begins: %v", err)
	}
	f.blind = nil
	close(let)
	s = serve(t, f, true)
	list := s.events(t, "r1", "")
	if got := states(list); got[len(got)-1] != "COMPLETE" || len(f.resumed) != 1 {
		t.Errorf("states %v, resumed %v", got, f.resumed)
	}
}

// An end that cannot be written is told once it can.
func TestEndsThatCannotBeWritten(t *testing.T) {
	f, s, _, let := occupied(t)
	mend := unwritable(t, filepath.Join(f.StateDir("jobs"), "r1"))
	close(let)
	s.stop()
	mend()
	s = serve(t, f, true)
	list := s.events(t, "r1", "")
	gapless(t, list, 1)
	if got := fmt.Sprint(states(list)); got != "[QUEUED PREPARING RUNNING QUEUED PREPARING RUNNING COMPLETE]" {
		t.Errorf("states %s", got)
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
	if got := fmt.Sprint(states(list)); got != "[QUEUED PREPARING RUNNING QUEUED PREPARING RUNNING COMPLETE]" {
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

// A daemon that is stopped and started again goes on with its run, and so do those who follow it: nobody hears of an end.
func TestClientFollowsOverARestart(t *testing.T) {
	f := newFake(t)
	began := make(chan string, 1)
	f.run = hold(began, nil)
	addr := "unix://" + filepath.Join(t.TempDir(), "s")
	start := func() (stop func()) {
		l, _, err := Listen(addr, TLS{}, zaptest.NewLogger(t))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- Serve(ctx, f, Options{Listener: l, Log: zaptest.NewLogger(t), Resume: true}) }()
		return func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	stop := start()
	dial := func() *Client {
		c, err := Dial(addr, TLS{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	c, other := dial(), dial()
	q := service.Request{Model: "m", Run: "r1"}
	if _, err := c.Prepare(t.Context(), q, func(service.Event) {}); err != nil {
		t.Fatal(err)
	}
	w, err := other.runs.WatchRun(t.Context(), &brokerv1.WatchRunRequest{Name: new("runs/r1")})
	if err != nil {
		t.Fatal(err)
	}
	type outcome struct {
		out service.Outcome
		err error
	}
	ended := make(chan outcome)
	go func() { out, err := c.Matrix(t.Context(), q, func(service.Event) {}); ended <- outcome{out, err} }()
	<-began
	stop()
	var told []*brokerv1.WatchRunResponse
	for {
		m, err := w.Recv()
		if err != nil {
			if reason(err) != "Unavailable BUSY" {
				t.Errorf("the stream of a run that is not over ended with %v", err)
			}
			break
		}
		told = append(told, m)
	}
	if got := fmt.Sprint(states(told)); got != "[QUEUED PREPARING RUNNING QUEUED]" {
		t.Errorf("states %s", got)
	}
	let := make(chan struct{})
	close(let)
	f.run = hold(nil, let)
	stop = start()
	defer stop()
	if x := <-ended; x.err != nil || x.out.Report.State != service.StateComplete {
		t.Errorf("%v, %v", x.out.Report.State, x.err)
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

// Damage of a job costs its own run: it is told by the path of the file, whatever is asked of the run.
func TestJobsThatCannotBeRead(t *testing.T) {
	for name, text := range map[string]string{
		"empty":            "",
		"half":             "{",
		"null":             "null",
		"another's":        `{"name":"other","state":"RUN_STATE_QUEUED","resume":true}`,
		"no state":         `{"name":"bad","state":"SOMETHING","resume":true}`,
		"nothing, queued":  `{"name":"bad","state":"RUN_STATE_QUEUED"}`,
		"nothing, begun":   `{"name":"bad","state":"RUN_STATE_PREPARING"}`,
		"a trial of none":  `{"name":"bad","state":"RUN_STATE_QUEUED","trial":{}}`,
		"a pin of none":    `{"name":"bad","state":"RUN_STATE_FAILED","trial":{"advance_pin":{}}}`,
		"a path":           `{"name":"bad","state":"RUN_STATE_QUEUED","trial":{"record_pin":{"pin":"../x","start":{"label":"a","model":"m"},"act":{"by":"a","why":"b"}}}}`,
		"no model":         `{"name":"bad","state":"RUN_STATE_QUEUED","request":{}}`,
		"a pair of one":    `{"name":"bad","state":"RUN_STATE_QUEUED","request":{"model":"m","pairs":["a"]}}`,
		"another's folder": `{"name":"bad","state":"RUN_STATE_QUEUED","request":{"model":"m","run":"other"}}`,
		"both":             `{"name":"bad","state":"RUN_STATE_QUEUED","request":{"model":"m"},"trial":{"preflight":{"engines":["a"],"model":"m"}}}`,
		"its result":       `{"name":"bad","state":"RUN_STATE_COMPLETE","trial":{"preflight":{"engines":["a"],"model":"m"}},"result":{"passed":"so"}}`,
		"its failure":      `{"name":"bad","state":"RUN_STATE_FAILED","request":{"model":"m"},"failure":[]}`,
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			dir := filepath.Join(f.StateDir("jobs"), "bad")
			path := filepath.Join(dir, jobFile)
			if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
			jobs, bad := store{f.StateDir("jobs")}.load()
			if len(jobs) != 0 || len(bad) != 1 || !strings.Contains(bad[0].Error(), path) {
				t.Errorf("%d jobs, %v", len(jobs), bad)
			}
			s := serve(t, f, true) // and serves all the same
			s.create(t, "r1")
			if !slices.Contains(states(s.events(t, "r1", "")), "COMPLETE") {
				t.Error("the run did not complete")
			}
			if _, err := s.runs.CreateRun(t.Context(), &brokerv1.CreateRunRequest{Spec: spec(), RunId: new("bad")}); reason(err) != "AlreadyExists RUN_EXISTS" {
				t.Errorf("what cannot be read is written over: %v", err)
			}
			f.set("bad", service.StateInterrupted) // its evidence is whole
			n := new("runs/bad")
			for call, do := range map[string]func() error{
				"ResumeRun": func() error { _, err := s.runs.ResumeRun(t.Context(), &brokerv1.ResumeRunRequest{Name: n}); return err },
				"CancelRun": func() error { _, err := s.runs.CancelRun(t.Context(), &brokerv1.CancelRunRequest{Name: n}); return err },
				"WatchRun": func() error {
					w, err := s.runs.WatchRun(t.Context(), &brokerv1.WatchRunRequest{Name: n})
					if err == nil {
						_, err = w.Recv()
					}
					return err
				},
			} {
				if err := do(); reason(err) != "DataLoss EVIDENCE" || !strings.Contains(err.Error(), path) || len(fields(err)) > 0 {
					t.Errorf("%s: %v", call, err)
				}
			}
			if r, err := s.runs.GetRun(t.Context(), &brokerv1.GetRunRequest{Name: n}); err != nil || r.GetRun().GetState() != brokerv1.RunState_RUN_STATE_INTERRUPTED {
				t.Errorf("GetRun: %v, %v", r, err)
			}
			if left, err := os.ReadFile(path); err != nil || string(left) != text {
				t.Errorf("left %q, %v", left, err)
			}
		})
	}
}

// A job that is read can be told and asked for, whatever else is in its file.
func FuzzReadJob(f *testing.F) {
	f.Add([]byte(`{"name":"r","state":"RUN_STATE_QUEUED","request":{"model":"m","seed":7,"budget":1,"pairs":["a:b"]},"deadline":"2026-01-02T03:04:05Z"}`))
	f.Add([]byte(`{"name":"r","state":"RUN_STATE_RUNNING","trial":{"advance_pin":{"pin":"p","start":{"label":"a","model":"m"},"act":{"by":"x","why":"y"}}},"drained":true}`))
	f.Add([]byte(`{"name":"r","state":"RUN_STATE_FAILED","resume":true,"rerun":{},"before":"x","failure":{"cause":"busy"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := store{t.TempDir()}
		if err := errors.Join(os.Mkdir(filepath.Join(s.dir, "r"), 0o700), os.WriteFile(s.path("r", jobFile), data, 0o600)); err != nil {
			t.Fatal(err)
		}
		j, err := s.read("r")
		if err != nil {
			if cause(err) != service.CauseEvidence || !strings.Contains(err.Error(), s.path("r", jobFile)) {
				t.Errorf("error %v", err)
			}
			return
		}
		if j.Trial != nil || j.Request != nil {
			j.stem()
		}
		if _, err := proto.Marshal((&queue{}).run(j, nil)); err != nil {
			t.Error(err)
		}
		if err := s.save(j); err != nil {
			t.Error(err)
		}
		if _, err := s.read("r"); err != nil {
			t.Errorf("written again it cannot be read: %v", err)
		}
	})
}

// A job that was never written was never taken: its folder says nothing at every start.
func TestJobThatWasNotTaken(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "jobs")
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "r1"), 0o700), os.WriteFile(filepath.Join(dir, "r1", eventsFile), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if jobs, bad := (store{dir}).load(); len(jobs)+len(bad) != 0 || (store{dir}).has("r1") {
		t.Errorf("%v, %v", jobs, bad)
	}
}

// A run whose events cannot be read ends at the start of the daemon, and says which file it is.
func TestRunsWhoseEventsCannotBeRead(t *testing.T) {
	for name, x := range map[string]struct {
		state string
		begun bool
		want  brokerv1.RunState
	}{
		"in flight": {"RUN_STATE_RUNNING", true, brokerv1.RunState_RUN_STATE_INTERRUPTED},
		"waiting":   {"RUN_STATE_QUEUED", false, brokerv1.RunState_RUN_STATE_FAILED},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			if x.begun {
				f.runs["r1"] = service.StateInterrupted
			}
			dir := filepath.Join(f.StateDir("jobs"), "r1")
			file := filepath.Join(dir, eventsFile)
			job := fmt.Sprintf(`{"name":"r1","state":%q,"request":{"model":"m"}}`, x.state)
			if err := errors.Join(os.MkdirAll(file, 0o700), os.WriteFile(filepath.Join(dir, jobFile), []byte(job), 0o600)); err != nil {
				t.Fatal(err)
			}
			s := serve(t, f, true)
			r, err := s.runs.GetRun(t.Context(), &brokerv1.GetRunRequest{Name: new("runs/r1")})
			if err != nil || r.GetRun().GetState() != x.want || r.GetRun().GetFailure().GetExitCode() != 9 || !strings.Contains(r.GetRun().GetFailure().GetMessage(), file) {
				t.Errorf("%v, %v", r, err)
			}
			if _, err := s.runs.CancelRun(t.Context(), &brokerv1.CancelRunRequest{Name: new("runs/r1")}); reason(err) != "FailedPrecondition RUN_ENDED" {
				t.Errorf("cancelled: %v", err)
			}
			w, err := s.runs.WatchRun(t.Context(), &brokerv1.WatchRunRequest{Name: new("runs/r1")})
			if err == nil {
				_, err = w.Recv()
			}
			if reason(err) != "DataLoss EVIDENCE" {
				t.Errorf("watched: %v", err)
			}
			if !x.begun {
				return
			}
			if _, err := s.runs.ResumeRun(t.Context(), &brokerv1.ResumeRunRequest{Name: new("runs/r1")}); reason(err) != "DataLoss EVIDENCE" {
				t.Errorf("resumed: %v", err)
			}
			if err := os.Remove(file); err != nil { // the fix that it says
				t.Fatal(err)
			}
			if _, err := s.runs.ResumeRun(t.Context(), &brokerv1.ResumeRunRequest{Name: new("runs/r1")}); err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(states(s.events(t, "r1", ""))); got != "[QUEUED PREPARING RUNNING COMPLETE]" {
				t.Errorf("states %s", got)
			}
		})
	}
}

// Two daemons of one folder of runs would write over each other's record; the second one does not begin.
func TestSecondDaemonOfOneFolder(t *testing.T) {
	f := newFake(t)
	s := serve(t, f, true)
	s.create(t, "r1")
	err := Serve(t.Context(), f, Options{Listener: bufconn.Listen(1), Log: zaptest.NewLogger(t)})
	if e, ok := errors.AsType[*service.Error](err); !ok || e.Cause != service.CauseBusy || !strings.Contains(err.Error(), fmt.Sprintf("%s already (PID %d)", f.StateDir("jobs"), os.Getpid())) {
		t.Errorf("error %v", err)
	}
	s.stop()
	serve(t, f, true)
}

// What has no evidence cannot be gone on with, and the answer says so instead of denying the run.
func TestResumeOfARunThatNeverBegan(t *testing.T) {
	_, s, _, let := occupied(t)
	s.create(t, "r2")
	resume := func(name string) error {
		_, err := s.runs.ResumeRun(t.Context(), &brokerv1.ResumeRunRequest{Name: &name})
		return err
	}
	if err := resume("runs/r2"); reason(err) != "FailedPrecondition RUN_ACTIVE" {
		t.Errorf("in the queue: %v", err)
	}
	if _, err := s.runs.CancelRun(t.Context(), &brokerv1.CancelRunRequest{Name: new("runs/r2")}); err != nil {
		t.Fatal(err)
	}
	if err := resume("runs/r2"); reason(err) != "FailedPrecondition RUN_UNBEGUN" {
		t.Errorf("cancelled in the queue: %v", err)
	}
	if err := resume("runs/nosuch"); reason(err) != "NotFound NOT_FOUND" {
		t.Errorf("unknown: %v", err)
	}
	close(let)
}
