package service

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"enginebroker/engines/fingerprint"
	"enginebroker/matrix"
	"enginebroker/matrix/gates"
	"enginebroker/matrix/stats"
	"enginebroker/matrix/verdict"
)

// Comparison sets one run beside another of the same method (protocol §6).
type Comparison struct {
	Runs    [2]string           `json:"runs"`
	Reasons []matrix.CellReason `json:"reasons,omitempty"` // why the runs are not comparable as a whole; there are no cells then
	Notes   []string            `json:"notes,omitempty"`
	Cells   []CellComparison    `json:"cells,omitempty"`
}

// CellComparison is one primary cell in both runs. It has figures only where both cells may show theirs.
type CellComparison struct {
	Cell     matrix.CellID       `json:"cell"`
	Unit     string              `json:"unit"`
	Verdicts [2]string           `json:"verdicts"` // verdict and reasons of either run
	Arms     []Moved             `json:"arms,omitempty"`
	Ratio    *Moved              `json:"ratio,omitempty"` // of the blocks; its shift, not its value
	Reasons  []matrix.CellReason `json:"reasons,omitempty"`
	Moved    []string            `json:"moved,omitempty"`
}

// Moved is what one figure did from the first run to the second.
type Moved struct {
	Label    string              `json:"label"`
	First    matrix.Opt[float64] `json:"first,omitzero"` // median; absent for a ratio
	Second   matrix.Opt[float64] `json:"second,omitzero"`
	Pct      float64             `json:"pct"`
	Within   float64             `json:"within_pct"` // spread of the wider run
	Multiple float64             `json:"multiple"`   // of the spread
	Verdict  string              `json:"verdict"`
}

func moved(label string, s stats.Shift) Moved {
	return Moved{Label: label, Pct: s.Pct, Within: 100 * s.Within, Multiple: s.Multiple, Verdict: string(s.Verdict)}
}

// heard is a run as a comparison needs it.
type heard struct {
	name  string
	plan  matrix.Plan
	ev    evidence
	cells []verdict.CellSession
	torn  string // what is said of a torn last line
}

// Compare sets the primary cells of two runs side by side.
func (s *Service) Compare(ctx context.Context, first, second string) (Comparison, error) {
	out := Comparison{}
	var h [2]heard
	for i, name := range []string{first, second} {
		var err error
		if h[i], err = s.hear(ctx, name); err != nil {
			return out, err
		}
		out.Runs[i] = h[i].name
		if h[i].torn != "" {
			out.Notes = append(out.Notes, h[i].torn)
		}
	}
	if h[0].name == h[1].name {
		return out, fail(CauseUsage, "", "run %s beside itself shows nothing", h[0].name)
	}
	if out.whole(h); len(out.Reasons) > 0 {
		return out, nil
	}
	moved := map[string]bool{}
	for _, a := range h[0].cells {
		i := slices.IndexFunc(h[1].cells, func(b verdict.CellSession) bool { return b.Cell.ID == a.Cell.ID })
		if i < 0 {
			out.Notes = append(out.Notes, fmt.Sprintf("%s is in run %s only", a.Cell.ID, h[0].name))
			continue
		}
		c, err := compareCells(a, h[1].cells[i])
		if err != nil {
			return out, err
		}
		for _, m := range c.Moved {
			moved[m] = true
		}
		out.Cells = append(out.Cells, c)
	}
	for _, b := range h[1].cells {
		if !slices.ContainsFunc(h[0].cells, func(a verdict.CellSession) bool { return b.Cell.ID == a.Cell.ID }) {
			out.Notes = append(out.Notes, fmt.Sprintf("%s is in run %s only", b.Cell.ID, h[1].name))
		}
	}
	out.builds(h, sortedKeys(moved))
	if slices.ContainsFunc(h[:], func(x heard) bool {
		return slices.ContainsFunc(x.cells, func(c verdict.CellSession) bool { return c.Cell.Simulated })
	}) {
		out.Notes = append([]string{"SIMULATED: no engine was measured; these numbers come from a program that plays one"}, out.Notes...)
	}
	return out, nil
}

