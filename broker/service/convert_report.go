package service

import (
	"fmt"
	"math"

	"enginebroker/matrix"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

var verdicts = []word[matrix.Verdict, brokerv1.Verdict]{
	{matrix.Established, brokerv1.Verdict_VERDICT_ESTABLISHED},
	{matrix.Provisional, brokerv1.Verdict_VERDICT_PROVISIONAL},
	{matrix.Inconclusive, brokerv1.Verdict_VERDICT_INCONCLUSIVE},
	{matrix.NotReproduced, brokerv1.Verdict_VERDICT_NOT_REPRODUCED},
	{matrix.Withheld, brokerv1.Verdict_VERDICT_WITHHELD},
	{matrix.Void, brokerv1.Verdict_VERDICT_VOID},
	{matrix.NotComparable, brokerv1.Verdict_VERDICT_NOT_COMPARABLE},
}

var directions = []word[matrix.Direction, brokerv1.Direction]{
	{matrix.DirNone, brokerv1.Direction_DIRECTION_NONE},
	{matrix.DirFaster, brokerv1.Direction_DIRECTION_FASTER},
	{matrix.DirSlower, brokerv1.Direction_DIRECTION_SLOWER},
	{matrix.DirEquivalent, brokerv1.Direction_DIRECTION_EQUIVALENT},
}

// ToReport is the message of a report. Numbers that a cell may not show are in no field of it.
func ToReport(r matrix.Report) (*brokerv1.Report, error) {
	plan, err := ToPlan(Planned{Plan: r.Plan})
	if err != nil {
		return nil, err
	}
	plan.CanonicalJson = nil // its hash is in the report
	out := &brokerv1.Report{Run: text(RunPrefix + r.Run), Plan: plan, PlanSha256: text(r.PlanSHA256), State: text(r.State), Next: text(r.Next), Simulated: flag(r.Simulated),
		Legs: each(r.Legs, toLeg), Reloads: each(r.Reloads, toReload), Box: each(r.Box, toFact), AbsentGates: texts(r.Absent),
		Grids: each(r.Grids, func(g matrix.GridInfo) *brokerv1.Grid {
			return &brokerv1.Grid{Index: count(g.Index), BootId: text(g.BootID), Seed: text(g.Seed), Done: new(g.Done)}
		})}
	for _, c := range r.Cells {
		m, err := ToCell(c)
		if err != nil {
			return nil, err
		}
		out.Cells = append(out.Cells, m)
	}
	return out, nil
}

// ToCell is the message of a cell. A verdict, reason or direction that the protocol does not have is an error.
func ToCell(c matrix.Cell) (*brokerv1.Cell, error) {
	out := &brokerv1.Cell{Id: text(c.ID.String()), Pair: toPair(c.ID.Pair), Group: text(c.ID.Group), Point: text(c.ID.Point), Verdict: enumOf(verdicts, c.Verdict),
		Direction: enumOf(directions, c.Direction), Blocks: count(c.Blocks), Simulated: flag(c.Simulated), Annotations: texts(c.Annotated)}
	if out.Verdict == nil || out.Direction == nil {
		return nil, fmt.Errorf("cell %s: verdict %v, direction %q: the protocol has no such words", c.ID, c.Verdict, c.Direction)
	}
	for _, r := range c.Reasons {
		if _, err := r.Code.Verdict(); err != nil {
			return nil, fmt.Errorf("cell %s: %w", c.ID, err)
		}
		out.Reasons = append(out.Reasons, toCellReason(r))
	}
	if c.Metric.Name != "" {
		m := c.Metric
		out.Metric = &brokerv1.Metric{Name: text(m.Name), Formula: text(m.Formula), Unit: text(m.Unit), Denominator: text(m.Denominator), Class: text(string(m.Class)),
			HigherIsBetter: new(m.Higher), Primary: new(m.Primary)}
		if m.Percentile > 0 {
			out.Metric.Percentile = count(m.Percentile)
		}
	}
	if n, ok := c.Numbers.Get(); ok {
		out.Numbers = toNumbers(n)
	}
	for _, h := range c.History {
		past := &brokerv1.PastCell{Run: text(RunPrefix + h.Run), Verdict: enumOf(verdicts, h.Verdict), SupersededBy: text(h.By)}
		for _, r := range h.Reasons {
			past.Reasons = append(past.Reasons, string(r))
		}
		out.History = append(out.History, past)
	}
	return out, nil
}

func toReload(r matrix.Reload) *brokerv1.Reload {
	return &brokerv1.Reload{Run: text(RunPrefix + r.Run), Arm: text(r.Arm), Point: text(r.Point), Metric: text(r.Metric), Unit: text(r.Unit), Verdict: text(r.Verdict), Reason: text(r.Reason), Values: r.Values,
		Loads: texts(r.Loads), Void: texts(r.Void), Modes: r.Modes, Sizes: each(r.Sizes, func(n int) int64 { return int64(n) }), Spread: numberOf(r.Spread), Median: numberOf(r.Median), TrendP: numberOf(r.TrendP),
		MissedUpTo: numberOf(r.MissedTo), Text: text(r.Text), Next: text(r.Next)}
}

func toCellReason(r matrix.CellReason) *brokerv1.CellReason {
	return &brokerv1.CellReason{Code: text(string(r.Code)), Detail: text(r.Detail), Evidence: texts(r.Evidence), Next: text(r.Next)}
}

func toNumbers(n matrix.Numbers) *brokerv1.Numbers {
	out := &brokerv1.Numbers{ShowRatio: new(n.ShowRatio), Arms: each(n.Arms, toSummary), Margin: number(n.Margin),
		AaHalfWidth: numberOf(n.AAHalfWidth), QDir: numberOf(n.QDir), QEq: numberOf(n.QEq), CannotShowEquivalence: flag(n.NoEquivalent)}
	if n.Detected != "" {
		out.Detected = enumOf(directions, n.Detected)
	}
	if r, ok := n.Reversed.Get(); ok {
		out.Reversed = count(r)
	}
	for _, g := range n.Grids {
		out.Grids = append(out.Grids, &brokerv1.GridArms{Arms: each(g, toSummary)})
	}
	if i, ok := n.Interval.Get(); ok {
		m := &brokerv1.Interval{Lo: number(i.Lo), Hi: number(i.Hi), Df: count(i.DF), Kappa: number(i.Kappa), RatioLo: number(i.RatioLo), RatioHi: number(i.RatioHi), Kind: text(i.Kind)}
		if n.ShowRatio {
			m.Theta, m.Se, m.Ratio, m.MedianRatio, m.MinRatio, m.MaxRatio = numberOf(i.Theta), numberOf(i.SE), numberOf(i.Ratio), numberOf(i.Median), numberOf(i.Min), numberOf(i.Max)
		}
		out.Interval = m
	}
	return out
}

func toSummary(a matrix.ArmSummary) *brokerv1.ArmSummary {
	return &brokerv1.ArmSummary{Label: text(a.Label), Median: numberOf(a.Median), Spread: numberOf(a.Spread), Loads: count(a.Loads)}
}

// number is a value that is one: infinities and NaN are no numbers and stay away.
func number(x float64) *float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return nil
	}
	return &x
}

func numberOf(o matrix.Opt[float64]) *float64 {
	if x, ok := o.Get(); ok {
		return number(x)
	}
	return nil
}

func toLeg(l matrix.LegSummary) *brokerv1.Leg {
	out := &brokerv1.Leg{LoadId: text(l.LoadID), Arm: text(l.ID.Arm), Group: text(l.ID.Group), Point: text(l.ID.Point), Grid: count(l.ID.Grid), Superblock: count(l.ID.Superblock),
		Block: count(l.ID.Block), LeadIn: flag(l.ID.LeadIn), Cause: text(string(l.Gate.Cause)), Ok: count(l.OK), Failed: count(l.Failed), Suspect: count(l.Suspect)}
	for _, c := range l.Gate.Codes {
		out.Codes = append(out.Codes, string(c))
	}
	for c, d := range l.Gate.Detail {
		if out.Details == nil {
			out.Details = map[string]string{}
		}
		out.Details[string(c)] = utf8Of(d)
	}
	for name, v := range l.Values {
		if x := numberOf(v.X); x != nil {
			if out.Values == nil {
				out.Values = map[string]float64{}
			}
			out.Values[name] = *x
		}
	}
	return out
}
