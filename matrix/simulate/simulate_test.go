package simulate_test

import (
	"bytes"
	"math"
	"reflect"
	"strings"
	"testing"

	"enginebroker/matrix/simulate"
	"enginebroker/matrix/stats"
)

func options(series int) simulate.Options {
	return simulate.Options{Series: series, Seed: 2026, Superblocks: 3, Effect: stats.Margin(0.03)}
}

// Protocol §7: what decided the choices comes out of the product's own judge. Bounds are the document's figures with five
// binomial standard errors of this many series.
func TestCalibration(t *testing.T) {
	const series = 150
	rows, err := simulate.Calibrate(simulate.Disturbances[:9], options(series))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := simulate.Print(&b, rows, options(series)); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + b.String())
	if !strings.HasPrefix(strings.TrimSpace(b.String()), "SIMULATED") {
		t.Error("the table does not say that it is simulated")
	}
	bound := func(pct float64) float64 { return pct + 5*math.Sqrt(pct*(100-pct)/series) }
	for _, r := range rows {
		if r.FalseDirection.Pct() > bound(3.8) { // §7.1: t and sign rule together
			t.Errorf("%s: %v %% false directions", r.Name, r.FalseDirection)
		}
		if r.Excludes.Pct() > bound(6.2) {
			t.Errorf("%s: the interval misses in %v %%", r.Name, r.Excludes)
		}
		if r.FalseEqual.Pct() > bound(5.5) {
			t.Errorf("%s: %v %% false equivalences", r.Name, r.FalseEqual)
		}
	}
	if p := rows[0].Power.Pct(); p < 95 {
		t.Errorf("a 3 %% effect is found in %.0f %% under iid noise", p)
	}
	if p := rows[1].Naive["AAABBB Welch"].Pct(); p < 95 {
		t.Errorf("the sequential schedule is fooled by drift in %.0f %% only: the comparison shows nothing", p)
	}
}

// Equal options give equal rows, however many workers there are.
func TestDeterminism(t *testing.T) {
	one, many := options(20), options(20)
	one.Workers, many.Workers = 1, 5
	a, err1 := simulate.Calibrate(simulate.Disturbances[4:6], one)
	b, err2 := simulate.Calibrate(simulate.Disturbances[4:6], many)
	if err1 != nil || err2 != nil || !reflect.DeepEqual(a, b) {
		t.Errorf("%v, %v:\n%+v\n%+v", err1, err2, a, b)
	}
}

func BenchmarkSeries(b *testing.B) {
	o := options(1)
	n := 0
	for b.Loop() {
		o.Seed++
		rows, err := simulate.Calibrate(simulate.Disturbances[:1], o)
		if err != nil {
			b.Fatal(err)
		}
		n += len(rows)
	}
}
