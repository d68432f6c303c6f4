package gates_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"enginebroker/matrix"
	"enginebroker/matrix/gates"
)

// Vectors K and L are checked in matrix/vectors; here every code of protocol §4.1 is raised from a real record.

const ms = int64(time.Millisecond)

var point = matrix.Point{ID: "c1", Concurrency: 1, OutputTokens: 8, IgnoreEOS: true}

var arm = matrix.Arm{Label: "a", Cache: "off"}

func request(i int) matrix.Request {
	return matrix.Request{
		Index: i, Outcome: matrix.OutcomeOK, FinishReason: "length", Requested: 8,
		Sent: matrix.Some(0 * ms), FirstToken: matrix.Some(100 * ms), LastToken: matrix.Some(800 * ms), End: matrix.Some(801 * ms),
		PromptTokens: matrix.Some[int64](64), ExpectedPrompt: matrix.Some[int64](64), CompletionTokens: matrix.Some[int64](8),
		CachedTokens: matrix.Some[int64](0), FirstTokens: matrix.Some[int64](1), TokenEvents: 8,
		Counts: []matrix.TokenCount{{Source: "usage", Kind: matrix.CountExact, Tokens: 8}, {Source: "token_ids", Kind: matrix.CountExact, Tokens: 8}},
	}
}

// leg is a leg that passes every gate of every profile.
func leg() matrix.LegRecord {
	rec := matrix.LegRecord{
		LoadID: "l1", ArmPrint: "p", PrintEnd: "p", MethodID: "m", MethodEnd: "m",
		ID:       matrix.LegID{Group: "g", Arm: "a", Point: "c1"},
		Canaries: []matrix.CanaryResult{{When: "before", OK: true, Rate: matrix.Some(50.0)}},
		Env: matrix.Env{BootIDStart: "b", BootIDEnd: "b", ForeignGPU: matrix.Some[int64](0), MemBaselineKiB: matrix.Some[int64](100 << 20),
			MemBeforeKiB: matrix.Some[int64](100 << 20), ResidentPages: matrix.Some[int64](0), LoadAverage: matrix.Some(0.3),
			ForeignCPU: matrix.Some(0.01), Steal: matrix.Some(0.0), ThermalDelta: matrix.Some[int64](0), SwapDelta: matrix.Some[int64](0)},
	}
	for r := range 3 {
		rep := matrix.Repetition{Index: r, Start: 0, End: 1000 * ms, Planned: 2, Client: matrix.ClientCost{LagP99: matrix.Some(ms / 10), LatenessP99: matrix.Some(ms / 10)}}
		for i := range 2 {
			q := request(i)
			q.Repetition = r
			rep.Requests = append(rep.Requests, q)
		}
		rec.Repetitions = append(rec.Repetitions, rep)
	}
	c := matrix.Clock{BootID: "b", Persistence: matrix.Some(true), MaxMHz: matrix.Some[int64](3003)}
	for range 60 {
		c.Seconds = append(c.Seconds, matrix.ClockSecond{MHz: 2184, Util: 96})
	}
	rec.Clock = matrix.Some(c)
	return rec
}

// counted is a leg of 56 reported tokens, its warm-up included, beside which the engine's counter moved by n.
func counted(n int64, exact bool) func(*matrix.LegRecord) {
	return func(r *matrix.LegRecord) {
		r.Warmup = []matrix.Request{request(0)}
		r.Counter = matrix.Some(matrix.CounterDelta{Generated: matrix.Some(n), Exact: exact})
	}
}

