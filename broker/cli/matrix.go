package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"enginebroker/broker/service"
	"enginebroker/matrix"
)

// request binds the flags that say what to measure; matrix, plan and aa share them.
type request struct {
	model, profile, quant, workload string
	engines, pairs, points          []string
	seed                            uint64
	budget                          time.Duration
	accept                          bool
}

func (r *request) bind(c *cobra.Command, a *app) {
	f := c.Flags()
	f.StringVar(&r.model, "model", "", "model of the catalog (see broker models)")
	f.StringVar(&r.profile, "profile", "quick", "how much evidence: quick, standard, binding")
	f.StringVar(&r.quant, "quant", "", "quantization to force for every pair, or all: one cell per common artifact (default: each pair's best)")
	f.StringSliceVar(&r.engines, "engines", nil, "instances to compare (default: all of the configuration)")
	f.StringSliceVar(&r.pairs, "pairs", nil, "pairs to compare, A:B (default: every pair)")
	f.StringVar(&r.workload, "workload", "", "named workload (default: the configuration's, else serve-low)")
	f.StringSliceVar(&r.points, "points", nil, "points of the workload to run (default: what the profile runs)")
	f.Uint64Var(&r.seed, "seed", 0, "seed of the schedule (default: drawn, and shown in the plan)")
	f.DurationVar(&r.budget, "budget", 0, "leave out what does not fit this time, and say so (4h, 90m)")
	f.BoolVar(&r.accept, "accept-likely-void", false, "run although the clock of the GPU is not pinned; most legs will be void")
	complete := func(values func() []string) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return values(), cobra.ShellCompDirectiveNoFileComp
		}
	}
	c.RegisterFlagCompletionFunc("model", complete(func() []string {
		s, err := a.service()
		if err != nil {
			return nil
		}
		return s.ModelNames()
	}))
	c.RegisterFlagCompletionFunc("engines", complete(func() []string {
		s, err := a.service()
		if err != nil {
			return nil
		}
		return s.Labels()
	}))
	c.RegisterFlagCompletionFunc("profile", complete(service.Profiles))
	c.RegisterFlagCompletionFunc("workload", complete(service.Workloads))
}

func (r *request) request(c *cobra.Command) (service.Request, error) {
	if r.model == "" {
		return service.Request{}, usage("--model: missing; see broker models")
	}
	q := service.Request{Model: r.model, Profile: r.profile, Quant: r.quant, Workload: r.workload, Engines: r.engines, Pairs: r.pairs, Points: r.points, Budget: r.budget, AcceptLikelyVoid: r.accept}
	if c.Flags().Changed("seed") {
		q.Seed = matrix.Some(r.seed)
	}
	return q, nil
}

func (a *app) matrixCommand() *cobra.Command {
	var r request
	var run, format, require string
	c := &cobra.Command{
		Use:     "matrix --model MODEL",
		GroupID: "run",
		Short:   "Measure every comparable pair of engines and print the matrix of cells",
		Long: `matrix negotiates an artifact for every pair of engines, prints the plan and what it costs, and runs it: cold loads in
mirrored order, identity and canary before every timed leg, evidence on disk before anything is judged. Ctrl-C once
drops the leg in flight, stops the engines and says how to resume.`,
		Example: "  broker matrix --model qwen3.8-27b\n  broker matrix --model qwen3.8-27b --engines ours,vllm --profile standard --budget 8h",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			q, err := r.request(c)
			if err != nil {
				return err
			}
			level, err := parseRequire(require)
			if err != nil {
				return err
			}
			s, err := a.backend()
			if err != nil {
				return err
			}
			q.Run = run
			out, err := a.measure(c.Context(), s, q)
			return a.finish(out, err, format, level)
		},
	}
	r.bind(c, a)
	c.Flags().StringVar(&run, "run", "", "name of the run (default: model and time)")
	bindFormat(c, &format)
	bindRequire(c, &require)
	return c
}

