package run

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"enginebroker/matrix"
	"enginebroker/matrix/ledger"
	"enginebroker/matrix/schedule"
	"enginebroker/matrix/stopwatch"
)

// world is a box, two engines, a timed client and a record, all in memory.
type world struct {
	mu        sync.Mutex
	records   []string // kind or leg, in order
	loads     []matrix.LoadRecord
	legs      []matrix.LegRecord
	begun     []ledger.SuperblockStart
	running   map[string]bool
	starts    map[string]int // by instance
	start     func(instance string, n int) (matrix.Ready, error)
	observe   func(instance string) matrix.State
	survivors bool
	during    func(job stopwatch.Job)
	asked     func() // a canary is under way
	pass      func(job stopwatch.Job) error
	next      []Next
	pin       matrix.Opt[matrix.PinCheck]
	putErr    error
	guard     func(why string) // the box's memory guard, once an engine is watched
}

func newWorld() *world {
	return &world{running: map[string]bool{}, starts: map[string]int{},
		start: func(instance string, _ int) (matrix.Ready, error) {
			return matrix.Ready{Print: "print-" + instance, Granted: matrix.Limits{ContextTokens: 256, Concurrency: 1}, Processes: []matrix.Process{{PID: 7}}}, nil
		},
		observe: func(instance string) matrix.State { return matrix.State{Alive: true, Print: "print-" + instance} },
	}
}

type fakeEngine struct {
	w        *world
	instance string
}

func (e fakeEngine) Start(ctx context.Context, r matrix.StartRequest, progress func(matrix.Progress)) (matrix.Ready, error) {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	e.w.starts[e.instance]++
	progress(matrix.Progress{Phase: "load"})
	ready, err := e.w.start(e.instance, e.w.starts[e.instance])
	e.w.running[e.instance] = err == nil
	return ready, err
}

func (e fakeEngine) Observe(context.Context) (matrix.State, error) {
	return e.w.observe(e.instance), nil
}

func (e fakeEngine) Stop(context.Context, time.Duration) (matrix.Stopped, error) {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	e.w.running[e.instance] = false
	s := matrix.Stopped{How: "term", PortFree: true}
	if e.w.survivors {
		s.Survivors = []matrix.Process{{PID: 8}}
	}
	return s, nil
}

type fakeBox struct{ w *world }

func (fakeBox) BootID() string { return "boot" }
func (fakeBox) Settle(context.Context) (matrix.Env, error) {
	return matrix.Env{BootIDStart: "boot"}, nil
}
func (fakeBox) Evict([]string) (matrix.Opt[int64], error) { return matrix.Some(int64(0)), nil }
func (b fakeBox) Watch(_ context.Context, _ func() []int, stop func(string)) (Watch, error) {
	b.w.guard = stop
	return fakeWatch{}, nil
}

type fakeWatch struct{}

func (fakeWatch) Window(int64, int64, [][2]int64) (matrix.Env, matrix.Opt[matrix.Clock], func(io.Writer) error) {
	return matrix.Env{}, matrix.Opt[matrix.Clock]{}, nil
}
func (fakeWatch) Killed(matrix.Process) string { return "" }
func (fakeWatch) Close() error                 { return nil }

type fakeClock struct{ w *world }

func (c fakeClock) Open(context.Context, matrix.Dialect, matrix.Point) (Client, error) {
	return fakeClient(c), nil
}

func (c fakeClock) Ask(ctx context.Context, _ matrix.Dialect, _ string, _ int, _ time.Duration) (matrix.Request, error) {
	if c.w.asked != nil {
		if c.w.asked(); !slices.Contains(slices.Collect(maps.Values(c.w.running)), true) {
			return matrix.Request{Outcome: matrix.OutcomeFailed, Reasons: []string{"stream_ended"}}, ctx.Err()
		}
	}
	return matrix.Request{Outcome: matrix.OutcomeOK, Text: "437"}, ctx.Err()
}

type fakeClient struct{ w *world }

func (c fakeClient) Run(ctx context.Context, j stopwatch.Job) (Recording, error) {
	if c.w.during != nil {
		c.w.during(j)
	}
	if c.w.pass != nil {
		if err := c.w.pass(j); err != nil {
			return nil, err
		}
	}
	time.Sleep(time.Second)
	return fakeRecording{job: j}, ctx.Err()
}
func (fakeClient) Close() error { return nil }

type fakeRecording struct{ job stopwatch.Job }

