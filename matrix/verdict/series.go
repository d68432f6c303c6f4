package verdict

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"enginebroker/matrix"
	"enginebroker/matrix/gates"
)

// pairing is one pair at one point: what of its evidence counts, before any metric is looked at.
type pairing struct {
	group, point int
	pair         matrix.Pair
	a, b         int // arm indexes
	grids        []gridPairing
	reasons      []matrix.CellReason // of the pair and point, whatever the metric
	notes        []string
	absent       []string // box gates that could not be evaluated
}

// gridPairing is a pairing on one grid.
type gridPairing struct {
	tally  Tally
	blocks [][]blockRef // the superblocks that count, each with its one or two blocks
	kappa  float64
	clocks [2]gates.ClockStats
	head   bool // the clock on request heads is known
	static []string
	codes  []string // CLOCK_SERIES: what the merged arms fail
	voids  []voidLeg
	cotest int // superblocks with a neighbour in one of the pair's legs
	seen   int // superblocks with any leg of the pair
}

// blockRef is one block: the legs of both arms.
type blockRef struct{ a, b *leg }

func (r blockRef) lag() float64 { return float64(r.a.rec.ID.Position - r.b.rec.ID.Position) }

// voidLeg is a scored leg, or a block, that does not count.
type voidLeg struct {
	sb         *superblock // nil: of an attempt that was begun again
	superblock int
	cause      matrix.Cause
	id         string
	detail     string
	lag        bool // HARNESS, and the client's lateness alone
}

func (x *index) pairing(group, point int, pair matrix.Pair) *pairing {
	p := &pairing{group: group, point: point, pair: pair, a: x.arms[group][pair.A], b: x.arms[group][pair.B]}
	for g := range x.sections {
		p.grids = append(p.grids, x.gridPairing(p, g))
	}
	p.notes = x.reruns(p)
	return p
}

func (x *index) gridPairing(p *pairing, grid int) gridPairing {
	var out gridPairing
	s := x.sections[grid][p.group]
	var blocks []Block
	for i, sb := range s.sbs {
		tenant := false
		for half := range 2 {
			b, ok := x.block(p, grid, sb, half, &out)
			if ok {
				b.Superblock = i
				blocks = append(blocks, b)
			}
			for _, arm := range []int{p.a, p.b} {
				if l := sb.leg(p.point, half, arm); l != nil && slices.Contains(l.gate.Codes, matrix.Cotenant) {
					tenant = true
				}
			}
		}
		if len(blocks) > 0 && blocks[len(blocks)-1].Superblock == i {
			out.seen++
			if tenant {
				out.cotest++
			}
		}
	}
	for _, l := range s.stale {
		if l.gate.Cause == matrix.CauseEngine && (l.rec.ID.Arm == p.pair.A || l.rec.ID.Arm == p.pair.B) &&
			x.points[l.rec.ID.Point] == p.point && !x.released(grid, p.group, l.rec.ID.Superblock, x.arms[p.group][l.rec.ID.Arm], p.point) {
			blocks = append(blocks, Block{Superblock: -1, Void: true, Causes: []matrix.Cause{matrix.CauseEngine}})
			out.voids = append(out.voids, voidLeg{superblock: l.rec.ID.Superblock, cause: matrix.CauseEngine, id: l.id(), detail: details(l.gate)})
		}
	}
	out.tally = Count(s.target, blocks)
	for _, i := range append(slices.Clone(out.tally.Used), out.tally.Lone...) {
		var refs []blockRef
		for half := range 2 {
			if r := (blockRef{s.sbs[i].leg(p.point, half, p.a), s.sbs[i].leg(p.point, half, p.b)}); r.a != nil && r.b != nil {
				refs = append(refs, r)
			}
		}
		out.blocks = append(out.blocks, refs)
	}
	x.clocks(&out)
	return out
}

