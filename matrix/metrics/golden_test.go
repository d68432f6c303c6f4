package metrics_test

import (
	"encoding/json"
	"maps"
	"math"
	"os"
	"slices"
	"testing"

	"enginebroker/matrix"
	"enginebroker/matrix/metrics"
)

// golden is the one stream of harnesses.md §4.3, with what each tool's formula makes of it.
type golden struct {
	Events    [][3]any                   `json:"events"` // ms, kind, tokens
	Sched     int64                      `json:"sched"`
	Send      int64                      `json:"send"`
	Requested int64                      `json:"requested"`
	Results   map[string]json.RawMessage `json:"results"`
}

func readGolden(t *testing.T) golden {
	t.Helper()
	data, err := os.ReadFile("testdata/metric-formulas.json")
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(data, &g); err != nil {
		t.Fatal(err)
	}
	return g
}

var kinds = map[string]matrix.EventKind{
	"role": matrix.EventRole, "text": matrix.EventText, "finish": matrix.EventFinish, "usage": matrix.EventUsage, "done": matrix.EventDone, "eof": matrix.EventEOF,
}

func (g golden) request() matrix.Request {
	r := matrix.Request{Outcome: matrix.OutcomeOK, Scheduled: matrix.Some(g.Sched * 1e6), Sent: matrix.Some(g.Send * 1e6), Requested: g.Requested,
		PromptTokens: matrix.Some(int64(110))}
	for _, e := range g.Events {
		at, name, n := int64(e[0].(float64)*1e6), e[1].(string), int(e[2].(float64))
		ev := matrix.StreamEvent{At: at, Kind: kinds[name], Choices: name == "role" || name == "text" || name == "finish", Finish: name == "finish"}
		if name == "text" {
			ev.Tokens = matrix.Some(n)
		}
		if name == "usage" {
			r.CompletionTokens = matrix.Some(int64(n))
		}
		r.Stream = append(r.Stream, ev)
	}
	return r
}

func rep(rs ...matrix.Request) matrix.Repetition {
	return matrix.Repetition{Planned: len(rs), Requests: rs}
}

func compute(t *testing.T, formula string, r matrix.Repetition) map[string]matrix.Opt[float64] {
	t.Helper()
	m, err := metrics.Repetition(formula, r)
	if err != nil {
		t.Fatalf("%s: %v", formula, err)
	}
	return m
}

func TestGoldenStreamUnderEveryFormula(t *testing.T) {
	g := readGolden(t)
	withUsage, without := g.request(), g.request()
	without.CompletionTokens = matrix.Opt[int64]{}
	// Name of the case, formula, request, and which metric of ours a field of the case is.
	common := map[string]string{"ttft": "ttft_mean", "tpot": "tpot_mean", "itl_mean": "itl_mean", "itl_median": "itl_median", "e2el": "e2el_mean"}
	own := maps.Clone(common)
	own["e2el_terminal"] = "e2el_terminal_median"
	icl := map[string]string{"ttft": "ttft_mean", "e2el": "e2el_mean", "itl_mean": "chunk_gap_mean", "itl_median": "chunk_gap_median"}
	for _, c := range []struct {
		golden, formula string
		request         matrix.Request
		fields          map[string]string
	}{
		{"broker/1", metrics.Broker1, withUsage, own},
		{"vllm chat @02cfb534", "vllm@02cfb534", withUsage, common},
		{"vllm-old chat / InferenceX fork", "vllm-old", withUsage, common},
		{"sglang chat, usage sent", "sglang@00f9ec47", withUsage, common},
		{"sglang chat, no usage (default single-turn)", "sglang@00f9ec47", without, common},
		{"guidellm @ee7a774", "guidellm@ee7a774", withUsage, common},
		{"aiperf docs @0176f59", "aiperf@0176f59", withUsage, common},
		{"aiperf ICL", "aiperf@0176f59", withUsage, icl},
		{"inference-perf @7de5ef2", "inference-perf@7de5ef2", withUsage, common},
		{"llama-benchy @ae09cab", "llama-benchy@ae09cab", withUsage, map[string]string{"ttfr": "ttfr_mean", "e2e_ttft": "ttft_mean", "tg_tps": "decode_tok_s_mean"}},
	} {
		var want map[string]any
		if err := json.Unmarshal(g.Results[c.golden], &want); err != nil {
			t.Fatalf("%s: %v", c.golden, err)
		}
		got := compute(t, c.formula, rep(c.request))
		checked := 0
		for field, metric := range c.fields {
			w, listed := want[field]
			if !listed {
				continue
			}
			checked++
			x, ok := got[metric].Get()
			number, isNumber := w.(float64)
			switch {
			case isNumber && (!ok || math.Abs(x-number) > 0.005): // the golden values are rounded to two places
				t.Errorf("%s: %s is %v, want %v", c.golden, metric, x, number)
			case !isNumber && ok:
				t.Errorf("%s: %s is %v, want none", c.golden, metric, x)
			}
		}
		if checked < 3 {
			t.Errorf("%s: only %d fields of the golden case were compared", c.golden, checked)
		}
	}
	if len(g.Results) != 12 {
		t.Errorf("the golden file has %d cases; this test knows 12", len(g.Results))
	}
	// The two cases that are no tool's.
	m := compute(t, metrics.Broker1, rep(withUsage))
	if x, _ := m["ttft_sched_median"].Get(); x != 190 {
		t.Errorf("ttft from schedule is %v, want 190", x)
	}
	if x, _ := m["tpot_median"].Get(); math.Abs(1000/x-37.5) > 1e-9 {
		t.Errorf("tpot_median is %v, want 1000/37.5", x)
	}
}

