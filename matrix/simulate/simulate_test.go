package simulate_test

import (
	"bytes"
	"testing"

	"enginebroker/matrix/simulate"
	"enginebroker/matrix/stats"
)

func options(series int) simulate.Options {
	return simulate.Options{Series: series, Seed: 2026, Superblocks: 3, Effect: stats.Margin(0.03)}
}

func TestTable(t *testing.T) {
	rows, err := simulate.Calibrate(simulate.Disturbances, options(300))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := simulate.Print(&b, rows, options(300)); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + b.String())
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
