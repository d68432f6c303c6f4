package stopwatch

import (
	"bytes"
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"

	"enginebroker/matrix"
)

// answer wraps a body as a close-delimited event stream.
func answer(body []byte) []byte {
	return append([]byte("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"), body...)
}

var ending = []byte(finishEvent + usageEvent + doneEvent)

// A million events in one segment are read, one by one.
func TestMillionEventsInOneSegment(t *testing.T) {
	const n = 1_000_000
	usage := fmt.Appendf(nil, `data: {"choices":[],"usage":{"completion_tokens":%d}}`+"\n\n"+doneEvent, n)
	body := append(bytes.Repeat([]byte(`data: {"choices":[{"text":"x"}]}`+"\n\n"), n), append([]byte(finishEvent), usage...)...)
	wire := answer(body)
	q := Reduce(recorded(wire, len(wire), EndClean), matrix.Dialect{}, matrix.Point{OutputTokens: n, IgnoreEOS: true})[0]
	if q.Outcome != matrix.OutcomeOK || q.TokenEvents != n || len(q.Stream) != n+4 {
		t.Errorf("%s %v, %d events with output, %d elements", q.Outcome, q.Reasons, q.TokenEvents, len(q.Stream))
	}
}

// Above a stated cap an answer has failed for that reason, and memory stays bounded.
func TestCaps(t *testing.T) {
	long := func(n int) []byte {
		return append(fmt.Appendf(nil, `data: {"choices":[{"text":"%s"}]}`+"\n\n", strings.Repeat("x", n)), ending...)
	}
	for _, c := range []struct {
		name   string
		body   []byte
		reason string
	}{
		{"an event of 17 MiB", long(17 << 20), ""},
		{"an event above the cap", long(maxEvent + 1), "event_too_large"},
		{"events above the cap", append(bytes.Repeat([]byte("data:1\n\n"), maxEvents+1), ending...), "too_many_events"},
	} {
		wire := answer(c.body)
		q := Reduce(recorded(wire, maxRead, EndClean), matrix.Dialect{}, matrix.Point{OutputTokens: 4})[0]
		if (q.Outcome == matrix.OutcomeOK) != (c.reason == "") || !strings.Contains(strings.Join(q.Reasons, ","), c.reason) || q.Events > maxEvents {
			t.Errorf("%s: %s %v (%s), %d events", c.name, q.Outcome, q.Reasons, q.Error, q.Events)
		}
	}
}

// A server that sends without end and without a newline is cut off at the response cap.
func TestEndlessLine(t *testing.T) {
	piece := strings.Repeat("x", 1<<20)
	d := serve(t, func(c net.Conn, _ int, _ string) bool {
		if !send(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: ") {
			return false
		}
		for send(c, piece) {
		}
		return false
	})
	rec, reqs := runOnce(t, d, Job{Point: toyPoint(1), Prompts: prompts(1)})
	held := 0
	for _, b := range rec.Exchanges[0].Wire {
		held += cap(b)
	}
	if q := reqs[0]; !strings.Contains(strings.Join(q.Reasons, ","), "response_too_large") || int64(held) > responseCap(d, toyPoint(1))+2*maxBlock {
		t.Errorf("%s %v (%s), %d bytes held", q.Outcome, q.Reasons, q.Error, held)
	}
}

// SGLang's own form says with an object that it gave a request up.
func TestNativeAbort(t *testing.T) {
	body := `data: {"text":"ab","meta_info":{"prompt_tokens":2,"completion_tokens":2,"finish_reason":{"type":"abort","message":"boom","status_code":500}}}` + "\n\n" + doneEvent
	wire := answer([]byte(body))
	q := Reduce(recorded(wire, len(wire), EndClean), matrix.Dialect{Form: "sglang_native", Cumulative: true}, matrix.Point{OutputTokens: 4})[0]
	if q.Outcome != matrix.OutcomeFailed || strings.Join(q.Reasons, ",") != "inband_error" || q.Error != "boom" {
		t.Errorf("%s %v (%s)", q.Outcome, q.Reasons, q.Error)
	}
}

