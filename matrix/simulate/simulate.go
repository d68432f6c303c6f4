// Package simulate asks the protocol what it does when the truth is known. It scripts leg values under the disturbances
// of protocol §7, hands them to the same schedule and the same judge that real runs use, and counts: directions where
// there is none, equivalences where there is a difference, intervals that miss, effects that are found.
//
// Nothing is measured here and nothing is a result about an engine: every arm is stamped simulated. No socket, clock or
// file is touched, so a series costs microseconds and a table of ten thousand is an ordinary test of a threshold.
package simulate

import (
	"fmt"
	"strconv"

	"enginebroker/matrix"
	"enginebroker/matrix/gates"
	"enginebroker/matrix/schedule"
	"enginebroker/matrix/verdict"
)

// Metric is the one primary metric that a scripted series has.
var Metric = matrix.Metric{Name: "output_tok_s", Formula: "broker/1", Unit: "tok/s", Denominator: "wall time of the repetition",
	Class: matrix.ClassIntegral, Higher: true, Primary: true}

// Load is one load of a script, in execution order.
type Load struct {
	Grid       int
	Superblock int
	Block      int // −1 for a lead-in
	Position   int
	Seq        int // in its grid
	Arm        string
	Previous   string // arm of the load before it; empty for the first
	LeadIn     bool
}

// Script gives the leg value of one load.
type Script func(Load) float64

// Plan is one group of arms, one point, and a schedule of that many superblocks from the seed.
func Plan(arms []string, superblocks int, seed uint64) (matrix.Plan, error) {
	const id = "scripted|raw"
	policy := matrix.Policy{Kind: matrix.Raw}
	p := matrix.Plan{
		Schema: 1, Model: "scripted", Subject: arms[0], Box: "gb10", Seed: strconv.FormatUint(seed, 10), Grids: 1,
		Method: matrix.Method{Protocol: 1, Formula: "broker/1", Box: "gb10", Repetitions: 3, Primary: []string{Metric.Name},
			Points: []matrix.Point{{ID: "c1", Concurrency: 1, Requests: 6, OutputTokens: 128, PromptTokens: 1024}}},
		MethodID: "scripted",
		Groups:   []matrix.Group{{ID: id, Artifact: "scripted", Policy: policy}},
	}
	g := &p.Groups[0]
	for i, label := range arms {
		g.Arms = append(g.Arms, matrix.Arm{Label: label, Instance: label, Engine: "simulated", Artifact: "scripted", Policy: policy,
			Pin: "scripted", Subject: i == 0, Cache: "off", Status: matrix.StatusOK, Simulated: true, Key: label})
		for _, other := range arms[:i] {
			g.Pairs = append(g.Pairs, matrix.NewPair(label, other))
		}
	}
	return p, schedule.Fill(&p, func(int) int { return superblocks })
}

// Ready is what every scripted arm shows of itself: equal facts, all observed.
func Ready(arm string) matrix.Ready {
	r := matrix.Ready{Print: "print-" + arm, Granted: matrix.Limits{ContextTokens: 2048, Concurrency: 1}}
	for _, f := range [][2]string{{matrix.FactBuild, "build-" + arm}, {matrix.FactKVDtype, "bfloat16"}, {matrix.FactPrefixCache, "off"},
		{matrix.FactComputeDtype, "bfloat16"}, {matrix.FactActivationDtype, "bfloat16"}, {matrix.FactSpeculation, "none"}} {
		r.Facts = append(r.Facts, matrix.Fact{Name: f[0], Value: f[1], Where: "script", Standing: matrix.Observed})
	}
	return r
}

// NewGrid is a grid of the plan's first group on a boot of its own, without evidence yet. target is how many superblocks
// it is to complete.
func NewGrid(p matrix.Plan, index, target int) verdict.Grid {
	return verdict.Grid{Info: matrix.GridInfo{Index: index, BootID: "boot-" + strconv.Itoa(index), Seed: p.Seed, Done: true},
		Target: map[string]int{p.Groups[0].ID: target}}
}

// Append scripts the loads and legs of further superblocks onto a grid.
func Append(g *verdict.Grid, p matrix.Plan, sbs []matrix.Superblock, script Script) {
	group, grid := p.Groups[0].ID, g.Info.Index
	env := matrix.Env{BootIDStart: g.Info.BootID, BootIDEnd: g.Info.BootID}
	previous := ""
	if n := len(g.Loads); n > 0 {
		previous = g.Loads[n-1].Slot.Arm
	}
	for _, sb := range sbs {
		for _, slot := range sb.Slots(0) {
			seq := len(g.Loads)
			global := grid*1_000_000 + seq
			id := fmt.Sprintf("g%d-l%04d-%s", grid, seq, slot.Arm)
			r := Ready(slot.Arm)
			g.Loads = append(g.Loads, matrix.LoadRecord{ID: id, Grid: grid, Seq: global, Slot: slot, Group: group, ArmKey: slot.Arm,
				Ready: matrix.Some(r), Env: env})
			x := script(Load{Grid: grid, Superblock: sb.Index, Block: slot.Block, Position: slot.Position, Seq: seq, Arm: slot.Arm,
				Previous: previous, LeadIn: slot.LeadIn})
			for _, pt := range p.Method.Points {
				g.Legs = append(g.Legs, verdict.Leg{
					Record: matrix.LegRecord{
						ID: matrix.LegID{Load: global, Grid: grid, Group: group, Superblock: sb.Index, Block: slot.Block,
							Position: slot.Position, Arm: slot.Arm, Point: pt.ID, LeadIn: slot.LeadIn},
						ArmKey: slot.Arm, ArmPrint: r.Print, PrintEnd: r.Print, MethodID: p.MethodID, MethodEnd: p.MethodID,
						LoadID: id, Seq: global, Env: env,
					},
					Values: map[string]matrix.Value{Metric.Name: {Metric: Metric.Name, X: matrix.Some(x), N: p.Method.Repetitions}},
				})
			}
			previous = slot.Arm
		}
	}
}

// Input is what Judge needs for scripted grids on a box that certifies everything.
func Input(p matrix.Plan, grids ...verdict.Grid) (verdict.Input, error) {
	profile, err := gates.ProfileByName(p.Box)
	return verdict.Input{Plan: p, Metrics: []matrix.Metric{Metric}, Profile: profile, Grids: grids, AA: verdict.AAPass}, err
}
