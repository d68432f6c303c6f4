package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"enginebroker/matrix"
	"enginebroker/matrix/gates"
	"enginebroker/matrix/ledger"
	"enginebroker/matrix/metrics"
	"enginebroker/matrix/run"
	"enginebroker/matrix/verdict"
	"enginebroker/matrix/workload"
)

// RerunBy is who has superblocks run again, and why.
type RerunBy struct {
	Who string `json:"who"`
	Why string `json:"why"`
}

// Rerun runs again the superblocks in which an engine failed, for every cell of a run whose name contains all words and that
// this withholds (protocol §4.4). The cells are released if the engine passes; what failed stays on record, with who had it
// run again and why. It needs the boot of the grid: figures of another boot are another grid's.
func (s *Service) Rerun(ctx context.Context, name string, words []string, by RerunBy, on func(Event)) (Outcome, error) {
	if strings.TrimSpace(by.Who) == "" || strings.TrimSpace(by.Why) == "" {
		return Outcome{}, fail(CauseUsage, "", "a re-run says who wants it and why")
	}
	led, err := s.reopen(name, on)
	if err != nil {
		return Outcome{}, err
	}
	defer led.Close()
	plan := led.Plan()
	ev, err := s.evidence(ctx, led)
	if err != nil {
		return Outcome{}, err
	}
	owed, err := withheld(plan, ev, words)
	if err != nil {
		return Outcome{}, err
	}
	t, err := s.team(ctx, Request{Engines: instancesOf(plan)})
	if err != nil {
		return Outcome{}, err
	}
	defer t.close()
	if err := cmp.Or(sameArms(plan, t), s.samePoints(plan)); err != nil {
		return Outcome{}, err
	}
	bx, done, err := s.box(ctx, simulatedBox, nil) // the boot id is the same whatever the profile
	if err != nil {
		return Outcome{}, err
	}
	boot := bx.BootID()
	done()
	last := ev.grids[len(ev.grids)-1]
	switch {
	case !last.Info.Done:
		return Outcome{}, fail(CauseUsage, s.again("resume "+name)+" completes it", "grid %d of the run is not complete", last.Info.Index+1)
	case slices.ContainsFunc(owed, func(v verdict.EngineVoid) bool { return v.Grid != last.Info.Index }), last.Info.BootID != boot:
		return Outcome{}, fail(CauseUsage, "measure the series again in a new run; its cells supersede these", "the engine failed on an earlier boot, whose figures cannot be completed on this one")
	}
	record := ledger.Rerun{Grid: last.Info.Index, Superblocks: redoneIn(plan, last.Loads, owed), Who: by.Who, Why: by.Why}
	pr := prior{resumed: true, seq: ev.seq, extended: ev.extended[last.Info.Index], rerun: matrix.Some(record)}
	for _, r := range record.Superblocks {
		pr.again = append(pr.again, run.Redo{Group: groupIndex(plan, r.Group), Replaces: r.Superblock})
	}
	pr.reuse(plan, last)
	pr.replaced(plan, last.Info.Index, ev.redone)
	held, err := s.hold(ctx, plan, filepath.Base(led.Dir()), on)
	if err != nil {
		return Outcome{}, err
	}
	defer held.release()
	return s.perform(ctx, t, led, held, last.Info, pr, on)
}

// reopen opens a run for going on with it.
func (s *Service) reopen(name string, on func(Event)) (*ledger.Run, error) {
	dir, err := s.runDir(name)
	if err != nil {
		return nil, err
	}
	if _, ok, _ := imports(dir); ok {
		return nil, fail(CauseUsage, "broker report prints it", "run %s holds imported results; there is nothing to go on with", name)
	}
	return s.openRun(dir, func(f ledger.Finding) { on(Event{At: s.now(), Kind: "finding", Text: f.String()}) })
}

// openRun opens a run for writing. That a torn line was set aside goes on its record.
func (s *Service) openRun(dir string, on func(ledger.Finding)) (*ledger.Run, error) {
	led, found, err := ledger.Open(dir)
	if err != nil {
		cause := CauseEvidence
		if errors.Is(err, ledger.ErrBusy) {
			cause = CauseBusy
		}
		return nil, &Error{Cause: cause, Err: err}
	}
	for _, f := range found {
		on(f)
		if f.Code != ledger.TornLine {
			continue
		}
		if _, err := led.Append(ledger.KindNote, s.now(), ledger.Note{Text: "set aside: " + f.String()}); err != nil {
			led.Close()
			return nil, err
		}
	}
	return led, nil
}

// withheld finds what has to be run again for the cells that the words name.
func withheld(plan matrix.Plan, ev evidence, words []string) ([]verdict.EngineVoid, error) {
	res, err := judgedAlone(plan, ev)
	if err != nil {
		return nil, err
	}
	var out []verdict.EngineVoid
	named := false
	for _, c := range res.Cells {
		id := c.ID.String()
		if slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(id, w) }) {
			continue
		}
		named = true
		for _, v := range res.EngineVoids {
			if v.Pair == c.ID.Pair && v.Group == c.ID.Group && v.Point == c.ID.Point && !slices.ContainsFunc(out, func(x verdict.EngineVoid) bool {
				return x.Grid == v.Grid && x.Pair == v.Pair && x.Group == v.Group && x.Point == v.Point
			}) {
				out = append(out, v)
			}
		}
	}
	switch {
	case len(res.Cells) == 0:
		return nil, fail(CauseUsage, "", "the run has no cells, so that none is withheld")
	case !named:
		return nil, fail(CauseNotFound, "a cell is named A:B/ARTIFACT|POLICY/POINT/METRIC, as the report prints it", "no cell of the run contains %s", strings.Join(words, " and "))
	case len(out) == 0:
		return nil, fail(CauseUsage, "broker explain says what would release a cell", "no cell of these is withheld for an engine's failure (%s)", matrix.EngineVoidOnRecord)
	}
	return out, nil
}

