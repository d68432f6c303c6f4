package service

import (
	"bytes"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"enginebroker/matrix"
	"enginebroker/matrix/ledger"
	"enginebroker/matrix/schedule"
	"enginebroker/matrix/simulate"
	"enginebroker/matrix/stopwatch"
)

// evidenceRun writes the ledger of a run as a measurement would, with small recordings of streams whose rates are known.
type evidenceRun struct {
	t     testing.TB
	s     *Service
	name  string
	plan  matrix.Plan
	led   *ledger.Run
	grids int
	seq   int
	// value is the output rate of one load at one point, in tokens per second.
	value func(grid int, slot matrix.Slot, point string) float64
	// leg and load change what is recorded, before it is written.
	leg  func(*matrix.LegRecord)
	load func(*matrix.LoadRecord)
	// big gives one recording for all legs of a point, where a run is to be large.
	big func(matrix.Point, matrix.Dialect) (*stopwatch.Recording, []matrix.Request)
	// broken says of which legs the first request is cut.
	broken func(grid int, slot matrix.Slot, point string) bool
	// start changes the record that begins a superblock; loads limits how many of it are run, 0: all.
	start func(*ledger.SuperblockStart)
	loads int
}

func testService(t testing.TB) *Service {
	dir := t.TempDir()
	return &Service{runs: dir, state: filepath.Join(dir, ".broker"), getenv: func(string) string { return "" }, log: zap.NewNop(), now: time.Now}
}

var testBox = matrix.Facts{{Name: "gpu_uuid", Value: "GPU-1", Standing: matrix.Observed}, {Name: "gpu_driver", Value: "580", Standing: matrix.Observed}}

// evidencePlan is two arms on a GB10, as a binding run plans them: three superblocks, then a confirmation on another boot.
func evidencePlan(t testing.TB, superblocks int, points []string, arms ...string) matrix.Plan {
	t.Helper()
	p, err := simulate.Plan(arms, superblocks, 7)
	if err != nil {
		t.Fatal(err)
	}
	p.Profile, p.Grids, p.Method.Profile, p.Method.Repetitions = "binding", 2, "binding", 1
	p.Method.Points = nil
	for _, id := range points {
		p.Method.Points = append(p.Method.Points, matrix.Point{ID: id, Concurrency: 1, Requests: 2, OutputTokens: 8, PromptTokens: 1024, IgnoreEOS: true})
	}
	p.Method.Primary = nil // the catalog's
	for i := range p.Groups[0].Arms {
		a := &p.Groups[0].Arms[i]
		a.Simulated, a.Engine = false, "engine-"+a.Label
	}
	if p.MethodID, err = p.Method.ID(); err != nil {
		t.Fatal(err)
	}
	return p
}

func newEvidence(t testing.TB, s *Service, name string, p matrix.Plan, values map[string]float64) *evidenceRun {
	t.Helper()
	led, err := ledger.Create(filepath.Join(s.runs, name), p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { led.Close() })
	r := &evidenceRun{t: t, s: s, name: name, plan: p, led: led}
	r.value = func(_ int, slot matrix.Slot, _ string) float64 {
		return values[slot.Arm] * (1 + 0.0005*float64(slot.Block%3-1)) // a little noise, so that there is an interval
	}
	r.append(ledger.KindBox, ledger.Box{Facts: testBox})
	return r
}

func (r *evidenceRun) append(kind ledger.Kind, body any) {
	r.t.Helper()
	if _, err := r.led.Append(kind, time.Unix(int64(1e9+r.seq), 0), body); err != nil {
		r.t.Fatal(err)
	}
}

// grid runs superblocks on a boot of their own.
func (r *evidenceRun) grid(superblocks int) {
	boot := fmt.Sprintf("boot-%d", r.grids)
	r.append(ledger.KindGridOpen, ledger.GridOpen{Grid: r.grids, BootID: boot, Seed: r.plan.Seed})
	for i := range superblocks {
		r.superblock(boot, schedule.Next(r.plan, 0, i))
	}
	r.append(ledger.KindGridClose, ledger.GridClose{Grid: r.grids, Done: true})
	r.grids++
}

