package cli

import (
	"github.com/spf13/cobra"

	"enginebroker/broker/service"
)

func (a *app) reloadCommand() *cobra.Command {
	var r request
	var run, format, with string
	var loads int
	c := &cobra.Command{
		Use:     "reload INSTANCE --model MODEL",
		GroupID: "run",
		Short:   "Load one engine cold again and again: is its speed fixed at load in more than one state?",
		Long: `reload makes cold loads of one instance, nothing else varied, and looks for states, a trend and a step over them. What it
finds counts for the cells of that arm and build on this machine: several states make them INCONCLUSIVE, 12 loads of one
state clear LOAD_STATE_SUSPECT. Rare states can be missed; the bound is always printed.`,
		Example: "  broker reload ours --model qwen3.8-27b --loads 12 --with vllm",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			q, err := r.request(c)
			if err != nil {
				return err
			}
			s, err := a.backend()
			if err != nil {
				return err
			}
			q.Run, q.Reload = run, &service.Reload{Instance: args[0], With: with, Loads: loads}
			out, err := a.measure(c.Context(), s, q)
			return a.finish(out, err, format, "")
		},
		ValidArgsFunction: a.completeInstances,
	}
	r.bind(c, a)
	c.Flags().Lookup("engines").Hidden = true
	c.Flags().Lookup("pairs").Hidden = true
	c.Flags().Lookup("profile").DefValue, r.profile = "standard", "standard"
	c.Flags().IntVar(&loads, "loads", 0, "cold loads of the instance, at least 6 (default: 8, 12 with --profile binding)")
	c.Flags().StringVar(&with, "with", "", "another instance to load in between, so that a step in time can be told from one at load")
	c.Flags().StringVar(&run, "run", "", "name of the run (default: reload, instance and time)")
	bindFormat(c, &format)
	return c
}

func (a *app) completeInstances(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	s, err := a.service()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return s.Labels(), cobra.ShellCompDirectiveNoFileComp
}
