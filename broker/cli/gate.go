package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"enginebroker/broker/service"
)

func (a *app) gateCommand() *cobra.Command {
	var q service.GateRequest
	var asJSON bool
	c := &cobra.Command{
		Use:     "gate INSTANCE... --model MODEL",
		GroupID: "who",
		Short:   "Check that an instance is fit to be measured: equal answers twice, as its golden, and right ones",
		Long: `gate starts an instance on each artifact that it opens, puts fixed prompts of 128 tokens twice, compares the answers with
each other and with the golden that somebody accepted (--accept keeps these answers as the golden), and puts the artifact's
canary. The result is dated evidence: a gate that passed counts as a preflight until it is older than evidence_days; cells of an
arm whose last gate failed are CANARY_FAILED. Exit 11 where a gate is not passed.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if q.Model == "" {
				return usage("--model: missing; see broker models")
			}
			s, err := a.backend()
			if err != nil {
				return err
			}
			q.Engines = args
			list, err := s.Gate(c.Context(), q, a.progress())
			if err != nil {
				return err
			}
			return checked(a, list, asJSON, a.gate)
		},
		ValidArgsFunction: a.completeLabels,
	}
	a.bindModel(c, &q.Model)
	f := c.Flags()
	f.StringVar(&q.Quant, "quant", "", "artifact id or quantization (default: all that the instance says it opens)")
	f.IntVar(&q.Prompts, "prompts", 0, "how many of the fixed prompts (default: all)")
	f.BoolVar(&q.Accept, "accept", false, "keep the answers as the golden")
	f.BoolVar(&asJSON, "json", false, "print the records as JSON")
	return c
}

func (a *app) gate(g service.Gate) {
	word := "passes"
	if !g.OK() {
		word = "does not pass"
	}
	fmt.Fprintf(a.Stdout, "%s%s %s the gate on %s: %d prompts, %d tokens each, golden %s\n", stamp(g.Simulated, "", ": "), g.Label, word, g.Artifact, g.Prompts, g.Tokens, g.Golden)
	for _, f := range g.Failures {
		fmt.Fprintf(a.Stdout, "    %s\n", f)
	}
	if f, ok := g.Start.Get(); ok {
		a.failure(f)
	}
	for what, list := range map[string][]service.Drift{"second pass": g.SelfMatch, "golden": g.Drift} {
		for _, d := range list {
			fmt.Fprintf(a.Stdout, "    %s, prompt %d: equal for %d bytes, then %.60q and now %.60q\n", what, d.Prompt, d.At, d.Want, d.Got)
		}
	}
	if c, ok := g.Canary.Get(); ok {
		fmt.Fprintf(a.Stdout, "    canary wanted %q, got %.80q\n", c.Want, c.Got)
	}
}
