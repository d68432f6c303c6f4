package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"enginebroker/matrix"
	"enginebroker/matrix/box"
	"enginebroker/matrix/gates"
	"enginebroker/matrix/ledger"
	"enginebroker/matrix/metrics"
	"enginebroker/matrix/run"
	"enginebroker/matrix/schedule"
	"enginebroker/matrix/stopwatch"
	"enginebroker/matrix/verdict"
	"enginebroker/matrix/workload"
)

// States of a run.
const (
	StateRunning     = "running"
	StateComplete    = "complete"
	StateInterrupted = "interrupted"
	StatePendingGrid = "pending_grid"
	StateAborted     = "aborted"
)

// Outcome is what came of a run.
type Outcome struct {
	Run    string        `json:"run"` // empty where no evidence was begun
	Report matrix.Report `json:"report"`
}

// Matrix measures what was asked for. Where it ends early, the outcome holds the report of what there is, and the error
// says how to go on.
func (s *Service) Matrix(ctx context.Context, q Request, on func(Event)) (Outcome, error) {
	q, err := s.shaped(q)
	if err != nil {
		return Outcome{}, err
	}
	s.margined(ctx, &q)
	name, err := s.runName(q.Run, q.Stem())
	if err != nil {
		return Outcome{}, err
	}
	t, err := s.team(ctx, q)
	if err != nil {
		return Outcome{}, err
	}
	defer t.close()
	p, err := s.prepare(ctx, q, t, on)
	if err != nil {
		return Outcome{}, err
	}
	if err := p.Runnable(); err != nil {
		return Outcome{}, err
	}
	if err := s.allowed(ctx, q, p.Plan, t); err != nil {
		return Outcome{}, err
	}
	held, err := s.hold(ctx, p.Plan, name, on)
	if err != nil {
		return Outcome{}, err
	}
	defer held.release()
	led, err := ledger.Create(filepath.Join(s.runs, name), p.Plan)
	if err != nil {
		return Outcome{}, &Error{Cause: CauseUsage, Err: err}
	}
	defer led.Close()
	g := matrix.GridInfo{Index: 0, Seed: p.Plan.Seed}
	return s.perform(ctx, t, led, held, g, prior{extended: map[string]int{}}, on)
}

// Resume goes on with a run: on the boot of its open grid at the first incomplete superblock, on another boot with a new
// grid (protocol §8). Nothing that defines the run may have changed.
func (s *Service) Resume(ctx context.Context, name string, on func(Event)) (Outcome, error) {
	led, err := s.reopen(name, on)
	if err != nil {
		return Outcome{}, err
	}
	defer led.Close()
	name = filepath.Base(led.Dir())
	plan := led.Plan()
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
	done()
	if err := s.recordFate(led, bx, func(text string) { on(Event{At: s.now(), Kind: "finding", Text: text}) }); err != nil {
		return Outcome{}, err
	}
	ev, err := s.evidence(ctx, led)
	if err != nil {
		return Outcome{}, err
	}
	if unfinished(led, ev, bx.BootID()) {
		last := ev.grids[len(ev.grids)-1].Info
		on(Event{At: s.now(), Kind: "finding", Text: fmt.Sprintf("grid %d is complete and the run was not closed; it is closed and judged", last.Index+1)})
		return s.finish(ctx, led, last, nil, "")
	}
	g, pr, err := next(plan, ev, bx.BootID())
	if err != nil {
		return Outcome{}, err
	}
	for _, l := range pr.loads {
		on(Event{At: s.now(), Kind: "reused", Load: l.ID, Arm: l.Slot.Arm, Text: "evidence of " + l.StartUTC.Format(time.RFC3339)})
	}
	held, err := s.hold(ctx, plan, name, on)
	if err != nil {
		return Outcome{}, err
	}
	defer held.release()
	return s.perform(ctx, t, led, held, g, pr, on)
}

// prior is the evidence of the open grid that a resumed run uses again.
type prior struct {
	resumed bool
	loads   []matrix.LoadRecord
	legs    []run.Leg
	seq     int
	// extended counts the superblocks that the open grid added, by group.
	extended map[string]int
	redone   []run.Redo
	again    []run.Redo               // what the operator has run again
	rerun    matrix.Opt[ledger.Rerun] // who and why
}

