package gates

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"enginebroker/matrix"
	"enginebroker/matrix/stats"
)

const (
	stepFactor = 0.7  // LOAD_STEP: a rate below 0.7 of the first one (protocol §4.1)
	lagShare   = 0.05 // CLIENT_LAG (protocol §4.1) [own]
	// daemonShare of a core is what everything beside the stopwatch may take of a window (architecture §5); the client cannot
	// see in its own lateness what it took of the engine.
	daemonShare = 0.01
)

// Leg judges one leg by every rule of protocol §4.1 that its own record can answer. Series adds what only the other legs
// of the run can tell.
func Leg(rec matrix.LegRecord, arm matrix.Arm, point matrix.Point, p Profile) matrix.GateResult {
	var r result
	r.requests(rec, arm, point, p)
	r.client(rec)
	r.daemon(rec)
	r.state(rec)
	r.env(rec.Env, p)
	r.clock(rec, p)
	r.absent(p.Absent()...)
	for _, line := range rec.Env.Unevaluable { // CODE: why
		code, _, _ := strings.Cut(line, ":")
		r.absent(matrix.LegCode(code))
		r.Absent[slices.Index(r.Absent, code)] = line
	}
	return r.done()
}

// outcomeCodes maps the parser's reasons to codes (protocol §4.1). A failed request with none of these reasons is
// FAILED_REQUESTS.
var outcomeCodes = map[string]matrix.LegCode{
	"truncated_stream":     matrix.IncompleteStream,
	"no_tokens":            matrix.IncompleteStream,
	"no_finish_reason":     matrix.IncompleteStream,
	"identity_mismatch":    matrix.IdentityChanged,
	"no_usage":             matrix.UsageMissing,
	"token_count_conflict": matrix.UsageMismatch,
	"short_output":         matrix.TokenCountCode,
	"prefix_cache_hit":     matrix.PrefixCacheHit,
	"idle_limit":           matrix.EngineHung,
}

func (r *result) outcome(q matrix.Request) {
	name := fmt.Sprintf("request %d.%d", q.Repetition, q.Index)
	switch q.Outcome {
	case matrix.OutcomeOK:
		r.OK++
		return
	case matrix.OutcomeSuspect:
		r.Suspect++
	case matrix.OutcomeFailed, matrix.OutcomeNotReady:
		r.Failed++
	default:
		r.fail(matrix.EvidenceMissing, "%s has unknown outcome %q", name, q.Outcome)
		return
	}
	mapped := false
	for _, reason := range q.Reasons {
		code, ok := outcomeCodes[reason]
		if !ok {
			code = matrix.FailedRequests
		}
		mapped = true
		r.fail(code, "%s %s: %s", name, q.Outcome, reason)
	}
	if !mapped {
		r.fail(matrix.FailedRequests, "%s %s %s", name, q.Outcome, q.Error)
	}
}

