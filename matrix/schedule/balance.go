package schedule

import (
	"fmt"
	"slices"
	"strings"

	"enginebroker/matrix"
)

// Leg is one load of a sequence, as balance sees it.
type Leg struct {
	Superblock int
	Block      int
	Arm        string
	LeadIn     bool
}

// Balance counts what a sequence of loads treats equally (protocol §2.3).
type Balance struct {
	First       map[string]int // arm: how often it opens a block
	Transitions map[string]int // "A>B": B is scored right after A was loaded, lead-ins included as predecessors
	LagSum      map[string]int // "A|B", A < B: Σ(pos_a − pos_b) over blocks
	Loads       int
	Blocks      int
}

// Legs lists the loads of superblocks in order.
func Legs(sbs []matrix.Superblock) []Leg {
	var out []Leg
	for _, sb := range sbs {
		for _, s := range sb.Slots(0) {
			out = append(out, Leg{Superblock: s.Superblock, Block: s.Block, Arm: s.Arm, LeadIn: s.LeadIn})
		}
	}
	return out
}

// blocks groups the scored legs into blocks, in order.
func blocks(legs []Leg) (keys [][2]int, arms [][]string) {
	for _, l := range legs {
		if l.LeadIn {
			continue
		}
		k := [2]int{l.Superblock, l.Block}
		if n := len(keys); n == 0 || keys[n-1] != k {
			keys, arms = append(keys, k), append(arms, nil)
		}
		arms[len(arms)-1] = append(arms[len(arms)-1], l.Arm)
	}
	return keys, arms
}

// Measure counts the balance of a sequence.
func Measure(legs []Leg) Balance {
	b := Balance{First: map[string]int{}, Transitions: map[string]int{}, LagSum: map[string]int{}, Loads: len(legs)}
	for i, l := range legs {
		if l.LeadIn {
			continue
		}
		b.First[l.Arm] += 0
		if i > 0 {
			b.Transitions[legs[i-1].Arm+">"+l.Arm]++
		}
	}
	_, rows := blocks(legs)
	b.Blocks = len(rows)
	for _, row := range rows {
		b.First[row[0]]++
		for pair, lag := range lags(row) {
			b.LagSum[pair] += lag
		}
	}
	return b
}

func lags(row []string) map[string]int {
	out := map[string]int{}
	for i, a := range row {
		for j, b := range row[:i] {
			if a < b {
				out[a+"|"+b] += i - j
			} else {
				out[b+"|"+a] += j - i
			}
		}
	}
	return out
}

// Check rejects a sequence that breaks pairing (each arm once in each block) or linear balance (lag sum zero for every
// pair in every superblock); vector S06 is such a sequence.
func Check(arms []string, legs []Leg) error {
	want := slices.Sorted(slices.Values(arms))
	keys, rows := blocks(legs)
	sums, order := map[int]map[string]int{}, []int{}
	for i, row := range rows {
		sb := keys[i][0]
		if got := slices.Sorted(slices.Values(row)); !slices.Equal(got, want) {
			return fmt.Errorf("superblock %d, block %d has arms %s: every block has each of %s exactly once", sb, keys[i][1], strings.Join(row, " "), strings.Join(want, " "))
		}
		if sums[sb] == nil {
			sums[sb], order = map[string]int{}, append(order, sb)
		}
		for pair, lag := range lags(row) {
			sums[sb][pair] += lag
		}
	}
	for _, sb := range order {
		for _, a := range want {
			for _, b := range want {
				if lag := sums[sb][a+"|"+b]; lag != 0 {
					return fmt.Errorf("superblock %d has lag sum %d for %s and %s: a drift in time would show as a difference", sb, lag, a, b)
				}
			}
		}
	}
	return nil
}

// Validate rejects a plan whose schedule is not balanced, or whose superblocks are not numbered as drawn. A superblock
// has exactly two blocks and a lead-in of the arm that opens it.
func Validate(p matrix.Plan) error {
	for _, g := range p.Groups {
		for i, sb := range g.Superblocks {
			switch {
			case sb.Index != i:
				return fmt.Errorf("group %s: superblock %d has index %d", g.ID, i, sb.Index)
			case len(sb.Forward) == 0 || sb.LeadIn != sb.Forward[0]:
				return fmt.Errorf("group %s: superblock %d: lead-in %q is not the arm that opens the block", g.ID, i, sb.LeadIn)
			}
			if err := Check(labels(g), Legs([]matrix.Superblock{sb})); err != nil {
				return fmt.Errorf("group %s: %w", g.ID, err)
			}
		}
	}
	return nil
}
