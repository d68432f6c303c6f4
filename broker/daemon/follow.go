package daemon

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"enginebroker/broker/service"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

const (
	// comeBack is how long a client waits for a daemon that went away to be there again, asking every comeBackEvery.
	comeBack      = time.Minute
	comeBackEvery = 200 * time.Millisecond
	// cancelLimit bounds the one call that a client makes after it was interrupted.
	cancelLimit = 10 * time.Second
)

// watch follows one run over lost connections and restarts of the daemon.
type watch struct {
	c      *Client
	name   string
	token  *string
	stream grpc.ServerStreamingClient[brokerv1.WatchRunResponse]
	cancel func()                     // of the stream
	reads  bool                       // it only reads: it ends with its context, and leaves the run alone
	asked  bool                       // the run was asked to end
	last   *brokerv1.WatchRunResponse // the change that ended the run
}

// next returns the next event, io.EOF after the one that ended the run. When ctx ends it asks the daemon once to end the
// run, in the same good order as a local one, and goes on to its end.
func (w *watch) next(ctx context.Context) (*brokerv1.WatchRunResponse, error) {
	for lost := (time.Time{}); ; {
		m, err := w.receive(ctx)
		switch {
		case err == nil:
			w.token = m.ResumeToken
			if m.State != nil {
				if w.last = nil; over(m.GetState()) {
					w.last = m
				}
			}
			return m, nil
		case errors.Is(err, io.EOF) && w.last != nil:
			return nil, io.EOF
		case errors.Is(err, io.EOF):
			return nil, failf(service.CauseInternal, "the daemon's log says more", "the events of run %s end before the run does", w.name)
		case status.Code(err) != codes.Unavailable, w.reads && w.token == nil && lost.IsZero(): // one that was never there is not waited for
			return nil, service.FromStatus(err)
		case lost.IsZero():
			lost = time.Now()
		case time.Since(lost) > comeBack:
			return nil, failf(service.CauseInternal, "start it again: it goes on with the run, which broker watch "+w.name+" follows", "the daemon went away and was not back within %v", comeBack)
		}
		select {
		case <-time.After(comeBackEvery):
		case <-ctx.Done():
			if w.reads || w.asked {
				return nil, service.FromStatus(status.FromContextError(ctx.Err()).Err())
			}
			w.end(ctx)
		}
	}
}

// receive is the next event of the stream, which it opens where there is none and closes where it breaks.
func (w *watch) receive(ctx context.Context) (*brokerv1.WatchRunResponse, error) {
	if w.stream == nil {
		if err := w.open(ctx); err != nil {
			return nil, err
		}
	}
	type got struct {
		m   *brokerv1.WatchRunResponse
		err error
	}
	ch := make(chan got, 1)
	go func() { m, err := w.stream.Recv(); ch <- got{m, err} }()
	var g got
	if w.asked || w.reads {
		g = <-ch
	} else {
		select {
		case g = <-ch:
		case <-ctx.Done():
			w.end(ctx)
			g = <-ch
		}
	}
	if g.err != nil {
		w.close()
	}
	return g.m, g.err
}

func (w *watch) open(ctx context.Context) error {
	if !w.reads {
		ctx = context.WithoutCancel(ctx)
	}
	ctx, w.cancel = context.WithCancel(ctx)
	var err error
	if w.stream, err = w.c.runs.WatchRun(ctx, &brokerv1.WatchRunRequest{Name: new(service.RunPrefix + w.name), ResumeToken: w.token, Canonical: new(true)}); err != nil {
		w.close()
	}
	return err
}

// end asks the daemon to end the run. That it could not be asked shows in the stream, which ends then too.
func (w *watch) end(ctx context.Context) {
	w.asked = true
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelLimit)
	defer cancel()
	_, _ = w.c.runs.CancelRun(ctx, &brokerv1.CancelRunRequest{Name: new(service.RunPrefix + w.name)})
}

func (w *watch) close() {
	if w.cancel != nil {
		w.cancel()
	}
	w.stream, w.cancel = nil, nil
}

// over reports a state in which a run stands until somebody asks for more.
func over(s brokerv1.RunState) bool {
	switch s {
	case brokerv1.RunState_RUN_STATE_UNSPECIFIED, brokerv1.RunState_RUN_STATE_QUEUED, brokerv1.RunState_RUN_STATE_PREPARING,
		brokerv1.RunState_RUN_STATE_RUNNING, brokerv1.RunState_RUN_STATE_CANCELLING:
		return false
	}
	return true
}

