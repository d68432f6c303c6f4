package report

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"enginebroker/matrix"
)

// JSON writes the whole report. A number that is not finite is an error: it must not have come this far.
func JSON(w io.Writer, r matrix.Report) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("report of run %s: %w", r.Run, err)
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

var columns = []string{"run", "stamp", "pair_a", "pair_b", "group", "point", "metric", "formula", "unit", "denominator", "primary", "verdict", "direction", "detected",
	"reasons", "blocks", "median_a", "spread_a", "loads_a", "median_b", "spread_b", "loads_b", "ratio", "ratio_lo", "ratio_hi", "interval",
	"reversed", "q_dir", "q_eq", "margin", "aa_half_width", "grids", "details"}

// CSV writes one line a cell, all metrics. What may not be shown or is not there is empty, never 0.
func CSV(w io.Writer, r matrix.Report) error {
	if r.External {
		return importedCSV(w, r)
	}
	out := csv.NewWriter(w)
	if err := out.Write(columns); err != nil {
		return err
	}
	for _, c := range r.Cells {
		if err := out.Write(record(r, c)); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

func record(r matrix.Report, c matrix.Cell) []string {
	l := lineOf(c)
	v := map[string]string{
		"run": r.Run, "pair_a": c.ID.Pair.A, "pair_b": c.ID.Pair.B, "group": c.ID.Group, "point": c.ID.Point, "metric": c.ID.Metric,
		"formula": c.Metric.Formula, "unit": c.Metric.Unit, "denominator": c.Metric.Denominator, "primary": strconv.FormatBool(c.Metric.Primary),
		"verdict": l.Verdict, "direction": l.Direction, "detected": l.Detected, "reasons": strings.Join(l.Reasons, ";"), "blocks": l.Blocks, "stamp": stampOf(r, c),
	}
	var details []string
	for _, x := range c.Reasons {
		if x.Detail != "" {
			details = append(details, string(x.Code)+": "+x.Detail)
		}
	}
	v["details"] = strings.Join(details, "; ")
	if n, ok := c.Numbers.Get(); ok {
		for i, a := range n.Arms {
			if i > 1 {
				break
			}
			side := "_" + string(rune('a'+i))
			v["median"+side], v["spread"+side], v["loads"+side] = exact(a.Median), exact(a.Spread), strconv.Itoa(a.Loads)
		}
		if iv, ok := n.Interval.Get(); ok {
			v["ratio_lo"], v["ratio_hi"], v["interval"] = exact(matrix.Some(iv.RatioLo)), exact(matrix.Some(iv.RatioHi)), iv.Kind
			if n.ShowRatio {
				v["ratio"] = exact(iv.Ratio)
				if r, ok := n.Reversed.Get(); ok {
					v["reversed"] = strconv.Itoa(r)
				}
			}
			v["margin"] = exact(matrix.Some(n.Margin))
		}
		v["q_dir"], v["q_eq"], v["aa_half_width"] = exact(n.QDir), exact(n.QEq), exact(n.AAHalfWidth)
		var grids []string
		for i, g := range l.Grids {
			grids = append(grids, fmt.Sprintf("grid %d: %s", i+1, armList(g)))
		}
		v["grids"] = strings.Join(grids, "; ")
	}
	row := make([]string, len(columns))
	for i, name := range columns {
		row[i] = cellText(v[name])
	}
	return row
}

func stampOf(r matrix.Report, c matrix.Cell) string {
	if r.Simulated || c.Simulated {
		return "SIMULATED"
	}
	return ""
}

// exact is a number with all its digits, empty where there is none.
func exact(x matrix.Opt[float64]) string {
	v, ok := x.Get()
	if s := number(v); !ok || s == absent {
		return ""
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

// cellText keeps a spreadsheet from taking foreign text for a formula.
func cellText(s string) string {
	s = clean(s)
	if s != "" && strings.ContainsRune("=+-@", rune(s[0])) {
		if _, err := strconv.ParseFloat(s, 64); err != nil {
			return "'" + s
		}
	}
	return s
}
