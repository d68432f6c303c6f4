package service

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"enginebroker/matrix"
	"enginebroker/matrix/ledger"
	"enginebroker/matrix/report"
	"enginebroker/matrix/run"
)

// Look says how text is to look.
type Look struct {
	Width int  // columns, 0: the default
	Color bool // ANSI colours
	All   bool // secondary metrics too
}

func (l Look) options() report.Options {
	return report.Options{Width: l.Width, Color: l.Color, Secondary: l.All}
}

// Formats lists the formats of a report.
func Formats() []string { return []string{"terminal", "markdown", "csv", "json", "html"} }

// Render writes a report in a format.
func Render(w io.Writer, r matrix.Report, format string, look Look) error {
	switch format {
	case "", "terminal":
		if err := report.Terminal(w, r, look.options()); err != nil {
			return err
		}
		return renderReloads(w, r.Reloads)
	case "markdown":
		return report.Markdown(w, r)
	case "csv":
		return report.CSV(w, r)
	case "json":
		return report.JSON(w, r)
	case "html":
		return report.HTML(w, r)
	}
	return fail(CauseUsage, near(format, Formats()), "no format %q; there are %s", format, strings.Join(Formats(), ", "))
}

// RenderPlan writes a plan as people read it, with the notes and what is missing.
func RenderPlan(w io.Writer, p Planned, look Look) error {
	if err := report.Plan(w, p.Plan, look.options()); err != nil {
		return err
	}
	for _, n := range p.Notes {
		if _, err := fmt.Fprintf(w, "note: %s\n", n); err != nil {
			return err
		}
	}
	return nil
}

// Explain writes why one cell has its verdict.
func Explain(w io.Writer, c matrix.Cell, look Look) error {
	return report.Explain(w, c, look.options())
}

// rendered are the endings and formats of the reports beside the evidence. JSON comes last: where it is, the others are.
var rendered = [][2]string{{"html", "html"}, {"csv", "csv"}, {"md", "markdown"}, {"json", "json"}}

// writeReport keeps the report beside the evidence, in every format.
func (s *Service) writeReport(led *ledger.Run, r matrix.Report) error {
	for _, f := range rendered {
		var b bytes.Buffer
		if err := Render(&b, r, f[1], Look{}); err != nil {
			return err
		}
		if err := led.WriteReport("report."+f[0], b.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// Judge turns a report into the error a caller should fail with: what runs is not what its pin says, the worst verdict of
// the comparable cells, a plan that did not come to its end, a level that was asked for and not reached, or an engine that was
// asked for and is not here. Refusals that
// the plan had from the start do not count. An A/A is judged by its own rule, and a reload experiment has no cells.
func Judge(r matrix.Report, require string) error {
	if r.External {
		if require != "" {
			return fail(CauseRequire, "", "--require %s: imported results have no verdicts", require)
		}
		return nil
	}
	switch r.Plan.Purpose {
	case matrix.PurposeAA:
		return judgeAA(r)
	case matrix.PurposeReload:
		if r.State == StateComplete {
			return nil
		}
		return fail(CauseInterrupted, "go on with: "+r.Next, "the experiment did not come to its end")
	}
	worst, comparable := matrix.Established, 0
	var at matrix.Cell
	for _, c := range r.Cells {
		if c.ID.Group == "" {
			continue // refused before anything ran
		}
		comparable++
		if slices.Contains(c.Codes(), matrix.IdentityAssertFailed) {
			return decided(c, fail(CauseIdentity, "", "%s is %s (%s)", c.ID, c.Verdict, joinCodes(c.Codes())))
		}
		// Of the worst, the first primary one is named: the report of a terminal shows it.
		if at.ID.Group == "" || c.Verdict > worst || c.Verdict == worst && c.Metric.Primary && !at.Metric.Primary {
			worst, at = c.Verdict, c
		}
	}
	if comparable == 0 {
		return fail(CauseNotComparable, "", "no pair was comparable")
	}
	why := fmt.Sprintf("%s is %s (%s)", at.ID, at.Verdict, joinCodes(at.Codes()))
	if c, fails := verdictCause(worst); fails {
		return decided(at, fail(c, "", "%s", why))
	}
	if r.State == StateInterrupted || r.State == StateAborted {
		return fail(CauseInterrupted, "go on with: "+r.Next, "run %s did not come to its end", r.Run)
	}
	limit := map[string]matrix.Verdict{"": matrix.Inconclusive, "provisional": matrix.Provisional, "established": matrix.Established}[require]
	if worst > limit {
		return decided(at, fail(CauseRequire, "", "--require %s: %s", require, why))
	}
	if gone := sortedKeys(r.Plan.Absent); len(gone) > 0 {
		return fail(CauseNotInstalled, "mend or install it, or leave it out with --engines", "%s took no part: %s", gone[0], r.Plan.Absent[gone[0]])
	}
	return nil
}

func joinCodes(codes []matrix.Reason) string {
	out := make([]string, len(codes))
	for i, c := range codes {
		out[i] = string(c)
	}
	return strings.Join(out, ", ")
}

// Event is one step of a run.
type Event run.Event

// Relaunch is the kind of the event that tells of a plugin that died and was launched again; its arm is the instance.
const Relaunch = "relaunch"

// Line is the event as a person reads it, empty for steps that only machines follow.
func (e Event) Line() string {
	where := e.Arm
	if e.Load != "" && e.Arm != "" {
		where = fmt.Sprintf("[%d/%d] %s", e.LoadsDone+1, e.LoadsTotal, e.Arm)
	}
	switch e.Kind {
	case "grid", "corpus", "settle", "finding", Relaunch, "done":
		return e.Text
	case "superblock":
		return strings.TrimSpace(fmt.Sprintf("superblock %d of %s %s", e.Superblock+1, e.Group, e.Text))
	case "reused":
		return fmt.Sprintf("reused %s, %s", e.Load, e.Text)
	case "load":
		if e.Block < 0 {
			return where + " lead-in, starting"
		}
		return where + " starting"
	case "ready":
		return where + " ready after " + e.Text
	case "leg":
		if len(e.Codes) > 0 {
			return fmt.Sprintf("%s %s VOID: %s", where, e.Point, strings.Join(e.Codes, ", "))
		}
		return fmt.Sprintf("%s %s measured", where, e.Point)
	case "stopped":
		if e.Text != "" && e.Text != "term" {
			return where + " " + e.Text
		}
	case run.Rerun:
		return "running a voided superblock of " + e.Group + " again"
	case run.Extend:
		return "one superblock more for " + e.Group + ": primary cells are undecided"
	case "drop":
		return e.Arm + " is not loaded again: " + e.Text
	}
	return ""
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
