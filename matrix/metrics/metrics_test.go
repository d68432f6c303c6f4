package metrics_test

import (
	"encoding/json"
	"fmt"
	"iter"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"enginebroker/matrix"
	"enginebroker/matrix/metrics"
)

const msec = int64(1e6)

// stream is an answered request sent at a time (ms) whose chunks come at the given times with the given numbers of tokens.
func stream(sent int64, at []int64, tokens []int) matrix.Request {
	r := matrix.Request{Outcome: matrix.OutcomeOK, Scheduled: matrix.Some(sent * msec), Sent: matrix.Some(sent * msec), PromptTokens: matrix.Some(int64(10))}
	total := 0
	for i, a := range at {
		r.Stream = append(r.Stream, matrix.StreamEvent{At: a * msec, Kind: matrix.EventText, Tokens: matrix.Some(tokens[i]), Choices: true})
		total += tokens[i]
	}
	end := at[len(at)-1] + 1
	r.Stream = append(r.Stream, matrix.StreamEvent{At: end * msec, Kind: matrix.EventFinish, Choices: true, Finish: true},
		matrix.StreamEvent{At: end * msec, Kind: matrix.EventDone}, matrix.StreamEvent{At: end * msec, Kind: matrix.EventEOF})
	r.CompletionTokens, r.Requested = matrix.Some(int64(total)), int64(total)
	return r
}

// reduced drops the events and keeps what the ledger holds of a request.
func reduced(r matrix.Request) matrix.Request {
	var first, last matrix.StreamEvent
	n := 0
	for _, e := range r.Stream {
		if e.Kind.Token() {
			if n++; n == 1 {
				first = e
			}
			last = e
		}
	}
	r.FirstToken, r.LastToken, r.TokenEvents = matrix.Some(first.At), matrix.Some(last.At), n
	if k, ok := first.Tokens.Get(); ok {
		r.FirstTokens = matrix.Some(int64(k))
	}
	end := r.Stream[len(r.Stream)-1].At
	r.Terminal, r.End, r.Stream = matrix.Some(end), matrix.Some(end), nil
	return r
}

func failed(sent, end int64) matrix.Request {
	return matrix.Request{Outcome: matrix.OutcomeFailed, Reasons: []string{"inband_error"}, Sent: matrix.Some(sent * msec), End: matrix.Some(end * msec),
		CompletionTokens: matrix.Some(int64(1000))}
}

// near compares a metric; want NaN means absent.
func near(t *testing.T, what string, m map[string]matrix.Opt[float64], metric string, want float64) {
	t.Helper()
	x, ok := m[metric].Get()
	switch {
	case math.IsNaN(want) && ok:
		t.Errorf("%s: %s is %v, want none", what, metric, x)
	case !math.IsNaN(want) && (!ok || math.Abs(x-want) > 1e-9*max(1, want)):
		t.Errorf("%s: %s is %v (present %t), want %v", what, metric, x, ok, want)
	}
}

var none = math.NaN()

// One token, tokens in the first chunk, all in one chunk.
func TestBroker1PerToken(t *testing.T) {
	for _, c := range []struct {
		name                  string
		at                    []int64
		tokens                []int
		ttft, tpot, itl, e2el float64
	}{
		{"one chunk per token", []int64{100, 120, 140, 160}, []int{1, 1, 1, 1}, 60, 20, 20, 120},
		{"one token", []int64{100}, []int{1}, 60, none, none, 60},
		{"several tokens in the first chunk", []int64{100, 120, 140}, []int{4, 1, 1}, 60, 20, none, 100},
		{"several tokens later", []int64{100, 160, 220}, []int{1, 3, 3}, 60, 20, none, 180},
		{"all in one chunk", []int64{100}, []int{8}, 60, none, none, 60},
		{"two chunks at one instant", []int64{100, 100}, []int{1, 1}, 60, none, none, 60},
	} {
		m := compute(t, metrics.Broker1, rep(stream(40, c.at, c.tokens)))
		near(t, c.name, m, "ttft_median", c.ttft)
		near(t, c.name, m, "tpot_median", c.tpot)
		near(t, c.name, m, "itl_median", c.itl)
		near(t, c.name, m, "e2el_mean", c.e2el)
		near(t, c.name, m, "prefill_tok_s", 10/0.060)
	}
}