// block judges one block of the pair; false: it was never run to its end.
func (x *index) block(p *pairing, grid int, sb *superblock, half int, out *gridPairing) (Block, bool) {
	var b Block
	var legs [2]*leg
	whole := true
	note := func(cause matrix.Cause, id, detail string, lag, released bool) {
		b.Void = true
		if released {
			return
		}
		if cause == matrix.CauseHarness {
			b.LagOnly = lag && (b.LagOnly || !slices.Contains(b.Causes, matrix.CauseHarness))
		}
		b.Causes = append(b.Causes, cause)
		out.voids = append(out.voids, voidLeg{sb, sb.index, cause, id, detail, lag})
	}
	for i, arm := range []int{p.a, p.b} {
		l := sb.leg(p.point, half, arm)
		legs[i] = l
		switch f := sb.failed[half*sb.arms+arm]; {
		case l != nil && !l.gate.Valid():
			note(l.gate.Cause, l.id(), details(l.gate), lagOnly(l.gate.Codes), l.gate.Cause == matrix.CauseEngine && x.released(grid, p.group, sb.index, arm, p.point))
		case l == nil && f != nil:
			note(f.gate.Cause, f.load, details(f.gate), false, f.gate.Cause == matrix.CauseEngine && x.released(grid, p.group, sb.index, arm, p.point))
		case l == nil:
			whole = false
		}
	}
	if legs[0] != nil && legs[1] != nil {
		if !b.Void {
			for _, code := range gates.Block(legs[0].window, legs[1].window, x.in.Profile) {
				cause, _ := code.Cause() // the gates set only known codes
				note(cause, legs[0].id()+" and "+legs[1].id(), string(code), false, false)
			}
		}
		for _, d := range gates.StaticMismatch(legs[0].window.Static, legs[1].window.Static) {
			if !slices.Contains(out.static, d) {
				out.static = append(out.static, d)
			}
		}
	}
	return b, whole || b.Void
}

func lagOnly(codes []matrix.LegCode) bool {
	return !slices.ContainsFunc(gates.Telling(codes), func(c matrix.LegCode) bool { return c != matrix.ClientLag })
}

func details(g matrix.GateResult) string {
	var out []string
	for _, c := range g.Codes {
		d := string(c)
		if g.Detail[c] != "" {
			d += " (" + g.Detail[c] + ")"
		}
		out = append(out, d)
	}
	return strings.Join(out, "; ")
}

// clocks merges each arm's windows over the blocks that count and takes the clock allowance from them (protocol §3.3,
// §4.2). Where no clock exists κ is 0.
func (x *index) clocks(g *gridPairing) {
	if !x.in.Profile.Clock {
		return
	}
	var windows [2][]gates.ClockStats
	var heads [2][]int64
	for _, sb := range g.blocks {
		for _, r := range sb {
			for i, l := range []*leg{r.a, r.b} {
				if w, ok := l.window.Clock.Get(); ok {
					windows[i] = append(windows[i], w)
				}
				if c, ok := l.rec.Clock.Get(); ok {
					heads[i] = append(heads[i], c.HeadMHz...)
				}
			}
		}
	}
	if len(windows[0]) == 0 || len(windows[1]) == 0 {
		return
	}
	fail := func(arm string, codes []matrix.LegCode) {
		for _, c := range codes {
			g.codes = append(g.codes, strings.TrimSpace(arm+" "+string(c)))
		}
	}
	for i, w := range windows {
		m, err := gates.ClockMerge(w)
		if err != nil {
			g.codes = append(g.codes, err.Error())
			return
		}
		g.clocks[i] = m
		fail([]string{"first arm", "second arm"}[i], gates.ClockCodes(m, x.in.Profile.ClockMask))
	}
	o, codes := gates.ClockCompare(g.clocks[0], g.clocks[1])
	fail("", codes)
	g.kappa = o.Kappa.Or(math.Log1p(0.01)) // without a mean the cell is void; the bound of the contract stands in
	g.head = gates.HeadObserved(g.clocks[0], g.clocks[1], heads[0], heads[1])
}

// evidence lists what is wrong with the void legs of one cause.
func (g gridPairing) evidence(cause matrix.Cause) (detail string, ids []string) {
	var parts []string
	for _, v := range g.voids {
		if v.cause == cause && !slices.Contains(ids, v.id) {
			ids, parts = append(ids, v.id), append(parts, fmt.Sprintf("%s: %s", v.id, v.detail))
		}
	}
	if len(parts) > 2 {
		parts = append(parts[:2], fmt.Sprintf("and %d more", len(ids)-2))
	}
	return strings.Join(parts, "; "), ids
}
