package service

import (
	"os"
	"path/filepath"
	"strconv"
)

// NewRun is the name of a new run: the one that is asked for, else one of model and time that is free. taken says which
// names stand for runs that have no folder yet.
func (s *Service) NewRun(q Request, taken func(name string) bool) (string, error) {
	name, err := s.runName(q)
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
	if q.Run != "" {
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
	if _, err := s.catalog.Model(q.Model); err != nil {
		return &Error{Cause: CauseUsage, Err: err}
	}
	for _, l := range q.Engines {
		if _, ok := s.cfg.Instance(l); !ok {
			return fail(CauseUsage, near(l, s.cfg.Labels()), "there is no instance %q; there are %v", l, s.cfg.Labels())
		}
	}
	return nil
}