// One coalesced request withholds the ITL of the repetition; TPOT and the gap between chunks stay.
func TestOneCoalescedRequestWithholdsITL(t *testing.T) {
	m := compute(t, metrics.Broker1, rep(stream(0, []int64{10, 20, 30}, []int{1, 1, 1}), stream(0, []int64{10, 30}, []int{1, 2})))
	near(t, "coalesced", m, "itl_mean", none)
	near(t, "coalesced", m, "itl_p99", none)
	near(t, "coalesced", m, "chunk_gap_mean", 40.0/3)
	near(t, "coalesced", m, "tpot_mean", 10)
}

// Without an exact source for the first event, n₁ is 1 (protocol §1).
func TestFirstTokensUnknownIsOne(t *testing.T) {
	r := stream(0, []int64{10, 20, 30}, []int{3, 1, 1})
	for i := range r.Stream {
		r.Stream[i].Tokens = matrix.Opt[int]{}
	}
	near(t, "no exact source", compute(t, metrics.Broker1, rep(r)), "tpot_mean", 20.0/4)
	near(t, "no exact source", compute(t, "inference-perf@7de5ef2", rep(r)), "itl_mean", none)
}

// bugs.md C01: rates over the window of all attempts; what failed is in no rate.
func TestRatesOverAllAttempts(t *testing.T) {
	ok := stream(0, []int64{500, 999}, []int{5, 5})
	near(t, "alone", compute(t, metrics.Broker1, rep(ok)), "output_tok_s", 10)
	near(t, "alone", compute(t, metrics.Broker1, rep(ok)), "total_tok_s", 20)
	m := compute(t, metrics.Broker1, rep(ok, failed(0, 4000), failed(1000, 2000)))
	near(t, "a failed attempt ends last", m, "output_tok_s", 2.5)
	near(t, "a failed attempt ends last", m, "req_s", 0.25)
	hung := failed(0, 0)
	hung.End = matrix.Opt[int64]{}
	r := rep(ok, hung)
	r.Start, r.End = 7e9, 7e9+8000*msec
	near(t, "an attempt without an end", compute(t, metrics.Broker1, r), "output_tok_s", 10.0/8)
	suspect := stream(0, []int64{500, 999}, []int{5, 5})
	suspect.Outcome = matrix.OutcomeSuspect
	near(t, "suspect", compute(t, metrics.Broker1, rep(ok, suspect)), "output_tok_s", 10)
	for _, f := range metrics.Formulas() {
		for name, x := range compute(t, f, rep(failed(0, 10))) {
			if x.Present() {
				t.Errorf("%s: %s of failed requests alone is %v", f, name, x)
			}
		}
		for name, x := range compute(t, f, rep()) {
			if x.Present() {
				t.Errorf("%s: %s of no request is %v", f, name, x)
			}
		}
	}
}

// A finish chunk after the usage chunk moves the end of vllm's request and of nobody else's tokens.
func TestFinishAfterUsage(t *testing.T) {
	r := stream(0, []int64{10, 20}, []int{1, 1})
	r.Stream = slices.Insert(r.Stream[:2], 2, matrix.StreamEvent{At: 21 * msec, Kind: matrix.EventUsage},
		matrix.StreamEvent{At: 50 * msec, Kind: matrix.EventFinish, Choices: true, Finish: true}, matrix.StreamEvent{At: 51 * msec, Kind: matrix.EventEOF})
	near(t, "broker/1", compute(t, metrics.Broker1, rep(r)), "e2el_mean", 20)
	near(t, "broker/1", compute(t, metrics.Broker1, rep(r)), "e2el_terminal_median", 50)
	near(t, "vllm", compute(t, "vllm@02cfb534", rep(r)), "e2el_mean", 50)
	near(t, "vllm-old", compute(t, "vllm-old", rep(r)), "e2el_mean", 50)
	near(t, "guidellm closes without [DONE]", compute(t, "guidellm@ee7a774", rep(r)), "e2el_mean", 51)
}

func TestNoUsage(t *testing.T) {
	r := stream(0, []int64{10, 20, 30}, []int{1, 1, 1})
	r.CompletionTokens, r.Requested = matrix.Opt[int64]{}, 5
	for formula, tpot := range map[string]float64{metrics.Broker1: none, "vllm@02cfb534": none, "sglang@00f9ec47": 21.0 / 4, "guidellm@ee7a774": 10, "inference-perf@7de5ef2": none} {
		m := compute(t, formula, rep(r))
		near(t, formula+" without usage", m, "tpot_mean", tpot)
		if formula == metrics.Broker1 {
			near(t, formula+" without usage", m, "output_tok_s", none)
			near(t, formula+" without usage", m, "req_s", 1/0.031)
			near(t, formula+" without usage", m, "ttft_mean", 10)
		}
	}
}

