package metrics

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"enginebroker/matrix"
)

// quantity is what a formula observes, once per request or once per gap between chunks.
type quantity string

const (
	ttft         quantity = "ttft"          // time to first token
	ttftSched    quantity = "ttft_sched"    // the same from when the request should have been sent
	tpot         quantity = "tpot"          // time per output token after the first
	itl          quantity = "itl"           // inter-token latency
	chunkGap     quantity = "chunk_gap"     // between chunks that carry output, whatever they carry
	e2el         quantity = "e2el"          // end-to-end latency
	e2elTerminal quantity = "e2el_terminal" // the same to the end marker
	prefill      quantity = "prefill_tok_s" // prompt tokens per second until the first token
	ttfr         quantity = "ttfr"          // time to first response, whatever it carries
	decode       quantity = "decode_tok_s"  // output rate of one stream
)

// column is one metric of a formula: a statistic of a quantity, a rate, or a reading of the box.
type column struct {
	matrix.Metric
	of   quantity // empty: a rate or a reading of the box
	stat string   // mean, median or pNN
}

// kinds describes the quantities: unit, what one observation is divided by, metric class (protocol §1), direction.
var kinds = map[quantity]struct {
	denominator string
	class       matrix.MetricClass
	rate        bool // tokens per second, higher is better; else ms, lower is better
}{
	ttft:         {"one request, from its send", matrix.ClassPhase, false},
	ttftSched:    {"one request, from its scheduled time", matrix.ClassPhase, false},
	tpot:         {"output tokens after the first token event of one request", matrix.ClassIntegral, false},
	itl:          {"one gap between tokens", matrix.ClassITL, false},
	chunkGap:     {"one gap between chunks with output", matrix.ClassIntegral, false},
	e2el:         {"one request, from its send to its last token", matrix.ClassIntegral, false},
	e2elTerminal: {"one request, from its send to its end marker", matrix.ClassIntegral, false},
	prefill:      {"seconds from send to first token of one request, queueing included", matrix.ClassPhase, true},
	ttfr:         {"one request, from its send", matrix.ClassPhase, false},
	decode:       {"seconds of decoding of one request", matrix.ClassIntegral, true},
}

// window is the denominator of every rate.
const window = "wall seconds from the first send to the last end over all attempts of a repetition"

var rates = []column{
	{Metric: matrix.Metric{Name: OutputTokS, Unit: "tok/s", Denominator: window, Class: matrix.ClassIntegral, Higher: true}},
	{Metric: matrix.Metric{Name: TotalTokS, Unit: "tok/s", Denominator: window, Class: matrix.ClassIntegral, Higher: true}},
	{Metric: matrix.Metric{Name: ReqS, Unit: "req/s", Denominator: window, Class: matrix.ClassIntegral, Higher: true}},
}

// readings are of the box and belong to broker/1 alone.
var readings = []column{
	{Metric: matrix.Metric{Name: PeakMemDelta, Unit: "MiB", Denominator: "one leg: the deepest fall of MemAvailable below the boot's baseline", Class: matrix.ClassMemory}},
	{Metric: matrix.Metric{Name: EnergyPerToken, Unit: "J/token, GPU rail only", Denominator: "output tokens of all timed requests of the leg", Class: matrix.ClassEnergy}},
}

// primary metrics get directions and the multiplicity correction; all others are printed with intervals only (protocol §3.5).
var primary = []string{OutputTokS, TPOTMedian, TTFTMedian}

// Catalog lists the metrics of broker/1.
func Catalog() []matrix.Metric {
	out, err := CatalogOf(Broker1)
	if err != nil {
		panic(err) // broker/1 is in the table of formulas
	}
	return out
}

// CatalogOf lists the metrics that a formula gives.
func CatalogOf(formula string) ([]matrix.Metric, error) {
	f, err := find(formula)
	if err != nil {
		return nil, err
	}
	cols := f.columns()
	out := make([]matrix.Metric, len(cols))
	for i, c := range cols {
		out[i] = c.Metric
	}
	return out, nil
}

// Formulas lists the formula sets, broker/1 first.
func Formulas() []string {
	out := make([]string, len(formulas))
	for i, f := range formulas {
		out[i] = f.name
	}
	return out
}

func find(name string) (formula, error) {
	i := slices.IndexFunc(formulas, func(f formula) bool { return f.name == name })
	if i < 0 {
		return formula{}, fmt.Errorf("metrics: unknown formula %q; known are %s", name, strings.Join(Formulas(), ", "))
	}
	return formulas[i], nil
}

// columns lists the metrics of a formula in the order of reports.
func (f formula) columns() []column {
	out := slices.Clone(rates)
	if !f.rates {
		out = nil
	}
	for _, s := range f.shows {
		for _, stat := range s.stats {
			out = append(out, statistic(s.of, stat))
		}
	}
	if f.name == Broker1 {
		out = append(out, readings...)
	}
	for i := range out {
		out[i].Formula = f.name
		out[i].Primary = f.name == Broker1 && slices.Contains(primary, out[i].Name)
	}
	return out
}

// statistic makes the column of one statistic of a quantity. p90 and above are tails, save that a gap's stay of class itl,
// so that what withholds per-token gaps withholds them all.
func statistic(of quantity, stat string) column {
	k := kinds[of]
	c := column{Metric: matrix.Metric{Name: string(of) + "_" + stat, Unit: "ms", Denominator: k.denominator, Class: k.class, Higher: k.rate}, of: of, stat: stat}
	if k.rate {
		c.Unit = "tok/s"
	}
	if of == prefill && stat == "median" {
		c.Name = PrefillTokS
	}
	if p, ok := strings.CutPrefix(stat, "p"); ok {
		c.Percentile, _ = strconv.Atoi(p) // the table below holds p90, p95 and p99
		if c.Class != matrix.ClassITL {
			c.Class = matrix.ClassTail
		}
	}
	return c
}
