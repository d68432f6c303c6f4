package metrics

import "enginebroker/matrix"

// formulas holds every formula set by the name it is published under. A name carries the commit at which the tool's rules
// were read; tools change them under one name (harnesses.md §4.2). Rules and golden values: harnesses.md §4.1 and §4.3.
//
// What a log cannot show is left out: a tool's own re-tokenisation (n is the server's count), its own start of the clock,
// SGLang's server_info request inside the window, guidellm's rates, which are means of a distribution.
var formulas = []formula{broker1, vllm, vllmOld, sglang, guidellm, aiperf, inferencePerf, llamaBenchy}

var every = []string{"mean", "median", "p90", "p95", "p99"}

// vllm is vllm bench serve: every event with choices moves its clock, so the role chunk is the first token and the finish
// chunk ends the request.
var vllm = formula{
	name: "vllm@02cfb534", rates: true, tokens: completion, gap: chunkGaps,
	shows: []shown{{ttft, every}, {tpot, every}, {itl, every}, {e2el, every}},
	done:  func(a *Accumulator, t *trace) { chunkTimes(a, t, t.lastChunk) },
}

// vllmOld is the chat client before that commit, which InferenceX still uses: the usage chunk ends the request.
var vllmOld = formula{
	name: "vllm-old", rates: true, tokens: completion, gap: chunkGaps,
	shows: vllm.shows,
	done:  func(a *Accumulator, t *trace) { chunkTimes(a, t, latest(t.lastChunk, t.usage)) },
}

func chunkGaps(a *Accumulator, t *trace, e matrix.StreamEvent) {
	if e.Choices {
		a.since(itl, t.lastChunk, e.At)
	}
}

func chunkTimes(a *Accumulator, t *trace, end stamp) {
	a.between(ttft, t, t.req.Sent, t.firstChunk)
	a.between(e2el, t, t.req.Sent, end)
	a.perToken(t, t.firstChunk, end, 1)
}

// sglang is sglang.bench_serving: text starts the clock, the last non-empty line ends it, and a request without usage is
// taken to have produced what was asked for.
var sglang = formula{
	name: "sglang@00f9ec47", rates: true,
	shows:  vllm.shows,
	tokens: func(t *trace) matrix.Opt[int64] { return first(t.req.CompletionTokens, matrix.Some(t.req.Requested)) },
	gap:    func(a *Accumulator, t *trace, e matrix.StreamEvent) { tokenGaps(a, t, e, itl) },
	done: func(a *Accumulator, t *trace) {
		end := latest(latest(t.lastChunk, t.usage), t.done)
		a.between(ttft, t, t.req.Sent, t.firstToken)
		a.between(e2el, t, t.req.Sent, end)
		a.perToken(t, t.firstToken, end, 1)
	},
}

// guidellm counts the time to first token into TPOT, weights requests by their tokens, and inverts the distribution for
// percentiles. Without usage it counts iterations.
var guidellm = formula{
	name: "guidellm@ee7a774", invert: true,
	shows: []shown{{ttft, every}, {tpot, every}, {itl, every}, {e2el, every}},
	tokens: func(t *trace) matrix.Opt[int64] {
		return first(t.req.CompletionTokens, matrix.Some(int64(t.tokenEvents)))
	},
	done: func(a *Accumulator, t *trace) {
		a.between(ttft, t, t.req.Sent, t.firstToken)
		a.between(e2el, t, t.req.Sent, first(t.done, t.end))
		n := float64(a.f.tokens(t).Or(0))
		if x, ok := ms(t.req.Sent, t.lastToken); ok && n > 0 {
			a.observe(tpot, x/n, n)
		}
		if x, ok := ms(t.firstToken, t.lastToken); ok && n > 1 {
			a.observe(itl, x/(n-1), n-1)
		}
	},
}

// aiperf calls inter-token latency what others call TPOT (with one token assumed in the first chunk unless it is told),
// and inter-chunk latency what others call ITL.
var aiperf = formula{
	name: "aiperf@0176f59", rates: true, tokens: completion,
	shows: []shown{{ttft, every}, {itl, every}, {chunkGap, every}, {e2el, every}},
	gap:   func(a *Accumulator, t *trace, e matrix.StreamEvent) { tokenGaps(a, t, e, chunkGap) },
	done: func(a *Accumulator, t *trace) {
		a.between(ttft, t, t.req.Sent, t.firstToken)
		a.between(e2el, t, t.req.Sent, t.lastToken)
		n, ok := t.req.CompletionTokens.Get()
		if x, both := ms(t.firstToken, t.lastToken); ok && both && n > 1 {
			a.observe(itl, x/float64(n-1), 1)
		}
	},
}

// inferencePerf spreads a chunk's tokens over the instant of its arrival, so gaps inside a chunk are zero, and ends a
// request when its body has been read. A request of one token has no TTFT.
var inferencePerf = formula{
	name: "inference-perf@7de5ef2", rates: true, tokens: completion,
	shows: []shown{{ttft, every}, {tpot, every}, {itl, every}, {e2el, every}},
	gap: func(a *Accumulator, t *trace, e matrix.StreamEvent) {
		n, counted := e.Tokens.Get()
		switch {
		case !e.Kind.Token():
			return
		case !counted || n > mostPerChunk:
			a.withhold(itl, "no exact source says how many tokens a chunk brought")
			return
		}
		tokenGaps(a, t, e, itl)
		for range n - 1 {
			a.observe(itl, 0, 1)
		}
	},
	done: func(a *Accumulator, t *trace) {
		if t.req.CompletionTokens.Or(0) > 1 {
			a.between(ttft, t, t.req.Sent, t.firstToken)
		}
		a.between(e2el, t, t.req.Sent, t.end)
		a.perToken(t, t.firstToken, t.lastToken, 1)
	},
}

// mostPerChunk is beyond what any chunk of text holds; a larger count is none.
const mostPerChunk = 1 << 20

// llamaBenchy counts chunks as tokens and decodes until the stream is closed.
var llamaBenchy = formula{
	name: "llama-benchy@ae09cab", tokens: func(t *trace) matrix.Opt[int64] { return matrix.Some(int64(t.tokenEvents)) },
	shows: []shown{{ttfr, []string{"mean"}}, {ttft, []string{"mean"}}, {decode, []string{"mean"}}},
	done: func(a *Accumulator, t *trace) {
		a.between(ttfr, t, t.req.Sent, t.firstChunk)
		a.between(ttft, t, t.req.Sent, t.firstToken)
		if x, ok := ms(t.firstToken, t.end); ok && x > 0 && t.tokenEvents > 1 {
			a.observe(decode, float64(t.tokenEvents-1)/(x/1e3), 1)
		}
	},
}

func tokenGaps(a *Accumulator, t *trace, e matrix.StreamEvent, of quantity) {
	if e.Kind.Token() {
		a.since(of, t.lastToken, e.At)
	}
}