// The reduced record in the ledger gives the same numbers as the log, save the gaps and the end marker, which it cannot.
func TestReducedRecordsGiveTheSameNumbers(t *testing.T) {
	rs := []matrix.Request{stream(0, []int64{10, 20, 30}, []int{1, 1, 1}), stream(5, []int64{17, 29, 44}, []int{1, 1, 1})}
	full := compute(t, metrics.Broker1, rep(rs...))
	part := compute(t, metrics.Broker1, rep(reduced(rs[0]), reduced(rs[1])))
	for name, x := range full {
		gap := strings.HasPrefix(name, "itl") || strings.HasPrefix(name, "chunk_gap") || strings.HasPrefix(name, "e2el_terminal")
		if y := part[name]; (gap && y.Present()) || (!gap && x != y) {
			t.Errorf("%s is %v from the log and %v from the record", name, x, y)
		}
	}
	mixed := compute(t, metrics.Broker1, rep(rs[0], reduced(rs[1])))
	near(t, "one log missing", mixed, "itl_mean", none)
	for name, x := range compute(t, "vllm@02cfb534", rep(rs[0], reduced(rs[1]))) {
		if x.Present() && !slices.Contains([]string{"output_tok_s", "total_tok_s", "req_s"}, name) {
			t.Errorf("vllm's %s was computed with one of two logs missing", name)
		}
	}
}

// A quantity that one answered request lacks is withheld: a mean over the others would be of another set.
func TestNoMeanOverTheRequestsThatHappenToHaveIt(t *testing.T) {
	a, b := stream(0, []int64{10, 20}, []int{1, 1}), stream(0, []int64{12, 22}, []int{1, 1})
	b.Scheduled, b.PromptTokens = matrix.Opt[int64]{}, matrix.Opt[int64]{}
	m := compute(t, metrics.Broker1, rep(a, b))
	for _, name := range []string{"ttft_sched_median", "prefill_tok_s", "total_tok_s"} {
		near(t, "one request lacks it", m, name, none)
	}
	near(t, "both have it", m, "ttft_mean", 11)
}

func TestImpossibleRecordsAreErrors(t *testing.T) {
	change := func(f func(*matrix.Request)) matrix.Repetition {
		r := stream(5, []int64{10, 20}, []int{1, 1})
		r.Index = 3
		f(&r)
		return rep(r)
	}
	for want, r := range map[string]matrix.Repetition{
		"outcome \"fine\"": change(func(r *matrix.Request) { r.Outcome = "fine" }),
		"first token at":   change(func(r *matrix.Request) { r.Sent = matrix.Some(11 * msec) }),
		"last token at":    change(func(r *matrix.Request) { r.LastToken = matrix.Some(9 * msec) }),
		"end at":           change(func(r *matrix.Request) { r.End = matrix.Some(15 * msec) }),
		"an event at 20000000 ns follows": change(func(r *matrix.Request) {
			r.Stream[2].At = 19 * msec
			r.Stream[1].At = 20 * msec
			slices.Reverse(r.Stream[1:3])
			r.Stream[1].At, r.Stream[2].At = 21*msec, 20*msec
		}),
		"counts -1 tokens": change(func(r *matrix.Request) { r.CompletionTokens = matrix.Some(int64(-1)) }),
	} {
		if _, err := metrics.Repetition(metrics.Broker1, r); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "request 3") {
			t.Errorf("error %v does not say %q of request 3", err, want)
		}
	}
	if _, err := metrics.Repetition("broker/2", rep()); err == nil || !strings.Contains(err.Error(), "broker/1") {
		t.Errorf("an unknown formula gave %v", err)
	}
}

func leg(reps ...matrix.Repetition) matrix.LegRecord { return matrix.LegRecord{Repetitions: reps} }

// Vector E01 through the whole way: three repetitions of known rates.
func TestLegFoldsByMedian(t *testing.T) {
	var reps []matrix.Repetition
	for _, rate := range []float64{10.756, 10.741, 10.795} {
		r := reduced(stream(0, []int64{1, 2}, []int{1, 99_999}))
		r.End = matrix.Some(int64(math.Round(100_000 / rate * 1e9)))
		reps = append(reps, rep(r))
	}
	v := metrics.Leg(metrics.Broker1, leg(reps...), matrix.GateResult{})[metrics.OutputTokS]
	x, _ := v.X.Get()
	spread, _ := v.Spread.Get()
	cv, _ := v.CV.Get()
	if math.Abs(x-10.756) > 1e-6 || math.Abs(spread-1.0050274648542967) > 1e-6 || math.Abs(cv-0.2114419672378497) > 1e-6 || v.N != 3 {
		t.Errorf("%+v, want the fold of vector E01", v)
	}
}

