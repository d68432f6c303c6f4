package service

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"enginebroker/engines/pins"
	"enginebroker/matrix"
)

// pinSet reads the pin folder for a command that is about pins.
func (s *Service) pinSet() (pins.Set, error) {
	if s.cfg.Pins == "" {
		return nil, fail(CauseUsage, "name a folder under pins in broker.yaml", "the configuration has no folder of pins")
	}
	set, err := pins.Load(s.cfg.Pins)
	if err != nil {
		return nil, &Error{Cause: CauseUsage, Err: err}
	}
	return set, nil
}

// Pin and Act are the records as callers see them.
type (
	Pin = pins.Pin
	Act = pins.Act
)

// PinInfo is one pin and what the configured instances have to do with it.
type PinInfo struct {
	Pin    pins.Pin `json:"pin"`
	Labels []string `json:"instances,omitempty"` // that declare it
	// DoesNotRun says, per instance, why its engine cannot start whatever the record says; read from disk.
	DoesNotRun map[string]string `json:"does_not_run,omitempty"`
}

// Pins lists the pins. An instance whose engine cannot start is said to be recorded and not to run.
func (s *Service) Pins(ctx context.Context) ([]PinInfo, error) {
	set, err := s.pinSet()
	if err != nil {
		return nil, err
	}
	var out []PinInfo
	var labels []string
	for _, n := range set.Names() {
		x := PinInfo{Pin: set[n], DoesNotRun: map[string]string{}}
		for _, in := range s.cfg.Instances {
			if in.Pin == n {
				x.Labels = append(x.Labels, in.Label)
			}
		}
		out, labels = append(out, x), append(labels, x.Labels...)
	}
	if len(labels) == 0 {
		return out, nil
	}
	t, err := s.team(ctx, Request{Engines: labels})
	if err != nil {
		return nil, err
	}
	defer t.close()
	for i, x := range out {
		for _, l := range x.Labels {
			if why := runs(x.Pin, t.member(l)); why != nil {
				out[i].DoesNotRun[l] = why.Error()
			}
		}
	}
	return out, nil
}

// runs says from disk why a pinned engine cannot start.
func runs(p pins.Pin, m *member) error {
	if m.err != nil {
		return &pins.Unrunnable{Pin: p.Name, Why: m.err.Error(), Copy: p.Copy}
	}
	return pins.Runs(p, m.desc)
}

// PinRequest names an instance and the artifact to start it on.
type PinRequest struct {
	Label string
	Model string
	Quant string // empty: the model's preferred artifact that the instance opens
	// Rehash reads the artifact's files again, whatever was kept of them.
	Rehash bool
}

// Checked is what came of starting an instance to compare it with its pin.
type Checked struct {
	Label string          `json:"instance"`
	Check matrix.PinCheck `json:"check"`
	Err   string          `json:"does_not_run,omitempty"`
}

func (c Checked) String() string {
	if c.Err != "" {
		return c.Err
	}
	return strings.TrimRight(pins.Describe(c.Check), "\n")
}

// CheckPin starts an instance and compares what runs with its declared pin.
func (s *Service) CheckPin(ctx context.Context, q PinRequest, on func(Event)) (Checked, error) {
	out := Checked{Label: q.Label}
	set, err := s.pinSet()
	if err != nil {
		return out, err
	}
	in, err := s.instance(q.Label)
	if err != nil {
		return out, err
	}
	p, ok := set[in.Pin]
	if !ok {
		return out, fail(CauseUsage, "declare one under pin of the instance; broker pins record makes it", "%s declares no pin that is on record (%q)", q.Label, in.Pin)
	}
	out.Check.Pin = p.Name
	facts, start, err := s.running(ctx, q, on)
	switch {
	case err != nil:
		return out, err
	case start != nil:
		out.Err = pins.DoesNotRun(p, start).Error()
		return out, nil
	}
	out.Check = pins.Check(p, facts)
	return out, nil
}

