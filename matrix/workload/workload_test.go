package workload_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"enginebroker/matrix"
	"enginebroker/matrix/workload"
)

func points(t *testing.T, name, profile string) []matrix.Point {
	t.Helper()
	w, ok := workload.Named(name)
	p, known := workload.ProfileNamed(profile)
	if !ok || !known {
		t.Fatalf("workload %s: %t, profile %s: %t", name, ok, profile, known)
	}
	return workload.Points(w, p)
}

// Protocol §2.8: points and requests per repetition of each profile.
func TestProfilesSizeThePoints(t *testing.T) {
	for _, c := range []struct {
		workload, profile string
		want              map[string]int // point → requests
	}{
		{"serve-low", "quick", map[string]int{"c1": 4, "c8": 16}},
		{"serve-low", "standard", map[string]int{"c1": 6, "c2": 12, "c4": 24, "c8": 48, "c16": 96}},
		{"serve-low", "binding", map[string]int{"c1": 6, "c2": 12, "c4": 24, "c8": 48, "c16": 96}},
		{"chat-short", "quick", map[string]int{"c1": 4, "c8": 16}},
		{"serve-ctx", "quick", map[string]int{"ctx2048": 4, "ctx32768": 4}},
		{"serve-ctx", "standard", map[string]int{"ctx2048": 6, "ctx8192": 6, "ctx16384": 6, "ctx32768": 6}},
	} {
		got := map[string]int{}
		for _, p := range points(t, c.workload, c.profile) {
			got[p.ID] = p.Requests
			if p.Warmup != p.Concurrency || p.IdleLimit <= 0 || p.TotalLimit <= p.IdleLimit || p.Workload != c.workload {
				t.Errorf("%s %s %s: %+v", c.workload, c.profile, p.ID, p)
			}
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s %s (-want +got):\n%s", c.workload, c.profile, d)
		}
	}
}

// serve-low is the campaign's workload; the one level below which quick has nothing of a workload still runs something.
func TestServeLow(t *testing.T) {
	for _, p := range points(t, "serve-low", "standard") {
		if p.PromptTokens != 1024 || p.OutputTokens != 128 || !p.IgnoreEOS || p.Seed != 0 || p.Endpoint != "completions" || !p.Rate.IsZero() || p.SharedPrefix != 0 {
			t.Errorf("%+v is not 1024 in, 128 out, ignore EOS, seed 0", p)
		}
	}
	quick, _ := workload.ProfileNamed("quick")
	one := workload.Levels("mine", workload.Shape{Endpoint: "completions", PromptTokens: 64, OutputTokens: 64, IgnoreEOS: true}, 3)
	if got := workload.Points(one, quick); len(got) != 1 || got[0].ID != "c3" || got[0].Requests != 6 {
		t.Errorf("quick of a workload with c = 3 alone is %+v", got)
	}
}

func TestProfileTable(t *testing.T) {
	for _, c := range []struct {
		name                         string
		superblocks, repetitions     int
		grids                        int
		dedicated                    bool
		requestsAt1, requestsAt8     int
		confirmation, levelsOfPoints int
	}{
		{"quick", 2, 1, 1, false, 4, 16, 0, 2},
		{"standard", 3, 3, 1, false, 6, 48, 0, 0},
		{"binding", 0, 3, 2, true, 6, 48, 2, 0},
	} {
		p, ok := workload.ProfileNamed(c.name)
		if !ok || p.Superblocks != c.superblocks || p.Repetitions != c.repetitions || p.Grids != c.grids || p.DedicatedAA != c.dedicated ||
			p.Requests(1) != c.requestsAt1 || p.Requests(8) != c.requestsAt8 || p.Confirmation != c.confirmation || len(p.Levels) != c.levelsOfPoints {
			t.Errorf("%s is %+v", c.name, p)
		}
	}
	if _, ok := workload.ProfileNamed("thorough"); ok {
		t.Error("a profile that does not exist was found")
	}
	if d := cmp.Diff([]string{"quick", "standard", "binding"}, workload.ProfileNames()); d != "" {
		t.Error(d)
	}
	p, _ := workload.ProfileNamed("quick")
	p.Levels[0] = 99
	if again, _ := workload.ProfileNamed("quick"); again.Levels[0] != 1 {
		t.Error("the table of profiles can be changed through a copy")
	}
}

func TestNamedWorkloadsAreValid(t *testing.T) {
	for _, n := range workload.Names() {
		w, ok := workload.Named(n)
		if !ok {
			t.Fatalf("%s is listed and not found", n)
		}
		if err := w.Validate(); err != nil {
			t.Error(err)
		}
	}
	if _, ok := workload.Named(workload.Default); !ok {
		t.Errorf("the default %s does not exist", workload.Default)
	}
	if _, ok := workload.Named("serve-high"); ok {
		t.Error("a workload that does not exist was found")
	}
}

