package daemon

import (
	"context"
	"errors"
	"io"

	"enginebroker/broker/service"
	"enginebroker/matrix"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

// try asks the daemon for a trial and follows it to its end. When ctx ends it ends the trial, as a local one would.
func (c *Client) try(ctx context.Context, t service.Trial, on func(service.Event)) (service.TrialResult, error) {
	r, err := c.runs.CreateRun(ctx, &brokerv1.CreateRunRequest{Trial: service.ToTrial(t)})
	if err != nil {
		return service.TrialResult{}, service.FromStatus(err)
	}
	c.waits(r.GetRun(), on)
	w := &watch{c: c, name: service.RunOf(r.GetRun()).Name}
	defer w.close()
	for {
		m, err := w.next(ctx)
		switch {
		case errors.Is(err, io.EOF) && w.last.GetState() == brokerv1.RunState_RUN_STATE_COMPLETE:
			g, err := c.runs.GetRun(context.WithoutCancel(ctx), &brokerv1.GetRunRequest{Name: r.GetRun().Name})
			if err != nil {
				return service.TrialResult{}, service.FromStatus(err)
			}
			return service.TrialResultOf(g.GetRun().GetResult())
		case errors.Is(err, io.EOF):
			return service.TrialResult{}, service.OfFailure(w.last.GetFailure())
		case err != nil:
			return service.TrialResult{}, err
		case m.Step != nil:
			on(eventOf(m))
		}
	}
}

// Preflight lets instances open their artifacts once.
func (c *Client) Preflight(ctx context.Context, q service.PreflightRequest, on func(service.Event)) ([]service.Preflight, error) {
	r, err := c.try(ctx, service.Trial{Preflight: &q}, on)
	return r.Preflights, err
}

// Gate asks instances what shows whether they are fit to be measured.
func (c *Client) Gate(ctx context.Context, q service.GateRequest, on func(service.Event)) ([]service.Gate, error) {
	r, err := c.try(ctx, service.Trial{Gate: &q}, on)
	return r.Gates, err
}

// CheckPin compares what runs with what is pinned.
func (c *Client) CheckPin(ctx context.Context, q service.PinRequest, on func(service.Event)) (service.Checked, error) {
	r, err := c.try(ctx, service.Trial{CheckPin: &q}, on)
	return one(r.Checked, err)
}

// RecordPin writes what runs as a new pin. The daemon says when.
func (c *Client) RecordPin(ctx context.Context, name string, q service.PinRequest, act service.Act, on func(service.Event)) (service.Pin, error) {
	r, err := c.try(ctx, service.Trial{RecordPin: &service.PinAct{Pin: name, Start: q, Act: act}}, on)
	return one(r.Pin, err)
}

// AdvancePin moves a pin on to what runs. The daemon says when.
func (c *Client) AdvancePin(ctx context.Context, name string, q service.PinRequest, act service.Act, on func(service.Event)) (service.Pin, error) {
	r, err := c.try(ctx, service.Trial{Advance: &service.PinAct{Pin: name, Start: q, Act: act}}, on)
	return one(r.Pin, err)
}

func one[T any](v *T, err error) (T, error) {
	var none T
	switch {
	case err != nil:
		return none, err
	case v == nil:
		return none, failf(service.CauseInternal, "use the program of the daemon's version", "the trial came to an end without the record that it was made for")
	}
	return *v, nil
}

// Pins lists the pins.
func (c *Client) Pins(ctx context.Context) ([]service.PinInfo, error) {
	r, err := c.engines.ListPins(ctx, &brokerv1.ListPinsRequest{})
	if err != nil {
		return nil, service.FromStatus(err)
	}
	return list(r.GetPins(), service.PinOf)
}

// Carried lists what rests on a pin.
func (c *Client) Carried(ctx context.Context, pin string) ([]service.Carried, error) {
	r, err := c.engines.ListPinned(ctx, &brokerv1.ListPinnedRequest{Name: new(service.PinPrefix + pin)})
	if err != nil {
		return nil, service.FromStatus(err)
	}
	return list(r.GetPinned(), service.PinnedOf)
}

// Diff compares two sides by plain names.
func (c *Client) Diff(ctx context.Context, a, b string) ([]service.Diff, error) {
	r, err := c.engines.DiffArms(ctx, &brokerv1.DiffArmsRequest{A: &a, B: &b})
	if err != nil {
		return nil, service.FromStatus(err)
	}
	return list(r.GetDiffs(), service.DiffOf)
}

// Compare sets one run beside another.
func (c *Client) Compare(ctx context.Context, first, second string) (service.Comparison, error) {
	r, err := c.runs.CompareRuns(ctx, &brokerv1.CompareRunsRequest{First: new(service.RunPrefix + first), Second: new(service.RunPrefix + second)})
	if err != nil {
		return service.Comparison{}, service.FromStatus(err)
	}
	return service.ComparisonOf(r)
}

// Hold holds cells back, or releases them. The cells that it returns have their names and verdicts.
func (c *Client) Hold(ctx context.Context, run string, words []string, h service.Held) ([]matrix.Cell, error) {
	r, err := c.runs.HoldCells(ctx, &brokerv1.HoldCellsRequest{Name: new(service.RunPrefix + run), Words: words, Who: &h.Who, Why: &h.Why, Release: &h.Release})
	if err != nil {
		return nil, service.FromStatus(err)
	}
	return list(r.GetCells(), service.CellOf)
}