// Rules that no stream of the corpus shows.
func TestRules(t *testing.T) {
	tokens := strings.Repeat(tokenEvent("x"), 4)
	for _, c := range []struct {
		name, body     string
		ending         Ending
		outcome        matrix.Outcome
		reasons, flags string
	}{
		{"no blank line after [DONE]", tokens + finishEvent + usageEvent + "data: [DONE]\n", EndClean, "failed", "truncated_stream", "no_done,truncated_event"},
		{"lost after the usage", tokens + finishEvent + usageEvent, EndReset, "ok", "", "connection_lost,no_done"},
		{"lost before the usage", tokens + finishEvent, EndReset, "suspect", "no_usage", "connection_lost,no_done,no_usage"},
		{"output after [DONE]", tokens + finishEvent + usageEvent + doneEvent + tokenEvent("y"), EndClean, "ok", "", "events_after_done"},
		{"error after [DONE]", tokens + finishEvent + usageEvent + doneEvent + "data: {\"error\":\"late\"}\n\n", EndClean, "failed", "inband_error", "events_after_done"},
		{"data: null first", "data: null\n\n" + tokens + string(ending), EndClean, "ok", "", ""},
		{"old llama.cpp error field", tokens + "error: {\"code\":500}\n\n", EndClean, "failed", "truncated_stream", "no_done,no_usage"},
		{"fingerprint changes", tokens + strings.ReplaceAll(finishEvent, `"model"`, `"system_fingerprint":"a","model"`) + strings.ReplaceAll(usageEvent, `"model"`, `"system_fingerprint":"b","model"`) + doneEvent,
			EndClean, "failed", "identity_mismatch", ""},
		{"ids disagree with usage", strings.ReplaceAll(tokens, `"finish_reason":null`, `"token_ids":[1,2]`) + string(ending), EndClean, "suspect", "token_count_conflict", ""},
		{"a running count that falls", strings.ReplaceAll(tokenEvent("x"), `"choices"`, `"usage":{"completion_tokens":3},"choices"`) +
			strings.ReplaceAll(tokenEvent("x"), `"choices"`, `"usage":{"completion_tokens":2},"choices"`) +
			strings.ReplaceAll(tokenEvent("x"), `"choices"`, `"usage":{"completion_tokens":4},"choices"`) + string(ending), EndClean, "suspect", "token_count_conflict", ""},
		{"an error that is a number", tokens + "data: {\"error\":500}\n\n" + string(ending), EndClean, "failed", "inband_error", ""},
		{"an error that is true", tokens + "data: {\"error\":true,\"message\":\"x\"}\n\n" + string(ending), EndClean, "failed", "inband_error", ""},
		{"an error that is a list", tokens + "data: {\"error\":[\"x\"]}\n\n" + string(ending), EndClean, "failed", "inband_error", ""},
		{"no error", tokens + "data: {\"error\":null}\n\ndata: {\"error\":false}\n\n" + string(ending), EndClean, "ok", "", ""},
		{"an error of the choice", strings.Replace(tokens, `"finish_reason"`, `"error":{"message":"x"},"finish_reason"`, 1) + string(ending), EndClean, "failed", "inband_error", ""},
		{"an event named error", tokens + "event: error\ndata: {\"message\":\"x\",\"code\":500}\n\n" + string(ending), EndClean, "failed", "inband_error", ""},
		{"an event named error after its data", tokens + "data: {\"code\":500}\nevent:error\n\n" + string(ending), EndClean, "failed", "inband_error", ""},
		{"an event named error that is text", tokens + "event: error\ndata: out of memory\n\n" + string(ending), EndClean, "failed", "inband_error,malformed_event", ""},
		{"an event named twice", "event: error\nevent: message\n" + tokens + string(ending), EndClean, "ok", "", ""},
		{"a name without data names nothing", "event: error\n\n" + tokens + string(ending), EndClean, "ok", "", ""},
		{"aborted", tokens + strings.Replace(finishEvent, "length", "abort", 1) + usageEvent + doneEvent, EndClean, "failed", "inband_error", ""},
		{"ended by an error", tokens + strings.Replace(finishEvent, "length", "error", 1) + usageEvent + doneEvent, EndClean, "failed", "inband_error", ""},
		{"another choice", tokens + strings.Replace(tokenEvent(""), `"index":0`, `"index":1`, 1) + string(ending), EndClean, "failed", "unasked_choice", ""},
		{"malformed and an error", "data: {\n\n" + tokens + "data: {\"error\":\"x\"}\n\n", EndClean, "failed", "inband_error,malformed_event", "no_done,no_usage"},
	} {
		d := matrix.Dialect{RunningUsage: true, Sources: []matrix.TokenSource{{Name: "token_ids", Kind: matrix.CountExact}, {Name: "running_usage", Kind: matrix.CountCumulative}}}
		wire := answer([]byte(c.body))
		for _, size := range []int{len(wire), 1} {
			q := Reduce(recorded(wire, size, c.ending), d, matrix.Point{OutputTokens: 4, IgnoreEOS: true})[0]
			if q.Outcome != c.outcome || strings.Join(q.Reasons, ",") != c.reasons || strings.Join(streamFlags(q), ",") != c.flags {
				t.Errorf("%s: %s %v %v (%s), want %s %s %s", c.name, q.Outcome, q.Reasons, streamFlags(q), q.Error, c.outcome, c.reasons, c.flags)
			}
		}
	}
}

