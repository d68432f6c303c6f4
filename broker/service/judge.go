package service

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"time"

	"enginebroker/matrix"
	"enginebroker/matrix/box"
	"enginebroker/matrix/gates"
	"enginebroker/matrix/ledger"
	"enginebroker/matrix/metrics"
	"enginebroker/matrix/run"
	"enginebroker/matrix/stopwatch"
	"enginebroker/matrix/verdict"
	"enginebroker/matrix/workload"
)

// reportSchema is the version of the report's shape.
const reportSchema = 1

// evidence is a run's ledger as a judgement needs it.
type evidence struct {
	grids []verdict.Grid
	holds []verdict.Hold
	box   matrix.Facts
	state string
	next  string
	// unclosed says that a grid was completed and nothing was begun or closed since: the process ended there.
	unclosed bool
	seq      int // loads that were begun
	// extended counts the superblocks that were added to a group for more evidence, by grid and group.
	extended map[int]map[string]int
	begun    []begun
	redone   []verdict.Redone
	reruns   []ledger.Rerun      // what the operator had run again, in order
	lost     []matrix.LoadRecord // of attempts that were begun anew
}

// begun is a superblock, and how many times the operator had had something run again when it was first begun.
type begun struct {
	grid   int
	group  string
	index  int
	round  int
	extend bool
}

// evidence replays a ledger: grids, loads, and legs reduced from their arrivals. A superblock that was begun anew counts
// from its last start; what an earlier attempt left stays on disk and in no number.
func (s *Service) evidence(ctx context.Context, led *ledger.Run) (evidence, error) {
	plan := led.Plan()
	profile, err := gates.ProfileByName(plan.Box)
	if err != nil {
		return evidence{}, err
	}
	ev := evidence{state: StateInterrupted, extended: map[int]map[string]int{}}
	for rec, err := range led.Records() {
		if err != nil {
			return ev, &Error{Cause: CauseEvidence, Err: err}
		}
		if ctx.Err() != nil {
			return ev, &Error{Cause: CauseInterrupted, Err: ctx.Err()}
		}
		if err := ev.add(rec); err != nil {
			return ev, &Error{Cause: CauseEvidence, Err: err}
		}
	}
	arms := armsOf(plan)
	points := map[string]matrix.Point{}
	for _, p := range plan.Method.Points {
		points[p.ID] = p
	}
	for leg, err := range led.Legs() {
		if err != nil {
			return ev, &Error{Cause: CauseEvidence, Err: err}
		}
		if err := Pause(ctx); err != nil {
			return ev, &Error{Cause: CauseInterrupted, Err: err}
		}
		g := ev.grid(leg.ID.Grid)
		if g == nil {
			continue
		}
		load, counts := loadOf(g.Loads, leg.LoadID)
		if !counts {
			var ok bool
			if load, ok = loadOf(ev.lost, leg.LoadID); !ok {
				continue // of a load that never finished
			}
		}
		arm, ok := arms[leg.ArmKey]
		point, ok2 := points[leg.ID.Point]
		if !ok || !ok2 {
			return ev, fail(CauseEvidence, "", "leg %s is of an arm or a point that the plan does not have", leg.Dir)
		}
		if err := rederive(led, &leg, load, point); err != nil {
			return ev, &Error{Cause: CauseEvidence, Err: fmt.Errorf("%s: %w", leg.Dir, err)}
		}
		// The files that no number is read from, too: without its clocks as they were, a leg can no more be shown to have counted.
		for _, f := range leg.Files {
			if read(leg, load, f) {
				continue
			}
			if x := led.CheckFile(f); x != nil {
				leg.Missing = append(leg.Missing, fmt.Sprintf("%s (%s: %s)", f.Path, x.Code, x.Detail))
			}
		}
		l := reduce(plan, profile, leg.LegRecord, arm, point)
		// Of an attempt that was begun anew, what an engine failed stays on record: an interrupt is no way to lose it.
		if counts || l.Gate.Cause == matrix.CauseEngine {
			g.Legs = append(g.Legs, l)
		}
	}
	runs, ok := workload.ProfileNamed(plan.Profile)
	if !ok {
		return ev, fail(CauseEvidence, "", "plan.json names profile %q, which this program does not know", plan.Profile)
	}
	// One that was cut short stands for nothing yet: it is begun anew.
	ev.redone = slices.DeleteFunc(ev.redone, func(r verdict.Redone) bool {
		g := ev.grid(r.Grid)
		return g == nil || !whole(plan, g.Loads, r.Group, r.Superblock)
	})
	for i := range ev.grids {
		g := &ev.grids[i]
		g.Info.CeilingMHz = ceiling(g.Legs)
		g.Target = targets(gridPlan(plan, runs, g.Info), ev.extended[g.Info.Index])
	}
	return ev, nil
}