// judgedAlone judges evidence by itself, without what stands beside it: what an engine failed does not depend on that.
func judgedAlone(plan matrix.Plan, ev evidence) (verdict.Result, error) {
	profile, err := gates.ProfileByName(plan.Box)
	if err != nil {
		return verdict.Result{}, err
	}
	return verdict.Judge(verdict.Input{Plan: plan, Metrics: metrics.Catalog(), Profile: profile, Grids: ev.grids, AA: verdict.AAPass, Redone: ev.redone})
}

// redoneIn lists each superblock once, in order.
func redoneIn(plan matrix.Plan, loads []matrix.LoadRecord, owed []verdict.EngineVoid) []ledger.Redone {
	var out []ledger.Redone
	for _, g := range plan.Groups {
		var indexes []int
		for _, v := range owed {
			if v.Group == g.ID {
				indexes = append(indexes, v.Superblocks...)
			}
		}
		slices.Sort(indexes)
		for _, i := range slices.Compact(indexes) {
			if !whole(plan, loads, g.ID, i) {
				continue // a re-run that was cut short is begun anew with what it is for
			}
			r := ledger.Redone{Group: g.ID, Superblock: i}
			for _, v := range owed {
				if v.Group == g.ID && slices.Contains(v.Superblocks, i) {
					r.Legs = append(r.Legs, v.Legs...)
				}
			}
			slices.Sort(r.Legs)
			r.Legs = slices.Compact(r.Legs)
			out = append(out, r)
		}
	}
	return out
}

// unused refuses a re-run for which the corpus has no prompts left: none is ever used twice.
func unused(c *workload.Corpus, plan matrix.Plan, pr prior) error {
	for g, group := range plan.Groups {
		most := len(group.Superblocks) - 1
		for _, l := range pr.loads {
			if l.Group == group.ID {
				most = max(most, l.Slot.Superblock)
			}
		}
		again := 0
		for _, r := range pr.again {
			if r.Group == g {
				again++
			}
		}
		if have := c.Manifest.Spec.Superblocks; again > 0 && most+1+again > have {
			return fail(CauseUsage, "measure the series again in a new run", "%d superblocks are to be run again, and the corpus of the run has prompts for %d, of which %d are used", again, have, most+1)
		}
	}
	return nil
}

// before gives every cell its verdict from before each re-run that changed it, so that a released cell shows what was
// released, by whom and why.
func before(name string, plan matrix.Plan, ev evidence, in verdict.Input, cells []matrix.Cell) error {
	then := make([]map[matrix.CellID]matrix.Cell, len(ev.reruns)+1)
	for round := range then {
		then[round] = map[matrix.CellID]matrix.Cell{}
		judged := cells
		if round < len(ev.reruns) {
			in.Grids = ev.until(round, plan)
			res, err := verdict.Judge(in)
			if err != nil {
				return fmt.Errorf("run %s as it was before re-run %d: %w", name, round+1, err)
			}
			judged = res.Cells
		}
		for _, c := range judged {
			then[round][c.ID] = c
		}
	}
	for i := range cells {
		for round := len(ev.reruns) - 1; round >= 0; round-- { // latest first, as in the history across runs
			was, ok := then[round][cells[i].ID]
			now := then[round+1][cells[i].ID]
			if !ok || was.Verdict == now.Verdict && slices.Equal(was.Codes(), now.Codes()) {
				continue
			}
			r := ev.reruns[round]
			cells[i].History = append(cells[i].History, matrix.PastCell{Run: name, Verdict: was.Verdict, Reasons: was.Codes(),
				By: fmt.Sprintf("what %s had run again: %s", r.Who, r.Why)})
		}
	}
	return nil
}

// until is the evidence of a run as it stood when the operator had had something run again so many times.
func (ev *evidence) until(round int, plan matrix.Plan) []verdict.Grid {
	later := func(grid int, group string, index int) bool {
		i := slices.IndexFunc(ev.begun, func(b begun) bool { return b.grid == grid && b.group == group && b.index == index })
		return i >= 0 && ev.begun[i].round > round
	}
	var out []verdict.Grid
	for _, g := range ev.grids {
		if n := g.Info.Index; !slices.ContainsFunc(ev.begun, func(b begun) bool { return b.grid == n && b.round <= round }) {
			continue // opened later
		}
		x := verdict.Grid{Info: g.Info, Target: map[string]int{}}
		for group, t := range g.Target {
			for _, b := range ev.begun {
				if b.grid == g.Info.Index && b.group == group && b.extend && b.round > round {
					t--
				}
			}
			x.Target[group] = t
		}
		for _, l := range g.Loads {
			if !later(l.Grid, l.Group, l.Slot.Superblock) {
				x.Loads = append(x.Loads, l)
			}
		}
		for _, l := range g.Legs {
			if id := l.Record.ID; !later(id.Grid, id.Group, id.Superblock) {
				x.Legs = append(x.Legs, l)
			}
		}
		out = append(out, x)
	}
	return out
}
