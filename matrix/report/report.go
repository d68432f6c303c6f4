// Package report writes a judged run for readers: terminal, Markdown, CSV, JSON, HTML; and a plan, and one cell in words.
//
// It formats and computes nothing. Which numbers a cell may show was decided when its verdict was built: what is present is
// printed, what is absent is a dash, and no two cells ever become one figure. Whatever came from an engine, a file or a
// user passes through clean before it reaches a terminal or a page: it may say anything, and do nothing.
//
// The way of a cell: matrix.Cell → line (what every format shows of it, as text) → the format's own layout.
package report

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"enginebroker/matrix"
)

// Options say how a terminal shows a report.
type Options struct {
	Width     int  // columns, at least 80; 0: 100
	Color     bool // ANSI colours
	Secondary bool // secondary metrics and every leg and load too
}

func (o Options) width() int {
	if o.Width <= 0 {
		return 100
	}
	return max(o.Width, 80)
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Stamp is what a simulated report says first, last and in every format.
const Stamp = "SIMULATED: no engine was measured. Every number below comes from a program that plays one."

// ExternalStamp is what a report of imported results says.
const ExternalStamp = "EXTERNAL: results of other programs, not measured by this one; they stand in no ratio with ours."

// absent is how a number that is not there is printed.
const absent = "–"

// clean makes foreign text harmless and keeps it on one line: control and format characters become visible escapes.
func clean(s string) string {
	plain := true
	for _, r := range s {
		if !printable(r) {
			plain = false
			break
		}
	}
	if plain {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == unicode.ReplacementChar && !strings.HasPrefix(s[i:], "\uFFFD"):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case printable(r):
			b.WriteRune(r)
		default:
			q := strconv.QuoteRuneToASCII(r)
			b.WriteString(q[1 : len(q)-1])
		}
	}
	return b.String()
}

// printable leaves out controls, format characters (bidirectional overrides, zero widths) and every space but the plain one.
func printable(r rune) bool {
	return r == ' ' || r != unicode.ReplacementChar && unicode.IsGraphic(r) && !unicode.Is(unicode.Cf, r) && !unicode.Is(unicode.Z, r)
}

// number prints with four significant digits; what is not finite is absent.
func number(x float64) string {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return absent
	}
	a := math.Abs(x)
	switch {
	case a == 0:
		return "0"
	case a >= 1e7 || a < 1e-4:
		return strconv.FormatFloat(x, 'g', 4, 64)
	}
	digits := min(max(3-int(math.Floor(math.Log10(a))), 0), 7)
	return strconv.FormatFloat(x, 'f', digits, 64)
}

func optional(x matrix.Opt[float64]) string {
	v, ok := x.Get()
	if !ok {
		return absent
	}
	return number(v)
}

// ratio prints a ratio or a bound of one with four decimals: the margins are per cent.
func ratio(x float64) string {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return absent
	}
	return strconv.FormatFloat(x, 'f', 4, 64)
}

// point is ratio of one that may be absent.
func point(x matrix.Opt[float64]) string { return ratio(x.Or(math.NaN())) }

func counted(x matrix.Opt[int]) string {
	if n, ok := x.Get(); ok {
		return strconv.Itoa(n)
	}
	return absent
}

func span(d time.Duration) string {
	switch {
	case d <= 0:
		return absent
	case d < time.Minute:
		return d.Round(time.Second).String()
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Round(time.Minute).Minutes()))
	}
	d = d.Round(time.Minute)
	return fmt.Sprintf("%d h %02d min", int(d.Hours()), int(d.Minutes())%60)
}

// arm is one arm of a cell as text.
type arm struct{ Label, Median, Spread, Loads string }

// line is what every format shows of one cell.
type line struct {
	Cell      matrix.Cell
	Point     string
	Metric    string
	Unit      string
	Verdict   string
	Direction string // empty where there is none, or none may be said
	Detected  string // direction that an equivalent cell carries
	Ratio     string // empty where it may not be shown
	Interval  string
	Blocks    string
	Arms      []arm
	Grids     [][]arm
	Reasons   []string // codes, all of them
	Notes     []string // what withholds or voids the cell, and what must be run again (protocol §4.5)
}

func lineOf(c matrix.Cell) line {
	l := line{Cell: c, Point: clean(c.ID.Point), Metric: clean(c.ID.Metric), Unit: clean(c.Metric.Unit), Verdict: c.Verdict.String()}
	for _, r := range c.Reasons {
		l.Reasons = append(l.Reasons, clean(string(r.Code)))
		if v, err := r.Code.Verdict(); err == nil && v >= matrix.Withheld {
			l.note(r)
		}
	}
	n, ok := c.Numbers.Get()
	if !ok {
		return l
	}
	l.Blocks = strconv.Itoa(c.Blocks)
	for _, a := range n.Arms {
		l.Arms = append(l.Arms, armOf(a))
	}
	for _, g := range n.Grids {
		var arms []arm
		for _, a := range g {
			arms = append(arms, armOf(a))
		}
		l.Grids = append(l.Grids, arms)
	}
	if iv, ok := n.Interval.Get(); ok {
		l.Interval = "[" + ratio(iv.RatioLo) + ", " + ratio(iv.RatioHi) + "]"
		if n.ShowRatio {
			l.Ratio = point(iv.Ratio)
		}
	}
	if n.ShowRatio && c.Direction != matrix.DirNone && c.Direction != "" {
		l.Direction = clean(string(c.Direction))
		if c.Direction == matrix.DirEquivalent && n.Detected != "" && n.Detected != matrix.DirNone {
			l.Detected = clean(string(n.Detected))
		}
	}
	return l
}

