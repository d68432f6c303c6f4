package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"enginebroker/broker/service"
)

func (a *app) abCommand() *cobra.Command {
	var r request
	var run, format, require string
	var ab service.AB
	c := &cobra.Command{
		Use:     "ab NEW OLD --model MODEL",
		GroupID: "run",
		Short:   "Compare two builds of one engine, with an exit code for CI",
		Long: `ab measures two instances of the configuration, a branch against main say, through the same machinery as matrix: 6 blocks,
more while cells are undecided. With --margin the plan says what an interval of that half-width costs at the noise on
record, runs as many blocks, and exits 11 unless every primary cell excludes that NEW is slower by more. Builds that are
one build are refused: they would measure nothing but noise.`,
		Example: "  broker ab branch main --model qwen3.8-27b --points c1 --margin 0.01",
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
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
			ab.New, ab.Old = args[0], args[1]
			q.Run, q.AB = run, &ab
			out, err := a.measure(c.Context(), s, q)
			if err = a.finish(out, err, format, level); err != nil || ab.Margin == 0 {
				return err
			}
			return a.margins(a.Stderr, service.JudgeAB(out.Report, ab))
		},
		ValidArgsFunction: a.completeInstances,
	}
	r.bind(c, a)
	c.Flags().Lookup("engines").Hidden = true
	c.Flags().Lookup("pairs").Hidden = true
	c.Flags().Lookup("profile").DefValue, r.profile = "standard", "standard"
	c.Flags().Float64Var(&ab.Margin, "margin", 0, "largest slow-down of NEW that is accepted, as a fraction: 0.01 is 1 %")
	c.Flags().BoolVar(&ab.SameBuild, "same-build", false, "the two differ in settings by intent, not in build")
	c.Flags().StringVar(&run, "run", "", "name of the run (default: ab, instances and time)")
	bindFormat(c, &format)
	bindRequire(c, &require)
	return c
}

// margins prints what each primary cell says of the margin, and fails where one does not hold.
func (a *app) margins(w io.Writer, cells []service.ABCell) error {
	held := len(cells) > 0
	for _, x := range cells {
		word := "holds"
		if !x.Holds {
			word, held = "FAILS", false
		}
		fmt.Fprintf(w, "margin %s  %s%s: %s\n", word, stamp(x.Simulated, "", ", "), x.Cell, x.Why)
	}
	if !held {
		return exit(ExitDiffers)
	}
	return nil
}
