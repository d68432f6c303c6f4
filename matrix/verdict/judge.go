package verdict

import (
	"fmt"
	"slices"

	"enginebroker/matrix"
)

// Judge turns the evidence of a run into its cells. Equal input gives an equal result, whatever the order of loads and
// legs. Evidence that does not belong to the plan is an error that names it.
func Judge(in Input) (Result, error) {
	x, drafts, err := prepared(in)
	if err != nil {
		return Result{}, fmt.Errorf("judge: %w", err)
	}
	in = x.in
	var res Result
	shown := map[shownKey]bool{}
	extend := map[int]bool{}
	var seen *pairing // drafts of one pairing follow each other
	for _, c := range drafts {
		if c.pairing != seen {
			seen = c.pairing
			res.EngineVoids = append(res.EngineVoids, x.owed(seen)...)
		}
		cell, err := x.cell(c)
		if err != nil {
			return Result{}, fmt.Errorf("judge: cell %s: %w", cell.ID, err)
		}
		res.Simulated = res.Simulated || cell.Simulated
		if cell.Numbers.Present() {
			shown[shownKey{c.group, c.a, c.point, c.metric.Name}] = true
			shown[shownKey{c.group, c.b, c.point, c.metric.Name}] = true
		}
		if c.undecided(cell.Verdict) {
			extend[c.group] = true
		}
		res.Cells = append(res.Cells, cell)
	}
	for _, r := range in.Plan.Refusals {
		cell, err := refused(r)
		if err != nil {
			return Result{}, fmt.Errorf("judge: refusal of %s:%s: %w", r.Pair.A, r.Pair.B, err)
		}
		res.Cells = append(res.Cells, cell)
	}
	res.Legs, res.Absent = x.summaries(shown)
	res.Rerun = x.rerun(drafts)
	if len(res.Rerun) == 0 && len(in.Grids) == x.primary+1 {
		for g := range in.Plan.Groups {
			if t := x.sections[x.primary][g].target; extend[g] && 2*t >= matrix.MinBlocks && 2*t < matrix.MaxBlocks {
				res.Extend = append(res.Extend, g)
			}
		}
	}
	return res, nil
}

// prepared indexes the evidence and makes the drafts of all cells, p values corrected.
func prepared(in Input) (*index, []*draft, error) {
	if !slices.Contains([]AA{AAPass, AAFail, AAMissing}, in.AA) {
		return nil, nil, fmt.Errorf("A/A evidence %q: pass, fail or missing", in.AA)
	}
	in.Metrics = slices.Clone(in.Metrics) // whether one is primary is the plan's to say
	if len(in.Grids) == 0 {
		in.Grids = []Grid{{}} // nothing has run: every cell has no valid block
	}
	x, err := newIndex(in)
	if err != nil {
		return nil, nil, err
	}
	drafts, err := x.drafts()
	if err != nil {
		return nil, nil, err
	}
	return x, drafts, correct(drafts)
}

// drafts makes one draft for each pair × point × metric, in plan order, but for metrics that nothing there could measure.
func (x *index) drafts() ([]*draft, error) {
	var out []*draft
	deltas := make([]float64, len(x.in.Metrics))
	declared := x.in.Plan.Method.Primary
	for i, m := range x.in.Metrics {
		if len(declared) > 0 {
			x.in.Metrics[i].Primary = slices.Contains(declared, m.Name)
		}
		var err error
		if deltas[i], err = margin(x.in.Plan.Method, m.Class); err != nil {
			return nil, fmt.Errorf("metric %s: %w", m.Name, err)
		}
	}
	ys := x.yields()
	for g, group := range x.in.Plan.Groups {
		for _, pair := range group.Pairs {
			for pt := range x.in.Plan.Method.Points {
				p := x.pairing(g, pt, pair)
				p.judge(x)
				for i, m := range x.in.Metrics {
					if x.leaveOut(p, m, ys) {
						continue
					}
					out = append(out, x.draft(p, m, deltas[i]))
				}
			}
		}
	}
	return out, nil
}

