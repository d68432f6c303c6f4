// Package schedule decides the order of loads: which arm is loaded when, so that drift, carry-over and position cancel
// between arms instead of hiding in a ratio.
//
// The unit is the superblock (protocol §2): one unscored lead-in, one row of a Williams design, and the same row
// backwards. Every pair then has lag sum zero, so a linear drift cancels exactly; over a cycle every arm is first equally
// often and every transition, itself included, leads into scored legs equally often. What a schedule may be is checked,
// not believed: Validate rejects any plan that breaks the first two properties.
//
// Everything is drawn from SplitMix64 seeded by the plan, in one stream per group. Superblocks of a group are a prefix of
// an endless sequence, so a re-run or an extension is the next draw and never a choice.
package schedule

import (
	"fmt"
	"slices"
	"strconv"

	"enginebroker/matrix"
	"enginebroker/matrix/stats"
)

// maxSuperblocks bounds one group of one grid; the protocol's longest series has 6 (12 blocks) plus replacements.
const maxSuperblocks = 1000

// WilliamsBase is the first row of a Williams design over t symbols: 0, 1, t−1, 2, t−2, … (protocol §2.2, vector S02).
func WilliamsBase(t int) []int {
	row := []int{0}
	for lo, hi := 1, t-1; lo <= hi; lo, hi = lo+1, hi-1 {
		row = append(row, lo)
		if hi != lo {
			row = append(row, hi)
		}
	}
	return row
}

// Rows is the number of distinct palindromes: reversing row s gives row s+t/2 when t is even (protocol §2.2).
func Rows(t int) int {
	if t%2 == 0 {
		return t / 2
	}
	return t
}

// generator draws the superblocks of one group, endlessly.
type generator struct {
	rng    *stats.SplitMix64
	labels []string // by symbol
	base   []int
	perm   []int
	next   int
}

func newGenerator(arms []string, seed uint64) *generator {
	sorted := slices.Sorted(slices.Values(arms))
	g := &generator{rng: stats.NewSplitMix64(seed), base: WilliamsBase(len(sorted))}
	for _, i := range g.rng.Perm(len(sorted)) {
		g.labels = append(g.labels, sorted[i])
	}
	return g
}

func (g *generator) draw() matrix.Superblock {
	t, nr := len(g.labels), Rows(len(g.labels))
	if g.next%nr == 0 {
		g.perm = g.rng.Perm(nr)
	}
	forward := make([]string, t)
	for i, x := range g.base {
		forward[i] = g.labels[(x+g.perm[g.next%nr])%t]
	}
	if g.rng.Coin() {
		slices.Reverse(forward)
	}
	backward := slices.Clone(forward)
	slices.Reverse(backward)
	sb := matrix.Superblock{Index: g.next, LeadIn: forward[0], Forward: forward, Backward: backward}
	g.next++
	return sb
}

// Draw returns the first n superblocks of a group of arms from its own seed (protocol §2.2, vectors S03–S05).
func Draw(arms []string, n int, seed uint64) ([]matrix.Superblock, error) {
	if len(arms) < 2 {
		return nil, fmt.Errorf("schedule: %d arms: a comparison needs at least 2", len(arms))
	}
	if s := slices.Sorted(slices.Values(arms)); len(slices.Compact(s)) != len(arms) {
		return nil, fmt.Errorf("schedule: arm labels %v are not unique", arms)
	}
	if n < 0 || n > maxSuperblocks {
		return nil, fmt.Errorf("schedule: %d superblocks: must be 0..%d", n, maxSuperblocks)
	}
	g := newGenerator(arms, seed)
	out := make([]matrix.Superblock, 0, n)
	for range n {
		out = append(out, g.draw())
	}
	return out, nil
}

// ParseSeed reads the decimal seed of a plan.
func ParseSeed(seed string) (uint64, error) {
	n, err := strconv.ParseUint(seed, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("schedule: seed %q is not a decimal number below 2^64", seed)
	}
	return n, nil
}

// NextGridSeed is the seed of the grid after one with that seed: next(SplitMix64(old seed)) (protocol §8).
func NextGridSeed(seed string) (string, error) {
	n, err := ParseSeed(seed)
	if err != nil {
		return "", err
	}
	return strconv.FormatUint(stats.NewSplitMix64(n).Next(), 10), nil
}

// groupSeeds gives each group its generator's seed: the plan's own with one group, next() of the series generator in
// plan order with several.
func groupSeeds(p matrix.Plan) ([]uint64, error) {
	seed, err := ParseSeed(p.Seed)
	if err != nil || len(p.Groups) == 1 {
		return []uint64{seed}, err
	}
	series := stats.NewSplitMix64(seed)
	out := make([]uint64, len(p.Groups))
	for i := range out {
		out[i] = series.Next()
	}
	return out, nil
}

// Fill draws the superblocks of every group from the plan's seed and counts what the plan costs. superblocks says how
// many a group of t arms gets. The estimate of time stays the caller's.
func Fill(p *matrix.Plan, superblocks func(t int) int) error {
	seeds, err := groupSeeds(*p)
	if err != nil {
		return err
	}
	for i := range p.Groups {
		g := &p.Groups[i]
		if g.Superblocks, err = Draw(labels(*g), superblocks(len(g.Arms)), seeds[i]); err != nil {
			return fmt.Errorf("group %s: %w", g.ID, err)
		}
	}
	estimate, basis := p.Cost.Estimate, p.Cost.Basis
	p.Cost = Cost(*p)
	p.Cost.Estimate, p.Cost.Basis = estimate, basis
	return Validate(*p)
}

// Next returns the superblock that a group draws after drawn of them: a re-run or an extension. The plan must have been
// filled; group is its index in the plan. It panics on a group that is not in the plan.
func Next(p matrix.Plan, group, drawn int) matrix.Superblock {
	seeds, err := groupSeeds(p)
	if err != nil {
		panic(err) // Fill has read the same seed
	}
	g := newGenerator(labels(p.Groups[group]), seeds[group])
	for range drawn {
		g.draw()
	}
	return g.draw()
}

// Points orders the points inside a load: as planned in even blocks, backwards in odd ones (protocol §2.2). A lead-in
// (block −1) runs them as planned.
func Points(points []matrix.Point, block int) []matrix.Point {
	out := slices.Clone(points)
	if block > 0 && block%2 == 1 {
		slices.Reverse(out)
	}
	return out
}

func labels(g matrix.Group) []string {
	out := make([]string, len(g.Arms))
	for i, a := range g.Arms {
		out[i] = a.Label
	}
	return out
}
