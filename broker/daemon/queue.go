package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"enginebroker/broker/service"
	"enginebroker/matrix"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

// queue holds the runs of a box: one has its turn, the others wait in the order in which they were asked for.
type queue struct {
	b     Broker
	log   *zap.Logger
	m     *metrics
	store store
	quiet *quiet
	now   func() time.Time

	mu       sync.Mutex
	jobs     map[string]*job   // by name, everything this daemon and those before it were asked for
	requests map[string]string // request id → name
	waiting  []*job            // in order
	draining bool
	wake     chan struct{} // of capacity 1: there is something to do
	listed   []service.RunInfo
}

func newQueue(b Broker, log *zap.Logger, m *metrics) (*queue, error) {
	q := &queue{b: b, log: log, m: m, store: store{b.StateDir("jobs")}, quiet: newQuiet(), now: time.Now,
		jobs: map[string]*job{}, requests: map[string]string{}, wake: make(chan struct{}, 1)}
	if err := os.MkdirAll(q.store.dir, 0o700); err != nil {
		return nil, fmt.Errorf("the daemon needs a folder that it can write: %w", err)
	}
	jobs, bad := q.store.load()
	for _, err := range bad {
		log.Error("left alone", zap.Error(err))
	}
	for _, j := range jobs {
		q.jobs[j.Name] = j
		if j.RequestID != "" {
			q.requests[j.RequestID] = j.Name
		}
	}
	m.watch(q)
	return q, nil
}

// recover looks at what an earlier daemon left: waiting runs wait on, in their order; runs in flight go on by policy.
func (q *queue) recover(resume bool) {
	var left []*job
	for _, j := range q.jobs {
		if j.live() || j.Drained {
			left = append(left, j)
		}
	}
	slices.SortFunc(left, func(a, b *job) int { return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.Name, b.Name)) })
	// A run that was in flight comes first: the box was its own.
	slices.SortStableFunc(left, func(a, b *job) int { return rank(a) - rank(b) })
	infos, err := q.b.Runs(context.Background())
	if err != nil {
		q.log.Error("runs cannot be listed", zap.Error(err))
	}
	for _, j := range left {
		found := zap.String("was", j.State)
		at := slices.IndexFunc(infos, func(i service.RunInfo) bool { return i.Name == j.Name })
		begun := at >= 0
		log, err := openEvents(q.store.path(j.Name, eventsFile), j.Name)
		if err != nil {
			q.log.Error("found a run whose events cannot be read; left alone", zap.String("run", j.Name), found, zap.Error(err))
			continue
		}
		j.log = log
		switch {
		case j.state() == brokerv1.RunState_RUN_STATE_QUEUED:
			q.log.Info("found a waiting run; it waits on", zap.String("run", j.Name), found)
			q.waiting = append(q.waiting, j)
			q.poke()
		case j.state() == brokerv1.RunState_RUN_STATE_CANCELLING || !resume:
			q.log.Info("found an unfinished run; it stays as it is", zap.String("run", j.Name), found)
			q.end(j, brokerv1.RunState_RUN_STATE_INTERRUPTED, failf(service.CauseInterrupted, "go on with: broker resume "+j.Name, "the daemon ended while the run was on"))
		default:
			q.log.Info("found an unfinished run; it goes on", zap.String("run", j.Name), found, zap.Bool("resumes", begun))
			if j.Resume, j.found = begun, true; begun {
				j.Before = before(infos[at]).String()
			}
			q.enqueue(j)
		}
	}
}

func rank(j *job) int {
	if j.state() == brokerv1.RunState_RUN_STATE_QUEUED {
		return 1
	}
	return 0
}

// create takes a new run in, under the name that is asked for, else one of its own. The same request id with the same digest
// gives the run that it made before.
func (q *queue) create(j *job, asked string, wait time.Duration) (*brokerv1.Run, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if name, ok := q.requests[j.RequestID]; ok && j.RequestID != "" {
		if made := q.jobs[name]; made.Digest == j.Digest {
			return q.run(made, nil), nil
		}
		return nil, service.Taken("REQUEST_ID_REUSED", "give every request an id of its own", "request_id %s stands for run %s, which was asked for with other content", j.RequestID, name)
	}
	if err := q.room(); err != nil {
		return nil, err
	}
	name, err := q.b.NewRun(asked, j.stem(), func(n string) bool { return q.jobs[n] != nil })
	if err != nil {
		return nil, err
	}
	j.Name, j.Created = name, q.now().UTC()
	if j.Request != nil {
		j.Request.Run = name
	}
	if err := q.admit(j, wait); err != nil {
		return nil, err
	}
	if j.RequestID != "" {
		q.requests[j.RequestID] = name
	}
	return q.run(j, nil), nil
}

// resume takes a run in again, to go on with it or to run some of it again; info is its entry in the listing.
func (q *queue) resume(info service.RunInfo, again *rerun, wait time.Duration) (*brokerv1.ResumeRunResponse, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	j := q.jobs[info.Name]
	if j != nil && j.live() {
		return nil, service.Ended("RUN_ACTIVE", "watch it with WatchRun", "run %s waits or runs already", info.Name)
	}
	if err := q.room(); err != nil {
		return nil, err
	}
	if j == nil {
		j = &job{Name: info.Name, Created: q.now().UTC(), Profile: info.Profile, Box: info.Box, Simulated: info.Simulated, Planned: info.Planned}
	}
	j.Resume, j.Rerun, j.found, j.Before = true, again, false, before(info).String()
	if err := q.admit(j, wait); err != nil {
		return nil, err
	}
	return &brokerv1.ResumeRunResponse{Run: q.run(j, nil), ResumeToken: new(token(j.Name, j.log.length()-1))}, nil
}