// cell finishes one draft.
func (x *index) cell(c *draft) (matrix.Cell, error) {
	g := x.in.Plan.Groups[c.group]
	cell := matrix.Cell{
		ID:        matrix.CellID{Pair: c.pair, Group: g.ID, Point: x.in.Plan.Method.Points[c.point].ID, Metric: c.metric.Name},
		Metric:    c.metric,
		Direction: matrix.DirNone,
		Blocks:    len(c.primary.d),
		Annotated: c.notes,
	}
	if err := c.judge(x, cell.ID); err != nil {
		return cell, err
	}
	if c.withheld {
		cell.Blocks = primaryBlocks(c.pairing, x)
	}
	cell.Reasons = merged(c.reasons)
	var err error
	if cell.Verdict, err = Of(cell.Codes()); err != nil {
		return cell, err
	}
	cell.Simulated = slices.Contains(cell.Codes(), matrix.Simulated)
	prints := Prints(cell.Verdict, cell.Codes()...)
	if !slices.Contains(prints, PrintMedians) {
		withholdFigures(cell.Reasons)
	}
	if slices.Contains(prints, PrintDirection) {
		cell.Direction = c.dec.Direction
	}
	cell.Numbers = c.numbers(x, cell.Verdict, cell.Codes())
	return cell, nil
}

// measured are the reasons whose detail tells a figure of the cell itself.
var measured = []matrix.Reason{matrix.LoadStateSuspect, matrix.LoadStateMulti, matrix.WideCI, matrix.ReversedBlocks, matrix.GridUndecided, matrix.GridShiftCommon, matrix.GridInterval}

// withholdFigures keeps the codes, evidence and next steps of a cell that shows no number: what its numbers are is not told in
// words either.
func withholdFigures(reasons []matrix.CellReason) {
	for i := range reasons {
		if slices.Contains(measured, reasons[i].Code) {
			reasons[i].Detail = "its figures are withheld with the cell"
		}
	}
}

// refused is the cell of a pair that has nothing to be measured.
func refused(r matrix.Refusal) (matrix.Cell, error) {
	v, err := r.Reason.Verdict()
	if err != nil {
		return matrix.Cell{}, err
	}
	return matrix.Cell{
		ID:        matrix.CellID{Pair: r.Pair},
		Verdict:   v,
		Reasons:   []matrix.CellReason{{Code: r.Reason, Detail: r.Detail, Next: r.Fix}},
		Direction: matrix.DirNone,
	}, nil
}

type shownKey struct {
	group, arm, point int
	metric            string
}

// summaries lists the legs. A value stands in it only where some cell may show it: a number of a void or withheld cell
// does not come back through the list of legs (protocol §4.5).
func (x *index) summaries(shown map[shownKey]bool) ([]matrix.LegSummary, []string) {
	var out []matrix.LegSummary
	var absent []string
	for _, l := range x.legs {
		s := matrix.LegSummary{ID: l.rec.ID, LoadID: l.rec.LoadID, Gate: l.gate, OK: l.gate.OK, Failed: l.gate.Failed, Suspect: l.gate.Suspect}
		group := x.groups[l.rec.ID.Group]
		for name, v := range l.values {
			if l.gate.Valid() && shown[shownKey{group, x.arms[group][l.rec.ID.Arm], x.points[l.rec.ID.Point], name}] {
				if s.Values == nil {
					s.Values = map[string]matrix.Value{}
				}
				s.Values[name] = v
			}
		}
		absent = append(absent, l.gate.Absent...)
		out = append(out, s)
	}
	absent = append(absent, x.unmeasured...)
	slices.Sort(absent)
	return out, slices.Compact(absent)
}

// rerun lists the superblocks of the last grid that the environment or the client's lateness voided and that are owed
// (protocol §4.4): as many as the cell that lacks most, because a fresh draw serves every cell. Cells that no re-run can
// release ask for none.
func (x *index) rerun(drafts []*draft) []Rerun {
	last := len(x.in.Grids) - 1
	owed := make([][]Rerun, len(x.in.Plan.Groups))
	var seen *pairing // drafts of one pairing follow each other
	for _, c := range drafts {
		s, g := x.sections[last][c.group], c.pairing.grids[last]
		if c.pairing == seen || len(g.tally.Reasons) > 0 {
			continue // one look at each pairing; an engine's failure, a fault or an unfit box has nothing to gain
		}
		seen = c.pairing
		lost := slices.Sorted(slices.Values(append(slices.Clone(g.tally.Env), g.tally.Lag...)))
		lack := min(s.target-len(g.tally.Used), len(lost))
		if lack <= len(owed[c.group]) {
			continue
		}
		owed[c.group] = nil
		for _, i := range lost[len(lost)-lack:] {
			v := g.voids[slices.IndexFunc(g.voids, func(v voidLeg) bool { return v.sb == s.sbs[i] })]
			owed[c.group] = append(owed[c.group], Rerun{Group: c.group, Superblock: s.sbs[i].index, Why: v.id + ": " + v.detail})
		}
	}
	return slices.Concat(owed...)
}
