package schedule_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"enginebroker/matrix"
	"enginebroker/matrix/schedule"
	"enginebroker/matrix/stats"
)

// The draws of vectors S01–S07 are checked in matrix/vectors; here stand the properties over many seeds, and plans.

func arms(t int) []string {
	out := make([]string, t)
	for i := range out {
		out[i] = string(rune('a' + i))
	}
	return out
}

// §2.3: pairing and zero lag per superblock, and over a cycle equal firsts and equal transitions, itself included.
func TestBalanceOverCycles(t *testing.T) {
	for n := 2; n <= 6; n++ {
		cycle := schedule.Rows(n) // superblocks
		for seed := range uint64(50) {
			sbs, err := schedule.Draw(arms(n), 2*cycle, seed)
			if err != nil {
				t.Fatal(err)
			}
			if err := schedule.Check(arms(n), schedule.Legs(sbs)); err != nil {
				t.Fatalf("t=%d seed=%d: %v", n, seed, err)
			}
			b := schedule.Measure(schedule.Legs(sbs))
			if b.Loads != schedule.Loads(2*cycle, n) || b.Blocks != 4*cycle {
				t.Errorf("t=%d: %d loads, %d blocks", n, b.Loads, b.Blocks)
			}
			if len(b.Transitions) != n*n {
				t.Errorf("t=%d seed=%d: %d of %d transitions", n, seed, len(b.Transitions), n*n)
			}
			for _, counts := range []map[string]int{b.First, b.Transitions} {
				want := -1
				for what, k := range counts {
					if want < 0 {
						want = k
					}
					if k != want {
						t.Errorf("t=%d seed=%d: %s %d times, another %d", n, seed, what, k, want)
					}
				}
			}
		}
	}
}

// §2.3: which arm is first and which way a superblock runs are random over seeds.
func TestOrientationIsRandom(t *testing.T) {
	first := map[string]int{}
	for seed := range uint64(1000) {
		sbs, err := schedule.Draw(arms(2), 1, seed)
		if err != nil {
			t.Fatal(err)
		}
		first[sbs[0].LeadIn]++
	}
	if first["a"] < 420 || first["a"] > 580 {
		t.Errorf("first arm over 1000 seeds: %v", first)
	}
}

// The labels of the arms order the draw, not the order in which they are given; a draw of more begins with a draw of fewer.
func TestDrawsArePrefixes(t *testing.T) {
	long, err1 := schedule.Draw([]string{"c", "a", "b"}, 12, 9)
	short, err2 := schedule.Draw([]string{"a", "b", "c"}, 5, 9)
	if err1 != nil || err2 != nil || !reflect.DeepEqual(long[:5], short) {
		t.Errorf("%v, %v: %v and %v", err1, err2, long[:5], short)
	}
}

func plan(groups ...int) matrix.Plan {
	p := matrix.Plan{Seed: "42", Grids: 1, Method: matrix.Method{Repetitions: 3, Points: []matrix.Point{{ID: "c1", Requests: 6, Warmup: 2}, {ID: "c8", Requests: 48, Warmup: 8}}}}
	for i, n := range groups {
		g := matrix.Group{ID: fmt.Sprintf("g%d", i)}
		for _, a := range arms(n) {
			g.Arms = append(g.Arms, matrix.Arm{Label: a})
		}
		p.Groups = append(p.Groups, g)
	}
	return p
}

// §2.2: one group uses the plan's seed; several are seeded by the series generator in plan order. Next continues each.
func TestFillAndNext(t *testing.T) {
	one := plan(3)
	if err := schedule.Fill(&one, func(int) int { return 3 }); err != nil {
		t.Fatal(err)
	}
	if want, _ := schedule.Draw(arms(3), 3, 42); !reflect.DeepEqual(one.Groups[0].Superblocks, want) {
		t.Errorf("one group: %v, want %v", one.Groups[0].Superblocks, want)
	}
	p := plan(3, 2, 3)
	if err := schedule.Fill(&p, func(int) int { return 3 }); err != nil {
		t.Fatal(err)
	}
	series := stats.NewSplitMix64(42)
	for i, g := range p.Groups {
		want, _ := schedule.Draw(arms(len(g.Arms)), 5, series.Next())
		if !reflect.DeepEqual(g.Superblocks, want[:3]) {
			t.Errorf("group %d: %v, want %v", i, g.Superblocks, want[:3])
		}
		for drawn := range want {
			if got := schedule.Next(p, i, drawn); !reflect.DeepEqual(got, want[drawn]) {
				t.Errorf("group %d, draw %d: %v, want %v", i, drawn, got, want[drawn])
			}
		}
	}
	if order := p.Order(); len(order) != 9 || order[0] != [2]int{0, 0} || order[1] != [2]int{1, 0} || order[3] != [2]int{0, 1} {
		t.Errorf("order %v is not round-robin", order)
	}
	again := plan(3, 2, 3)
	if err := schedule.Fill(&again, func(int) int { return 3 }); err != nil || !reflect.DeepEqual(p, again) {
		t.Errorf("equal input gives another plan (%v)", err)
	}
}

