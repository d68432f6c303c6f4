package report

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"enginebroker/matrix"
)

// Terminal writes the report for a terminal: primary metrics, and the rest with Options.Secondary.
func Terminal(w io.Writer, r matrix.Report, o Options) error {
	p := newPage(w, o)
	if r.External {
		return importedTerminal(p, r)
	}
	p.head(r)
	if len(r.Cells) > 0 { // a reload experiment has none
		p.wrapIn(dim, "", "FASTER and a ratio above 1 speak of the first engine of a pair; the other way round it is 1/ratio.")
	}
	for _, n := range caveats(r, o.Secondary) {
		p.wrapIn(dim, "", n)
	}
	for _, s := range sections(r, o.Secondary) {
		p.blank()
		p.section(s)
	}
	p.legs(r, o.Secondary)
	p.loads(r, o.Secondary)
	p.rest(r)
	if r.Simulated {
		p.blank()
		p.banner(Stamp)
	}
	return p.err
}

func (p *page) head(r matrix.Report) {
	if r.Simulated {
		p.banner(Stamp)
	}
	p.title(clean(r.Plan.Model), "run "+clean(r.Run))
	p.wrap("", fmt.Sprintf("state %s · profile %s · box %s · subject %s · method %.12s · plan %.12s", clean(r.State), clean(r.Plan.Profile),
		clean(r.Plan.Box), clean(r.Plan.Subject), clean(r.Plan.MethodID), clean(r.PlanSHA256)))
	for _, g := range r.Grids {
		state := "not finished"
		if g.Done {
			state = "finished"
		}
		p.wrap("", fmt.Sprintf("grid %d: %s, boot %s, seed %s", g.Index, state, clean(g.BootID), clean(g.Seed)))
	}
}

// Columns of a cell's line.
const (
	colPoint, colMetric, colVerdict, colRatio, colInterval = 8, 16, 15, 8, 18
)

func (p *page) section(s section) {
	p.title(s.Title, s.Group)
	for _, l := range s.Lines {
		p.cell(l)
	}
	p.notes(s.Lines)
	for _, x := range s.Refusals {
		p.refusal(x)
	}
}

// cell puts one cell: verdict and numbers, behind them what it says and every reason that limits it.
func (p *page) cell(l line) {
	row := fit(l.Point, colPoint) + " " + fit(l.Metric, colMetric) + " "
	if l.Cell.ID.Metric == "" {
		row = "" // a refused pair as a whole
	}
	row += p.paint(styleOf(l.Cell.Verdict), fit(l.Verdict, colVerdict))
	if l.Cell.Numbers.Present() {
		row += fit(l.Ratio, colRatio) + fit(l.Interval, colInterval) + " " + fit(medians(l), p.width-colPoint-colMetric-colVerdict-colRatio-colInterval-3)
	}
	p.put(strings.TrimRight(row, " "))
	indent := strings.Repeat(" ", colPoint+1)
	for i, g := range l.Grids {
		p.wrap(indent, fmt.Sprintf("grid %d: %s", i+1, armList(g)))
	}
	says := strings.Join(l.Reasons, " · ")
	if d := l.Says(); d != "" {
		says = strings.TrimSuffix(d+": "+says, ": ")
	}
	p.wrap(indent, says)
}

// notes puts what withholds or voids the cells above, and what is annotated on them, once for all cells that it is said of.
func (p *page) notes(lines []line) {
	seen := map[string]bool{}
	put := func(prefix, s string) {
		if !seen[prefix+s] {
			seen[prefix+s] = true
			p.wrap(prefix, s)
		}
	}
	for _, l := range lines {
		for _, n := range l.Notes {
			put("  ", n)
		}
		for _, a := range l.Cell.Annotated {
			put("  note: ", clean(a))
		}
	}
}

// medians are the arms' medians in the order of the pair, with the unit.
func medians(l line) string {
	var m []string
	for _, a := range l.Arms {
		m = append(m, a.Median)
	}
	s := strings.Join(m, " / ")
	if s != "" {
		s += " " + l.Unit
	}
	if l.Blocks != "" {
		s += " n=" + l.Blocks
	}
	return s
}

func armList(arms []arm) string {
	var out []string
	for _, a := range arms {
		out = append(out, fmt.Sprintf("%s %s (spread %s, loads %s)", a.Label, a.Median, a.Spread, a.Loads))
	}
	return strings.Join(out, " · ")
}

func (p *page) refusal(x matrix.Refusal) {
	p.wrapIn(red, "", "REFUSED "+clean(string(x.Reason)))
	if x.Detail != "" {
		p.wrap("  ", clean(x.Detail))
	}
	for _, side := range x.Sides {
		p.side("opens ", side.Label, side.Opens)
		if len(side.Lacks) > 0 {
			p.side("lacks ", side.Label, side.Lacks)
		}
	}
	if x.Fix != "" {
		p.wrap("  fix: ", clean(x.Fix))
	}
}

func (p *page) side(verb, label string, list []matrix.Offer) {
	o := offers(list)
	if len(o) == 0 {
		o = []string{"nothing"}
	}
	p.wrap("  "+clean(label)+" "+verb, o[0])
	for _, x := range o[1:] {
		p.wrap("  "+fit("", utf8.RuneCountInString(clean(label)+" "+verb)), x)
	}
}

// legs lists the void legs, or all of them.
func (p *page) legs(r matrix.Report, all bool) {
	void := 0
	for _, l := range r.Legs {
		void += b2i(!l.Gate.Valid())
	}
	p.blank()
	p.title(plural(len(r.Legs), "leg")+", "+fmt.Sprint(void)+" void", "requests ok / failed / suspect")
	for _, l := range r.Legs {
		if l.Gate.Valid() && !all {
			continue
		}
		counts := fmt.Sprintf("%d / %d / %d", l.OK, l.Failed, l.Suspect)
		p.put(fit(legName(l.ID), p.width-len(counts)-1) + " " + counts)
		if !l.Gate.Valid() {
			p.wrapIn(red, "  ", "void, "+clean(string(l.Gate.Cause))+": "+codes(l.Gate))
		}
		if len(l.Gate.Flags) > 0 {
			p.wrap("  flags: ", clean(strings.Join(l.Gate.Flags, ", ")))
		}
		if l.Reused != "" {
			p.wrap("  ", "reused, measured "+clean(l.Reused))
		}
	}
}

// loads lists the loads that did not go as planned, or all of them.
func (p *page) loads(r matrix.Report, all bool) {
	bad := 0
	for _, l := range r.Loads {
		bad += b2i(loadEnd(l) != "")
	}
	p.blank()
	p.title(plural(len(r.Loads), "load")+", "+fmt.Sprint(bad)+" not as planned", "")
	for _, l := range r.Loads {
		end := loadEnd(l)
		if end == "" && !all {
			continue
		}
		if end == "" {
			end = "as planned"
		}
		p.wrap("  ", clean(l.ID)+" "+clean(l.Slot.Arm)+": "+end)
	}
}

// rest lists what the box could not judge and what to do next.
func (p *page) rest(r matrix.Report) {
	if len(r.Absent) > 0 {
		p.blank()
		p.wrap("gates this box could not evaluate: ", clean(strings.Join(r.Absent, ", ")))
	}
	if r.Next != "" {
		p.blank()
		p.wrapIn(bold, "next: ", clean(r.Next))
	}
}
