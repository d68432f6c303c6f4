package verdict

import (
	"math"
	"slices"

	"enginebroker/matrix"
	"enginebroker/matrix/stats"
)

// numbers is everything a verdict allows a cell to show, and nothing else (protocol §4.5).
func (c *draft) numbers(x *index, v matrix.Verdict, codes []matrix.Reason) matrix.Opt[matrix.Numbers] {
	prints := Prints(v, codes...)
	may := func(p Print) bool { return slices.Contains(prints, p) }
	if !may(PrintMedians) || len(c.primary.d) == 0 {
		return matrix.Opt[matrix.Numbers]{}
	}
	n := matrix.Numbers{Margin: c.margin}
	if v == matrix.NotReproduced {
		for i := range c.grids {
			if len(c.grids[i].d) > 0 {
				n.Grids = append(n.Grids, c.summaries(&c.grids[i]))
			}
		}
		return matrix.Some(n)
	}
	n.Arms = c.summaries(c.primary)
	n.Reversed = matrix.Some(c.dec.Reversed)
	n.AAHalfWidth = c.floor
	n.NoEquivalent = c.floor.Or(0) > c.delta
	n.ShowRatio = may(PrintRatio) && c.primary.ok
	if may(PrintCI) && c.primary.ok {
		n.Interval = matrix.Some(c.interval(n.ShowRatio))
	}
	if may(PrintDirection) && c.metric.Primary {
		n.Detected = c.dec.Detected
		n.QDir, n.QEq = matrix.Some(c.qDir), matrix.Some(c.qEq)
	}
	return matrix.Some(n)
}

// interval is the printed interval: across grids where there are several, θ always the primary grid's (protocol §6).
// Without the right to a ratio only its two ends are in it.
func (c *draft) interval(ratio bool) matrix.Interval {
	e := c.primary.est
	out := matrix.Interval{Lo: e.Lo, Hi: e.Hi, DF: e.DF, Kappa: e.Kappa, Kind: c.primary.kind}
	if c.env.Grids > 1 {
		out.Lo, out.Hi, out.Kind = c.env.Lo, c.env.Hi, "grid_envelope"
	}
	out.RatioLo, out.RatioHi = math.Exp(out.Lo), math.Exp(out.Hi)
	if ratio {
		out.Theta, out.SE, out.Ratio = matrix.Some(e.Theta), matrix.Some(e.SE), matrix.Some(math.Exp(e.Theta))
		out.Median, out.Min, out.Max = matrix.Some(math.Exp(e.Median)), matrix.Some(math.Exp(e.Min)), matrix.Some(math.Exp(e.Max))
	}
	return out
}

func (c *draft) summaries(g *gridValues) []matrix.ArmSummary {
	out := make([]matrix.ArmSummary, 0, 2)
	for i, v := range [][]float64{g.a, g.b} {
		s := matrix.ArmSummary{Label: []string{c.pair.A, c.pair.B}[i], Loads: len(v)}
		if f, err := stats.Fold(v); err == nil {
			s.Median = matrix.Some(f.Median)
			if f.HasRelative {
				s.Spread = matrix.Some(f.Spread)
			}
		}
		out = append(out, s)
	}
	return out
}
