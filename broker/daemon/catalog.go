package daemon

import (
	"context"
	"slices"

	"enginebroker/broker/service"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

type catalogServer struct {
	brokerv1.UnimplementedCatalogServiceServer
	b     Broker
	quiet *quiet
}

func (s *catalogServer) ListModels(context.Context, *brokerv1.ListModelsRequest) (*brokerv1.ListModelsResponse, error) {
	out := &brokerv1.ListModelsResponse{}
	for _, m := range s.b.Models() {
		out.Models = append(out.Models, service.ToModel(m))
	}
	return out, nil
}

func (s *catalogServer) GetModel(_ context.Context, r *brokerv1.GetModelRequest) (*brokerv1.GetModelResponse, error) {
	name, err := service.ResourceID(service.ModelPrefix, r.GetName())
	if err != nil {
		return nil, service.Bad("name", "%v", err)
	}
	models := s.b.Models()
	i := slices.IndexFunc(models, func(m service.CatalogModel) bool { return m.Model.Name == name })
	if i < 0 {
		return nil, failf(service.CauseNotFound, "ListModels lists them", "the catalog has no model %q", name)
	}
	return &brokerv1.GetModelResponse{Model: service.ToModel(models[i])}, nil
}

func (s *catalogServer) InspectArtifact(ctx context.Context, r *brokerv1.InspectArtifactRequest) (*brokerv1.InspectArtifactResponse, error) {
	if r.GetLocator() == "" {
		return nil, service.Bad("locator", "give a path, or hf:ORG/NAME@REVISION")
	}
	ctx, leave, err := s.quiet.enter(ctx, "InspectArtifact")
	if err != nil {
		return nil, err
	}
	defer leave()
	x, err := s.b.Inspect(ctx, r.GetLocator(), r.GetHeadersOnly(), r.GetRehash())
	if err != nil {
		return nil, service.About("locator", err)
	}
	return service.ToInspection(x)
}
