package service

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"enginebroker/engines"
	"enginebroker/engines/host"
	"enginebroker/matrix"
	"enginebroker/matrix/box"
	"enginebroker/matrix/gates"
	"enginebroker/matrix/stopwatch"
)

// Diagnosis and Snapshot are what doctor and box watch show.
type (
	Diagnosis = box.Diagnosis
	Snapshot  = box.Snapshot
)

// DoctorRequest says what a diagnosis may use.
type DoctorRequest struct {
	Engine string // instance that makes the load; empty: none, and the clock is judged by none
	Model  string // what it runs; needed with Engine
	Quant  string // artifact id or quantization; empty: the first that the instance opens
}

// Doctor says what this box can and cannot certify. With an engine it holds the box, starts that engine cold and watches
// the clock while it generates; without one it looks only, also beside a run.
func (s *Service) Doctor(ctx context.Context, q DoctorRequest, on func(Event)) (box.Diagnosis, error) {
	if (q.Engine == "") != (q.Model == "") {
		return box.Diagnosis{}, fail(CauseUsage, "", "an engine and a model make the load together; name both or neither")
	}
	t := &team{}
	if q.Engine != "" {
		var err error
		if t, err = s.team(ctx, Request{Engines: []string{q.Engine}}); err != nil {
			return box.Diagnosis{}, err
		}
		defer t.close()
	}
	b, done, err := s.look(ctx, s.profileFor(t))
	if err != nil {
		return box.Diagnosis{}, err
	}
	defer done()
	rules, err := gates.ProfileByName(b.Profile().Name)
	if err != nil {
		return box.Diagnosis{}, &Error{Cause: CauseUsage, Err: err}
	}
	checks := box.Checks{CleanWindow: cleanWindow, Throttled: func(bits uint64) []string { return gates.ThrottleNames(bits &^ rules.ClockMask) }}
	if q.Engine != "" {
		load, err := s.doctorLoad(ctx, t, q, on)
		if err != nil {
			return box.Diagnosis{}, err
		}
		lock, err := b.Acquire("doctor")
		if err != nil {
			return box.Diagnosis{}, &Error{Cause: CauseBusy, Err: err}
		}
		defer lock.Release()
		checks.Load, checks.Files = load, files(load.artifact)
	}
	d, err := b.Doctor(ctx, checks)
	if err != nil {
		return d, interrupted(ctx, err, "")
	}
	if s.cfg.Clocks == "pinned" && b.PinState() != "pinned" {
		d.Findings = append(d.Findings, box.Finding{What: "configuration", State: box.StateCannot, Saw: "declares clocks: pinned; this box has not shown it on this boot (" + b.PinState() + ")",
			Costs: "runs are recorded as " + b.PinState(), Fix: "pin the clock and let doctor see it under load, or take the line out of the configuration"})
	}
	return d, nil
}

// Live yields what the box shows, every so often, until ctx ends. It takes no lock.
func (s *Service) Live(ctx context.Context, every time.Duration) (iter.Seq2[box.Snapshot, error], func(), error) {
	b, done, err := s.look(ctx, s.cfg.Box)
	if err != nil {
		return nil, nil, err
	}
	return b.Live(ctx, every), done, nil
}

// labelled is the chance that one request of an unpinned GB10 carries the mark of a clock change: 10 of 21 in the public
// record (protocol §4.7, vector K18).
const labelled = 10.0 / 21

func cleanWindow(requests int) float64 {
	p, err := gates.CleanWindow(labelled, requests)
	if err != nil {
		panic(err) // a count of requests is not negative
	}
	return p
}

// unpinned says what a run on a clock that is not pinned is worth, and how to pin it.
func unpinned(commands []string) string {
	var b strings.Builder
	b.WriteString("the clock of this box is not pinned, or doctor has not seen it under load on this boot; most legs would be void (protocol §4.7).\n  chance that a leg of so many requests stays in one clock window:\n")
	for _, n := range []int{1, 6, 12, 48} {
		fmt.Fprintf(&b, "    %3d  %.2g %%\n", n, 100*cleanWindow(n))
	}
	b.WriteString("  pin it, the broker changes no clock:\n")
	for _, c := range commands {
		b.WriteString("    " + c + "\n")
	}
	b.WriteString("  then let doctor see it: broker doctor --engine INSTANCE --model MODEL")
	return b.String()
}

// doctorLoad is the configured engine that doctor watches.
func (s *Service) doctorLoad(ctx context.Context, t *team, q DoctorRequest, on func(Event)) (*doctorLoad, error) {
	if err := (Planned{Plan: matrix.Plan{Groups: make([]matrix.Group, 1)}, Missing: t.missing()}).Runnable(); err != nil {
		return nil, err
	}
	model, err := s.model(ctx, q.Model)
	if err != nil {
		return nil, err
	}
	list, err := s.targets(t, t.members[0], model, q.Quant)
	if err != nil {
		return nil, err
	}
	l := &doctorLoad{engine: t.members[0].host, artifact: list[0], on: func(text string) { on(Event{At: s.now(), Kind: "phase", Arm: q.Engine, Text: text}) }}
	l.request, err = s.single("doctor", t.members[0], model, list[0])
	return l, err
}

// doctorLoad implements box.Load.
type doctorLoad struct {
	engine   *host.Instance
	artifact matrix.Artifact
	request  matrix.StartRequest
	dialect  matrix.Dialect
	on       func(text string)
}

func (l *doctorLoad) Start(ctx context.Context) ([]int, error) {
	ready, err := l.engine.Start(ctx, l.request, func(p matrix.Progress) { l.on(strings.TrimSpace(p.Phase + " " + p.Line)) })
	if err != nil {
		return nil, err
	}
	l.dialect = ready.Dialect
	l.on("the clock is watched while it generates")
	var pids []int
	for _, p := range ready.Processes {
		pids = append(pids, p.PID)
	}
	return pids, nil
}

// doctorTokens is how long one answer of the load is: short enough that a slow engine finishes several in the time.
const doctorTokens = 64

func (l *doctorLoad) Generate(ctx context.Context) (tokens int64, err error) {
	p := matrix.Point{ID: "doctor", Endpoint: "completions", OutputTokens: doctorTokens, IgnoreEOS: true, Concurrency: 1, Requests: 1,
		IdleLimit: doctorLimit, TotalLimit: doctorLimit}
	for n := 0; ctx.Err() == nil; n++ {
		// Every prompt begins otherwise, so that no prefix cache answers.
		prompt := stopwatch.Prompt{ID: "doctor", Text: fmt.Sprintf("%d: write down all you know about the weather of the sea.", n)}
		r, err := stopwatch.Once(ctx, l.dialect, p, prompt)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			return tokens, err
		}
		if r.Outcome != matrix.OutcomeOK {
			return tokens, fmt.Errorf("the engine did not answer: %s %s", strings.Join(r.Reasons, ", "), r.Error)
		}
		tokens += r.CompletionTokens.Or(int64(r.TokenEvents))
	}
	return tokens, ctx.Err()
}

// doctorLimit bounds one answer of the load.
const doctorLimit = 5 * time.Minute

func (l *doctorLoad) Stop(ctx context.Context) error {
	st, err := l.engine.Stop(ctx, time.Minute)
	if errors.Is(err, engines.ErrNotStarted) {
		return nil
	}
	if err == nil && !st.Gone() {
		return fmt.Errorf("the server of the load could not be proved gone: survivors %v, port free %t", st.Survivors, st.PortFree)
	}
	return err
}