func (r *evidenceRun) superblock(boot string, sb matrix.Superblock) {
	g := r.plan.Groups[0]
	start := ledger.SuperblockStart{Grid: r.grids, Group: g.ID, Superblock: sb}
	if r.start != nil {
		r.start(&start)
	}
	r.append(ledger.KindSuperblockStart, start)
	for i, slot := range sb.Slots(0) {
		if r.loads > 0 && i == r.loads {
			return
		}
		r.seq++
		at := time.Unix(int64(1e9+r.seq), 0).UTC()
		env := matrix.Env{BootIDStart: boot, BootIDEnd: boot, MemBaselineKiB: matrix.Some(int64(1)), MemBeforeKiB: matrix.Some(int64(1)), LoadAverage: matrix.Some(0.0),
			ResidentPages: matrix.Some(int64(0)), ForeignGPU: matrix.Some(int64(0)), ThermalDelta: matrix.Some(int64(0)), SwapDelta: matrix.Some(int64(0))}
		ready := simulate.Ready(slot.Arm)
		ready.Dialect = matrix.Dialect{Form: "openai", End: "done", Usage: "own_chunk", Sources: []matrix.TokenSource{{Name: "usage", Kind: matrix.CountExact}}}
		l := matrix.LoadRecord{ID: fmt.Sprintf("%04d-%s", r.seq, slot.Arm), Grid: r.grids, Seq: r.seq, Slot: slot, Group: g.ID, ArmKey: armKey(g, slot.Arm), StartUTC: at, EndUTC: at,
			Ready: matrix.Some(ready), Env: env}
		if r.load != nil {
			r.load(&l)
		}
		for _, p := range r.plan.Method.Points {
			rec := matrix.LegRecord{ID: matrix.LegID{Load: r.seq, Grid: r.grids, Group: g.ID, Superblock: sb.Index, Block: slot.Block, Position: slot.Position,
				Arm: slot.Arm, Point: p.ID, LeadIn: slot.LeadIn}, ArmKey: armKey(g, slot.Arm), ArmPrint: ready.Print, PrintEnd: ready.Print, MethodID: r.plan.MethodID,
				MethodEnd: r.plan.MethodID, LoadID: l.ID, Seq: r.seq, StartUTC: at, EndUTC: at, Env: env, Clock: flatClock(boot),
				Canaries: []matrix.CanaryResult{{When: "before", OK: true}}}
			var raw *stopwatch.Recording
			var reqs []matrix.Request
			if r.big != nil {
				raw, reqs = r.big(p, ready.Dialect)
			} else {
				raw = stream(p, r.value(r.grids, slot, p.ID), r.broken != nil && r.broken(r.grids, slot, p.ID))
				reqs = stopwatch.Reduce(raw, ready.Dialect, p)
			}
			says := func(what string) ledger.Writer {
				return func(w io.Writer) error { _, err := fmt.Fprintf(w, "%s of load %04d\n", what, r.seq); return err }
			}
			files := ledger.LegFiles{Warmup: says("warm-up"), Clocks: says("clocks"), LogTail: says("log")}
			for i := range r.plan.Method.Repetitions {
				own, of := slices.Clone(reqs), *raw
				of.Repetition = i
				for k := range own {
					own[k].Repetition = i
				}
				rec.Repetitions = append(rec.Repetitions, matrix.Repetition{Index: i, Start: raw.Start, End: raw.End, Planned: p.Requests, Requests: own, Client: raw.Cost(reqs)})
				files.Repetitions = append(files.Repetitions, func(w io.Writer) error { _, err := of.WriteTo(w); return err })
			}
			if r.leg != nil {
				r.leg(&rec)
			}
			if err := r.led.PutLeg(rec, files); err != nil {
				r.t.Fatal(err)
			}
		}
		r.append(ledger.KindLoad, l)
	}
	r.append(ledger.KindSuperblockEnd, ledger.SuperblockEnd{Grid: r.grids, Group: g.ID, Superblock: sb.Index})
}

