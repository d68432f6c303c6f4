package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"enginebroker/matrix"
	"enginebroker/matrix/gates"
	"enginebroker/matrix/ledger"
)

const (
	// stopLimit is how long an engine may take from SIGTERM to proved absence. vLLM and SGLang drain first.
	stopLimit = 60 * time.Second
	// canaryLimit bounds one canary generation.
	canaryLimit = 5 * time.Minute
	// failsInRow is how many loads of an arm may fail one after the other before its further loads are not attempted: the
	// third one would say nothing new and costs a cold load.
	failsInRow = 2
)

// load runs one server lifetime. An engine that does not start is evidence, not an error; errors are about the record.
func (r *runner) load(ctx context.Context, group matrix.Group, arm matrix.Arm, slot matrix.Slot) error {
	r.seq++
	rec := matrix.LoadRecord{ID: r.loadID(slot, arm), Grid: r.Grid.Index, Seq: r.seq, Slot: slot, Group: group.ID, ArmKey: arm.Key, StartUTC: r.Now().UTC()}
	l := &load{runner: r, group: group, arm: arm, slot: slot, rec: &rec}
	l.env.BootIDStart = r.Box.BootID()
	r.event(l.event(Event{Kind: "load"}))
	if why := r.dropped[arm.Key]; why != "" {
		rec.Aborted = why
		rec.EndUTC = r.Now().UTC()
		return l.finish()
	}
	err := l.run(ctx)
	rec.EndUTC = r.Now().UTC()
	if errors.Is(err, ErrInterrupted) {
		// The record says what was under way; the superblock is run again from its lead-in.
		if _, aerr := r.Recorder.Append(ledger.KindAbort, r.Now(), ledger.Abort{What: "load", ID: rec.ID, Detail: "interrupted by the operator"}); aerr != nil {
			return aerr
		}
		return err
	}
	if err != nil {
		return err
	}
	return l.finish()
}

func (r *runner) loadID(s matrix.Slot, arm matrix.Arm) string {
	kind := fmt.Sprintf("b%02d", s.Block)
	if s.LeadIn {
		kind = "lead"
	}
	return fmt.Sprintf("%04d-g%d-%d-s%02d-%s-%s", r.seq, r.Grid.Index, s.Group, s.Superblock, kind, arm.Label)
}

type load struct {
	*runner
	group  matrix.Group
	arm    matrix.Arm
	slot   matrix.Slot
	rec    *matrix.LoadRecord
	ready  matrix.Ready
	engine Engine
	watch  Watch
	env    matrix.Env             // before the load
	killed atomic.Pointer[string] // why the memory guard stopped the engine
	pids   atomic.Pointer[[]int]  // the engine's processes, once it is ready; the watch asks for them from elsewhere
	once   sync.Once              // stops the engine
	legs   []Leg
	died   bool // the server was gone before the first point
	// orphaned says that the plugin ended, and the server with it
	orphaned string
}

func (l *load) event(e Event) Event {
	e.Group, e.Superblock, e.Block, e.Arm, e.Load = l.group.ID, l.slot.Superblock, l.slot.Block, l.arm.Label, l.rec.ID
	return e
}

