package simulate

import (
	"fmt"
	"io"
	"math"
	"runtime"
	"sync"
	"text/tabwriter"

	"enginebroker/matrix"
	"enginebroker/matrix/schedule"
	"enginebroker/matrix/stats"
	"enginebroker/matrix/verdict"
)

// Options say how much to simulate.
type Options struct {
	Series      int    // per scenario and truth
	Seed        uint64 //
	Superblocks int    // of the primary grid, 3 by protocol
	Effect      float64
	Workers     int // 0: as many as there are processors
	// Execute runs one grid of a plan to its end, re-runs included. nil: the grid is scripted straight into the judge.
	Execute func(p matrix.Plan, g matrix.GridInfo, script Script) (verdict.Grid, error)
}

// Rate is a count over series, with its binomial standard error.
type Rate struct{ Hits, Of int }

// Pct is the rate in percent.
func (r Rate) Pct() float64 { return 100 * float64(r.Hits) / float64(max(1, r.Of)) }

// ErrPct is its binomial standard error in percent.
func (r Rate) ErrPct() float64 {
	p := r.Pct() / 100
	return 100 * math.Sqrt(p*(1-p)/float64(max(1, r.Of)))
}

func (r Rate) String() string { return fmt.Sprintf("%.1f ± %.1f", r.Pct(), r.ErrPct()) }

func (r *Rate) count(hit bool) {
	r.Of++
	if hit {
		r.Hits++
	}
}

func (r *Rate) merge(o Rate) { r.Hits, r.Of = r.Hits+o.Hits, r.Of+o.Of }

// Row is what one scenario does, in rates over series.
type Row struct {
	Name           string
	FalseDirection Rate // equal arms, one grid: a better arm is named, be it inside the margin
	Excludes       Rate // equal arms: the 95 % t interval excludes the truth
	TwoGrids       Rate // equal arms, two grids: a better arm is named and the interval across grids excludes equality
	FalseEqual     Rate // arms that differ by exactly the margin: EQUIVALENT
	Power          Rate // arms that differ by the effect: the right direction
	Naive          map[string]Rate
	Says           Says
}

// Naive names the schedules that the table sets beside the protocol's: equal arms, how often their 95 % interval
// excludes the truth.
var Naive = []string{"AAABBB Welch", "random order Welch", "ABAB paired t"}

// Calibrate runs every disturbance (protocol §7). Equal options give equal rows, whatever the number of workers.
func Calibrate(ds []Disturbance, o Options) ([]Row, error) {
	rows := make([]Row, len(ds))
	for i, d := range ds {
		row, err := calibrate(d, o, uint64(i))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d.Name, err)
		}
		rows[i] = row
	}
	return rows, nil
}

// calibrate splits the series of one disturbance over workers. Each series has its own generator, so the split changes nothing.
func calibrate(d Disturbance, o Options, salt uint64) (Row, error) {
	workers := o.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	parts, errs := make([]Row, workers), make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			parts[w].Naive = map[string]Rate{}
			for i := w; i < o.Series && errs[w] == nil; i += workers {
				rng := stats.NewSplitMix64(o.Seed ^ salt<<48 ^ uint64(i)<<8)
				errs[w] = parts[w].series(d, o, rng)
			}
		})
	}
	wg.Wait()
	out := Row{Name: d.Name, Naive: map[string]Rate{}, Says: d.Says}
	for w, p := range parts {
		if errs[w] != nil {
			return Row{}, errs[w]
		}
		out.FalseDirection.merge(p.FalseDirection)
		out.Excludes.merge(p.Excludes)
		out.TwoGrids.merge(p.TwoGrids)
		out.FalseEqual.merge(p.FalseEqual)
		out.Power.merge(p.Power)
		for _, n := range Naive {
			r := out.Naive[n]
			r.merge(p.Naive[n])
			out.Naive[n] = r
		}
	}
	return out, nil
}