func (r fakeRecording) Write(w io.Writer) error { _, err := io.WriteString(w, "x"); return err }
func (r fakeRecording) Reduce(matrix.Dialect, matrix.Point) []matrix.Request {
	out := make([]matrix.Request, len(r.job.Prompts))
	for i := range out {
		out[i] = matrix.Request{Index: i, Repetition: r.job.Repetition, Prompt: r.job.Prompts[i].ID, Outcome: matrix.OutcomeOK}
	}
	return out
}
func (fakeRecording) Window() (int64, int64)  { return 1, 2 }
func (fakeRecording) Cost() matrix.ClientCost { return matrix.ClientCost{} }
func (fakeRecording) Hung() bool              { return false }

type fakePrompts struct{}

func (fakePrompts) Take(block int, p matrix.Point, rep, n int) ([]stopwatch.Prompt, error) {
	out := make([]stopwatch.Prompt, n)
	for i := range out {
		out[i] = stopwatch.Prompt{ID: fmt.Sprintf("%s/%d/%d/%d", p.ID, block, rep, i)}
	}
	return out, nil
}

type fakeRecorder struct{ w *world }

func (r fakeRecorder) Append(kind ledger.Kind, _ time.Time, body any) (ledger.Record, error) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	r.w.records = append(r.w.records, string(kind))
	if l, ok := body.(matrix.LoadRecord); ok {
		r.w.loads = append(r.w.loads, l)
	}
	if b, ok := body.(ledger.SuperblockStart); ok {
		r.w.begun = append(r.w.begun, b)
	}
	return ledger.Record{}, r.w.putErr
}

func (r fakeRecorder) PutLeg(rec matrix.LegRecord, _ ledger.LegFiles) error {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	r.w.records = append(r.w.records, "leg")
	r.w.legs = append(r.w.legs, rec)
	return r.w.putErr
}

func (fakeRecorder) LogPath(id string) string { return id + ".log" }

type fakeJudge struct{ w *world }

func (fakeJudge) Leg(rec matrix.LegRecord, _ matrix.Arm, _ matrix.Point) (Leg, error) {
	return Leg{Record: rec}, nil
}

func (j fakeJudge) Next(matrix.GridInfo, []matrix.LoadRecord, []Leg, []Redo) (Next, error) {
	if len(j.w.next) == 0 {
		return Next{}, nil
	}
	n := j.w.next[0]
	j.w.next = j.w.next[1:]
	return n, nil
}

// plan is two arms, one superblock per call of n, two points.
func plan(superblocks int) matrix.Plan {
	p := matrix.Plan{Seed: "5", Grids: 1, Method: matrix.Method{Repetitions: 2, Points: []matrix.Point{
		{ID: "c1", Concurrency: 1, Requests: 2, Warmup: 1}, {ID: "c8", Concurrency: 8, Requests: 3, Warmup: 1}}},
		Groups: []matrix.Group{{ID: "m@q|raw", Artifact: "m@q", Arms: []matrix.Arm{
			{Label: "a", Instance: "a", Artifact: "m@q", Key: "ka", Limits: matrix.Limits{ContextTokens: 128, Concurrency: 1}, Cache: "off"},
			{Label: "b", Instance: "b", Artifact: "m@q", Key: "kb", Limits: matrix.Limits{ContextTokens: 128, Concurrency: 1}, Cache: "off"}},
			Pairs: []matrix.Pair{{A: "a", B: "b"}}}}}
	if err := schedule.Fill(&p, func(int) int { return superblocks }); err != nil {
		panic(err)
	}
	return p
}

func (w *world) config(p matrix.Plan) Config {
	return Config{
		Plan: p, Grid: matrix.GridInfo{BootID: "boot", Seed: p.Seed},
		Engine: func(_ context.Context, instance string) (Engine, error) { return fakeEngine{w, instance}, nil },
		Artifact: func(matrix.Arm) (matrix.Artifact, []string, error) {
			return matrix.Artifact{ID: "m@q", Canary: matrix.Some(matrix.Canary{Prompt: "?", Answer: "437"})}, nil, nil
		},
		Request:  func(matrix.Arm, matrix.Artifact) (matrix.StartRequest, error) { return matrix.StartRequest{}, nil },
		CheckPin: func(matrix.Arm, matrix.Ready) matrix.Opt[matrix.PinCheck] { return w.pin },
		NextSB:   func(g, drawn int) matrix.Superblock { return schedule.Next(p, g, drawn) },
		Points:   schedule.Points, Box: fakeBox{w}, Stopwatch: fakeClock{w}, Prompts: fakePrompts{}, Recorder: fakeRecorder{w}, Judge: fakeJudge{w}, Now: time.Now,
	}
}