func (s *Service) hear(ctx context.Context, name string) (heard, error) {
	var h heard
	dir, err := s.runDir(name)
	if err != nil {
		return h, err
	}
	if _, ok, err := s.imported(dir); ok || err != nil {
		return h, cmp.Or(err, error(fail(CauseNotComparable, "", "run %s holds imported results, which stand in no ratio", name)))
	}
	led, torn, err := s.verified(dir)
	if err != nil {
		return h, err
	}
	defer led.Close()
	h.torn = torn
	h.plan = led.Plan()
	if h.ev, err = s.evidence(ctx, led); err != nil {
		return h, err
	}
	in, _, err := s.input(h.plan, h.ev, nil)
	if err != nil {
		return h, err
	}
	if in.Profile, err = gates.ProfileByName(h.plan.Box); err != nil {
		return h, err
	}
	h.cells, err = verdict.Sessions(in)
	h.name = filepath.Base(dir)
	return h, err
}

// whole looks at what the runs are: another method, machine or set of files ends the comparison before a number is shown.
func (c *Comparison) whole(h [2]heard) {
	refuse := func(code matrix.Reason, detail, next string) {
		c.Reasons = append(c.Reasons, matrix.CellReason{Code: code, Detail: detail, Next: next})
	}
	if a, b := h[0].plan, h[1].plan; a.MethodID != b.MethodID {
		refuse(matrix.MethodMismatch, fmt.Sprintf("methods %.12s and %.12s differ in %s", a.MethodID, b.MethodID, strings.Join(differences(a.Method, b.Method), "; ")), "measure both by one method")
	}
	m1, d1 := machine(h[0].ev.box)
	m2, d2 := machine(h[1].ev.box)
	if m1 != m2 {
		refuse(matrix.MachineMismatch, m1+" and "+m2, "measure both on one machine")
	} else if d1 != d2 {
		c.Notes = append(c.Notes, "driver or kernel changed: "+d1+" then "+d2)
	}
	for _, id := range sortedKeys(h[0].plan.Manifests) {
		if x, y := h[0].plan.Manifests[id], h[1].plan.Manifests[id]; y != "" && x != y {
			refuse(matrix.CheckpointMismatch, fmt.Sprintf("files of %s: manifest %.12s and %.12s", id, x, y), "measure the same files")
		}
	}
	if len(h[0].ev.grids) > 0 && len(h[1].ev.grids) > 0 && h[0].ev.grids[0].Info.BootID == h[1].ev.grids[0].Info.BootID {
		c.Notes = append(c.Notes, "both runs are of one boot: that they agree says nothing about another")
	}
	for k, key := range armKeys(h[0].plan) {
		if other := armKeys(h[1].plan)[k]; other != "" && other != key {
			c.Notes = append(c.Notes, fmt.Sprintf("%s of %s is declared otherwise in the second run", k[1], k[0]))
		}
	}
	slices.Sort(c.Notes)
}

func compareCells(a, b verdict.CellSession) (CellComparison, error) {
	c := CellComparison{Cell: a.Cell.ID, Unit: a.Cell.Metric.Unit}
	for i, x := range []matrix.Cell{a.Cell, b.Cell} {
		c.Verdicts[i] = fmt.Sprintf("%s (%s)", x.Verdict, joinCodes(x.Codes()))
	}
	s1, ok1 := a.Session.Get()
	s2, ok2 := b.Session.Get()
	if !ok1 || !ok2 {
		for i, x := range []verdict.CellSession{a, b} {
			if !x.Session.Present() {
				for _, r := range x.Cell.Reasons {
					if v, err := r.Code.Verdict(); err == nil && v == x.Cell.Verdict {
						r.Detail = []string{"first run: ", "second run: "}[i] + r.Detail
						c.Reasons = append(c.Reasons, r)
					}
				}
			}
		}
		return c, nil
	}
	k, err := verdict.Compare(a.Cell.ID.Pair, s1, s2)
	if err != nil {
		return c, fmt.Errorf("cell %s: %w", a.Cell.ID, err)
	}
	c.Reasons, c.Moved = k.Reasons, k.Moved
	for i, x := range []stats.Shift{k.A, k.B} {
		m := moved([]string{a.Cell.ID.Pair.A, a.Cell.ID.Pair.B}[i], x)
		m.First, m.Second = matrix.Some([]float64{s1.A.Median, s1.B.Median}[i]), matrix.Some([]float64{s2.A.Median, s2.B.Median}[i])
		c.Arms = append(c.Arms, m)
	}
	r := moved("ratio", k.Ratio)
	c.Ratio = &r
	return c, nil
}