func (r *result) requests(rec matrix.LegRecord, arm matrix.Arm, point matrix.Point, p Profile) {
	if len(rec.Repetitions) == 0 {
		r.fail(matrix.EvidenceMissing, "the leg has no repetition")
	}
	var rates []float64
	cached, counted := false, false
	for _, rep := range rec.Repetitions {
		if len(rep.Requests) != rep.Planned {
			r.fail(matrix.RequestCount, "repetition %d: %d requests issued, %d planned", rep.Index, len(rep.Requests), rep.Planned)
		}
		if rep.End < rep.Start {
			r.fail(matrix.EvidenceMissing, "repetition %d ends %v before it begins: the clock went backwards", rep.Index, time.Duration(rep.Start-rep.End))
		}
		tokens, whole := int64(0), true
		for _, q := range rep.Requests {
			r.outcome(q)
			r.usage(q, point, arm)
			r.stream(q, p)
			for _, f := range q.Flags {
				r.flag(f)
			}
			n, ok := q.CompletionTokens.Get()
			tokens, whole = tokens+n, whole && ok && q.Outcome == matrix.OutcomeOK
			cached = cached || q.CachedTokens.Present()
		}
		if whole && rep.End > rep.Start { // a rate of an incomplete set is none
			rates = append(rates, float64(tokens)/float64(rep.End-rep.Start))
		}
	}
	if c, ok := rec.Counter.Get(); ok && arm.Cache != "on" {
		if n, ok := c.Cached.Get(); ok {
			counted = true
			if n > 0 {
				r.fail(matrix.PrefixCacheHit, "the engine's counter moved by %d cached tokens", n)
			}
		}
	}
	if !cached && !counted {
		r.absent(matrix.PrefixCacheHit)
	}
	// The counter speaks of the whole leg, so that it is held against the leg's answers: tokens that the engine made and no
	// answer reports are work beside the measurement, and the reverse is a count made up.
	if c := rec.Counter.Or(matrix.CounterDelta{}); c.Exact && c.Generated.Present() {
		if want, ok := rec.Answered(); ok && c.Generated.Or(want) != want {
			r.fail(matrix.TokenSum, "the engine's counter moved by %d tokens, its answers report %d", c.Generated.Or(0), want)
		}
	}
	for i, rate := range rates {
		if rate < stepFactor*rates[0] && point.Rate.IsZero() { // in open loop arrivals make the rate
			r.fail(matrix.LoadStep, "repetition %d ran at %.0f %% of the first", i, 100*rate/rates[0])
		}
	}
}

func (r *result) usage(q matrix.Request, point matrix.Point, arm matrix.Arm) {
	name := fmt.Sprintf("request %d.%d", q.Repetition, q.Index)
	got, ok := q.CompletionTokens.Get()
	if !ok {
		if q.Outcome == matrix.OutcomeOK {
			r.fail(matrix.UsageMissing, "%s has no completion token count", name)
		}
		return
	}
	switch {
	case point.IgnoreEOS && got != q.Requested:
		r.fail(matrix.TokenCountCode, "%s produced %d tokens, %d requested", name, got, q.Requested)
	case got > q.Requested:
		r.fail(matrix.UsageMismatch, "%s reports %d tokens, at most %d were asked for", name, got, q.Requested)
	case got <= 0 && q.TokenEvents > 0:
		r.fail(matrix.UsageMismatch, "%s reports %d tokens and streamed some", name, got)
	}
	if n, ok := q.ReasoningTokens.Get(); ok && n > got {
		r.fail(matrix.UsageMismatch, "%s reports %d reasoning tokens of %d", name, n, got)
	}
	if n, ok := q.CachedTokens.Get(); ok && n > 0 && arm.Cache != "on" {
		r.fail(matrix.PrefixCacheHit, "%s: %d prompt tokens came from a cache", name, n)
	}
	summed := false
	for _, c := range q.Counts {
		if c.Source == "usage" || c.Kind == matrix.CountLossy {
			continue // usage is what the sum is compared with; a lossy count proves nothing
		}
		summed = true
		if c.Tokens != got {
			r.fail(matrix.TokenSum, "%s: %s counts %d tokens, usage %d", name, c.Source, c.Tokens, got)
		}
	}
	if !summed {
		r.absent(matrix.TokenSum)
	}
	prompt, ok1 := q.PromptTokens.Get()
	want, ok2 := q.ExpectedPrompt.Get()
	switch {
	case !ok1 || !ok2:
		r.absent(matrix.PromptTokensCode)
	case prompt != want:
		r.fail(matrix.PromptTokensCode, "%s: %d prompt tokens, the corpus has %d", name, prompt, want)
	}
	if int64(q.TokenEvents) != got {
		r.flag(FlagITLCoalesced)
	}
}

