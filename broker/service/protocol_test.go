package service

import (
	"reflect"
	"strings"
	"testing"

	"enginebroker/matrix/simulate"
	"enginebroker/matrix/stats"
)

// Values that go through run, gates and formulas come to the verdicts of values that go straight to the judge.
func TestCalibrationTakesTheRealWay(t *testing.T) {
	o := simulate.Options{Series: 4, Seed: 7, Superblocks: 3, Effect: stats.Margin(0.03), Workers: 2}
	direct, err := simulate.Calibrate(simulate.Disturbances, o)
	if err != nil {
		t.Fatal(err)
	}
	o.Execute = scriptedGrid
	real, err := simulate.Calibrate(simulate.Disturbances, o)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(direct, real) {
		t.Errorf("straight to the judge:\n%+v\nthrough the run:\n%+v", direct, real)
	}
}

func TestCalibrateProtocolSaysWhatItIs(t *testing.T) {
	var b strings.Builder
	if err := CalibrateProtocol(&b, ProtocolCalibration{Series: 1, Effect: 0.03}); err != nil || !strings.HasPrefix(strings.TrimSpace(b.String()), "SIMULATED") {
		t.Errorf("%v:\n%s", err, b.String())
	}
	if err := CalibrateProtocol(&b, ProtocolCalibration{}); err == nil {
		t.Error("no series and no effect are accepted")
	}
}

// Measure of issue 6: at least 10,000 series a minute on two cores. An operation is one series of each truth, five grids.
func BenchmarkScriptedSeries(b *testing.B) {
	o := simulate.Options{Series: 1, Superblocks: 3, Effect: stats.Margin(0.03), Workers: 1, Execute: scriptedGrid}
	for b.Loop() {
		o.Seed++
		if _, err := simulate.Calibrate(simulate.Disturbances[:1], o); err != nil {
			b.Fatal(err)
		}
	}
}
