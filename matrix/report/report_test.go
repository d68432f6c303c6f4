package report

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"flag"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"enginebroker/matrix"
)

var update = flag.Bool("update", false, "write the golden files")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

var metrics = []matrix.Metric{
	{Name: "output_tok_s", Formula: "broker/1", Unit: "tok/s", Denominator: "window", Class: matrix.ClassIntegral, Higher: true, Primary: true},
	{Name: "tpot_median", Formula: "broker/1", Unit: "ms", Denominator: "token", Class: matrix.ClassIntegral, Primary: true},
	{Name: "ttft_median", Formula: "broker/1", Unit: "ms", Denominator: "request", Class: matrix.ClassPhase, Primary: true},
	{Name: "itl_p99", Formula: "broker/1", Unit: "ms", Denominator: "token", Class: matrix.ClassITL, Percentile: 99},
}

func some(x float64) matrix.Opt[float64] { return matrix.Some(x) }

func arms(a, b string, x, y float64) []matrix.ArmSummary {
	return []matrix.ArmSummary{{Label: a, Median: some(x), Spread: some(1.0046), Loads: 6}, {Label: b, Median: some(y), Spread: some(1.0103), Loads: 6}}
}

func reasons(codes ...matrix.Reason) []matrix.CellReason {
	var out []matrix.CellReason
	for _, c := range codes {
		out = append(out, matrix.CellReason{Code: c})
	}
	return out
}

func interval(x, lo, hi float64) matrix.Opt[matrix.Interval] {
	return matrix.Some(matrix.Interval{Theta: matrix.Some(math.Log(x)), SE: matrix.Some(0.006), Lo: math.Log(lo), Hi: math.Log(hi), DF: 5, Ratio: matrix.Some(x), RatioLo: lo, RatioHi: hi, Median: matrix.Some(x), Min: matrix.Some(lo), Max: matrix.Some(hi), Kind: "paired_t"})
}

// ends is an interval whose point ratio may not be shown.
func ends(lo, hi float64) matrix.Opt[matrix.Interval] {
	return matrix.Some(matrix.Interval{Lo: math.Log(lo), Hi: math.Log(hi), DF: 5, RatioLo: lo, RatioHi: hi, Kind: "paired_t"})
}

