package service

import (
	"slices"
	"time"

	"enginebroker/matrix"
	"enginebroker/matrix/negotiate"
	"enginebroker/matrix/run"
	"enginebroker/matrix/schedule"
	"enginebroker/matrix/stopwatch"
	"enginebroker/matrix/workload"
)

// Experiment is what a request measures that is no matrix of pairs; at most one field is set. The zero value is a matrix.
type Experiment struct {
	AA     bool    `json:"aa,omitempty"`
	Reload *Reload `json:"reload,omitempty"`
	AB     *AB     `json:"ab,omitempty"`
}

// Stem is what a run is named after where nobody names it; the time is added.
func (q Request) Stem() string {
	switch {
	case q.AA:
		return "aa-" + q.Model
	case q.Reload != nil:
		return "reload-" + q.Reload.Instance
	case q.AB != nil:
		return "ab-" + q.AB.New + "-" + q.AB.Old
	}
	return q.Model
}

// shaped is the request with what its experiment asks of the plan. It reads nothing but the configuration.
func (s *Service) shaped(q Request) (Request, error) {
	if (q.Reload != nil || q.AB != nil) && (len(q.Engines) > 0 || len(q.Pairs) > 0) {
		field := "spec.engines"
		if len(q.Engines) == 0 {
			field = "spec.pairs"
		}
		return q, About(field, fail(CauseUsage, "leave engines and pairs out", "an experiment with loads or builds names its instances itself"))
	}
	switch {
	case q.AA:
		return s.aaRequest(q)
	case q.Reload != nil:
		return reloadRequest(q)
	case q.AB != nil:
		return abRequest(q)
	}
	return q, nil
}

// special is what an A/A, a reload experiment or a comparison of two builds asks of a plan that a matrix does not. The zero
// value asks for nothing: all four are one plan, one run and one ledger.
type special struct {
	purpose     string
	superblocks int    // of the first grid; 0: the profile's
	loads       int    // of the arm of a reload experiment
	arm         string // instance whose loads these are
	point       string // that the loads measure; empty: the first
	sameBuild   bool   // two builds that are one are meant to be
}

// again marks the second label of an instance that is measured against itself.
const again = "-again"

// sides gives an instance that stands alone a second label, so that it can be negotiated with itself.
func (x special) sides(sides []negotiate.Side) []negotiate.Side {
	if len(sides) != 1 || x.purpose != matrix.PurposeAA && x.purpose != matrix.PurposeReload {
		return sides
	}
	twin := sides[0]
	twin.Label += again
	return append(sides, twin)
}

// groups stamps the plan with its purpose. A reload experiment has no pairs, and no arm beside its own but one that is
// interleaved by intent.
func (x special) groups(p *matrix.Plan) {
	p.Purpose = x.purpose
	switch x.purpose {
	case matrix.PurposeAA:
		p.Grids = 1
	case matrix.PurposeReload:
		p.Grids, p.Agreements = 1, nil
		for i := range p.Groups {
			g := &p.Groups[i]
			g.Pairs = nil
			g.Arms = slices.DeleteFunc(g.Arms, func(a matrix.Arm) bool { return a.Label == x.arm+again })
		}
	}
}

// points keeps the one point that a reload experiment measures. Its server is granted what the whole workload needs, so
// that the arm is the one of the matrix.
func (x special) points(points []matrix.Point) []matrix.Point {
	if x.purpose != matrix.PurposeReload || len(points) == 0 {
		return points
	}
	i := max(0, slices.IndexFunc(points, func(p matrix.Point) bool { return p.ID == x.point }))
	return points[i : i+1]
}

func (x special) fill(p *matrix.Plan, profile workload.Profile) error {
	if x.purpose == matrix.PurposeReload {
		for i := range p.Groups {
			p.Groups[i].Superblocks = reloadOrder(p.Groups[i], x.loads)
		}
		return nil
	}
	if err := schedule.Fill(p, func(arms int) int {
		if x.superblocks > 0 {
			return x.superblocks
		}
		return superblocks(profile, arms)
	}); err != nil {
		return err
	}
	p.Cost = schedule.Cost(*p)
	return nil
}

// reloadOrder is n loads of every arm after one unscored lead-in: A A A …, or A B B A A B … where a second engine is
// interleaved, so that a step in time is told from one at load (protocol §5). One load is one superblock: an interrupted
// experiment loses one.
func reloadOrder(g matrix.Group, n int) []matrix.Superblock {
	var labels []string
	for _, a := range g.Arms {
		labels = append(labels, a.Label)
	}
	out := make([]matrix.Superblock, n)
	for i := range out {
		out[i] = matrix.Superblock{Index: i, Forward: slices.Clone(labels)}
		slices.Reverse(labels)
	}
	out[0].LeadIn = out[0].Forward[0]
	return out
}

// recount counts what a reload experiment costs; its estimate is in proportion to that of mirrored superblocks.
func (x special) recount(p *matrix.Plan) {
	if x.purpose != matrix.PurposeReload {
		return
	}
	c := matrix.Cost{Basis: p.Cost.Basis}
	mirrored := 0
	for i, g := range p.Groups {
		mirrored += schedule.Loads(len(g.Superblocks), len(g.Arms))
		for _, sb := range g.Superblocks {
			for _, slot := range sb.Slots(i) {
				reps := p.Method.Repetitions
				c.Loads++
				if slot.LeadIn {
					c.LeadIns++
					reps = 1
				} else {
					c.Legs += len(p.Method.Points)
				}
				for _, pt := range p.Method.Points {
					c.Requests += pt.Warmup + reps*pt.Requests
				}
			}
		}
	}
	if mirrored > 0 {
		c.Estimate = (p.Cost.Estimate * time.Duration(c.Loads) / time.Duration(mirrored)).Round(time.Second)
	}
	p.Cost = c
}

// promptsFor hands out the prompts of a plan. All loads of a reload experiment get the same ones: nothing but the load varies.
func promptsFor(plan matrix.Plan, c *workload.Corpus) run.Prompts {
	if plan.Purpose == matrix.PurposeReload {
		return samePrompts{prompts{c}}
	}
	return prompts{c}
}

type samePrompts struct{ prompts }

func (p samePrompts) Take(block int, point matrix.Point, rep, n int) ([]stopwatch.Prompt, error) {
	return p.prompts.Take(min(block, 0), point, rep, n)
}
