package stopwatch

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
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
			rec, err := ParseFile(path)
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
			check("one byte per segment", c.parse(body, everyByte(body)), false)
			check("one segment", c.parse(body, nil), false)
		})
	}
}

// The comparison notices each kind of difference.
func TestDifferences(t *testing.T) {
	rec, err := ParseFile("testdata/sse/s01_plain.json")
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
		rec, err := ParseFile(strings.TrimSuffix(path, ".json") + ".txt")
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
		if _, err := ParseFile(filepath.Join(dir, "x.json")); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s → %s: %v, want %q", c.from, c.to, err, c.want)
		}
	}
	if _, err := ParseFile(filepath.Join(t.TempDir(), "none.txt")); err == nil {
		t.Error("a stream without a companion was parsed")
	}
}
