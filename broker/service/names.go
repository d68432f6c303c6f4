package service

import (
	"os"
	"path/filepath"
	"strconv"

	"enginebroker/broker/config"
)

// NewRun is the name of a new run: the one that is asked for, else one of its stem and the time that is free. taken says
// which names stand for runs that have no folder yet.
func (s *Service) NewRun(asked, stem string, taken func(name string) bool) (string, error) {
	name, err := s.runName(asked, stem)
	if err != nil {
		return "", err
	}
	used := func(name string) bool {
		_, err := os.Lstat(filepath.Join(s.runs, name))
		return err == nil || taken(name)
	}
	if !used(name) {
		return name, nil
	}
	if asked != "" {
		return "", Taken("RUN_EXISTS", "give it another name; a run is never overwritten", "a run named %s exists", name)
	}
	for i := 2; ; i++ {
		if n := name + "-" + strconv.Itoa(i); !used(n) {
			return n, nil
		}
	}
}

// StateDir is a folder of the daemon beside the runs, for what it has to remember.
func (s *Service) StateDir(name string) string { return filepath.Join(s.state, name) }

// Check looks at the names in a request, without launching anything.
func (s *Service) Check(q Request) error {
	q, err := s.shaped(q)
	if err != nil {
		return err
	}
	return s.known(q.Model, q.Engines...)
}

// known refuses a model or instances that the catalog and the configuration do not have.
func (s *Service) known(model string, labels ...string) error {
	if _, err := s.catalog.Model(model); err != nil {
		return &Error{Cause: CauseUsage, Err: err}
	}
	for _, l := range labels {
		if _, err := s.instance(l); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) instance(label string) (config.Instance, error) {
	in, ok := s.cfg.Instance(label)
	if !ok {
		return in, fail(CauseUsage, near(label, s.cfg.Labels()), "there is no instance %q; there are %v", label, s.cfg.Labels())
	}
	return in, nil
}
