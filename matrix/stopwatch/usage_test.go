package stopwatch

import (
	"strings"
	"testing"

	"enginebroker/matrix"
)

// Whatever stands where usage belongs, the request has one outcome, and its error says what was wrong. Four tokens were asked
// for under ignore_eos, from a cold server.
func TestUsage(t *testing.T) {
	tokens := strings.Repeat(tokenEvent("x"), 4) + finishEvent
	says := func(usage string) string {
		return tokens + `data: {"choices":[],"usage":` + usage + "}\n\n" + doneEvent
	}
	completion := func(n string) string { return says(`{"prompt_tokens":2,"completion_tokens":` + n + `}`) }
	const conflict, none, short, cached = "token_count_conflict", "no_usage", "short_output", "prefix_cache_hit"
	const noCount = "the usage that counts has no completion_tokens that is a whole number from 0"
	for _, c := range []struct {
		name, body string
		reasons    string // "": ok
		count      int64  // -1: none
		says       string // part of the error
	}{
		{"plain", completion("4"), "", 4, ""},
		{"a float", completion("4.0"), "", 4, ""},
		{"an exponent", completion("4e0"), "", 4, ""},
		{"an exponent below 0", completion("40E-1"), "", 4, ""},
		{"one thousand", completion("1e3"), conflict, 1000, "usage says 1000 tokens, asked for at most 4"},
		{"a fraction", completion("4.5"), none, -1, noCount},
		{"negative", completion("-4"), none, -1, noCount},
		{"a negative float", completion("-4.0"), none, -1, noCount},
		{"nought", completion("0"), short + "," + conflict, 0, "usage says 0 tokens, 4 events carried output"},
		{"nought below nought", completion("-0"), short + "," + conflict, 0, "usage says 0 tokens, 4 events carried output"},
		{"one too few", completion("3"), short, 3, "3 of 4 tokens"},
		{"one too many", completion("5"), conflict, 5, "usage says 5 tokens, asked for at most 4"},
		{"above 2^53", completion("9007199254740993"), conflict, 9007199254740993, "usage says 9007199254740993 tokens"},
		{"above 2^53 as a float", completion("9007199254740994.0"), none, -1, noCount},
		{"above 2^63", completion("9223372036854775808"), none, -1, noCount},
		{"above every float", completion("1e999"), none, -1, noCount},
		{"a string", completion(`"4"`), none, -1, noCount + `: {"prompt_tokens":2,"completion_tokens":"4"}`},
		{"null", completion("null"), none, -1, noCount},
		{"true", completion("true"), none, -1, noCount},
		{"a list", completion("[4]"), none, -1, noCount},
		{"an object", completion(`{"value":4}`), none, -1, noCount},
		{"no number", completion("04"), "malformed_event", -1, "is no JSON"},
		{"missing", says(`{"prompt_tokens":2,"total_tokens":6}`), none, -1, noCount},
		{"an empty usage", says("{}"), none, -1, noCount},
		{"usage null", says("null"), none, -1, "the server reported no usage"},
		{"usage a number", says("4"), none, -1, "the server reported no usage"},
		{"usage a string", says(`"4"`), none, -1, "the server reported no usage"},
		{"usage a list", says(`[{"completion_tokens":4}]`), none, -1, "the server reported no usage"},
		{"the count in a details object alone", says(`{"completion_tokens_details":{"completion_tokens":4}}`), none, -1, noCount},
		{"the count twice in one object", says(`{"completion_tokens":9,"completion_tokens":4}`), "", 4, ""},

		{"details that are null", says(`{"completion_tokens":4,"prompt_tokens_details":null,"completion_tokens_details":null}`), "", 4, ""},
		{"details of other types", says(`{"completion_tokens":4,"prompt_tokens_details":[{"cached_tokens":1}],"completion_tokens_details":7}`), "", 4, ""},
		{"cached as a float", says(`{"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":1.0}}`), cached, 4, "1 prompt tokens came from a cache"},
		{"cached as a string", says(`{"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":"1"}}`), "", 4, ""},
		{"cached negative", says(`{"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":-1}}`), "", 4, ""},
		{"cached one level too deep", says(`{"completion_tokens":4,"prompt_tokens_details":{"x":{"cached_tokens":1}}}`), "", 4, ""},
		{"more reasoning than tokens", says(`{"completion_tokens":4,"completion_tokens_details":{"reasoning_tokens":5e0}}`), conflict, 4, "5 reasoning tokens of 4"},
		{"reasoning at the top", says(`{"completion_tokens":4,"reasoning_tokens":5}`), conflict, 4, "5 reasoning tokens of 4"},

		{"two that are equal", tokens + usageEvent + usageEvent + doneEvent, "", 4, ""},
		{"two that differ, the last one right", tokens + strings.Replace(usageEvent, `:4`, `:3`, 1) + usageEvent + doneEvent, "", 4, ""},
		{"two that differ, the last one short", tokens + usageEvent + strings.Replace(usageEvent, `:4`, `:3`, 1) + doneEvent, short, 3, "3 of 4 tokens"},
		{"the last one without a count", tokens + usageEvent + `data: {"choices":[],"usage":{"prompt_tokens":2}}` + "\n\n" + doneEvent, none, -1, noCount},
		{"the last one null", tokens + usageEvent + `data: {"choices":[],"usage":null}` + "\n\n" + doneEvent, "", 4, ""},
		{"before the first token", usageEvent + tokens + doneEvent, "", 4, ""},
		{"after [DONE]", tokens + doneEvent + usageEvent, none, -1, "the server reported no usage"},
		{"another one after [DONE]", tokens + usageEvent + doneEvent + strings.Replace(usageEvent, `:4`, `:9`, 1), "", 4, ""},
		{"in the error alone", tokens + `data: {"error":{"message":"boom","usage":{"completion_tokens":4}}}` + "\n\n" + doneEvent, "inband_error", -1, "boom"},
		{"beside the error", tokens + `data: {"error":{"message":"boom"},"usage":{"completion_tokens":4}}` + "\n\n" + doneEvent, "inband_error", 4, "boom"},
		{"in an event that is cut", tokens + `data: {"choices":[],"usage":{"completion_tokens":4`, "truncated_stream", -1, "inside an event"},
	} {
		wire := answer([]byte(c.body))
		for _, size := range []int{len(wire), 1} {
			rec := recorded(wire, size, EndClean)
			rec.ExpectCold = true
			q := Reduce(rec, matrix.Dialect{}, matrix.Point{OutputTokens: 4, IgnoreEOS: true})[0]
			want := matrix.OutcomeSuspect
			switch c.reasons {
			case "":
				want = matrix.OutcomeOK
			case "malformed_event", "inband_error", "truncated_stream":
				want = matrix.OutcomeFailed
			}
			if got := strings.Join(q.Reasons, ","); q.Outcome != want || got != c.reasons || q.CompletionTokens.Or(-1) != c.count ||
				!strings.Contains(q.Error, c.says) || (q.Error == "") != (want == matrix.OutcomeOK) {
				t.Errorf("%s: %s %q, %d tokens (%s), want %s %q, %d (%s)", c.name, q.Outcome, got, q.CompletionTokens.Or(-1), q.Error, want, c.reasons, c.count, c.says)
			}
		}
	}
}
