package verdict

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"enginebroker/matrix"
	"enginebroker/matrix/gates"
	"enginebroker/matrix/stats"
)

// leg is one leg with every gate applied.
type leg struct {
	rec    *matrix.LegRecord
	gate   matrix.GateResult
	values map[string]matrix.Value
	window gates.Window
}

// id names the leg in evidence lists.
func (l *leg) id() string { return l.rec.LoadID + "/" + l.rec.ID.Point }

// value returns a metric, absent on a void leg.
func (l *leg) value(metric string) (float64, bool) {
	if l == nil || !l.gate.Valid() {
		return 0, false
	}
	return l.values[metric].X.Get()
}

// superblock is one execution of a superblock on one grid.
type superblock struct {
	index   int
	seq     int     // of its first load
	legs    []*leg  // [(point·2+half)·arms+arm]; nil: not there
	leadIn  []*leg  // by point
	failed  []*fail // [half·arms+arm]: a load that never came to its legs
	drift   float64 // ln(last/first) of the terminal control
	arms    int
	drifted bool
}

// fail is a scored load that failed before its legs.
type fail struct {
	load string
	gate matrix.GateResult
}

func (s *superblock) leg(point, half, arm int) *leg { return s.legs[(point*2+half)*s.arms+arm] }

// absent reports that an arm has neither a leg at the point nor a load that failed before it in one of the blocks.
func (s *superblock) absent(point, arm int) bool {
	for half := range 2 {
		if s.leg(point, half, arm) == nil && s.failed[half*s.arms+arm] == nil {
			return true
		}
	}
	return false
}

// section is one group on one grid.
type section struct {
	target int
	sbs    []*superblock // in execution order
	stale  []*leg        // scored legs of attempts that were begun again
}

// index is the evidence of a run by grid and group.
type index struct {
	in       Input
	legs     []*leg // in execution order
	loads    []matrix.LoadRecord
	sections [][]*section // by grid, group
	groups   map[string]int
	points   map[string]int
	arms     []map[string]int // by group: label → index
	first    map[armKey]*matrix.LoadRecord
	cold     map[armKey]int // cold loads over all grids
	offset   map[armKey]string
	pins     map[armKey]*matrix.LoadRecord // a load refused by its pin
	scored   map[everyKey]int
	every    map[everyKey]*every
	primary  int

	unmeasured []string // metrics without a cell, and why
}

// every counts the scored legs of an arm that carry a code.
type every struct {
	ids    []string
	detail string
}

// everyKey is an arm at a point, or at allPoints, and a code; without a code it counts all scored legs.
type everyKey struct {
	arm   armKey
	point int
	code  matrix.LegCode
}

const allPoints = -1

type armKey struct{ group, arm int }

func newIndex(in Input) (*index, error) {
	x := &index{in: in, groups: map[string]int{}, points: map[string]int{}, first: map[armKey]*matrix.LoadRecord{},
		scored: map[everyKey]int{}, every: map[everyKey]*every{}, cold: map[armKey]int{}, offset: map[armKey]string{}, pins: map[armKey]*matrix.LoadRecord{}}
	for i, g := range in.Plan.Groups {
		x.groups[g.ID] = i
		x.arms = append(x.arms, map[string]int{})
		for j, a := range g.Arms {
			x.arms[i][a.Label] = j
		}
		for _, p := range g.Pairs {
			if _, ok := x.arms[i][p.A]; !ok || p.A >= p.B {
				return nil, fmt.Errorf("plan: group %s: pair %s:%s is not two ordered arms of the group", g.ID, p.A, p.B)
			}
			if _, ok := x.arms[i][p.B]; !ok {
				return nil, fmt.Errorf("plan: group %s: pair %s:%s names no arm %s", g.ID, p.A, p.B, p.B)
			}
		}
	}
	for i, p := range in.Plan.Method.Points {
		x.points[p.ID] = i
	}
	if err := x.gather(); err != nil {
		return nil, err
	}
	x.countCodes()
	x.choosePrimary()
	return x, nil
}