// stream judges how an answered request was streamed. One token cannot be spread.
func (r *result) stream(q matrix.Request, p Profile) {
	if q.Outcome != matrix.OutcomeOK {
		return
	}
	name := fmt.Sprintf("request %d.%d", q.Repetition, q.Index)
	if q.FinishReason == "" {
		r.fail(matrix.IncompleteStream, "%s has no finish reason", name)
	}
	if q.CompletionTokens.Or(2) < 2 {
		r.absent(matrix.BufferedStream, matrix.StreamSpread)
		return
	}
	first, ok1 := q.FirstToken.Get()
	last, ok2 := q.LastToken.Get()
	sent, ok3 := q.Sent.Get()
	if !ok1 || !ok2 || !ok3 {
		r.fail(matrix.EvidenceMissing, "%s is ok and lacks a time of sending, of its first or of its last token", name)
		return
	}
	if first < sent || last < first {
		r.fail(matrix.EvidenceMissing, "%s: its stamps go backwards: sent %d, first token %d, last %d", name, sent, first, last)
		return
	}
	floor := p.StreamSpread
	if p.StreamSpreadShare > 0 {
		floor = min(floor, time.Duration(p.StreamSpreadShare*float64(last-sent)))
	}
	switch spread := time.Duration(last - first); {
	case spread <= 0:
		r.fail(matrix.BufferedStream, "%s: the first token came with the last one", name)
	case spread < floor:
		r.fail(matrix.StreamSpread, "%s: all tokens within %v, the floor is %v", name, spread, floor)
	}
}

// client judges the lateness of the timed client against the figures it could falsify.
func (r *result) client(rec matrix.LegRecord) {
	var e2el, ttft, itl []float64
	lag, late := matrix.Opt[int64]{}, matrix.Opt[int64]{}
	worst := func(a, b matrix.Opt[int64]) matrix.Opt[int64] {
		if x, ok := b.Get(); ok && x >= a.Or(x) {
			return b
		}
		return a
	}
	for _, rep := range rec.Repetitions {
		lag, late = worst(lag, rep.Client.LagP99), worst(late, rep.Client.LatenessP99)
		for _, q := range rep.Requests {
			sent, ok1 := q.Sent.Get()
			first, ok2 := q.FirstToken.Get()
			last, ok3 := q.LastToken.Get()
			if !ok1 || !ok2 || !ok3 {
				continue
			}
			e2el, ttft = append(e2el, float64(last-sent)), append(ttft, float64(first-sent))
			if n := q.CompletionTokens.Or(0) - q.FirstTokens.Or(1); n > 0 {
				itl = append(itl, float64(last-first)/float64(n))
			}
		}
	}
	over := func(x matrix.Opt[int64], of []float64) (share float64, ok bool) {
		m, err := stats.Median(of)
		v, present := x.Get()
		if err != nil || !present || m <= 0 {
			return 0, false
		}
		return float64(v) / m, true
	}
	if s, ok := over(lag, e2el); !ok {
		r.absent(matrix.ClientLag)
	} else if s > lagShare {
		r.fail(matrix.ClientLag, "p99 reader lag is %.1f %% of the median E2EL", 100*s)
	}
	if s, ok := over(late, ttft); !ok {
		r.absent(matrix.ClientLag)
	} else if s > lagShare {
		r.fail(matrix.ClientLag, "p99 send lateness is %.1f %% of the median TTFT", 100*s)
	}
	if s, ok := over(lag, itl); ok && s > lagShare {
		r.flag(FlagITLCoalesced)
		r.flag(FlagClientLag)
	}
}

// daemon judges what the process did for others inside the windows of a leg, each window by itself.
func (r *result) daemon(rec matrix.LegRecord) {
	for _, rep := range rec.Repetitions {
		busy, what := int64(0), make([]string, 0, len(rep.Daemon))
		most := slices.SortedStableFunc(slices.Values(rep.Daemon), func(a, b matrix.DaemonWork) int { return cmp.Compare(b.Busy, a.Busy) })
		for _, w := range most {
			busy += max(0, w.Busy)
			what = append(what, fmt.Sprintf("%s ×%d %v", w.Request, w.Times, time.Duration(w.Busy)))
		}
		if window := rep.End - rep.Start; float64(busy) > daemonShare*float64(window) {
			r.fail(matrix.ClientLag, "repetition %d: the daemon took %v of a window of %v, more than %.0f %% of a core: %s", rep.Index,
				time.Duration(busy), time.Duration(window), 100*daemonShare, join(what))
		}
	}
}

