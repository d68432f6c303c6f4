package schedule

import (
	"fmt"

	"enginebroker/matrix"
)

// Design is what a joint series of t arms costs (protocol §2.4, vector S07). Loads include lead-ins: S·(2t+1).
type Design struct {
	MinBlocks         int
	CycleBlocks       int // first-order carry-over cancels over a cycle
	RecommendedBlocks int // smallest multiple of the cycle that is at least the minimum
	LoadsMin          int
	LoadsRecommended  int
}

// Loads of s superblocks over t arms, lead-ins included.
func Loads(s, t int) int { return s * (2*t + 1) }

// NewDesign costs a series of t ≥ 2 arms with at least min blocks.
func NewDesign(t, min int) (Design, error) {
	if t < 2 || t > maxSuperblocks || min < 1 || min > 2*maxSuperblocks {
		return Design{}, fmt.Errorf("schedule: no design of %d arms with at least %d blocks", t, min)
	}
	d := Design{MinBlocks: min + min%2, CycleBlocks: 2 * Rows(t)}
	d.RecommendedBlocks = (d.MinBlocks + d.CycleBlocks - 1) / d.CycleBlocks * d.CycleBlocks
	d.LoadsMin, d.LoadsRecommended = Loads(d.MinBlocks/2, t), Loads(d.RecommendedBlocks/2, t)
	return d, nil
}

// Cost counts the loads, legs and requests of all grids of a filled plan: the first with its superblocks, each further
// one with the confirmation's. A lead-in runs every point with one repetition; warm-up requests are counted.
func Cost(p matrix.Plan) matrix.Cost {
	perRep, warm := 0, 0
	for _, pt := range p.Method.Points {
		perRep, warm = perRep+pt.Requests, warm+pt.Warmup
	}
	var c matrix.Cost
	for _, g := range p.Groups {
		n := len(g.Superblocks)
		for grid := range max(1, p.Grids) {
			if grid > 0 {
				n = min(len(g.Superblocks), matrix.ConfirmationSuperblocks)
			}
			scored := 2 * n * len(g.Arms)
			c.Loads += Loads(n, len(g.Arms))
			c.LeadIns += n
			c.Legs += scored * len(p.Method.Points)
			c.Requests += scored*(warm+p.Method.Repetitions*perRep) + n*(warm+perRep)
		}
	}
	return c
}
