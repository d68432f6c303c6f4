package verdict

import (
	"fmt"
	"math"
	"strconv"

	"enginebroker/matrix"
	"enginebroker/matrix/stats"
)

// draft is a cell on its way: one metric of a pairing.
type draft struct {
	*pairing
	metric  matrix.Metric
	delta   float64 // equivalence margin as a log
	margin  float64 // the same as a fraction
	grids   []gridValues
	reasons []matrix.CellReason
	primary *gridValues
	pDir    float64
	pEq     float64
	qDir    float64
	qEq     float64
	floor   matrix.Opt[float64] // noise floor of the embedded A/A
	dec     Decision
	env     stats.Envelope

	withheld bool // the class of the metric forbids its figures here
}

// gridValues is what one grid says about one metric of a pair.
type gridValues struct {
	d, lag  []float64
	a, b    []float64
	est     stats.Estimate
	kind    string
	ok      bool // est exists
	missing string
	broken  string // a value that is no number
}

// margins are the equivalence margins of protocol §0, as fractions.
var margins = map[matrix.MetricClass]float64{
	matrix.ClassIntegral: 0.02, matrix.ClassEnergy: 0.02,
	matrix.ClassPhase: 0.05, matrix.ClassTail: 0.05, matrix.ClassITL: 0.05, matrix.ClassMemory: 0.05,
}

// margin takes a class's margin from the method, or the protocol's default.
func margin(m matrix.Method, class matrix.MetricClass) (float64, error) {
	def, ok := margins[class]
	if !ok {
		return 0, fmt.Errorf("unknown metric class %q", class)
	}
	text, ok := m.Margins[string(class)]
	if !ok {
		return def, nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || !(f > 0 && f < 1) {
		return 0, fmt.Errorf("plan: method: margin of class %s is %q: a fraction between 0 and 1, like 0.02", class, text)
	}
	return f, nil
}

func (x *index) draft(p *pairing, m matrix.Metric, margin float64) *draft {
	c := &draft{pairing: p, metric: m, margin: margin, delta: stats.Margin(margin), pDir: 1, pEq: 1, qDir: 1, qEq: 1}
	c.grids = make([]gridValues, len(p.grids))
	for i := range p.grids {
		c.grids[i].fill(p.grids[i], m)
	}
	c.primary = &c.grids[x.primary]
	if c.primary.ok {
		e := c.primary.est
		if dir, eq, err := stats.PValues(e.Theta, e.SE, e.DF, e.Kappa, c.delta); err == nil {
			c.pDir, c.pEq = dir, eq
		}
	}
	c.qDir, c.qEq = c.pDir, c.pEq
	return c
}

// fill computes block log-ratios and their interval (protocol §3.2, §3.3). A superblock in which a value is missing is out.
func (g *gridValues) fill(p gridPairing, m matrix.Metric) {
	for _, sb := range p.blocks {
		n := len(g.d)
		for _, r := range sb {
			if !g.block(r, m) {
				g.d, g.lag, g.a, g.b = g.d[:n], g.lag[:n], g.a[:n], g.b[:n]
				break
			}
		}
	}
	if len(g.d) < 2 {
		return
	}
	unbalanced := 0.0
	for _, l := range g.lag {
		unbalanced += l
	}
	var err error
	g.kind = "paired_t"
	if unbalanced != 0 && len(g.d) > 2 {
		// Where every block has one order the regression does not exist and the plain interval stands.
		if g.est, err = stats.LagAdjustedCI(g.d, g.lag, 0.95, p.kappa); err == nil {
			g.kind, g.ok = "lag_adjusted", true
			return
		}
	}
	g.est, err = stats.PairedCI(g.d, 0.95, p.kappa)
	if err != nil {
		g.broken = err.Error()
		return
	}
	g.ok = true
}

func (g *gridValues) block(r blockRef, m matrix.Metric) bool {
	a, ok1 := r.a.value(m.Name)
	b, ok2 := r.b.value(m.Name)
	for i, l := range []*leg{r.a, r.b} {
		v := []float64{a, b}[i]
		switch {
		case ![]bool{ok1, ok2}[i]:
			if g.missing == "" {
				g.missing = fmt.Sprintf("%s has no %s: %s", l.id(), m.Name, why(l.values, m.Name))
			}
		case math.IsNaN(v) || math.IsInf(v, 0):
			g.broken = fmt.Sprintf("%s: %s is %v", l.id(), m.Name, v)
			ok1 = false
		case v <= 0:
			g.missing = fmt.Sprintf("%s: %s is %v, which has no ratio", l.id(), m.Name, v)
			ok1 = false
		}
	}
	if !ok1 || !ok2 {
		return false
	}
	d, err := stats.LogRatio(a, b, m.Higher)
	if err != nil {
		g.broken = err.Error()
		return false
	}
	g.d, g.lag, g.a, g.b = append(g.d, d), append(g.lag, r.lag()), append(g.a, a), append(g.b, b)
	return true
}

func why(values map[string]matrix.Value, metric string) string {
	if v, ok := values[metric]; ok && v.Why != "" {
		return v.Why
	}
	return "not recorded"
}

// family reports whether the cell is among those that Benjamini–Hochberg corrects over: primary, with an estimate.
func (c *draft) family() bool { return c.metric.Primary && c.primary.ok }

// correct applies Benjamini–Hochberg over the primary cells of the series (protocol §3.5).
func correct(cells []*draft) error {
	var family []*draft
	var dir, eq []float64
	for _, c := range cells {
		if c.family() {
			family, dir, eq = append(family, c), append(dir, c.pDir), append(eq, c.pEq)
		}
	}
	qDir, err := stats.BH(dir)
	if err != nil {
		return err
	}
	qEq, err := stats.BH(eq)
	if err != nil {
		return err
	}
	for i, c := range family {
		c.qDir, c.qEq = qDir[i], qEq[i]
	}
	return nil
}
