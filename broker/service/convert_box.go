package service

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"enginebroker/matrix/box"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

var findingStates = []word[box.State, brokerv1.FindingState]{
	{box.StateOK, brokerv1.FindingState_FINDING_STATE_OK},
	{box.StateCannot, brokerv1.FindingState_FINDING_STATE_CANNOT},
	{box.StateNote, brokerv1.FindingState_FINDING_STATE_NOTE},
}

// DiagnoseBox is Doctor without a load, as a message.
func (s *Service) DiagnoseBox(ctx context.Context) (*brokerv1.DiagnoseBoxResponse, error) {
	d, err := s.Doctor(ctx, DoctorRequest{}, func(Event) {})
	if err != nil {
		return nil, err
	}
	return &brokerv1.DiagnoseBoxResponse{Profile: text(d.Profile), CertifiesUpTo: text(d.Certifies.String()), Simulated: flag(d.Simulated), CeilingMhz: opt(d.CeilingMHz),
		Findings: each(d.Findings, func(f box.Finding) *brokerv1.BoxFinding {
			return &brokerv1.BoxFinding{What: text(f.What), State: enumOf(findingStates, f.State), Saw: text(f.Saw), Costs: text(f.Costs), Fix: text(f.Fix)}
		})}, nil
}

// WatchBox hands a message to send every so often, until ctx ends or send fails.
func (s *Service) WatchBox(ctx context.Context, every time.Duration, send func(*brokerv1.WatchBoxResponse) error) error {
	live, done, err := s.Live(ctx, every)
	if err != nil {
		return err
	}
	defer done()
	for x, err := range live {
		if err != nil {
			return err
		}
		if err := send(toSnapshot(x)); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func toSnapshot(x box.Snapshot) *brokerv1.WatchBoxResponse {
	out := &brokerv1.WatchBoxResponse{Time: timestamppb.New(x.At), MemAvailableKib: count(x.AvailableKiB), MemFreeKib: count(x.FreeKiB), CachedKib: opt(x.CachedKiB), SwapFreeKib: opt(x.SwapFreeKiB),
		LoadAverage: numberOf(x.LoadAverage), Busy: numberOf(x.Busy), Steal: numberOf(x.Steal)}
	if g, ok := x.GPU.Get(); ok {
		for name, r := range g.Fields {
			if v, ok := r.Value.Get(); ok {
				if out.Gpu == nil {
					out.Gpu = map[string]int64{}
				}
				out.Gpu[name] = v
			}
		}
	}
	if h, ok := x.Holder.Get(); ok {
		out.Holder = text(h.Name)
	}
	return out
}
