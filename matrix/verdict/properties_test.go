package verdict_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"enginebroker/matrix"
	"enginebroker/matrix/simulate"

	"github.com/google/go-cmp/cmp"
)

// §3.4 (ii): the mirrored series gives the mirrored cell.
func TestAntisymmetry(t *testing.T) {
	mirror := map[matrix.Direction]matrix.Direction{matrix.DirFaster: matrix.DirSlower, matrix.DirSlower: matrix.DirFaster,
		matrix.DirEquivalent: matrix.DirEquivalent, matrix.DirNone: matrix.DirNone}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		effect, noise := math.Exp(0.06*rng.Float64()-0.03), 0.02*rng.Float64()
		draws := make([]float64, 64)
		for i := range draws {
			draws[i] = math.Exp(noise * rng.NormFloat64())
		}
		of := func(better string) matrix.Cell {
			r := newRun(t, 3, "a", "b")
			r.grid(3, func(l simulate.Load) float64 {
				// The better arm and its loads keep their values under either name.
				x := 10.0
				if l.Arm == better {
					x *= effect
				}
				k := 2 * max(0, l.Block)
				if l.LeadIn {
					k = 40 + l.Superblock
				} else if l.Arm == better {
					k++
				}
				return x * draws[k]
			})
			in := r.input(t)
			in.Profile.Drift = matrix.Opt[float64]{} // which arm opens a superblock differs between the two
			return judge(t, in).Cells[0]
		}
		x, y := of("a"), of("b")
		if x.Direction != mirror[y.Direction] || x.Verdict != y.Verdict {
			t.Fatalf("effect %v noise %v: %v %s %v and %v %s %v", effect, noise, x.Verdict, x.Direction, x.Codes(), y.Verdict, y.Direction, y.Codes())
		}
		nx, _ := x.Numbers.Get()
		ny, _ := y.Numbers.Get()
		ix, _ := nx.Interval.Get()
		iy, _ := ny.Interval.Get()
		for _, d := range []float64{ix.Theta.Or(0) + iy.Theta.Or(0), ix.Lo + iy.Hi, ix.Hi + iy.Lo} {
			if math.Abs(d) > 1e-12 {
				t.Fatalf("not mirrored: %+v and %+v", ix, iy)
			}
		}
	}
}

// Equal evidence in any order gives equal cells, byte for byte.
func TestPermutation(t *testing.T) {
	r := twoGrids(t, map[string]float64{"a": 10.2, "b": 10, "c": 9.9}, "a", "b", "c")
	void(&r.grids[0], 1, 0, "b", matrix.SwapActivity, matrix.Cotenant)
	void(&r.grids[0], 2, 1, "c", matrix.FailedRequests, matrix.BufferedStream)
	in := r.input(t)
	first := judge(t, in)
	rng := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		for g := range in.Grids {
			in.Grids[g].Legs, in.Grids[g].Loads = slices.Clone(in.Grids[g].Legs), slices.Clone(in.Grids[g].Loads)
			rng.Shuffle(len(in.Grids[g].Legs), func(i, j int) { l := in.Grids[g].Legs; l[i], l[j] = l[j], l[i] })
			rng.Shuffle(len(in.Grids[g].Loads), func(i, j int) { l := in.Grids[g].Loads; l[i], l[j] = l[j], l[i] })
		}
		if d := cmp.Diff(first, judge(t, in), cmpOpts); d != "" {
			t.Fatalf("the order of the evidence shows:\n%s", d)
		}
	}
}

// Issue 6: judge 10,000 cells × 12 blocks in at most a second.
func BenchmarkJudge10000Cells(b *testing.B) {
	r := newRun(b, 6, "a", "b", "c", "d", "e")
	for i := range 99 {
		r.plan.Method.Points = append(r.plan.Method.Points, matrix.Point{ID: "p" + strconv.Itoa(i)})
	}
	r.grid(6, values(map[string]float64{"a": 10, "b": 10.1, "c": 10.2, "d": 10.3, "e": 10.4}))
	in := r.input(b)
	for i := range 10 {
		m := simulate.Metric
		if i > 0 {
			m.Name += strconv.Itoa(i)
			m.Primary = i < 3
		}
		in.Metrics = append(in.Metrics[:i:i], m)
	}
	for g := range in.Grids {
		for i := range in.Grids[g].Legs {
			l := &in.Grids[g].Legs[i]
			v := l.Values[simulate.Metric.Name]
			l.Values = map[string]matrix.Value{}
			for _, m := range in.Metrics {
				l.Values[m.Name] = v
			}
		}
	}
	for b.Loop() {
		if res := judge(b, in); len(res.Cells) != 10_000 {
			b.Fatalf("%d cells", len(res.Cells))
		}
	}
}
