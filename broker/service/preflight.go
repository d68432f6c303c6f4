package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"enginebroker/engines"
	"enginebroker/matrix"
	"enginebroker/matrix/negotiate"
)

// preflightKey names a proof: this build opened these files and answered.
type preflightKey struct {
	Engine   string `json:"engine"`
	Build    string `json:"build"`    // fingerprint of the installed build, as Describe reads it from disk
	Manifest string `json:"manifest"` // of the artifact; its id for a simulated engine, which opens no files
}

// Preflight is the record of one: the proof that a build opened an artifact and answered, or how it failed to. The last one
// of an instance counts, so that a build that opened a file once and does not any more is not vouched for.
type Preflight struct {
	Key       preflightKey                    `json:"key"`
	Label     string                          `json:"label"`
	Simulated bool                            `json:"simulated,omitempty"`
	Artifact  string                          `json:"artifact"`
	At        time.Time                       `json:"at"`
	Result    matrix.PreflightResult          `json:"result"`
	Failure   matrix.Opt[matrix.StartFailure] `json:"failure,omitzero"`
}

// OK reports a proof.
func (p Preflight) OK() bool { return !p.Failure.Present() }

// PreflightRequest says which instances are to open what.
type PreflightRequest struct {
	Engines []string // instance labels
	Model   string
	Quant   string // artifact id or quantization label; empty: every local artifact that the instance says it opens
}

// Preflight lets each instance open its artifacts once, answer and stop, and keeps what came of it. An engine that fails is
// a record; an error is a question that makes no sense, or a record that could not be made.
func (s *Service) Preflight(ctx context.Context, q PreflightRequest, on func(Event)) ([]Preflight, error) {
	var out []Preflight
	err := s.each(ctx, "preflight", q, func(m *member, model matrix.Model, a matrix.Artifact) error {
		p, err := s.preflight(ctx, m, model, a, on)
		out = append(out, p)
		return err
	})
	return out, err
}

