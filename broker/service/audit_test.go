package service

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"enginebroker/matrix"
	"enginebroker/matrix/ledger"
)

// A report that was edited is found by the audit, number by number.
func TestAuditFindsAnEditedReport(t *testing.T) {
	s, dir := small(t)
	if a, err := s.Audit(t.Context(), "r"); err != nil || len(a.Findings) != 0 || a.Legs != 15 {
		t.Fatalf("untouched: %+v, %v", a, err)
	}
	edit(t, filepath.Join(dir, "report.json"), func(b []byte) []byte { return bytes.Replace(b, []byte(`"SLOWER"`), []byte(`"FASTER"`), 1) })
	a, err := s.Audit(t.Context(), "r")
	if err != nil || len(a.Findings) != 1 || a.Findings[0].Kind != "report" || !strings.Contains(a.Findings[0].Where, "ours:vllm") {
		t.Errorf("%+v, %v", a, err)
	}
}

// An A/A that is put on record later makes another report, and the one beside the evidence stays what its evidence gives.
func TestAuditRestsOnWhatTheReportNames(t *testing.T) {
	s := testService(t)
	p := evidencePlan(t, 3, []string{"c1"}, "ours", "vllm")
	r := newEvidence(t, s, "r", p, map[string]float64{"ours": 10, "vllm": 11})
	r.grid(3)
	r.close()
	before := r.report()
	if !slices.Contains(cellOf(t, before, "c1").Codes(), matrix.AAEmbeddedOnly) || before.Beside.AA != "" {
		t.Errorf("before: %v, %+v", cellOf(t, before, "c1").Codes(), before.Beside)
	}
	passAA(t, s, p)
	after := r.report()
	if slices.Contains(cellOf(t, after, "c1").Codes(), matrix.AAEmbeddedOnly) || after.Beside.AA != "pass" || !slices.Equal(after.Beside.AARuns, []string{"aa"}) {
		t.Errorf("after: %v, %+v", cellOf(t, after, "c1").Codes(), after.Beside)
	}
	if a, err := s.Audit(t.Context(), "r"); err != nil || len(a.Findings) != 0 {
		t.Errorf("%+v, %v", a, err)
	}
}

