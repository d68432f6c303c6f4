package main

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"enginebroker/matrix"
)

// gatedDriver is a device whose utilisation call waits for the gate once it is closed.
type gatedDriver struct{ gate chan chan struct{} }

func (d *gatedDriver) count() int                   { return 1 }
func (d *gatedDriver) describe(i int) matrix.Device { return matrix.Device{Index: i} }
func (d *gatedDriver) library() matrix.Facts        { return nil }
func (d *gatedDriver) burst(int, int64, int64, *atomic.Int32, *atomic.Int32, func(burst)) bool {
	return false
}
func (d *gatedDriver) read(_ int, r *reading) {
	r.set(matrix.FieldSMClock, matrix.Reading{Status: matrix.ReadingValue, Value: matrix.Some(int64(2190))})
	select {
	case closed := <-d.gate:
		<-closed
	default:
	}
	for _, f := range fastFields[1:] {
		r.set(f, matrix.Reading{Status: matrix.ReadingValue, Value: matrix.Some(int64(1))})
	}
}

// A driver that hangs and comes back: what was read before the hang is kept, the rest is stale, and values return.
func TestDriverComesBack(t *testing.T) {
	d := &gatedDriver{gate: make(chan chan struct{}, 1)}
	tel := newTelemetry("")
	tel.open = func(string) (driver, error) { return d, nil }
	defer close(tel.work.jobs)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hang := make(chan struct{})
	const healthy, half, stuck, recovered = 0, 1, 2, 3
	stage := healthy
	err := tel.Sample(ctx, 50, func(s matrix.Sample) {
		clock, util := s.Fields[matrix.FieldSMClock].Status, s.Fields[matrix.FieldUtilization].Status
		switch {
		case stage == healthy && util == matrix.ReadingValue:
			d.gate <- hang
			stage = half
		case stage == half && util == matrix.ReadingStale:
			if clock != matrix.ReadingValue {
				t.Errorf("the clock was read before the hang, and is %s", clock)
			}
			stage = stuck
		case stage == stuck && clock == matrix.ReadingStale:
			close(hang)
			stage = recovered
		case stage == recovered && util == matrix.ReadingValue:
			cancel()
		}
		if util == matrix.ReadingStale && s.Fields[matrix.FieldUtilization].Value.Present() {
			t.Error("a stale field has a value")
		}
	})
	if !errors.Is(err, context.Canceled) || t.Context().Err() != nil || stage != recovered {
		t.Errorf("%v in stage %d", err, stage)
	}
}

// A driver that is not there yet is asked again.
func TestOpenIsTriedAgain(t *testing.T) {
	tries := 0
	tel := newTelemetry("")
	tel.open = func(string) (driver, error) {
		if tries++; tries == 1 {
			return nil, errors.New("the driver is being updated")
		}
		return &gatedDriver{}, nil
	}
	defer close(tel.work.jobs)
	for i, want := range []int{0, 1, 1} {
		d, err := tel.Describe(t.Context())
		if err != nil || len(d.Devices) != want || (want == 0) != strings.Contains(d.Why, "updated") {
			t.Errorf("call %d: %+v, %v", i, d, err)
		}
	}
	if tries != 2 {
		t.Errorf("opened %d times", tries)
	}
	if err := tel.Sample(t.Context(), 0, nil); err == nil {
		t.Error("0 Hz is sampled")
	}
}