const (
	first  = "a"
	second = "b"
)

// series simulates one series of each truth.
func (r *Row) series(d Disturbance, o Options, rng *stats.SplitMix64) error {
	judge := func(effect float64, grids int) (matrix.Cell, error) { return run(d, o, rng, effect, grids) }
	equal := -d.shift() // so that the arms' true means are equal
	cell, err := judge(equal, 1)
	if err != nil {
		return err
	}
	r.FalseDirection.count(claims(cell))
	if i, ok := interval(cell); ok {
		r.Excludes.count(i.Lo > 0 || i.Hi < 0)
	}
	if cell, err = judge(equal, 2); err != nil {
		return err
	}
	i, ok := interval(cell)
	r.TwoGrids.count(claims(cell) && ok && (i.Lo > 0 || i.Hi < 0))
	if cell, err = judge(equal+stats.Margin(0.02), 1); err != nil {
		return err
	}
	r.FalseEqual.count(cell.Direction == matrix.DirEquivalent)
	if cell, err = judge(equal+o.Effect, 1); err != nil {
		return err
	}
	r.Power.count(cell.Direction == matrix.DirFaster)
	return r.naive(d, o, rng, equal)
}

// claims reports that a cell names a better arm, be it inside the margin of an EQUIVALENT one.
func claims(c matrix.Cell) bool {
	named := func(d matrix.Direction) bool { return d == matrix.DirFaster || d == matrix.DirSlower }
	return named(c.Direction) || named(c.Numbers.Or(matrix.Numbers{}).Detected)
}

func interval(c matrix.Cell) (matrix.Interval, bool) {
	return c.Numbers.Or(matrix.Numbers{}).Interval.Get()
}

// run plans one run of two arms, scripts its grids, runs again what the judge asks for, and returns its cell.
func run(d Disturbance, o Options, rng *stats.SplitMix64, effect float64, grids int) (matrix.Cell, error) {
	p, err := Plan([]string{first, second}, o.Superblocks, rng.Next())
	if err != nil {
		return matrix.Cell{}, err
	}
	script := d.script(rng, first, schedule.Loads(o.Superblocks, 2), effect)
	var evidence []verdict.Grid
	for i := range grids {
		gp := p
		if i > 0 { // a new boot continues with a seed of its own
			if gp, err = Plan([]string{first, second}, min(o.Superblocks, matrix.ConfirmationSuperblocks), rng.Next()); err != nil {
				return matrix.Cell{}, err
			}
		}
		if o.Execute != nil {
			g, err := o.Execute(gp, NewGrid(gp, i, 0).Info, script)
			if err != nil {
				return matrix.Cell{}, err
			}
			if evidence = append(evidence, g); i < grids-1 {
				continue
			}
			in, err := Input(p, evidence...)
			if err != nil {
				return matrix.Cell{}, err
			}
			res, err := verdict.Judge(in)
			if err != nil {
				return matrix.Cell{}, err
			}
			return res.Cells[0], nil
		}
		sbs := gp.Groups[0].Superblocks
		g := NewGrid(gp, i, len(sbs))
		Append(&g, gp, sbs, script)
		evidence = append(evidence, g)
		for drawn := len(sbs); ; {
			in, err := Input(p, evidence...)
			if err != nil {
				return matrix.Cell{}, err
			}
			res, err := verdict.Judge(in)
			if err != nil {
				return matrix.Cell{}, err
			}
			if len(res.Rerun) == 0 {
				if i == grids-1 {
					return res.Cells[0], nil
				}
				break
			}
			for range res.Rerun {
				Append(&evidence[i], gp, []matrix.Superblock{schedule.Next(gp, 0, drawn)}, script)
				drawn++
			}
		}
	}
	return matrix.Cell{}, fmt.Errorf("a run has at least one grid")
}

