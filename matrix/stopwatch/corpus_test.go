package stopwatch

import (
	"path/filepath"
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
