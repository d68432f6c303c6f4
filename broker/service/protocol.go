package service

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"enginebroker/matrix"
	"enginebroker/matrix/gates"
	"enginebroker/matrix/ledger"
	"enginebroker/matrix/run"
	"enginebroker/matrix/schedule"
	"enginebroker/matrix/simulate"
	"enginebroker/matrix/stats"
	"enginebroker/matrix/stopwatch"
	"enginebroker/matrix/verdict"
)

// ProtocolCalibration says how much to simulate.
type ProtocolCalibration struct {
	Series  int     // per scenario and truth
	Seed    uint64  //
	Effect  float64 // of the power column, a fraction
	Workers int     // 0: as many as there are processors
	Direct  bool    // values go straight to the judge; else through the run, its gates and its formulas
}

// CalibrateProtocol simulates the whole protocol on scripted values and writes its error rates beside what the protocol
// document found. No socket, clock or file is touched.
func CalibrateProtocol(w io.Writer, c ProtocolCalibration) error {
	if c.Series < 1 || !(c.Effect > 0 && c.Effect < 1) {
		return fail(CauseUsage, "", "a calibration needs a series at least and an effect between 0 and 1")
	}
	o := simulate.Options{Series: c.Series, Seed: c.Seed, Superblocks: matrix.MinBlocks / 2, Effect: stats.Margin(c.Effect), Workers: c.Workers}
	if !c.Direct {
		o.Execute = scriptedGrid
	}
	rows, err := simulate.Calibrate(simulate.Disturbances, o)
	if err != nil {
		return err
	}
	return simulate.Print(w, rows, o)
}

// scriptedGrid runs one grid of a plan through run.Run: engines, box and client are scripted, the record is kept in memory,
// and every leg goes through the gates and formulas that judge real ones.
func scriptedGrid(p matrix.Plan, g matrix.GridInfo, script simulate.Script) (verdict.Grid, error) {
	profile, err := gates.ProfileByName(p.Box)
	if err != nil {
		return verdict.Grid{}, err
	}
	// A leg is one repetition of one request: what it is worth is scripted, and more of them would only say it again.
	p.Method.Points = slices.Clone(p.Method.Points)
	p.Method.Points[0].Requests, p.Method.Repetitions = 1, 1
	w := &scriptedWorld{plan: p, grid: g, script: script, live: liveJudge{plan: p, profile: profile, extended: map[string]int{}}}
	err = run.Run(context.Background(), run.Config{
		Plan: p, Grid: g,
		Engine: func(context.Context, string) (run.Engine, error) { return w, nil },
		Artifact: func(matrix.Arm) (matrix.Artifact, []string, error) {
			return matrix.Artifact{Canary: matrix.Some(matrix.Canary{Answer: scriptedAnswer})}, nil, nil
		},
		Request: func(a matrix.Arm, _ matrix.Artifact) (matrix.StartRequest, error) {
			w.load(a.Label)
			return matrix.StartRequest{}, nil
		},
		CheckPin: func(matrix.Arm, matrix.Ready) matrix.Opt[matrix.PinCheck] { return matrix.Opt[matrix.PinCheck]{} },
		NextSB:   func(group, drawn int) matrix.Superblock { return schedule.Next(p, group, drawn) },
		Points:   schedule.Points, Box: scriptedBox{w}, Stopwatch: w, Prompts: w, Recorder: w, Judge: w,
		Now: func() time.Time { w.now += int64(time.Second); return time.Unix(0, w.now) },
	})
	return verdict.Grid{Info: g, Target: map[string]int{p.Groups[0].ID: len(p.Groups[0].Superblocks)}, Loads: w.loads, Legs: w.legs}, err
}

const (
	scriptedAnswer = "437"
	scriptedTokens = 512
)

// scriptedWorld is everything a run meets, for one grid.
type scriptedWorld struct {
	plan   matrix.Plan
	grid   matrix.GridInfo
	script simulate.Script
	live   liveJudge
	loads  []matrix.LoadRecord
	legs   []verdict.Leg
	begun  int
	arm    string
	value  float64 // of the load under way
	now    int64
}

func (w *scriptedWorld) load(arm string) {
	l := simulate.Load{Grid: w.grid.Index, Seq: w.begun, Arm: arm, Previous: w.arm}
	w.begun, w.arm, w.value = w.begun+1, arm, w.script(l)
}

func (w *scriptedWorld) Start(context.Context, matrix.StartRequest, func(matrix.Progress)) (matrix.Ready, error) {
	return simulate.Ready(w.arm), nil
}

func (w *scriptedWorld) Observe(context.Context) (matrix.State, error) {
	return matrix.State{Alive: true, Print: simulate.Ready(w.arm).Print}, nil
}

func (w *scriptedWorld) Stop(context.Context, time.Duration) (matrix.Stopped, error) {
	return matrix.Stopped{How: "term", PortFree: true}, nil
}

func (w *scriptedWorld) Open(context.Context, matrix.Dialect, matrix.Point) (run.Client, error) {
	return scriptedClient{w}, nil
}

func (w *scriptedWorld) Ask(context.Context, matrix.Dialect, string, int, time.Duration) (matrix.Request, error) {
	return matrix.Request{Outcome: matrix.OutcomeOK, Text: scriptedAnswer}, nil
}

func (w *scriptedWorld) Take(int, matrix.Point, int, int) ([]stopwatch.Prompt, error) {
	return nil, nil
}