func (r *result) state(rec matrix.LegRecord) {
	if rec.Died {
		r.fail(matrix.ServerDied, "the server's process ended or restarted during the leg")
	}
	if rec.Hung {
		r.fail(matrix.EngineHung, "requests held with no token for the point's idle limit")
	}
	if len(rec.Canaries) == 0 {
		r.absent(matrix.CanaryFailedCode)
	}
	for _, c := range rec.Canaries {
		if !c.OK {
			r.fail(matrix.CanaryFailedCode, "%s: wanted %q, got %q", c.When, c.Want, c.Got)
		}
	}
	if len(rec.Missing) > 0 {
		r.fail(matrix.EvidenceMissing, "missing: %s", join(rec.Missing))
	}
	switch rec.MethodEnd {
	case "":
		r.absent(matrix.MethodChanged)
	case rec.MethodID:
	default:
		r.fail(matrix.MethodChanged, "method %s at the end, %s at the start", rec.MethodEnd, rec.MethodID)
	}
	switch rec.PrintEnd {
	case "":
		r.absent(matrix.IdentityChanged)
	case rec.ArmPrint:
	default:
		r.fail(matrix.IdentityChanged, "arm print %s at the end, %s at the start", rec.PrintEnd, rec.ArmPrint)
	}
}

func (r *result) clock(rec matrix.LegRecord, p Profile) {
	if !p.Clock {
		return
	}
	c, ok := rec.Clock.Get()
	if !ok || len(c.Seconds) == 0 {
		r.absent(clockCodes...)
		return
	}
	s := ClockWindow(c)
	for _, code := range ClockCodes(s, p.ClockMask) {
		r.fail(code, "%s", clockDetail(s, code, p.ClockMask))
	}
	switch on, ok := c.Persistence.Get(); {
	case !ok:
		r.absent(matrix.ClockPersistence)
	case !on:
		r.fail(matrix.ClockPersistence, "persistence mode is disabled")
	}
	floor, ok := p.ClockFloor, true
	if floor == 0 {
		floor, ok = c.MaxMHz.Get()
		floor /= 2
	}
	switch {
	case !ok || s.Busy == 0 || !progressed(rec):
		r.absent(matrix.ClockDegraded)
	case s.Median < float64(floor):
		r.fail(matrix.ClockDegraded, "busy median %.0f MHz while tokens progressed, the floor is %d MHz", s.Median, floor)
	}
}

// progressed reports that tokens came: idle clocks, and those under a hang, prove nothing.
func progressed(rec matrix.LegRecord) bool {
	return !rec.Hung && slices.ContainsFunc(rec.Repetitions, func(rep matrix.Repetition) bool {
		return slices.ContainsFunc(rep.Requests, func(q matrix.Request) bool { return q.TokenEvents > 0 })
	})
}

func clockDetail(s ClockStats, code matrix.LegCode, mask uint64) string {
	switch code {
	case matrix.ClockFewBusy:
		return fmt.Sprintf("%d busy seconds, %d needed", s.Busy, clockMinBusy)
	case matrix.ClockBusyFraction:
		return fmt.Sprintf("%d of %d seconds busy, half needed", s.Busy, s.Busy+s.Idle)
	case matrix.ClockSpread:
		return fmt.Sprintf("%.0f to %.0f MHz, %.2f %% of the median, %.1f %% allowed", s.Min, s.Max, s.SpreadPct, clockMaxSpread)
	default:
		return join(ThrottleNames(s.Bits &^ mask))
	}
}
