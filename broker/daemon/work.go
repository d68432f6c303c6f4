package daemon

import (
	"context"
	"errors"
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

// next waits for a run whose turn it is. Runs whose deadline passes meanwhile end.
func (q *queue) next(ctx context.Context) *job {
	for {
		q.mu.Lock()
		now := q.now()
		var first matrix.Opt[time.Time]
		keep := q.waiting[:0]
		for _, j := range q.waiting {
			d, ok := j.Deadline.Get()
			if ok && !now.Before(d) {
				q.end(j, j.unbegun(brokerv1.RunState_RUN_STATE_FAILED), failf(service.CauseBusy, "ask again with a longer wait_limit", "%w", errNoTurn))
				continue
			}
			if f, some := first.Get(); ok && (!some || d.Before(f)) {
				first = matrix.Some(d)
			}
			keep = append(keep, j)
		}
		clear(q.waiting[len(keep):])
		q.waiting = keep
		if len(q.waiting) > 0 && ctx.Err() == nil && !q.draining {
			j := q.waiting[0]
			q.waiting = q.waiting[1:]
			q.mu.Unlock()
			return j
		}
		q.mu.Unlock()
		var due <-chan time.Time
		if f, ok := first.Get(); ok {
			t := time.NewTimer(f.Sub(now))
			defer t.Stop()
			due = t.C
		}
		select {
		case <-q.wake:
		case <-due:
		case <-ctx.Done():
			return nil
		}
	}
}

// turn performs one run.
func (q *queue) turn(parent context.Context, j *job) {
	ctx, cancel := context.WithCancel(service.WithWindows(parent, q.quiet))
	defer cancel()
	q.mu.Lock()
	if j.state() != brokerv1.RunState_RUN_STATE_QUEUED { // cancelled between leaving the queue and its turn
		q.mu.Unlock()
		return
	}
	j.cancel = cancel
	q.set(j, brokerv1.RunState_RUN_STATE_PREPARING, nil)
	q.mu.Unlock()
	q.relist(ctx) // what is listed while windows are open
	out, err := q.perform(ctx, j)
	q.mu.Lock()
	defer q.mu.Unlock()
	state := j.ended(out, err, ctx.Err() != nil)
	if parent.Err() != nil && errors.Is(ctx.Err(), context.Canceled) && j.state() != brokerv1.RunState_RUN_STATE_CANCELLING {
		if j.Drained = state != brokerv1.RunState_RUN_STATE_COMPLETE; j.Drained && out.Run == "" {
			// Nothing of it is on disk: it waits for the next daemon as it waited for this one.
			q.set(j, brokerv1.RunState_RUN_STATE_QUEUED, nil)
			return
		}
	}
	if j.found && !j.reruns() && state == brokerv1.RunState_RUN_STATE_COMPLETE {
		err = nil // nobody asked to go on with a run that had come to its end
	}
	q.listed = nil
	q.end(j, state, err)
}

// perform goes the way of the command line: plan, show, run. Where another broker holds the box it waits.
func (q *queue) perform(ctx context.Context, j *job) (out service.Outcome, err error) {
	on := q.listener(j)
	for {
		switch {
		case j.Trial != nil:
			q.running(j)
			err = q.try(ctx, j, on)
		case j.reruns():
			q.running(j)
			out, err = q.b.Rerun(ctx, j.Name, j.Rerun.Words, j.Rerun.By, on)
		case j.Resume:
			q.running(j)
			out, err = q.b.Resume(ctx, j.Name, on)
		default:
			out, err = q.begin(ctx, j, on)
		}
		e, ok := errors.AsType[*service.Error](err)
		if !ok || e.Cause != service.CauseBusy || out.Run != "" {
			return out, err
		}
		if d, ok := j.Deadline.Get(); ok && !q.now().Add(askAgain).Before(d) {
			return out, err
		}
		on(service.Event{At: q.now(), Kind: "settle", Text: "waiting: " + e.Error()})
		select {
		case <-time.After(askAgain):
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
	q.publish(j, &brokerv1.WatchRunResponse{Plan: plan}, false)
	q.mu.Unlock()
	if err := planned.Runnable(); err != nil {
		return service.Outcome{}, service.Explained(err, nil, planned.Plan.Refusals)
	}
	q.running(j)
	return q.b.Matrix(ctx, req, on)
}

func (q *queue) running(j *job) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if j.state() == brokerv1.RunState_RUN_STATE_PREPARING {
		q.set(j, brokerv1.RunState_RUN_STATE_RUNNING, nil)
	}
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
			q.log.Error("event not written", zap.String("run", j.Name), zap.Error(err))
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