func profile(t testing.TB, name string) gates.Profile {
	t.Helper()
	p, err := gates.ProfileByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestCleanLegIsValidEverywhere(t *testing.T) {
	for _, name := range gates.ProfileNames() {
		p := profile(t, name)
		g := gates.Leg(leg(), arm, point, p)
		if !g.Valid() || g.Cause != "" || len(g.Flags) != 0 || g.OK != 6 {
			t.Errorf("%s: %+v", name, g)
		}
		var want []string
		for _, c := range p.Absent() {
			want = append(want, string(c))
		}
		slices.Sort(want)
		if !slices.Equal(g.Absent, want) {
			t.Errorf("%s: absent %v, want those of the profile %v", name, g.Absent, want)
		}
	}
	if _, err := gates.ProfileByName("laptop"); err == nil {
		t.Error("an unknown profile is accepted")
	}
}

// §4.1, one row per rule.
func TestLegCodes(t *testing.T) {
	q := func(edit func(*matrix.Request)) func(*matrix.LegRecord) {
		return func(r *matrix.LegRecord) { edit(&r.Repetitions[1].Requests[1]) }
	}
	env := func(edit func(*matrix.Env)) func(*matrix.LegRecord) {
		return func(r *matrix.LegRecord) { edit(&r.Env) }
	}
	clock := func(edit func(*matrix.Clock)) func(*matrix.LegRecord) {
		return func(r *matrix.LegRecord) {
			c, _ := r.Clock.Get()
			edit(&c)
			r.Clock = matrix.Some(c)
		}
	}
	outcome := func(o matrix.Outcome, reasons ...string) func(*matrix.LegRecord) {
		return q(func(r *matrix.Request) { r.Outcome, r.Reasons = o, reasons })
	}
	mhz := func(edit func(i int, s *matrix.ClockSecond)) func(*matrix.LegRecord) {
		return clock(func(c *matrix.Clock) {
			for i := range c.Seconds {
				edit(i, &c.Seconds[i])
			}
		})
	}
	for _, c := range []struct {
		name    string
		profile string
		edit    func(*matrix.LegRecord)
		want    []matrix.LegCode
		cause   matrix.Cause
	}{
		{"failed", "gb10", outcome(matrix.OutcomeFailed, "http_status"), []matrix.LegCode{matrix.FailedRequests}, matrix.CauseEngine},
		{"failed without reason", "gb10", outcome(matrix.OutcomeFailed), []matrix.LegCode{matrix.FailedRequests}, matrix.CauseEngine},
		{"not ready", "gb10", outcome(matrix.OutcomeNotReady), []matrix.LegCode{matrix.FailedRequests}, matrix.CauseEngine},
		{"truncated", "gb10", outcome(matrix.OutcomeFailed, "truncated_stream"), []matrix.LegCode{matrix.IncompleteStream}, matrix.CauseEngine},
		{"no tokens", "gb10", outcome(matrix.OutcomeFailed, "no_tokens"), []matrix.LegCode{matrix.IncompleteStream}, matrix.CauseEngine},
		{"idle", "gb10", outcome(matrix.OutcomeFailed, "idle_limit"), []matrix.LegCode{matrix.EngineHung}, matrix.CauseEngine},
		{"identity", "gb10", outcome(matrix.OutcomeFailed, "identity_mismatch"), []matrix.LegCode{matrix.IdentityChanged}, matrix.CauseHarness},
		{"no usage", "gb10", outcome(matrix.OutcomeSuspect, "no_usage"), []matrix.LegCode{matrix.UsageMissing}, matrix.CauseEngine},
		{"conflict", "gb10", outcome(matrix.OutcomeSuspect, "token_count_conflict"), []matrix.LegCode{matrix.UsageMismatch}, matrix.CauseEngine},
		{"short", "gb10", outcome(matrix.OutcomeSuspect, "short_output"), []matrix.LegCode{matrix.TokenCountCode}, matrix.CauseEngine},
		{"cached", "gb10", outcome(matrix.OutcomeSuspect, "prefix_cache_hit"), []matrix.LegCode{matrix.PrefixCacheHit}, matrix.CauseEngine},
		{"no finish, suspect", "gb10", outcome(matrix.OutcomeSuspect, "no_finish_reason"), []matrix.LegCode{matrix.IncompleteStream}, matrix.CauseEngine},
		{"suspect of an unknown kind", "gb10", outcome(matrix.OutcomeSuspect, "sunspots"), []matrix.LegCode{matrix.FailedRequests}, matrix.CauseEngine},
		{"unknown outcome", "gb10", outcome("maybe"), []matrix.LegCode{matrix.EvidenceMissing}, matrix.CauseHarness},
		{"a request less", "gb10", func(r *matrix.LegRecord) { r.Repetitions[0].Requests = r.Repetitions[0].Requests[:1] }, []matrix.LegCode{matrix.RequestCount}, matrix.CauseEngine},
		{"no repetition", "gb10", func(r *matrix.LegRecord) { r.Repetitions = nil }, []matrix.LegCode{matrix.EvidenceMissing}, matrix.CauseHarness},
		{"usage absent", "gb10", q(func(r *matrix.Request) { r.CompletionTokens = matrix.Opt[int64]{} }), []matrix.LegCode{matrix.UsageMissing}, matrix.CauseEngine},
		{"a token less", "gb10", q(func(r *matrix.Request) { r.CompletionTokens, r.Counts, r.TokenEvents = matrix.Some[int64](7), nil, 7 }), []matrix.LegCode{matrix.TokenCountCode}, matrix.CauseEngine},
		{"sum differs", "gb10", q(func(r *matrix.Request) { r.Counts[1].Tokens = 9 }), []matrix.LegCode{matrix.TokenSum}, matrix.CauseEngine},
		{"cumulative sum differs", "gb10", q(func(r *matrix.Request) {
			r.Counts[1] = matrix.TokenCount{Source: "running_usage", Kind: matrix.CountCumulative, Tokens: 9}
		}), []matrix.LegCode{matrix.TokenSum}, matrix.CauseEngine},
		{"lossy sum differs", "gb10", q(func(r *matrix.Request) { r.Counts[1].Kind, r.Counts[1].Tokens = matrix.CountLossy, 9 }), nil, ""},
		{"reasoning above completion", "gb10", q(func(r *matrix.Request) { r.ReasoningTokens = matrix.Some[int64](9) }), []matrix.LegCode{matrix.UsageMismatch}, matrix.CauseEngine},
		{"cached tokens", "gb10", q(func(r *matrix.Request) { r.CachedTokens = matrix.Some[int64](16) }), []matrix.LegCode{matrix.PrefixCacheHit}, matrix.CauseEngine},
		{"more tokens than answers report", "gb10", counted(57, true), []matrix.LegCode{matrix.TokenSum}, matrix.CauseEngine},
		{"fewer tokens than answers report", "gb10", counted(55, true), []matrix.LegCode{matrix.TokenSum}, matrix.CauseEngine},
		{"a counter that agrees", "gb10", counted(56, true), nil, ""},
		{"a counter that nobody vouches for", "gb10", counted(99, false), nil, ""},
		{"a counter over a warm-up that nobody counted", "gb10", func(r *matrix.LegRecord) { counted(57, true)(r); r.Warmup = nil }, nil, ""},
		{"cached by counter", "gb10", func(r *matrix.LegRecord) { r.Counter = matrix.Some(matrix.CounterDelta{Cached: matrix.Some[int64](3)}) }, []matrix.LegCode{matrix.PrefixCacheHit}, matrix.CauseEngine},
		{"no finish", "gb10", q(func(r *matrix.Request) { r.FinishReason = "" }), []matrix.LegCode{matrix.IncompleteStream}, matrix.CauseEngine},
		{"all at once", "gb10", q(func(r *matrix.Request) { r.FirstToken = r.LastToken }), []matrix.LegCode{matrix.BufferedStream}, matrix.CauseEngine},
		{"too close", "gb10", q(func(r *matrix.Request) { r.FirstToken = matrix.Some(751 * ms) }), []matrix.LegCode{matrix.StreamSpread}, matrix.CauseEngine},
		{"exactly the floor", "gb10", q(func(r *matrix.Request) { r.FirstToken = matrix.Some(750 * ms) }), nil, ""},
		{"a small model's floor", "cpu", q(func(r *matrix.Request) { r.FirstToken, r.LastToken = matrix.Some(45*ms), matrix.Some(50*ms) }), nil, ""},
		{"no stamps", "gb10", q(func(r *matrix.Request) { r.LastToken = matrix.Opt[int64]{} }), []matrix.LegCode{matrix.EvidenceMissing}, matrix.CauseHarness},
		{"prompt", "gb10", q(func(r *matrix.Request) { r.PromptTokens = matrix.Some[int64](65) }), []matrix.LegCode{matrix.PromptTokensCode}, matrix.CauseEngine},
		{"canary", "gb10", func(r *matrix.LegRecord) { r.Canaries[0].OK = false }, []matrix.LegCode{matrix.CanaryFailedCode}, matrix.CauseEngine},
		{"step", "gb10", func(r *matrix.LegRecord) { r.Repetitions[2].End = 1500 * ms }, []matrix.LegCode{matrix.LoadStep}, matrix.CauseEngine},
		{"no step", "gb10", func(r *matrix.LegRecord) { r.Repetitions[2].End = 1400 * ms }, nil, ""},
		{"died", "gb10", func(r *matrix.LegRecord) { r.Died = true }, []matrix.LegCode{matrix.ServerDied}, matrix.CauseEngine},
		{"killed by the host", "gb10", func(r *matrix.LegRecord) { r.Died, r.Env.KilledByHost = true, "earlyoom" }, []matrix.LegCode{matrix.KilledByHost, matrix.ServerDied}, matrix.CauseEnv},
		{"card lost", "gb10", env(func(e *matrix.Env) { e.GPULost = true }), []matrix.LegCode{matrix.GPULost}, matrix.CauseEnv},
		{"host vanished", "gb10", env(func(e *matrix.Env) { e.HostVanished = true }), []matrix.LegCode{matrix.HostVanished}, matrix.CauseEnv},
		{"29 busy seconds", "gb10", clock(func(c *matrix.Clock) { c.Seconds = c.Seconds[:29] }), []matrix.LegCode{matrix.ClockFewBusy}, matrix.CauseEnv},
		{"mostly idle", "gb10", mhz(func(i int, s *matrix.ClockSecond) { s.Util = int64(i / 40) }), []matrix.LegCode{matrix.ClockBusyFraction, matrix.ClockFewBusy}, matrix.CauseEnv},
		{"spread", "gb10", mhz(func(i int, s *matrix.ClockSecond) { s.MHz -= int64(i%2) * 120 }), []matrix.LegCode{matrix.ClockSpread}, matrix.CauseEnv},
		{"throttled while idle", "gb10", mhz(func(i int, s *matrix.ClockSecond) {
			if i == 0 {
				s.Util, s.Bits = 0, 0x20
			}
		}), []matrix.LegCode{matrix.ClockThrottled}, matrix.CauseEnv},
		{"an unnamed bit", "gb10", mhz(func(i int, s *matrix.ClockSecond) { s.Bits = 0x4000 }), []matrix.LegCode{matrix.ClockThrottled}, matrix.CauseEnv},
		{"power cap on a GB10", "gb10", mhz(func(i int, s *matrix.ClockSecond) { s.Bits = 0x4 }), []matrix.LegCode{matrix.ClockThrottled}, matrix.CauseEnv},
		{"power cap on a card", "nvidia", mhz(func(i int, s *matrix.ClockSecond) { s.Bits = 0x4 }), nil, ""},
		{"persistence", "gb10", clock(func(c *matrix.Clock) { c.Persistence = matrix.Some(false) }), []matrix.LegCode{matrix.ClockPersistence}, matrix.CauseEnv},
		{"stuck low power", "gb10", mhz(func(i int, s *matrix.ClockSecond) { s.MHz = 800 }), []matrix.LegCode{matrix.ClockDegraded}, matrix.CauseEnv},
		{"below half of a card", "nvidia", mhz(func(i int, s *matrix.ClockSecond) { s.MHz = 1499 }), []matrix.LegCode{matrix.ClockDegraded}, matrix.CauseEnv},
		{"half of a card", "nvidia", mhz(func(i int, s *matrix.ClockSecond) { s.MHz = 1501 }), nil, ""},
		{"a hang at low clock", "gb10", func(r *matrix.LegRecord) {
			mhz(func(i int, s *matrix.ClockSecond) { s.MHz = 800 })(r)
			r.Hung = true
		}, []matrix.LegCode{matrix.EngineHung}, matrix.CauseEngine},
		{"a step at a low clock", "gb10", func(r *matrix.LegRecord) {
			mhz(func(i int, s *matrix.ClockSecond) { s.MHz = 800 })(r)
			r.Repetitions[2].End = 3000 * ms
		}, []matrix.LegCode{matrix.ClockDegraded, matrix.LoadStep}, matrix.CauseEnv},
		{"thermal", "gb10", env(func(e *matrix.Env) { e.ThermalDelta = matrix.Some[int64](1) }), []matrix.LegCode{matrix.ThermalCounter}, matrix.CauseEnv},
		{"neighbour", "gb10", env(func(e *matrix.Env) { e.ForeignGPU = matrix.Some[int64](1) }), []matrix.LegCode{matrix.Cotenant}, matrix.CauseEnv},
		{"memory", "gb10", env(func(e *matrix.Env) { e.MemBeforeKiB = matrix.Some[int64](99<<20 - 1) }), []matrix.LegCode{matrix.MemoryNotReturned}, matrix.CauseEnv},
		{"page cache", "gb10", env(func(e *matrix.Env) { e.ResidentPages = matrix.Some[int64](1) }), []matrix.LegCode{matrix.PageCacheResident}, matrix.CauseEnv},
		{"load average", "gb10", env(func(e *matrix.Env) { e.LoadAverage = matrix.Some(1.01) }), []matrix.LegCode{matrix.LoadAverageCode}, matrix.CauseEnv},
		{"foreign CPU", "cpu", env(func(e *matrix.Env) { e.ForeignCPU = matrix.Some(0.051) }), []matrix.LegCode{matrix.ForeignCPU}, matrix.CauseEnv},
		{"steal", "cpu", env(func(e *matrix.Env) { e.Steal = matrix.Some(0.021) }), []matrix.LegCode{matrix.ForeignCPU}, matrix.CauseEnv},
		{"swap", "gb10", env(func(e *matrix.Env) { e.SwapDelta = matrix.Some[int64](8) }), []matrix.LegCode{matrix.SwapActivity}, matrix.CauseEnv},
		{"boots", "gb10", env(func(e *matrix.Env) { e.BootIDEnd = "c" }), []matrix.LegCode{matrix.ClockBootMismatchC}, matrix.CauseEnv},
		{"late reader", "gb10", func(r *matrix.LegRecord) { r.Repetitions[0].Client.LagP99 = matrix.Some(41 * ms) }, []matrix.LegCode{matrix.ClientLag}, matrix.CauseHarness},
		{"late sender", "gb10", func(r *matrix.LegRecord) { r.Repetitions[0].Client.LatenessP99 = matrix.Some(6 * ms) }, []matrix.LegCode{matrix.ClientLag}, matrix.CauseHarness},
		{"busy daemon", "gb10", func(r *matrix.LegRecord) {
			r.Repetitions[0].Daemon = []matrix.DaemonWork{{Request: "GetRun", Times: 3, Busy: 4 * ms}, {Request: "ListRuns", Times: 40, Busy: 6*ms + 1}}
		}, []matrix.LegCode{matrix.ClientLag}, matrix.CauseHarness},
		{"daemon within its budget", "gb10", func(r *matrix.LegRecord) {
			r.Repetitions[0].Daemon = []matrix.DaemonWork{{Request: "GetRun", Times: 3, Busy: 4 * ms}, {Request: "ListRuns", Times: 40, Busy: 6 * ms}}
		}, nil, ""},
		{"evidence", "gb10", func(r *matrix.LegRecord) { r.Missing = []string{"clocks.jsonl"} }, []matrix.LegCode{matrix.EvidenceMissing}, matrix.CauseHarness},
		{"method", "gb10", func(r *matrix.LegRecord) { r.MethodEnd = "n" }, []matrix.LegCode{matrix.MethodChanged}, matrix.CauseHarness},
		{"print", "gb10", func(r *matrix.LegRecord) { r.PrintEnd = "q" }, []matrix.LegCode{matrix.IdentityChanged}, matrix.CauseHarness},
	} {
		rec := leg()
		c.edit(&rec)
		g := gates.Leg(rec, arm, point, profile(t, c.profile))
		if !slices.Equal(g.Codes, c.want) || g.Cause != c.cause {
			t.Errorf("%s on %s: %v cause %q, want %v cause %q", c.name, c.profile, g.Codes, g.Cause, c.want, c.cause)
		}
		for _, code := range g.Codes {
			if g.Detail[code] == "" {
				t.Errorf("%s: %s has no detail", c.name, code)
			}
		}
	}
}

// The evidence names the request that disturbed a window, the worst first, and each window is judged by itself.
func TestDisturbedWindowNamesTheRequest(t *testing.T) {
	rec := leg()
	last := len(rec.Repetitions) - 1
	rec.Repetitions[last].Daemon = []matrix.DaemonWork{{Request: "GetRun", Times: 3, Busy: ms}, {Request: "AuditRun", Times: 1, Busy: 900 * ms}}
	g := gates.Leg(rec, arm, point, profile(t, "gb10"))
	want := fmt.Sprintf("repetition %d: the daemon took 901ms of a window of 1s, more than 1 %% of a core: AuditRun ×1 900ms, GetRun ×3 1ms", last)
	if g.Detail[matrix.ClientLag] != want {
		t.Errorf("detail %q, want %q", g.Detail[matrix.ClientLag], want)
	}
}

// §4.1: chunks are not tokens, and the client's lateness against ITL withholds the ITL metrics alone.
func TestITLFlags(t *testing.T) {
	rec := leg()
	rec.Repetitions[0].Requests[0].TokenEvents = 3
	if g := gates.Leg(rec, arm, point, profile(t, "gb10")); !g.Valid() || !slices.Equal(g.Flags, []string{gates.FlagITLCoalesced}) {
		t.Errorf("coalesced: %+v", g)
	}
	rec = leg()
	rec.Repetitions[0].Client.LagP99 = matrix.Some(6 * ms) // ITL is 100 ms, E2EL 800 ms
	if g := gates.Leg(rec, arm, point, profile(t, "gb10")); !g.Valid() || !slices.Equal(g.Flags, []string{gates.FlagITLCoalesced, gates.FlagClientLag}) {
		t.Errorf("late for ITL: %+v", g)
	}
	rec = leg()
	rec.Repetitions[0].Requests[0].Flags = []string{"no_done"}
	if g := gates.Leg(rec, arm, point, profile(t, "gb10")); !g.Valid() || !slices.Equal(g.Flags, []string{"no_done"}) {
		t.Errorf("flag of a request: %+v", g)
	}
}

// §2.7: what a box did not tell is absent, named, and never passed in silence.
func TestAbsentReadings(t *testing.T) {
	rec := leg()
	rec.Env = matrix.Env{BootIDStart: "b", BootIDEnd: "b", Unevaluable: []string{"SWAP_ACTIVITY: /proc/vmstat is hidden"}}
	rec.Clock = matrix.Opt[matrix.Clock]{}
	g := gates.Leg(rec, arm, point, profile(t, "gb10"))
	if !g.Valid() {
		t.Errorf("absent readings void the leg: %v", g.Codes)
	}
	want := []string{"CLOCK_BUSY_FRACTION", "CLOCK_DEGRADED_STATE", "CLOCK_FEW_BUSY_SAMPLES", "CLOCK_PERSISTENCE", "CLOCK_SPREAD", "CLOCK_THROTTLED",
		"COTENANT", "LOAD_AVERAGE", "MEMORY_NOT_RETURNED", "PAGE_CACHE_RESIDENT", "SWAP_ACTIVITY: /proc/vmstat is hidden", "THERMAL_COUNTER"}
	if !slices.Equal(g.Absent, want) {
		t.Errorf("absent %v, want %v", g.Absent, want)
	}
	for _, name := range g.Absent {
		if !gates.BoxGate(name) {
			t.Errorf("the absence of %s is not the box's", name)
		}
	}
	if gates.BoxGate(string(matrix.TokenSum)) {
		t.Error("a stream without exact counts is not the box's")
	}
}

// §4.1: what only the rest of the run tells. The order of the legs does not matter.
func TestSeries(t *testing.T) {
	loads := []matrix.LoadRecord{
		{ID: "l1", Seq: 1, Group: "g", Slot: matrix.Slot{Arm: "a"}, Ready: matrix.Some(matrix.Ready{Print: "p"}), Canaries: []matrix.CanaryResult{{OK: true, Rate: matrix.Some(100.0)}}},
		{ID: "l2", Seq: 2, Group: "g", Slot: matrix.Slot{Arm: "a"}, Ready: matrix.Some(matrix.Ready{Print: "p2"})},
	}
	legs := []matrix.LegRecord{
		{ID: matrix.LegID{Group: "g", Arm: "a", Point: "c1"}, LoadID: "l2", Seq: 2, MethodID: "m", ArmPrint: "p2"},
		{ID: matrix.LegID{Group: "g", Arm: "a", Point: "c8"}, LoadID: "l2", Seq: 2, MethodID: "m", ArmPrint: "p"},
		{ID: matrix.LegID{Group: "g", Arm: "a", Point: "c1"}, LoadID: "l1", Seq: 1, MethodID: "m", ArmPrint: "p", Canaries: []matrix.CanaryResult{{When: "after", OK: true, Rate: matrix.Some(69.0)}}},
		{ID: matrix.LegID{Group: "g", Arm: "a", Point: "c8"}, LoadID: "l1", Seq: 1, MethodID: "n", ArmPrint: "p"},
	}
	out := gates.Series("m", loads, legs, make([]matrix.GateResult, 4))
	for i, want := range [][]matrix.LegCode{{matrix.IdentityChanged}, {matrix.IdentityChanged}, {matrix.LoadStep}, {matrix.MethodChanged}} {
		if !slices.Equal(out[i].Codes, want) {
			t.Errorf("leg %d: %v, want %v", i, out[i].Codes, want)
		}
	}
	given := []matrix.GateResult{{}, {}, {Codes: []matrix.LegCode{matrix.BufferedStream}, Cause: matrix.CauseEngine}, {}}
	out = gates.Series("m", loads[:1], legs, given)
	if !slices.Contains(out[3].Codes, matrix.BufferedStream) || slices.Contains(out[0].Codes, matrix.BufferedStream) {
		t.Errorf("a buffered stream voids its load and no other: %v and %v", out[3].Codes, out[0].Codes)
	}
	if len(given[3].Codes) != 0 {
		t.Error("the results given were changed")
	}
}

func TestCauseRefusesUnknownCodes(t *testing.T) {
	if _, err := gates.Cause([]matrix.LegCode{"SUNSPOTS"}); err == nil {
		t.Error("an unknown code has a cause")
	}
	if c, err := gates.Cause(nil); c != "" || err != nil {
		t.Errorf("no code: %q, %v", c, err)
	}
}

// §4.2: boundaries of the merge and of the request-head rule (§4.5).
func TestClockEdges(t *testing.T) {
	if _, err := gates.ClockMerge([]gates.ClockStats{{BootID: "a"}, {BootID: "b"}}); err == nil {
		t.Error("windows of two boots merge")
	}
	if m, err := gates.ClockMerge(nil); err != nil || m.Busy != 0 {
		t.Errorf("nothing merged: %+v, %v", m, err)
	}
	empty := gates.ClockWindow(matrix.Clock{})
	if codes := gates.ClockCodes(empty, 0); !slices.Equal(codes, []matrix.LegCode{matrix.ClockFewBusy, matrix.ClockBusyFraction}) {
		t.Errorf("an empty window: %v", codes)
	}
	if o, codes := gates.ClockCompare(empty, empty); !slices.Equal(codes, []matrix.LegCode{matrix.ClockMeanMissing}) || o.Kappa.Present() {
		t.Errorf("two empty windows: %+v %v", o, codes)
	}
	flat := gates.ClockStats{Busy: 40, SpreadPct: 1.5}
	wide := gates.ClockStats{Busy: 40, SpreadPct: 1.6}
	head := func(n int, mhz int64) []int64 { return slices.Repeat([]int64{mhz}, n) }
	for _, c := range []struct {
		a, b         gates.ClockStats
		headA, headB []int64
		want         bool
	}{
		{flat, flat, nil, nil, true},
		{flat, wide, nil, nil, false},
		{gates.ClockStats{}, gates.ClockStats{}, nil, nil, false},
		{wide, wide, head(30, 2020), head(30, 2000), true},
		{wide, wide, head(30, 2021), head(30, 2000), false},
		{wide, wide, head(29, 2000), head(30, 2000), false},
	} {
		if got := gates.HeadObserved(c.a, c.b, c.headA, c.headB); got != c.want {
			t.Errorf("%+v and %+v with %d and %d head samples: %v", c.a, c.b, len(c.headA), len(c.headB), got)
		}
	}
	if names := gates.ThrottleNames(0x4001); !slices.Equal(names, []string{"GpuIdle", "unknown 0x4000"}) {
		t.Errorf("%v", names)
	}
}

func FuzzThrottleNames(f *testing.F) {
	f.Add(uint64(0x68))
	f.Fuzz(func(t *testing.T, mask uint64) {
		n := 0
		for m := mask; m != 0; m &= m - 1 {
			n++
		}
		if got := gates.ThrottleNames(mask); len(got) != n || !slices.IsSorted(got) {
			t.Errorf("%#x: %v", mask, got)
		}
	})
}

// Protocol §4.7: grids of different observed ceilings do not merge; unknown is no difference, nor is what a window may move.
func TestCeilingMismatch(t *testing.T) {
	known := func(mhz int64) matrix.Opt[int64] { return matrix.Some(mhz) }
	for _, c := range []struct {
		a, b    matrix.Opt[int64]
		differs bool
	}{
		{known(2190), known(2190), false},
		{known(2405), known(2411), false},
		{known(2020), known(2000), false},
		{known(2021), known(2000), true},
		{known(2190), known(2405), true},
		{known(2405), known(2190), true},
		{known(2190), matrix.Opt[int64]{}, false},
		{matrix.Opt[int64]{}, known(2190), false},
		{known(2190), known(0), false},
	} {
		if got := gates.CeilingMismatch(c.a, c.b); (got != "") != c.differs {
			t.Errorf("%v and %v: %q", c.a, c.b, got)
		}
	}
}
