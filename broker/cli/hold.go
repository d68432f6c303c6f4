package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"enginebroker/broker/service"
)

func (a *app) holdCommand() *cobra.Command {
	var h service.Held
	c := &cobra.Command{
		Use:     "hold RUN CELL...",
		GroupID: "read",
		Short:   "Hold cells back by hand, or release them; who and why go on the record of the run",
		Long: `hold takes cells by name as the report prints them, or any words of such a name; every cell whose name contains all words is
held. A held cell is WITHHELD in every output until it is released. Nothing is deleted: both decisions stay in the ledger.`,
		Example: "  broker hold RUN ours:vllm c8 output_tok_s --who ana --why 'fan replaced during the run'\n  broker hold RUN ours:vllm c8 --release --who ana --why 'measured again'",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			if h.Who == "" || h.Why == "" {
				return usage("--who and --why: a hold says who holds and why")
			}
			s, err := a.backend()
			if err != nil {
				return err
			}
			cells, err := s.Hold(c.Context(), args[0], args[1:], h)
			if err != nil {
				return err
			}
			word := "held"
			if h.Release {
				word = "released"
			}
			for _, x := range cells {
				fmt.Fprintf(a.Stdout, "%s  %s is %s%s\n", word, x.ID, x.Verdict, stamp(x.Simulated, " (", ")"))
			}
			return nil
		},
		ValidArgsFunction: a.completeRuns,
	}
	f := c.Flags()
	f.StringVar(&h.Who, "who", "", "who holds or releases")
	f.StringVar(&h.Why, "why", "", "why")
	f.BoolVar(&h.Release, "release", false, "lift the hold")
	return c
}
