package service

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"enginebroker/matrix"
	"enginebroker/matrix/box"
	"enginebroker/matrix/ledger"
)

// States of a run that nobody closed, as a listing shows them: what the mark in its folder and the boot id tell.
const (
	StateVanished = "host_vanished"
	StateDied     = "broker_died"
)

// fate says of a run's mark what became of the run.
func fate(u box.Unfinished, name string) (state, text string) {
	since := u.Since.Format(time.RFC3339)
	switch u.Fate {
	case box.FateVanished:
		return StateVanished, fmt.Sprintf("run %s was going on since %s when the host vanished: the machine was reset or lost power, or ran out of memory; go on with: broker resume %s", name, since, name)
	case box.FateDied:
		return StateDied, fmt.Sprintf("run %s was going on since %s when its broker (PID %d) died; go on with: broker resume %s", name, since, u.PID, name)
	}
	return StateRunning, ""
}

// unclosed puts into a listing what became of the runs that it still calls running.
func (s *Service) unclosed(ctx context.Context, runs []RunInfo) {
	if !slices.ContainsFunc(runs, func(r RunInfo) bool { return r.State == StateRunning }) {
		return
	}
	b, done, err := s.box(ctx, simulatedBox, nil) // the boot id is the same whatever the profile
	if err != nil {
		s.log.Warn("states of runs: " + err.Error())
		return
	}
	defer done()
	for i := range runs {
		r := &runs[i]
		if r.State != StateRunning {
			continue
		}
		u, err := b.Unfinished(filepath.Join(s.runs, r.Name))
		if err != nil {
			r.Next = err.Error()
		} else if x, ok := u.Get(); ok {
			if r.State, _ = fate(x, r.Name); r.State != StateRunning {
				r.Next = "broker resume " + r.Name
			}
		}
	}
}

// others tells of runs that ended without a word and of a lock that died with its holder, when a run begins.
func (s *Service) others(ctx context.Context, bx *box.Box, lock *box.Lock, name string, say func(string)) {
	if h, ok := lock.Previous.Get(); ok {
		say(fmt.Sprintf("the box was held by PID %d (%s) since %s, which died without giving it back", h.PID, h.Name, h.Since.Format(time.RFC3339)))
	}
	runs, err := s.Runs(ctx)
	if err != nil {
		s.log.Warn("states of runs: " + err.Error())
		return
	}
	for _, r := range runs {
		if r.Name == name || r.State != StateVanished && r.State != StateDied {
			continue
		}
		if u, err := bx.Unfinished(filepath.Join(s.runs, r.Name)); err == nil && u.Present() {
			x, _ := u.Get()
			_, text := fate(x, r.Name)
			say(text)
		}
	}
}

// recordFate writes into the ledger of a run that is gone on with how it ended. Where the host vanished, the load that was
// under way gets its record: void, by the environment.
func (s *Service) recordFate(led *ledger.Run, bx *box.Box, say func(string)) error {
	u, err := bx.Unfinished(led.Dir())
	if err != nil {
		return &Error{Cause: CauseEvidence, Err: err}
	}
	x, ok := u.Get()
	if !ok || x.Fate == box.FateRunning {
		return nil // closed, or refused by the ledger's own lock
	}
	_, text := fate(x, filepath.Base(led.Dir()))
	say(text)
	if _, err := led.Append(ledger.KindAbort, s.now(), ledger.Abort{What: "run", ID: filepath.Base(led.Dir()), Detail: string(x.Fate) + ": " + text}); err != nil {
		return err
	}
	if x.Fate == box.FateVanished {
		if err := s.recordLost(led, x); err != nil {
			return err
		}
	}
	return box.Forget(led.Dir())
}

// recordLost writes the record of the load that the host took with it: the first of the open superblock without one.
func (s *Service) recordLost(led *ledger.Run, x box.Unfinished) error {
	plan := led.Plan()
	lost, arm, ok, err := inFlight(led)
	if err != nil || !ok {
		return err
	}
	env := matrix.Env{BootIDStart: x.BootID, HostVanished: true}
	lost.StartUTC, lost.EndUTC, lost.Env, lost.Aborted = x.Since, s.now().UTC(), env, "the host vanished"
	for _, p := range plan.Method.Points {
		leg := matrix.LegRecord{ID: matrix.LegID{Load: lost.Seq, Grid: lost.Grid, Group: lost.Group, Superblock: lost.Slot.Superblock, Block: lost.Slot.Block,
			Position: lost.Slot.Position, Arm: arm.Label, Point: p.ID, LeadIn: lost.Slot.LeadIn},
			ArmKey: arm.Key, MethodID: plan.MethodID, MethodEnd: plan.MethodID, LoadID: lost.ID, Seq: lost.Seq, StartUTC: lost.StartUTC, EndUTC: lost.EndUTC,
			Env: env, Repetitions: []matrix.Repetition{{Planned: p.Requests}}, Note: lost.Aborted}
		if err := led.PutLeg(leg, ledger.LegFiles{}); err != nil {
			return err
		}
	}
	_, err = led.Append(ledger.KindLoad, s.now(), lost)
	return err
}

// inFlight is the load that was due when the record ends; false where none was.
func inFlight(led *ledger.Run) (lost matrix.LoadRecord, arm matrix.Arm, ok bool, err error) {
	plan := led.Plan()
	var open ledger.SuperblockStart
	recorded, seq := 0, 0
	for rec, err := range led.Records() {
		if err != nil {
			return lost, arm, false, &Error{Cause: CauseEvidence, Err: err}
		}
		switch rec.Kind {
		case ledger.KindSuperblockStart:
			ok, recorded = true, 0
			err = rec.Decode(&open)
		case ledger.KindSuperblockEnd, ledger.KindGridClose:
			ok = false
		case ledger.KindLoad:
			var l matrix.LoadRecord
			err = rec.Decode(&l)
			seq, recorded = max(seq, l.Seq), recorded+1
		}
		if err != nil {
			return lost, arm, false, &Error{Cause: CauseEvidence, Err: err}
		}
	}
	g := slices.IndexFunc(plan.Groups, func(g matrix.Group) bool { return g.ID == open.Group })
	if !ok || g < 0 {
		return lost, arm, false, nil
	}
	slots := open.Superblock.Slots(g)
	if recorded >= len(slots) {
		return lost, arm, false, nil
	}
	slot := slots[recorded]
	if arm, ok = plan.Groups[g].Arm(slot.Arm); !ok {
		return lost, arm, false, fail(CauseEvidence, "", "superblock %d of %s names arm %q, which the plan does not have", open.Superblock.Index, open.Group, slot.Arm)
	}
	return matrix.LoadRecord{ID: fmt.Sprintf("%04d-vanished", seq+1), Grid: open.Grid, Seq: seq + 1, Slot: slot, Group: open.Group, ArmKey: arm.Key}, arm, true, nil
}

// pinHeld refuses to go on with a run whose clock is pinned otherwise now: the pin state is in its method.
func pinHeld(plan matrix.Plan, bx *box.Box) error {
	if now := bx.PinState(); now != plan.Method.PinState {
		fix := "take the pin off again (sudo nvidia-smi -rgc), or begin a new run"
		if now == "unpinned" {
			fix = unpinned(bx.PinCommands())
		}
		return fail(CauseUsage, fix, "the run's method says that the clock is %s; on this boot it is %s", plan.Method.PinState, now)
	}
	return nil
}