// naive analyses the same disturbance under schedules that do not balance it.
func (r *Row) naive(d Disturbance, o Options, rng *stats.SplitMix64, effect float64) error {
	n := 2 * o.Superblocks // blocks, and so loads per arm
	orders := map[string][]string{}
	var sequential, alternating []string
	for i := range 2 * n {
		sequential = append(sequential, []string{first, second}[i/n])
		alternating = append(alternating, []string{first, second}[i%2])
	}
	random := make([]string, 2*n)
	for i, j := range rng.Perm(2 * n) {
		random[i] = sequential[j]
	}
	orders["AAABBB Welch"], orders["random order Welch"], orders["ABAB paired t"] = sequential, random, alternating
	for _, name := range Naive {
		script := d.script(rng, first, 2*n, effect)
		var a, b []float64
		previous := ""
		for i, arm := range orders[name] {
			x := math.Log(script(Load{Seq: i, Arm: arm, Previous: previous}))
			if previous = arm; arm == first {
				a = append(a, x)
			} else {
				b = append(b, x)
			}
		}
		var lo, hi float64
		var err error
		if name == "ABAB paired t" {
			diff := make([]float64, n)
			for i := range diff {
				diff[i] = a[i] - b[i]
			}
			var e stats.Estimate
			e, err = stats.PairedCI(diff, 0.95, 0)
			lo, hi = e.Lo, e.Hi
		} else {
			lo, hi, err = welch(a, b)
		}
		if err != nil {
			return err
		}
		rate := r.Naive[name]
		rate.count(lo > 0 || hi < 0)
		r.Naive[name] = rate
	}
	return nil
}

// welch is the 95 % interval of a difference of means with unequal variances, degrees of freedom rounded down. It exists
// to show what unpaired analysis does; nothing the broker prints is computed by it.
func welch(a, b []float64) (lo, hi float64, err error) {
	va, err := stats.PairedCI(a, 0.95, 0)
	if err != nil {
		return 0, 0, err
	}
	vb, err := stats.PairedCI(b, 0.95, 0)
	if err != nil {
		return 0, 0, err
	}
	qa, qb := va.SE*va.SE, vb.SE*vb.SE
	df := (qa + qb) * (qa + qb) / (qa*qa/float64(va.DF) + qb*qb/float64(vb.DF))
	t, err := stats.TQuantile(0.975, max(1, int(df)))
	if err != nil {
		return 0, 0, err
	}
	half := t * math.Sqrt(qa+qb)
	return va.Theta - vb.Theta - half, va.Theta - vb.Theta + half, nil
}

// Print writes the table. Every figure is percent ± its binomial standard error, with what the protocol document found for
// it in brackets, where it gives a figure.
func Print(w io.Writer, rows []Row, o Options) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "SIMULATED: %d series per figure, %d blocks, percent ± binomial standard error [what the protocol document found]\n", o.Series, 2*o.Superblocks)
	fmt.Fprintf(t, "scenario\tfalse direction\tinterval misses\ttwo grids, false\tfalse EQUIVALENT at δ\tpower at %.1f %%\t", 100*math.Expm1(o.Effect))
	for _, n := range Naive {
		fmt.Fprintf(t, "%s misses\t", n)
	}
	fmt.Fprintln(t)
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t%v\t%v%s\t%v%s\t%v\t%v\t", r.Name, r.FalseDirection, r.Excludes, found(r.Says.Misses), r.TwoGrids, found(r.Says.Two), r.FalseEqual, r.Power)
		for i, n := range Naive {
			says := matrix.Opt[float64]{}
			if r.Says.Naive[i] > 0 {
				says = matrix.Some(r.Says.Naive[i])
			}
			fmt.Fprintf(t, "%v%s\t", r.Naive[n], found(says))
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

func found(x matrix.Opt[float64]) string {
	v, ok := x.Get()
	if !ok {
		return ""
	}
	return fmt.Sprintf(" [%.1f]", v)
}
