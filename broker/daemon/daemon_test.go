package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"enginebroker/broker/service"
	"enginebroker/matrix"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a broker whose runs do what a test says.
type fake struct {
	dir string
	run func(ctx context.Context, name string, on func(service.Event)) error // of Matrix and Resume

	mu      sync.Mutex
	runs    map[string]string // name → state of its ledger
	resumed []string
	rerun   []string
	tried   []service.Trial
	asked   []service.Request
	busy    bool // another broker holds the box
	seeds   []uint64
	blind   error // of a listing
	refused []matrix.Refusal
}

func newFake(t *testing.T) *fake { return &fake{dir: t.TempDir(), runs: map[string]string{}} }

func (f *fake) Models() []service.CatalogModel {
	return []service.CatalogModel{{Model: matrix.Model{Name: "m"}, From: "test"}}
}
func (f *fake) Inspect(context.Context, string, bool, bool) (service.Inspection, error) {
	return service.Inspection{}, nil
}
func (f *fake) Engines(context.Context, ...string) ([]service.Engine, error) {
	return []service.Engine{{Label: "a", Plugin: "simulated"}}, nil
}
func (f *fake) Check(q service.Request) error {
	if q.Model != "m" {
		return &service.Error{Cause: service.CauseUsage, Err: fmt.Errorf("no model %q", q.Model)}
	}
	return nil
}
func (f *fake) CheckTrial(t service.Trial) error { return f.Check(service.Request{Model: t.Model()}) }
func (f *fake) NewRun(name, _ string, taken func(string) bool) (string, error) {
	name = cmp.Or(name, "made")
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.runs[name]; ok || taken(name) {
		return "", service.Taken("RUN_EXISTS", "", "a run named %s exists", name)
	}
	return name, nil
}
func (f *fake) NoRun(name string, _ []string) error {
	return &service.Error{Cause: service.CauseNotFound, Err: fmt.Errorf("no run %q", name)}
}
func (f *fake) Try(ctx context.Context, t service.Trial, on func(service.Event)) (service.TrialResult, error) {
	f.mu.Lock()
	f.tried = append(f.tried, t)
	f.mu.Unlock()
	if f.busy {
		return service.TrialResult{}, &service.Error{Cause: service.CauseBusy, Err: errors.New("another broker holds the box")}
	}
	on(service.Event{At: time.Now(), Kind: "phase", Text: "starting"})
	if f.run != nil {
		if err := f.run(ctx, "trial", on); err != nil {
			return service.TrialResult{}, &service.Error{Cause: service.CauseInterrupted, Err: err}
		}
	}
	return service.TrialResult{Preflights: []service.Preflight{{Label: "a", Artifact: "x", Failure: matrix.Some(matrix.StartFailure{Code: "exited"})}}}, nil
}
func (f *fake) Hold(_ context.Context, _ string, words []string, h service.Held) ([]matrix.Cell, error) {
	return []matrix.Cell{voidCell}, nil
}
func (f *fake) Compare(_ context.Context, first, second string) (service.Comparison, error) {
	return service.Comparison{Runs: [2]string{first, second}, Reasons: []matrix.CellReason{{Code: matrix.MethodMismatch}}}, nil
}
func (f *fake) DiffArms(_ context.Context, a, b service.ArmName) ([]service.Diff, error) {
	return []service.Diff{{A: service.DiffSide{Name: a.Name}, B: service.DiffSide{Name: b.Name}}}, nil
}
func (f *fake) Pins(context.Context) ([]service.PinInfo, error)            { return nil, nil }
func (f *fake) Carried(context.Context, string) ([]service.Carried, error) { return nil, nil }
func (f *fake) planned(q service.Request) service.Planned {
	seed := q.Seed.Or(7)
	return service.Planned{Plan: matrix.Plan{Model: q.Model, Profile: "quick", Box: "simulated", Seed: fmt.Sprint(seed), Groups: []matrix.Group{{ID: "x|raw"}}, Cost: matrix.Cost{Loads: 4}}}
}
func (f *fake) Plan(_ context.Context, q service.Request) (service.Planned, error) {
	return f.planned(q), nil
}
func (f *fake) Prepare(_ context.Context, q service.Request, on func(service.Event)) (service.Planned, error) {
	on(service.Event{At: time.Now(), Kind: "corpus", Text: "corpus: counting tokens"})
	if q.Profile == "refused" {
		p := f.planned(q)
		p.Plan.Groups = nil
		p.Plan.Refusals = []matrix.Refusal{{Pair: matrix.NewPair("a", "b"), Reason: matrix.NoCommonQuant, Detail: "no common container", Sides: []matrix.OfferSide{{Label: "a"}, {Label: "b"}}}}
		return p, nil
	}
	return f.planned(q), nil
}
func (f *fake) Matrix(ctx context.Context, q service.Request, on func(service.Event)) (service.Outcome, error) {
	f.mu.Lock()
	f.seeds = append(f.seeds, q.Seed.Or(0))
	f.asked = append(f.asked, q)
	f.mu.Unlock()
	return f.perform(ctx, q.Run, on)
}
func (f *fake) Resume(ctx context.Context, name string, on func(service.Event)) (service.Outcome, error) {
	f.mu.Lock()
	f.resumed = append(f.resumed, name)
	state := f.runs[name]
	f.mu.Unlock()
	if state == service.StateComplete {
		return service.Outcome{}, &service.Error{Cause: service.CauseUsage, Err: errors.New("the run is complete")}
	}
	return f.perform(ctx, name, on)
}
func (f *fake) Rerun(ctx context.Context, name string, words []string, by service.RerunBy, on func(service.Event)) (service.Outcome, error) {
	f.mu.Lock()
	f.rerun = append(f.rerun, fmt.Sprint(name, words, by))
	f.mu.Unlock()
	return f.perform(ctx, name, on)
}
func (f *fake) perform(ctx context.Context, name string, on func(service.Event)) (service.Outcome, error) {
	f.set(name, service.StateRunning)
	state := service.StateComplete
	var err error
	if f.run != nil {
		err = f.run(ctx, name, on)
	}
	if err != nil {
		state = service.StateInterrupted
		err = &service.Error{Cause: service.CauseInterrupted, Err: err, Fix: "go on with: broker resume " + name}
	}
	f.set(name, state)
	return service.Outcome{Run: name, Report: matrix.Report{Run: name, State: state}}, err
}
func (f *fake) set(name, state string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.runs[name] = state
}
func (f *fake) Runs(context.Context) ([]service.RunInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.blind != nil {
		return nil, f.blind
	}
	var out []service.RunInfo
	for _, n := range slices.Sorted(maps.Keys(f.runs)) {
		out = append(out, service.RunInfo{Name: n, Model: "m", State: f.runs[n], Updated: time.Unix(int64(len(out)), 0)})
	}
	slices.Reverse(out)
	return out, nil
}
func (f *fake) Report(_ context.Context, name string) (matrix.Report, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	state, ok := f.runs[name]
	if !ok {
		return matrix.Report{}, &service.Error{Cause: service.CauseNotFound, Err: fmt.Errorf("no run %q", name)}
	}
	if len(f.refused) > 0 {
		return matrix.Report{Run: name, State: state, Plan: matrix.Plan{Refusals: f.refused}}, nil
	}
	return matrix.Report{Run: name, State: state, Cells: []matrix.Cell{voidCell}}, nil
}
func (f *fake) Cells(context.Context, string, []string) ([]matrix.Cell, error) {
	return []matrix.Cell{voidCell}, nil
}
func (f *fake) Audit(_ context.Context, name string) (service.AuditResult, error) {
	return service.AuditResult{Run: name}, nil
}
func (f *fake) DiagnoseBox(context.Context) (*brokerv1.DiagnoseBoxResponse, error) {
	return &brokerv1.DiagnoseBoxResponse{}, nil
}
func (f *fake) WatchBox(ctx context.Context, every time.Duration, send func(*brokerv1.WatchBoxResponse) error) error {
	for {
		select {
		case <-time.After(every):
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := send(&brokerv1.WatchBoxResponse{MemFreeKib: new(int64(1))}); err != nil {
			return err
		}
	}
}
func (f *fake) StateDir(name string) string { return filepath.Join(f.dir, name) }

var voidCell = matrix.Cell{ID: matrix.CellID{Pair: matrix.NewPair("a", "b"), Group: "x|raw", Point: "c1", Metric: "output_tok_s"}, Verdict: matrix.Void, Direction: matrix.DirNone,
	Reasons: []matrix.CellReason{{Code: matrix.NoValidBlock, Detail: "nothing was measured"}}}

// server is a daemon over memory. stop drains it and waits.
type server struct {
	*Client
	dial func() (*Client, error)
	stop func()
}

// again is one more connection.
func (s *server) again(t *testing.T) *Client {
	t.Helper()
	c, err := s.dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func serve(t *testing.T, f *fake, resume bool, opts ...grpc.DialOption) *server {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	log := zaptest.NewLogger(t)
	go func() { done <- Serve(ctx, f, Options{Listener: l, Log: log, Resume: resume}) }()
	dial := func() (*Client, error) {
		return Dial("passthrough:///memory", TLS{}, append(opts, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))...)
	}
	c, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Errorf("Serve: %v", err)
		}
		c.Close()
		l.Close()
	})
	t.Cleanup(stop)
	return &server{Client: c, dial: dial, stop: stop}
}