// sample is a run of four engines, as the seeds have it: one group of three arms, one of two, and two refused pairs.
func sample() matrix.Report {
	r := matrix.Report{
		Schema: 1, Run: "20260819-7", PlanSHA256: strings.Repeat("ab", 32), State: "pending_grid", Next: "grid 2 pending: reboot, then broker resume 20260819-7",
		Plan: matrix.Plan{Model: "qwen3.8-27b", Subject: "ours", Profile: "binding", Box: "gb10", Seed: "7", Grids: 2, MethodID: strings.Repeat("cd", 32),
			Refusals: []matrix.Refusal{
				{Pair: matrix.NewPair("llamacpp", "vllm"), Reason: matrix.NoCommonQuant, Detail: "no container is opened by both",
					Fix: "none today: vLLM opens GGUF only with an out-of-tree plugin", Sides: []matrix.OfferSide{
						{Label: "llamacpp", Engine: "llamacpp", Opens: []matrix.Offer{{Artifact: "qwen3.8-27b@q4_k_m", Statement: matrix.Statement{Status: matrix.StatusOK}}},
							Lacks: []matrix.Offer{{Artifact: "qwen3.8-27b@bf16", Statement: matrix.Statement{Status: matrix.StatusRefused, Why: "GGUF only", Source: "capabilities"}}}},
						{Label: "vllm", Engine: "vllm", Opens: []matrix.Offer{{Artifact: "qwen3.8-27b@bf16", Statement: matrix.Statement{Status: matrix.StatusOK}}}}}}},
		},
		Grids:  []matrix.GridInfo{{Index: 1, BootID: "5b1f", Seed: "7", Done: true}},
		Absent: []string{"energy", "page cache of foreign files"},
		Legs: []matrix.LegSummary{
			{ID: matrix.LegID{Grid: 1, Group: "qwen3.8-27b@bf16|raw", Arm: "ours", Point: "c1", Block: 0}, OK: 18},
			{ID: matrix.LegID{Grid: 1, Group: "qwen3.8-27b@bf16|raw", Arm: "vllm", Point: "c8", Block: 1, Position: 2}, OK: 45, Failed: 2, Suspect: 1,
				Gate: matrix.GateResult{Codes: []matrix.LegCode{matrix.FailedRequests, matrix.UsageMissing}, Cause: matrix.CauseEngine, Flags: []string{"no_done"},
					Detail: map[matrix.LegCode]string{matrix.FailedRequests: "2 of 48: error_in_stream"}}},
		},
		Loads: []matrix.LoadRecord{
			{ID: "g1-l0", Slot: matrix.Slot{Arm: "ours", LeadIn: true}},
			{ID: "g1-l1", Slot: matrix.Slot{Arm: "sglang"}, Failure: matrix.Some(matrix.StartFailure{Code: "exited", Message: "exit code 1 while loading", RootCause: []string{"CUDA out of memory"}})},
		},
	}
	add := func(a, b, point string, m int, v matrix.Verdict, d matrix.Direction, n matrix.Opt[matrix.Numbers], codes ...matrix.Reason) {
		r.Cells = append(r.Cells, matrix.Cell{ID: matrix.CellID{Pair: matrix.NewPair(a, b), Group: "qwen3.8-27b@bf16|raw", Point: point, Metric: metrics[m].Name},
			Metric: metrics[m], Verdict: v, Direction: d, Blocks: 6, Numbers: n, Reasons: reasons(codes...)})
	}
	full := func(a, b string, x, y, q, lo, hi float64) matrix.Opt[matrix.Numbers] {
		return matrix.Some(matrix.Numbers{Interval: interval(q, lo, hi), ShowRatio: true, Arms: arms(a, b, x, y), Reversed: matrix.Some(0), Margin: 0.02, QDir: some(0.002)})
	}
	none := matrix.Opt[matrix.Numbers]{}
	for _, point := range []string{"c1", "c8"} {
		for m := range metrics {
			add("ours", "vllm", point, m, matrix.Provisional, matrix.DirSlower, full("ours", "vllm", 9.366, 11.3646, 0.8241, 0.8102, 0.8383), matrix.SingleGrid, matrix.ReferenceNotPin, matrix.AAEmbeddedOnly, matrix.LoadStateUntested, matrix.ClockHeadUnobserved)
			add("sglang", "vllm", point, m, matrix.Established, matrix.DirEquivalent, matrix.Some(matrix.Numbers{Interval: interval(1.0065, 1.0021, 1.0109), ShowRatio: true,
				Reversed: matrix.Some(0), Arms: arms("sglang", "vllm", 11.31, 11.24), Detected: matrix.DirFaster, Margin: 0.02}))
			add("ours", "sglang", point, m, matrix.Inconclusive, matrix.DirNone, matrix.Some(matrix.Numbers{Interval: ends(0.987, 1.036), Arms: arms("ours", "sglang", 11.4, 11.3), Margin: 0.02}), matrix.WideCI, matrix.SingleGrid)
		}
	}
	add("llamacpp", "ours", "c1", 0, matrix.NotReproduced, matrix.DirNone, matrix.Some(matrix.Numbers{Grids: [][]matrix.ArmSummary{arms("llamacpp", "ours", 11.3646, 9.366), arms("llamacpp", "ours", 11.25, 10.756)}}), matrix.GridShiftArm, matrix.GridShiftRatio)
	add("llamacpp", "ours", "c8", 0, matrix.Withheld, matrix.DirNone, none, matrix.EngineVoidOnRecord, matrix.SingleGrid)
	last := &r.Cells[len(r.Cells)-1].Reasons[0]
	last.Detail, last.Evidence, last.Next = "12 of 48 requests failed at c8", []string{"g1-l7"}, "run again with a build whose fingerprint differs: 21 loads"
	add("llamacpp", "sglang", "c1", 0, matrix.Void, matrix.DirNone, none, matrix.NoValidBlock)
	r.Cells = append(r.Cells, matrix.Cell{ID: matrix.CellID{Pair: matrix.NewPair("llamacpp", "vllm")}, Verdict: matrix.NotComparable, Direction: matrix.DirNone, Reasons: reasons(matrix.NoCommonQuant)})
	return r
}