func (l *load) run(ctx context.Context) error {
	artifact, files, err := l.Artifact(l.arm)
	if err != nil {
		return l.abort(matrix.StartFailure{Code: "bad_artifact", Phase: "verify", Message: err.Error()})
	}
	if l.env, err = l.Box.Settle(ctx); err != nil {
		return interrupted(ctx, err)
	}
	// The order is verify, evict, load: hashing refills what must be empty.
	resident, err := l.Box.Evict(files)
	if err != nil {
		return fmt.Errorf("page cache of %s: %w", l.arm.Artifact, err)
	}
	l.env.ResidentPages = resident
	if l.engine, err = l.Engine(ctx, l.arm.Instance); err != nil {
		return l.abort(matrix.StartFailure{Code: "plugin", Phase: "launch", Message: err.Error()})
	}
	starting, giveUp := context.WithCancel(ctx)
	defer giveUp()
	guard := func(why string) {
		l.killed.Store(&why)
		giveUp() // an engine that is still loading cannot be asked to stop: its start is called off
		if l.pids.Load() != nil {
			l.stop(ctx)
		}
	}
	if l.watch, err = l.Box.Watch(ctx, l.tree, guard); err != nil {
		return fmt.Errorf("sampling the box: %w", err)
	}
	defer l.watch.Close()
	req, err := l.Request(l.arm, artifact)
	if err != nil {
		return l.abort(matrix.StartFailure{Code: "request", Phase: "launch", Message: err.Error()})
	}
	req.LoadID, req.LogPath = l.rec.ID, l.Recorder.LogPath(l.rec.ID)
	l.ready, err = l.engine.Start(starting, req, func(p matrix.Progress) {
		l.runner.event(l.event(Event{Kind: "phase", Text: strings.TrimSpace(p.Phase + " " + p.Line)}))
	})
	if err != nil {
		if ctx.Err() != nil {
			l.stop(ctx)
			return ErrInterrupted
		}
		return l.startFailed(err)
	}
	defer l.proveGone(ctx)
	pids := make([]int, len(l.ready.Processes))
	for i, p := range l.ready.Processes {
		pids[i] = p.PID
	}
	l.pids.Store(&pids)
	if l.killed.Load() != nil { // between the last byte of the load and here
		return l.startFailed(context.Canceled)
	}
	l.fails[l.arm.Key] = 0
	l.rec.Ready = matrix.Some(l.ready)
	l.runner.event(l.event(Event{Kind: "ready", Text: l.ready.FirstToken.Round(time.Millisecond).String()}))
	if !l.identity() {
		return nil
	}
	return l.measure(ctx)
}

// identity compares what runs with the pin, with the arm's first load, and with what the workload needs. A mismatch ends
// the load before anything is timed.
func (l *load) identity() bool {
	if !l.pinned(l.ready) {
		return false
	}
	if first, ok := l.prints[l.arm.Key]; !ok {
		l.prints[l.arm.Key] = l.ready.Print
	} else if first != l.ready.Print {
		return l.refuse(fmt.Sprintf("identity: arm_print %.12s differs from the first load's %.12s", l.ready.Print, first), false)
	}
	want, got := l.arm.Limits, l.ready.Granted
	for _, x := range []struct {
		what      string
		want, got int
	}{{"context per request", want.ContextTokens, got.ContextTokens}, {"concurrency", want.Concurrency, got.Concurrency}} {
		if x.got != 0 && x.got < x.want {
			return l.refuse(fmt.Sprintf("limits: the server grants %s %d, the workload needs %d", x.what, x.got, x.want), true)
		}
	}
	return true
}

// pinned compares what runs with the arm's pin, before anything is timed and after each leg.
func (l *load) pinned(now matrix.Ready) bool {
	l.rec.Pin = l.CheckPin(l.arm, now)
	p, ok := l.rec.Pin.Get()
	if !ok || p.OK {
		return true
	}
	// What runs will not match at the next load either.
	return l.refuse(fmt.Sprintf("identity: pin %s does not match: %s", p.Pin, mismatches(p.Mismatch)), true)
}

func mismatches(ms []matrix.PinMismatch) string {
	out := make([]string, len(ms))
	for i, m := range ms {
		out[i] = fmt.Sprintf("%s expected %s, found %s (%s)", m.Field, m.Expected, m.Found, m.Where)
	}
	return strings.Join(out, "; ")
}

// refuse ends the load before its legs; for good where a further load of the arm cannot be different.
func (l *load) refuse(why string, forGood bool) bool {
	l.rec.Aborted = why
	if forGood {
		l.drop(why)
	}
	return false
}

func (l *load) drop(why string) {
	l.dropped[l.arm.Key] = why
	l.runner.event(l.event(Event{Kind: "drop", Text: why}))
}

func (l *load) startFailed(err error) error {
	l.fails[l.arm.Key]++
	f, ok := errors.AsType[*matrix.StartFailure](err)
	if !ok {
		f = &matrix.StartFailure{Code: "plugin", Phase: "start", Message: err.Error()}
	}
	if why := l.killed.Load(); why != nil {
		f.Code, f.Message = "killed", "the memory guard stopped the engine: "+*why
	}
	if l.fails[l.arm.Key] >= failsInRow {
		l.drop(fmt.Sprintf("%d loads in a row did not become ready; the last: %s", failsInRow, f.Message))
		l.byHost[l.arm.Key] = l.killer(*f)
	}
	return l.abort(*f)
}

