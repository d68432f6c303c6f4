package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"enginebroker/matrix"
	"enginebroker/matrix/ledger"
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
	Run      string         `json:"run"`
	Records  int            `json:"records"`
	Legs     int            `json:"legs"`
	Requests int            `json:"requests"`
	Cells    int            `json:"cells"`
	Findings []AuditFinding `json:"findings,omitempty"`
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
	for _, f := range found {
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
	out.Records = led.Len()
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
		if ctx.Err() != nil {
			return &Error{Cause: CauseInterrupted, Err: ctx.Err()}
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
	var b bytes.Buffer
	if err := Render(&b, r, "json", Look{}); err != nil {
		return err
	}
	if bytes.Equal(written, b.Bytes()) {
		return nil
	}
	if x, y := fmt.Sprint(old.Beside), fmt.Sprint(r.Beside); x != y {
		out.add("report", "report.json", "rests on runs that are not on record here: %s, found %s", x, y)
		return nil
	}
	out.cells(old.Cells, r.Cells)
	if len(out.Findings) == 0 {
		out.add("report", "report.json", "differs from what the evidence gives, outside its cells")
	}
	return nil
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
		x, err1 := json.Marshal(c)
		y, err2 := json.Marshal(d)
		if err := errors.Join(err1, err2); err != nil || !bytes.Equal(x, y) {
			a.add("report", c.ID.String(), "is reported as %s, the evidence gives %s", x, y)
		}
	}
	for id := range byID {
		a.add("report", id.String(), "the evidence gives this cell, the report lacks it")
	}
}
