package metrics

import (
	"strconv"

	"enginebroker/matrix"
)

// broker1 is the formula of verdicts (protocol §1, §4.1; harnesses.md §4.4):
//
//	TTFT   first token event − send
//	TPOT   (last − first token event) / (n − n₁); n₁ is what the first token event brought by an exact source, else 1
//	E2EL   last token event − send; terminal: end marker − send
//	ITL    gaps between token events, only where every token event of every request is one token
//	rates  tokens of requests answered in full / window of all attempts
//
// n is what the server says it produced. A request whose tokens all came at once has no TPOT.
var broker1 = formula{
	name:  Broker1,
	rates: true,
	shows: []shown{
		{tpot, []string{"mean", "median", "p99"}},
		{ttft, []string{"mean", "median", "p90", "p95", "p99"}},
		{ttftSched, []string{"mean", "median", "p99"}},
		{e2el, []string{"mean", "median", "p90", "p95", "p99"}},
		{e2elTerminal, []string{"median"}},
		{itl, []string{"mean", "median", "p99"}},
		{chunkGap, []string{"mean", "median"}},
		{prefill, []string{"median"}},
	},
	tokens: completion,
	gap: func(a *Accumulator, t *trace, e matrix.StreamEvent) {
		if e.Kind.Token() {
			a.since(itl, t.lastToken, e.At)
			a.since(chunkGap, t.lastToken, e.At)
		}
	},
	done: func(a *Accumulator, t *trace) {
		a.between(ttft, t, t.req.Sent, t.firstToken)
		a.between(ttftSched, t, t.req.Scheduled, t.firstToken)
		a.between(e2el, t, t.req.Sent, t.lastToken)
		a.between(e2elTerminal, t, t.req.Sent, t.terminal())
		a.perToken(t, t.firstToken, t.lastToken, t.firstTokens.Or(1))
		if x, ok := ms(t.req.Sent, t.firstToken); ok && x > 0 && t.req.PromptTokens.Present() {
			a.observe(prefill, float64(t.req.PromptTokens.Or(0))/(x/1e3), 1)
		} else {
			a.withhold(prefill, "request "+strconv.Itoa(t.req.Index)+" lacks a prompt count or a time to first token")
		}
		if t.firstToken.Present() && t.firstToken == t.lastToken && t.req.CompletionTokens.Or(0) > t.firstTokens.Or(1) { // something on the way gathered the body
			a.withhold(tpot, "all tokens of request "+strconv.Itoa(t.req.Index)+" came at one instant")
		}
		if t.events > 0 && t.coalesced() {
			a.withhold(itl, string(matrix.ITLCoalesced)+": chunks are not tokens in request "+strconv.Itoa(t.req.Index))
		}
	},
}

func completion(t *trace) matrix.Opt[int64] { return t.req.CompletionTokens }
