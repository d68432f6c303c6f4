package verdict_test

import (
	"math"
	"reflect"
	"slices"
	"testing"

	"enginebroker/matrix"
	"enginebroker/matrix/gates"
	"enginebroker/matrix/schedule"
	"enginebroker/matrix/simulate"
	"enginebroker/matrix/verdict"

	"github.com/google/go-cmp/cmp"
)

var cmpOpts = cmp.Exporter(func(reflect.Type) bool { return true })

// run is a scripted run of real-looking arms: pinned flat clocks, every fact observed, nothing simulated.
type run struct {
	plan  matrix.Plan
	grids []verdict.Grid
}

func newRun(t testing.TB, superblocks int, arms ...string) *run {
	t.Helper()
	p, err := simulate.Plan(arms, superblocks, 7)
	if err != nil {
		t.Fatal(err)
	}
	for i := range p.Groups[0].Arms {
		p.Groups[0].Arms[i].Simulated = false
		p.Groups[0].Arms[i].Engine = "engine-" + p.Groups[0].Arms[i].Label
	}
	return &run{plan: p}
}

// jitter is a small reproducible noise of a load, ±0.1 %.
func jitter(l simulate.Load) float64 {
	return 1 + 0.001*math.Sin(float64(l.Grid*31+l.Seq*7+len(l.Arm)))
}

// values scripts constant values per arm with jitter.
func values(by map[string]float64) simulate.Script {
	return func(l simulate.Load) float64 { return by[l.Arm] * jitter(l) }
}

// grid adds a grid of n superblocks, with flat clocks.
func (r *run) grid(n int, script simulate.Script) *verdict.Grid {
	g := simulate.NewGrid(r.plan, len(r.grids), n)
	r.grids = append(r.grids, g)
	last := &r.grids[len(r.grids)-1]
	for j := range n {
		r.more(last, schedule.Next(r.plan, 0, j), script)
	}
	return last
}

func (r *run) more(g *verdict.Grid, sb matrix.Superblock, script simulate.Script) {
	from := len(g.Legs)
	simulate.Append(g, r.plan, []matrix.Superblock{sb}, script)
	for i := from; i < len(g.Legs); i++ {
		seconds := make([]matrix.ClockSecond, 40)
		for k := range seconds {
			seconds[k] = matrix.ClockSecond{MHz: 2184, Util: 96}
		}
		g.Legs[i].Record.Clock = matrix.Some(matrix.Clock{Seconds: seconds, BootID: g.Info.BootID, Persistence: matrix.Some(true),
			Static: matrix.Facts{{Name: "uuid", Value: "GPU-1"}}})
	}
}

// void marks the scored legs of an arm in one block of a superblock.
func void(g *verdict.Grid, superblock, half int, arm string, codes ...matrix.LegCode) {
	for i := range g.Legs {
		id := g.Legs[i].Record.ID
		if !id.LeadIn && id.Superblock == superblock && id.Block%2 == half && (arm == "" || id.Arm == arm) {
			for _, c := range codes {
				g.Legs[i].Gate = gates.Add(g.Legs[i].Gate, c, "scripted")
			}
		}
	}
}

// clock sets the flat clock of an arm's scored legs in one superblock.
func clock(g *verdict.Grid, superblock int, arm string, mhz int64) {
	for i := range g.Legs {
		if id := g.Legs[i].Record.ID; !id.LeadIn && id.Superblock == superblock && id.Arm == arm {
			c, _ := g.Legs[i].Record.Clock.Get()
			c.Seconds = slices.Clone(c.Seconds)
			for k := range c.Seconds {
				c.Seconds[k].MHz = mhz
			}
			g.Legs[i].Record.Clock = matrix.Some(c)
		}
	}
}

func (r *run) input(t testing.TB) verdict.Input {
	t.Helper()
	in, err := simulate.Input(r.plan, r.grids...)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func judge(t testing.TB, in verdict.Input) verdict.Result {
	t.Helper()
	res, err := verdict.Judge(in)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func want(t *testing.T, c matrix.Cell, v matrix.Verdict, dir matrix.Direction, codes ...matrix.Reason) {
	t.Helper()
	got := c.Codes()
	slices.Sort(got)
	slices.Sort(codes)
	if c.Verdict != v || c.Direction != dir || !slices.Equal(got, codes) {
		t.Errorf("%s is %v %s %v, want %v %s %v", c.ID, c.Verdict, c.Direction, got, v, dir, codes)
		for _, r := range c.Reasons {
			t.Logf("  %s: %s", r.Code, r.Detail)
		}
	}
	for _, r := range c.Reasons {
		if r.Detail == "" || r.Next == "" {
			t.Errorf("%s: reason %s has detail %q and next %q: a reason says what exactly and what would release it", c.ID, r.Code, r.Detail, r.Next)
		}
	}
}

func twoGrids(t testing.TB, by map[string]float64, arms ...string) *run {
	r := newRun(t, 3, arms...)
	r.grid(3, values(by))
	r.grid(2, values(by))
	return r
}
