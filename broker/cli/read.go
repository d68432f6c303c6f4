package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"enginebroker/broker/service"
	"enginebroker/matrix"
)

func (a *app) resumeCommand() *cobra.Command {
	var format, require string
	c := &cobra.Command{
		Use:     "resume RUN",
		GroupID: "run",
		Short:   "Go on with a run that stopped, at its first incomplete superblock, or open its next grid after a reboot",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			level, err := parseRequire(require)
			if err != nil {
				return err
			}
			s, err := a.backend()
			if err != nil {
				return err
			}
			out, err := s.Resume(c.Context(), args[0], a.progress())
			return a.finish(out, err, format, level)
		},
		ValidArgsFunction: a.completeRuns,
	}
	bindFormat(c, &format)
	bindRequire(c, &require)
	return c
}

func (a *app) reportCommand() *cobra.Command {
	var format, require string
	c := &cobra.Command{
		Use:     "report RUN",
		GroupID: "read",
		Short:   "Judge a run again from its evidence and print the matrix",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			level, err := parseRequire(require)
			if err != nil {
				return err
			}
			s, err := a.backend()
			if err != nil {
				return err
			}
			r, err := s.Report(c.Context(), args[0])
			if err != nil {
				return err
			}
			if err := service.Render(a.Stdout, r, format, a.look()); err != nil {
				return err
			}
			if format == "terminal" {
				if err := a.claimsBeside(c.Context(), r.Plan.Model); err != nil {
					return err
				}
			}
			return service.Judge(r, level)
		},
		ValidArgsFunction: a.completeRuns,
	}
	bindFormat(c, &format)
	bindRequire(c, &require)
	return c
}

func (a *app) explainCommand() *cobra.Command {
	var run string
	c := &cobra.Command{
		Use:     "explain CELL...",
		GroupID: "read",
		Short:   "Say in words why cells have their verdict, from which evidence, and what would change it",
		Long: `explain takes cells by name as the report prints them, A:B/ARTIFACT|POLICY/POINT/METRIC, or any part of such a name;
every cell whose name contains all words given is explained.`,
		Example: "  broker explain --run RUN ours:vllm c8 output_tok_s",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			s, err := a.backend()
			if err != nil {
				return err
			}
			return s.ExplainCells(c.Context(), a.Stdout, run, args, a.look())
		},
	}
	c.Flags().StringVar(&run, "run", "", "the run (default: the newest)")
	return c
}

func (a *app) runsCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:     "runs",
		GroupID: "read",
		Short:   "List the runs on this machine, newest first",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := a.backend()
			if err != nil {
				return err
			}
			runs, err := s.Runs(c.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return a.json(runs)
			}
			if len(runs) == 0 {
				fmt.Fprintln(a.Stdout, "no runs yet; broker matrix --model MODEL makes one")
				return nil
			}
			if err := a.table("RUN\tMODEL\tPROFILE\tBOX\tSTATE\tLOADS\tNOTE", func(w io.Writer) {
				for _, r := range runs {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d/%d\t%s\n", r.Name, r.Model, r.Profile, r.Box, r.State, r.Loads, r.Planned, orDash(stamp(r.Simulated, "", "")))
				}
			}); err != nil {
				return err
			}
			for _, r := range runs {
				for _, m := range r.Marks {
					fmt.Fprintf(a.Stdout, "%s: %s\n", r.Name, m)
				}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func (a *app) completeRuns(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	s, err := a.backend()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	runs, err := s.Runs(c.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, r := range runs {
		out = append(out, r.Name+"\t"+r.Model+" "+r.State)
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

func (a *app) json(v any) error {
	enc := json.NewEncoder(a.Stdout)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

func (a *app) table(head string, rows func(io.Writer)) error {
	w := tabwriter.NewWriter(a.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, head)
	rows(w)
	return w.Flush()
}

// stamp is SIMULATED between two strings where no engine but a program that plays one was asked.
func stamp(simulated bool, before, after string) string {
	if !simulated {
		return ""
	}
	return before + string(matrix.Simulated) + after
}

func orDash(s string) string {
	if strings.TrimSpace(s) == "" {
		return "-"
	}
	return s
}
