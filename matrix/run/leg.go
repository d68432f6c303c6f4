package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"enginebroker/matrix"
	"enginebroker/matrix/ledger"
	"enginebroker/matrix/stopwatch"
)

// measure runs the canary and the points of the load, in the order of its block.
func (l *load) measure(ctx context.Context) error {
	c, err := l.canary(ctx, "before")
	if err != nil {
		return err
	}
	if !c.OK && l.gone(ctx) {
		l.died, l.rec.Aborted = true, "the server died while it was asked the canary: "+c.Got // a crash is no wrong answer
		return nil
	}
	l.rec.Canaries = append(l.rec.Canaries, c)
	for _, p := range l.points() {
		last, err := l.leg(ctx, p)
		if err != nil || last {
			return err
		}
	}
	return nil
}

// leg measures one point. last says that the load cannot go on: the server died, hangs, or lost its identity.
func (l *load) leg(ctx context.Context, p matrix.Point) (last bool, err error) {
	rec := l.newLeg(p)
	rec.Canaries = slices.Clone(l.rec.Canaries[len(l.rec.Canaries)-1:])
	before, err := l.engine.Observe(ctx)
	if err != nil {
		rec.Missing = append(rec.Missing, "state before the leg: "+err.Error())
	}
	client, err := l.Stopwatch.Open(ctx, l.ready.Dialect, p)
	if err != nil {
		if ctx.Err() != nil {
			return true, ErrInterrupted
		}
		rec.Died = true
		rec.Note = "no connection: " + err.Error()
		rec.Repetitions = []matrix.Repetition{{Planned: p.Requests}}
		rec.Env.KilledByHost = l.endedBy()
		return true, l.put(rec, p, ledger.LegFiles{})
	}
	defer client.Close()
	var files ledger.LegFiles
	var heads [][2]int64
	for rep := -1; rep < l.repetitions() && !rec.Hung; rep++ {
		pass, err := l.pass(ctx, client, p, rep)
		if err != nil {
			if ctx.Err() != nil {
				return true, ErrInterrupted
			}
			if !errors.Is(err, stopwatch.ErrNoConnection) {
				return true, fmt.Errorf("%s %s repetition %d: %w", l.rec.ID, p.ID, rep, err)
			}
			rec.Died, rec.Note = true, err.Error()
			rec.Repetitions = append(rec.Repetitions, matrix.Repetition{Index: len(rec.Repetitions), Planned: p.Requests})
			break
		}
		rec.Hung = rec.Hung || pass.rec.Hung()
		if rep < 0 {
			rec.Warmup, files.Warmup = pass.requests, pass.rec.Write
			continue
		}
		files.Repetitions = append(files.Repetitions, pass.rec.Write)
		start, end := pass.rec.Window()
		rec.Repetitions = append(rec.Repetitions, matrix.Repetition{Index: rep, Start: start, End: end, Planned: p.Requests, Requests: pass.requests, Client: pass.rec.Cost(), Daemon: pass.daemon})
		heads = append(heads, headsOf(pass.requests, start)...)
	}
	if len(rec.Repetitions) == 0 {
		rec.Repetitions = []matrix.Repetition{{Planned: p.Requests}}
	}
	files.Clocks = l.window(&rec, heads)
	ours := l.after(ctx, &rec, before)
	if !rec.Died && !rec.Hung {
		c, err := l.canary(ctx, "after:"+p.ID)
		if err != nil {
			return true, err
		}
		if !c.OK && l.gone(ctx) {
			rec.Died, rec.Note = true, "the server died while it was asked the canary: "+c.Got // a crash is no wrong answer
			rec.Env.KilledByHost = l.endedBy()
		} else {
			l.rec.Canaries = append(l.rec.Canaries, c)
			rec.Canaries = append(rec.Canaries, c)
		}
	}
	rec.EndUTC = l.Now().UTC()
	return rec.Died || rec.Hung || !ours || rec.PrintEnd != rec.ArmPrint, l.put(rec, p, files)
}

func (l *load) repetitions() int {
	if l.slot.LeadIn {
		return 1 // never scored
	}
	return l.Plan.Method.Repetitions
}