// ceiling is the highest clock that any leg of a grid ran at under load.
func ceiling(legs []verdict.Leg) matrix.Opt[int64] {
	var clocks []matrix.Clock
	for _, l := range legs {
		if c, ok := l.Record.Clock.Get(); ok {
			clocks = append(clocks, c)
		}
	}
	return box.Ceiling(clocks...)
}

// rederive fills in the requests of a leg from its arrival logs: reports never take the client's word for a number.
func rederive(led *ledger.Run, leg *ledger.Leg, load matrix.LoadRecord, point matrix.Point) error {
	ready, ok := load.Ready.Get()
	if !ok {
		return nil // a load without its server has legs without arrivals
	}
	for i := range leg.Repetitions {
		if _, ok := leg.File(ledger.ArrivalsFile(i)); !ok {
			if len(leg.Repetitions[i].Requests) > 0 {
				return fmt.Errorf("repetition %d has requests and no arrival log", i)
			}
			continue
		}
		f, err := led.OpenArrivals(*leg, i)
		if err != nil {
			return err
		}
		leg.Repetitions[i].Requests, err = stopwatch.ReadRequests(f, ready.Dialect, point)
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("arrivals of repetition %d: %w", i, err)
		}
	}
	return nil
}

// read says that a file of a leg was read to its end already, and its sum checked there.
func read(leg ledger.Leg, load matrix.LoadRecord, f ledger.FileRef) bool {
	name := path.Base(f.Path)
	if name == ledger.RequestsFile {
		return true
	}
	for i := range leg.Repetitions {
		if name == ledger.ArrivalsFile(i) {
			return load.Ready.Present()
		}
	}
	return false
}

func (ev *evidence) add(rec ledger.Record) error {
	switch rec.Kind {
	case ledger.KindGridOpen:
		var b ledger.GridOpen
		if err := rec.Decode(&b); err != nil {
			return err
		}
		ev.grids = append(ev.grids, verdict.Grid{Info: matrix.GridInfo{Index: b.Grid, BootID: b.BootID, Seed: b.Seed}})
		ev.extended[b.Grid] = map[string]int{}
	case ledger.KindGridClose:
		var b ledger.GridClose
		if err := rec.Decode(&b); err != nil {
			return err
		}
		if g := ev.grid(b.Grid); g != nil {
			g.Info.Done, ev.unclosed = b.Done, b.Done
		}
	case ledger.KindSuperblockStart:
		ev.unclosed = false
		var b ledger.SuperblockStart
		if err := rec.Decode(&b); err != nil {
			return err
		}
		if g := ev.grid(b.Grid); g != nil {
			g.Loads = slices.DeleteFunc(g.Loads, func(l matrix.LoadRecord) bool {
				again := l.Group == b.Group && l.Slot.Superblock == b.Superblock.Index
				if again {
					ev.lost = append(ev.lost, l)
				}
				return again
			})
		}
		ev.begin(b)
	case ledger.KindRerun:
		var b ledger.Rerun
		if err := rec.Decode(&b); err != nil {
			return err
		}
		ev.reruns = append(ev.reruns, b)
	case ledger.KindLoad:
		var b matrix.LoadRecord
		if err := rec.Decode(&b); err != nil {
			return err
		}
		ev.seq = max(ev.seq, b.Seq)
		if g := ev.grid(b.Grid); g != nil {
			g.Loads = append(g.Loads, b)
		}
	case ledger.KindHold:
		var b ledger.Hold
		if err := rec.Decode(&b); err != nil {
			return err
		}
		ev.hold(b, rec.Time)
	case ledger.KindBox:
		var b ledger.Box
		if err := rec.Decode(&b); err != nil {
			return err
		}
		ev.box = b.Facts
	case ledger.KindRunClose:
		var b ledger.RunClose
		if err := rec.Decode(&b); err != nil {
			return err
		}
		ev.state, ev.next, ev.unclosed = b.State, b.Next, false
	case ledger.KindResume:
		ev.seq++ // of the load that may have been under way, whose name is taken
		ev.state, ev.next = StateRunning, ""
	}
	return nil
}