// Whatever lies beside the evidence and is derived from it says what the evidence gives, or the audit names it. What is not
// there says nothing wrong.
func TestAuditFindsEditedRenderings(t *testing.T) {
	s, dir := small(t)
	led, _, err := ledger.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer led.Close()
	s.summarise(led, StateComplete, "")
	for _, name := range []string{"report.md", "report.csv", "report.html", summaryFile} {
		path := filepath.Join(dir, name)
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		edit(t, path, func(b []byte) []byte {
			if name == summaryFile {
				return bytes.Replace(b, []byte(StateComplete), []byte(StateInterrupted), 1)
			}
			return append(b, '\n')
		})
		a, err := s.Audit(t.Context(), "r")
		if err != nil || len(a.Findings) != 1 || a.Findings[0].Where != name {
			t.Errorf("%s edited: %+v, %v", name, a.Findings, err)
		}
		os.Remove(path)
		if a, err := s.Audit(t.Context(), "r"); err != nil || len(a.Findings) != 0 {
			t.Errorf("without %s: %+v, %v", name, a.Findings, err)
		}
		if err := os.Symlink(name, path); err != nil {
			t.Fatal(err)
		}
		if a, err := s.Audit(t.Context(), "r"); err != nil || len(a.Findings) != 1 || a.Findings[0].Where != name {
			t.Errorf("%s is a link to itself: %+v, %v", name, a.Findings, err)
		}
		os.Remove(path)
		if err := os.WriteFile(path, whole, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if a, err := s.Audit(t.Context(), "r"); err != nil || len(a.Findings) != 0 {
		t.Errorf("restored: %+v, %v", a, err)
	}
}

// What the program itself set aside after a crash is on record, and no finding for ever after.
func TestSetAsideIsOnRecord(t *testing.T) {
	s, dir := small(t)
	edit(t, filepath.Join(dir, ledger.LedgerFile), func(b []byte) []byte { return append(b, `{"sum":"abc`...) })
	if err := os.Mkdir(filepath.Join(dir, ledger.LegsDir, "in-flight.tmp"), 0o755); err != nil {
		t.Fatal(err)
	}
	if a, err := s.Audit(t.Context(), "r"); err != nil || len(a.Findings) != 1 || !strings.Contains(a.Findings[0].Detail, "torn_line") {
		t.Errorf("torn: %+v, %v", a.Findings, err)
	}
	if _, err := s.Hold(t.Context(), "r", []string{"output_tok_s"}, Held{Who: "ana", Why: "a fan was replaced"}); err != nil {
		t.Fatal(err)
	}
	if a, err := s.Audit(t.Context(), "r"); err != nil || len(a.Findings) != 0 {
		t.Errorf("set aside: %+v, %v", a.Findings, err)
	}
	led, _, err := ledger.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer led.Close()
	notes := 0
	for n, err := range ledger.Bodies[ledger.Note](led, ledger.KindNote) {
		if err != nil || !strings.Contains(n.Text, "record 41") {
			t.Errorf("note %+v, %v", n, err)
		}
		notes++
	}
	if notes != 1 {
		t.Errorf("%d notes", notes)
	}
}

// A comparison fails with what its worst cell fails with.
func TestComparisonFailsAsItsCells(t *testing.T) {
	s, _ := small(t)
	led, _, err := ledger.Read(filepath.Join(s.runs, "r"))
	if err != nil {
		t.Fatal(err)
	}
	plan := led.Plan()
	led.Close()
	r := newEvidence(t, s, "again", plan, map[string]float64{"ours": 10, "vllm": 11})
	r.seq = 1000
	r.grid(3)
	r.close()
	for _, c := range []struct {
		name  string
		spoil func(t *testing.T)
		want  Cause
	}{
		{"both hold", func(*testing.T) {}, ""},
		{"withheld", func(t *testing.T) {
			if _, err := s.Hold(t.Context(), "again", []string{"output_tok_s"}, Held{Who: "ana", Why: "a fan was replaced"}); err != nil {
				t.Fatal(err)
			}
		}, CauseWithheld},
		{"void", func(t *testing.T) {
			for i := range 6 {
				edit(t, one(t, filepath.Join(s.runs, "r"), "legs/g0-sb*-ours-*/"+ledger.ClocksFile, i), func(b []byte) []byte { return b[:len(b)-1] })
			}
		}, CauseVoid},
	} {
		c.spoil(t)
		x, err := s.Compare(t.Context(), "r", "again")
		if err != nil {
			t.Fatal(err)
		}
		if got := causeOf(JudgeComparison(x)); got != c.want {
			t.Errorf("%s: fails with %q (%v), want %q", c.name, got, JudgeComparison(x), c.want)
		}
	}
}

// A number that was written into the report of a cell that may not show any is in no output of the audit either.
func TestAuditShowsNoHiddenNumber(t *testing.T) {
	s, dir := small(t)
	reported := func() matrix.Report {
		r, ok := s.reportBeside("r")
		if !ok {
			t.Fatal("no report")
		}
		return r
	}
	shown := cellOf(t, reported(), "c1")
	if _, err := s.Hold(t.Context(), "r", []string{"output_tok_s"}, Held{Who: "ana", Why: "a fan was replaced"}); err != nil {
		t.Fatal(err)
	}
	r := reported()
	for i := range r.Cells {
		if r.Cells[i].ID == shown.ID {
			r.Cells[i].Numbers, r.Cells[i].Direction = shown.Numbers, shown.Direction
		}
	}
	var b bytes.Buffer
	if err := Render(&b, r, "json", Look{}); err != nil {
		t.Fatal(err)
	}
	edit(t, filepath.Join(dir, "report.json"), func([]byte) []byte { return b.Bytes() })
	a, err := s.Audit(t.Context(), "r")
	if err != nil || len(a.Findings) != 1 || !strings.Contains(a.Findings[0].Detail, "none of this cell may be shown") || strings.Contains(a.Findings[0].Detail, "ratio") {
		t.Errorf("%+v, %v", a.Findings, err)
	}
}

// A listing shows no run as complete whose ledger is not there to its end, and says which line is torn.
func TestRunsLookAtTheLedgersEnd(t *testing.T) {
	for name, c := range map[string]struct {
		file  string
		spoil func([]byte) []byte
		state string
		mark  string
	}{
		"whole":      {ledger.LedgerFile, func(b []byte) []byte { return b }, StateComplete, ""},
		"empty":      {ledger.LedgerFile, func([]byte) []byte { return nil }, stateUnreadable, "ledger_cut"},
		"cut":        {ledger.LedgerFile, func(b []byte) []byte { return b[:bytes.LastIndexByte(b[:len(b)-1], '\n')+1] }, stateUnreadable, "ledger_cut"},
		"torn":       {ledger.LedgerFile, func(b []byte) []byte { return append(b, `{"sum":"abc`...) }, StateComplete, "torn_line"},
		"end edited": {ledger.LedgerFile, func(b []byte) []byte { b[len(b)-3] ^= 1; return b }, stateUnreadable, "bad_record"},
		"no head":    {ledger.HeadFile, func([]byte) []byte { return nil }, stateUnreadable, "head_missing"},
	} {
		s, dir := small(t)
		edit(t, filepath.Join(dir, c.file), c.spoil)
		runs, err := s.Runs(t.Context())
		i := slices.IndexFunc(runs, func(r RunInfo) bool { return r.Name == "r" })
		if err != nil || i < 0 || runs[i].State != c.state || !strings.Contains(strings.Join(runs[i].Marks, " "), c.mark) || (c.mark == "") != (len(runs[i].Marks) == 0) {
			t.Errorf("%s: %+v, %v", name, runs, err)
		}
	}
}
