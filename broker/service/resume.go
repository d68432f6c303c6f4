package service

import (
	"slices"
	"strings"

	"enginebroker/matrix"
	"enginebroker/matrix/workload"
)

func instancesOf(p matrix.Plan) []string {
	var out []string
	for _, g := range p.Groups {
		for _, a := range g.Arms {
			out = append(out, a.Instance)
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(out)))
}

// sameArms refuses to go on with a run whose arms are declared otherwise now: an arm's key is what its evidence is filed
// under, and another key is another arm.
func sameArms(plan matrix.Plan, t *team) error {
	if missing := t.missing(); len(missing) > 0 {
		return Planned{Plan: plan, Missing: missing}.Runnable()
	}
	for _, g := range plan.Groups {
		for _, a := range g.Arms {
			m := t.member(a.Instance)
			if m == nil {
				return fail(CauseUsage, "", "the configuration has no instance %q any more, which the run needs", a.Instance)
			}
			now := a
			now.Engine, now.Pin, now.Policy, now.ComputeDtype, now.Compares = m.desc.Engine, m.Pin, m.Policy, m.ComputeDtype, m.Compares
			now.Settings, now.Simulated = m.recorded(), m.desc.Simulated
			key, err := now.ArmKey()
			if err != nil {
				return err
			}
			if key != a.Key {
				return fail(CauseIdentity, "restore the configuration the run was begun with, or begin a new run",
					"instance %s is declared otherwise than when the run began (arm key %.12s, now %.12s)", a.Instance, a.Key, key)
			}
		}
	}
	return nil
}

// samePoints refuses to go on where the configuration declares the run's workload otherwise now: the plan's own points would be
// measured, and not what whoever goes on believes.
func (s *Service) samePoints(plan matrix.Plan) error {
	profile, ok := workload.ProfileNamed(plan.Profile)
	if !ok {
		return fail(CauseUsage, "", "no run profile %q; there are %s", plan.Profile, strings.Join(workload.ProfileNames(), ", "))
	}
	for _, want := range plan.Method.Points {
		now, _, err := s.points(Request{Workload: want.Workload, Points: []string{want.ID}}, profile)
		if err != nil {
			return err
		}
		if len(now) != 1 || now[0] != want {
			return fail(CauseIdentity, "restore the configuration the run was begun with, or begin a new run",
				"workload %s is declared otherwise than when the run began, at point %s", want.Workload, want.ID)
		}
	}
	return nil
}

// sameFiles refuses to run a plan on other files than it was made for.
func sameFiles(plan matrix.Plan, model matrix.Model) error {
	for id, want := range plan.Manifests {
		a, ok := model.Artifact(id)
		if !ok {
			return fail(CauseIdentity, "", "the catalog has no artifact %s any more, which the run needs", id)
		}
		have, _ := a.Manifest.Get()
		if have.SHA256 != want {
			return fail(CauseIdentity, "restore the files, or begin a new run", "the files of %s changed since the plan was made (manifest %.12s, now %.12s)", id, want, have.SHA256)
		}
	}
	return nil
}
