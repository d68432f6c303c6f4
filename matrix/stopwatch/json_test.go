package stopwatch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"enginebroker/matrix"
)

// Every pair of bytes at every distance from the start and from the end: the second one of a pair may lie above a borrow.
func TestPlainCountsBytesThatStandForThemselves(t *testing.T) {
	itself := func(c byte) bool { return c >= ' ' && c < 0x80 && c != '"' && c != '\\' }
	for length := range 18 {
		b := bytes.Repeat([]byte{'a'}, length)
		for at := range length {
			for pair := range 1 << 16 {
				b[at] = byte(pair)
				if at+1 < length {
					b[at+1] = byte(pair >> 8)
				} else if pair > 0xff {
					break
				}
				want := length
				if !itself(b[at]) {
					want = at
				} else if at+1 < length && !itself(b[at+1]) {
					want = at + 1
				}
				if got := plain(b); got != want {
					t.Fatalf("plain(%q) = %d, want %d", b, got, want)
				}
			}
			b[at] = 'a'
			if at+1 < length {
				b[at+1] = 'a'
			}
		}
	}
}

// summary is what chunk says of an event, in words that encoding/json can produce as well.
func (c *chunk) summary() string {
	var b strings.Builder
	str := func(name string, t text) {
		if t.set {
			fmt.Fprintf(&b, "%s=%q ", name, unquote(nil, t))
		}
	}
	num := func(name string, n matrix.Opt[int64]) {
		if v, ok := n.Get(); ok {
			fmt.Fprintf(&b, "%s=%d ", name, v)
		}
	}
	fmt.Fprintf(&b, "choices=%v stop=%v error=%v usage=%v ", c.hasChoices, c.stop, c.failure != nil, c.usage != nil)
	str("model", c.model)
	str("fingerprint", c.fingerprint)
	num("ids", c.ids)
	num("predicted", c.predicted)
	num("evaluated", c.evaluated)
	if c.usage != nil {
		num("prompt", c.counts.prompt)
		num("completion", c.counts.completion)
		num("cached", c.counts.cached)
	}
	for _, x := range c.choices {
		fmt.Fprintf(&b, "[index=%d role=%v ", x.index, x.role)
		str("text", x.content)
		if !x.reasoning.empty() {
			str("reasoning", x.reasoning)
		}
		str("finish", x.finish)
		num("ids", x.ids)
		b.WriteString("]")
	}
	return b.String()
}

// reference is the same summary, made from what encoding/json decodes.
func reference(v any) string {
	m, ok := v.(map[string]any)
	if !ok {
		m = map[string]any{}
	}
	var b strings.Builder
	str := func(name string, v any) {
		if s, ok := v.(string); ok {
			fmt.Fprintf(&b, "%s=%q ", name, s)
		}
	}
	num := func(name string, v any) {
		if n, ok := whole(v); ok && n >= 0 {
			fmt.Fprintf(&b, "%s=%d ", name, n)
		}
	}
	object := func(v any) map[string]any { o, _ := v.(map[string]any); return o }
	choices, _ := m["choices"].([]any)
	stop, _ := m["stop"].(bool)
	failed := m["object"] == "error"
	switch m["error"].(type) {
	case string, map[string]any:
		failed = true
	}
	usage, hasUsage := m["usage"].(map[string]any)
	fmt.Fprintf(&b, "choices=%v stop=%v error=%v usage=%v ", len(choices) > 0, stop, failed, hasUsage)
	str("model", m["model"])
	str("fingerprint", m["system_fingerprint"])
	tokens, ok := m["tokens"].([]any)
	if ids, has := m["output_ids"].([]any); has && !ok {
		tokens, ok = ids, true
	}
	if ok {
		fmt.Fprintf(&b, "ids=%d ", len(tokens))
	}
	if n, ok := whole(m["tokens_predicted"]); ok && n >= 0 {
		num("predicted", json.Number(strconv.FormatInt(n, 10)))
	} else {
		num("predicted", object(m["timings"])["predicted_n"])
	}
	num("evaluated", m["tokens_evaluated"])
	if hasUsage {
		num("prompt", usage["prompt_tokens"])
		num("completion", usage["completion_tokens"])
		num("cached", object(usage["prompt_tokens_details"])["cached_tokens"])
	}
	for _, c := range choices {
		x, ok := c.(map[string]any)
		if !ok {
			continue
		}
		delta := object(x["delta"])
		index, _ := whole(x["index"])
		_, role := delta["role"].(string)
		fmt.Fprintf(&b, "[index=%d role=%v ", index, role)
		content := delta["content"]
		if _, ok := content.(string); !ok {
			content = x["text"]
		}
		str("text", content)
		reasoning := delta["reasoning_content"]
		if s, ok := reasoning.(string); !ok || s == "" {
			reasoning = delta["reasoning"]
		}
		if s, ok := reasoning.(string); ok && s != "" {
			str("reasoning", s)
		}
		str("finish", x["finish_reason"])
		if ids, ok := x["token_ids"].([]any); ok {
			fmt.Fprintf(&b, "ids=%d ", len(ids))
		}
		b.WriteString("]")
	}
	return b.String()
}

