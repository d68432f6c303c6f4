package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/encoding/protojson"

	"enginebroker/broker/service"
	"enginebroker/matrix"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

// askAgain is how often a run whose box another broker holds looks whether it is free.
const askAgain = 5 * time.Second

// work gives waiting runs their turn, one after the other, until ctx ends; a run in flight ends with it, in good order.
func (q *queue) work(ctx context.Context, status func(string)) {
	if status == nil {
		status = func(string) {}
	}
	for {
		j := q.next(ctx)
		if j == nil {
			return
		}
		status("run " + j.Name)
		q.turn(ctx, j)
		status("no run")
	}
}

// next waits for a run whose turn it is.
func (q *queue) next(ctx context.Context) *job {
	for {
		q.mu.Lock()
		q.expire()
		if len(q.waiting) > 0 && ctx.Err() == nil && !q.draining {
			j := q.waiting[0]
			q.waiting = q.waiting[1:]
			q.mu.Unlock()
			return j
		}
		q.mu.Unlock()
		select {
		case <-q.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// expire ends waiting runs whose deadline has passed, whoever has the box meanwhile, and sees to it that it is called again at
// the next deadline. q.mu is held.
func (q *queue) expire() {
	now := q.now()
	var first matrix.Opt[time.Time]
	q.waiting = slices.DeleteFunc(q.waiting, func(j *job) bool {
		d, ok := j.Deadline.Get()
		if !ok {
			return false
		}
		if !now.Before(d) {
			err := q.end(j, j.unbegun(brokerv1.RunState_RUN_STATE_FAILED), failf(service.CauseBusy, "ask again with a longer wait_limit", "%w", errNoTurn))
			if err == nil {
				return true
			}
			q.log.Error("a run waits beyond its deadline", zap.String("run", j.Name), zap.Error(err))
			d = now.Add(askAgain)
		}
		if f, some := first.Get(); !some || d.Before(f) {
			first = matrix.Some(d)
		}
		return false
	})
	q.due.Stop()
	if d, ok := first.Get(); ok && !q.draining {
		q.due.Reset(d.Sub(now))
	}
}

// insist does what has to be written before anything else may happen, again and again until it is done or ctx ends; what is
// on disk then is what the next daemon finds.
func (q *queue) insist(ctx context.Context, j *job, do func() error) bool {
	for {
		q.mu.Lock()
		err := do()
		q.mu.Unlock()
		if err == nil {
			return true
		}
		q.log.Error("state not written; it is tried again", zap.String("run", j.Name), zap.Error(err))
		select {
		case <-time.After(askAgain):
		case <-ctx.Done():
			return false
		}
	}
}

// turn performs one run.
func (q *queue) turn(parent context.Context, j *job) {
	ctx, cancel := context.WithCancel(service.WithWindows(parent, q.quiet))
	defer cancel()
	begun := false
	q.insist(parent, j, func() (err error) {
		if j.state() == brokerv1.RunState_RUN_STATE_QUEUED { // else it was cancelled between leaving the queue and its turn
			err = q.set(j, brokerv1.RunState_RUN_STATE_PREPARING, nil)
			begun = err == nil
		}
		if begun {
			j.cancel = cancel
		}
		return err
	})
	if !begun {
		return
	}
	q.relist(ctx) // what is listed while windows are open
	out, err := q.perform(ctx, j)
	cancelled := ctx.Err() != nil
	q.insist(parent, j, func() error {
		state := j.ended(out, err, cancelled)
		if parent.Err() != nil && cancelled && !j.Cancelled && state != brokerv1.RunState_RUN_STATE_COMPLETE {
			j.Drained = true
			if q.resumes || out.Run == "" {
				// It is not over: it waits for the next daemon, with what it has on disk.
				j.cancel = nil
				return q.set(j, brokerv1.RunState_RUN_STATE_QUEUED, nil)
			}
		}
		why := err
		if j.found && !j.reruns() && state == brokerv1.RunState_RUN_STATE_COMPLETE {
			why = nil // nobody asked to go on with a run that had come to its end
		}
		q.listed = nil
		return q.end(j, state, why)
	})
}

// perform goes the way of the command line: plan, show, run. Where another broker holds the box it waits.
func (q *queue) perform(ctx context.Context, j *job) (out service.Outcome, err error) {
	on := q.listener(j)
	for {
		if !j.begins() {
			if err := q.running(j); err != nil {
				return out, err
			}
		}
		switch {
		case j.Trial != nil:
			err = q.try(ctx, j, on)
		case j.reruns():
			out, err = q.b.Rerun(ctx, j.Name, j.Rerun.Words, j.Rerun.By, on)
		case j.Resume:
			out, err = q.b.Resume(ctx, j.Name, on)
		default:
			out, err = q.begin(ctx, j, on)
		}
		e, ok := errors.AsType[*service.Error](err)
		if !ok || e.Cause != service.CauseBusy || out.Run != "" {
			return out, err
		}
		pause := askAgain
		if d, ok := j.Deadline.Get(); ok {
			if pause = min(pause, d.Sub(q.now())); pause <= 0 {
				return out, err
			}
		}
		on(service.Event{At: q.now(), Kind: "settle", Text: "waiting: " + e.Error()})
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return out, err
		}
		// A run that has its folder by now is gone on with; it was never measured.
		if _, err := q.info(ctx, j.Name); err == nil {
			j.Resume = true
		}
	}
}

// try makes a trial and keeps what came of it beside the job: it has no folder of evidence.
func (q *queue) try(ctx context.Context, j *job, on func(service.Event)) error {
	t := *j.Trial
	for _, a := range []**service.PinAct{&t.RecordPin, &t.Advance} {
		if *a != nil {
			dated := **a
			dated.Act.At = q.now().UTC().Format(time.RFC3339)
			*a = &dated
		}
	}
	r, err := q.b.Try(ctx, t, on)
	if err != nil {
		return err
	}
	m, err := service.ToTrialResult(r)
	if err != nil {
		return err
	}
	data, err := protojson.Marshal(m)
	if err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	j.Result = data
	return nil
}

func (q *queue) begin(ctx context.Context, j *job, on func(service.Event)) (service.Outcome, error) {
	req := *j.Request
	planned, err := q.b.Prepare(ctx, req, on)
	if err != nil {
		return service.Outcome{}, err
	}
	if req, err = planned.As(req); err != nil { // the plan that runs is the plan that was told
		return service.Outcome{}, err
	}
	plan, err := service.ToPlan(planned)
	if err != nil {
		return service.Outcome{}, err
	}
	q.mu.Lock()
	j.Profile, j.Box, j.Simulated, j.Planned = planned.Plan.Profile, planned.Plan.Box, plan.GetSimulated(), planned.Plan.Cost.Loads
	err = j.log.publish(&brokerv1.WatchRunResponse{Plan: plan}, q.now(), false)
	q.mu.Unlock()
	if err != nil {
		return service.Outcome{}, fmt.Errorf("the plan cannot be told: %w", err)
	}
	if err := planned.Runnable(); err != nil {
		return service.Outcome{}, service.Explained(err, planned.Plan.Refusals)
	}
	if err := q.running(j); err != nil {
		return service.Outcome{}, err
	}
	return q.b.Matrix(ctx, req, on)
}

func (q *queue) running(j *job) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if j.state() != brokerv1.RunState_RUN_STATE_PREPARING {
		return nil
	}
	return q.set(j, brokerv1.RunState_RUN_STATE_RUNNING, nil)
}

// fleeting are the steps that change nothing: a slow watcher may miss them.
var fleeting = map[string]bool{"settle": true, "phase": true}

// listener tells the steps of a run to its watchers and to the log.
func (q *queue) listener(j *job) func(service.Event) {
	return func(e service.Event) {
		m := &brokerv1.WatchRunResponse{Step: service.ToStep(e)}
		q.mu.Lock()
		j.loads, j.Planned = e.LoadsDone, max(j.Planned, e.LoadsTotal)
		q.mu.Unlock()
		if fleeting[e.Kind] {
			j.log.tell(m, e.At)
			return
		}
		if err := j.log.publish(m, e.At, false); err != nil {
			q.log.Error("event not written; it is told as progress", zap.String("run", j.Name), zap.Error(err))
			j.log.tell(m, e.At)
		}
		q.m.step(e)
		if line := e.Line(); line != "" {
			q.log.Info(line, where(j.Name, e)...)
		}
	}
}

// where is what a line of the log is about: the run, and the load, arm, point and gate codes that the step has.
func where(run string, e service.Event) []zap.Field {
	out := []zap.Field{zap.String("run", run)}
	for _, f := range [][2]string{{"load", e.Load}, {"arm", e.Arm}, {"point", e.Point}} {
		if f[1] != "" {
			out = append(out, zap.String(f[0], f[1]))
		}
	}
	if len(e.Codes) > 0 {
		out = append(out, zap.Strings("codes", e.Codes))
	}
	return out
}

// ended is the state that a turn ends in.
func (j *job) ended(out service.Outcome, err error, cancelled bool) brokerv1.RunState {
	switch {
	case j.Trial != nil && err == nil:
		return brokerv1.RunState_RUN_STATE_COMPLETE
	case out.Report.State != "":
		return service.ToRunState(out.Report.State)
	case j.Resume:
		return j.unbegun(brokerv1.RunState_RUN_STATE_INTERRUPTED)
	case out.Run == "" && cancelled:
		return brokerv1.RunState_RUN_STATE_CANCELLED
	case out.Run == "":
		return brokerv1.RunState_RUN_STATE_FAILED
	case cancelled:
		return brokerv1.RunState_RUN_STATE_INTERRUPTED
	case err == nil:
		return brokerv1.RunState_RUN_STATE_UNKNOWN
	}
	return brokerv1.RunState_RUN_STATE_ABORTED
}