// abort records a load that did not become ready.
func (l *load) abort(f matrix.StartFailure) error {
	l.rec.Failure = matrix.Some(f)
	l.rec.Aborted = f.Error()
	return nil
}

// finish writes the load, and for the points that it never came to the void legs that say so.
func (l *load) finish() error {
	end := matrix.Env{BootIDEnd: l.Box.BootID()}
	if why := l.killed.Load(); why != nil {
		end.KilledByHost = guardName + *why
	}
	l.rec.Env = merge(l.env, end)
	if err := l.voidLegs(); err != nil {
		return err
	}
	if _, err := l.Recorder.Append(ledger.KindLoad, l.Now(), *l.rec); err != nil {
		return err
	}
	l.runner.loads = append(l.runner.loads, *l.rec)
	l.runner.legs = append(l.runner.legs, l.legs...)
	text := l.rec.Aborted
	if s, ok := l.rec.Stopped.Get(); ok && text == "" {
		text = s.How
	}
	l.runner.event(l.event(Event{Kind: "stopped", Text: text}))
	return nil
}

// voidLegs records one leg per point that was planned and never measured, so that the ledger shows every leg of the plan.
// What ended the load early — a server that died or hangs in an earlier leg — stands against the later ones too.
func (l *load) voidLegs() error {
	var last matrix.LegRecord
	if n := len(l.legs); n > 0 {
		last = l.legs[n-1].Record
	}
	for _, p := range l.points() {
		if slices.ContainsFunc(l.legs, func(x Leg) bool { return x.Record.ID.Point == p.ID }) {
			continue
		}
		leg := l.newLeg(p)
		leg.EndUTC = l.Now().UTC()
		leg.Repetitions = []matrix.Repetition{{Planned: p.Requests}}
		f, failed := l.rec.Failure.Get()
		if failed && !gates.EngineFailed(f.Code) {
			leg.Repetitions, leg.Missing = nil, []string{f.Error()}
		}
		leg.Died = failed && gates.EngineFailed(f.Code) || last.Died || l.died
		leg.Hung = last.Hung
		leg.Note = cmp.Or(l.rec.Aborted, "the load ended at point "+last.ID.Point)
		leg.Env.KilledByHost = cmp.Or(l.byHost[l.arm.Key], last.Env.KilledByHost)
		if failed {
			leg.Env.KilledByHost = l.killer(f)
		} else if l.died {
			leg.Env.KilledByHost = l.endedBy()
		}
		if err := l.put(leg, p, ledger.LegFiles{}); err != nil {
			return err
		}
	}
	return nil
}

// killer says who of the host ended an engine that did not become ready, empty where it ended by itself.
func (l *load) killer(f matrix.StartFailure) string {
	switch why := l.killed.Load(); {
	case why != nil:
		return guardName + *why
	case f.Code == "killed":
		return f.Message
	}
	return ""
}

func (l *load) points() []matrix.Point { return l.Points(l.Plan.Method.Points, max(l.slot.Block, 0)) }

func (l *load) tree() []int {
	if pids := l.pids.Load(); pids != nil {
		return *pids
	}
	return nil
}

// stop ends the engine once, even when the run itself was cancelled; a second caller waits for the first.
func (l *load) stop(ctx context.Context) {
	l.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit+10*time.Second)
		defer cancel()
		s, err := l.engine.Stop(ctx, stopLimit)
		if err != nil {
			s.How = "stop failed: " + err.Error()
		}
		l.rec.Stopped = matrix.Some(s)
	})
}

// proveGone stops the engine and records what is left. Survivors condemn the next load through the box's gates.
func (l *load) proveGone(ctx context.Context) {
	l.stop(ctx)
	if s, ok := l.rec.Stopped.Get(); ok && !s.Gone() && l.rec.Aborted == "" {
		l.drop(fmt.Sprintf("the server could not be proved gone: %d survivors, port free %v", len(s.Survivors), s.PortFree))
	}
}

func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ErrInterrupted
	}
	return err
}
