package stopwatch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"enginebroker/matrix"
)

func corpusFiles(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/sse/s*.json")
	if err != nil || len(files) != 49 {
		t.Fatalf("the corpus has %d companions (%v), want 49", len(files), err)
	}
	return files
}

// Every stream of the corpus gives the expected record at its own segmentation; at one byte per segment and in one
// segment it gives the same but for timing.
func TestCorpus(t *testing.T) {
	for _, path := range corpusFiles(t) {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".json"), func(t *testing.T) {
			rec, err := ParseFile(t.Context(), path)
			if err != nil {
				t.Fatal(err)
			}
			check := func(name string, rec CorpusRecord, timing bool) {
				t.Helper()
				diff, err := rec.Differences()
				if err != nil {
					t.Fatal(err)
				}
				for _, d := range diff {
					if timing || !strings.HasPrefix(d, "timing") {
						t.Errorf("%s: %s", name, d)
					}
				}
			}
			check("own segments", rec, true)
			c, body, err := readCompanion(path)
			if err != nil {
				t.Fatal(err)
			}
			for name, cuts := range map[string][]int{"one byte per segment": everyByte(body), "one segment": nil} {
				rec, err := c.parse(t.Context(), body, cuts)
				if err != nil {
					t.Fatal(err)
				}
				check(name, rec, false)
			}
		})
	}
}

// The comparison notices each kind of difference.
func TestDifferences(t *testing.T) {
	rec, err := ParseFile(t.Context(), "testdata/sse/s01_plain.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ from, to, want string }{
		{`"comments": 0`, `"comments": 1`, "comments: expected 1, got 0"},
		{`"total_tokens": 14`, `"total_tokens": 15`, "usage.total_tokens: expected 15, got 14"},
		{`"done": true,`, ``, "done: the record has true, nothing is expected"},
		{`"done": true`, `"done": true, "extra": 1`, "extra: expected 1, the record has none"},
		{`"verdict": "ok"`, `"verdict": "suspect"`, `verdict: expected "suspect", got "ok"`},
		{`"per_token_itl_valid": true`, `"per_token_itl_valid": false`, "timing.per_token_itl_valid: expected false, got true"},
	} {
		other := rec
		other.expect = []byte(strings.Replace(string(rec.expect), c.from, c.to, 1))
		if string(other.expect) == string(rec.expect) {
			t.Fatalf("%q is not in the expectation", c.from)
		}
		got, err := other.Differences()
		if err != nil || !slices.Contains(got, c.want) {
			t.Errorf("%s → %s: got %q, %v, want %q", c.from, c.to, got, err, c.want)
		}
	}
}

// The record is written as the corpus writes it: the same members in the same order, but for free-text explanations.
func TestRecordJSON(t *testing.T) {
	free := regexp.MustCompile(`,"(why|tpot_rule|note)":"([^"\\]|\\.)*"`)
	compact := func(b []byte) string {
		var out bytes.Buffer
		if err := json.Compact(&out, b); err != nil {
			t.Fatal(err)
		}
		return free.ReplaceAllString(out.String(), "")
	}
	for _, path := range corpusFiles(t) {
		rec, err := ParseFile(t.Context(), strings.TrimSuffix(path, ".json")+".txt")
		if err != nil {
			t.Fatal(err)
		}
		own, err := rec.JSON()
		if err != nil {
			t.Fatal(err)
		}
		if got, want := compact(own), compact(rec.expect); got != want {
			t.Errorf("%s: got %.600s\nwant %.600s", rec.ID(), got, want)
		}
	}
}

// A body that is a pipe is refused without waiting for its other end, and so is a companion.
func TestParseFileOfPipes(t *testing.T) {
	good, err := os.ReadFile("testdata/sse/s01_plain.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, pipe := range []string{"s01_plain.txt", "s01_plain.json"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "s01_plain.json"), good, 0o600); err != nil {
			t.Fatal(err)
		}
		_ = os.Remove(filepath.Join(dir, pipe))
		if err := syscall.Mkfifo(filepath.Join(dir, pipe), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ParseFile(t.Context(), filepath.Join(dir, "s01_plain.json")); err == nil || !strings.Contains(err.Error(), pipe+": a named pipe is no regular file") {
			t.Errorf("%s is a pipe: %v", pipe, err)
		}
	}
}

