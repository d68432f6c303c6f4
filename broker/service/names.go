package service

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
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

// Check looks at everything in a request that can be looked at without launching anything.
func (s *Service) Check(q Request) error {
	_, err := s.checked(q)
	return err
}

// checked is the request as its experiment wants it, once Check passes it: a plan begins with it, so that it refuses what Check
// refuses, and the error names the field of the request.
func (s *Service) checked(asked Request) (Request, error) {
	q, err := s.shaped(asked)
	if err != nil {
		return q, err
	}
	if err := s.known("spec.model", q.Model, q.instances()...); err != nil {
		return q, err
	}
	profile, err := profileOf(q)
	if err != nil {
		return q, err
	}
	all := q
	all.Points = asked.Points // a reload experiment moves its one elsewhere
	if _, _, err := s.points(all, profile); err != nil {
		return q, err
	}
	labels := q.Engines
	if len(labels) == 0 {
		labels = s.cfg.Labels()
	}
	if _, err := pairs(q.Pairs, slices.Compact(slices.Sorted(slices.Values(labels)))); err != nil {
		return q, err
	}
	if q.Budget < 0 {
		return q, About("spec.budget", fail(CauseUsage, "", "--budget %v: a budget is positive", q.Budget))
	}
	return q, nil
}

// named is an instance where a request names it.
type named struct{ field, label string }

// instances are those of a request that is shaped, each in the field that it was asked for in.
func (q Request) instances() []named {
	fields := []string{"spec.reload.engine", "spec.reload.with"}
	if q.AB != nil {
		fields = []string{"spec.ab.new_build", "spec.ab.old_build"}
	}
	return instancesIn(q.Engines, func(i int) string {
		if q.AB != nil || q.Reload != nil {
			return fields[i]
		}
		return fmt.Sprintf("spec.engines[%d]", i)
	})
}

func instancesIn(labels []string, field func(int) string) []named {
	out := make([]named, len(labels))
	for i, l := range labels {
		out[i] = named{field(i), l}
	}
	return out
}

// known refuses a model or instances that the catalog and the configuration do not have.
func (s *Service) known(field, model string, instances ...named) error {
	if _, err := s.catalog.Model(model); err != nil {
		return About(field, &Error{Cause: CauseUsage, Err: err})
	}
	for _, x := range instances {
		if _, err := s.instance(x.label); err != nil {
			return About(x.field, err)
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
