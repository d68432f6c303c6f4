package service

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"enginebroker/matrix"
	"enginebroker/matrix/metrics"
	"enginebroker/matrix/stats"
	"enginebroker/matrix/verdict"
)

// Numbers of loads of a reload experiment (protocol §5).
const (
	MinReloads     = 6    // below it nothing is decided
	DefaultReloads = 8    //
	BindingReloads = 12   // where the answer is to support ESTABLISHED, or 6–8 loads did not decide
	MaxReloads     = 1000 // a plan is written whole before it is run
)

// Reload is an experiment of cold loads of one instance at one point.
type Reload struct {
	Instance string `json:"instance"`
	With     string `json:"with,omitempty"`  // another instance, loaded in between; empty: none
	Loads    int    `json:"loads,omitempty"` // 0: the default of the profile
}

// reloadRequest is a reload experiment.
func reloadRequest(q Request) (Request, error) {
	n := q.Reload.Loads
	if n == 0 {
		n = DefaultReloads
		if q.Profile == "binding" {
			n = BindingReloads
		}
	}
	if n < MinReloads {
		return q, About("spec.reload.loads", fail(CauseUsage, "", "%d loads decide nothing: at least %d", n, MinReloads))
	}
	if n > MaxReloads {
		return q, About("spec.reload.loads", fail(CauseUsage, "", "%d loads: at most %d", n, MaxReloads))
	}
	if len(q.Points) > 1 {
		return q, About("spec.points", fail(CauseUsage, "", "a reload experiment measures one point, not %s", strings.Join(q.Points, ", ")))
	}
	q.Engines, q.Pairs = []string{q.Reload.Instance}, nil
	if q.Reload.With != "" {
		q.Engines = append(q.Engines, q.Reload.With)
	}
	q.special = special{purpose: matrix.PurposeReload, loads: n, arm: q.Reload.Instance, point: strings.Join(q.Points, "")}
	q.Points = nil // the server is granted what all of them need
	q.Profile = cmp.Or(q.Profile, "standard")
	return q, nil
}

// reloads judges the arms of a reload experiment by their output rate (protocol §5).
func reloads(run string, plan matrix.Plan, ev evidence) ([]matrix.Reload, error) {
	var out []matrix.Reload
	for _, g := range plan.Groups {
		for _, a := range g.Arms {
			r := matrix.Reload{Run: run, Arm: a.Label, ArmKey: a.Key, Metric: metrics.OutputTokS, Unit: "tok/s", Point: plan.Method.Points[0].ID}
			var within []float64
			for _, grid := range ev.grids {
				legs := slices.Clone(grid.Legs)
				slices.SortFunc(legs, func(x, y verdict.Leg) int { return cmp.Compare(x.Record.Seq, y.Record.Seq) })
				for _, l := range legs {
					if l.Record.ArmKey != a.Key || l.Record.ID.LeadIn {
						continue
					}
					v := l.Values[r.Metric]
					x, ok := v.X.Get()
					if !ok || !(x > 0) || r.Print != "" && l.Record.ArmPrint != r.Print {
						r.Void = append(r.Void, l.Record.LoadID+": "+why(l, r.Print))
						continue
					}
					r.Print = l.Record.ArmPrint
					r.Values, r.Loads = append(r.Values, x), append(r.Loads, l.Record.LoadID)
					if cv, ok := v.CV.Get(); ok && v.N > 1 {
						within = append(within, cv/100*math.Sqrt(float64(v.N)/float64(v.N-1)))
					}
				}
			}
			if err := decideReload(&r, within, plan.Method.Repetitions); err != nil {
				return nil, err
			}
			out = append(out, r)
		}
	}
	return out, nil
}

func why(l verdict.Leg, print string) string {
	switch {
	case !l.Gate.Valid():
		codes := make([]string, len(l.Gate.Codes))
		for i, c := range l.Gate.Codes {
			codes[i] = string(c)
		}
		return strings.Join(codes, ", ")
	case print != "" && l.Record.ArmPrint != print:
		return string(matrix.IdentityChanged)
	}
	return "no value"
}

func decideReload(r *matrix.Reload, within []float64, repetitions int) error {
	n := len(r.Values)
	if n == 0 {
		r.Verdict, r.Reason = string(stats.ModesUndecided), string(stats.TooFewLoads)
		r.Text = "UNDECIDED (TOO_FEW_LOADS): no load gave a value."
		r.Next = "repair what voided the loads, then the experiment again"
		return nil
	}
	x, err := stats.Reload(r.Values, stats.ReloadMargin)
	if err != nil {
		return err
	}
	r.Verdict, r.Reason, r.Modes, r.Sizes, r.Text = string(x.Verdict), string(x.Reason), x.Modes, x.Sizes, x.Text()
	r.Spread, r.Median, r.MissedTo = matrix.Some(x.Spread), matrix.Some(x.Median), matrix.Some(x.MissedUpTo)
	if x.TrendP != nil {
		r.TrendP = matrix.Some(*x.TrendP)
	}
	if len(within) == n && n > 1 {
		ss := 0.0
		for _, w := range within {
			ss += w * w
		}
		w := math.Sqrt(ss / float64(n))
		logs := make([]float64, n)
		for i, v := range r.Values {
			logs[i] = math.Log(v)
		}
		e, err := stats.PairedCI(logs, 0.95, 0)
		if err != nil {
			return err
		}
		b, err := stats.BetweenLoadSD(e.SD, w, repetitions)
		if err != nil {
			return err
		}
		r.Within, r.Between = matrix.Some(w), matrix.Some(b)
	}
	r.Next = nextReload(r.Arm, x)
	return nil
}