type pass struct {
	rec      Recording
	requests []matrix.Request
	daemon   []matrix.DaemonWork
}

// pass runs the warm-up (rep −1) or one repetition.
func (l *load) pass(ctx context.Context, client Client, p matrix.Point, rep int) (pass, error) {
	n := p.Requests
	if rep < 0 {
		n = p.Warmup
	}
	prompts, err := l.Prompts.Take(l.block(), p, rep, n)
	if err != nil {
		return pass{}, err
	}
	point := p
	point.Requests = n
	job := stopwatch.Job{Dialect: l.ready.Dialect, Point: point, Repetition: rep, Prompts: prompts, ExpectCold: l.arm.Cache == "off", Seed: uint64(l.block()+1)<<16 | uint64(rep+1)}
	closed := func() []matrix.DaemonWork { return nil }
	if rep >= 0 && l.Window != nil {
		closed = l.Window()
	}
	rec, err := client.Run(ctx, job)
	daemon := closed()
	if err != nil {
		return pass{}, err
	}
	if ctx.Err() != nil {
		return pass{}, ctx.Err()
	}
	return pass{rec: rec, requests: rec.Reduce(l.ready.Dialect, point), daemon: daemon}, nil
}

// block numbers the prompt partition: every arm of a block gets the same prompts. Lead-ins have their own.
func (l *load) block() int {
	if l.slot.LeadIn {
		return -1 - l.slot.Superblock
	}
	return l.slot.Block
}

// headsOf lists [sent, first token] of each request in CLOCK_MONOTONIC.
func headsOf(reqs []matrix.Request, start int64) [][2]int64 {
	var out [][2]int64
	for _, q := range reqs {
		s, ok1 := q.Sent.Get()
		f, ok2 := q.FirstToken.Get()
		if ok1 && ok2 {
			out = append(out, [2]int64{start + s, start + f})
		}
	}
	return out
}

// window takes what the box showed over the leg.
func (l *load) window(rec *matrix.LegRecord, heads [][2]int64) ledger.Writer {
	start, end := rec.Repetitions[0].Start, int64(0)
	for _, r := range rec.Repetitions {
		end = max(end, r.End) // one that never began has none
	}
	env, clock, raw := l.watch.Window(start, end, heads)
	rec.Env, rec.Clock = merge(rec.Env, env), clock
	return raw
}

// after asks the server what it is now and what its counters moved. It reports whether what runs still is what is pinned.
func (l *load) after(ctx context.Context, rec *matrix.LegRecord, before matrix.State) bool {
	now, err := l.engine.Observe(ctx)
	rec.MethodEnd = rec.MethodID
	rec.Env.BootIDEnd = l.Box.BootID()
	if l.killed.Load() != nil { // whatever the engine says of itself now, or cannot say any more
		rec.Died = true
		rec.Env.KilledByHost = l.endedBy()
		return true
	}
	if l.orphan(err) {
		rec.Died = true
		rec.Env.KilledByHost = l.endedBy()
		return true
	}
	if err != nil {
		rec.Missing = append(rec.Missing, "state after the leg: "+err.Error())
		return true
	}
	rec.Died = rec.Died || !now.Alive
	rec.PrintEnd = now.Print
	if rec.PrintEnd == "" && rec.Died {
		rec.PrintEnd = rec.ArmPrint // a dead server is not another one; SERVER_DIED says what happened
	}
	if rec.Died {
		rec.Env.KilledByHost = l.endedBy()
	}
	rec.Counter = matrix.Some(matrix.CounterDelta{Generated: delta(before.Generated, now.Generated), Cached: delta(before.CachedTokens, now.CachedTokens),
		Drafted: delta(before.DraftedTokens, now.DraftedTokens), Accepted: delta(before.AcceptedTokens, now.AcceptedTokens),
		Exact: slices.ContainsFunc(l.ready.Dialect.Sources, func(s matrix.TokenSource) bool {
			return s.Name == matrix.SourceCounter && s.Kind != matrix.CountLossy
		})})
	return rec.Died || l.pinned(matrix.Ready{Facts: now.Facts})
}

