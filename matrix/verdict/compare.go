package verdict

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"enginebroker/matrix"
	"enginebroker/matrix/stats"
)

// Figures are what one session says about one arm at a point: the median over loads, max/min over loads, and their number.
type Figures struct {
	Median, Spread float64
	N              int
}

// FiguresOf reduces leg values; they must be positive.
func FiguresOf(values []float64) (Figures, error) {
	f, err := stats.Fold(values)
	if err == nil && !f.HasRelative {
		err = &stats.InputError{Of: "figures of an arm", Index: 0, Value: f.Min, Why: "a spread needs positive values"}
	}
	return Figures{f.Median, f.Spread, f.N}, err
}

// Session is one pair, point and metric in one session: a grid of a run, or figures that somebody published.
type Session struct {
	MethodID string
	A, B     Figures
	D        []float64           // block log-ratios; empty for archived data, and the arms' medians stand in
	Ratio    matrix.Opt[float64] // a/b as published, where the source states one
}

// Comparison is what two sessions say of each other (protocol §6).
type Comparison struct {
	A, B, Ratio stats.Shift // absent figures (zero) where the sessions are not comparable
	Moved       []string    // labels of the arms that moved
	Reasons     []matrix.CellReason
}

// Compare sets one session beside another of the same pair, point and metric (protocol §6). Sessions of two methods are
// not comparable; a session whose published ratio is not the ratio of its arms withholds.
func Compare(pair matrix.Pair, s1, s2 Session) (Comparison, error) {
	var c Comparison
	if s1.MethodID != s2.MethodID {
		c.Reasons = []matrix.CellReason{{Code: matrix.MethodMismatch, Detail: fmt.Sprintf("methods %s and %s", s1.MethodID, s2.MethodID),
			Next: "measure both by one method"}}
		return c, nil
	}
	for _, s := range []Session{s1, s2} {
		r, err := Published(s)
		if err != nil {
			return Comparison{}, err
		}
		c.Reasons = append(c.Reasons, r...)
	}
	var errs [3]error
	c.A, errs[0] = stats.GridShift(s1.A.Median, s2.A.Median, s1.A.Spread, s2.A.Spread, s1.A.N, s2.A.N)
	c.B, errs[1] = stats.GridShift(s1.B.Median, s2.B.Median, s1.B.Spread, s2.B.Spread, s1.B.N, s2.B.N)
	c.Ratio, errs[2] = ratioShift(s1, s2)
	if err := cmp.Or(errs[0], errs[1], errs[2]); err != nil {
		return Comparison{}, err
	}
	reasons, movedA, movedB := GridReasons(c.A.Verdict, c.B.Verdict, c.Ratio.Verdict)
	if movedA {
		c.Moved = append(c.Moved, pair.A)
	}
	if movedB {
		c.Moved = append(c.Moved, pair.B)
	}
	detail := fmt.Sprintf("%s %+.2f %%, %s %+.2f %%, ratio %+.2f %%; moved = [%s]", pair.A, c.A.Pct, pair.B, c.B.Pct, c.Ratio.Pct, strings.Join(c.Moved, ", "))
	for _, r := range reasons {
		c.Reasons = append(c.Reasons, matrix.CellReason{Code: r, Detail: detail, Next: c.attribution(r)})
	}
	return c, nil
}

// ratioShift compares block ratios, or for archived data the ratios of the arms' medians with the arms' spreads added.
func ratioShift(s1, s2 Session) (stats.Shift, error) {
	if len(s1.D) > 0 && len(s2.D) > 0 {
		m1, r1, err := centre(s1.D)
		if err != nil {
			return stats.Shift{}, err
		}
		m2, r2, err := centre(s2.D)
		if err != nil {
			return stats.Shift{}, err
		}
		return stats.ShiftWithin(m2-m1, math.Max(r1, r2), len(s1.D), len(s2.D))
	}
	log := func(s Session) (ratio, within float64) {
		return math.Log(s.A.Median / s.B.Median), math.Log(s.A.Spread) + math.Log(s.B.Spread)
	}
	r1, w1 := log(s1)
	r2, w2 := log(s2)
	return stats.ShiftWithin(r2-r1, math.Max(w1, w2), min(s1.A.N, s1.B.N), min(s2.A.N, s2.B.N))
}

// centre is the median and the range of block log-ratios.
func centre(d []float64) (median, span float64, err error) {
	p, err := stats.Percentiles(d, 0, 50, 100)
	if err != nil {
		return 0, 0, err
	}
	return p[1], p[2] - p[0], nil
}

// attribution says what to look at next (protocol §6). One arm that moved alone is not the clock and not the box.
func (c Comparison) attribution(r matrix.Reason) string {
	switch {
	case r == matrix.GridShiftCommon:
		return "both arms moved together and the ratio held: look at the box (clock ceiling, memory, firmware), not at the engines"
	case len(c.Moved) == 1:
		return fmt.Sprintf("only %s moved, so it is neither clock nor box: diff its build fingerprints, then broker reload %s (8 loads)", c.Moved[0], c.Moved[0])
	case r == matrix.GridUndecided:
		return "a third session, or more loads in each"
	}
	return "diff the build fingerprints of both sessions, then broker reload on each arm (8 loads each)"
}

// Published checks a stated ratio against the ratio of the stated arms (protocol §6, vectors G07, G08).
func Published(s Session) ([]matrix.CellReason, error) {
	stated, ok := s.Ratio.Get()
	if !ok {
		return nil, nil
	}
	k, err := stats.RatioConsistency(s.A.Median, s.B.Median, stated, s.A.Spread, s.B.Spread)
	if err != nil || k.Consistent {
		return nil, err
	}
	return []matrix.CellReason{{Code: matrix.RatioInconsistent,
		Detail: fmt.Sprintf("the stated arms give %.4f, not %.4f: off by %.2f %%, %.2f %% allowed", k.Recomputed, stated, 100*math.Expm1(k.LogGap), 100*math.Expm1(k.Tolerance)),
		Next:   "ask the source which of its three figures is wrong"}}, nil
}

// CellSession is one cell with the session behind it, where its verdict allows figures to be shown.
type CellSession struct {
	Cell    matrix.Cell
	Session matrix.Opt[Session]
}

// Sessions judges a run and gives, for every primary cell that may show its medians, the figures of its primary grid. A cell
// that may not, and one whose own grids disagree, has no session: its numbers go nowhere.
func Sessions(in Input) ([]CellSession, error) {
	x, drafts, err := prepared(in)
	if err != nil {
		return nil, fmt.Errorf("sessions: %w", err)
	}
	var out []CellSession
	for _, c := range drafts {
		if !c.metric.Primary {
			continue
		}
		cell, err := x.cell(c)
		if err != nil {
			return nil, fmt.Errorf("sessions: cell %s: %w", cell.ID, err)
		}
		s := CellSession{Cell: cell}
		if cell.Verdict <= matrix.Inconclusive && cell.Numbers.Present() {
			a, err1 := FiguresOf(c.primary.a)
			b, err2 := FiguresOf(c.primary.b)
			if err := cmp.Or(err1, err2); err != nil {
				return nil, fmt.Errorf("sessions: cell %s: %w", cell.ID, err)
			}
			s.Session = matrix.Some(Session{MethodID: in.Plan.MethodID, A: a, B: b, D: c.primary.d})
		}
		out = append(out, s)
	}
	return out, nil
}
