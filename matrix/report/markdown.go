package report

import (
	"fmt"
	"io"
	"strings"
	"unicode"

	"enginebroker/matrix"
)

// Markdown writes the whole report, all metrics, legs and loads.
func Markdown(w io.Writer, r matrix.Report) error {
	if r.External {
		return importedMarkdown(w, r)
	}
	d := &doc{w: w}
	d.linef("# %s: run %s", md(r.Plan.Model), md(r.Run))
	if r.Simulated {
		d.linef("> **%s**", Stamp)
	}
	d.linef("State %s, profile %s, box %s, subject %s, method `%.12s`, plan `%.12s`.", md(r.State), md(r.Plan.Profile), md(r.Plan.Box), md(r.Plan.Subject),
		md(r.Plan.MethodID), md(r.PlanSHA256))
	for _, g := range r.Grids {
		d.linef("Grid %d: finished %v, boot %s, seed %s.", g.Index, g.Done, md(g.BootID), md(g.Seed))
	}
	d.linef("FASTER and a ratio above 1 speak of the first engine of a pair.")
	for _, n := range caveats(r, true) {
		d.linef("%s", n)
	}
	for _, s := range sections(r, true) {
		d.section(s)
	}
	d.evidence(r)
	if len(r.Absent) > 0 {
		d.linef("Gates this box could not evaluate: %s.", md(strings.Join(r.Absent, ", ")))
	}
	if r.Next != "" {
		d.linef("**Next:** %s", md(r.Next))
	}
	return d.err
}

type doc struct {
	w   io.Writer
	err error
}

// linef puts a paragraph.
func (d *doc) linef(format string, args ...any) { d.put(fmt.Sprintf(format, args...) + "\n\n") }

func (d *doc) put(s string) {
	if d.err == nil {
		_, d.err = io.WriteString(d.w, s)
	}
}

func (d *doc) row(cells ...string) {
	for i, c := range cells {
		if c == "" {
			cells[i] = absent
		}
	}
	d.put("| " + strings.Join(cells, " | ") + " |\n")
}

func (d *doc) head(names ...string) {
	d.row(names...)
	d.put(strings.Repeat("|---", len(names)) + "|\n")
}

func (d *doc) section(s section) {
	d.linef("## %s", md(s.Title))
	if s.Group != "" {
		d.linef("Group %s.", md(s.Group))
	}
	if len(s.Lines) > 0 {
		d.head("point", "metric", "verdict", "direction", "ratio", "95 % interval", "arms", "blocks", "reasons")
		for _, l := range s.Lines {
			arms := md(armList(l.Arms))
			for i, g := range l.Grids {
				arms += fmt.Sprintf("<br>grid %d: %s", i+1, md(armList(g)))
			}
			why := md(strings.Join(l.Reasons, ", "))
			for _, n := range append(l.Notes, l.Cell.Annotated...) {
				why += "<br>" + md(n)
			}
			d.row(md(l.Point), md(metricUnit(l)), l.Verdict, md(l.Says()), l.Ratio, strings.NewReplacer("[", `\[`, "]", `\]`).Replace(l.Interval), arms, l.Blocks, why)
		}
		d.put("\n")
	}
	for _, x := range s.Refusals {
		d.linef("**Refused: %s.** %s", md(string(x.Reason)), md(x.Detail))
		for _, side := range x.Sides {
			d.side("opens", side.Label, side.Opens)
			if len(side.Lacks) > 0 {
				d.side("lacks", side.Label, side.Lacks)
			}
		}
		d.put("\n")
		if x.Fix != "" {
			d.linef("Fix: %s", md(x.Fix))
		}
	}
}

func metricUnit(l line) string {
	if l.Unit == "" {
		return l.Metric
	}
	return l.Metric + " (" + l.Unit + ")"
}

func (d *doc) side(verb, label string, list []matrix.Offer) {
	o := offers(list)
	if len(o) == 0 {
		o = []string{"nothing"}
	}
	d.put(fmt.Sprintf("- %s %s %s\n", md(label), verb, md(strings.Join(o, "; "))))
}

// evidence lists legs and loads.
func (d *doc) evidence(r matrix.Report) {
	d.linef("## Legs")
	d.head("leg", "ok", "failed", "suspect", "void", "flags", "reused")
	for _, l := range r.Legs {
		void := ""
		if !l.Gate.Valid() {
			void = clean(string(l.Gate.Cause)) + ": " + codes(l.Gate)
		}
		d.row(md(legName(l.ID)), fmt.Sprint(l.OK), fmt.Sprint(l.Failed), fmt.Sprint(l.Suspect), md(void), md(strings.Join(l.Gate.Flags, ", ")), md(l.Reused))
	}
	d.put("\n")
	d.linef("## Loads")
	d.head("load", "arm", "end")
	for _, l := range r.Loads {
		end := loadEnd(l)
		if end == "" {
			end = "as planned"
		}
		d.row(md(l.ID), md(l.Slot.Arm), md(end))
	}
	d.put("\n")
}

// md makes text inert in Markdown: no markup, no HTML, no table border, no link. An underscore within a word is none.
func md(s string) string {
	var b strings.Builder
	text := []rune(clean(s))
	word := func(i int) bool {
		return i >= 0 && i < len(text) && (unicode.IsLetter(text[i]) || unicode.IsDigit(text[i]))
	}
	for i, r := range text {
		switch {
		case r == '<':
			b.WriteString("&lt;")
			continue
		case r == '>':
			b.WriteString("&gt;")
			continue
		case r == '&':
			b.WriteString("&amp;")
			continue
		case strings.ContainsRune("\\`*[]|~$", r), r == '_' && !(word(i-1) && word(i+1)):
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	// A bare address would become a link, and a name behind an @ a mention.
	return strings.NewReplacer("://", "&#58;//", "www.", "www&#46;", "@", "&#64;").Replace(b.String())
}
