package workload_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"enginebroker/matrix"
	"enginebroker/matrix/workload"
)

// Tokenizers with the habits of real ones.
var tokenizers = map[string]func(string) ([]int, error){
	"one token per word, BOS before": func(s string) ([]int, error) {
		ids := []int{1}
		for _, w := range strings.Fields(s) {
			ids = append(ids, code(w))
		}
		return ids, nil
	},
	"bytes": func(s string) ([]int, error) {
		ids := make([]int, len(s))
		for i := range len(s) {
			ids[i] = int(s[i])
		}
		return ids, nil
	},
	"three letters a token": func(s string) ([]int, error) {
		var ids []int
		for _, w := range strings.Fields(s) {
			for ; len(w) > 3; w = w[3:] {
				ids = append(ids, code(w[:3]))
			}
			ids = append(ids, code(w))
		}
		return ids, nil
	},
	// Words of three letters and the next one melt together, so the sum of words predicts too much.
	"merges across words": func(s string) ([]int, error) {
		var ids []int
		fields := strings.Fields(s)
		for i := 0; i < len(fields); i++ {
			ids = append(ids, code(fields[i]))
			if len(fields[i]) == 3 && fields[i] != "one" {
				i++
			}
		}
		return ids, nil
	},
}

func code(w string) int {
	n := 0
	for _, r := range w {
		n = n*31 + int(r)
	}
	return n
}

func spec() workload.Spec {
	return workload.Spec{Seed: 7, Superblocks: 2, Repetitions: 2, Tokenizer: workload.Tokenizer{Name: "test"}, Parts: []workload.Part{
		{Point: "c1", PromptTokens: 64, Requests: 4, Warmup: 1}, {Point: "c8", PromptTokens: 129, Requests: 6, Warmup: 2},
	}}
}

