package verdict

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"enginebroker/matrix"
	"enginebroker/matrix/gates"
	"enginebroker/matrix/stats"
)

func (c *draft) add(x *index, code matrix.Reason, detail string, evidence ...string) {
	c.reasons = append(c.reasons, matrix.CellReason{Code: code, Detail: detail, Evidence: evidence, Next: x.next(code, c.pairing, len(c.primary.d))})
}

// judge collects every reason of one cell.
func (c *draft) judge(x *index, id matrix.CellID) error {
	c.reasons = slices.Clone(c.pairing.reasons)
	if c.primary.broken != "" {
		c.add(x, matrix.HarnessFault, c.primary.broken)
	}
	c.class(x)
	n := len(c.primary.d)
	if c.withheld {
		n = c.pairing.grids[x.primary].tally.N // the blocks are there, the metric cannot be shown from them
	}
	for _, r := range CountReasons(n) {
		detail := fmt.Sprintf("%d valid blocks on the primary grid, %d needed", n, matrix.MinBlocks)
		if c.primary.missing != "" {
			detail += "; " + c.primary.missing
		}
		c.add(x, r, detail)
	}
	for _, h := range x.in.Holds {
		if h.matches(id) {
			c.add(x, matrix.OperatorHold, h.Why)
		}
	}
	if err := c.noise(x); err != nil {
		return err
	}
	if err := c.across(x); err != nil {
		return err
	}
	return c.decide(x)
}

// class applies what holds for one class of metric (protocol §1, §4.5).
func (c *draft) class(x *index) {
	g := c.pairing.grids[x.primary]
	switch c.metric.Class {
	case matrix.ClassPhase:
		if !g.head {
			c.add(x, matrix.ClockHeadUnobserved, "the clock on request heads is neither pinned flat nor sampled")
		}
	case matrix.ClassITL:
		if id := firstLeg(g, func(l *leg) bool { return slices.Contains(l.gate.Flags, gates.FlagITLCoalesced) }); id != "" {
			c.withheld = true
			c.add(x, matrix.ITLCoalesced, "per-token gaps cannot be derived", id)
			return
		}
	}
	if c.metric.Percentile > 0 || c.metric.Class == matrix.ClassTail { // a tail of gaps is a tail, whatever its class
		c.tail(x, g)
	}
}

// tail withholds a percentile that the requests of a leg are too few for (protocol §1).
func (c *draft) tail(x *index, g gridPairing) {
	floor, err := stats.TailFloor(c.metric.Percentile)
	if err != nil {
		c.withheld = true
		c.add(x, matrix.TailUndersampled, err.Error())
		return
	}
	least := -1
	id := firstLeg(g, func(l *leg) bool {
		k := 0
		for _, rep := range l.rec.Repetitions {
			k += rep.Planned // of a valid leg every planned request was answered
		}
		if least < 0 || k < least {
			least = k
		}
		return k < floor
	})
	if id != "" {
		c.withheld = true
		c.add(x, matrix.TailUndersampled, fmt.Sprintf("%d requests in a leg, p%d needs %d", least, c.metric.Percentile, floor), id)
	}
}

// firstLeg names the first leg of the blocks that count for which ask holds, having asked all.
func firstLeg(g gridPairing, ask func(*leg) bool) string {
	id := ""
	for _, sb := range g.blocks {
		for _, r := range sb {
			for _, l := range []*leg{r.a, r.b} {
				if ask(l) && id == "" {
					id = l.id()
				}
			}
		}
	}
	return id
}

// samePair is two adjacent loads of one arm.
type samePair struct {
	arm           int
	first, second float64
	ids           [2]string
}

// embedded finds the free A/A of a series: lead-in → first, and end of forward → start of backward (protocol §2.3, §3.6).
func (s *section) embedded(point int, metric string) []samePair {
	var out []samePair
	add := func(arm int, a, b *leg) {
		x, ok1 := a.value(metric)
		y, ok2 := b.value(metric)
		if _, err := stats.LogRatio(x, y, true); ok1 && ok2 && err == nil {
			out = append(out, samePair{arm, x, y, [2]string{a.id(), b.id()}})
		}
	}
	for _, sb := range s.sbs {
		for arm := range sb.arms {
			f, b := sb.leg(point, 0, arm), sb.leg(point, 1, arm)
			if l := sb.leadIn[point]; l != nil && f != nil && l.rec.ID.Arm == f.rec.ID.Arm && f.rec.ID.Position == 0 {
				add(arm, l, f)
			}
			if f != nil && b != nil && f.rec.ID.Position == sb.arms-1 && b.rec.ID.Position == 0 {
				add(arm, f, b)
			}
		}
	}
	return out
}