// replaced takes over which superblocks of a grid were run for another one.
func (pr *prior) replaced(plan matrix.Plan, grid int, redone []verdict.Redone) {
	for _, r := range redone {
		if i := groupIndex(plan, r.Group); r.Grid == grid && i >= 0 {
			pr.redone = append(pr.redone, run.Redo{Group: i, Replaces: r.Replaces, Superblock: r.Superblock, Operator: r.Operator})
		}
	}
}

func groupIndex(plan matrix.Plan, id string) int {
	return slices.IndexFunc(plan.Groups, func(g matrix.Group) bool { return g.ID == id })
}

// reuse takes the complete superblocks of a grid. Half a mirrored superblock has no use: it is begun anew.
func (pr *prior) reuse(plan matrix.Plan, g verdict.Grid) {
	for _, l := range g.Loads {
		if whole(plan, g.Loads, l.Group, l.Slot.Superblock) {
			pr.loads = append(pr.loads, l)
		}
	}
	for _, l := range g.Legs {
		if whole(plan, g.Loads, l.Record.ID.Group, l.Record.ID.Superblock) {
			pr.legs = append(pr.legs, run.Leg{Record: l.Record, Gate: l.Gate, Values: l.Values})
		}
	}
}

// whole reports that every load of a superblock is on record.
func whole(plan matrix.Plan, loads []matrix.LoadRecord, group string, index int) bool {
	i := groupIndex(plan, group)
	if i < 0 {
		return false
	}
	want := schedule.Loads(1, len(plan.Groups[i].Arms)) // one drawn afresh; a planned one says what it has
	if sbs := plan.Groups[i].Superblocks; index < len(sbs) && plan.Purpose == matrix.PurposeReload {
		want = len(sbs[index].Slots(i))
	}
	have := 0
	for _, l := range loads {
		if l.Group == group && l.Slot.Superblock == index {
			have++
		}
	}
	return have == want
}

// next decides which grid a resumed run continues or opens.
func next(plan matrix.Plan, ev evidence, boot string) (matrix.GridInfo, prior, error) {
	pr := prior{seq: ev.seq, extended: map[string]int{}}
	if len(ev.grids) == 0 {
		return matrix.GridInfo{Index: 0, BootID: boot, Seed: plan.Seed}, pr, nil
	}
	last := ev.grids[len(ev.grids)-1]
	switch {
	case !last.Info.Done && last.Info.BootID == boot:
		pr.resumed = true
		pr.seq++ // as evidence.seq counts it, once the resume is on record
		pr.extended = ev.extended[last.Info.Index]
		pr.reuse(plan, last)
		pr.replaced(plan, last.Info.Index, ev.redone)
		return last.Info, pr, nil
	case last.Info.Done && last.Info.BootID == boot && len(ev.grids) < plan.Grids:
		return last.Info, pr, fail(CauseUsage, "reboot, then run broker resume again: one boot says nothing about the next",
			"grid %d of %d is complete on this boot; the next one needs another boot", last.Info.Index+1, plan.Grids)
	case last.Info.Done && len(ev.grids) >= plan.Grids && ev.state == StateInterrupted && ev.next != "":
		return last.Info, pr, fail(CauseUsage, ev.next, "all planned superblocks of the run are complete; a re-run that the operator asked for was interrupted")
	case last.Info.Done && len(ev.grids) >= plan.Grids:
		return last.Info, pr, fail(CauseUsage, "broker report prints it", "the run is complete")
	}
	seed, err := schedule.NextGridSeed(last.Info.Seed)
	if err != nil {
		return matrix.GridInfo{}, pr, err
	}
	return matrix.GridInfo{Index: last.Info.Index + 1, Seed: seed}, pr, nil
}

