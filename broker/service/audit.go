package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"enginebroker/matrix"
	"enginebroker/matrix/ledger"
	"enginebroker/matrix/regular"
)

// AuditFinding is one thing that an audit found: evidence that is not what was recorded, or a number that the evidence
// does not give.
type AuditFinding struct {
	Kind   string `json:"kind"` // evidence, request, report
	Where  string `json:"where"`
	Detail string `json:"detail"`
}

// AuditResult is what an audit did and found. No findings mean that every number and verdict follows from the evidence.
type AuditResult struct {
	Run       string         `json:"run"`
	Simulated bool           `json:"simulated,omitempty"`
	Records   int            `json:"records"`
	Legs      int            `json:"legs"`
	Requests  int            `json:"requests"`
	Cells     int            `json:"cells"`
	Findings  []AuditFinding `json:"findings,omitempty"`
}

// Audit checks every hash of a run, derives every request again from its arrivals and every verdict from the requests, and
// compares them with what was recorded and reported.
func (s *Service) Audit(ctx context.Context, name string) (AuditResult, error) {
	dir, err := s.runDir(name)
	if err != nil {
		return AuditResult{}, err
	}
	if a, ok, err := s.auditImported(dir); ok {
		return a, err
	}
	out := AuditResult{Run: filepath.Base(dir)}
	found, err := ledger.Verify(dir)
	// What a crash left beside the record is in no number, and the chain shows that nothing is missing from it.
	for _, f := range found.Without(ledger.SetAside, ledger.OrphanLeg) {
		out.add("evidence", f.Path, "%s", f)
	}
	if err != nil {
		return out, &Error{Cause: CauseEvidence, Err: err}
	}
	led, _, err := ledger.Read(dir)
	if err != nil {
		return out, &Error{Cause: CauseEvidence, Err: err}
	}
	defer led.Close()
	out.Records, out.Simulated = led.Len(), led.Plan().Simulated()
	if err := out.requests(ctx, led); err != nil {
		return out, err
	}
	return out, s.auditReport(ctx, led, &out)
}

func (a *AuditResult) add(kind, where, format string, args ...any) {
	a.Findings = append(a.Findings, AuditFinding{Kind: kind, Where: where, Detail: fmt.Sprintf(format, args...)})
}

// requests compares what was written when a leg ended with what its arrivals give now.
func (a *AuditResult) requests(ctx context.Context, led *ledger.Run) error {
	points := map[string]matrix.Point{}
	for _, p := range led.Plan().Method.Points {
		points[p.ID] = p
	}
	loads := map[string]matrix.LoadRecord{}
	for l, err := range led.Loads() {
		if err != nil {
			return &Error{Cause: CauseEvidence, Err: err}
		}
		loads[l.ID] = l
	}
	for leg, err := range led.Legs() {
		if err := Pause(ctx); err != nil {
			return &Error{Cause: CauseInterrupted, Err: err}
		}
		if err != nil {
			a.add("evidence", leg.Dir, "%v", err)
			continue
		}
		a.Legs++
		load, ok := loads[leg.LoadID]
		if !ok {
			continue // its load was interrupted: in no number
		}
		again := leg
		again.Repetitions = slices.Clone(leg.Repetitions)
		if err := rederive(led, &again, load, points[leg.ID.Point]); err != nil {
			a.add("evidence", leg.Dir, "%v", err)
			continue
		}
		for i, rep := range leg.Repetitions {
			a.Requests += len(rep.Requests)
			if d := differ(rep.Requests, again.Repetitions[i].Requests); d != "" {
				a.add("request", fmt.Sprintf("%s repetition %d", leg.Dir, i), "%s", d)
			}
		}
	}
	return nil
}

// differ says where two lists of requests differ, by their recorded form.
func differ(recorded, derived []matrix.Request) string {
	if len(recorded) != len(derived) {
		return fmt.Sprintf("%d requests are recorded, the arrivals give %d", len(recorded), len(derived))
	}
	for i := range recorded {
		a, err1 := json.Marshal(recorded[i])
		b, err2 := json.Marshal(derived[i])
		if err := errors.Join(err1, err2); err != nil {
			return err.Error()
		}
		if !bytes.Equal(a, b) {
			return fmt.Sprintf("request %d is recorded as %s, the arrivals give %s", i, a, b)
		}
	}
	return ""
}