// builds says what of the arms that moved is recorded otherwise in the two runs: the first thing to look at.
func (c *Comparison) builds(h [2]heard, labels []string) {
	const most = 6
	for _, label := range labels {
		a, b := h[0].ev.facts(label), h[1].ev.facts(label)
		var lines []string
		for _, d := range fingerprint.Diff(a, b) {
			if !d.NotRecorded {
				lines = append(lines, fmt.Sprintf("%s %.40s, %.40s", d.Name, d.A.Or("absent"), d.B.Or("absent")))
			}
		}
		if len(lines) == 0 {
			c.Notes = append(c.Notes, label+" moved, and nothing recorded of it differs: its load state, or what nobody records")
			continue
		}
		if len(lines) > most {
			lines = append(lines[:most], fmt.Sprintf("and %d more", len(lines)-most))
		}
		c.Notes = append(c.Notes, label+" moved; recorded otherwise: "+strings.Join(lines, "; "))
	}
}

// facts is what an arm's first load showed of itself.
func (ev evidence) facts(label string) matrix.Facts {
	for _, g := range ev.grids {
		for _, l := range g.Loads {
			if ready, ok := l.Ready.Get(); ok && l.Slot.Arm == label {
				return ready.Facts
			}
		}
	}
	return nil
}

// differences names the fields in which two values of one type differ, with both sides, at most eight.
func differences(a, b any) []string {
	const most = 8
	var out []string
	var walk func(path string, x, y any)
	walk = func(path string, x, y any) {
		xm, ok1 := x.(map[string]any)
		ym, ok2 := y.(map[string]any)
		if ok1 && ok2 {
			keys := map[string]bool{}
			for k := range xm {
				keys[k] = true
			}
			for k := range ym {
				keys[k] = true
			}
			for _, k := range sortedKeys(keys) {
				walk(strings.TrimPrefix(path+"."+k, "."), xm[k], ym[k])
			}
			return
		}
		xl, ok1 := x.([]any)
		yl, ok2 := y.([]any)
		if ok1 && ok2 && len(xl) == len(yl) {
			for i := range xl {
				walk(fmt.Sprintf("%s[%d]", path, i), xl[i], yl[i])
			}
			return
		}
		xt, _ := json.Marshal(x) // of values that came from JSON
		yt, _ := json.Marshal(y)
		if string(xt) != string(yt) {
			out = append(out, fmt.Sprintf("%s: %.60s, %.60s", path, xt, yt))
		}
	}
	walk("", plain(a), plain(b))
	if len(out) > most {
		out = append(out[:most], fmt.Sprintf("and %d more", len(out)-most))
	}
	return out
}

func plain(v any) any {
	var out any
	if data, err := json.Marshal(v); err != nil || json.Unmarshal(data, &out) != nil {
		return nil
	}
	return out
}

// JudgeComparison is what the caller of a comparison should fail with: runs that are not comparable, or the worst cell of
// which nothing can be said, or that did not come back.
func JudgeComparison(c Comparison) error {
	if len(c.Reasons) > 0 {
		var codes []matrix.Reason
		for _, r := range c.Reasons {
			codes = append(codes, r.Code)
		}
		return fail(CauseNotComparable, "", "runs %s and %s are not comparable (%s)", c.Runs[0], c.Runs[1], joinCodes(codes))
	}
	if len(c.Cells) == 0 {
		return fail(CauseNotComparable, "", "runs %s and %s have no cell in common", c.Runs[0], c.Runs[1])
	}
	worst := matrix.Established
	var at string
	for _, x := range c.Cells {
		for _, r := range x.Reasons {
			if v, err := r.Code.Verdict(); err == nil && v > worst {
				worst, at = v, fmt.Sprintf("%s is %s (%s)", x.Cell, v, strings.TrimSuffix(string(r.Code)+": "+r.Detail, ": "))
			}
		}
	}
	if cause, fails := verdictCause(worst); fails {
		return fail(cause, "", "%s", at)
	}
	return nil
}