// whole reads an integer below 2^53 from a number.
func whole(v any) (int64, bool) {
	n, ok := v.(json.Number)
	if !ok {
		return 0, false
	}
	f, err := n.Float64()
	if err != nil || f != float64(int64(f)) || f > 1<<53 || f < -1<<53 {
		return 0, false
	}
	return int64(f), true
}

// decode is encoding/json's view, and whether the text says each key once and each number below 2^53: elsewhere the two
// may differ, as JSON does not say which of two equal keys counts.
func decodeOnce(b []byte) (v any, comparable bool) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	if dec.Decode(&v) != nil {
		return nil, false
	}
	dec = json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	comparable = true
	var walk func()
	walk = func() {
		t, err := dec.Token()
		if err != nil {
			return
		}
		if n, ok := t.(json.Number); ok {
			if f, err := n.Float64(); err != nil || f > 1<<53 || f < -1<<53 {
				comparable = false
			}
		}
		switch t {
		case json.Delim('{'):
			seen := map[string]bool{}
			for dec.More() {
				k, _ := dec.Token()
				key, _ := k.(string)
				if seen[key] {
					comparable = false
				}
				seen[key] = true
				walk()
			}
			_, _ = dec.Token()
		case json.Delim('['):
			for dec.More() {
				walk()
			}
			_, _ = dec.Token()
		}
	}
	walk()
	return v, comparable
}

func checkJSON(t *testing.T, event []byte) {
	t.Helper()
	var c chunk
	ok := c.parse(&scanner{}, event)
	if valid := json.Valid(event); ok != valid {
		t.Fatalf("%q: parsed %v, encoding/json says valid %v", event, ok, valid)
	}
	if !ok {
		return
	}
	v, comparable := decodeOnce(event)
	m, _ := v.(map[string]any)
	_, choiceText := m["choices"].([]any)
	_, both := m["output_ids"]
	if _, also := m["tokens"]; !comparable || choiceText && mixed(m) || both && also {
		return
	}
	if got, want := c.summary(), reference(v); got != want {
		t.Fatalf("%q:\n got %s\nwant %s", event, got, want)
	}
}

// mixed reports a choice with both a text and a delta: no engine sends both, and the later one counts.
func mixed(m map[string]any) bool {
	choices, _ := m["choices"].([]any)
	for _, c := range choices {
		x, _ := c.(map[string]any)
		_, a := x["text"]
		d, _ := x["delta"].(map[string]any)
		_, b := d["content"]
		if a && b {
			return true
		}
	}
	return false
}

// The locator agrees with encoding/json on every event of the corpus and the captures, and on what is no JSON.
func TestJSONAgainstEncodingJSON(t *testing.T) {
	for _, event := range corpusEvents(t) {
		checkJSON(t, event)
	}
	for _, s := range []string{"", " ", "null", "nul", "nulll", "1", "-", "-0", "01", "1.", ".5", "1e", "1e+", "1E5", "1.5e-3", `"`, `"a`, `"\`, `"\x"`, `"\u12"`,
		`"\u12G4"`, `"\ud83d\ude00"`, `"\ud83d"`, `"\ud83dx"`, "\"\x01\"", "\"\x7f\xff\xc3\"", "{", "}", "{}", "{,}", `{"a"}`, `{"a":}`, `{"a":1,}`, `{"a":1}}`,
		"[", "[]", "[,]", "[1,]", "[1 2]", `{"choices":[]}`, `{"choices":{}}`, `{"choices":[1,null,{"delta":[]}]}`, `{"usage":[]}`, `{"usage":{"completion_tokens":5.0}}`,
		`{"usage":{"completion_tokens":5.5}}`, `{"usage":{"completion_tokens":"5"}}`, `{"usage":{"completion_tokens":-5}}`, `{"usage":{"prompt_tokens_details":null}}`, `{"cho\u0069ces":[{"text":"x"}]}`,
		`{"error":null}`, `{"error":false}`, `{"error":""}`, `{"error":{}}`, `{"object":"error"}`, `true`, `tru`, ` {"stop" : true } `, "\ufeff{}",
		strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth), strings.Repeat("[", maxDepth+1) + strings.Repeat("]", maxDepth+1)} {
		checkJSON(t, []byte(s))
	}
}

// corpusEvents are the data of every event in the corpus and the captures.
func corpusEvents(t testing.TB) [][]byte {
	t.Helper()
	var out [][]byte
	for _, path := range corpusFiles(t) {
		c, body, err := readCompanion(path)
		if err != nil {
			t.Fatal(err)
		}
		if c.ID != "s38_line_300k" && c.ID != "s37_line_70k" { // too long for a seed
			out = append(out, frame(body, len(body)+1)...)
		}
	}
	for _, name := range []string{"llamacpp/native-stream", "sglang/native-stream", "vllm/completions-stream-continuous-ids", "llamacpp/chat-stream"} {
		b, err := os.ReadFile("testdata/captures/" + name + ".http")
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, frame(dechunk(b, len(b)), 1<<20)...)
	}
	return out
}

func FuzzJSON(f *testing.F) {
	for _, event := range corpusEvents(f) {
		f.Add(event)
	}
	f.Fuzz(func(t *testing.T, event []byte) { checkJSON(t, event) })
}