// gather puts every leg and load into its place, in execution order.
func (x *index) gather() error {
	var recs []matrix.LegRecord
	var results []matrix.GateResult
	var values []map[string]matrix.Value
	for _, g := range x.in.Grids {
		x.loads = append(x.loads, g.Loads...)
		for _, l := range g.Legs {
			recs, results, values = append(recs, l.Record), append(results, l.Gate), append(values, l.Values)
		}
	}
	results = gates.Series(x.in.Plan.MethodID, x.loads, recs, results)
	for i := range recs {
		x.legs = append(x.legs, &leg{rec: &recs[i], gate: results[i], values: values[i], window: gates.NewWindow(recs[i])})
	}
	slices.SortStableFunc(x.loads, func(a, b matrix.LoadRecord) int {
		return cmp.Or(cmp.Compare(a.Grid, b.Grid), cmp.Compare(a.Seq, b.Seq))
	})
	slices.SortFunc(x.legs, func(a, b *leg) int {
		return cmp.Or(cmp.Compare(a.rec.ID.Grid, b.rec.ID.Grid), cmp.Compare(a.rec.Seq, b.rec.Seq),
			cmp.Compare(a.rec.LoadID, b.rec.LoadID), cmp.Compare(a.rec.ID.Point, b.rec.ID.Point))
	})
	for range x.in.Grids {
		row := make([]*section, len(x.in.Plan.Groups))
		for i := range row {
			row[i] = &section{}
		}
		x.sections = append(x.sections, row)
	}
	for g, grid := range x.in.Grids {
		for i, group := range x.in.Plan.Groups {
			t, ok := grid.Target[group.ID]
			if !ok {
				t = len(group.Superblocks)
			}
			x.sections[g][i].target = t
		}
	}
	if err := x.placeLoads(); err != nil {
		return err
	}
	if err := x.placeLegs(); err != nil {
		return err
	}
	for g := range x.sections {
		for i, s := range x.sections[g] {
			slices.SortStableFunc(s.sbs, func(a, b *superblock) int { return cmp.Compare(a.seq, b.seq) })
			x.terminal(i, s)
		}
	}
	return nil
}

func (x *index) grid(n int) (int, error) {
	i := slices.IndexFunc(x.in.Grids, func(g Grid) bool { return g.Info.Index == n })
	if i < 0 {
		return 0, fmt.Errorf("evidence names grid %d, which the run does not have", n)
	}
	return i, nil
}

// at finds the superblock of a section, making it at its first load.
func (x *index) at(s *section, group, sb, seq int) *superblock {
	if i := slices.IndexFunc(s.sbs, func(b *superblock) bool { return b.index == sb }); i >= 0 {
		return s.sbs[i]
	}
	n, p := len(x.in.Plan.Groups[group].Arms), len(x.in.Plan.Method.Points)
	b := &superblock{index: sb, seq: seq, arms: n}
	b.clear(p)
	s.sbs = append(s.sbs, b)
	return b
}

func (b *superblock) clear(points int) {
	b.legs, b.leadIn, b.failed = make([]*leg, points*2*b.arms), make([]*leg, points), make([]*fail, 2*b.arms)
}

// restart forgets an attempt at a superblock that was begun again: a superblock is run whole or not at all. What the
// engine failed in it stays on record.
func (b *superblock) restart(s *section, seq, points int) {
	for _, l := range b.legs {
		if l != nil {
			s.stale = append(s.stale, l)
		}
	}
	b.clear(points)
	b.seq = seq
}

func (x *index) placeLoads() error {
	for i := range x.loads {
		l := &x.loads[i]
		grid, err := x.grid(l.Grid)
		if err != nil {
			return fmt.Errorf("load %s: %w", l.ID, err)
		}
		group, ok := x.groups[l.Group]
		if !ok {
			return fmt.Errorf("load %s: the plan has no group %s", l.ID, l.Group)
		}
		arm, ok := x.arms[group][l.Slot.Arm]
		if !ok {
			return fmt.Errorf("load %s: group %s has no arm %s", l.ID, l.Group, l.Slot.Arm)
		}
		key := armKey{group, arm}
		if l.Ready.Present() {
			x.cold[key]++
			if x.first[key] == nil {
				x.first[key] = l
			}
		}
		if l.Env.ThermalOffset && x.offset[key] == "" {
			x.offset[key] = l.ID
		}
		if p, ok := l.Pin.Get(); ok && !p.OK && x.pins[key] == nil {
			x.pins[key] = l
		}
		s := x.sections[grid][group]
		sb := x.at(s, group, l.Slot.Superblock, l.Seq)
		switch {
		case l.Slot.LeadIn:
			if l.Seq > sb.seq {
				sb.restart(s, l.Seq, len(x.points))
			}
		case l.Failure.Present():
			sb.failed[half(l.Slot.Block)*sb.arms+arm] = &fail{l.ID, gates.Load(*l, x.in.Profile)}
		}
	}
	return nil
}