// One token in two events, held text and events without text: with and without a source that counts along, usage is believed
// and the number of events is not. Where the source counts a token that usage does not, the stream is in doubt.
func TestEventsAreNoCount(t *testing.T) {
	delta := func(fields string, ids ...string) string {
		return `data: {"choices":[{"index":0,"delta":{` + fields + `},"finish_reason":null,"token_ids":[` + strings.Join(ids, ",") + "]}]}\n\n"
	}
	end := func(fields string, ids ...string) string {
		return strings.Replace(delta(fields, ids...), `"finish_reason":null`, `"finish_reason":"length"`, 1) + usageEvent + doneEvent
	}
	text := func(s string) string { return `"content":"` + s + `"` }
	role := delta(`"role":"assistant","content":""`)
	for _, c := range []struct {
		name, body string
		events     int // that carry output; usage says 4
		reason     string
	}{
		{"role, then text", role + delta(text("a"), "1") + delta(text("b"), "2") + delta(text("c"), "3") + delta(text("d"), "4") + end(text("")), 4, ""},
		{"role and the first text in one", delta(`"role":"assistant",`+text("a"), "1") + delta(text("b"), "2") + delta(text("c"), "3") + end(text("d"), "4"), 4, ""},
		{"text without tokens between", delta(text("a"), "1") + delta(text("")) + delta(text("b"), "2") + delta(text("c"), "3") + delta(text("d"), "4") + end(text("")), 4, ""},
		{"reasoning and answer of one token in two events", delta(`"reasoning":"a"`, "1") + delta(`"reasoning":"b"`, "2") + delta(text("c")) + delta(text("d"), "3") + delta(text("e"), "4") + end(""), 5, ""},
		{"both in one event", delta(`"reasoning":"a"`, "1") + delta(`"reasoning":"b",`+text("c"), "2") + delta(text("d"), "3") + delta(text("e"), "4") + end(""), 4, ""},
		{"every token in two pieces", delta(text("a"), "1") + delta(text("b")) + delta(text("c"), "2") + delta(text("d")) + delta(text("e"), "3") + delta(text("f")) + delta(text("g"), "4") + end(text("h")), 8, ""},
		{"held text comes with the next token", delta(text("a"), "1") + delta(text(""), "2") + delta(text("ü"), "3") + end(text("d"), "4"), 3, ""},
		{"held text comes with the finish", delta(text("a"), "1") + delta(text("b"), "2") + delta(text("c"), "3") + delta(text(""), "4") + end(text(`\ufffd`)), 4, ""},
		{"held text comes on its own after the last token", delta(text("a"), "1") + delta(text("b"), "2") + delta(text("c"), "3") + delta(text("d"), "4") + delta(text("!")) + end(text("")), 5, ""},
		{"a fifth token", delta(text("a"), "1") + delta(text("b"), "2") + delta(text("c"), "3") + delta(text("d"), "4") + delta(text("e"), "5") + end(text("")), 5, "token_count_conflict"},
	} {
		for _, exact := range []bool{true, false} {
			d, body, want := matrix.Dialect{Sources: []matrix.TokenSource{{Name: "token_ids", Kind: matrix.CountExact}}}, c.body, c.reason
			if !exact { // the same answer of an engine that sends no ids: nothing tells the fifth token from a piece
				d, body, want = matrix.Dialect{}, idsMember.ReplaceAllString(body, ""), ""
			}
			wire := answer([]byte(body))
			q := Reduce(recorded(wire, len(wire), EndClean), d, matrix.Point{OutputTokens: 4, IgnoreEOS: true})[0]
			if got := strings.Join(q.Reasons, ","); got != want || q.TokenEvents != c.events || q.CompletionTokens.Or(-1) != 4 {
				t.Errorf("%s, ids %v: %s %q (%s), %d events, want %q and %d", c.name, exact, q.Outcome, got, q.Error, q.TokenEvents, want, c.events)
			}
		}
	}
}

var idsMember = regexp.MustCompile(`,"token_ids":\[[^]]*\]`)