func (l *line) note(r matrix.CellReason) {
	parts := []string{}
	if r.Detail != "" {
		parts = append(parts, r.Detail)
	}
	if len(r.Evidence) > 0 {
		parts = append(parts, "evidence: "+strings.Join(r.Evidence, ", "))
	}
	if r.Next != "" {
		parts = append(parts, "next: "+r.Next)
	}
	if len(parts) > 0 {
		l.Notes = append(l.Notes, clean(string(r.Code)+": "+strings.Join(parts, "; ")))
	}
}

// Says is the direction in full, empty where none may be said.
func (l line) Says() string {
	if l.Detected == "" {
		return l.Direction
	}
	return l.Direction + " (" + l.Detected + " within the margin)"
}

func armOf(a matrix.ArmSummary) arm {
	return arm{clean(a.Label), optional(a.Median), optional(a.Spread), strconv.Itoa(a.Loads)}
}

// section is what a report shows of one pair and group.
type section struct {
	Pair     matrix.Pair
	Title    string
	Group    string
	Refusals []matrix.Refusal
	Lines    []line
}

// sections orders the cells by pair and group as they first appear in the report, primary metrics first; the refusals of the
// plan stand with their pair.
func sections(r matrix.Report, secondary bool) []section {
	type key struct {
		pair  matrix.Pair
		group string
	}
	var out []section
	at := map[key]int{}
	find := func(p matrix.Pair, group string) *section {
		k := key{p, group}
		i, ok := at[k]
		if !ok {
			i = len(out)
			at[k] = i
			out = append(out, section{Pair: p, Title: clean(p.A) + " × " + clean(p.B), Group: clean(group)})
		}
		return &out[i]
	}
	for _, c := range r.Cells {
		s := find(c.ID.Pair, c.ID.Group)
		if c.Metric.Primary || secondary || c.ID.Metric == "" {
			s.Lines = append(s.Lines, lineOf(c))
		}
	}
	for _, x := range r.Plan.Refusals {
		s := find(x.Pair, "")
		s.Refusals = append(s.Refusals, x)
	}
	for i := range out {
		slices.SortStableFunc(out[i].Lines, func(a, b line) int { return b2i(b.Cell.Metric.Primary) - b2i(a.Cell.Metric.Primary) })
	}
	return out
}

// caveats are what a reader must know of the classes of the metrics that are shown, whatever their verdicts.
func caveats(r matrix.Report, secondary bool) []string {
	var energy, memory bool
	for _, c := range r.Cells {
		shown := c.Metric.Primary || secondary
		energy = energy || shown && c.Metric.Class == matrix.ClassEnergy
		memory = memory || shown && c.Metric.Class == matrix.ClassMemory
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(r.Plan.Absent)) {
		out = append(out, clean(name)+" took no part: "+clean(r.Plan.Absent[name]))
	}
	if energy {
		out = append(out, "Energy is of the GPU rail only: GPU watts are not machine watts, and nothing here tells what the rest of the machine drew.")
	}
	if memory {
		out = append(out, "Memory is the deepest fall of MemAvailable below the boot's baseline, page cache excluded.")
	}
	return out
}

// offers says what one side of a refusal opens or lacks, one artifact a text.
func offers(list []matrix.Offer) []string {
	var out []string
	for _, o := range list {
		s := clean(o.Artifact)
		if o.Policy.Kind == matrix.Drafted {
			s += " " + clean(o.Policy.String())
		}
		if o.Status != "" {
			s += " (" + clean(string(o.Status)) + ")"
		}
		if o.Why != "" {
			s += ": " + clean(o.Why)
		}
		if o.Source != "" {
			s += " [" + clean(o.Source) + "]"
		}
		out = append(out, s)
	}
	return out
}

// legName names a leg for a reader.
func legName(id matrix.LegID) string {
	s := fmt.Sprintf("grid %d %s sb %d", id.Grid, clean(id.Group), id.Superblock)
	if id.LeadIn {
		s += " lead-in"
	} else {
		s += fmt.Sprintf(" block %d/%d", id.Block, id.Position)
	}
	return s + " " + clean(id.Arm) + " " + clean(id.Point)
}

// codes lists what voided a leg, with its details.
func codes(g matrix.GateResult) string {
	var out []string
	for _, c := range g.Codes {
		s := clean(string(c))
		if d := g.Detail[c]; d != "" {
			s += " (" + clean(d) + ")"
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

// loadEnd says how a load went, empty for one that went as planned.
func loadEnd(l matrix.LoadRecord) string {
	var out []string
	if f, ok := l.Failure.Get(); ok {
		out = append(out, "did not start: "+clean(f.Error()))
	}
	if p, ok := l.Pin.Get(); ok && !p.OK {
		for _, m := range p.Mismatch {
			out = append(out, fmt.Sprintf("pin %s: %s is %s, expected %s", clean(p.Pin), clean(m.Field), clean(m.Found), clean(m.Expected)))
		}
	}
	if l.Aborted != "" {
		out = append(out, "aborted: "+clean(l.Aborted))
	}
	if s, ok := l.Stopped.Get(); ok && !s.Gone() {
		out = append(out, fmt.Sprintf("not proved gone: %d processes left, port free: %v", len(s.Survivors), s.PortFree))
	}
	return strings.Join(out, "; ")
}