// perform runs one grid on a held box and judges the run.
func (s *Service) perform(ctx context.Context, t *team, led *ledger.Run, bx held, g matrix.GridInfo, pr prior, on func(Event)) (Outcome, error) {
	name := filepath.Base(led.Dir())
	out := Outcome{Run: name}
	plan := led.Plan()
	finding := func(text string) { on(Event{At: s.now(), Kind: "finding", Text: text}) }
	s.others(ctx, bx.Box, bx.lock, name, finding)
	if err := pinHeld(plan, bx.Box); err != nil {
		return Outcome{}, err
	}
	finished, err := bx.Begin(led.Dir(), "run "+name)
	if err != nil {
		return Outcome{}, err
	}
	defer func() { _ = finished() }() // a mark that stays is found at the next start
	g.BootID = bx.BootID()
	uncertified, err := baseline(ctx, bx.Box, finding)
	if err != nil {
		return Outcome{}, err
	}
	cfg, err := s.runConfig(ctx, t, led, boxOf{bx.Box, uncertified}, g, pr, on)
	if err != nil {
		return Outcome{}, err
	}
	if err := s.opening(led, bx.Box, pr, g); err != nil {
		return out, err
	}
	s.summarise(led, StateRunning, "")
	runErr := run.Run(ctx, cfg)
	again := s.again("resume " + name)
	if r, ok := pr.rerun.Get(); ok {
		again = s.again(fmt.Sprintf("rerun %s --who %q --why %q", name, r.Who, r.Why))
	}
	return s.finish(ctx, led, g, runErr, again)
}

// finish closes a run whose grid ended as err says, judges it and writes its report. again is the command that goes on with
// one that was interrupted.
func (s *Service) finish(ctx context.Context, led *ledger.Run, g matrix.GridInfo, runErr error, again string) (Outcome, error) {
	name := filepath.Base(led.Dir())
	out := Outcome{Run: name}
	state, next, why := ended(runErr, led.Plan(), g, again, s.again("resume "+name))
	if _, err := led.Append(ledger.KindRunClose, s.now(), ledger.RunClose{State: state, Next: next}); err != nil {
		return out, errors.Join(runErr, err)
	}
	s.summarise(led, state, next)
	report, err := s.judged(context.WithoutCancel(ctx), led)
	if err != nil {
		return out, errors.Join(runErr, err)
	}
	out.Report = report
	s.keepPace(report)
	if err := errors.Join(s.writeReport(led, report), s.file(report)); err != nil {
		return out, errors.Join(runErr, err)
	}
	s.history(ctx, &out.Report)
	return out, why
}

// unfinished reports a run whose last grid is complete and whose process ended before it had closed the run and written
// its report. Where another grid can begin on this boot there is more to do than that.
func unfinished(led *ledger.Run, ev evidence, boot string) bool {
	if len(ev.grids) == 0 {
		return false
	}
	last := ev.grids[len(ev.grids)-1].Info
	if !last.Done || last.BootID != boot && len(ev.grids) < led.Plan().Grids {
		return false
	}
	if ev.unclosed {
		return true
	}
	_, err := led.ReadReport("report.json")
	return (ev.state == StateComplete || ev.state == StatePendingGrid) && errors.Is(err, os.ErrNotExist)
}

// again is the command line of a further command under the same configuration and runs.
func (s *Service) again(command string) string {
	out := "broker"
	if s.cfg.File != "" && s.cfg.File != "broker.yaml" {
		out += " --config " + s.cfg.File
	}
	if s.runsFlag != "" {
		out += " --runs " + s.runsFlag
	}
	return out + " " + command
}

// ended turns how a grid ended into the state of its run, the error a caller gets, and what to do next.
func ended(err error, plan matrix.Plan, g matrix.GridInfo, again, resume string) (state, next string, why error) {
	switch {
	case err == nil && g.Index+1 < plan.Grids:
		return StatePendingGrid, fmt.Sprintf("grid %d pending: reboot, then %s", g.Index+2, resume), nil
	case err == nil:
		return StateComplete, "", nil
	case errors.Is(err, run.ErrInterrupted), errors.Is(err, run.ErrBudget):
		return StateInterrupted, again, &Error{Cause: CauseInterrupted, Err: err, Fix: "go on with: " + again}
	}
	return StateAborted, again, err
}