func TestVoidLegHasNoNumber(t *testing.T) {
	l := leg(rep(stream(0, []int64{10, 20}, []int{1, 1})))
	void := matrix.GateResult{Codes: []matrix.LegCode{matrix.FailedRequests}, Cause: matrix.CauseEngine}
	if got := metrics.Leg(metrics.Broker1, l, void); len(got) != 0 {
		t.Errorf("a void leg gives %v", got)
	}
}

// Protocol §1: tails need 64, 130 and 662 requests per leg.
func TestTailFloors(t *testing.T) {
	for _, c := range []struct {
		requests int
		want     map[string]bool
	}{
		{63, map[string]bool{"ttft_p90": false, "ttft_p95": false, "ttft_p99": false, "ttft_median": true}},
		{64, map[string]bool{"ttft_p90": true, "ttft_p95": false, "e2el_p90": true}},
		{130, map[string]bool{"ttft_p95": true, "ttft_p99": false, "itl_p99": false}},
		{662, map[string]bool{"ttft_p99": true, "itl_p99": true, "tpot_p99": true}},
	} {
		var reps []matrix.Repetition
		for r := range 2 { // the floor is of the leg, over its repetitions
			n := c.requests / 2
			if r == 1 {
				n = c.requests - n
			}
			reps = append(reps, rep(slices.Repeat([]matrix.Request{stream(0, []int64{10, 20}, []int{1, 1})}, n)...))
		}
		for metric, want := range c.want {
			v := metrics.Leg(metrics.Broker1, leg(reps...), matrix.GateResult{})[metric]
			if v.X.Present() != want || (!want && !strings.Contains(v.Why, string(matrix.TailUndersampled))) {
				t.Errorf("%d requests: %s is %+v, want shown %t", c.requests, metric, v, want)
			}
		}
	}
}

func TestLegSaysWhy(t *testing.T) {
	good, alien := stream(0, []int64{10, 20}, []int{1, 1}), stream(0, []int64{10, 20}, []int{1, 1})
	alien.Outcome = "fine"
	split := stream(0, []int64{10, 20, 30}, []int{1, 0, 1}) // nothing counts along: three events, two tokens
	for i := range split.Stream {
		split.Stream[i].Tokens = matrix.Opt[int]{}
	}
	flagged := matrix.GateResult{Flags: []string{string(matrix.ITLCoalesced)}}
	for _, c := range []struct {
		name   string
		leg    matrix.LegRecord
		gate   matrix.GateResult
		metric string
		want   string
	}{
		{"flag of the gates", leg(rep(good)), flagged, "itl_median", "ITL_COALESCED"},
		{"coalesced", leg(rep(good), rep(stream(0, []int64{10, 20}, []int{1, 2}))), matrix.GateResult{}, "itl_median", "repetition 1: ITL_COALESCED"},
		{"one token in two events", leg(rep(good), rep(split)), matrix.GateResult{}, "itl_median", "repetition 1: ITL_COALESCED"},
		{"one token each", leg(rep(stream(0, []int64{10}, []int{1}))), matrix.GateResult{}, "tpot_median", "no request gives a tpot"},
		{"nobody answered", leg(rep(failed(0, 1))), matrix.GateResult{}, "ttft_mean", "no request was answered"},
		{"no repetition", leg(), matrix.GateResult{}, "ttft_mean", "fold"},
		{"impossible record", leg(rep(alien)), matrix.GateResult{}, "ttft_mean", "which does not exist"},
		{"no box", leg(rep(good)), matrix.GateResult{}, metrics.PeakMemDelta, "did not record"},
		{"no counter", leg(rep(good)), matrix.GateResult{}, metrics.EnergyPerToken, "no energy counter"},
	} {
		v := metrics.Leg(metrics.Broker1, c.leg, c.gate)[c.metric]
		if v.X.Present() || !strings.Contains(v.Why, c.want) {
			t.Errorf("%s: %+v does not say %q", c.name, v, c.want)
		}
	}
	if got := metrics.Leg("broker/9", leg(rep(good)), matrix.GateResult{}); len(got) != 0 {
		t.Errorf("an unknown formula gives %v", got)
	}
}