func TestValidateNamesTheField(t *testing.T) {
	good := workload.Shape{Endpoint: "completions", PromptTokens: 64, OutputTokens: 64, Concurrency: 1}
	for want, change := range map[string]func(*workload.Workload){
		"no name":                  func(w *workload.Workload) { w.Name = "" },
		"no point":                 func(w *workload.Workload) { w.Shapes = nil },
		"two points are called c1": func(w *workload.Workload) { w.Shapes = append(w.Shapes, good) },
		"endpoint":                 func(w *workload.Workload) { w.Shapes[0].Endpoint = "embeddings" },
		"prompt_tokens":            func(w *workload.Workload) { w.Shapes[0].PromptTokens = 0 },
		"output_tokens":            func(w *workload.Workload) { w.Shapes[0].OutputTokens = 1 },
		"concurrency: 0":           func(w *workload.Workload) { w.Shapes[0].Concurrency = 0 },
		"concurrency: 5000":        func(w *workload.Workload) { w.Shapes[0].Concurrency = 5000 },
		"shared_prefix":            func(w *workload.Workload) { w.Shapes[0].SharedPrefix = 64 },
		"requests per minute":      func(w *workload.Workload) { w.Shapes[0].Rate.PerMinute = -1 },
		"neither poisson":          func(w *workload.Workload) { w.Shapes[0].Rate = matrix.Rate{PerMinute: 60} },
		"total_limit":              func(w *workload.Workload) { w.Shapes[0].TotalLimit = -1 },
	} {
		w := workload.Workload{Name: "mine", Shapes: []workload.Shape{good}}
		change(&w)
		if err := w.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
}

// Requests are sized so that a leg of a fast model lasts long enough to decide anything.
func TestGrow(t *testing.T) {
	before := points(t, "serve-low", "quick")
	after, notes, err := workload.Grow(before, 5*time.Second, 2000)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range after {
		waves := p.Requests / p.Concurrency
		if p.Requests%p.Concurrency != 0 || float64(waves*p.OutputTokens)/2000 < 5 {
			t.Errorf("%s: %d requests last %.2f s at 2000 tokens/s", p.ID, p.Requests, float64(waves*p.OutputTokens)/2000)
		}
		if float64((waves-1)*p.OutputTokens)/2000 >= 5 {
			t.Errorf("%s: %d requests are a wave more than needed", p.ID, p.Requests)
		}
		if before[i].Requests == p.Requests {
			t.Errorf("Grow changed nothing or its input: %d", p.Requests)
		}
	}
	if len(notes) != 2 || !strings.Contains(notes[0], "c1") {
		t.Errorf("notes %q do not say what was changed", notes)
	}
	same, notes, err := workload.Grow(before, 5*time.Second, 4.4)
	if d := cmp.Diff(before, same); d != "" || len(notes) != 0 || err != nil {
		t.Errorf("a slow model changed: %s %q %v", d, notes, err)
	}
	for _, rate := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		if _, _, err := workload.Grow(before, time.Second, rate); err == nil {
			t.Errorf("sized for %v tokens per second", rate)
		}
	}
}

// In open loop the arrivals are what has to last.
func TestGrowOpenLoop(t *testing.T) {
	quick, _ := workload.ProfileNamed("quick")
	w := workload.OpenLoop("paced", workload.Shape{Endpoint: "completions", PromptTokens: 16, OutputTokens: 8, Concurrency: 2}, "constant", 60, 600)
	if err := w.Validate(); err != nil {
		t.Fatal(err)
	}
	after, notes, err := workload.Grow(workload.Points(w, quick), 5*time.Second, 0)
	if err != nil || len(after) != 2 || after[0].ID != "r60" || after[0].Requests != 5 || after[1].Requests != 50 || len(notes) != 2 {
		t.Errorf("%+v %q %v", after, notes, err)
	}
}

func TestLimitsOf(t *testing.T) {
	l := workload.LimitsOf(points(t, "serve-low", "standard"))
	if l.ContextTokens < 1024+128+2 || l.Concurrency != 16 || l.KVTokens != 16*l.ContextTokens || l.ContextTokens%128 != 0 {
		t.Errorf("serve-low needs %+v", l)
	}
	if chat := workload.LimitsOf(points(t, "chat-short", "quick")); chat.ContextTokens < 128+256+100 {
		t.Errorf("chat-short leaves no room for a chat template: %+v", chat)
	}
	if none := workload.LimitsOf(nil); none != (matrix.Limits{}) {
		t.Errorf("no point needs %+v", none)
	}
}

func TestSpecOfFitsItsPoints(t *testing.T) {
	quick := points(t, "serve-low", "quick")
	for i := range quick {
		quick[i].PromptTokens = 32
	}
	c := built(t, workload.SpecOf(quick, 1, 2, 0, workload.Tokenizer{Name: "test"}), tokenizers["bytes"])
	if err := c.Fits(quick, 1, 2); err != nil {
		t.Error(err)
	}
	other, longer, more := points(t, "serve-low", "standard"), points(t, "serve-low", "quick"), append([]matrix.Point(nil), quick...)
	more[0].Requests = 5
	for want, err := range map[string]error{
		"no prompts for point c2": c.Fits(other[1:], 1, 2), "prompts of 1024 tokens": c.Fits(longer, 1, 2), "needs 5 prompts": c.Fits(more, 1, 2),
		"3 repetitions": c.Fits(quick, 3, 2), "5 superblocks": c.Fits(quick, 1, 5),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
}

func TestReserveAndKey(t *testing.T) {
	for planned, want := range map[int]int{2: 3, 3: 9, 4: 9, 6: 9} {
		if got := workload.Reserve(planned); got != want {
			t.Errorf("Reserve(%d) = %d, want %d", planned, got, want)
		}
	}
	a, err := spec().Key()
	s := spec()
	s.Tokenizer.Fingerprint = "other"
	b, err2 := s.Key()
	if err != nil || err2 != nil || a == b || len(a) != 64 {
		t.Errorf("keys %s %s (%v, %v) of two tokenizers", a, b, err, err2)
	}
}