// half says which of the two blocks of a superblock a block is.
func half(block int) int { return block & 1 }

func (x *index) placeLegs() error {
	for _, l := range x.legs {
		id := l.rec.ID
		grid, err := x.grid(id.Grid)
		if err != nil {
			return fmt.Errorf("leg %s: %w", l.id(), err)
		}
		group, ok := x.groups[id.Group]
		if !ok {
			return fmt.Errorf("leg %s: the plan has no group %s", l.id(), id.Group)
		}
		arm, ok := x.arms[group][id.Arm]
		if !ok {
			return fmt.Errorf("leg %s: group %s has no arm %s", l.id(), id.Group, id.Arm)
		}
		point, ok := x.points[id.Point]
		if !ok {
			return fmt.Errorf("leg %s: the plan has no point %s", l.id(), id.Point)
		}
		s := x.sections[grid][group]
		sb := x.at(s, group, id.Superblock, l.rec.Seq)
		switch {
		case l.rec.Seq < sb.seq:
			if !id.LeadIn {
				s.stale = append(s.stale, l)
			}
		case id.LeadIn:
			sb.leadIn[point] = l
		case id.Block < 0:
			return fmt.Errorf("leg %s: block %d of a scored leg", l.id(), id.Block)
		default:
			at := (point*2+half(id.Block))*sb.arms + arm
			if old := sb.legs[at]; old != nil {
				s.stale = append(s.stale, old)
			}
			sb.legs[at] = l
		}
	}
	return nil
}

// terminal applies the terminal control: the first and the last scored leg of a superblock are one arm, and its output
// rate at the first point may not have drifted beyond the profile's limit (protocol §2.7, §3.6).
func (x *index) terminal(group int, s *section) {
	limit, ok := x.in.Profile.Drift.Get()
	if !ok || len(x.points) == 0 {
		return
	}
	for _, sb := range s.sbs {
		for arm := range sb.arms {
			first, last := sb.leg(0, 0, arm), sb.leg(0, 1, arm)
			if first == nil || last == nil || first.rec.ID.Position != 0 || last.rec.ID.Position != sb.arms-1 {
				continue
			}
			a, ok1 := first.value(outputRate)
			b, ok2 := last.value(outputRate)
			if !ok1 || !ok2 {
				continue
			}
			log, void, err := stats.Drift(a, b, limit)
			if err != nil {
				continue // values without a ratio are reported by the cells that use them
			}
			if sb.drift, sb.drifted = log, void; !void {
				continue
			}
			detail := fmt.Sprintf("%s drifted by %+.2f %% from the first to the last load of the superblock, at most %.0f %% allowed",
				first.rec.ID.Arm, 100*(math.Exp(log)-1), 100*limit)
			for _, l := range sb.legs {
				if l != nil {
					l.gate = gates.Add(l.gate, matrix.SuperblockDrift, detail)
				}
			}
		}
	}
}

// countCodes notes the codes that make a cell reason when every leg of an arm carries them (protocol §4.1, §4.4).
func (x *index) countCodes() {
	for _, row := range x.sections {
		for group, s := range row {
			for _, sb := range s.sbs {
				for i, l := range sb.legs {
					if l == nil {
						continue
					}
					arm := armKey{group, i % sb.arms}
					for _, point := range []int{i / (2 * sb.arms), allPoints} {
						x.scored[everyKey{arm: arm, point: point}]++
						for _, code := range l.gate.Codes {
							if code != matrix.PromptTokensCode && code != matrix.CanaryFailedCode {
								continue
							}
							key := everyKey{arm, point, code}
							if x.every[key] == nil {
								x.every[key] = &every{detail: l.gate.Detail[code]}
							}
							x.every[key].ids = append(x.every[key].ids, l.id())
						}
					}
				}
			}
		}
	}
}

// choosePrimary takes the run's first grid that completed its planned superblocks (protocol §4.4); a run without one is
// judged on its first grid, as far as it came.
func (x *index) choosePrimary() {
	x.primary = max(0, slices.IndexFunc(x.in.Grids, func(g Grid) bool { return g.Info.Done }))
}
