package verdict

import (
	"fmt"
	"slices"
	"strings"

	"enginebroker/matrix"
)

// Redone is a superblock that was run for another one: because the environment voided that one, or because the operator
// asked for it after an engine had (protocol §4.4).
type Redone struct {
	Grid       int
	Group      string
	Superblock int // as drawn
	Replaces   int
	Operator   bool
	Who, Why   string // of the operator
}

// EngineVoid is what an operator has to run again before the cells of a pair at a point can be released from an engine's
// failure.
type EngineVoid struct {
	Grid        int
	Group       string
	Pair        matrix.Pair
	Point       string
	Superblocks []int    // void by an engine of the pair, or never run because it had failed; those of passed re-runs left out
	Legs        []string // what is void, as evidence names it
}

// redone yields the superblocks that were run for one of a group on a grid.
func (x *index) redone(grid, group, superblock int) []Redone {
	var out []Redone
	for _, r := range x.in.Redone {
		// A replacement is drawn later than what it replaces; anything else is no replacement and could go in circles.
		if r.Grid == x.in.Grids[grid].Info.Index && r.Group == x.in.Plan.Groups[group].ID && r.Replaces == superblock && r.Superblock > superblock {
			out = append(out, r)
		}
	}
	return out
}

// passed reports that both legs of an arm at a point are valid in a superblock, or in one that was run for it.
func (x *index) passed(grid, group, sb, arm, point int) bool {
	s := x.sections[grid][group]
	if i := slices.IndexFunc(s.sbs, func(b *superblock) bool { return b.index == sb }); i >= 0 {
		if a, b := s.sbs[i].leg(point, 0, arm), s.sbs[i].leg(point, 1, arm); a != nil && b != nil && a.gate.Valid() && b.gate.Valid() {
			return true
		}
	}
	return slices.ContainsFunc(x.redone(grid, group, sb), func(r Redone) bool { return x.passed(grid, group, r.Superblock, arm, point) })
}

// released reports that the operator had a superblock run again and that the arm passed there: what the engine failed in it
// before withholds nothing any more (protocol §4.4). The superblock itself counts as little as before.
func (x *index) released(grid, group, superblock, arm, point int) bool {
	return slices.ContainsFunc(x.redone(grid, group, superblock), func(r Redone) bool {
		return r.Operator && x.passed(grid, group, r.Superblock, arm, point)
	})
}

// latest follows a superblock to the last one that was run for it: a re-run that did not pass is what is run again next.
func (x *index) latest(grid, group, sb int) int {
	for again := x.redone(grid, group, sb); len(again) > 0; again = x.redone(grid, group, sb) {
		sb = again[len(again)-1].Superblock
	}
	return sb
}

// owed lists, per grid, the superblocks that an operator would have to run again for a pairing that an engine's failure
// withholds.
func (x *index) owed(p *pairing) []EngineVoid {
	var out []EngineVoid
	for g := range p.grids {
		v := EngineVoid{Grid: x.in.Grids[g].Info.Index, Group: x.in.Plan.Groups[p.group].ID, Pair: p.pair, Point: x.in.Plan.Method.Points[p.point].ID}
		for _, l := range p.grids[g].voids {
			if l.cause != matrix.CauseEngine {
				continue
			}
			v.Legs = append(v.Legs, l.id)
			v.Superblocks = append(v.Superblocks, x.latest(g, p.group, l.superblock))
		}
		if len(v.Legs) == 0 {
			continue
		}
		for _, sb := range x.sections[g][p.group].sbs {
			for _, arm := range []int{p.a, p.b} {
				if sb.absent(p.point, arm) && !x.passed(g, p.group, sb.index, arm, p.point) {
					v.Superblocks = append(v.Superblocks, x.latest(g, p.group, sb.index)) // not run to its end once the engine had failed twice in a row
				}
			}
		}
		slices.Sort(v.Superblocks)
		v.Superblocks = slices.Compact(v.Superblocks)
		out = append(out, v)
	}
	return out
}

// reruns says of each superblock that the operator had run again after an engine of the pair failed in it, by whom and why,
// and whether it passed: the reader of a released cell is told, and so is that of one that failed again.
func (x *index) reruns(p *pairing) []string {
	var out []string
	for g := range p.grids {
		for _, r := range x.in.Redone {
			if !r.Operator || r.Grid != x.in.Grids[g].Info.Index || r.Group != x.in.Plan.Groups[p.group].ID {
				continue
			}
			failed := x.failures(g, p, r.Replaces)
			if len(failed) == 0 {
				continue
			}
			result := "it passed"
			for _, arm := range []int{p.a, p.b} {
				if !x.passed(g, p.group, r.Superblock, arm, p.point) {
					result = "it did not pass"
				}
			}
			out = append(out, fmt.Sprintf("superblock %d was run again as %d by %s (%s): %s; void on record: %s", r.Replaces, r.Superblock, r.Who, r.Why, result, strings.Join(failed, "; ")))
		}
	}
	return out
}

// failures lists what the engines of a pair failed in a superblock, released or not.
func (x *index) failures(grid int, p *pairing, superblock int) []string {
	var out []string
	s := x.sections[grid][p.group]
	note := func(id string, g matrix.GateResult) {
		if g.Cause == matrix.CauseEngine {
			out = append(out, id+": "+details(g))
		}
	}
	for _, l := range s.stale {
		if l.rec.ID.Superblock == superblock && x.points[l.rec.ID.Point] == p.point && (l.rec.ID.Arm == p.pair.A || l.rec.ID.Arm == p.pair.B) {
			note(l.id(), l.gate)
		}
	}
	for _, sb := range s.sbs {
		if sb.index != superblock {
			continue
		}
		for half := range 2 {
			for _, arm := range []int{p.a, p.b} {
				if l := sb.leg(p.point, half, arm); l != nil {
					note(l.id(), l.gate)
				} else if f := sb.failed[half*sb.arms+arm]; f != nil {
					note(f.load, f.gate)
				}
			}
		}
	}
	return out
}