// auditReport judges the run again, resting on what the report beside the evidence says it rests on, and compares. What was
// put on record since, an A/A say, makes another report and does not make this one wrong.
func (s *Service) auditReport(ctx context.Context, led *ledger.Run, out *AuditResult) error {
	if len(out.Findings) > 0 {
		return nil // what cannot be derived cannot be compared either
	}
	var old matrix.Report
	written, err := led.ReadReport("report.json")
	if err != nil {
		out.add("report", "report.json", "%v", err)
	} else if err := json.Unmarshal(written, &old); err != nil {
		out.add("report", "report.json", "cannot be read: %v", err)
	}
	ev, err := s.evidence(ctx, led)
	if err != nil {
		return err
	}
	r, err := s.report(led, ev, &old.Beside)
	if err != nil {
		return err
	}
	out.Cells = len(r.Cells)
	if len(out.Findings) > 0 {
		return nil
	}
	if x, y := fmt.Sprint(old.Beside), fmt.Sprint(r.Beside); x != y {
		out.add("report", "report.json", "rests on runs that are not on record here: %s, found %s", x, y)
		return nil
	}
	out.listing(led, ev)
	for _, f := range rendered {
		var b bytes.Buffer
		if err := Render(&b, r, f[1], Look{}); err != nil {
			return err
		}
		name := "report." + f[0]
		text, err := led.ReadReport(name)
		switch {
		case errors.Is(err, fs.ErrNotExist): // says nothing that could be wrong
		case err != nil:
			out.add("report", name, "%v", err)
		case bytes.Equal(text, b.Bytes()):
		case f[1] == "json":
			before := len(out.Findings)
			if out.cells(old.Cells, r.Cells); len(out.Findings) == before {
				out.add("report", name, "differs from what the evidence gives, outside its cells")
			}
		default:
			out.add("report", name, "line %d is not what the evidence gives; broker report --format %s prints what it gives", lineOf(text, b.Bytes()), f[1])
		}
	}
	return nil
}

// lineOf is the number of the first line in which two texts differ.
func lineOf(a, b []byte) int {
	n := 1
	for i := 0; i < len(a) && i < len(b) && a[i] == b[i]; i++ {
		if a[i] == '\n' {
			n++
		}
	}
	return n
}

const maxSummary = 1 << 20

// listing compares the entry of the listing with the ledger. One that says that the run goes on is older than what came
// after, and says nothing that could be wrong.
func (a *AuditResult) listing(led *ledger.Run, ev evidence) {
	data, err := regular.ReadFile(filepath.Join(led.Dir(), summaryFile), maxSummary)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var had RunInfo
	if err == nil {
		err = json.Unmarshal(data, &had)
	}
	if err != nil {
		a.add("report", summaryFile, "%v", err)
		return
	}
	if had.State == StateRunning {
		return
	}
	is := describeRun(led, ev.state, ev.next)
	is.Updated, is.Marks = had.Updated, had.Marks
	if d := differences(had, is); len(d) > 0 {
		a.add("report", summaryFile, "is not what the ledger gives: %s", strings.Join(d, "; "))
	}
}

func (a *AuditResult) cells(reported, derived []matrix.Cell) {
	byID := map[matrix.CellID]matrix.Cell{}
	for _, c := range derived {
		byID[c.ID] = c
	}
	for _, c := range reported {
		d, ok := byID[c.ID]
		if !ok {
			a.add("report", c.ID.String(), "is reported, the evidence gives no such cell")
			continue
		}
		delete(byID, c.ID)
		if text := cellDiffers(c, d); text != "" {
			a.add("report", c.ID.String(), "is reported as another than the evidence gives: %s", text)
		}
	}
	for id := range byID {
		a.add("report", id.String(), "the evidence gives this cell, the report lacks it")
	}
}

// cellDiffers says where a cell as it is reported, first, differs from the one that the evidence gives. Numbers are shown
// only where the evidence allows them: those of a report that was edited are in no output.
func cellDiffers(reported, derived matrix.Cell) string {
	x, _ := reported.Numbers.Get()
	y, shown := derived.Numbers.Get()
	had := reported.Numbers.Present()
	reported.Numbers, derived.Numbers = matrix.Opt[matrix.Numbers]{}, matrix.Opt[matrix.Numbers]{}
	out := differences(reported, derived)
	switch {
	case had && !shown:
		out = append(out, "it has numbers, and none of this cell may be shown")
	case !had && shown:
		out = append(out, "it has no numbers")
	case shown && y.ShowRatio:
		out = append(out, differences(x, y)...)
	case shown && len(differences(x, y)) > 0:
		out = append(out, "its numbers are others")
	}
	return strings.Join(out, "; ")
}
