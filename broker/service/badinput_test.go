package service

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"enginebroker/matrix"
	"enginebroker/matrix/ledger"
	"enginebroker/matrix/run"
	"enginebroker/matrix/schedule"
)

// small is a complete run of two arms, and its folder.
func small(t *testing.T) (*Service, string) {
	t.Helper()
	s := testService(t)
	p := evidencePlan(t, 3, []string{"c1"}, "ours", "vllm")
	passAA(t, s, p)
	r := newEvidence(t, s, "r", p, map[string]float64{"ours": 10, "vllm": 11})
	r.grid(3)
	r.close()
	return s, filepath.Join(s.runs, "r")
}

func edit(t *testing.T, path string, change func([]byte) []byte) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, change(data), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func one(t *testing.T, dir, pattern string, i int) string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(list) <= i {
		t.Fatalf("%s: %d files (%v)", pattern, len(list), err)
	}
	return list[i]
}

// flip changes one byte of a file of a leg that counts.
func flip(t *testing.T, dir, name string) {
	t.Helper()
	edit(t, one(t, dir, "legs/g0-sb0-b0-*/"+name, 0), func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
}

func swap(t *testing.T, a, b string) {
	t.Helper()
	if err := errors.Join(os.Rename(a, a+"x"), os.Rename(b, a), os.Rename(a+"x", b)); err != nil {
		t.Fatal(err)
	}
}

// Issue 6, bad input: evidence that is not what was recorded gives a named reason and no number, and the audit finds it.
func TestBadEvidence(t *testing.T) {
	whole, _ := small(t)
	for name, c := range map[string]struct {
		spoil func(t *testing.T, dir string)
		names string // what the error or the finding names
		void  bool   // the legs are void, so that the rest is judged
		torn  bool   // nothing is lost that anybody was told of: it is said, and the run is judged
	}{
		"missing file": {func(t *testing.T, dir string) { os.Remove(one(t, dir, "legs/*/rep-*.zst", 0)) }, "arrivals", false, false},
		"truncated file": {func(t *testing.T, dir string) {
			edit(t, one(t, dir, "legs/*/rep-*.zst", 0), func(b []byte) []byte { return b[:len(b)/2] })
		}, "arrivals", false, false},
		"edited file": {func(t *testing.T, dir string) {
			edit(t, one(t, dir, "legs/*/requests.jsonl", 0), func(b []byte) []byte { return bytes.Replace(b, []byte("ok"), []byte("ko"), 1) })
		}, "requests.jsonl", false, false},
		"swapped files": {func(t *testing.T, dir string) {
			swap(t, one(t, dir, "legs/*/rep-*.zst", 0), one(t, dir, "legs/*/rep-*.zst", 1))
		}, "arrivals", false, false},
		"edited ledger": {func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, ledger.LedgerFile), func(b []byte) []byte { return bytes.Replace(b, []byte("boot-0"), []byte("boot-9"), 1) })
		}, "ledger.jsonl", false, false},
		"cut ledger": {func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, ledger.LedgerFile), func(b []byte) []byte { return b[:bytes.LastIndexByte(b[:len(b)-1], '\n')+1] })
		}, "ledger", false, false},
		"plan edited after the run": {func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, ledger.PlanFile), func(b []byte) []byte { return bytes.Replace(b, []byte(`"seed":"7"`), []byte(`"seed":"8"`), 1) })
		}, "plan.json", false, false},
		"torn last line": {func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, ledger.LedgerFile), func(b []byte) []byte { return append(b, `{"sum":"abc`...) })
		}, "torn_line: ledger.jsonl (record 41): the line has no end; lost: record 41", false, true},
		"edited clocks":  {func(t *testing.T, dir string) { flip(t, dir, ledger.ClocksFile) }, ledger.ClocksFile, true, false},
		"edited log":     {func(t *testing.T, dir string) { flip(t, dir, ledger.LogFile) }, ledger.LogFile, true, false},
		"edited warm-up": {func(t *testing.T, dir string) { flip(t, dir, ledger.WarmupFile) }, ledger.WarmupFile, true, false},
		"swapped clocks": {func(t *testing.T, dir string) {
			swap(t, one(t, dir, "legs/g0-sb0-b0-*/"+ledger.ClocksFile, 0), one(t, dir, "legs/g0-sb1-*/"+ledger.ClocksFile, 1))
		}, ledger.ClocksFile, true, false},
		"a pipe for a log": {func(t *testing.T, dir string) {
			path := one(t, dir, "legs/g0-sb0-b0-*/"+ledger.LogFile, 0)
			if err := errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)); err != nil {
				t.Fatal(err)
			}
		}, "a named pipe is no regular file", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := testService(t)
			if err := os.CopyFS(s.runs, os.DirFS(whole.runs)); err != nil {
				t.Fatal(err)
			}
			dir := filepath.Join(s.runs, "r")
			c.spoil(t, dir)
			r, err := s.Report(t.Context(), "r")
			switch {
			case c.torn:
				var b strings.Builder
				if err := errors.Join(err, s.ExplainCells(t.Context(), &b, "r", []string{"c1"}, Look{Width: 1000})); err != nil || !cellOf(t, r, "c1").Numbers.Present() ||
					!strings.Contains(r.Next, c.names) || strings.Count(b.String(), c.names) != 1 {
					t.Errorf("%v; next %q; explained:\n%s", err, r.Next, b.String())
				}
			case c.void && err != nil:
				t.Errorf("the report of what is left: %v", err)
			case c.void:
				cell := cellOf(t, r, "c1")
				var b strings.Builder
				if err := Explain(&b, cell, Look{Width: 1000}); err != nil || cell.Verdict != matrix.Void || cell.Numbers.Present() || !strings.Contains(b.String(), c.names) {
					t.Errorf("%s, numbers %v, does not name %q (%v):\n%s", cell.Verdict, cell.Numbers.Present(), c.names, err, b.String())
				}
			case causeOf(err) != CauseEvidence || !strings.Contains(err.Error(), c.names):
				t.Errorf("reported: %v", err)
			}
			if _, err := s.DiffArms(t.Context(), ArmName{Name: "r:ours", Of: RunPrefix}, ArmName{Name: "r:vllm", Of: RunPrefix}); strings.Contains(c.names, "ledger") && !c.torn && causeOf(err) != CauseEvidence {
				t.Errorf("arms of a ledger that does not verify are compared: %v", err)
			}
			a, err := s.Audit(t.Context(), "r")
			text := ""
			for _, f := range a.Findings {
				text += f.Where + " " + f.Detail + "\n"
			}
			if err != nil {
				text += err.Error()
			}
			if !strings.Contains(text, c.names) {
				t.Errorf("the audit finds %q, which does not name %q", text, c.names)
			}
		})
	}
}