type renderer = func(io.Writer, matrix.Report) error

var formats = map[string]renderer{
	"terminal.txt": func(w io.Writer, r matrix.Report) error { return Terminal(w, r, Options{}) },
	"all.txt":      func(w io.Writer, r matrix.Report) error { return Terminal(w, r, Options{Secondary: true, Color: true}) },
	"report.md":    Markdown, "report.csv": CSV, "report.json": JSON, "report.html": HTML,
}

func render(t testing.TB, f renderer, r matrix.Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := f(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestGolden(t *testing.T) {
	for name, f := range formats {
		golden(t, name, []byte(render(t, f, sample())))
	}
}

func TestTerminalWidth(t *testing.T) {
	for _, width := range []int{0, 80, 100, 140} {
		for _, r := range []matrix.Report{sample(), hostile("x\x1b[31m" + strings.Repeat("long", 60) + " <b>|,")} {
			text := render(t, func(w io.Writer, r matrix.Report) error {
				return Terminal(w, r, Options{Width: width, Secondary: true})
			}, r)
			for line := range strings.Lines(text) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > max(width, 100*b2i(width == 0)) {
					t.Errorf("%d columns in %d: %q", n, width, line)
				}
			}
		}
	}
}

// Every cell stands in every format with its verdict and all its reasons.
func TestNothingLost(t *testing.T) {
	r := sample()
	for name, f := range formats {
		text := render(t, f, r)
		for _, v := range []matrix.Verdict{matrix.Established, matrix.Provisional, matrix.Inconclusive, matrix.NotReproduced, matrix.Withheld, matrix.Void, matrix.NotComparable} {
			want := 0
			for _, c := range r.Cells {
				want += b2i(c.Verdict == v && (c.Metric.Primary || c.ID.Metric == "" || name != "terminal.txt"))
			}
			if got := strings.Count(text, v.String()); got < want {
				t.Errorf("%s shows %s %d times of %d", name, v, got, want)
			}
		}
		for _, c := range r.Cells {
			for _, x := range c.Reasons {
				if code := string(x.Code); !strings.Contains(text, code) && !strings.Contains(text, md(code)) {
					t.Errorf("%s lacks %s", name, code)
				}
			}
		}
		if name != "report.csv" {
			for _, s := range []string{"GGUF only", "out", "energy", "reboot", "CUDA out of memory", "2 of 48", "whose fingerprint differs"} {
				if !strings.Contains(text, s) {
					t.Errorf("%s lacks %q", name, s)
				}
			}
		}
	}
}

// A number that a cell may not show is in no format (protocol §4.5).
func TestNoForbiddenNumber(t *testing.T) {
	r := sample()
	r.Cells = r.Cells[:0]
	r.Cells = append(r.Cells,
		matrix.Cell{ID: matrix.CellID{Pair: matrix.NewPair("a", "b"), Point: "c1", Metric: "output_tok_s"}, Metric: metrics[0], Verdict: matrix.Inconclusive, Direction: matrix.DirFaster,
			Reasons: reasons(matrix.WideCI), Numbers: matrix.Some(matrix.Numbers{Interval: interval(1.2345, 0.9, 1.5), Arms: arms("a", "b", 7.7, 6.6)})})
	for name, f := range formats {
		if name == "report.json" {
			continue // writes what it is given; the direction and ratio of such a cell are left out when it is built
		}
		text := render(t, f, r)
		if strings.Contains(text, "1.2345") || strings.Contains(text, "1.234") {
			t.Errorf("%s prints a ratio that may not be shown", name)
		}
		for line := range strings.Lines(text) {
			if strings.Contains(line, "INCONCLUSIVE") && strings.Contains(line, "FASTER") {
				t.Errorf("%s prints a direction that may not be said: %s", name, line)
			}
		}
	}
}

// Absent and impossible numbers are dashes or empty, never 0.
func TestAbsent(t *testing.T) {
	r := sample()
	r.Cells = []matrix.Cell{{ID: matrix.CellID{Pair: matrix.NewPair("a", "b"), Point: "c1", Metric: "output_tok_s"}, Metric: metrics[0], Verdict: matrix.Provisional, Direction: matrix.DirNone,
		Numbers: matrix.Some(matrix.Numbers{ShowRatio: true, Interval: interval(math.NaN(), math.Inf(-1), math.Inf(1)), Arms: []matrix.ArmSummary{{Label: "a"}, {Label: "b", Median: some(math.NaN())}}})}}
	for name, f := range formats {
		var b bytes.Buffer
		err := f(&b, r)
		if name == "report.json" {
			if err == nil {
				t.Error("JSON takes NaN")
			}
			continue
		}
		if err != nil {
			t.Error(name, err)
		}
		for _, s := range []string{"NaN", "Inf"} {
			if strings.Contains(b.String(), s) {
				t.Errorf("%s prints %s", name, s)
			}
		}
	}
	rows, err := csv.NewReader(strings.NewReader(render(t, CSV, r))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range rows[0] {
		if strings.HasPrefix(name, "median") || strings.HasPrefix(name, "ratio") || strings.HasPrefix(name, "q_") {
			if rows[1][i] != "" {
				t.Errorf("%s is %q", name, rows[1][i])
			}
		}
	}
}

func TestNumber(t *testing.T) {
	for x, want := range map[float64]string{0: "0", 9.366: "9.366", 11.3646: "11.36", 1234.56: "1235", 0.00123456: "0.001235", -53.21: "-53.21", 1e9: "1e+09", math.Inf(1): absent} {
		if got := number(x); got != want {
			t.Errorf("%v: %q, want %q", x, got, want)
		}
	}
}

func TestStamps(t *testing.T) {
	r := sample()
	r.Simulated = true
	for name, f := range formats {
		text := render(t, f, r)
		if name == "report.json" {
			if !strings.Contains(text, `"simulated": true`) {
				t.Error("JSON lacks the stamp")
			}
			continue
		}
		if strings.Count(text, "SIMULATED") < 1 {
			t.Errorf("%s is not stamped", name)
		}
	}
	r.Simulated, r.External = false, true
	if text := render(t, Markdown, r); !strings.Contains(text, "EXTERNAL") {
		t.Error("an external report is not stamped")
	}
}

// hostile puts one text wherever foreign text can stand.
func hostile(s string) matrix.Report {
	r := sample()
	r.Run, r.State, r.Next, r.PlanSHA256 = s, s, s, s
	r.Plan.Model, r.Plan.Profile, r.Plan.Box, r.Plan.Subject, r.Plan.MethodID = s, s, s, s, s
	r.Absent, r.Grids = []string{s}, []matrix.GridInfo{{BootID: s, Seed: s}}
	r.Plan.Refusals = []matrix.Refusal{{Pair: matrix.Pair{A: s, B: s}, Reason: matrix.Reason(s), Detail: s, Fix: s, Sides: []matrix.OfferSide{{Label: s,
		Opens: []matrix.Offer{{Artifact: s, Policy: matrix.Policy{Kind: matrix.Drafted, Drafter: s}, Statement: matrix.Statement{Status: matrix.Status(s), Why: s, Source: s}}}}}}}
	c := r.Cells[0]
	c.ID = matrix.CellID{Pair: matrix.Pair{A: s, B: s}, Group: s, Point: s, Metric: s}
	c.Metric.Unit, c.Metric.Formula, c.Metric.Denominator = s, s, s
	c.Reasons = []matrix.CellReason{{Code: matrix.Reason(s), Detail: s, Evidence: []string{s}, Next: s}}
	c.Annotated = []string{s}
	n, _ := c.Numbers.Get()
	n.Arms = []matrix.ArmSummary{{Label: s}}
	n.Grids = [][]matrix.ArmSummary{{{Label: s}}}
	c.Numbers = matrix.Some(n)
	c.History = []matrix.PastCell{{Run: s, Reasons: []matrix.Reason{matrix.Reason(s)}, By: s}}
	r.Cells = []matrix.Cell{c}
	r.Legs = []matrix.LegSummary{{ID: matrix.LegID{Group: s, Arm: s, Point: s}, Reused: s, Gate: matrix.GateResult{Codes: []matrix.LegCode{matrix.LegCode(s)},
		Cause: matrix.Cause(s), Flags: []string{s}, Detail: map[matrix.LegCode]string{matrix.LegCode(s): s}}}}
	r.Loads = []matrix.LoadRecord{{ID: s, Slot: matrix.Slot{Arm: s}, Aborted: s, Failure: matrix.Some(matrix.StartFailure{Message: s, RootCause: []string{s}}),
		Pin: matrix.Some(matrix.PinCheck{Pin: s, Mismatch: []matrix.PinMismatch{{Field: s, Expected: s, Found: s}}})}}
	return r
}

// harmless checks what a format may not let through.
func harmless(t *testing.T, r matrix.Report) {
	t.Helper()
	for name, f := range formats {
		if name == "all.txt" {
			continue // colours are escapes of our own
		}
		text := render(t, f, r)
		if !utf8.ValidString(text) {
			t.Errorf("%s is not UTF-8", name)
		}
		for _, c := range text {
			if c != '\n' && !printable(c) && name != "report.json" {
				t.Errorf("%s lets %U through", name, c)
			}
		}
		switch name {
		case "report.html":
			// Of tags only those of the page may stand there: none carries what the hostile text asked for.
			for _, s := range []string{"<script", "<img", "<b>", "onerror=\"", "javascript:alert\""} {
				if strings.Contains(text, s) {
					t.Errorf("HTML lets %q through", s)
				}
			}
		case "report.md":
			if strings.Contains(strings.ReplaceAll(text, "<br>", ""), "<") {
				i := strings.Index(strings.ReplaceAll(text, "<br>", ""), "<")
				t.Errorf("Markdown lets a tag through: %.80q", strings.ReplaceAll(text, "<br>", "")[i:])
			}
		case "report.csv":
			rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
			if err != nil || len(rows) != 1+len(r.Cells) {
				t.Errorf("CSV has %d rows, %v", len(rows), err)
			}
		case "report.json":
			if !json.Valid([]byte(text)) {
				t.Error("JSON is not valid")
			}
		}
	}
	var b bytes.Buffer
	for _, err := range []error{Explain(&b, r.Cells[0], Options{}), Plan(&b, r.Plan, Options{})} {
		if err != nil {
			t.Error(err)
		}
	}
	for _, c := range b.String() {
		if c != '\n' && !printable(c) {
			t.Errorf("a plan or an explanation lets %U through", c)
		}
	}
}

func TestHostileText(t *testing.T) {
	for _, s := range []string{"\x1b[31mred\x1b]0;title\a", "<script>alert(1)</script>", `"><img src=x onerror="alert(1)">`, "a|b,c;d\ne\r\n", "=HYPERLINK(\"http://x\")",
		"\u202Egnp.exe", "\u200b\ufeff", "\xff\xfe\x80", "[x](javascript:alert(1))", "*_`#", strings.Repeat("x", 5000), "", "{{.}}", "\x00"} {
		harmless(t, hostile(s))
	}
}

func FuzzHostileText(f *testing.F) {
	f.Add("\x1b[0m<script>|,")
	f.Fuzz(func(t *testing.T, s string) {
		if strings.ContainsAny(s, "<") && strings.Contains(s, "<br>") {
			return // the page's own
		}
		harmless(t, hostile(s))
	})
}

func samplePlan() matrix.Plan {
	arm := func(label string) matrix.Arm {
		return matrix.Arm{Label: label, Instance: label, Engine: label, Status: matrix.StatusOK, Pin: "2026-08", Limits: matrix.Limits{ContextTokens: 1280, Concurrency: 8}, Key: strings.Repeat("0f", 32)}
	}
	p := sample().Plan
	p.Agreements = []matrix.Agreement{{Pair: matrix.NewPair("ours", "vllm"), Artifact: "qwen3.8-27b@bf16", Policy: matrix.Policy{Kind: matrix.Raw},
		Sides: map[string]matrix.Status{"ours": matrix.StatusOK, "vllm": matrix.StatusClaimed}}}
	p.Groups = []matrix.Group{{ID: "qwen3.8-27b@bf16|raw", Arms: []matrix.Arm{arm("ours"), arm("sglang"), arm("vllm")},
		Superblocks: []matrix.Superblock{{Index: 0, LeadIn: "vllm", Forward: []string{"vllm", "ours", "sglang"}, Backward: []string{"sglang", "ours", "vllm"}}}}}
	p.Method.Repetitions = 3
	p.Method.Points = []matrix.Point{{ID: "c8", Workload: "serve-low", Concurrency: 8, PromptTokens: 1024, OutputTokens: 128, Requests: 48, Warmup: 8},
		{ID: "r30", Workload: "chat-short", Rate: matrix.Rate{Process: "poisson", PerMinute: 30}, PromptTokens: 128, SharedPrefix: 96, OutputTokens: 64, Requests: 60}}
	p.Absent = map[string]string{"trt": "not installed: looked for trtllm-serve in PATH"}
	p.LeftOut = []matrix.LeftOut{{What: "point c16", Why: "the budget of 4 h"}}
	p.Cost = matrix.Cost{Loads: 21, LeadIns: 3, Legs: 105, Requests: 15120, Estimate: 26*time.Hour + 5*time.Minute, Basis: "catalog figures for gb10"}
	return p
}

func TestPlan(t *testing.T) {
	var b bytes.Buffer
	if err := Plan(&b, samplePlan(), Options{}); err != nil {
		t.Fatal(err)
	}
	golden(t, "plan.txt", b.Bytes())
}

func TestExplain(t *testing.T) {
	c := sample().Cells[0]
	c.Reasons[0].Detail, c.Reasons[0].Evidence, c.Reasons[0].Next = "1 grid of 2", []string{"grid 1"}, "reboot and resume: 14 loads, 3 h"
	c.History = []matrix.PastCell{{Run: "20260818-1", Verdict: matrix.Withheld, Reasons: []matrix.Reason{matrix.AAMissing}, By: "20260819-7"}}
	var b bytes.Buffer
	if err := Explain(&b, c, Options{}); err != nil {
		t.Fatal(err)
	}
	golden(t, "explain.txt", b.Bytes())
}

// Every reason of the protocol has words, and no words belong to a reason that is none.
func TestWords(t *testing.T) {
	n := 0
	for v := matrix.Established; v <= matrix.NotComparable; v++ {
		if verdictWords[v] == "" {
			t.Errorf("%s has no words", v)
		}
		for _, r := range v.Reasons() {
			n++
			if _, ok := words[r]; !ok {
				t.Errorf("%s has no words", r)
			}
		}
	}
	if n != len(words) {
		t.Errorf("%d reasons, %d words", n, len(words))
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, os.ErrClosed }

func TestWriteError(t *testing.T) {
	for name, f := range formats {
		if err := f(broken{}, sample()); err == nil {
			t.Errorf("%s hides that nothing could be written", name)
		}
	}
}

// Energy and memory say what they are of in every text format, where they are shown.
func TestCaveats(t *testing.T) {
	r := sample()
	id := matrix.CellID{Pair: matrix.NewPair("ours", "vllm"), Group: r.Cells[0].ID.Group, Point: "c1"}
	for _, m := range []matrix.Metric{
		{Name: "energy_per_output_token", Unit: "J/token, GPU rail only", Class: matrix.ClassEnergy}, {Name: "peak_mem_delta", Unit: "MiB", Class: matrix.ClassMemory}} {
		id.Metric = m.Name
		r.Cells = append(r.Cells, matrix.Cell{ID: id, Metric: m, Verdict: matrix.Inconclusive, Reasons: reasons(matrix.WideCI)})
	}
	for name, write := range map[string]func(io.Writer) error{
		"terminal": func(w io.Writer) error { return Terminal(w, r, Options{Width: 400, Secondary: true}) },
		"markdown": func(w io.Writer) error { return Markdown(w, r) },
		"html":     func(w io.Writer) error { return HTML(w, r) },
	} {
		var b strings.Builder
		if err := write(&b); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"GPU watts are not machine watts", "MemAvailable"} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%s does not say %q", name, want)
			}
		}
	}
	var b strings.Builder
	if err := Terminal(&b, r, Options{Width: 400}); err != nil || strings.Contains(b.String(), "watts") {
		t.Errorf("primary metrics alone: %v, and the report speaks of watts", err)
	}
}