func (w *scriptedWorld) Append(_ ledger.Kind, _ time.Time, body any) (ledger.Record, error) {
	if l, ok := body.(matrix.LoadRecord); ok {
		w.loads = append(w.loads, l)
	}
	return ledger.Record{}, nil
}

func (w *scriptedWorld) PutLeg(matrix.LegRecord, ledger.LegFiles) error { return nil }
func (w *scriptedWorld) LogPath(string) string                          { return "" }

func (w *scriptedWorld) Leg(rec matrix.LegRecord, arm matrix.Arm, point matrix.Point) (run.Leg, error) {
	l, err := w.live.Leg(rec, arm, point)
	w.legs = append(w.legs, verdict.Leg{Record: l.Record, Gate: l.Gate, Values: l.Values})
	if err == nil && len(l.Gate.Codes) > 0 {
		err = fmt.Errorf("a scripted leg is void: %v %v", l.Gate.Codes, l.Gate.Detail)
	}
	return l, err
}

// Next asks for what is to be run again and never for more evidence: the figures are those of one fixed length.
func (w *scriptedWorld) Next(g matrix.GridInfo, loads []matrix.LoadRecord, _ []run.Leg, _ []run.Redo) (run.Next, error) {
	in, err := simulate.Input(w.plan, verdict.Grid{Info: matrix.GridInfo{Index: g.Index, BootID: g.BootID, Seed: g.Seed, Done: true},
		Target: map[string]int{w.plan.Groups[0].ID: len(w.plan.Groups[0].Superblocks)}, Loads: loads, Legs: w.legs})
	if err != nil {
		return run.Next{}, err
	}
	res, err := verdict.Judge(in)
	var n run.Next
	for _, r := range res.Rerun {
		n.Rerun = append(n.Rerun, run.Redo{Group: r.Group, Replaces: r.Superblock})
	}
	return n, err
}

type scriptedClient struct{ w *scriptedWorld }

func (c scriptedClient) Run(_ context.Context, j stopwatch.Job) (run.Recording, error) {
	return scriptedPass{j, c.w.value}, nil
}
func (scriptedClient) Close() error { return nil }

// scriptedPass is a pass whose output rate is the scripted value.
type scriptedPass struct {
	job   stopwatch.Job
	value float64
}

func (p scriptedPass) Write(io.Writer) error { return nil }
func (p scriptedPass) Hung() bool            { return false }
func (p scriptedPass) Cost() matrix.ClientCost {
	return matrix.ClientCost{LagP99: matrix.Some(int64(0)), LatenessP99: matrix.Some(int64(0))}
}
func (p scriptedPass) Window() (int64, int64) {
	return 0, int64(float64(scriptedTokens*p.job.Point.Requests) / p.value * 1e9)
}

func (p scriptedPass) Reduce(matrix.Dialect, matrix.Point) []matrix.Request {
	_, end := p.Window()
	out := make([]matrix.Request, p.job.Point.Requests)
	for i := range out {
		out[i] = matrix.Request{Index: i, Repetition: p.job.Repetition, Outcome: matrix.OutcomeOK, Requested: scriptedTokens, FinishReason: "length",
			CompletionTokens: matrix.Some(int64(scriptedTokens)), TokenEvents: scriptedTokens, CachedTokens: matrix.Some(int64(0)),
			PromptTokens: matrix.Some(int64(1024)), ExpectedPrompt: matrix.Some(int64(1024)),
			Sent: matrix.Some(int64(0)), FirstToken: matrix.Some(end / 100), LastToken: matrix.Some(end)}
	}
	return out
}

// scriptedBox is a quiet machine with pinned, flat clocks.
type scriptedBox struct{ w *scriptedWorld }

func (b scriptedBox) BootID() string { return b.w.grid.BootID }
func (b scriptedBox) Settle(context.Context) (matrix.Env, error) {
	return matrix.Env{BootIDStart: b.w.grid.BootID, MemBaselineKiB: matrix.Some(int64(1)), MemBeforeKiB: matrix.Some(int64(1)), LoadAverage: matrix.Some(0.0)}, nil
}
func (scriptedBox) Evict([]string) (matrix.Opt[int64], error) { return matrix.Some(int64(0)), nil }
func (b scriptedBox) Watch(context.Context, func() []int, func(string)) (run.Watch, error) {
	return scriptedWatch(b), nil
}

type scriptedWatch struct{ w *scriptedWorld }

func (s scriptedWatch) Window(int64, int64, [][2]int64) (matrix.Env, matrix.Opt[matrix.Clock], func(io.Writer) error) {
	return matrix.Env{ForeignGPU: matrix.Some(int64(0)), ThermalDelta: matrix.Some(int64(0)), SwapDelta: matrix.Some(int64(0))}, flatClock(s.w.grid.BootID), nil
}
func (scriptedWatch) Killed(matrix.Process) string { return "" }
func (scriptedWatch) Close() error                 { return nil }

var flatSeconds = func() []matrix.ClockSecond {
	out := make([]matrix.ClockSecond, 30)
	for i := range out {
		out[i] = matrix.ClockSecond{MHz: 2190, Util: 95}
	}
	return out
}()

func flatClock(boot string) matrix.Opt[matrix.Clock] {
	return matrix.Some(matrix.Clock{Seconds: flatSeconds, Persistence: matrix.Some(true), BootID: boot, MaxMHz: matrix.Some(int64(2600))})
}
