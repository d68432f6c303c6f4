package service

import (
	"maps"
	"slices"

	"enginebroker/matrix"
	"enginebroker/matrix/workload"
)

// CatalogModel is a model and the file it was read from.
type CatalogModel struct {
	Model matrix.Model `json:"model"`
	From  string       `json:"from"`
}

// Models lists the catalog.
func (s *Service) Models() []CatalogModel {
	var out []CatalogModel
	for _, n := range s.catalog.Names() {
		m, err := s.catalog.Model(n)
		if err == nil {
			out = append(out, CatalogModel{Model: m, From: s.catalog.From(n)})
		}
	}
	return out
}

// ModelNames lists the names of the catalog.
func (s *Service) ModelNames() []string { return s.catalog.Names() }

// Labels lists the configured instances.
func (s *Service) Labels() []string { return s.cfg.Labels() }

// Profiles lists the run profiles.
func Profiles() []string { return workload.ProfileNames() }

// Workloads lists the shipped workloads.
func Workloads() []string { return workload.Names() }

// WorkloadNames lists the workloads that can be named, shipped and of the configuration.
func (s *Service) WorkloadNames() []string {
	return slices.Concat(workload.Names(), slices.Sorted(maps.Keys(s.cfg.Workloads)))
}
