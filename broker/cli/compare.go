package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"enginebroker/broker/service"
)

func (a *app) compareCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:     "compare RUN RUN",
		GroupID: "read",
		Short:   "Set one run beside another of the same method: which arm moved, and what to look at next",
		Long: `compare judges every arm and every ratio across two runs, as the grids of one run are judged: a figure came back, did not,
or it cannot be said. Runs of two methods, machines or sets of files are refused before a number is shown, and a cell that
may not show its figures shows its reasons here too. Exit 3 where the runs are not comparable, 4 where a cell is VOID in a run,
5 where one is WITHHELD or did not come back.`,
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			s, err := a.backend()
			if err != nil {
				return err
			}
			x, err := s.Compare(c.Context(), args[0], args[1])
			if err != nil {
				return err
			}
			if asJSON {
				err = a.json(x)
			} else {
				a.comparison(x)
			}
			if err != nil {
				return err
			}
			return service.JudgeComparison(x)
		},
		ValidArgsFunction: a.completeRuns,
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func (a *app) comparison(x service.Comparison) {
	p := func(format string, args ...any) { fmt.Fprintf(a.Stdout, format, args...) }
	p("runs %s and %s\n", x.Runs[0], x.Runs[1])
	for _, r := range x.Reasons {
		p("%s: %s\n  next: %s\n", r.Code, r.Detail, r.Next)
	}
	for _, c := range x.Cells {
		p("\n%s\n", c.Cell)
		for i, v := range c.Verdicts {
			p("  run %-20s %s\n", x.Runs[i], v)
		}
		for _, m := range c.Arms {
			p("  %-10s %.4g → %.4g %s, %+.2f %%, %.1f times the spread of %.2f %%: %s\n", m.Label, m.First.Or(0), m.Second.Or(0), c.Unit, m.Pct, m.Multiple, m.Within, m.Verdict)
		}
		if c.Ratio != nil {
			p("  %-10s %+.2f %%, %.1f times the spread of %.2f %%: %s\n", c.Ratio.Label, c.Ratio.Pct, c.Ratio.Multiple, c.Ratio.Within, c.Ratio.Verdict)
			p("  moved: [%s]\n", strings.Join(c.Moved, ", "))
		}
		for _, r := range c.Reasons {
			p("  %s: %s\n", r.Code, r.Detail)
			if r.Next != "" {
				p("    next: %s\n", r.Next)
			}
		}
	}
	for _, n := range x.Notes {
		p("note: %s\n", n)
	}
}