// running starts an instance on one artifact and returns what runs, or why it did not start. The start is a preflight, and
// kept as one.
func (s *Service) running(ctx context.Context, q PinRequest, on func(Event)) (matrix.Facts, *matrix.StartFailure, error) {
	model, err := s.model(ctx, q.Model)
	if err != nil {
		return nil, nil, err
	}
	t, err := s.team(ctx, Request{Engines: []string{q.Label}})
	if err != nil {
		return nil, nil, err
	}
	defer t.close()
	if err := s.misset(t); err != nil {
		return nil, nil, err
	}
	m := t.members[0]
	if len(t.missing()) > 0 {
		return nil, &matrix.StartFailure{Code: "not_installed", Phase: "launch", Message: strings.Join(t.missing()[q.Label], "; ")}, nil
	}
	list, err := s.targets(t, m, model, q.Quant)
	if err != nil {
		return nil, nil, err
	}
	a := list[0]
	for _, id := range slices.Backward(model.Preference) {
		if i := slices.IndexFunc(list, func(x matrix.Artifact) bool { return x.ID == id }); i >= 0 {
			a = list[i]
		}
	}
	if q.Rehash {
		if err := s.read(ctx, &a, true); err != nil {
			return nil, nil, err
		}
	}
	var p Preflight
	err = s.alone(ctx, t, "pins", func() (err error) {
		p, err = s.preflight(ctx, m, model, a, on)
		return err
	})
	if f, failed := p.Failure.Get(); err != nil || failed {
		return nil, &f, err
	}
	ready, _ := p.Result.Ready.Get()
	return append(slices.Clone(ready.Facts), artifactFact(a)...), nil, nil
}

// RecordPin starts an instance and writes what runs as a new pin.
func (s *Service) RecordPin(ctx context.Context, name string, q PinRequest, act Act, on func(Event)) (Pin, error) {
	set, err := s.pinSet()
	if err != nil {
		return Pin{}, err
	}
	if _, ok := set[name]; ok {
		return Pin{}, fail(CauseUsage, "broker pins advance "+name+" --reason …", "pin %s is recorded already; it is never replaced in silence", name)
	}
	p, err := s.observed(ctx, name, q, act, on)
	if err != nil {
		return p, err
	}
	if err := pins.Record(s.cfg.Pins, p); err != nil {
		return p, &Error{Cause: CauseUsage, Err: err}
	}
	return p, nil
}

// observed is the pin of what runs.
func (s *Service) observed(ctx context.Context, name string, q PinRequest, act Act, on func(Event)) (Pin, error) {
	facts, start, err := s.running(ctx, q, on)
	if err != nil {
		return Pin{}, err
	}
	if start != nil {
		return Pin{}, fail(CauseNotInstalled, "", "%s does not start, so that there is nothing to pin: %v", q.Label, start)
	}
	engine, _ := facts.Get(matrix.FactEngine)
	where := facts.Value(matrix.FactBinary).Or("")
	if image, ok := facts.Value(matrix.FactImage).Get(); ok { // a path inside says nothing of this machine
		where = "image " + image
	}
	host, err := os.Hostname()
	if err != nil {
		return Pin{}, err
	}
	p := Pin{Name: name, Engine: engine.Value, Box: host, Expect: pins.ExpectOf(facts), Recorded: act, Copy: pins.Copy{Present: true, Where: where}}
	for _, f := range facts {
		if id, ok := strings.CutPrefix(f.Name, pins.FactArtifact); ok {
			p.Expect.Artifacts = map[string]string{id: f.Value}
		}
	}
	return p, nil
}

// AdvancePin moves a pin on to what runs now, with a reason. The runs that rest on the old record are marked, and named in
// its history.
func (s *Service) AdvancePin(ctx context.Context, name string, q PinRequest, act Act, on func(Event)) (Pin, error) {
	set, err := s.pinSet()
	if err != nil {
		return Pin{}, err
	}
	old, ok := set[name]
	if !ok {
		return Pin{}, fail(CauseNotFound, near(name, set.Names()), "no pin %q in %s", name, s.cfg.Pins)
	}
	carried, err := s.Carried(ctx, name)
	if err != nil {
		return Pin{}, err
	}
	p, err := s.observed(ctx, name, q, act, on)
	if err != nil {
		return p, err
	}
	if p.Engine != old.Engine {
		return p, fail(CauseUsage, "record another pin for it", "pin %s is of engine %s, %s runs %s", name, old.Engine, q.Label, p.Engine)
	}
	for id, sum := range old.Expect.Artifacts { // the files of other artifacts did not move with the engine
		if _, ok := p.Expect.Artifacts[id]; !ok && p.Expect.Artifacts != nil {
			p.Expect.Artifacts[id] = sum
		}
	}
	var lines []string
	for _, c := range carried {
		lines = append(lines, c.String())
	}
	if _, err := pins.Advance(s.cfg.Pins, name, p.Expect, p.Copy, act, lines); err != nil {
		return p, &Error{Cause: CauseUsage, Err: err}
	}
	for _, c := range carried {
		if c.Run != "" {
			if err := s.mark(c.Run, fmt.Sprintf("pin %s was advanced on %s: %s", name, act.At, act.Why)); err != nil {
				return p, err
			}
		}
	}
	return p, nil
}
