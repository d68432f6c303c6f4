package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"enginebroker/broker/service"
	"enginebroker/matrix"
)

func (a *app) preflightCommand() *cobra.Command {
	var q service.PreflightRequest
	var asJSON bool
	c := &cobra.Command{
		Use:     "preflight INSTANCE... --model MODEL",
		GroupID: "who",
		Short:   "Start each instance once on its artifacts, ask one question, and keep the proof that it opens them",
		Long: `preflight starts each instance on each artifact that it says it opens, asks one question and stops it. The record says what
the engine made of the file and is kept by build and files: negotiation calls an arm ok only with it, and cells without it carry
NOT_PREFLIGHTED. Another build or other files need another preflight, and so does one older than evidence_days of the
configuration. Naming an artifact with --quant tries it whatever the catalog says. Exit 11 where an engine failed.`,
		Example: "  broker preflight ours vllm --model qwen3.8-27b --quant bf16",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if q.Model == "" {
				return usage("--model: missing; see broker models")
			}
			s, err := a.backend()
			if err != nil {
				return err
			}
			q.Engines = args
			list, err := s.Preflight(c.Context(), q, a.progress())
			if err != nil {
				return err
			}
			return checked(a, list, asJSON, a.preflight)
		},
		ValidArgsFunction: a.completeLabels,
	}
	a.bindModel(c, &q.Model)
	c.Flags().StringVar(&q.Quant, "quant", "", "artifact id or quantization to open (default: all that the instance says it opens)")
	c.Flags().BoolVar(&asJSON, "json", false, "print the records as JSON")
	return c
}

// checked prints records of a check and fails where one of them does.
func checked[T interface{ OK() bool }](a *app, list []T, asJSON bool, show func(T)) error {
	if asJSON {
		if err := a.json(list); err != nil {
			return err
		}
	} else {
		for _, x := range list {
			show(x)
		}
	}
	if slices.ContainsFunc(list, func(x T) bool { return !x.OK() }) {
		return exit(ExitDiffers)
	}
	return nil
}

func (a *app) preflight(p service.Preflight) {
	if f, ok := p.Failure.Get(); ok {
		fmt.Fprintf(a.Stdout, "%s%s does not open %s\n", stamp(p.Simulated, "", ": "), p.Label, p.Artifact)
		a.failure(f)
		return
	}
	r, _ := p.Result.Ready.Get()
	fmt.Fprintf(a.Stdout, "%s%s opens %s: first token after %s\n", stamp(p.Simulated, "", ": "), p.Label, p.Artifact, r.FirstToken.Round(time.Millisecond))
	for _, f := range p.Result.Made {
		fmt.Fprintf(a.Stdout, "    %-20s %s  (%s, %s)\n", f.Name, f.Value, f.Standing, f.Where)
	}
	fmt.Fprintf(a.Stdout, "    %-20s %.120q\n", "answered", p.Result.Text)
}

// failure prints why a server did not start, with what its log says.
func (a *app) failure(f matrix.StartFailure) {
	fmt.Fprintf(a.Stdout, "    %s in phase %s: %s\n", f.Code, f.Phase, f.Message)
	for _, l := range f.RootCause {
		fmt.Fprintf(a.Stdout, "    > %s\n", strings.TrimSpace(l))
	}
	if f.Fix != "" {
		fmt.Fprintf(a.Stdout, "    %s\n", f.Fix)
	}
	if f.LogPath != "" {
		fmt.Fprintf(a.Stdout, "    log: %s\n", f.LogPath)
	}
}

// bindModel adds --model with the catalog's names.
func (a *app) bindModel(c *cobra.Command, model *string) {
	c.Flags().StringVar(model, "model", "", "model of the catalog (see broker models)")
	c.RegisterFlagCompletionFunc("model", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		s, err := a.service()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return s.ModelNames(), cobra.ShellCompDirectiveNoFileComp
	})
}

func (a *app) completeLabels(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	s, err := a.service()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return s.Labels(), cobra.ShellCompDirectiveNoFileComp
}