// §2.4: loads of the seed matrix, as the document counts them.
func TestCostOfTheSeedMatrix(t *testing.T) {
	for _, c := range []struct {
		groups       []int
		first, again int
	}{{[]int{3, 2}, 36, 24}, {[]int{3, 3, 2}, 57, 38}, {[]int{3, 2, 2}, 51, 34}, {[]int{2}, 15, 10}, {[]int{3}, 21, 14}, {[]int{4}, 36, 18}} {
		p := plan(c.groups...)
		recommended := func(arms int) int {
			d, err := schedule.NewDesign(arms, matrix.MinBlocks)
			if err != nil {
				t.Fatal(err)
			}
			return d.RecommendedBlocks / 2
		}
		if err := schedule.Fill(&p, recommended); err != nil {
			t.Fatal(err)
		}
		if p.Cost.Loads != c.first {
			t.Errorf("%v: %d loads, want %d", c.groups, p.Cost.Loads, c.first)
		}
		p.Grids = 2
		if got := schedule.Cost(p); got.Loads != c.first+c.again {
			t.Errorf("%v over two grids: %d loads, want %d", c.groups, got.Loads, c.first+c.again)
		}
	}
	p := plan(2)
	if err := schedule.Fill(&p, func(int) int { return 1 }); err != nil {
		t.Fatal(err)
	}
	// 4 scored loads × 2 points, each (warm-up + 3 repetitions); one lead-in with one repetition.
	if want := 4*(10+3*54) + 10 + 54; p.Cost.Requests != want || p.Cost.Legs != 8 || p.Cost.LeadIns != 1 {
		t.Errorf("%+v, want %d requests", p.Cost, want)
	}
}

// §2.2: points ascend in even blocks and descend in odd ones; the plan's own slice stays.
func TestPointOrder(t *testing.T) {
	pts := []matrix.Point{{ID: "1"}, {ID: "2"}, {ID: "4"}}
	for block, want := range map[int]string{-1: "124", 0: "124", 1: "421", 2: "124", 3: "421"} {
		got := ""
		for _, p := range schedule.Points(pts, block) {
			got += p.ID
		}
		if got != want {
			t.Errorf("block %d: %s, want %s", block, got, want)
		}
	}
	if pts[0].ID != "1" {
		t.Error("the plan's points were turned")
	}
}

// §2.3, S06: what the validator must reject.
func TestValidateRejects(t *testing.T) {
	for name, edit := range map[string]func(*matrix.Superblock){
		"not mirrored":     func(s *matrix.Superblock) { s.Backward = slices.Clone(s.Forward) },
		"an arm twice":     func(s *matrix.Superblock) { s.Forward = []string{"a", "a"}; s.LeadIn = "a" },
		"an arm missing":   func(s *matrix.Superblock) { s.Backward = s.Backward[:1] },
		"a foreign arm":    func(s *matrix.Superblock) { s.Backward = []string{"a", "z"} },
		"another lead-in":  func(s *matrix.Superblock) { s.LeadIn = s.Backward[0] },
		"no block":         func(s *matrix.Superblock) { s.Forward = nil },
		"another position": func(s *matrix.Superblock) { s.Index = 7 },
	} {
		p := plan(2)
		if err := schedule.Fill(&p, func(int) int { return 3 }); err != nil {
			t.Fatal(err)
		}
		edit(&p.Groups[0].Superblocks[1])
		if err := schedule.Validate(p); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	abab := []schedule.Leg{}
	for block := range 4 {
		abab = append(abab, schedule.Leg{Block: block, Arm: "A"}, schedule.Leg{Block: block, Arm: "B"})
	}
	if err := schedule.Check([]string{"A", "B"}, abab); err == nil || !strings.Contains(err.Error(), "lag sum -4") {
		t.Errorf("ABABABAB: %v", err)
	}
}

func TestBadInput(t *testing.T) {
	for name, p := range map[string]matrix.Plan{"one arm": plan(1), "no arm": plan(0), "bad seed": {Seed: "x", Groups: plan(2).Groups}, "no seed": {Groups: plan(2).Groups}} {
		if err := schedule.Fill(&p, func(int) int { return 3 }); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	p := plan(2)
	p.Groups[0].Arms[1].Label = "a"
	if err := schedule.Fill(&p, func(int) int { return 3 }); err == nil {
		t.Error("two arms of one label: accepted")
	}
	p = plan(2)
	if err := schedule.Fill(&p, func(int) int { return -1 }); err == nil {
		t.Error("a negative number of superblocks: accepted")
	}
	if _, err := schedule.NextGridSeed("-3"); err == nil {
		t.Error("a negative seed: accepted")
	}
	if s, err := schedule.NextGridSeed("42"); err != nil || s != "13679457532755275413" { // §8, S01
		t.Errorf("%s, %v", s, err)
	}
}

func FuzzDraw(f *testing.F) {
	f.Add(uint64(5), uint8(2), uint8(3))
	f.Fuzz(func(t *testing.T, seed uint64, n, superblocks uint8) {
		names := make([]string, n)
		for i := range names {
			names[i] = fmt.Sprintf("arm%03d", i)
		}
		sbs, err := schedule.Draw(names, int(superblocks), seed)
		if err != nil {
			if n >= 2 {
				t.Fatal(err)
			}
			return
		}
		if n < 20 {
			if err := schedule.Check(names, schedule.Legs(sbs)); err != nil {
				t.Fatal(err)
			}
		}
	})
}
