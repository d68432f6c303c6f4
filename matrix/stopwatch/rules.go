package stopwatch

import (
	"fmt"
	"slices"
	"strings"

	"enginebroker/matrix"
)

// Reasons and flags of a request. Those of the stream are the words of the corpus (testdata/sse/README.md); those of the
// transport are ours.
const (
	reasonHTTPStatus   = "http_status"
	reasonNotSSE       = "not_event_stream"
	reasonInband       = "inband_error"
	reasonMalformed    = "malformed_event"
	reasonTruncated    = "truncated_stream"
	reasonNoTokens     = "no_tokens"
	reasonIdentity     = "identity_mismatch"
	reasonNoFinish     = "no_finish_reason"
	reasonNoUsage      = "no_usage"
	reasonConflict     = "token_count_conflict"
	reasonShort        = "short_output"
	reasonCached       = "prefix_cache_hit"
	reasonEncoded      = "content_encoded" // the body is compressed although identity was asked for
	reasonEventTooBig  = "event_too_large"
	reasonEvents       = "too_many_events"
	reasonChoice       = "unasked_choice"
	reasonIdle         = "idle_limit"
	reasonTotal        = "total_limit"
	reasonCancelled    = "cancelled"
	reasonConnect      = "connection_failed"
	reasonLost         = "connection_lost" // before the head of the response was whole
	reasonOversize     = "response_too_large"
	reasonProtocol     = "bad_http"
	flagNoDone         = "no_done"
	flagNoUsage        = "no_usage"
	flagBOM            = "bom"
	flagBatched        = "batched_deltas"
	flagCached         = "cached_prompt_tokens"
	flagTruncatedEvent = "truncated_event"
	flagAfterDone      = "events_after_done"
	flagLost           = "connection_lost" // after the head: the stream's own rules decide
	// FlagFirstAssumed marks a request that no exact source counted from its first token event on: n₁ of TPOT is taken to be 1
	// (protocol §1). It is of the request, not of the corpus's records.
	FlagFirstAssumed = "first_tokens_assumed"
)

// endingReason is the failure that an ending is by itself. Early and lost connections are judged by what came before.
var endingReason = map[Ending]string{
	EndIdle: reasonIdle, EndTotal: reasonTotal, EndCancelled: reasonCancelled, EndDial: reasonConnect, EndWrite: reasonConnect,
	EndOversize: reasonOversize, EndProtocol: reasonProtocol,
}

// batchedBelow is the share of events per token under which deltas are called batched (corpus rule 7).
const batchedBelow = 0.5

// response is everything about one answer that is not an event.
type response struct {
	ending      Ending
	cause       string // what ended it, where not clean
	status      int    // 0: no head came
	eventStream bool   // content-type text/event-stream
	encoded     bool   // content-encoding other than identity
	decoded     bool   // the caller decoded it (corpus files): judged as if it had not been
	bodyError   []byte // error of a JSON body that is no event stream
	body        []byte // the start of such a body
	bom         bool
	brokenEvent bool // the body ended inside an event
	eventTooBig bool
	tooMany     bool
}

// verdict is the outcome of one answer with its reasons and flags, sorted.
type verdict struct {
	outcome        matrix.Outcome
	reasons, flags []string
	detail         string
}

// judge applies the rules of the corpus, by their numbers, and those of the transport.
func (st *stream) judge(r response) verdict {
	var v verdict
	var failed, suspect []string
	why := func(format string, args ...any) {
		if v.detail == "" {
			v.detail = fmt.Sprintf(format, args...)
		}
	}
	fail := func(reason, format string, args ...any) {
		failed = append(failed, reason)
		why(format, args...)
	}
	limited := endingReason[r.ending]
	if limited != "" {
		fail(limited, "%s", r.cause)
	}
	if st.identity != "" { // rule 9
		fail(reasonIdentity, "%s", st.identity)
	}
	switch {
	case r.status == 0:
		if limited == "" {
			fail(reasonLost, "%s", r.cause)
		}
	case r.status != 200: // rule 5
		fail(reasonHTTPStatus, "HTTP status %d: %s", r.status, r.message())
	case !r.eventStream: // rules 3 and 5
		if r.bodyError != nil {
			fail(reasonInband, "%s", r.message())
		}
		fail(reasonNotSSE, "the answer is not text/event-stream")
	case r.encoded && !r.decoded:
		fail(reasonEncoded, "the server compressed the answer although accept-encoding: identity was sent; arrival times mean nothing")
	default:
		v.flags = st.flags(r)
		if st.failed { // rule 3
			fail(reasonInband, "%s", st.failure)
		}
		if st.malformed >= 0 { // rule 2
			fail(reasonMalformed, "the event at byte %d of the body is no JSON", st.malformed)
		}
		if r.eventTooBig {
			fail(reasonEventTooBig, "an event or line is larger than %d bytes", maxEvent)
		}
		if r.tooMany {
			fail(reasonEvents, "the answer has more than %d events", st.ask.eventCap())
		}
		if i, ok := st.stray.Get(); ok {
			fail(reasonChoice, "the stream has a choice %d, asked for %d", i, st.ask.choices)
		}
		if st.failed || limited != "" {
			break
		}
		whole := st.finished == st.ask.choices
		if r.brokenEvent || !whole && !st.done { // rules 2 and 4
			fail(reasonTruncated, "the stream ended without a finish reason or inside an event after %d events%s", st.events, prefixed(": ", r.cause))
		} else if !whole {
			suspect = append(suspect, reasonNoFinish)
			why("%d of %d choices have a finish reason", st.finished, st.ask.choices)
		}
		if st.tokenEvents == 0 { // rule 5
			fail(reasonNoTokens, "the stream carried no output")
		}
		suspect = append(suspect, st.doubts(why)...)
	}
	switch { // rule 10
	case len(failed) == 1 && r.status == 503:
		v.outcome, v.reasons = matrix.OutcomeNotReady, failed
	case len(failed) > 0:
		v.outcome, v.reasons = matrix.OutcomeFailed, failed
	case len(suspect) > 0:
		v.outcome, v.reasons = matrix.OutcomeSuspect, suspect
	default:
		v.outcome, v.detail = matrix.OutcomeOK, ""
	}
	slices.Sort(v.reasons)
	slices.Sort(v.flags)
	return v
}