// The number of samples behind the mean ITL of the golden stream: the sum of the gaps each formula sees, divided by the mean.
func TestGoldenSampleCounts(t *testing.T) {
	g := readGolden(t)
	for formula, c := range map[string]struct{ sum, want float64 }{
		"vllm@02cfb534": {431 - 140, 6}, "sglang@00f9ec47": {430 - 190, 4}, "guidellm@ee7a774": {240.0 / 9, 1}, "inference-perf@7de5ef2": {240, 9},
	} {
		mean, _ := compute(t, formula, rep(g.request()))["itl_mean"].Get()
		if n := c.sum / mean; math.Abs(n-c.want) > 1e-9 {
			t.Errorf("%s takes %v samples, want %v", formula, n, c.want)
		}
	}
}

func TestCatalogs(t *testing.T) {
	g := readGolden(t)
	for _, f := range metrics.Formulas() {
		catalog, err := metrics.CatalogOf(f)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		var primary []string
		got := compute(t, f, rep(g.request()))
		for _, m := range catalog {
			if m.Formula != f || m.Unit == "" || m.Denominator == "" || m.Class == "" || seen[m.Name] {
				t.Errorf("%s: %+v is incomplete or listed twice", f, m)
			}
			if m.Class == matrix.ClassTail && m.Percentile < 90 {
				t.Errorf("%s: %s is a tail of percentile %d", f, m.Name, m.Percentile)
			}
			if m.Primary {
				primary = append(primary, m.Name)
			}
			seen[m.Name] = true
		}
		for name := range got {
			if !seen[name] {
				t.Errorf("%s computes %s, which its catalog does not list", f, name)
			}
		}
		want := []string(nil)
		if f == metrics.Broker1 {
			want = []string{metrics.OutputTokS, metrics.TPOTMedian, metrics.TTFTMedian}
		}
		if !slices.Equal(primary, want) {
			t.Errorf("%s: primary metrics %v, want %v", f, primary, want)
		}
	}
	for name, higher := range map[string]bool{metrics.OutputTokS: true, metrics.PrefillTokS: true, metrics.TPOTMedian: false, metrics.PeakMemDelta: false, metrics.EnergyPerToken: false} {
		if !slices.ContainsFunc(metrics.Catalog(), func(m matrix.Metric) bool { return m.Name == name && m.Higher == higher }) {
			t.Errorf("%s: not in the catalog with higher is better %t", name, higher)
		}
	}
	if _, err := metrics.CatalogOf("vllm"); err == nil {
		t.Error("a formula without its version was accepted")
	}
}