func built(t *testing.T, s workload.Spec, tokenize func(string) ([]int, error)) *workload.Corpus {
	t.Helper()
	c, err := workload.Build(s, tokenize)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// all walks every prompt a corpus gives out, by asking for it.
func all(t *testing.T, c *workload.Corpus, yield func(workload.Part, workload.Prompt)) {
	t.Helper()
	s := c.Manifest.Spec
	for _, p := range s.Parts {
		for sb := range s.Superblocks {
			for _, block := range []int{workload.LeadIn(sb), 2 * sb, 2*sb + 1} {
				for rep := workload.WarmUp; rep < s.Repetitions && (rep < 1 || block >= 0); rep++ {
					n := p.Requests
					if rep == workload.WarmUp {
						n = p.Warmup
					}
					prompts, err := c.Take(block, p.Point, rep, n)
					if err != nil {
						t.Fatal(err)
					}
					for _, x := range prompts {
						yield(p, x)
					}
				}
			}
		}
	}
}

func TestEveryPromptHasExactlyItsTokensAndIsNew(t *testing.T) {
	for name, tokenize := range tokenizers {
		s := spec()
		s.KeepIDs = true
		c := built(t, s, tokenize)
		texts, ids := map[string]bool{}, map[string]bool{}
		all(t, c, func(p workload.Part, x workload.Prompt) {
			got, err := tokenize(x.Text)
			if n, ok := x.Tokens.Get(); err != nil || !ok || n != p.PromptTokens || len(got) != n || !cmp.Equal(got, x.IDs) {
				t.Errorf("%s: %s has %d tokens by its tokenizer, says %d, asked for %d", name, x.ID, len(got), n, p.PromptTokens)
			}
			texts[x.Text], ids[x.ID] = true, true
		})
		// per point: 2 superblocks of one lead-in (warm-up and one repetition) and two blocks (warm-up and two)
		want := 2*((1+4)+2*(1+8)) + 2*((2+6)+2*(2+12))
		if len(texts) != want || len(ids) != want || c.Manifest.Prompts != want {
			t.Errorf("%s: %d texts, %d ids, %d in the manifest; want %d of each", name, len(texts), len(ids), c.Manifest.Prompts, want)
		}
		if c.Identity() != c.Manifest.SHA256 || !c.Manifest.Exact {
			t.Errorf("%s: identity %s, manifest %+v", name, c.Identity(), c.Manifest)
		}
	}
}

func TestBuildIsDeterministicAndGrowsAtItsEnd(t *testing.T) {
	tokenize := tokenizers["three letters a token"]
	write := func(s workload.Spec) string {
		var b bytes.Buffer
		if err := built(t, s, tokenize).Write(&b); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	first, again := write(spec()), write(spec())
	if first != again {
		t.Error("equal specs give different files")
	}
	other := spec()
	other.Seed++
	if write(spec()) == write(other) {
		t.Error("another seed gives the same file")
	}
	more := spec()
	more.Superblocks = 3
	small, large := built(t, spec(), tokenize), built(t, more, tokenize)
	all(t, small, func(p workload.Part, x workload.Prompt) {
		part := strings.Split(x.ID, "/")[1]
		if part != "b1r1" {
			return
		}
		same, err := large.Take(1, p.Point, 1, p.Requests)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, y := range same {
			found = found || cmp.Equal(x, y, cmp.AllowUnexported(x.Tokens))
		}
		if !found {
			t.Errorf("%s changed when the corpus grew", x.ID)
		}
	})
}

func TestFewCallsOfTheTokenizer(t *testing.T) {
	calls := 0
	c, err := workload.Build(spec(), func(s string) ([]int, error) { calls++; return tokenizers["three letters a token"](s) })
	if err != nil {
		t.Fatal(err)
	}
	if calls > 700+c.Manifest.Prompts {
		t.Errorf("%d calls for %d prompts: more than the word list once and each prompt once", calls, c.Manifest.Prompts)
	}
}

func TestSharedPrefix(t *testing.T) {
	for name, tokenize := range tokenizers {
		if name == "merges across words" {
			continue // the last word of a head may melt with the next: no head of its own tokens
		}
		s := spec()
		s.Parts = []workload.Part{{Point: "shared", PromptTokens: 96, SharedPrefix: 64, Requests: 8, Warmup: 2}}
		c := built(t, s, tokenize)
		var head []int
		all(t, c, func(_ workload.Part, x workload.Prompt) {
			ids, _ := tokenize(x.Text)
			if head == nil {
				head = ids[:64]
			}
			if len(ids) != 96 || !cmp.Equal(ids[:64], head) {
				t.Errorf("%s: %s does not share its first 64 of 96 tokens", name, x.ID)
			}
		})
	}
}

func TestWithoutATokenizerNothingIsCounted(t *testing.T) {
	s := spec()
	s.Tokenizer = workload.Tokenizer{}
	c := built(t, s, nil)
	all(t, c, func(p workload.Part, x workload.Prompt) {
		if x.Tokens.Present() {
			t.Errorf("%s claims a count nobody made", x.ID)
		}
		if n := len(strings.Fields(x.Text)); n != p.PromptTokens {
			t.Errorf("%s has %d words for about %d tokens", x.ID, n, p.PromptTokens)
		}
	})
	var file bytes.Buffer
	if err := c.Write(&file); err != nil {
		t.Fatal(err)
	}
	if back, err := open(file.Bytes()); err != nil || back.Identity() != c.Identity() {
		t.Errorf("prompts that are drawn again are others: %v", err)
	}
	if !strings.HasPrefix(c.Identity(), "none: text prompts") || c.Manifest.Exact || c.Manifest.Note == "" {
		t.Errorf("identity %q, manifest %+v do not say that nobody counted", c.Identity(), c.Manifest)
	}
	if _, err := workload.Build(spec(), nil); err == nil {
		t.Error("a spec that names a tokenizer was built without one")
	}
}

func TestTakeNeverRepeats(t *testing.T) {
	c := built(t, spec(), tokenizers["bytes"])
	for _, q := range []struct {
		block int
		point string
		rep   int
		n     int
		ok    bool
	}{
		{0, "c1", 0, 4, true}, {3, "c8", 1, 6, true}, {workload.LeadIn(1), "c8", 0, 6, true}, {0, "c1", workload.WarmUp, 1, true}, {0, "c1", 0, 0, true},
		{0, "c1", 0, 5, false}, {4, "c1", 0, 1, false}, {0, "c1", 2, 1, false}, {workload.LeadIn(0), "c1", 1, 1, false},
		{workload.LeadIn(2), "c1", 0, 1, false}, {0, "c2", 0, 1, false}, {0, "c1", 0, -1, false},
	} {
		got, err := c.Take(q.block, q.point, q.rep, q.n)
		if q.ok != (err == nil) || (q.ok && len(got) != q.n) || (!q.ok && !errors.Is(err, workload.ErrExhausted)) {
			t.Errorf("Take(%d, %s, %d, %d) = %d prompts, %v", q.block, q.point, q.rep, q.n, len(got), err)
		}
	}
	taken, _ := c.Take(0, "c1", 0, 2)
	_ = append(taken, workload.Prompt{ID: "mine"})
	if again, _ := c.Take(0, "c1", 0, 3); again[2].ID == "mine" {
		t.Error("appending to what was taken changes the corpus")
	}
}

func TestTokenizersThatCannotBeUsed(t *testing.T) {
	down := errors.New("connection refused")
	calls := 0
	for _, c := range []struct {
		name     string
		tokenize func(string) ([]int, error)
		want     string
	}{
		{"fails", func(string) ([]int, error) { return nil, down }, "connection refused"},
		{"fails later", func(s string) ([]int, error) {
			if calls++; calls > 680 {
				return nil, down
			}
			return tokenizers["bytes"](s)
		}, "connection refused"},
		{"always the same", func(string) ([]int, error) { return []int{1, 2, 3}, nil }, "does not count"},
		{"nothing", func(string) ([]int, error) { return nil, nil }, "does not count"},
		{"adds more than the prompt", func(s string) ([]int, error) {
			ids, err := tokenizers["bytes"](s)
			return append(make([]int, 500), ids...), err
		}, "no room for text"},
		{"even counts only", func(s string) ([]int, error) {
			ids, err := tokenizers["bytes"](s)
			return append(ids, ids...), err
		}, "no text of exactly 129 tokens"},
	} {
		if _, err := workload.Build(spec(), c.tokenize); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v does not say %q", c.name, err, c.want)
		}
	}
	s := spec()
	s.Parts = []workload.Part{{Point: "tiny", PromptTokens: 1, Requests: 50}}
	if _, err := workload.Build(s, tokenizers["bytes"]); err == nil || !strings.Contains(err.Error(), "must be new") {
		t.Errorf("600 different prompts of one byte: %v", err)
	}
}

func TestBadSpecs(t *testing.T) {
	for name, change := range map[string]func(*workload.Spec){
		"no superblock":  func(s *workload.Spec) { s.Superblocks = 0 },
		"no repetition":  func(s *workload.Spec) { s.Repetitions = 0 },
		"no point":       func(s *workload.Spec) { s.Parts = nil },
		"point twice":    func(s *workload.Spec) { s.Parts[1].Point = "c1" },
		"point with /":   func(s *workload.Spec) { s.Parts[1].Point = "c/1" },
		"no tokens":      func(s *workload.Spec) { s.Parts[1].PromptTokens = 0 },
		"no requests":    func(s *workload.Spec) { s.Parts[1].Requests = 0 },
		"all shared":     func(s *workload.Spec) { s.Parts[1].SharedPrefix = 129 },
		"less than none": func(s *workload.Spec) { s.Parts[1].Warmup = -1 },
	} {
		s := spec()
		change(&s)
		if _, err := workload.Build(s, tokenizers["bytes"]); err == nil {
			t.Errorf("%s: built", name)
		}
	}
}

func written(t testing.TB) string {
	c, err := workload.Build(spec(), tokenizers["three letters a token"])
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := c.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func open(file []byte) (*workload.Corpus, error) {
	return workload.Open(bytes.NewReader(file), int64(len(file)))
}

func TestFileRoundTrip(t *testing.T) {
	file := written(t)
	c, err := open([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	var again bytes.Buffer
	if err := c.Write(&again); err != nil || again.String() != file {
		t.Errorf("reading and writing changes the file (%v)", err)
	}
	if got, _ := c.Take(3, "c8", 1, 6); len(got) != 6 {
		t.Errorf("%d prompts of b3r1 after reading", len(got))
	}
}

func TestFileIsNotBelieved(t *testing.T) {
	file := written(t)
	lines := strings.SplitAfter(file, "\n")
	for _, c := range []struct {
		name, file, want string
	}{
		{"empty", "", "line 1: unexpected EOF"},
		{"no JSON", "corpus\n", "line 1"},
		{"torn", file[:len(file)/2], "line"},
		{"a line less", strings.Join(lines[:len(lines)-2], ""), "unexpected EOF"},
		{"a line more", file + lines[1], "more than"},
		{"an empty line more", file + "\n", "more than"},
		{"last line without its end", strings.TrimSuffix(file, "\n"), "unexpected EOF"},
		{"other line ends", strings.ReplaceAll(file, "\n", "\r\n"), "hash"},
		{"edited text", strings.Replace(file, `"text":"`, `"text":"new `, 1), "hash"},
		{"edited seed", strings.Replace(file, `"seed":"7"`, `"seed":"8"`, 1), "hash"},
		{"edited tokenizer", strings.Replace(file, `"name":"test"`, `"name":"best"`, 1), "hash"},
		{"a prompt twice", lines[0] + lines[1] + strings.Replace(lines[1], "s0w/0", "s0r0/0", 1) + strings.Join(lines[3:], ""), "asks nothing twice"},
		{"two prompts swapped", lines[0] + lines[2] + lines[1] + strings.Join(lines[3:], ""), "belongs"},
		{"another length", strings.Replace(file, `"tokens":64`, `"tokens":63`, 1), "asks for exactly 64"},
		{"a count taken out", strings.Replace(file, `,"tokens":64`, ``, 1), "counted is false"},
		{"unknown field", strings.Replace(file, `"text"`, `"txt"`, 1), "unknown field"},
		{"another schema", strings.Replace(file, `"schema":1`, `"schema":2`, 1), "schema 2"},
		{"spec of nothing", strings.Replace(file, `"superblocks":2`, `"superblocks":0`, 1), "at least 1"},
		{"a spec too large", strings.Replace(file, `"superblocks":2`, `"superblocks":2000000000`, 1), "belongs"},
	} {
		if _, err := open([]byte(c.file)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v does not say %q", c.name, err, c.want)
		}
	}
}

// An opened corpus gives the prompts of the file, and none of a file that changed since.
func TestOpenReadsWhatIsTaken(t *testing.T) {
	file := written(t)
	whole, err := open([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	disk := []byte(file)
	opened, err := workload.Open(bytes.NewReader(disk), int64(len(disk)))
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range []int{workload.LeadIn(0), 0, 3} {
		for _, point := range []string{"c1", "c8"} {
			want, _ := whole.Take(block, point, 0, 4)
			got, err := opened.Take(block, point, 0, 4)
			if d := cmp.Diff(want, got, cmp.AllowUnexported(matrix.Opt[int]{})); err != nil || d != "" {
				t.Errorf("block %d, %s: %v\n%s", block, point, err, d)
			}
		}
	}
	var again bytes.Buffer
	if err := opened.Write(&again); err != nil || again.String() != file {
		t.Errorf("an opened corpus writes another file (%v)", err)
	}
	at := bytes.LastIndex(disk, []byte("c8/b3r1/5")) - 20
	disk[at] ^= 1
	if _, err := opened.Take(3, "c8", 1, 6); err == nil || !strings.Contains(err.Error(), "changed") {
		t.Errorf("a file that changed gives %v", err)
	}
	if _, err := workload.Open(bytes.NewReader(disk), int64(len(disk))); err == nil {
		t.Error("an edited file was opened")
	}
	if _, err := workload.Open(bytes.NewReader(nil), 0); err == nil {
		t.Error("an empty file was opened")
	}
}

func FuzzOpen(f *testing.F) {
	file := written(f)
	f.Add([]byte(file))
	f.Add([]byte(file[:200]))
	f.Add([]byte("{}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := open(data)
		if err != nil {
			return
		}
		var out bytes.Buffer
		if err := c.Write(&out); err != nil {
			t.Fatal(err)
		}
		if _, err := open(out.Bytes()); err != nil {
			t.Fatalf("a corpus that was read cannot be read again after writing: %v", err)
		}
	})
}

func BenchmarkBuild1024(b *testing.B) {
	s := spec()
	s.Parts = []workload.Part{{Point: "c8", PromptTokens: 1024, Requests: 48, Warmup: 8}}
	for b.Loop() {
		c, err := workload.Build(s, tokenizers["three letters a token"])
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(c.Manifest.Prompts), "prompts/op")
	}
}

func ExampleCorpus_Identity() {
	s := spec()
	s.Tokenizer = workload.Tokenizer{}
	c, err := workload.Build(s, nil)
	if err != nil {
		panic(err)
	}
	fmt.Println(c.Identity()[:18])
	// Output: none: text prompts
}
