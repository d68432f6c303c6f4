package service

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"enginebroker/engines/fingerprint"
	"enginebroker/matrix"
)

// DiffSide is one arm as it was recorded.
type DiffSide struct {
	Name      string       `json:"name"`
	Where     string       `json:"where"` // from which record the facts are
	Simulated bool         `json:"simulated,omitempty"`
	Facts     matrix.Facts `json:"-"`
}

// Diff is what differs between two arms.
type Diff struct {
	A       DiffSide                 `json:"a"`
	B       DiffSide                 `json:"b"`
	Differs []fingerprint.Difference `json:"differs,omitempty"`      // recorded on both sides, by what is known to move speed
	Unknown []fingerprint.Difference `json:"not_recorded,omitempty"` // on one side: unknown, which is not equal
	TwoArms fingerprint.TwoArms      `json:"two_arms"`
}

// ArmName names a side: an instance, a run, or RUN:ARM.
type ArmName struct {
	Name string
	Of   string // EnginePrefix or RunPrefix; empty: an instance where there is one of that name, else a run
}

// Diff compares two sides by plain names.
func (s *Service) Diff(ctx context.Context, a, b string) ([]Diff, error) {
	return s.DiffArms(ctx, ArmName{Name: a}, ArmName{Name: b})
}

// DiffArms compares two sides. Of two whole runs every arm that both have is compared.
func (s *Service) DiffArms(ctx context.Context, a, b ArmName) ([]Diff, error) {
	left, err := s.diffSides(ctx, a)
	if err != nil {
		return nil, err
	}
	right, err := s.diffSides(ctx, b)
	if err != nil {
		return nil, err
	}
	if len(left) == 1 && len(right) == 1 {
		return []Diff{compared(left[0], right[0])}, nil
	}
	var out []Diff
	for _, x := range left {
		arm := x.Name[strings.LastIndex(x.Name, ":")+1:]
		for _, y := range right {
			if len(left) == 1 || len(right) == 1 || strings.HasSuffix(y.Name, ":"+arm) {
				out = append(out, compared(x, y))
			}
		}
	}
	if len(out) == 0 {
		return nil, fail(CauseUsage, "name the two arms, as RUN:ARM", "%s and %s have no arm of one name", a.Name, b.Name)
	}
	return out, nil
}

func compared(a, b DiffSide) Diff {
	d := Diff{A: a, B: b, TwoArms: fingerprint.Distinct(a.Facts, b.Facts)}
	for _, x := range fingerprint.Diff(a.Facts, b.Facts) {
		if x.NotRecorded {
			d.Unknown = append(d.Unknown, x)
		} else {
			d.Differs = append(d.Differs, x)
		}
	}
	return d
}

// diffSides finds what a name means.
func (s *Service) diffSides(ctx context.Context, x ArmName) ([]DiffSide, error) {
	name := x.Name
	if _, ok := s.cfg.Instance(name); ok && x.Of != RunPrefix || x.Of == EnginePrefix {
		side, err := s.instanceSide(ctx, name)
		return []DiffSide{side}, err
	}
	run, arm, _ := strings.Cut(name, ":")
	dir, err := s.runDir(run)
	if err != nil {
		if e, ok := errors.AsType[*Error](err); ok && e.Cause == CauseNotFound {
			return nil, fail(CauseNotFound, near(run, s.cfg.Labels()), "%s is no instance of the configuration and no run", name)
		}
		return nil, err
	}
	led, _, err := s.verified(dir)
	if err != nil {
		return nil, err
	}
	defer led.Close()
	plan := led.Plan()
	arms := armsOf(plan)
	var out []DiffSide
	for l, err := range led.Loads() {
		if err != nil {
			return nil, &Error{Cause: CauseEvidence, Err: err}
		}
		ready, ok := l.Ready.Get()
		label := arms[l.ArmKey].Label
		side := DiffSide{Name: filepath.Base(dir) + ":" + label, Where: "load " + l.ID, Simulated: arms[l.ArmKey].Simulated, Facts: ready.Facts}
		if !ok || arm != "" && label != arm || slices.ContainsFunc(out, func(o DiffSide) bool { return o.Name == side.Name }) {
			continue
		}
		out = append(out, side)
	}
	if len(out) == 0 {
		var known []string
		for _, a := range arms {
			known = append(known, a.Label)
		}
		slices.Sort(known)
		return nil, fail(CauseNotFound, near(arm, known), "%s: no load of it became ready; the run has the arms %s", name, strings.Join(slices.Compact(known), ", "))
	}
	return out, nil
}

// instanceSide is an instance as its last preflight recorded it. Without one there is only what its files say, and what runs
// is unknown.
func (s *Service) instanceSide(ctx context.Context, label string) (DiffSide, error) {
	side := DiffSide{Name: label}
	t, err := s.team(ctx, Request{Engines: []string{label}})
	if err != nil {
		return side, err
	}
	defer t.close()
	if missing := t.missing(); len(missing) > 0 {
		return side, Planned{Plan: matrix.Plan{Groups: make([]matrix.Group, 1)}, Missing: missing}.Runnable()
	}
	m := t.members[0]
	side.Simulated = m.desc.Simulated
	build, _ := m.desc.Identity.Value(matrix.FactBuild).Get()
	var last Preflight
	err = s.entries("preflights", func(key string) error {
		var p Preflight
		if _, err := s.load("preflights", key, &p); err != nil {
			return err
		}
		if p.OK() && p.Label == label && p.Key.Build == build && p.At.After(last.At) {
			last = p
		}
		return nil
	})
	if err != nil {
		return side, &Error{Cause: CauseUsage, Err: err}
	}
	ready, ok := last.Result.Ready.Get()
	if !ok {
		side.Facts, side.Where = m.desc.Identity, "its files; broker preflight "+label+" would record what runs"
		return side, nil
	}
	side.Facts, side.Where = ready.Facts, fmt.Sprintf("preflight of %s on %s", last.At.Format(time.RFC3339), last.Artifact)
	return side, nil
}