// measure shows the plan of a request and runs exactly that.
func (a *app) measure(ctx context.Context, s backend, q service.Request) (service.Outcome, error) {
	planned, err := s.Prepare(ctx, q, a.progress())
	if err != nil {
		return service.Outcome{}, err
	}
	if q, err = planned.As(q); err != nil {
		return service.Outcome{}, err
	}
	if planned.Margin != nil {
		fmt.Fprintf(a.Stderr, "margin: %s\n", planned.Margin)
	}
	if err := a.showPlan(planned); err != nil {
		return service.Outcome{}, err
	}
	if err := planned.Runnable(); err != nil {
		return service.Outcome{}, err
	}
	return s.Matrix(ctx, q, a.progress())
}

func (a *app) planCommand() *cobra.Command {
	var r request
	var asJSON bool
	c := &cobra.Command{
		Use:     "plan --model MODEL",
		GroupID: "run",
		Short:   "Show what would be measured, refused and left out, and what it costs",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			q, err := r.request(c)
			if err != nil {
				return err
			}
			s, err := a.backend()
			if err != nil {
				return err
			}
			planned, err := s.Plan(c.Context(), q)
			if err != nil {
				return err
			}
			if asJSON {
				return a.json(planned.Plan)
			}
			return service.RenderPlan(a.Stdout, planned, a.look())
		},
	}
	r.bind(c, a)
	c.Flags().BoolVar(&asJSON, "json", false, "print the canonical plan")
	return c
}

func (a *app) showPlan(p service.Planned) error {
	return service.RenderPlan(a.Stderr, p, a.look())
}

// finish prints the report of a run that ended, however it ended, and turns its verdicts into an exit code.
func (a *app) finish(out service.Outcome, err error, format, require string) error {
	if out.Report.Run != "" { // one that could not be made is not printed as an empty one
		if rerr := service.Render(a.Stdout, out.Report, format, a.look()); rerr != nil {
			return cmp.Or(err, rerr)
		}
	}
	if err != nil {
		return err
	}
	return service.Judge(out.Report, require)
}

func bindFormat(c *cobra.Command, format *string) {
	*format = "terminal"
	c.Flags().Var(choice{format, service.Formats()}, "format", "how to print the report: "+strings.Join(service.Formats(), ", "))
	c.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(service.Formats(), cobra.ShellCompDirectiveNoFileComp))
}

// choice is a flag with a closed list of values: a wrong one is refused before anything runs.
type choice struct {
	value   *string
	allowed []string
}

func (c choice) String() string {
	if c.value == nil {
		return "" // pflag asks the zero value
	}
	return *c.value
}

func (c choice) Type() string { return "string" }

func (c choice) Set(s string) error {
	if !slices.Contains(c.allowed, s) {
		return fmt.Errorf("there are %s", strings.Join(c.allowed, ", "))
	}
	*c.value = s
	return nil
}

func bindRequire(c *cobra.Command, require *string) {
	c.Flags().StringVar(require, "require", "", "fail unless every comparable cell reaches provisional or established")
	c.RegisterFlagCompletionFunc("require", cobra.FixedCompletions([]string{"provisional", "established"}, cobra.ShellCompDirectiveNoFileComp))
}

func parseRequire(s string) (string, error) {
	switch s {
	case "", "provisional", "established":
		return s, nil
	}
	return "", usage("--require: %q; write provisional or established", s)
}

func (a *app) look() service.Look { return service.Look{Width: a.Width, Color: a.Color} }

// waiting is how often a wait says that it still waits.
const waiting = 15 * time.Second

// progress prints one line per step on standard error.
func (a *app) progress() func(service.Event) {
	var last string
	var settled time.Time
	return func(e service.Event) {
		line := e.Line()
		if line == "" || line == last {
			return
		}
		if e.Kind == "settle" {
			if e.At.Sub(settled) < waiting {
				return
			}
			settled = e.At
		}
		last = line
		fmt.Fprintf(a.Stderr, "%s  %s\n", e.At.Format("15:04:05"), line)
	}
}
