package report

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"enginebroker/matrix"
)

// Plan writes what a run would do: pairs, agreements, refusals, orders, loads and hours.
func Plan(w io.Writer, pl matrix.Plan, o Options) error {
	p := newPage(w, o)
	if pl.Simulated() {
		p.banner("SIMULATED: arms of this plan are programs that play an engine.")
	}
	p.title("plan for "+clean(pl.Model), "seed "+clean(pl.Seed))
	p.wrap("", fmt.Sprintf("profile %s · box %s · subject %s · grids %d · method %.12s", clean(pl.Profile), clean(pl.Box), clean(pl.Subject), pl.Grids, clean(pl.MethodID)))
	for _, name := range slices.Sorted(maps.Keys(pl.Absent)) {
		p.wrapIn(yellow, "absent: ", clean(name)+": "+clean(pl.Absent[name]))
	}
	p.blank()
	p.title(plural(len(pl.Agreements), "pair")+" to compare, "+fmt.Sprint(len(pl.Refusals))+" refused", "")
	for _, a := range pl.Agreements {
		p.wrap("", fmt.Sprintf("%s × %s on %s, %s (%s %s, %s %s)", clean(a.Pair.A), clean(a.Pair.B), clean(a.Artifact), clean(a.Policy.String()),
			clean(a.Pair.A), clean(string(a.Sides[a.Pair.A])), clean(a.Pair.B), clean(string(a.Sides[a.Pair.B]))))
	}
	for _, x := range pl.Refusals {
		p.wrap("", clean(x.Pair.A)+" × "+clean(x.Pair.B))
		p.refusal(x)
	}
	for _, g := range pl.Groups {
		p.blank()
		p.group(g, pl.Ungated)
	}
	p.blank()
	p.title("points", plural(pl.Method.Repetitions, "repetition"))
	for _, pt := range pl.Method.Points {
		load := fmt.Sprintf("concurrency %d", pt.Concurrency)
		if !pt.Rate.IsZero() {
			load = fmt.Sprintf("%s %d requests/min", clean(pt.Rate.Process), pt.Rate.PerMinute)
		}
		in := fmt.Sprintf("%d tokens in", pt.PromptTokens)
		if pt.SharedPrefix > 0 {
			in += fmt.Sprintf(" (the first %d shared by all prompts)", pt.SharedPrefix)
		}
		p.wrap(fit(clean(pt.ID), colPoint)+" ", fmt.Sprintf("%s, %s, %s, %d out, %d requests, %d to warm up", clean(pt.Workload), load,
			in, pt.OutputTokens, pt.Requests, pt.Warmup))
	}
	p.blank()
	p.title("cost", "")
	p.wrap("", fmt.Sprintf("%s, %d of them lead-ins · %s · %s · %s", plural(pl.Cost.Loads, "load"), pl.Cost.LeadIns, plural(pl.Cost.Legs, "leg"),
		plural(pl.Cost.Requests, "request"), "time "+span(pl.Cost.Estimate)))
	if pl.Cost.Basis != "" {
		p.wrap("  estimated from: ", clean(pl.Cost.Basis))
	}
	for _, l := range pl.LeftOut {
		p.wrapIn(yellow, "left out: ", clean(l.What)+": "+clean(l.Why))
	}
	return p.err
}

func (p *page) group(g matrix.Group, ungated map[string]string) {
	p.title("group "+clean(g.ID), plural(len(g.Superblocks), "superblock"))
	for _, a := range g.Arms {
		pin := "no pin"
		if a.Pin != "" {
			pin = "pin " + clean(a.Pin)
		}
		p.wrap("  "+clean(a.Label)+": ", fmt.Sprintf("%s (%s), %s, %s, context %d, concurrency %d, key %.12s", clean(a.Instance), clean(a.Engine),
			clean(string(a.Status)), pin, a.Limits.ContextTokens, a.Limits.Concurrency, clean(a.Key)))
		if why := ungated[a.Key]; why != "" {
			p.wrapIn(yellow, "  "+clean(a.Label)+" will have no number: ", clean(why)+" ("+string(matrix.CanaryFailed)+")")
		}
	}
	for _, s := range g.Superblocks {
		p.wrap(fmt.Sprintf("  sb %d: ", s.Index), "("+clean(s.LeadIn)+") "+clean(strings.Join(s.Forward, " "))+" | "+clean(strings.Join(s.Backward, " ")))
	}
}
