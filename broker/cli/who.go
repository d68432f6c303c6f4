package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"enginebroker/broker/service"
)

func (a *app) enginesCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:     "engines [LABEL...]",
		GroupID: "who",
		Short:   "Say what each configured engine is, opens and refuses, and what was looked for where one is not installed",
		RunE: func(c *cobra.Command, args []string) error {
			s, err := a.backend()
			if err != nil {
				return err
			}
			list, err := s.Engines(c.Context(), args...)
			if err != nil {
				return err
			}
			unusable := slices.ContainsFunc(list, func(e service.Engine) bool { return e.Problem != "" || !e.Description.Installed })
			if asJSON {
				if err := a.json(list); err != nil {
					return err
				}
				list = nil
			}
			for _, e := range list {
				head := e.Label
				if e.Subject {
					head += " (subject)"
				}
				d := e.Description
				switch {
				case e.Problem != "":
					fmt.Fprintf(a.Stdout, "%s: %s\n", head, e.Problem)
					continue
				case !d.Installed:
					fmt.Fprintf(a.Stdout, "%s: %s, not installed\n", head, d.Engine)
					for _, l := range d.LookedFor {
						fmt.Fprintf(a.Stdout, "    %s\n", l)
					}
				default:
					fmt.Fprintf(a.Stdout, "%s: %s\n", head, d.Engine)
				}
				if d.Simulated {
					fmt.Fprintln(a.Stdout, "    SIMULATED: whatever it produces is no measurement of an engine")
				}
				for _, f := range d.Identity {
					fmt.Fprintf(a.Stdout, "    %-20s %s  (%s, %s)\n", f.Name, f.Value, f.Standing, f.Where)
				}
				for _, x := range d.Capabilities {
					fmt.Fprintf(a.Stdout, "    %-8s %-12s %-16s %s\n", x.Status, x.Container, x.Quantization, strings.TrimSpace(x.Why+" ["+orDash(x.Source)+"]"))
				}
				for _, x := range d.Refuses {
					fmt.Fprintf(a.Stdout, "    refuses  %s [%s]\n", x.Why, orDash(x.Source))
				}
			}
			if unusable && len(args) > 0 {
				return exit(ExitNotInstalled)
			}
			return nil
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			s, err := a.service()
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return s.Labels(), cobra.ShellCompDirectiveNoFileComp
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func (a *app) modelsCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:     "models",
		GroupID: "who",
		Short:   "List the models of the catalog and the artifacts of each",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := a.backend()
			if err != nil {
				return err
			}
			models, err := s.ListModels(c.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return a.json(models)
			}
			return a.table("MODEL\tARTIFACT\tCONTAINER\tFROM\tFILE", func(w io.Writer) {
				for _, m := range models {
					for _, x := range m.Model.Artifacts {
						from := orDash(x.Path)
						if x.Repository != "" {
							from = x.Repository + "@" + x.Revision
						}
						fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", m.Model.Name, x.ID, x.Container, from, m.From)
					}
				}
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