// Clocks that read nonsense: a reason by name, never a ratio. NaN and infinity cannot stand in a ledger; matrix/gates and
// matrix/verdict test them.
func TestBadValues(t *testing.T) {
	for name, c := range map[string]struct {
		leg  func(*matrix.LegRecord)
		want matrix.Verdict
		code matrix.Reason
		says string // in words, of a void leg
	}{
		"the clock record is empty":    {leg: func(l *matrix.LegRecord) { l.Clock = matrix.Opt[matrix.Clock]{} }, want: matrix.Provisional, code: matrix.BoxUncertified},
		"a clock of zero":              {leg: clocks(func(int) int64 { return 0 }), want: matrix.Void, code: matrix.NoValidBlock, says: "CLOCK_DEGRADED_STATE"},
		"a clock of less than nothing": {leg: clocks(func(int) int64 { return -2190 }), want: matrix.Void, code: matrix.NoValidBlock, says: "CLOCK_DEGRADED_STATE"},
		"a repetition that ends before it began": {leg: func(l *matrix.LegRecord) {
			r := &l.Repetitions[0]
			r.Start, r.End = r.End, r.Start
		}, want: matrix.Void, code: matrix.HarnessFault, says: "the clock went backwards"},
		"a leg by another method":   {leg: func(l *matrix.LegRecord) { l.MethodID, l.MethodEnd = "another", "another" }, want: matrix.Void, code: matrix.HarnessFault, says: "METHOD_CHANGED"},
		"boots differ within a leg": {leg: func(l *matrix.LegRecord) { l.Env.BootIDEnd = "elsewhere" }, want: matrix.Void, code: matrix.NoValidBlock, says: "CLOCK_BOOT_MISMATCH"},
	} {
		t.Run(name, func(t *testing.T) {
			s := testService(t)
			p := evidencePlan(t, 3, []string{"c1"}, "ours", "vllm")
			passAA(t, s, p)
			r := newEvidence(t, s, "r", p, map[string]float64{"ours": 10, "vllm": 11})
			r.leg = c.leg
			r.grid(3)
			r.close()
			cell := cellOf(t, r.report(), "c1")
			if cell.Verdict != c.want || !slices.Contains(cell.Codes(), c.code) {
				t.Errorf("%s %v, want %s for %s", cell.Verdict, cell.Codes(), c.want, c.code)
			}
			var b strings.Builder
			if err := Explain(&b, cell, Look{Width: 400}); err != nil || !strings.Contains(b.String(), c.says) {
				t.Errorf("not told in words: %q (%v)\n%s", c.says, err, b.String())
			}
			if cell.Verdict >= matrix.Withheld && cell.Numbers.Present() {
				t.Errorf("a %s cell shows numbers", cell.Verdict)
			}
		})
	}
}