// nextReload is the cheapest next step.
func nextReload(arm string, x stats.Reloaded) string {
	again := fmt.Sprintf("broker reload %s --loads %d", arm, BindingReloads)
	switch {
	case x.Reason == stats.TooFewLoads:
		return fmt.Sprintf("the experiment again, with more loads: %d are valid, at least %d are needed", x.N, MinReloads)
	case x.Verdict == stats.MultiMode:
		return "find what decides the state at load; until then every cell of the arm is INCONCLUSIVE"
	case x.Reason == stats.StepChange:
		return "one switch in time looks like a changed environment: again with --with another engine, which a change of the box moves too"
	case x.Verdict == stats.ModesUndecided && x.N < BindingReloads:
		return again + " (protocol §5: extend to 12)"
	case x.Verdict == stats.ModesUndecided:
		return "no state is told apart at this noise: find its source"
	case x.N < BindingReloads:
		return again + " would also clear LOAD_STATE_SUSPECT"
	}
	return ""
}

// reloadKey is what a reload experiment speaks of: an arm as declared, on one machine, driver and box profile. The build that
// was measured is in the record; another one is another state of affairs.
type reloadKey struct {
	ArmKey  string `json:"arm_key"`
	Box     string `json:"box"`
	Machine string `json:"machine"`
	Driver  string `json:"driver"`
}

func reloadKeyOf(armKey, profile string, box matrix.Facts) reloadKey {
	k := reloadKey{ArmKey: armKey, Box: profile}
	k.Machine, k.Driver = machine(box)
	return k
}

func (s *Service) fileReloads(r matrix.Report) error {
	for _, x := range r.Reloads {
		if len(x.Values) < MinReloads {
			continue
		}
		key := reloadKeyOf(x.ArmKey, r.Plan.Box, r.Box)
		var have []matrix.Reload
		if _, err := s.find("reload", key, &have); err != nil {
			return err
		}
		have = slices.DeleteFunc(have, func(h matrix.Reload) bool { return h.Run == x.Run })
		if err := s.keep("reload", key, append(have, x)); err != nil {
			return err
		}
	}
	return nil
}

// reloadsOn are the reload experiments that a run's arms are judged by: the last of each arm on this machine with the build
// that the run had; runs limits them to those a report names, nil takes all.
func (s *Service) reloadsOn(plan matrix.Plan, ev evidence, runs []string) ([]verdict.Reload, []string, error) {
	var out []verdict.Reload
	var names []string
	for _, g := range plan.Groups {
		for _, a := range g.Arms {
			var have []matrix.Reload
			if _, err := s.find("reload", reloadKeyOf(a.Key, plan.Box, ev.box), &have); err != nil {
				return nil, nil, err
			}
			for i := len(have) - 1; i >= 0; i-- {
				x := have[i]
				if runs != nil && !slices.Contains(runs, x.Run) || x.Print != ev.print(a.Key) {
					continue
				}
				res, err := stats.Reload(x.Values, stats.ReloadMargin)
				if err != nil {
					return nil, nil, fmt.Errorf("reload experiment %s: %w", x.Run, err)
				}
				out = append(out, verdict.Reload{Arm: a.Label, Result: res, ID: x.Run})
				names = append(names, x.Run)
				break
			}
		}
	}
	return out, names, nil
}

// print is what an arm's first load of the run showed of itself.
func (ev evidence) print(armKey string) string {
	for _, g := range ev.grids {
		for _, l := range g.Loads {
			if ready, ok := l.Ready.Get(); ok && l.ArmKey == armKey {
				return ready.Print
			}
		}
	}
	return ""
}

// renderReloads writes what a reload experiment found, below a report that has no cells.
func renderReloads(w io.Writer, list []matrix.Reload) error {
	for _, r := range list {
		fmt.Fprintf(w, "\n%s at %s, %s in %s, in load order:\n  ", r.Arm, r.Point, r.Metric, r.Unit)
		for i, v := range r.Values {
			if i > 0 {
				fmt.Fprint(w, "  ")
			}
			fmt.Fprintf(w, "%.4g", v)
		}
		fmt.Fprintf(w, "\n%s\n", r.Text)
		if a, ok := r.Within.Get(); ok {
			fmt.Fprintf(w, "SD of one load %.2f %%, between loads %.2f %%.\n", 100*a, 100*r.Between.Or(0))
		}
		for _, v := range r.Void {
			fmt.Fprintf(w, "not counted: %s\n", v)
		}
		if r.Next != "" {
			fmt.Fprintf(w, "next: %s\n", r.Next)
		}
	}
	return nil
}

// allowed refuses what a plan's purpose forbids, before anything starts.
func (s *Service) allowed(ctx context.Context, q Request, plan matrix.Plan, t *team) error {
	switch plan.Purpose {
	case matrix.PurposeAA:
		return s.aaAllowed(ctx, plan)
	case matrix.PurposeAB:
		return distinct(q, t)
	}
	return nil
}

// file puts the result of an A/A or a reload experiment on record.
func (s *Service) file(r matrix.Report) error {
	switch r.Plan.Purpose {
	case matrix.PurposeAA:
		return s.fileAA(r)
	case matrix.PurposeReload:
		return s.fileReloads(r)
	}
	return nil
}
