package service

import (
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"enginebroker/matrix"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

// PinPrefix is that of the resource names of pins.
const PinPrefix = "pins/"

// ids collects the fields of a request whose resource names cannot be used.
type ids struct{ bad FieldErrors }

func (x *ids) id(field, prefix, name string) string {
	id, err := ResourceID(prefix, name)
	if err != nil {
		x.refuse(field, err.Error())
	}
	return id
}

func (x *ids) engines(field string, names []string) []string {
	if len(names) == 0 {
		x.refuse(field, "name at least one engine")
	}
	return x.list(field, names)
}

func (x *ids) list(field string, names []string) []string {
	var out []string
	for i, n := range names {
		out = append(out, x.id(fmt.Sprintf("%s[%d]", field, i), EnginePrefix, n))
	}
	return out
}

func (x *ids) refuse(field, message string) {
	x.bad = append(x.bad, FieldError{Field: field, Message: message})
}

func prefixed(prefix string, names []string) []string {
	return each(names, func(n string) string { return utf8Of(prefix + n) })
}

// ToTrial is the message of a trial.
func ToTrial(t Trial) *brokerv1.TrialSpec {
	start := func(q PinRequest) *brokerv1.PinnedStart {
		return &brokerv1.PinnedStart{Engine: text(EnginePrefix + q.Label), Model: text(ModelPrefix + q.Model), Quant: text(q.Quant), Rehash: flag(q.Rehash)}
	}
	act := func(a PinAct) *brokerv1.PinAct {
		return &brokerv1.PinAct{Pin: text(PinPrefix + a.Pin), Start: start(a.Start), Who: text(a.Act.By), Why: text(a.Act.Why)}
	}
	switch {
	case t.Preflight != nil:
		q := t.Preflight
		return &brokerv1.TrialSpec{Kind: &brokerv1.TrialSpec_Preflight{Preflight: &brokerv1.PreflightSpec{Engines: prefixed(EnginePrefix, q.Engines), Model: text(ModelPrefix + q.Model), Quant: text(q.Quant)}}}
	case t.Gate != nil:
		q := t.Gate
		g := &brokerv1.GateSpec{Engines: prefixed(EnginePrefix, q.Engines), Model: text(ModelPrefix + q.Model), Quant: text(q.Quant), Accept: flag(q.Accept)}
		if q.Prompts != 0 {
			g.Prompts = count(q.Prompts)
		}
		return &brokerv1.TrialSpec{Kind: &brokerv1.TrialSpec_Gate{Gate: g}}
	case t.CheckPin != nil:
		return &brokerv1.TrialSpec{Kind: &brokerv1.TrialSpec_CheckPin{CheckPin: start(*t.CheckPin)}}
	case t.RecordPin != nil:
		return &brokerv1.TrialSpec{Kind: &brokerv1.TrialSpec_RecordPin{RecordPin: act(*t.RecordPin)}}
	case t.Advance != nil:
		return &brokerv1.TrialSpec{Kind: &brokerv1.TrialSpec_AdvancePin{AdvancePin: act(*t.Advance)}}
	}
	return &brokerv1.TrialSpec{}
}

// TrialOf is the trial of a message. Every field that cannot be used is in its error. When an act happens is for the service
// to say.
func TrialOf(m *brokerv1.TrialSpec) (Trial, error) {
	var t Trial
	var x ids
	start := func(at string, s *brokerv1.PinnedStart) PinRequest {
		return PinRequest{Label: x.id(at+".engine", EnginePrefix, s.GetEngine()), Model: x.id(at+".model", ModelPrefix, s.GetModel()), Quant: s.GetQuant(), Rehash: s.GetRehash()}
	}
	act := func(at string, a *brokerv1.PinAct) *PinAct {
		out := &PinAct{Pin: x.id(at+".pin", PinPrefix, a.GetPin()), Start: start(at+".start", a.GetStart()), Act: Act{By: a.GetWho(), Why: a.GetWhy()}}
		if strings.TrimSpace(out.Act.By) == "" {
			x.refuse(at+".who", "say who answers for it")
		}
		if strings.TrimSpace(out.Act.Why) == "" {
			x.refuse(at+".why", "a pin needs a reason")
		}
		return out
	}
	switch k := m.GetKind().(type) {
	case *brokerv1.TrialSpec_Preflight:
		s := k.Preflight
		t.Preflight = &PreflightRequest{Engines: x.engines("trial.preflight.engines", s.GetEngines()), Model: x.id("trial.preflight.model", ModelPrefix, s.GetModel()), Quant: s.GetQuant()}
	case *brokerv1.TrialSpec_Gate:
		s := k.Gate
		t.Gate = &GateRequest{Engines: x.engines("trial.gate.engines", s.GetEngines()), Model: x.id("trial.gate.model", ModelPrefix, s.GetModel()), Quant: s.GetQuant(), Prompts: int(s.GetPrompts()), Accept: s.GetAccept()}
		if s != nil && s.Prompts != nil && s.GetPrompts() == 0 {
			x.refuse("trial.gate.prompts", fmt.Sprintf("0 prompts show nothing: give 1 to %d", len(gatePrompts)))
		}
	case *brokerv1.TrialSpec_CheckPin:
		q := start("trial.check_pin", k.CheckPin)
		t.CheckPin = &q
	case *brokerv1.TrialSpec_RecordPin:
		t.RecordPin = act("trial.record_pin", k.RecordPin)
	case *brokerv1.TrialSpec_AdvancePin:
		t.Advance = act("trial.advance_pin", k.AdvancePin)
	default:
		x.refuse("trial", "give one of preflight, gate, check_pin, record_pin and advance_pin")
	}
	return t, x.bad.Err()
}

// ToTrialResult is the message of what came of a trial.
func ToTrialResult(r TrialResult) (*brokerv1.TrialResult, error) {
	out := &brokerv1.TrialResult{Passed: new(r.OK())}
	for _, p := range r.Preflights {
		data, err := json.Marshal(p)
		if err != nil {
			return nil, err
		}
		m := &brokerv1.Preflight{Engine: text(EnginePrefix + p.Label), Artifact: text(p.Artifact), Time: timestamppb.New(p.At), Passed: new(p.OK()), Simulated: flag(p.Simulated), Json: data, Failure: toStartFailure(p.Failure)}
		if ready, ok := p.Result.Ready.Get(); ok && p.OK() {
			m.FirstToken, m.Made, m.Answer = durationpb.New(ready.FirstToken), each(p.Result.Made, toFact), text(p.Result.Text)
		}
		out.Preflights = append(out.Preflights, m)
	}
	for _, g := range r.Gates {
		data, err := json.Marshal(g)
		if err != nil {
			return nil, err
		}
		m := &brokerv1.Gate{Engine: text(EnginePrefix + g.Label), Artifact: text(g.Artifact), Time: timestamppb.New(g.At), Passed: new(g.OK()), Simulated: flag(g.Simulated), Prompts: count(g.Prompts), Tokens: count(g.Tokens), Golden: text(g.Golden),
			Failures: texts(g.Failures), SelfMatch: each(g.SelfMatch, toDrift), Drift: each(g.Drift, toDrift), StartFailure: toStartFailure(g.Start), Json: data}
		if c, ok := g.Canary.Get(); ok {
			m.CanaryWant, m.CanaryGot = new(utf8Of(c.Want)), new(utf8Of(c.Got))
		}
		out.Gates = append(out.Gates, m)
	}
	if c := r.Checked; c != nil {
		out.PinCheck = &brokerv1.PinCheck{Engine: text(EnginePrefix + c.Label), Pin: text(PinPrefix + c.Check.Pin), Passed: new(c.Check.OK), DoesNotRun: text(c.Err), Unlisted: texts(c.Check.Unlisted),
			Mismatches: each(c.Check.Mismatch, func(x matrix.PinMismatch) *brokerv1.PinMismatch {
				return &brokerv1.PinMismatch{Field: text(x.Field), Expected: text(x.Expected), Found: text(x.Found), Where: text(x.Where)}
			})}
	}
	if r.Pin != nil {
		m, err := ToPin(PinInfo{Pin: *r.Pin})
		if err != nil {
			return nil, err
		}
		out.Pin = m
	}
	return out, nil
}

// TrialResultOf is what came of a trial, of its message.
func TrialResultOf(m *brokerv1.TrialResult) (r TrialResult, err error) {
	for _, p := range m.GetPreflights() {
		var x Preflight
		if err := json.Unmarshal(p.GetJson(), &x); err != nil {
			return r, fmt.Errorf("preflight of %s: %w", p.GetEngine(), err)
		}
		r.Preflights = append(r.Preflights, x)
	}
	for _, g := range m.GetGates() {
		var x Gate
		if err := json.Unmarshal(g.GetJson(), &x); err != nil {
			return r, fmt.Errorf("gate of %s: %w", g.GetEngine(), err)
		}
		r.Gates = append(r.Gates, x)
	}
	if c := m.GetPinCheck(); c != nil {
		r.Checked = &Checked{Label: strings.TrimPrefix(c.GetEngine(), EnginePrefix), Err: c.GetDoesNotRun(), Check: matrix.PinCheck{Pin: strings.TrimPrefix(c.GetPin(), PinPrefix), OK: c.GetPassed(), Unlisted: c.GetUnlisted(),
			Mismatch: each(c.GetMismatches(), func(x *brokerv1.PinMismatch) matrix.PinMismatch {
				return matrix.PinMismatch{Field: x.GetField(), Expected: x.GetExpected(), Found: x.GetFound(), Where: x.GetWhere()}
			})}}
	}
	if p := m.GetPin(); p != nil {
		x, err := PinOf(p)
		if err != nil {
			return r, err
		}
		r.Pin = &x.Pin
	}
	return r, nil
}

func toStartFailure(o matrix.Opt[matrix.StartFailure]) *brokerv1.StartFailure {
	f, ok := o.Get()
	if !ok {
		return nil
	}
	return &brokerv1.StartFailure{Code: text(f.Code), Phase: text(f.Phase), Message: text(f.Message), Fix: text(f.Fix), RootCause: texts(f.RootCause), LogPath: text(f.LogPath)}
}

func toDrift(d Drift) *brokerv1.Drift {
	return &brokerv1.Drift{Prompt: count(d.Prompt), At: count(d.At), Want: new(utf8Of(d.Want)), Got: new(utf8Of(d.Got))}
}

// ToPin is the message of a pin.
func ToPin(x PinInfo) (*brokerv1.Pin, error) {
	p := x.Pin
	data, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	out := &brokerv1.Pin{Name: text(PinPrefix + p.Name), Engine: text(p.Engine), Box: text(p.Box), Expects: texts(p.Expect.Lines()), Who: text(p.Recorded.By), When: text(p.Recorded.At), Why: text(p.Recorded.Why),
		Advanced: count(len(p.History)), Json: data, Engines: prefixed(EnginePrefix, x.Labels)}
	for l, why := range x.DoesNotRun {
		if out.DoesNotRun == nil {
			out.DoesNotRun = map[string]string{}
		}
		out.DoesNotRun[l] = utf8Of(why)
	}
	return out, nil
}

// PinOf is the pin of a message.
func PinOf(m *brokerv1.Pin) (PinInfo, error) {
	x := PinInfo{DoesNotRun: m.GetDoesNotRun(), Labels: each(m.GetEngines(), func(n string) string { return strings.TrimPrefix(n, EnginePrefix) })}
	if err := json.Unmarshal(m.GetJson(), &x.Pin); err != nil {
		return x, fmt.Errorf("%s: %w", m.GetName(), err)
	}
	return x, nil
}

// ToPinned is the message of something that rests on a pin.
func ToPinned(c Carried) *brokerv1.Pinned {
	out := &brokerv1.Pinned{Cell: text(c.Cell), Verdict: text(c.Now), Golden: text(c.Golden)}
	if c.Run != "" {
		out.Run = text(RunPrefix + c.Run)
	}
	return out
}

// PinnedOf is something that rests on a pin, of its message.
func PinnedOf(m *brokerv1.Pinned) (Carried, error) {
	return Carried{Run: strings.TrimPrefix(m.GetRun(), RunPrefix), Cell: m.GetCell(), Now: m.GetVerdict(), Golden: m.GetGolden()}, nil
}
