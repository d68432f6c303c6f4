package service

import (
	"encoding/json"
	"fmt"
	"strings"

	"enginebroker/engines/fingerprint"
	"enginebroker/matrix"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

// ToComparison is the message of a comparison, with what the command line ends with.
func ToComparison(c Comparison) (*brokerv1.CompareRunsResponse, error) {
	data, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	out := &brokerv1.CompareRunsResponse{Runs: prefixed(RunPrefix, c.Runs[:]), Reasons: each(c.Reasons, toCellReason), Notes: texts(c.Notes), Json: data,
		Cells: each(c.Cells, func(x CellComparison) *brokerv1.CellComparison {
			m := &brokerv1.CellComparison{Cell: text(x.Cell.String()), Unit: text(x.Unit), Verdicts: texts(x.Verdicts[:]), Arms: each(x.Arms, toShift), Reasons: each(x.Reasons, toCellReason), Moved: texts(x.Moved)}
			if x.Ratio != nil {
				m.Ratio = toShift(*x.Ratio)
			}
			return m
		})}
	if err := JudgeComparison(c); err != nil {
		out.Failure = FailureOf(err)
	}
	return out, nil
}

// ComparisonOf is the comparison of a message.
func ComparisonOf(m *brokerv1.CompareRunsResponse) (Comparison, error) {
	var c Comparison
	if err := json.Unmarshal(m.GetJson(), &c); err != nil {
		return c, fmt.Errorf("comparison: %w", err)
	}
	return c, nil
}

func toShift(m Moved) *brokerv1.Shift {
	return &brokerv1.Shift{Label: text(m.Label), First: numberOf(m.First), Second: numberOf(m.Second), Percent: number(m.Pct), WithinPercent: number(m.Within), Multiple: number(m.Multiple), Verdict: text(m.Verdict)}
}

// ToDiff is the message of what differs between two arms.
func ToDiff(d Diff) *brokerv1.ArmDiff {
	out := &brokerv1.ArmDiff{A: text(d.A.Name), AWhere: text(d.A.Where), B: text(d.B.Name), BWhere: text(d.B.Where), ASimulated: flag(d.A.Simulated), BSimulated: flag(d.B.Simulated), Says: text(d.TwoArms.Says),
		Differs: each(d.Differs, toDifference), Unknown: each(d.Unknown, toDifference)}
	if !d.TwoArms.Unknown {
		out.Distinct = new(d.TwoArms.Differ)
	}
	return out
}

// DiffOf is what differs between two arms, of its message.
func DiffOf(m *brokerv1.ArmDiff) (Diff, error) {
	d := Diff{A: DiffSide{Name: m.GetA(), Where: m.GetAWhere(), Simulated: m.GetASimulated()}, B: DiffSide{Name: m.GetB(), Where: m.GetBWhere(), Simulated: m.GetBSimulated()}, TwoArms: fingerprint.TwoArms{Differ: m.GetDistinct(), Unknown: m.Distinct == nil, Says: m.GetSays()},
		Differs: each(m.GetDiffers(), differenceOf), Unknown: each(m.GetUnknown(), differenceOf)}
	for i := range d.Unknown {
		d.Unknown[i].NotRecorded = true
	}
	return d, nil
}

func toDifference(d fingerprint.Difference) *brokerv1.Difference {
	return &brokerv1.Difference{Name: text(d.Name), Class: text(d.Class), A: told(d.A), B: told(d.B), AWhere: text(d.WhereA), BWhere: text(d.WhereB)}
}

func differenceOf(m *brokerv1.Difference) fingerprint.Difference {
	return fingerprint.Difference{Name: m.GetName(), Class: m.GetClass(), A: optOf(m.A), B: optOf(m.B), WhereA: m.GetAWhere(), WhereB: m.GetBWhere()}
}

// told is foreign text that may be absent.
func told(o matrix.Opt[string]) *string {
	if s, ok := o.Get(); ok {
		return new(utf8Of(s))
	}
	return nil
}

// ArmNameOf is a side of a diff by its resource name. Only plain names pass, so that no name is a path.
func ArmNameOf(name string) (ArmName, error) {
	out := ArmName{Name: name}
	for _, prefix := range []string{EnginePrefix, RunPrefix} {
		if plain, ok := strings.CutPrefix(name, prefix); ok {
			out = ArmName{Name: plain, Of: prefix}
		}
	}
	run, arm, armed := strings.Cut(out.Name, ":")
	if !runRule.MatchString(run) || armed && (out.Of == EnginePrefix || !runRule.MatchString(arm)) {
		return out, fail(CauseUsage, "", "%.100q is no arm; write engines/LABEL, runs/RUN or runs/RUN:ARM", name)
	}
	return out, nil
}

// CellOf is the name and the verdict of a cell, of its message.
func CellOf(m *brokerv1.Cell) (matrix.Cell, error) {
	var c converter
	out := matrix.Cell{ID: matrix.CellID{Pair: matrix.Pair{A: m.GetPair().GetA(), B: m.GetPair().GetB()}, Group: m.GetGroup(), Point: m.GetPoint(), Metric: m.GetMetric().GetName()},
		Verdict: back(&c, verdicts, m.Verdict)}
	return out, c.err
}

// ToMarginCell is the message of what a cell says of a margin.
func ToMarginCell(x ABCell) *brokerv1.MarginCell {
	return &brokerv1.MarginCell{Cell: text(x.Cell.String()), RatioLo: numberOf(x.Lo), RatioHi: numberOf(x.Hi), Holds: new(x.Holds), Why: text(x.Why), Simulated: flag(x.Simulated)}
}