// before is where a run that is gone on with stands. One that is listed as running has no process any more, or one that
// holds its lock, and the turn will say so.
func before(info service.RunInfo) brokerv1.RunState {
	if s := service.ToRunState(info.State); s != brokerv1.RunState_RUN_STATE_RUNNING {
		return s
	}
	return brokerv1.RunState_RUN_STATE_INTERRUPTED
}

func (q *queue) room() error {
	switch {
	case q.draining:
		return failf(service.CauseBusy, "ask again when it is back", "the daemon is ending")
	case len(q.waiting) >= maxQueue:
		return service.Exhausted("%d runs wait already", len(q.waiting))
	}
	return nil
}

// admit opens the events of a job and puts it into the queue. A job that cannot be written is not taken.
func (q *queue) admit(j *job, wait time.Duration) error {
	j.Deadline = matrix.Opt[time.Time]{}
	if wait > 0 {
		j.Deadline = matrix.Some(q.now().Add(wait))
	}
	j.State, j.Drained = brokerv1.RunState_RUN_STATE_QUEUED.String(), false
	j.fail(nil)
	j.Updated = q.now().UTC()
	if err := q.store.save(j); err != nil {
		return fmt.Errorf("the run was not taken: %w", err)
	}
	log, err := openEvents(q.store.path(j.Name, eventsFile), j.Name)
	if err != nil {
		return fmt.Errorf("the run was not taken: %w", err)
	}
	j.log = log
	q.jobs[j.Name] = j
	q.enqueue(j)
	return nil
}

func (q *queue) enqueue(j *job) {
	q.waiting = append(q.waiting, j)
	q.set(j, brokerv1.RunState_RUN_STATE_QUEUED, nil)
	q.poke()
}

func (q *queue) poke() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// set records a new state, then tells it.
func (q *queue) set(j *job, s brokerv1.RunState, err error) {
	j.State, j.Updated = s.String(), q.now().UTC()
	f := j.fail(err)
	if err := q.store.save(j); err != nil {
		q.log.Error("state not written", zap.String("run", j.Name), zap.Error(err))
	}
	q.publish(j, &brokerv1.WatchRunResponse{State: &s, Failure: f}, !j.live())
	q.log.Info("run is "+strings.ToLower(strings.TrimPrefix(s.String(), "RUN_STATE_")), zap.String("run", j.Name), zap.Error(err))
}

// end is set for a state that ends the run.
func (q *queue) end(j *job, s brokerv1.RunState, err error) {
	q.set(j, s, err)
	if err := j.log.close(); err != nil {
		q.log.Error("events not written", zap.String("run", j.Name), zap.Error(err))
	}
	j.cancel = nil
	q.m.ended(s)
}

func (q *queue) publish(j *job, m *brokerv1.WatchRunResponse, ends bool) {
	if err := j.log.publish(m, q.now(), ends); err != nil {
		q.log.Error("event not written", zap.String("run", j.Name), zap.Error(err))
	}
}

// cancel ends a run, waiting or in flight. To cancel one again changes nothing.
func (q *queue) cancel(name string) (*brokerv1.Run, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	j := q.jobs[name]
	switch {
	case j == nil:
		return nil, failf(service.CauseNotFound, "", "no run %q was asked for here", name)
	case j.state() == brokerv1.RunState_RUN_STATE_CANCELLED, j.state() == brokerv1.RunState_RUN_STATE_CANCELLING:
	case j.state() == brokerv1.RunState_RUN_STATE_QUEUED:
		q.waiting = slices.DeleteFunc(q.waiting, func(x *job) bool { return x == j })
		q.end(j, j.unbegun(brokerv1.RunState_RUN_STATE_CANCELLED), failf(service.CauseInterrupted, "", "cancelled before its turn came"))
	case j.live():
		q.set(j, brokerv1.RunState_RUN_STATE_CANCELLING, nil)
		j.cancel()
	default:
		return nil, service.Ended("RUN_ENDED", "", "run %s has ended", name)
	}
	return q.run(j, nil), nil
}

// drain stops taking runs in.
func (q *queue) drain() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.draining = true
}

// hangUp ends every watch. Waiting runs stay recorded as waiting.
func (q *queue) hangUp() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, j := range q.jobs {
		if j.log != nil {
			if err := j.log.close(); err != nil {
				q.log.Error("events not written", zap.String("run", j.Name), zap.Error(err))
			}
		}
	}
}

// eventsOf is the log of a run: the one that is written, else the one on disk.
func (q *queue) eventsOf(name string) (*events, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	j := q.jobs[name]
	if j == nil {
		return nil, failf(service.CauseNotFound, "GetRun shows where it stands", "no run %q was asked for here, so that there are no events of it", name)
	}
	if j.log != nil && j.live() {
		return j.log, nil
	}
	defer q.quiet.brief("WatchRun")() // one at a time: q.mu is held
	e, _, err := readEvents(q.store.path(name, eventsFile), name)
	return e, err
}

var errNoTurn = errors.New("the box was not free before the deadline of the run")

// positions gives waiting runs their place in the queue, from 1.
func (q *queue) position(j *job) int { return slices.Index(q.waiting, j) + 1 }