func (s *Service) opening(led *ledger.Run, bx *box.Box, pr prior, g matrix.GridInfo) error {
	if pr.resumed {
		var reused []string
		for _, l := range pr.loads {
			reused = append(reused, l.ID)
		}
		if _, err := led.Append(ledger.KindResume, s.now(), ledger.Resume{BootID: g.BootID, Grid: g.Index, Reused: reused}); err != nil {
			return err
		}
	} else if g.Index == 0 {
		for _, r := range led.Plan().Refusals {
			if _, err := led.Append(ledger.KindRefusal, s.now(), ledger.Refusal{Pair: matrix.Some(r), Reason: r.Reason, Detail: r.Detail}); err != nil {
				return err
			}
		}
	}
	if r, ok := pr.rerun.Get(); ok {
		if _, err := led.Append(ledger.KindRerun, s.now(), r); err != nil {
			return err
		}
	}
	_, err := led.Append(ledger.KindBox, s.now(), ledger.Box{Facts: bx.Facts()})
	return err
}

func (s *Service) runConfig(ctx context.Context, t *team, led *ledger.Run, bx boxOf, g matrix.GridInfo, pr prior, on func(Event)) (run.Config, error) {
	plan := led.Plan()
	model, err := s.model(ctx, plan.Model)
	if err != nil {
		return run.Config{}, err
	}
	if err := sameFiles(plan, model); err != nil {
		return run.Config{}, err
	}
	profile, ok := workload.ProfileNamed(plan.Profile)
	if !ok {
		return run.Config{}, fail(CauseEvidence, "", "plan.json names profile %q, which this program does not know", plan.Profile)
	}
	gate, err := gates.ProfileByName(plan.Box)
	if err != nil {
		return run.Config{}, err
	}
	corpus, err := s.corpus(corpusSpec(model, plan.Method.Points, profile, plan.Groups))
	if err != nil {
		return run.Config{}, err
	}
	if id := corpus.Identity(); id != plan.Method.Corpus {
		return run.Config{}, fail(CauseEvidence, "build the corpus the plan was made with, or start a new run", "the prompt corpus is %.16s…, the plan was made with %.16s…", id, plan.Method.Corpus)
	}
	if err := unused(corpus, plan, pr); err != nil {
		return run.Config{}, err
	}
	live := &liveJudge{plan: gridPlan(plan, profile, g), profile: gate, extended: pr.extended}
	cfg := run.Config{
		Plan: live.plan, Grid: g, Resumed: pr.resumed, Done: pr.loads, DoneLegs: pr.legs, Redone: pr.redone, Again: pr.again, Seq: pr.seq,
		Engine: func(ctx context.Context, instance string) (run.Engine, error) {
			h, err := s.launched(ctx, t, instance, on)
			return survivor{h, s.serverState(instance)}, err
		},
		Artifact: artifactsOf(model),
		CheckPin: s.pinned(ctx, plan, model),
		NextSB:   func(group, drawn int) matrix.Superblock { return schedule.Next(plan, group, drawn) },
		Points:   schedule.Points, Box: bx, Stopwatch: clock{}, Prompts: promptsFor(plan, corpus), Recorder: recorder{led}, Judge: live,
		Now: s.now, Window: windowHook(ctx), Event: func(e run.Event) { on(Event(e)) },
	}
	cfg.Request = func(arm matrix.Arm, a matrix.Artifact) (matrix.StartRequest, error) {
		in, ok := s.cfg.Instance(arm.Instance)
		if !ok {
			return matrix.StartRequest{}, fmt.Errorf("no instance %q", arm.Instance)
		}
		return s.startRequest(in, model, a, arm.Limits)
	}
	return cfg, nil
}

// gridPlan is the plan with the superblocks of one grid: the planned ones for the first, a confirmation for the others.
func gridPlan(plan matrix.Plan, profile workload.Profile, g matrix.GridInfo) matrix.Plan {
	if g.Index == 0 {
		return plan
	}
	p := plan
	p.Groups = slices.Clone(plan.Groups)
	p.Seed = g.Seed
	// The first grid was validated with the same arms, so that filling cannot fail here.
	if err := schedule.Fill(&p, func(arms int) int {
		return cmp.Or(profile.Confirmation, superblocks(profile, arms))
	}); err != nil {
		panic(err)
	}
	return p
}