// begin notes a superblock. Of one that is begun anew the last start counts, with what it is run for; as an extension it counts
// once.
func (ev *evidence) begin(b ledger.SuperblockStart) {
	is := begun{b.Grid, b.Group, b.Superblock.Index, len(ev.reruns), b.Why == run.Extend}
	i := slices.IndexFunc(ev.begun, func(x begun) bool { return x.grid == is.grid && x.group == is.group && x.index == is.index })
	if i < 0 {
		ev.begun = append(ev.begun, is)
		if is.extend && ev.extended[b.Grid] != nil {
			ev.extended[b.Grid][b.Group]++
		}
	} else {
		ev.begun[i].round = is.round
		ev.redone = slices.DeleteFunc(ev.redone, func(r verdict.Redone) bool {
			return r.Grid == is.grid && r.Group == is.group && r.Superblock == is.index
		})
	}
	if replaces, ok := b.Replaces.Get(); ok {
		r := verdict.Redone{Grid: b.Grid, Group: b.Group, Superblock: b.Superblock.Index, Replaces: replaces, Operator: b.Why == run.Operator}
		if r.Operator && len(ev.reruns) > 0 {
			by := ev.reruns[len(ev.reruns)-1]
			r.Who, r.Why = by.Who, by.Why
		}
		ev.redone = append(ev.redone, r)
	}
}

func (ev *evidence) hold(b ledger.Hold, at time.Time) {
	h := verdict.Hold{Pair: b.Cell.Pair, Group: b.Cell.Group, Point: b.Cell.Point, Metric: b.Cell.Metric,
		Why: fmt.Sprintf("held by %s at %s: %s", b.Who, at.UTC().Format(time.RFC3339), b.Why)}
	same := func(x verdict.Hold) bool {
		return x.Pair == h.Pair && x.Group == h.Group && x.Point == h.Point && x.Metric == h.Metric
	}
	ev.holds = slices.DeleteFunc(ev.holds, same)
	if !b.Release {
		ev.holds = append(ev.holds, h)
	}
}

func (ev *evidence) grid(index int) *verdict.Grid {
	for i := range ev.grids {
		if ev.grids[i].Info.Index == index {
			return &ev.grids[i]
		}
	}
	return nil
}

func loadOf(loads []matrix.LoadRecord, id string) (matrix.LoadRecord, bool) {
	i := slices.IndexFunc(loads, func(l matrix.LoadRecord) bool { return l.ID == id })
	if i < 0 {
		return matrix.LoadRecord{}, false
	}
	return loads[i], true
}

// targets counts, per group, the superblocks that the cells of a grid use: its planned ones and the extensions, never the
// ones that replaced a void one.
func targets(planned matrix.Plan, extended map[string]int) map[string]int {
	out := map[string]int{}
	for _, g := range planned.Groups {
		out[g.ID] = len(g.Superblocks) + extended[g.ID]
	}
	return out
}

func armsOf(plan matrix.Plan) map[string]matrix.Arm {
	out := map[string]matrix.Arm{}
	for _, g := range plan.Groups {
		for _, a := range g.Arms {
			out[a.Key] = a
		}
	}
	return out
}

// judged is the report of a run, made from its evidence alone.
func (s *Service) judged(ctx context.Context, led *ledger.Run) (matrix.Report, error) {
	ev, err := s.evidence(ctx, led)
	if err != nil {
		return matrix.Report{}, err
	}
	return s.report(led, ev, nil)
}