// noise judges the A/A evidence and the load state that the embedded A/A shows (protocol §3.6).
func (c *draft) noise(x *index) error {
	s := x.sections[x.primary][c.group]
	own := s.embedded(c.point, c.metric.Name)
	if len(own) > 0 && len(c.primary.d) > 0 {
		values := make([][2]float64, len(own))
		for i, p := range own {
			values[i] = [2]float64{p.first, p.second}
		}
		e, err := stats.Embedded(values, len(c.primary.d))
		if err != nil {
			return err
		}
		c.floor = matrix.Some(e.NoiseFloor)
	}
	pairs := len(own)
	if c.withheld || pairs == 0 && len(c.primary.d) == 0 {
		// A metric that is withheld on its own account (a tail below its floor, ITL of coalesced chunks) has few values to pair, or none,
		// which says nothing about the A/A of the series it stands in.
		pairs = len(s.embedded(c.point, outputRate))
	}
	for _, r := range AAReasons(x.in.AA, pairs) {
		c.add(x, r, map[matrix.Reason]string{
			matrix.AAFailed:       "the dedicated A/A of this method told two like arms apart",
			matrix.AAEmbeddedOnly: fmt.Sprintf("no dedicated A/A for this method; %d adjacent same-arm pairs stand in", pairs),
			matrix.AAMissing:      fmt.Sprintf("no dedicated A/A for this method, and only %d adjacent same-arm pairs", pairs),
		}[r])
	}
	if c.metric.Name != outputRate {
		own = append(own, s.embedded(c.point, outputRate)...)
	}
	labels := map[int]string{c.a: c.pair.A, c.b: c.pair.B}
	for arm, label := range map[int]string{c.a: c.pair.A, c.b: c.pair.B} {
		if x.cleared(label) {
			delete(labels, arm)
		}
	}
	for _, p := range own {
		log, err := stats.LogRatio(p.second, p.first, true)
		if label, ok := labels[p.arm]; ok && err == nil && math.Abs(log) > stats.Margin(stats.JumpMargin) {
			c.add(x, matrix.LoadStateSuspect, fmt.Sprintf("two adjacent loads of %s differ by %+.2f %%", label, 100*(math.Exp(log)-1)), p.ids[:]...)
			delete(labels, p.arm)
		}
	}
	return nil
}

// minReloadClear is how many loads of one state clear LOAD_STATE_SUSPECT (protocol §5).
const minReloadClear = 12

func (x *index) cleared(label string) bool {
	return slices.ContainsFunc(x.in.Reloads, func(r Reload) bool {
		return r.Arm == label && r.Result.Verdict == stats.SingleMode && r.Result.N >= minReloadClear
	})
}

// across judges the other grids against the primary one (protocol §6).
func (c *draft) across(x *index) error {
	if len(c.primary.d) == 0 {
		if !c.withheld {
			c.add(x, matrix.SingleGrid, "no grid has a valid block")
		}
		return nil
	}
	bounds := []stats.Bounds{}
	if c.primary.ok {
		bounds = append(bounds, stats.Bounds{Lo: c.primary.est.Lo, Hi: c.primary.est.Hi, Median: c.primary.est.Median})
	}
	boot, confirmed := x.in.Grids[x.primary].Info.BootID, 0
	for i := range c.grids {
		g := &c.grids[i]
		if i == x.primary || x.in.Grids[i].Info.BootID == boot || len(g.d) < matrix.MinConfirmingBlocks || !g.ok {
			continue
		}
		confirmed++
		bounds = append(bounds, stats.Bounds{Lo: g.est.Lo, Hi: g.est.Hi, Median: g.est.Median})
		if err := c.shift(x, c.primary, g, i); err != nil {
			return err
		}
	}
	if confirmed == 0 {
		c.add(x, matrix.SingleGrid, fmt.Sprintf("no other boot has %d valid blocks", matrix.MinConfirmingBlocks))
		return nil
	}
	var err error
	c.env, err = stats.GridEnvelope(bounds)
	return err
}