// Parsing ends with its context.
func TestParseFileCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ParseFile(ctx, "testdata/sse/s01_plain.json"); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// What several choices come to, by the n that was asked for.
func TestChoices(t *testing.T) {
	piece := func(i int, text, end string) string {
		finish := "null"
		if end != "" {
			finish = strconv.Quote(end)
		}
		return fmt.Sprintf(`data: {"choices":[{"index":%d,"delta":{"content":%q},"finish_reason":%s}]}`+"\n\n", i, text, finish)
	}
	usage := `data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}` + "\n\n"
	for _, c := range []struct {
		name    string
		n       int64
		body    string
		verdict matrix.Outcome
		reasons string
	}{
		{"both end", 2, piece(0, "a", "stop") + piece(1, "b", "stop") + usage + doneEvent, "ok", ""},
		{"one never ends", 2, piece(0, "a", "stop") + piece(1, "b", "") + usage + doneEvent, "suspect", "no_finish_reason"},
		{"one never ends, nor does the stream", 2, piece(0, "a", "stop") + piece(1, "b", "") + usage, "failed", "truncated_stream"},
		{"one never comes", 2, piece(0, "a", "") + piece(0, "b", "stop") + usage + doneEvent, "suspect", "no_finish_reason"},
		{"one ends twice", 2, piece(0, "a", "stop") + piece(0, "b", "stop") + usage + doneEvent, "suspect", "no_finish_reason"},
		{"one too many", 1, piece(0, "a", "stop") + piece(1, "b", "stop") + usage + doneEvent, "failed", "unasked_choice"},
		{"another one", 1, piece(1, "a", "") + piece(1, "b", "stop") + usage, "failed", "truncated_stream,unasked_choice"},
		{"a negative one", 1, piece(0, "a", "") + piece(-1, "", "") + piece(0, "b", "stop") + usage + doneEvent, "failed", "unasked_choice"},
	} {
		k := companion{Endpoint: "chat"}
		k.HTTP.Status, k.HTTP.Headers = 200, map[string]string{"content-type": "text/event-stream"}
		k.Request.N, k.Request.MaxTokens = c.n, 4
		rec, err := k.parse(t.Context(), []byte(c.body), nil)
		if err != nil || rec.Verdict != c.verdict || strings.Join(rec.Reasons, ",") != c.reasons {
			t.Errorf("%s: %s %v, %v, want %s %s", c.name, rec.Verdict, rec.Reasons, err, c.verdict, c.reasons)
		}
	}
}

// What is wrong with the files is an error with the file and the member.
func TestParseFileErrors(t *testing.T) {
	good, err := os.ReadFile("testdata/sse/s01_plain.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ from, to, want string }{
		{`"s01_plain.txt"`, `"../s01_plain.txt"`, "body"},
		{`"s01_plain.txt"`, `"missing.txt"`, "missing.txt"},
		{`"status": 200`, `"status": 0`, "http.status"},
		{`"endpoint": "chat"`, `"endpoint": "embeddings"`, "endpoint"},
		{`"end": "clean"`, `"end": "abrupt"`, "transport.end"},
		{`"segments": null`, `"segments": [5, 3]`, "transport.segments"},
		{`"segments": null`, `"segments": [999999]`, "transport.segments"},
		{`"segments": null`, `"segments": "often"`, "transport.segments"},
		{`{`, `[`, "x.json"},
		{`"max_tokens": 16`, `"n": 9223372036854775807`, "request.n 9223372036854775807 is not in 1..1024"},
		{`"max_tokens": 16`, `"n": -1`, "request.n"},
		{`"max_tokens": 16`, `"max_tokens": 9223372036854775807`, "request.max_tokens"},
		{`"request": {`, `"endpoint": "sglang_native", "request": {"n": 2,`, "request.n 2: sglang_native has one choice"},
		{`"expect": {`, `"expect": "x", "ignored": {`, "expect must be an object"},
	} {
		dir := t.TempDir()
		changed := strings.Replace(string(good), c.from, c.to, 1)
		if changed == string(good) {
			t.Fatalf("%s is not in the companion", c.from)
		}
		for name, b := range map[string]string{"x.json": changed, "s01_plain.txt": "data: [DONE]\n\n"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(b), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := ParseFile(t.Context(), filepath.Join(dir, "x.json")); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s → %s: %v, want %q", c.from, c.to, err, c.want)
		}
	}
	if _, err := ParseFile(t.Context(), filepath.Join(t.TempDir(), "none.txt")); err == nil {
		t.Error("a stream without a companion was parsed")
	}
}
