package service

import (
	"context"
	"fmt"
	"slices"
)

// Trial starts engines, asks them and stops them; nothing is timed. One of its fields is set.
type Trial struct {
	Preflight *PreflightRequest `json:"preflight,omitempty"`
	Gate      *GateRequest      `json:"gate,omitempty"`
	CheckPin  *PinRequest       `json:"check_pin,omitempty"`
	RecordPin *PinAct           `json:"record_pin,omitempty"`
	Advance   *PinAct           `json:"advance_pin,omitempty"`
}

// PinAct is a pin that somebody writes.
type PinAct struct {
	Pin   string     `json:"pin"`
	Start PinRequest `json:"start"`
	Act   Act        `json:"act"`
}

// TrialResult is what came of a trial: the field of its kind is set.
type TrialResult struct {
	Preflights []Preflight
	Gates      []Gate
	Checked    *Checked
	Pin        *Pin
}

// OK reports that every record says that all is well.
func (r TrialResult) OK() bool {
	return !slices.ContainsFunc(r.Preflights, func(p Preflight) bool { return !p.OK() }) &&
		!slices.ContainsFunc(r.Gates, func(g Gate) bool { return !g.OK() }) &&
		(r.Checked == nil || r.Checked.Check.OK)
}

// about is the kind of a trial, its model and its instances.
func (t Trial) about() (kind, model string, labels []string) {
	switch {
	case t.Preflight != nil:
		return "preflight", t.Preflight.Model, t.Preflight.Engines
	case t.Gate != nil:
		return "gate", t.Gate.Model, t.Gate.Engines
	case t.CheckPin != nil:
		return "check-pin", t.CheckPin.Model, []string{t.CheckPin.Label}
	case t.RecordPin != nil:
		return "record-pin", t.RecordPin.Start.Model, []string{t.RecordPin.Start.Label}
	}
	return "advance-pin", t.Advance.Start.Model, []string{t.Advance.Start.Label}
}

// Model is the model that the engines of a trial open.
func (t Trial) Model() string {
	_, model, _ := t.about()
	return model
}

// Stem is what a trial is named after where nobody names it; the time is added.
func (t Trial) Stem() string {
	kind, model, _ := t.about()
	return kind + "-" + model
}

// CheckTrial looks at the names in a trial, without launching anything.
func (s *Service) CheckTrial(t Trial) error {
	_, model, labels := t.about()
	var at string
	switch {
	case t.Preflight != nil:
		at = "trial.preflight"
	case t.Gate != nil:
		at = "trial.gate"
	case t.CheckPin != nil:
		at = "trial.check_pin"
	case t.RecordPin != nil:
		at = "trial.record_pin.start"
	default:
		at = "trial.advance_pin.start"
	}
	if err := s.known(at+".model", model, instancesIn(labels, func(i int) string {
		if t.Preflight == nil && t.Gate == nil {
			return at + ".engine"
		}
		return fmt.Sprintf("%s.engines[%d]", at, i)
	})...); err != nil {
		return err
	}
	if t.Gate != nil {
		return t.Gate.check()
	}
	return nil
}

// Try makes a trial.
func (s *Service) Try(ctx context.Context, t Trial, on func(Event)) (r TrialResult, err error) {
	switch {
	case t.Preflight != nil:
		r.Preflights, err = s.Preflight(ctx, *t.Preflight, on)
	case t.Gate != nil:
		r.Gates, err = s.Gate(ctx, *t.Gate, on)
	case t.CheckPin != nil:
		var c Checked
		c, err = s.CheckPin(ctx, *t.CheckPin, on)
		r.Checked = &c
	case t.RecordPin != nil:
		var p Pin
		p, err = s.RecordPin(ctx, t.RecordPin.Pin, t.RecordPin.Start, t.RecordPin.Act, on)
		r.Pin = &p
	default:
		var p Pin
		p, err = s.AdvancePin(ctx, t.Advance.Pin, t.Advance.Start, t.Advance.Act, on)
		r.Pin = &p
	}
	return r, err
}