// report judges evidence by what stands on record beside it, or, to judge again as before, by what an earlier report names.
func (s *Service) report(led *ledger.Run, ev evidence, as *matrix.Beside) (matrix.Report, error) {
	plan := led.Plan()
	profile, err := gates.ProfileByName(plan.Box)
	if err != nil {
		return matrix.Report{}, err
	}
	in, beside, err := s.input(plan, ev, as)
	if err != nil {
		return matrix.Report{}, err
	}
	in.Profile = profile
	res, err := verdict.Judge(in)
	if err != nil {
		return matrix.Report{}, err
	}
	name := filepath.Base(led.Dir())
	if err := before(name, plan, ev, in, res.Cells); err != nil {
		return matrix.Report{}, err
	}
	r := matrix.Report{Schema: reportSchema, Run: name, Plan: plan, PlanSHA256: led.PlanSHA256(), State: ev.state, Next: ev.next,
		Simulated: res.Simulated, Cells: res.Cells, Legs: res.Legs, Box: ev.box, Absent: res.Absent, Beside: beside}
	if plan.Purpose == matrix.PurposeReload {
		if r.Reloads, err = reloads(r.Run, plan, ev); err != nil {
			return matrix.Report{}, err
		}
	}
	for _, g := range ev.grids {
		r.Grids = append(r.Grids, g.Info)
		r.Loads = append(r.Loads, g.Loads...)
	}
	return r, nil
}

// verified opens a run for reading. A ledger that does not verify is an error. A torn last line loses nothing that anybody was
// told of, since a record is answered for when it is on the disk: what stands before it is read, and torn says so.
func (s *Service) verified(dir string) (led *ledger.Run, torn string, err error) {
	led, found, err := ledger.Read(dir)
	if err != nil {
		return nil, "", &Error{Cause: CauseEvidence, Err: err}
	}
	name := filepath.Base(dir)
	if err := found.Without(ledger.TornLine, ledger.SetAside, ledger.OrphanLeg).Err(); err != nil {
		led.Close()
		return nil, "", fail(CauseEvidence, s.again("audit "+name)+" lists every finding", "run %s: %w", name, err)
	}
	for _, f := range found {
		if f.Code == ledger.TornLine {
			torn = fmt.Sprintf("%s sets the torn last line aside, and goes on with the run where there is more to do (%s)", s.again("resume "+name), f)
		}
	}
	return led, torn, nil
}

// Report judges a run again from its evidence.
func (s *Service) Report(ctx context.Context, name string) (matrix.Report, error) {
	r, torn, err := s.rejudged(ctx, name)
	if torn != "" {
		r.Next = torn
	}
	return r, err
}

// rejudged is Report with what is said of a torn last line.
func (s *Service) rejudged(ctx context.Context, name string) (matrix.Report, string, error) {
	dir, err := s.runDir(name)
	if err != nil {
		return matrix.Report{}, "", err
	}
	if r, ok, err := s.imported(dir); ok || err != nil {
		return r, "", err
	}
	led, torn, err := s.verified(dir)
	if err != nil {
		return matrix.Report{}, "", err
	}
	defer led.Close()
	r, err := s.judged(ctx, led)
	if err == nil {
		s.history(ctx, &r)
	}
	return r, torn, err
}

// input is the evidence of a run with what stands beside it. An A/A and a reload experiment rest on nothing else: the one
// because it is the control, the other because it is about one arm.
func (s *Service) input(plan matrix.Plan, ev evidence, as *matrix.Beside) (verdict.Input, matrix.Beside, error) {
	in := verdict.Input{Plan: plan, Metrics: metrics.Catalog(), Grids: ev.grids, AA: verdict.AAPass, Holds: ev.holds, Redone: ev.redone}
	var b matrix.Beside
	if plan.Purpose == matrix.PurposeAA || plan.Purpose == matrix.PurposeReload {
		return in, b, nil
	}
	var aaRuns, reloadRuns []string
	if as != nil {
		aaRuns, reloadRuns = append([]string{}, as.AARuns...), append([]string{}, as.Reloads...)
	}
	var err error
	if in.AA, b.AARuns, err = s.aaOn(plan, ev.box, aaRuns); err != nil {
		return in, b, err
	}
	if in.AA != verdict.AAMissing {
		b.AA = string(in.AA)
	}
	in.Reloads, b.Reloads, err = s.reloadsOn(plan, ev, reloadRuns)
	return in, b, err
}