func TestReadingsOfTheBox(t *testing.T) {
	l := leg(rep(stream(0, []int64{10, 20}, []int{10, 30})), rep(stream(0, []int64{10, 20}, []int{10, 30})))
	l.Env.PeakMemDeltaKiB, l.Env.EnergyMilliJoule = matrix.Some(int64(2048)), matrix.Some(int64(160_000))
	m := metrics.Leg(metrics.Broker1, l, matrix.GateResult{})
	if x, _ := m[metrics.PeakMemDelta].X.Get(); x != 2 {
		t.Errorf("peak memory is %v MiB, want 2", x)
	}
	if x, _ := m[metrics.EnergyPerToken].X.Get(); x != 2 {
		t.Errorf("energy is %v J/token, want 160 J / 80 tokens", x)
	}
	l.Repetitions[1].Requests[0].CompletionTokens = matrix.Opt[int64]{}
	if v := metrics.Leg(metrics.Broker1, l, matrix.GateResult{})[metrics.EnergyPerToken]; v.X.Present() {
		t.Errorf("energy per token without a token count is %+v", v)
	}
}

// A leg's values are the same bytes every time.
func TestLegIsDeterministic(t *testing.T) {
	l := leg(rep(stream(0, []int64{10, 21, 33}, []int{1, 1, 1}), stream(3, []int64{17, 29, 40}, []int{1, 1, 1})))
	a, err := json.Marshal(metrics.Leg(metrics.Broker1, l, matrix.GateResult{}))
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if b, _ := json.Marshal(metrics.Leg(metrics.Broker1, l, matrix.GateResult{})); string(a) != string(b) {
			t.Fatalf("two ways to say one thing:\n%s\n%s", a, b)
		}
	}
}

// guidellm weights requests by their tokens and inverts the distribution (harnesses.md §4.1).
func TestGuidellmWeights(t *testing.T) {
	short, long := stream(0, []int64{10, 20}, []int{1, 1}), stream(0, []int64{10, 310}, []int{1, 7})
	m := compute(t, "guidellm@ee7a774", rep(short, long))
	near(t, "TPOT (20 ms over 2, 310 ms over 8)", m, "tpot_mean", (10*2+38.75*8)/10)
	near(t, "half of the weight is beyond the short one", m, "tpot_median", 38.75)
	near(t, "TTFT has equal weights, the lower one is the median", m, "ttft_median", 10)
}

// Memory is independent of stream length, and percentiles of many gaps stay within the stated error.
func TestLongStreamsInBoundedMemory(t *testing.T) {
	const events = 2_000_000
	gaps := func(yield func(matrix.StreamEvent) bool) {
		at := int64(0)
		for i := range int64(events) {
			at += 10*msec + i%1000*1000 // 10.000 to 10.999 ms
			if !yield(matrix.StreamEvent{At: at, Kind: matrix.EventText, Tokens: matrix.Some(1), Choices: true}) {
				return
			}
		}
	}
	r := matrix.Request{Outcome: matrix.OutcomeOK, Sent: matrix.Some(int64(0)), CompletionTokens: matrix.Some(int64(events))}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	a, err := metrics.NewAccumulator(metrics.Broker1)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Add(r, iter.Seq[matrix.StreamEvent](gaps)); err != nil {
		t.Fatal(err)
	}
	if grown := int64(heap()) - int64(before); grown > 8<<20 {
		t.Errorf("%d events leave %d bytes on the heap", events, grown)
	}
	got := a.Result(0)
	for metric, want := range map[string]float64{"itl_median": 10.4995, "itl_p99": 10.98901, "itl_mean": 10.4995, "tpot_median": 10.4995} {
		x, ok := got[metric].Get()
		if !ok || math.Abs(x-want)/want > 0.00025 {
			t.Errorf("%s of %d gaps is %v, want %v within 0.025 %%", metric, events, x, want)
		}
	}
}

func BenchmarkAccumulator(b *testing.B) {
	events := make([]matrix.StreamEvent, 128)
	for i := range events {
		events[i] = matrix.StreamEvent{At: int64(i+1) * 20 * msec, Kind: matrix.EventText, Tokens: matrix.Some(1), Choices: true}
	}
	r := matrix.Request{Outcome: matrix.OutcomeOK, Sent: matrix.Some(int64(0)), CompletionTokens: matrix.Some(int64(128))}
	a, err := metrics.NewAccumulator(metrics.Broker1)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := a.Add(r, slices.Values(events)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/128, "ns/event")
}

func ExampleLeg() {
	l := leg(rep(stream(0, []int64{50, 70, 90}, []int{1, 1, 1})))
	v := metrics.Leg(metrics.Broker1, l, matrix.GateResult{})
	fmt.Println(v[metrics.TTFTMedian].X.Or(0), v[metrics.TPOTMedian].X.Or(0), v["ttft_p99"].Why)
	// Output: 50 20 TAIL_UNDERSAMPLED: 1 requests, p99 needs 662 (protocol §1)
}
