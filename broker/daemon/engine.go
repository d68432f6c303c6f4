package daemon

import (
	"context"
	"errors"
	"fmt"

	"enginebroker/broker/service"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

type engineServer struct {
	brokerv1.UnimplementedEngineServiceServer
	b     Broker
	quiet *quiet
}

func (s *engineServer) ListEngines(ctx context.Context, r *brokerv1.ListEnginesRequest) (*brokerv1.ListEnginesResponse, error) {
	var labels []string
	for i, n := range r.GetNames() {
		l, err := service.ResourceID(service.EnginePrefix, n)
		if err != nil {
			return nil, service.Bad(fmt.Sprintf("names[%d]", i), "%v", err)
		}
		labels = append(labels, l)
	}
	list, err := s.engines(ctx, labels...)
	if err != nil {
		return nil, service.About("names", err)
	}
	out := &brokerv1.ListEnginesResponse{}
	for _, e := range list {
		out.Engines = append(out.Engines, service.ToEngine(e))
	}
	return out, nil
}

func (s *engineServer) GetEngine(ctx context.Context, r *brokerv1.GetEngineRequest) (*brokerv1.GetEngineResponse, error) {
	label, err := service.ResourceID(service.EnginePrefix, r.GetName())
	if err != nil {
		return nil, service.Bad("name", "%v", err)
	}
	list, err := s.engines(ctx, label)
	if err != nil {
		if e, ok := errors.AsType[*service.Error](err); ok && e.Cause == service.CauseUsage {
			err = &service.Error{Cause: service.CauseNotFound, Err: e.Err, Fix: e.Fix} // what is asked for is the instance itself
		}
		return nil, err
	}
	return &brokerv1.GetEngineResponse{Engine: service.ToEngine(list[0])}, nil
}

// engines launches an adapter for each answer.
func (s *engineServer) engines(ctx context.Context, labels ...string) ([]service.Engine, error) {
	ctx, leave, err := s.quiet.enter(ctx, "ListEngines")
	if err != nil {
		return nil, err
	}
	defer leave()
	return s.b.Engines(ctx, labels...)
}

// ListPins launches the adapters of the instances that declare a pin.
func (s *engineServer) ListPins(ctx context.Context, _ *brokerv1.ListPinsRequest) (*brokerv1.ListPinsResponse, error) {
	ctx, leave, err := s.quiet.enter(ctx, "ListPins")
	if err != nil {
		return nil, err
	}
	defer leave()
	list, err := s.b.Pins(ctx)
	if err != nil {
		return nil, err
	}
	out := &brokerv1.ListPinsResponse{}
	for _, x := range list {
		m, err := service.ToPin(x)
		if err != nil {
			return nil, err
		}
		out.Pins = append(out.Pins, m)
	}
	return out, nil
}

// ListPinned reads the plan and the report of every run.
func (s *engineServer) ListPinned(ctx context.Context, r *brokerv1.ListPinnedRequest) (*brokerv1.ListPinnedResponse, error) {
	name, err := service.ResourceID(service.PinPrefix, r.GetName())
	if err != nil {
		return nil, service.Bad("name", "%v", err)
	}
	ctx, leave, err := s.quiet.enter(ctx, "ListPinned")
	if err != nil {
		return nil, err
	}
	defer leave()
	list, err := s.b.Carried(ctx, name)
	if err != nil {
		return nil, err
	}
	out := &brokerv1.ListPinnedResponse{}
	for _, x := range list {
		out.Pinned = append(out.Pinned, service.ToPinned(x))
	}
	return out, nil
}

// DiffArms reads evidence, or launches an adapter to learn its build.
func (s *engineServer) DiffArms(ctx context.Context, r *brokerv1.DiffArmsRequest) (*brokerv1.DiffArmsResponse, error) {
	a, err := service.ArmNameOf(r.GetA())
	if err != nil {
		return nil, service.Bad("a", "%v", err)
	}
	b, err := service.ArmNameOf(r.GetB())
	if err != nil {
		return nil, service.Bad("b", "%v", err)
	}
	ctx, leave, err := s.quiet.enter(ctx, "DiffArms")
	if err != nil {
		return nil, err
	}
	defer leave()
	list, err := s.b.DiffArms(ctx, a, b)
	if err != nil {
		return nil, service.About("b", err)
	}
	out := &brokerv1.DiffArmsResponse{}
	for _, d := range list {
		out.Diffs = append(out.Diffs, service.ToDiff(d))
	}
	return out, nil
}
