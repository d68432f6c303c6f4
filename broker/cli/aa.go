package cli

import "github.com/spf13/cobra"

func (a *app) aaCommand() *cobra.Command {
	var r request
	var run, format string
	c := &cobra.Command{
		Use:     "aa --model MODEL",
		GroupID: "run",
		Short:   "Measure one engine against itself: the control that a method needs once on this machine",
		Long: `aa loads one instance under two labels through the whole pipeline: the same plan, gates and verdicts as matrix, 6 blocks.
It passes if no primary cell tells the two apart. The result counts for every run by the same method (profile, workload,
points, box) on this machine and driver; without one, cells rest on the neighbouring loads of their own run. A failed A/A
may be repeated once, with a new seed; both stay on record. Exit 5 where it fails.`,
		Example: "  broker aa --model qwen3.8-27b --profile binding",
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
			q.Run, q.AA = run, true
			out, err := a.measure(c.Context(), s, q)
			return a.finish(out, err, format, "")
		},
	}
	r.bind(c, a)
	c.Flags().StringVar(&run, "run", "", "name of the run (default: aa, model and time)")
	bindFormat(c, &format)
	return c
}