func artifactsOf(model matrix.Model) func(matrix.Arm) (matrix.Artifact, []string, error) {
	return func(arm matrix.Arm) (matrix.Artifact, []string, error) {
		a, ok := model.Artifact(arm.Artifact)
		if !ok {
			return a, nil, fmt.Errorf("the catalog has no artifact %q any more", arm.Artifact)
		}
		return a, files(a), nil
	}
}

// liveJudge reduces legs while a grid runs, by the same functions that judge the evidence later.
type liveJudge struct {
	plan     matrix.Plan // of this grid
	profile  gates.Profile
	extended map[string]int // superblocks added, by group
}

func (j *liveJudge) Leg(rec matrix.LegRecord, arm matrix.Arm, point matrix.Point) (run.Leg, error) {
	l := reduce(j.plan, j.profile, rec, arm, point)
	return run.Leg{Record: l.Record, Gate: l.Gate, Values: l.Values}, nil
}

func (j *liveJudge) Next(g matrix.GridInfo, loads []matrix.LoadRecord, legs []run.Leg, redone []run.Redo) (run.Next, error) {
	grid := verdict.Grid{Info: g, Loads: loads, Target: targets(j.plan, j.extended)}
	for _, l := range legs {
		grid.Legs = append(grid.Legs, verdict.Leg{Record: l.Record, Gate: l.Gate, Values: l.Values})
	}
	in := verdict.Input{Plan: j.plan, Metrics: metrics.Catalog(), Profile: j.profile, Grids: []verdict.Grid{grid}, AA: verdict.AAMissing}
	for _, r := range redone {
		in.Redone = append(in.Redone, verdict.Redone{Grid: g.Index, Group: j.plan.Groups[r.Group].ID, Superblock: r.Superblock, Replaces: r.Replaces, Operator: r.Operator})
	}
	res, err := verdict.Judge(in)
	if err != nil {
		return run.Next{}, err
	}
	var n run.Next
	for _, r := range res.Rerun {
		n.Rerun = append(n.Rerun, run.Redo{Group: r.Group, Replaces: r.Superblock})
	}
	if j.plan.Purpose != matrix.PurposeAA { // an A/A has 6 blocks (protocol §3.6)
		n.Extend = res.Extend
	}
	for _, x := range n.Extend {
		j.extended[j.plan.Groups[x].ID]++
	}
	return n, nil
}

// reduce gates a leg and folds its values, then drops its requests: what is judged is small, the evidence is on disk.
func reduce(plan matrix.Plan, profile gates.Profile, rec matrix.LegRecord, arm matrix.Arm, point matrix.Point) verdict.Leg {
	g := gates.Leg(rec, arm, point, profile)
	values := metrics.Leg(plan.Method.Formula, rec, g)
	return verdict.Leg{Record: withoutRequests(rec), Gate: g, Values: values}
}

func withoutRequests(rec matrix.LegRecord) matrix.LegRecord {
	rec.Warmup = nil
	rec.Repetitions = slices.Clone(rec.Repetitions)
	for i := range rec.Repetitions {
		rec.Repetitions[i].Requests = nil
	}
	return rec
}

// clock adapts the stopwatch to what a run asks of it.
type clock struct{}

func (clock) Open(ctx context.Context, d matrix.Dialect, p matrix.Point) (run.Client, error) {
	c, err := stopwatch.Open(ctx, d, p.Concurrency)
	if err != nil {
		return nil, err
	}
	return client{c}, nil
}

func (clock) Ask(ctx context.Context, d matrix.Dialect, prompt string, tokens int, limit time.Duration) (matrix.Request, error) {
	p := matrix.Point{ID: "canary", Endpoint: "completions", OutputTokens: tokens, Concurrency: 1, Requests: 1, IdleLimit: limit, TotalLimit: limit}
	return stopwatch.Once(ctx, d, p, stopwatch.Prompt{ID: "canary", Text: prompt})
}
