package verdict

import (
	"fmt"
	"slices"
	"strings"

	"enginebroker/matrix"
)

// legsOf names the legs of one arm at one point, over all grids.
type legsOf struct {
	armKey
	point int
}

// yield is what the legs of an arm at a point gave, metric by metric.
type yield struct {
	valid  int
	has    map[string]bool   // some leg has a value
	why    map[string]string // why a leg has none
	memory bool              // some leg has the box's reading, valid or not
	energy bool
}

func (x *index) yields() map[legsOf]*yield {
	out := map[legsOf]*yield{}
	for _, l := range x.legs {
		g := x.groups[l.rec.ID.Group]
		key := legsOf{armKey{g, x.arms[g][l.rec.ID.Arm]}, x.points[l.rec.ID.Point]}
		y := out[key]
		if y == nil {
			y = &yield{has: map[string]bool{}, why: map[string]string{}}
			out[key] = y
		}
		y.memory = y.memory || l.rec.Env.PeakMemDeltaKiB.Present()
		y.energy = y.energy || l.rec.Env.EnergyMilliJoule.Present()
		if !l.gate.Valid() {
			continue
		}
		y.valid++
		for name, v := range l.values {
			y.has[name] = y.has[name] || v.X.Present()
			if y.why[name] == "" {
				y.why[name] = v.Why
			}
		}
	}
	return out
}

// unmeasured says why a secondary metric has no cell for a pair at a point: nothing that ran there could give it. A cell
// would say VOID of something nobody set out to measure. Percentiles and gaps that a leg withholds keep their cells, whose
// reasons say what is missing. A primary metric was declared, and is owed.
func unmeasured(m matrix.Metric, y *yield) (string, bool) {
	if m.Primary || y == nil || y.has[m.Name] {
		return "", false
	}
	why := y.why[m.Name]
	switch {
	case m.Class == matrix.ClassMemory:
		return "the box did not record available memory", !y.memory
	case m.Class == matrix.ClassEnergy:
		return "the box has no energy counter", !y.energy
	case strings.HasPrefix(why, string(matrix.ITLCoalesced)) || strings.HasPrefix(why, string(matrix.TailUndersampled)):
		return "", false
	case why == "":
		return "", false // not in the record: the cell says so
	}
	return why, y.valid > 0
}

// leaveOut notes a metric that the pair cannot have at the point; false: it can.
func (x *index) leaveOut(p *pairing, m matrix.Metric, ys map[legsOf]*yield) bool {
	if pt := x.in.Plan.Method.Points[p.point]; offered(m, pt) {
		x.leftOut(fmt.Sprintf("metric %s at %s: requests arrive at a declared rate, which it would repeat", m.Name, pt.ID))
		return true
	}
	for _, arm := range []int{p.a, p.b} {
		why, ok := unmeasured(m, ys[legsOf{armKey{p.group, arm}, p.point}])
		if !ok {
			continue
		}
		line := fmt.Sprintf("metric %s: %s", m.Name, why)
		if m.Class != matrix.ClassMemory && m.Class != matrix.ClassEnergy {
			line = fmt.Sprintf("metric %s of %s at %s: %s", m.Name, x.in.Plan.Groups[p.group].Arms[arm].Label, x.in.Plan.Method.Points[p.point].ID, why)
		}
		x.leftOut(line)
		return true
	}
	return false
}

// offered says that a metric is a rate over the window of a point in open loop. Below saturation it is the rate of arrivals on
// every engine, and equal rates would be called equivalent engines.
func offered(m matrix.Metric, p matrix.Point) bool {
	return !p.Rate.IsZero() && m.Class == matrix.ClassIntegral && m.Higher
}

func (x *index) leftOut(line string) {
	if !slices.Contains(x.unmeasured, line) {
		x.unmeasured = append(x.unmeasured, line)
	}
}