// Prepare begins the run in the daemon and returns its plan, once its turn has come.
func (c *Client) Prepare(ctx context.Context, q service.Request, on func(service.Event)) (service.Planned, error) {
	spec, err := service.ToSpec(q)
	if err != nil {
		return service.Planned{}, err
	}
	req := &brokerv1.CreateRunRequest{Spec: spec}
	if q.Run != "" {
		req.RunId = &q.Run
	}
	r, err := c.runs.CreateRun(ctx, req)
	if err != nil {
		return service.Planned{}, service.FromStatus(err)
	}
	run := service.RunOf(r.GetRun())
	c.waits(r.GetRun(), on)
	w := &watch{c: c, name: run.Name}
	for {
		m, err := w.next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return service.Planned{}, service.OfFailure(w.last.GetFailure())
		case err != nil:
			return service.Planned{}, err
		case m.Plan != nil:
			c.watch = w
			return service.PlannedOf(m.GetPlan())
		case m.Step != nil:
			on(eventOf(m))
		}
	}
}

func (c *Client) waits(r *brokerv1.Run, on func(service.Event)) {
	if r.GetQueuePosition() > 1 || r.QueuePosition == nil && r.GetState() == brokerv1.RunState_RUN_STATE_QUEUED {
		on(service.Event{At: time.Now(), Kind: "settle", Text: "another run has the box; this one waits in the queue of the daemon"})
	}
}

// Matrix follows the run that Prepare began, to its end.
func (c *Client) Matrix(ctx context.Context, _ service.Request, on func(service.Event)) (service.Outcome, error) {
	w := c.watch
	c.watch = nil
	if w == nil {
		return service.Outcome{}, failf(service.CauseInternal, "", "the run was not prepared")
	}
	return c.follow(ctx, w, on)
}

// Resume goes on with a run that stopped, to its end.
func (c *Client) Resume(ctx context.Context, name string, on func(service.Event)) (service.Outcome, error) {
	return c.again(ctx, name, nil, on)
}

// Rerun runs superblocks of a complete run again, to their end.
func (c *Client) Rerun(ctx context.Context, name string, words []string, by service.RerunBy, on func(service.Event)) (service.Outcome, error) {
	return c.again(ctx, name, &brokerv1.Rerun{Words: words, Who: &by.Who, Why: &by.Why}, on)
}

func (c *Client) again(ctx context.Context, name string, rerun *brokerv1.Rerun, on func(service.Event)) (service.Outcome, error) {
	r, err := c.runs.ResumeRun(ctx, &brokerv1.ResumeRunRequest{Name: new(service.RunPrefix + name), Rerun: rerun})
	if err != nil {
		return service.Outcome{}, service.FromStatus(err)
	}
	c.waits(r.GetRun(), on)
	return c.follow(ctx, &watch{c: c, name: name, token: r.ResumeToken}, on)
}

// Watch follows a run that somebody began, to its end. When ctx ends the watch ends, not the run.
func (c *Client) Watch(ctx context.Context, name string, on func(service.Event)) (service.Outcome, error) {
	return c.follow(ctx, &watch{c: c, name: name, reads: true}, on)
}

func (c *Client) follow(ctx context.Context, w *watch, on func(service.Event)) (service.Outcome, error) {
	defer w.close()
	for {
		m, err := w.next(ctx)
		if errors.Is(err, io.EOF) {
			return c.outcome(context.WithoutCancel(ctx), w.name, w.last)
		}
		if err != nil {
			return service.Outcome{}, err
		}
		if m.Step != nil {
			on(eventOf(m))
		}
	}
}

// outcome is what came of a run that has ended.
func (c *Client) outcome(ctx context.Context, name string, m *brokerv1.WatchRunResponse) (service.Outcome, error) {
	var why error
	if m.Failure != nil {
		why = service.OfFailure(m.GetFailure())
	}
	switch m.GetState() {
	case brokerv1.RunState_RUN_STATE_FAILED, brokerv1.RunState_RUN_STATE_CANCELLED:
		return service.Outcome{}, why
	}
	if e, ok := errors.AsType[*service.Error](why); ok && (e.Cause == service.CauseUsage || e.Cause == service.CauseNotFound) {
		return service.Outcome{}, why // the turn did nothing: the run's report is from before
	}
	r, err := c.Report(ctx, name)
	if err != nil {
		if why == nil {
			why = err
		}
		return service.Outcome{}, why
	}
	return service.Outcome{Run: name, Report: r}, why
}

// eventOf is the step of a message. The one that stands for events that are lost has no time: it is told when it is heard.
func eventOf(m *brokerv1.WatchRunResponse) service.Event {
	at := time.Now()
	if m.Time != nil {
		at = m.GetTime().AsTime().Local()
	}
	return service.EventOf(m.GetStep(), at)
}