// each calls f for every instance and artifact that are asked for, one after the other, while this process holds the box.
func (s *Service) each(ctx context.Context, who string, q PreflightRequest, f func(*member, matrix.Model, matrix.Artifact) error) error {
	t, err := s.team(ctx, Request{Engines: q.Engines})
	if err != nil {
		return err
	}
	defer t.close()
	if err := s.misset(t); err != nil {
		return err
	}
	if missing := t.missing(); len(missing) > 0 {
		return Planned{Plan: matrix.Plan{Groups: make([]matrix.Group, 1)}, Missing: missing}.Runnable()
	}
	model, err := s.model(ctx, q.Model)
	if err != nil {
		return err
	}
	return s.alone(ctx, t, who, func() error {
		for _, m := range t.members {
			list, err := s.targets(t, m, model, q.Quant)
			if err != nil {
				return err
			}
			for _, a := range list {
				if err := f(m, model, a); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// targets are the artifacts that a member is asked to open. Naming one asks whatever the catalog says: a preflight is what
// shows that a statement is out of date.
func (s *Service) targets(t *team, m *member, model matrix.Model, quant string) ([]matrix.Artifact, error) {
	sides := t.sides(s, model)
	side := sides[slices.IndexFunc(sides, func(x negotiate.Side) bool { return x.Label == m.Label })]
	var out []matrix.Artifact
	var absent, all []string
	for _, a := range model.Artifacts {
		all = append(all, a.Quantization)
		named := quant == a.ID || strings.EqualFold(quant, a.Quantization)
		if !named && (quant != "" || !negotiate.State(side, a).Status.Runs()) {
			continue
		}
		if _, ok := keyOf(m, a); ok {
			out = append(out, a)
		} else {
			absent = append(absent, a.ID)
		}
	}
	switch {
	case len(out) > 0:
		return out, nil
	case !m.desc.Identity.Value(matrix.FactBuild).Present():
		return nil, fail(CauseUsage, "", "%s does not say from disk which build it is, so that nothing could be kept about it", m.Label)
	case len(absent) > 0:
		return nil, fail(CauseNotInstalled, "name their paths under artifacts in broker.yaml, or put the snapshot into the Hugging Face cache",
			"%s: no local files of %s", m.Label, strings.Join(absent, ", "))
	case quant != "":
		return nil, fail(CauseUsage, near(quant, all), "model %s has no quantization %q; there are %s", model.Name, quant, strings.Join(all, ", "))
	}
	return nil, fail(CauseNotComparable, "name one with --quant to try it all the same", "%s opens no artifact of %s by its own statements", m.Label, model.Name)
}

// preflight runs one and keeps it.
func (s *Service) preflight(ctx context.Context, m *member, model matrix.Model, a matrix.Artifact, on func(Event)) (Preflight, error) {
	key, _ := keyOf(m, a)
	p := Preflight{Key: key, Label: m.Label, Simulated: m.desc.Simulated, Artifact: a.ID, At: s.now().UTC()}
	req, err := s.single("preflight", m, model, a)
	if err != nil {
		return p, err
	}
	on(Event{At: s.now(), Kind: "phase", Arm: m.Label, Text: "preflight of " + a.ID})
	p.Result, err = m.host.Preflight(ctx, req, func(x matrix.Progress) {
		on(Event{At: s.now(), Kind: "phase", Arm: m.Label, Text: strings.TrimSpace(x.Phase + " " + x.Line)})
	})
	switch f, typed := errors.AsType[*matrix.StartFailure](err); {
	case ctx.Err() != nil:
		return p, &Error{Cause: CauseInterrupted, Err: ctx.Err()}
	case errors.Is(err, engines.ErrUnsupported):
		return p, fail(CauseUsage, "a server that this program did not launch proves nothing about a cold load", "%s cannot be preflighted", m.Label)
	case typed:
		p.Failure = matrix.Some(*f)
	case err != nil:
		p.Failure = matrix.Some(matrix.StartFailure{Code: "plugin", Phase: "preflight", Message: err.Error(), LogPath: req.LogPath})
	}
	if err := s.keep("preflights", instanceProof{key, p.Label}, p); err != nil {
		return p, err
	}
	if p.OK() && !p.Result.Stopped.Gone() {
		return p, fail(CauseInternal, "end them by hand: whatever they hold is missing to the next load",
			"%s answered, and its server could not be proved gone: survivors %v, port free %t", m.Label, p.Result.Stopped.Survivors, p.Result.Stopped.PortFree)
	}
	return p, nil
}

// preflights lists the artifacts that a member's build is on record to have opened lately enough, with where the proof is.
// A gate that passed is a proof too: it starts with all that a preflight does.
func (s *Service) preflights(m *member, model matrix.Model) map[string]string {
	out := map[string]string{}
	for _, a := range model.Artifacts {
		if at, what, ok := s.proof(m, a); ok {
			out[a.ID] = what + " of " + at.Format(time.RFC3339)
		}
	}
	return out
}

// proof is the newest record about a member's build and an artifact, if it shows that the one opened the other and is not
// older than the configuration allows.
func (s *Service) proof(m *member, a matrix.Artifact) (at time.Time, what string, ok bool) {
	key, known := keyOf(m, a)
	if !known {
		return at, "", false
	}
	if p, found := s.lastPreflight(m.Label, key); found {
		at, what, ok = p.At, "preflight", p.OK()
	}
	if g, found := s.lastGate(m, a); found && g.OK() && g.At.After(at) {
		at, what, ok = g.At, "gate", true
	}
	return at, what, ok && s.now().Sub(at) <= s.cfg.Evidence
}

// instanceProof is what one instance showed of a build: settings of one say nothing about another.
type instanceProof struct {
	preflightKey
	Label string `json:"label"`
}

// lastPreflight is what an instance itself showed last; else the newest proof of the same build under another label.
func (s *Service) lastPreflight(label string, key preflightKey) (last Preflight, found bool) {
	var own Preflight
	if had, err := s.find("preflights", instanceProof{key, label}, &own); err == nil && had {
		return own, true
	}
	_ = s.entries("preflights", func(digest string) error { // what cannot be read proves nothing
		var p Preflight
		if _, err := s.load("preflights", digest, &p); err == nil && p.Key == key && p.OK() && p.At.After(last.At) {
			last, found = p, true
		}
		return nil
	})
	return last, found
}

// keyOf is the key of a proof; a build or files that are not known cannot have one.
func keyOf(m *member, a matrix.Artifact) (preflightKey, bool) {
	build, known := m.desc.Identity.Value(matrix.FactBuild).Get()
	manifest, _ := a.Manifest.Get()
	if m.desc.Simulated {
		manifest.SHA256 = cmp.Or(manifest.SHA256, "id:"+a.ID)
	}
	return preflightKey{Engine: m.desc.Engine, Build: build, Manifest: manifest.SHA256}, known && manifest.SHA256 != ""
}

// singleLimits are those of a server outside a run: what the longest prompts of adapters and gates need.
var singleLimits = matrix.Limits{ContextTokens: 4096, Concurrency: 1, KVTokens: 4096}

// single is the start request of a server outside a run, with a load id and a log of its own.
func (s *Service) single(kind string, m *member, model matrix.Model, a matrix.Artifact) (matrix.StartRequest, error) {
	req, err := s.startRequest(m.Instance, model, a, singleLimits)
	req.LoadID = fmt.Sprintf("%s-%s-%s", kind, m.Label, s.now().UTC().Format("20060102-150405.000000"))
	req.LogPath = filepath.Join(s.state, "logs", req.LoadID+".log")
	return req, err
}

// alone runs f while this process holds the box: an engine that starts beside a measurement would be in its numbers.
func (s *Service) alone(ctx context.Context, t *team, who string, f func() error) error {
	b, done, err := s.box(ctx, s.profileFor(t), nil)
	if err != nil {
		return err
	}
	defer done()
	lock, err := b.Acquire(who)
	if err != nil {
		return &Error{Cause: CauseBusy, Err: err}
	}
	defer lock.Release()
	return f()
}