// doubts are the reasons of rule 6: the counts do not add up to what was asked and seen. More events than tokens are none:
// one token may come in two pieces, and only a source that counts along the stream could tell a piece from a token.
func (st *stream) doubts(why func(string, ...any)) []string {
	n, ok := st.counts.completion.Get()
	if !ok {
		if st.usageEvent >= 0 {
			why("the usage that counts has no completion_tokens that is a whole number from 0: %.200s", st.usageRaw)
		} else {
			why("the server reported no usage")
		}
		return []string{reasonNoUsage}
	}
	var out []string
	most := st.ask.requested * st.ask.choices
	conflict := ""
	switch {
	case n == 0 && st.tokenEvents > 0:
		conflict = fmt.Sprintf("usage says 0 tokens, %d events carried output", st.tokenEvents)
	case st.ask.requested > 0 && n > most:
		conflict = fmt.Sprintf("usage says %d tokens, asked for at most %d", n, most)
	case st.counts.reasoning.Or(0) > n:
		conflict = fmt.Sprintf("usage says %d reasoning tokens of %d", st.counts.reasoning.Or(0), n)
	default:
		for _, t := range st.tallies {
			exact := t.known && t.seen && t.kind != matrix.CountLossy
			if exact && t.back {
				conflict = fmt.Sprintf("the running count of %s fell", t.name)
			} else if exact && t.total != n {
				conflict = fmt.Sprintf("usage says %d tokens, %s says %d", n, t.name, t.total)
			}
		}
	}
	if conflict != "" {
		why("%s", conflict)
		out = append(out, reasonConflict)
	}
	if st.ask.ignoreEOS && st.ask.requested > 0 && n < most {
		why("%d of %d tokens although the end token was to be ignored", n, most)
		out = append(out, reasonShort)
	}
	if c := st.cached().Or(0); st.ask.cold && c > 0 {
		why("%d prompt tokens came from a cache, a cold request was declared", c)
		out = append(out, reasonCached)
	}
	return out
}

// cached is how many prompt tokens came from a cache: usage says so, or llama.cpp's timings.
func (st *stream) cached() matrix.Opt[int64] {
	if st.counts.cached.Present() {
		return st.counts.cached
	}
	return st.cacheN
}

func (st *stream) flags(r response) []string {
	var out []string
	set := func(name string, on bool) {
		if on {
			out = append(out, name)
		}
	}
	n := st.counts.completion.Or(0)
	set(flagNoDone, !st.done && (st.ask.end == "" || st.ask.end == "done"))
	set(flagNoUsage, !st.counts.completion.Present())
	set(flagBOM, r.bom)
	set(flagBatched, n > 0 && st.tokenEvents > 0 && float64(st.tokenEvents)/float64(n) < batchedBelow)
	set(flagCached, st.cached().Or(0) > 0)
	set(flagTruncatedEvent, r.brokenEvent)
	set(flagAfterDone, st.afterDone > 0)
	set(flagLost, r.ending == EndEarly || r.ending == EndReset)
	return out
}

// message is what a body that is no event stream says: its error's message, else how it begins.
func (r response) message() string {
	if r.bodyError != nil {
		return failureMessage(r.bodyError)
	}
	return string(r.body[:min(len(r.body), 200)])
}

func prefixed(prefix, s string) string {
	if s = strings.TrimSpace(s); s == "" {
		return ""
	}
	return prefix + s
}
