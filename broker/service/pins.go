package service

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"enginebroker/engines/pins"
	"enginebroker/matrix"
)

// planPin stands for the files that a plan was made for, which every run is pinned to.
const planPin = "of the plan"

// pinned returns the check that a run makes at every load and after every leg: the artifact's files against those that the
// plan was made for, and what runs against the arm's declared pin. It is absent where no pin is declared and the files are
// the plan's.
func (s *Service) pinned(ctx context.Context, plan matrix.Plan, model matrix.Model) func(matrix.Arm, matrix.Ready) matrix.Opt[matrix.PinCheck] {
	return func(arm matrix.Arm, ready matrix.Ready) matrix.Opt[matrix.PinCheck] {
		facts, mismatch := s.filesNow(ctx, plan, model, arm)
		check := matrix.PinCheck{Pin: cmp.Or(arm.Pin, planPin), OK: true}
		if arm.Pin != "" {
			if p, missing := s.pin(arm.Pin); missing != nil {
				check.Mismatch = []matrix.PinMismatch{*missing}
			} else {
				check = pins.Check(p, append(slices.Clone(ready.Facts), facts...))
			}
		}
		check.Mismatch = append(check.Mismatch, mismatch...)
		check.OK = len(check.Mismatch) == 0
		if check.OK && arm.Pin == "" {
			return matrix.Opt[matrix.PinCheck]{}
		}
		return matrix.Some(check)
	}
}

// filesNow reads the manifest of an arm's artifact again. Sums are kept by inode, time and size, so that it costs headers.
func (s *Service) filesNow(ctx context.Context, plan matrix.Plan, model matrix.Model, arm matrix.Arm) (matrix.Facts, []matrix.PinMismatch) {
	a, ok := model.Artifact(arm.Artifact)
	want, recorded := plan.Manifests[arm.Artifact]
	if !ok || !recorded {
		return nil, nil // a simulated engine opens no files
	}
	field := "artifacts." + a.ID
	if err := s.locate(context.WithoutCancel(ctx), &a); err != nil {
		return nil, []matrix.PinMismatch{{Field: field, Expected: want, Found: err.Error(), Where: a.Path}}
	}
	now, _ := a.Manifest.Get()
	fact := artifactFact(a)
	if now.SHA256 != want {
		return fact, []matrix.PinMismatch{{Field: field, Expected: want, Found: now.SHA256, Where: a.Path}}
	}
	return fact, nil
}

// artifactFact is the manifest of an artifact as a pin is checked against it.
func artifactFact(a matrix.Artifact) matrix.Facts {
	m, ok := a.Manifest.Get()
	if !ok {
		return nil
	}
	return matrix.Facts{{Name: pins.FactArtifact + a.ID, Value: m.SHA256, Where: a.Path, Standing: matrix.Observed}}
}

// unrecorded says of the arms of a plan which declared pin their loads will be aborted for.
func (s *Service) unrecorded(groups []matrix.Group) []string {
	var out []string
	for _, g := range groups {
		for _, a := range g.Arms {
			if a.Pin == "" {
				continue
			}
			if _, missing := s.pin(a.Pin); missing != nil {
				out = append(out, fmt.Sprintf("no load of %s will be timed: its pin %s wants %s, found %s (broker pins record %s --instance %s makes it)",
					a.Label, a.Pin, missing.Expected, missing.Found, a.Pin, a.Instance))
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// pin finds a declared pin; one that cannot be read is a mismatch, because nothing may run in its place.
func (s *Service) pin(name string) (pins.Pin, *matrix.PinMismatch) {
	set, err := pins.Load(s.cfg.Pins)
	p, ok := set[name]
	switch {
	case ok:
		return p, nil
	case err != nil:
		return p, &matrix.PinMismatch{Field: "pin", Expected: "a readable record in " + s.cfg.Pins, Found: err.Error()}
	}
	return p, &matrix.PinMismatch{Field: "pin", Expected: "a record named " + name, Found: fmt.Sprintf("none in %q", s.cfg.Pins)}
}