func spec() *brokerv1.RunSpec { return &brokerv1.RunSpec{Model: new("models/m")} }

// create puts a run into the queue.
func (s *server) create(t *testing.T, id string) *brokerv1.Run {
	t.Helper()
	r, err := s.runs.CreateRun(t.Context(), &brokerv1.CreateRunRequest{Spec: spec(), RunId: &id})
	if err != nil {
		t.Fatal(err)
	}
	return r.GetRun()
}

// events reads a watch to its end.
func (s *server) events(t *testing.T, id, token string) []*brokerv1.WatchRunResponse {
	t.Helper()
	req := &brokerv1.WatchRunRequest{Name: new("runs/" + id)}
	if token != "" {
		req.ResumeToken = &token
	}
	w, err := s.runs.WatchRun(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	var out []*brokerv1.WatchRunResponse
	for {
		m, err := w.Recv()
		if err != nil {
			return out
		}
		out = append(out, m)
	}
}

// states are the states that events tell, in order.
func states(list []*brokerv1.WatchRunResponse) []string {
	var out []string
	for _, m := range list {
		if m.State != nil {
			out = append(out, m.GetState().String()[len("RUN_STATE_"):])
		}
	}
	return out
}

// gapless fails where the changes among events are not numbered from `from` without a gap.
func gapless(t *testing.T, list []*brokerv1.WatchRunResponse, from int64) {
	t.Helper()
	n := from
	for _, m := range list {
		if m.GetProgress() {
			continue
		}
		if m.GetSequence() != n {
			t.Fatalf("change has number %d, want %d", m.GetSequence(), n)
		}
		n++
	}
}

// hold is a run that waits until it is let go, or stopped.
func hold(began chan<- string, let <-chan struct{}) func(context.Context, string, func(service.Event)) error {
	return func(ctx context.Context, name string, on func(service.Event)) error {
		on(service.Event{At: time.Now(), Kind: "grid", Text: "grid 0"})
		if began != nil {
			began <- name
		}
		select {
		case <-let:
			return nil
		case <-ctx.Done():
			return errors.New("interrupted; the evidence is kept")
		}
	}
}

// occupied is a daemon whose box run r1 has until let is closed; began hears of every run that has it after that.
func occupied(t *testing.T) (f *fake, s *server, began chan string, let chan struct{}) {
	t.Helper()
	f = newFake(t)
	began, let = make(chan string, 3), make(chan struct{})
	f.run = hold(began, let)
	s = serve(t, f, true)
	s.create(t, "r1")
	<-began
	return f, s, began, let
}