// gone asks whether the server still runs; what cannot be asked is not shown to be dead. One that the memory guard ended is
// gone whatever it still says.
func (l *load) gone(ctx context.Context) bool {
	if l.killed.Load() != nil {
		return true
	}
	s, err := l.engine.Observe(ctx)
	return l.orphan(err) || err == nil && !s.Alive
}

// orphan notes that the plugin of a server ended, which ends the server.
func (l *load) orphan(err error) bool {
	if errors.Is(err, ErrPluginGone) {
		l.orphaned = err.Error()
	}
	return l.orphaned != ""
}

// endedBy says who of the host ended a server that was ready, empty where nothing shows it.
func (l *load) endedBy() string {
	if why := l.killed.Load(); why != nil {
		return guardName + *why
	}
	if l.orphaned != "" {
		return l.orphaned
	}
	if len(l.ready.Processes) == 0 {
		return ""
	}
	return l.watch.Killed(l.ready.Processes[0])
}

// guardName begins what is said of a server that our own memory guard ended.
const guardName = "the memory guard: "

func delta(a, b matrix.Opt[int64]) matrix.Opt[int64] {
	x, ok1 := a.Get()
	y, ok2 := b.Get()
	if !ok1 || !ok2 {
		return matrix.Opt[int64]{}
	}
	return matrix.Some(y - x)
}

func (l *load) newLeg(p matrix.Point) matrix.LegRecord {
	return matrix.LegRecord{
		ID: matrix.LegID{Load: l.rec.Seq, Grid: l.Grid.Index, Group: l.group.ID, Superblock: l.slot.Superblock, Block: l.slot.Block,
			Position: l.slot.Position, Arm: l.arm.Label, Point: p.ID, LeadIn: l.slot.LeadIn},
		ArmKey: l.arm.Key, ArmPrint: l.ready.Print, PrintEnd: l.ready.Print, MethodID: l.Plan.MethodID, MethodEnd: l.Plan.MethodID,
		LoadID: l.rec.ID, Seq: l.rec.Seq, StartUTC: l.Now().UTC(), Env: l.env,
	}
}

// put writes a leg before anything else happens, then lets the judge reduce it.
func (l *load) put(rec matrix.LegRecord, p matrix.Point, files ledger.LegFiles) error {
	if rec.Env.BootIDEnd == "" {
		rec.Env.BootIDEnd = l.Box.BootID() // a leg that never began has an end all the same
	}
	if err := l.Recorder.PutLeg(rec, files); err != nil {
		return err
	}
	leg, err := l.Judge.Leg(rec, l.arm, p)
	if err != nil {
		return err
	}
	l.legs = append(l.legs, leg)
	codes := make([]string, len(leg.Gate.Codes))
	for i, c := range leg.Gate.Codes {
		codes[i] = string(c)
	}
	l.runner.event(l.event(Event{Kind: "leg", Point: p.ID, Codes: codes}))
	return nil
}

// canary asks the artifact's question, or, where it has none, the same prompt twice.
func (l *load) canary(ctx context.Context, when string) (matrix.CanaryResult, error) {
	artifact, _, err := l.Artifact(l.arm)
	if err != nil {
		return matrix.CanaryResult{}, err
	}
	q, known := artifact.Canary.Get()
	if !known {
		q = matrix.Canary{Prompt: selfMatchPrompt, Tokens: 32}
	}
	ask := func() (matrix.Request, error) {
		return l.Stopwatch.Ask(ctx, l.ready.Dialect, q.Prompt, q.Tokens, canaryLimit)
	}
	one, err := ask()
	if err == nil && known {
		return judgeCanary(when, q.Answer, one), nil
	}
	var two matrix.Request
	if err == nil {
		two, err = ask()
	}
	switch {
	case ctx.Err() != nil:
		return matrix.CanaryResult{}, ErrInterrupted
	case errors.Is(err, stopwatch.ErrNoConnection):
		return matrix.CanaryResult{When: when, Want: cmp.Or(q.Answer, "self-match"), Got: err.Error()}, nil
	case err != nil:
		return matrix.CanaryResult{}, err
	}
	return selfMatch(when, one, two), nil
}
