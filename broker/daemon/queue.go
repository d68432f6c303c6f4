package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
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
	due      *time.Timer       // of the first deadline among them
	draining bool
	resumes  bool          // what is left unfinished is gone on with
	wake     chan struct{} // of capacity 1: there is something to do
	listed   []service.RunInfo
}

func newQueue(b Broker, log *zap.Logger, m *metrics) *queue {
	q := &queue{b: b, log: log, m: m, store: store{b.StateDir("jobs")}, quiet: newQuiet(), now: time.Now,
		jobs: map[string]*job{}, requests: map[string]string{}, wake: make(chan struct{}, 1)}
	q.due = time.AfterFunc(time.Hour, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.expire()
	})
	q.due.Stop()
	m.watch(q)
	return q
}

// load remembers what the daemons before this one were asked for.
func (q *queue) load() {
	jobs, bad := q.store.load()
	for _, err := range bad {
		q.log.Error("left alone", zap.Error(err))
	}
	for _, j := range jobs {
		q.jobs[j.Name] = j
		if j.RequestID != "" {
			q.requests[j.RequestID] = j.Name
		}
	}
}

// recover looks at what an earlier daemon left: waiting runs wait on, in their order; runs in flight go on by policy.
func (q *queue) recover(resume bool) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.resumes = resume
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
	if err != nil && len(left) > 0 { // a run that has evidence would be taken for one that has none
		return fmt.Errorf("what an earlier daemon left cannot be taken up: %w", err)
	}
	for _, j := range left {
		if err := q.takeUp(j, infos); err != nil {
			return fmt.Errorf("run %s, which an earlier daemon left, cannot be taken up: %w", j.Name, err)
		}
	}
	q.expire()
	return nil
}

// takeUp decides about one run that an earlier daemon left. q.mu is held.
func (q *queue) takeUp(j *job, infos []service.RunInfo) error {
	found := zap.String("was", j.State)
	at := slices.IndexFunc(infos, func(i service.RunInfo) bool { return i.Name == j.Name })
	begun := at >= 0
	log, err := openEvents(q.store.path(j.Name, eventsFile), j.Name)
	if err != nil {
		q.log.Error("found a run whose events cannot be read; it is left alone", zap.String("run", j.Name), found, zap.Error(err))
		state := brokerv1.RunState_RUN_STATE_INTERRUPTED
		if j.state() == brokerv1.RunState_RUN_STATE_QUEUED && !begun {
			state = brokerv1.RunState_RUN_STATE_FAILED
		}
		return q.end(j, state, err)
	}
	for _, text := range log.damage {
		q.log.Error(text)
	}
	j.log = log
	waited := j.state() == brokerv1.RunState_RUN_STATE_QUEUED
	switch {
	case waited && !(j.Drained && begun):
		q.log.Info("found a waiting run; it waits on", zap.String("run", j.Name), found)
	case j.state() == brokerv1.RunState_RUN_STATE_CANCELLING || !q.resumes:
		q.log.Info("found an unfinished run; it stays as it is", zap.String("run", j.Name), found)
		return q.end(j, brokerv1.RunState_RUN_STATE_INTERRUPTED, failf(service.CauseInterrupted, "go on with: broker resume "+j.Name, "the daemon ended while the run was on"))
	default:
		q.log.Info("found an unfinished run; it goes on", zap.String("run", j.Name), found, zap.Bool("resumes", begun))
		// What was asked for without a request was asked of evidence.
		j.Resume, j.found = begun || j.Request == nil && j.Trial == nil, true
		if begun {
			j.Before = before(infos[at]).String()
		}
		j.Deadline = matrix.Opt[time.Time]{} // it had its turn
		if !waited {
			if err := q.set(j, brokerv1.RunState_RUN_STATE_QUEUED, nil); err != nil {
				return err
			}
		}
	}
	q.waiting = append(q.waiting, j)
	q.poke()
	return nil
}

