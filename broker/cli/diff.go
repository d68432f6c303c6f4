package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"enginebroker/broker/service"
)

func (a *app) diffCommand() *cobra.Command {
	var asJSON, distinct bool
	c := &cobra.Command{
		Use:     "diff A B",
		GroupID: "who",
		Short:   "Say what differs between two arms, what is known to move speed first, and what one side did not record",
		Long: `diff takes two runs, two arms as RUN:ARM, or two instances as their last preflight recorded them. Everything that differs is
ranked by what is known to move speed; where something lies comes last. What one side did not record is unknown, not equal.
With --distinct the two must be different code: exit 11 where they are one build, differ only by where they lie or when they
were linked, or it is not known.`,
		Example: "  broker diff yesterday:vllm today:vllm\n  broker diff --distinct ours ours-patched",
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			s, err := a.backend()
			if err != nil {
				return err
			}
			list, err := s.Diff(c.Context(), args[0], args[1])
			if err != nil {
				return err
			}
			if asJSON {
				if err := a.json(list); err != nil {
					return err
				}
			}
			same := false
			for _, d := range list {
				same = same || !d.TwoArms.Differ
				if !asJSON {
					a.diff(d)
				}
			}
			if distinct && same {
				return exit(ExitDiffers)
			}
			return nil
		},
		ValidArgsFunction: a.completeLabels,
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().BoolVar(&distinct, "distinct", false, "fail unless the two are different code")
	return c
}

func (a *app) diff(d service.Diff) {
	fmt.Fprintf(a.Stdout, "%s  (%s%s)\n%s  (%s%s)\n", d.A.Name, stamp(d.A.Simulated, "", ", "), d.A.Where, d.B.Name, stamp(d.B.Simulated, "", ", "), d.B.Where)
	word := "one build"
	switch {
	case d.TwoArms.Differ:
		word = "two builds"
	case d.TwoArms.Unknown:
		word = "unknown whether one build"
	}
	fmt.Fprintf(a.Stdout, "%s: %s\n", word, d.TwoArms.Says)
	if len(d.Differs) == 0 {
		fmt.Fprintln(a.Stdout, "nothing that both recorded differs")
	}
	for _, x := range d.Differs {
		fmt.Fprintf(a.Stdout, "  %-13s %-28s %s | %s\n", x.Class, x.Name, orDash(x.A.Or("")), orDash(x.B.Or("")))
	}
	if len(d.Unknown) > 0 {
		fmt.Fprintln(a.Stdout, "not recorded on one side, so not known to be equal:")
	}
	for _, x := range d.Unknown {
		side, value := d.A.Name, x.B.Or("")
		if x.A.Present() {
			side, value = d.B.Name, x.A.Or("")
		}
		fmt.Fprintf(a.Stdout, "  %-13s %-28s not by %s, %s by the other\n", x.Class, x.Name, side, orDash(value))
	}
}