func (c *draft) shift(x *index, g1, g2 *gridValues, i int) error {
	var sessions [2]Session
	for j, g := range []*gridValues{g1, g2} {
		a, err := FiguresOf(g.a)
		if err != nil {
			return err
		}
		b, err := FiguresOf(g.b)
		if err != nil {
			return err
		}
		sessions[j] = Session{A: a, B: b, D: g.d}
	}
	k, err := Compare(c.pair, sessions[0], sessions[1])
	for _, r := range k.Reasons {
		r.Detail = fmt.Sprintf("grid %d to grid %d: %s", x.in.Grids[x.primary].Info.Index, x.in.Grids[i].Info.Index, r.Detail)
		c.reasons = append(c.reasons, r)
	}
	return err
}

// decide applies the decision rule and what may overrule it: the noise floor where no dedicated A/A is on record, and the
// interval across grids (protocol §3.4, §3.6, §6). Secondary metrics are not decided.
func (c *draft) decide(x *index) error {
	c.dec = Decision{Direction: matrix.DirNone, Detected: matrix.DirNone}
	if !c.primary.ok || len(c.primary.d) < minFewBlocks {
		return nil
	}
	e := c.primary.est
	dec, err := Decide(c.primary.d, e.Theta, c.qDir, c.qEq)
	if err != nil {
		return err
	}
	if !c.metric.Primary {
		c.dec.Reversed = dec.Reversed
		c.add(x, matrix.WideCI, "a secondary metric: printed with its interval, not tested, so it has no direction")
		c.reasons[len(c.reasons)-1].Next = "declare it primary before a new run"
		return nil
	}
	c.dec = dec
	floor, ok := c.floor.Get()
	if x.in.AA == AAMissing && ok && math.Abs(e.Theta) <= floor && dec.Detected != matrix.DirNone {
		c.dec.Detected = matrix.DirNone
		if dec.Direction != matrix.DirEquivalent {
			c.dec.Direction = matrix.DirNone
			c.add(x, matrix.WideCI, fmt.Sprintf("the effect is not above the noise floor of the embedded A/A, %.2f %%", 100*math.Expm1(floor)))
			c.reasons[len(c.reasons)-1].Next = x.aa()
		}
	}
	for _, r := range dec.Reasons {
		detail := fmt.Sprintf("%d of %d blocks point the other way", dec.Reversed, len(c.primary.d))
		if r == matrix.WideCI {
			detail = fmt.Sprintf("the interval neither excludes equality nor fits inside the margin of %.0f %%", 100*c.margin)
		}
		c.add(x, r, detail)
		c.reasons[len(c.reasons)-1].Next = x.wide(c.pairing, e, c.delta)
	}
	if c.env.Grids > 1 {
		supported := map[matrix.Direction]bool{matrix.DirNone: true, matrix.DirFaster: c.env.Faster(), matrix.DirSlower: c.env.Slower(),
			matrix.DirEquivalent: c.env.Equivalent(c.delta)}
		if !supported[c.dec.Direction] {
			c.add(x, matrix.GridInterval, fmt.Sprintf("the interval across %d grids does not support %s", c.env.Grids, c.dec.Direction))
		}
	}
	return nil
}

// undecided reports a primary cell that one more superblock could still decide (protocol §3.7).
func (c *draft) undecided(v matrix.Verdict) bool {
	return c.metric.Primary && v < matrix.NotReproduced && c.dec.Direction == matrix.DirNone && len(c.primary.d) >= matrix.MinBlocks
}

// merged joins reasons of one code and sorts them, most severe first.
func merged(reasons []matrix.CellReason) []matrix.CellReason {
	out := make([]matrix.CellReason, 0, len(reasons))
	for _, r := range reasons {
		r.Evidence = slices.DeleteFunc(slices.Clone(r.Evidence), func(s string) bool { return s == "" })
		i := slices.IndexFunc(out, func(o matrix.CellReason) bool { return o.Code == r.Code })
		if i < 0 {
			out = append(out, r)
			continue
		}
		if !strings.Contains(out[i].Detail, r.Detail) {
			out[i].Detail += "; " + r.Detail
		}
		for _, e := range r.Evidence {
			if !slices.Contains(out[i].Evidence, e) {
				out[i].Evidence = append(out[i].Evidence, e)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b matrix.CellReason) int {
		va, _ := a.Code.Verdict()
		vb, _ := b.Code.Verdict()
		return cmp.Or(cmp.Compare(vb, va), cmp.Compare(a.Code, b.Code))
	})
	return out
}