func rank(j *job) int {
	if j.state() == brokerv1.RunState_RUN_STATE_QUEUED && !j.Drained {
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
	name, err := q.b.NewRun(asked, j.stem(), func(n string) bool { return q.jobs[n] != nil || q.store.has(n) })
	if err != nil {
		return nil, err
	}
	j.Name, j.Created = name, q.now().UTC()
	if j.Request != nil {
		j.Request.Run = name
	}
	if err := q.admit(j, wait); err != nil {
		return nil, errors.Join(err, q.store.drop(name))
	}
	if j.RequestID != "" {
		q.requests[j.RequestID] = name
	}
	return q.run(j, nil), nil
}

// resume takes a run in again, to go on with it or to run some of it again; info is its entry in the listing, or missing says
// that it has no evidence.
func (q *queue) resume(name string, info *service.RunInfo, missing error, again *rerun, wait time.Duration) (*brokerv1.ResumeRunResponse, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	was := q.jobs[name]
	if was == nil {
		missing = q.unknown(name, missing)
	}
	switch {
	case was != nil && was.live():
		return nil, service.Ended("RUN_ACTIVE", "watch it with WatchRun", "run %s waits or runs already", name)
	case was != nil && was.Trial != nil:
		return nil, service.Ended("RUN_UNBEGUN", "make it again under another name", "%s is a trial, which leaves nothing to go on with", name)
	case was != nil && missing != nil:
		return nil, service.Ended("RUN_UNBEGUN", "create it again under another name", "run %s never began: it has no evidence to go on with", name)
	case missing != nil:
		return nil, missing
	}
	if err := q.room(); err != nil {
		return nil, err
	}
	j := &job{Name: name, Created: q.now().UTC(), Profile: info.Profile, Box: info.Box, Simulated: info.Simulated, Planned: info.Planned}
	if was != nil {
		*j = *was
	}
	j.Resume, j.Rerun, j.found, j.Before = true, again, false, before(*info).String()
	if err := q.admit(j, wait); err != nil {
		if was == nil {
			err = errors.Join(err, q.store.drop(name))
		}
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
	log, err := q.store.events(j.Name)
	if err != nil {
		return err
	}
	j.log, j.loads, j.Drained, j.Cancelled = log, 0, false, false
	j.Deadline = matrix.Opt[time.Time]{}
	if wait > 0 {
		j.Deadline = matrix.Some(q.now().Add(wait))
	}
	if err := q.set(j, brokerv1.RunState_RUN_STATE_QUEUED, nil); err != nil {
		return errors.Join(err, log.close())
	}
	q.jobs[j.Name] = j
	q.waiting = append(q.waiting, j)
	q.poke()
	q.expire()
	return nil
}

func (q *queue) poke() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// set records a new state, then tells it. Where it cannot be recorded nothing has changed. q.mu is held.
func (q *queue) set(j *job, s brokerv1.RunState, why error) error {
	was := *j
	j.State, j.Updated = s.String(), q.now().UTC()
	m := &brokerv1.WatchRunResponse{State: &s, Failure: j.fail(why)}
	save := func() error { return q.store.save(j) }
	var err error
	if j.log == nil { // its events cannot be read
		err = save()
	} else {
		err = j.log.record(m, q.now(), !j.live(), save)
	}
	if err != nil {
		*j = was
		return failf(service.CauseInternal, "make "+q.store.dir+" a folder with room, and ask again", "the state of run %s cannot be written: %w", j.Name, err)
	}
	q.log.Info("run is "+strings.ToLower(strings.TrimPrefix(s.String(), "RUN_STATE_")), zap.String("run", j.Name), zap.Error(why))
	return nil
}

// end is set for a state that ends the run.
func (q *queue) end(j *job, s brokerv1.RunState, why error) error {
	if err := q.set(j, s, why); err != nil {
		return err
	}
	if j.log != nil {
		if err := j.log.close(); err != nil {
			q.log.Error("events not written", zap.String("run", j.Name), zap.Error(err))
		}
	}
	j.cancel = nil
	q.m.ended(s)
	return nil
}

// cancel ends a run, waiting or in flight. To cancel one again changes nothing, also where it has ended meanwhile.
func (q *queue) cancel(name string) (*brokerv1.Run, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	j := q.jobs[name]
	if j == nil {
		return nil, q.unknown(name, failf(service.CauseNotFound, "", "no run %q was asked for here", name))
	}
	if j.Cancelled {
		return q.run(j, nil), nil
	}
	var err error
	j.Cancelled = true
	switch {
	case j.state() == brokerv1.RunState_RUN_STATE_QUEUED:
		err = q.end(j, j.unbegun(brokerv1.RunState_RUN_STATE_CANCELLED), failf(service.CauseInterrupted, "", "cancelled before its turn came"))
	case j.live():
		err = q.set(j, brokerv1.RunState_RUN_STATE_CANCELLING, nil)
	default:
		err = service.Ended("RUN_ENDED", "", "run %s has ended", name)
	}
	if err != nil {
		j.Cancelled = false
		return nil, err
	}
	q.waiting = slices.DeleteFunc(q.waiting, func(x *job) bool { return x == j })
	if j.live() {
		j.cancel()
	}
	return q.run(j, nil), nil
}

// drain stops taking runs in.
func (q *queue) drain() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.draining = true
	q.due.Stop()
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
		return nil, q.unknown(name, failf(service.CauseNotFound, "GetRun shows where it stands", "no run %q was asked for here, so that there are no events of it", name))
	}
	if j.log != nil && j.live() {
		return j.log, nil
	}
	defer q.quiet.brief("WatchRun")() // one at a time: q.mu is held
	e, err := readEvents(q.store.path(name, eventsFile), name)
	if err == nil {
		e.settle(j.state(), j.failure())
	}
	return e, err
}

// unknown is the error of a run that the daemon does not know: the damage of its record where there is one.
func (q *queue) unknown(name string, otherwise error) error {
	if _, err := q.store.read(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return otherwise
}

var errNoTurn = errors.New("the box was not free before the deadline of the run")

// positions gives waiting runs their place in the queue, from 1.
func (q *queue) position(j *job) int { return slices.Index(q.waiting, j) + 1 }