// close ends the run and writes its report.
func (r *evidenceRun) close() {
	r.t.Helper()
	r.append(ledger.KindRunClose, ledger.RunClose{State: StateComplete})
	rep, err := r.s.judged(r.t.Context(), r.led)
	if err == nil {
		err = r.s.writeReport(r.led, rep)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	r.s.summarise(r.led, StateComplete, "")
	if err := r.led.Close(); err != nil {
		r.t.Fatal(err)
	}
}

// stream is a recording of one pass at a known rate: every token an event of its own, one request after the other.
func stream(p matrix.Point, rate float64, broken bool) *stopwatch.Recording {
	step := int64(1e9 / rate)
	rec := &stopwatch.Recording{Start: 1e12, Planned: p.Requests, CPU: -1, Address: "127.0.0.1:1"}
	now := int64(0)
	for i := range p.Requests {
		x := stopwatch.Exchange{Index: i, Prompt: fmt.Sprintf("p%d", i), Expected: matrix.Some(int64(p.PromptTokens)), Scheduled: now, Begin: now, Sent: now}
		var wire bytes.Buffer
		put := func(at int64, b string) {
			wire.WriteString(b)
			x.Segments = append(x.Segments, stopwatch.Segment{At: at, Lag: 0, Bytes: len(b)})
		}
		chunk := func(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }
		put(now, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
		n := p.OutputTokens
		if broken && i == 0 {
			n /= 2
		}
		for k := range n {
			put(now+int64(k+1)*step, chunk(fmt.Sprintf(`data: {"choices":[{"index":0,"text":" w%d","finish_reason":null}],"usage":null}`+"\n\n", k)))
		}
		now += int64(p.OutputTokens) * step
		if broken && i == 0 {
			x.Ending, x.Error, x.End = stopwatch.EndReset, "connection reset by peer", now
		} else {
			put(now, chunk(`data: {"choices":[{"index":0,"text":"","finish_reason":"length"}],"usage":null}`+"\n\n")+
				chunk(fmt.Sprintf(`data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":0}}}`+"\n\n", p.PromptTokens, p.OutputTokens))+
				chunk("data: [DONE]\n\n")+"0\r\n\r\n")
			x.End = now
		}
		x.Wire = [][]byte{wire.Bytes()}
		rec.Exchanges = append(rec.Exchanges, x)
	}
	rec.End = rec.Start + now
	return rec
}

// passAA puts a dedicated A/A of the plan's method on record.
func passAA(t testing.TB, s *Service, p matrix.Plan) {
	t.Helper()
	key := aaKeyOf(p.MethodID, testBox)
	if err := s.keep("aa", key, aaRecord{aaKey: key, Runs: []aaRun{{Run: "aa", Passed: true}}}); err != nil {
		t.Fatal(err)
	}
}

func (r *evidenceRun) report() matrix.Report {
	r.t.Helper()
	rep, err := r.s.Report(r.t.Context(), r.name)
	if err != nil {
		r.t.Fatal(err)
	}
	return rep
}

// printed is what a reader of the terminal sees of a report, on one line.
func printed(t testing.TB, r matrix.Report) string {
	t.Helper()
	var b strings.Builder
	if err := Render(&b, r, "terminal", Look{Width: 200}); err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

func cellOf(t testing.TB, r matrix.Report, point string) matrix.Cell {
	t.Helper()
	for _, c := range r.Cells {
		if c.ID.Metric == simulate.Metric.Name && c.ID.Point == point {
			return c
		}
	}
	t.Fatalf("no cell of %s at %s", simulate.Metric.Name, point)
	return matrix.Cell{}
}

func armKey(g matrix.Group, label string) string {
	a, _ := g.Arm(label)
	return a.Key
}
