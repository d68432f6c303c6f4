package daemon

import (
	"context"
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
		return nil, err
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
		return nil, err
	}
	return &brokerv1.GetEngineResponse{Engine: service.ToEngine(list[0])}, nil
}

// engines launches an adapter for each answer.
func (s *engineServer) engines(ctx context.Context, labels ...string) ([]service.Engine, error) {
	leave, err := s.quiet.enter(ctx, "ListEngines")
	if err != nil {
		return nil, err
	}
	defer leave()
	return s.b.Engines(ctx, labels...)
}
