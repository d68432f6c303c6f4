package daemon

import (
	"context"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	"enginebroker/broker/service"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

// run is the message of a job, with what the listing of its evidence adds; one of the two may be nil. q.mu is held.
func (q *queue) run(j *job, info *service.RunInfo) *brokerv1.Run {
	var out *brokerv1.Run
	if info != nil {
		out = service.ToRun(*info)
	} else {
		out = &brokerv1.Run{Name: new(service.RunPrefix + j.Name)}
	}
	if j == nil {
		return out
	}
	if j.live() || info == nil {
		// The daemon knows better than the listing where a run stands that it holds.
		out.State, out.Word, out.UpdateTime = new(j.state()), nil, timestamppb.New(j.Updated)
	}
	out.Failure, out.CreateTime = j.failure(), timestamppb.New(j.Created)
	if j.RequestID != "" {
		out.RequestId = &j.RequestID
	}
	if p := q.position(j); p > 0 {
		out.QueuePosition = new(int64(p))
	}
	if j.Request != nil {
		if spec, err := service.ToSpec(*j.Request); err == nil {
			out.Spec = spec
		}
		out.Model = &j.Request.Model
	}
	if j.Trial != nil {
		out.Trial, out.Model = service.ToTrial(*j.Trial), new(j.Trial.Model())
	}
	if j.Profile != "" {
		out.Profile, out.Box, out.LoadsPlanned = &j.Profile, &j.Box, new(int64(j.Planned))
	}
	if j.Simulated {
		out.Simulated = new(true)
	}
	if j.cancel != nil {
		out.LoadsDone = new(int64(j.loads))
	}
	return out
}

// list is every run: in flight, waiting in order, then the others, newest first.
func (q *queue) list(ctx context.Context) ([]*brokerv1.Run, error) {
	infos, err := q.infos(ctx)
	if err != nil {
		return nil, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	byName := make(map[string]*service.RunInfo, len(infos))
	for i := range infos {
		byName[infos[i].Name] = &infos[i]
	}
	var live, ended []*job
	for _, j := range q.jobs {
		switch {
		case j.live():
			live = append(live, j)
		case byName[j.Name] == nil:
			ended = append(ended, j)
		}
	}
	slices.SortFunc(live, func(a, b *job) int { return q.position(a) - q.position(b) })
	var out, rest []*brokerv1.Run
	for _, j := range live {
		out = append(out, q.run(j, byName[j.Name]))
	}
	for i := range infos {
		if j := q.jobs[infos[i].Name]; j == nil || !j.live() {
			rest = append(rest, q.run(j, &infos[i]))
		}
	}
	for _, j := range ended {
		rest = append(rest, q.run(j, nil))
	}
	slices.SortStableFunc(rest, func(a, b *brokerv1.Run) int {
		return b.GetUpdateTime().AsTime().Compare(a.GetUpdateTime().AsTime())
	})
	return append(out, rest...), nil
}

// get is one run; of a trial that has ended, with what came of it.
func (q *queue) get(ctx context.Context, name string) (*brokerv1.Run, error) {
	q.mu.Lock()
	if j := q.jobs[name]; j != nil && (j.live() || j.Trial != nil) {
		defer q.mu.Unlock()
		out := q.run(j, nil)
		out.Result = j.result()
		return out, nil
	}
	q.mu.Unlock()
	info, err := q.info(ctx, name)
	q.mu.Lock()
	defer q.mu.Unlock()
	if j := q.jobs[name]; err == nil || j != nil {
		return q.run(j, info), nil
	}
	return nil, q.unknown(name, err)
}

// info is the listing entry of a run.
func (q *queue) info(ctx context.Context, name string) (*service.RunInfo, error) {
	infos, err := q.infos(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(infos, func(x service.RunInfo) bool { return x.Name == name })
	if i < 0 {
		var known []string
		for _, x := range infos {
			known = append(known, x.Name)
		}
		return nil, q.b.NoRun(name, known)
	}
	return &infos[i], nil
}

// infos lists what has evidence. While a window is open it is the list from before: nothing is read from disk. Where there was
// none the caller is asked to come back; an empty list would say that there are no runs.
func (q *queue) infos(ctx context.Context) ([]service.RunInfo, error) {
	if q.quiet.measuring() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.listed == nil {
			return nil, &service.MeasuringError{Retry: retryAfter}
		}
		return slices.Clone(q.listed), nil
	}
	return q.b.Runs(ctx)
}

// relist remembers the list for the windows that follow.
func (q *queue) relist(ctx context.Context) {
	infos, err := q.b.Runs(ctx)
	if err != nil {
		return // whoever asks hears it
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.listed = append([]service.RunInfo{}, infos...)
}