func clocks(mhz func(i int) int64) func(*matrix.LegRecord) {
	return func(l *matrix.LegRecord) {
		c, _ := l.Clock.Get()
		c.Seconds = slices.Clone(c.Seconds)
		for i := range c.Seconds {
			c.Seconds[i].MHz = mhz(i)
		}
		l.Clock = matrix.Some(c)
	}
}

// n = 0, 1 and 2 superblocks on record.
func TestFewBlocks(t *testing.T) {
	for n, want := range []matrix.Reason{matrix.NoValidBlock, matrix.InsufficientBlocks, matrix.FewBlocks} {
		s := testService(t)
		p := evidencePlan(t, 3, []string{"c1"}, "ours", "vllm")
		passAA(t, s, p)
		r := newEvidence(t, s, "r", p, map[string]float64{"ours": 10, "vllm": 11})
		r.grid(n)
		r.close()
		c := cellOf(t, r.report(), "c1")
		if !slices.Contains(c.Codes(), want) || n < 2 && c.Numbers.Present() {
			t.Errorf("%d superblocks: %s %v", n, c.Verdict, c.Codes())
		}
	}
}

// A later run of the same method and arms supersedes; of the earlier one its verdict stands beside, and no number. A run of
// another arm is no history.
func TestHistory(t *testing.T) {
	s := testService(t)
	p := evidencePlan(t, 3, []string{"c1"}, "ours", "vllm")
	other := evidencePlan(t, 3, []string{"c1"}, "ours", "vllm")
	other.Groups[0].Arms[0].Key = "another"
	passAA(t, s, p)
	for i, x := range []struct {
		name string
		plan matrix.Plan
	}{{"first", p}, {"second", p}, {"else", other}, {"third", p}} {
		r := newEvidence(t, s, x.name, x.plan, map[string]float64{"ours": 10, "vllm": 11})
		r.seq = 1000 * i
		if x.name == "first" {
			r.broken = func(_ int, slot matrix.Slot, _ string) bool { return slot.Arm == "ours" && slot.Superblock == 1 }
		}
		r.grid(3)
		r.close()
	}
	rep, err := s.Report(t.Context(), "third")
	if err != nil {
		t.Fatal(err)
	}
	h := cellOf(t, rep, "c1").History
	if len(h) != 2 || h[0].Run != "second" || h[0].By != "third" || h[1].Run != "first" || h[1].By != "second" || h[1].Verdict != matrix.Withheld {
		t.Errorf("%+v", h)
	}
	// A report that lies in the folder of another run speaks for nobody.
	data, err := os.ReadFile(filepath.Join(s.runs, "first", "report.json"))
	if err == nil {
		err = os.WriteFile(filepath.Join(s.runs, "second", "report.json"), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if rep, err = s.Report(t.Context(), "third"); err != nil {
		t.Fatal(err)
	}
	if h := cellOf(t, rep, "c1").History; len(h) != 1 || h[0].Run != "first" {
		t.Errorf("with a swapped report: %+v", h)
	}
	if rep, err = s.Report(t.Context(), "first"); err != nil || len(cellOf(t, rep, "c1").History) != 0 {
		t.Errorf("the first run has a past: %+v, %v", cellOf(t, rep, "c1").History, err)
	}
}

// A hold is a record with who and why: the cell is withheld everywhere until it is released, and the audit agrees.
func TestHold(t *testing.T) {
	s, _ := small(t)
	held := func() matrix.Cell {
		r, err := s.Report(t.Context(), "r")
		if err != nil {
			t.Fatal(err)
		}
		if a, err := s.Audit(t.Context(), "r"); err != nil || len(a.Findings) != 0 {
			t.Errorf("audit: %+v, %v", a, err)
		}
		return cellOf(t, r, "c1")
	}
	if _, err := s.Hold(t.Context(), "r", []string{"output_tok_s"}, Held{Who: " ", Why: "a fan was replaced"}); causeOf(err) != CauseUsage {
		t.Errorf("a blank name: %v", err)
	}
	if _, err := s.Hold(t.Context(), "r", []string{"output_tok_s", ""}, Held{Who: "ana", Why: "a fan was replaced"}); causeOf(err) != CauseUsage {
		t.Errorf("an empty word: %v", err)
	}
	if _, err := s.Hold(t.Context(), "r", []string{"output_tok_s"}, Held{Who: "ana"}); causeOf(err) != CauseUsage {
		t.Errorf("a hold without a reason: %v", err)
	}
	if _, err := s.Hold(t.Context(), "r", []string{"output_tok_s"}, Held{Who: "ana", Why: "x", Release: true}); causeOf(err) != CauseNotFound {
		t.Errorf("a release of nothing: %v", err)
	}
	if _, err := s.Hold(t.Context(), "r", []string{"output_tok_s"}, Held{Who: "ana", Why: "a fan was replaced"}); err != nil {
		t.Fatal(err)
	}
	c := held()
	if c.Verdict != matrix.Withheld || c.Numbers.Present() || c.Reasons[0].Code != matrix.OperatorHold || !strings.HasSuffix(c.Reasons[0].Detail, "Z: a fan was replaced") || !strings.HasPrefix(c.Reasons[0].Detail, "held by ana at 20") {
		t.Errorf("%s %+v", c.Verdict, c.Reasons)
	}
	if _, err := s.Hold(t.Context(), "r", []string{"output_tok_s"}, Held{Who: "ana", Why: "measured again", Release: true}); err != nil {
		t.Fatal(err)
	}
	if c := held(); c.Verdict != matrix.Provisional {
		t.Errorf("released: %s %v", c.Verdict, c.Codes())
	}
}

// What a reload experiment finds counts for the cells of its arm and build, and for no other build.
func TestReloadCounts(t *testing.T) {
	s := testService(t)
	p := evidencePlan(t, 3, []string{"c1"}, "ours", "vllm")
	passAA(t, s, p)
	r := newEvidence(t, s, "r", p, map[string]float64{"ours": 10, "vllm": 11})
	r.grid(3)
	r.close()
	file := func(run, print string, values ...float64) {
		rep := matrix.Report{Plan: matrix.Plan{Purpose: matrix.PurposeReload, Box: p.Box}, Box: testBox,
			Reloads: []matrix.Reload{{Run: run, Arm: "ours", ArmKey: "ours", Print: print, Values: values}}}
		if err := s.file(rep); err != nil {
			t.Fatal(err)
		}
	}
	two := []float64{9.37, 10.76, 9.36, 10.75, 10.77, 9.38, 10.74, 9.35}
	file("other-build", "print-another", two...)
	if c := cellOf(t, r.report(), "c1"); slices.Contains(c.Codes(), matrix.LoadStateMulti) {
		t.Errorf("another build's states count: %v", c.Codes())
	}
	file("states", "print-ours", two...)
	rep := r.report()
	c := cellOf(t, rep, "c1")
	if c.Verdict != matrix.Inconclusive || !slices.Contains(c.Codes(), matrix.LoadStateMulti) || !slices.Equal(rep.Beside.Reloads, []string{"states"}) {
		t.Errorf("%s %v, %+v", c.Verdict, c.Codes(), rep.Beside)
	}
	if a, err := s.Audit(t.Context(), "r"); err != nil || len(a.Findings) != 0 {
		t.Errorf("the report made before: %+v, %v", a, err)
	}
}

func TestAARule(t *testing.T) {
	cell := func(d matrix.Direction, v matrix.Verdict, blocks int) matrix.Report {
		return matrix.Report{State: StateComplete, Plan: matrix.Plan{Purpose: matrix.PurposeAA}, Cells: []matrix.Cell{
			{ID: matrix.CellID{Group: "g"}, Metric: matrix.Metric{Primary: true}, Verdict: v, Direction: d, Blocks: blocks},
			{ID: matrix.CellID{Group: "g"}, Verdict: matrix.Void}}} // a secondary cell has no say
	}
	for name, c := range map[string]struct {
		r     matrix.Report
		cause Cause
	}{
		"equal":              {cell(matrix.DirEquivalent, matrix.Provisional, 6), ""},
		"undecided":          {cell(matrix.DirNone, matrix.Inconclusive, 6), ""},
		"told apart":         {cell(matrix.DirFaster, matrix.Provisional, 6), CauseWithheld},
		"too few blocks":     {cell(matrix.DirNone, matrix.Provisional, 4), CauseVoid},
		"void":               {cell(matrix.DirNone, matrix.Void, 6), CauseVoid},
		"nothing was judged": {matrix.Report{State: StateComplete, Plan: matrix.Plan{Purpose: matrix.PurposeAA}}, CauseVoid},
	} {
		if got := causeOf(Judge(c.r, "")); got != c.cause {
			t.Errorf("%s: %q, want %q", name, got, c.cause)
		}
	}
}

func TestMarginCost(t *testing.T) {
	for _, c := range []struct {
		sd, half float64
		blocks   int
	}{{0.0035, 0.0198, 6}, {0.0035, 0.0035, 8}, {0.01, 0.005, 18}, {0, 0.01, 6}} {
		if got := blocksFor(c.sd, c.half); got != c.blocks {
			t.Errorf("SD %v, half-width %v: %d blocks, want %d", c.sd, c.half, got, c.blocks)
		}
	}
}

// A plan that rests on a dedicated A/A says what the one on record makes of its cells.
func TestPlanWantsAA(t *testing.T) {
	s := testService(t)
	p := evidencePlan(t, 3, []string{"c1"}, "ours", "vllm")
	key := aaKeyOf(p.MethodID, testBox)
	for _, c := range []struct {
		runs []aaRun
		says []string
	}{
		{nil, []string{"broker aa --model " + p.Model + " --profile binding --workload w --points c1,c8 has passed (15 loads)", "PROVISIONAL (AA_EMBEDDED_ONLY)"}},
		{[]aaRun{{Run: "x"}}, []string{"failed (x)", "WITHHELD (AA_FAILED)"}},
		{[]aaRun{{Run: "x"}, {Run: "y", Passed: true}}, nil},
	} {
		if err := s.keep("aa", key, aaRecord{aaKey: key, Runs: c.runs}); err != nil {
			t.Fatal(err)
		}
		notes, err := s.wantsAA(Request{Workload: "w", Points: []string{"c1", "c8"}}, p, testBox)
		if err != nil || (len(notes) > 0) != (len(c.says) > 0) {
			t.Errorf("%+v: %q %v", c.runs, notes, err)
		}
		for _, want := range c.says {
			if !strings.Contains(strings.Join(notes, "\n"), want) {
				t.Errorf("%+v: %q lacks %q", c.runs, notes, want)
			}
		}
	}
}

// What an engine failed in a superblock that was interrupted and begun anew stays on record: an interrupt is no way to lose it.
func TestInterruptedFailureStaysOnRecord(t *testing.T) {
	for name, c := range map[string]struct {
		arm   string
		point string
		void  bool // the cell at c1
	}{
		"of the pair": {"ours", "c1", true}, "at another point": {"ours", "c8", false}, "of none": {"", "", false},
	} {
		s := testService(t)
		p := evidencePlan(t, 3, []string{"c1", "c8"}, "ours", "vllm")
		passAA(t, s, p)
		r := newEvidence(t, s, "r", p, map[string]float64{"ours": 10, "vllm": 11})
		first := true
		r.broken = func(_ int, slot matrix.Slot, point string) bool {
			return first && slot.Superblock == 1 && !slot.LeadIn && slot.Arm == c.arm && point == c.point
		}
		r.append(ledger.KindGridOpen, ledger.GridOpen{Grid: 0, BootID: "boot-0", Seed: p.Seed})
		for i := range 2 {
			r.superblock("boot-0", schedule.Next(p, 0, i))
		}
		first = false
		r.append(ledger.KindResume, ledger.Resume{BootID: "boot-0"})
		for i := 1; i < 3; i++ { // the second is begun anew
			r.superblock("boot-0", schedule.Next(p, 0, i))
		}
		r.append(ledger.KindGridClose, ledger.GridClose{Grid: 0, Done: true})
		r.close()
		rep := r.report()
		cell := cellOf(t, rep, "c1")
		if c.void != slices.Contains(cell.Codes(), matrix.EngineVoidOnRecord) || c.void == cell.Numbers.Present() || cell.Blocks != 6 {
			t.Errorf("%s: %s %v, %d blocks, numbers %v", name, cell.Verdict, cell.Codes(), cell.Blocks, cell.Numbers.Present())
		}
		if n := len(rep.Loads); n != 15 {
			t.Errorf("%s: %d loads count", name, n)
		}
		if a, err := s.Audit(t.Context(), "r"); err != nil || len(a.Findings) != 0 {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
	}
}

// Re-runs of an operator, from the ledger: who and why stay with what they are for, one that was cut short releases nothing
// and may be begun anew for another superblock, and the verdict from before stands in the history of the cell.
func TestRerunsOnRecord(t *testing.T) {
	s := testService(t)
	p := evidencePlan(t, 3, []string{"c1"}, "ours", "vllm")
	passAA(t, s, p)
	r := newEvidence(t, s, "r", p, map[string]float64{"ours": 10, "vllm": 11})
	r.broken = func(_ int, slot matrix.Slot, _ string) bool {
		return slot.Superblock < 2 && !slot.LeadIn && slot.Arm == "ours"
	}
	r.grid(3)
	r.grids = 0
	again := func(who string, index, replaces, loads int) {
		r.append(ledger.KindRerun, ledger.Rerun{Who: who, Why: "because", Superblocks: []ledger.Redone{{Group: p.Groups[0].ID, Superblock: replaces}}})
		r.start = func(b *ledger.SuperblockStart) { b.Replaces, b.Why = matrix.Some(replaces), run.Operator }
		r.loads = loads
		r.superblock("boot-0", schedule.Next(p, 0, index))
	}
	look := func(step string, withheld bool, notes ...string) matrix.Cell {
		t.Helper()
		rep, err := s.judged(t.Context(), r.led)
		if err != nil {
			t.Fatal(err)
		}
		c := cellOf(t, rep, "c1")
		if withheld != slices.Contains(c.Codes(), matrix.EngineVoidOnRecord) || withheld == c.Numbers.Present() {
			t.Errorf("%s: %s %v", step, c.Verdict, c.Codes())
		}
		for _, n := range notes {
			if !strings.Contains(strings.Join(c.Annotated, "\n"), n) {
				t.Errorf("%s: %q lacks %q", step, c.Annotated, n)
			}
		}
		return c
	}
	look("failed twice", true)
	again("ana", 3, 0, 3)
	look("cut short", true)
	again("ben", 3, 1, 0) // the same draw, for the other superblock
	look("one of two", true, "superblock 1 was run again as 3 by ben (because): it passed")
	again("cy", 4, 0, 0)
	c := look("both", false, "superblock 0 was run again as 4 by cy (because): it passed", "as 3 by ben")
	if c.Blocks != 6 || len(c.History) == 0 || c.History[0].Verdict != matrix.Withheld || c.History[0].By != "what cy had run again: because" {
		t.Errorf("%d blocks, history %+v", c.Blocks, c.History)
	}
	ev, err := s.evidence(t.Context(), r.led)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := withheld(p, ev, []string{"c1"}); causeOf(err) != CauseUsage {
		t.Errorf("a released run has something to run again: %v", err)
	}
	if _, err := withheld(p, ev, []string{"nope"}); causeOf(err) != CauseNotFound {
		t.Errorf("an unknown cell: %v", err)
	}
	r.close()
	if a, err := s.Audit(t.Context(), "r"); err != nil || len(a.Findings) != 0 {
		t.Errorf("%+v, %v", a, err)
	}
}
