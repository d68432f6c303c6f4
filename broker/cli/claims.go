package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"enginebroker/broker/service"
)

func (a *app) claimsCommand() *cobra.Command {
	c := &cobra.Command{Use: "claims", GroupID: "who", Short: "Keep figures that others published, to be shown beside our cells and in no ratio with them", Args: cobra.NoArgs,
		Long: `A claim is a figure of somebody else with its source: how the source was seen, what nobody could check, drafted or raw, prefix
cache, nodes, clock ceiling. What a source leaves open is unknown. Claims are never a denominator and never a target.`,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	c.AddCommand(a.claimsListCommand(), a.claimsAddCommand(), a.claimsImportCommand())
	return c
}

func (a *app) claimsListCommand() *cobra.Command {
	var asJSON bool
	var model string
	c := &cobra.Command{Use: "list", Short: "List the claims", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := a.service()
			if err != nil {
				return err
			}
			list, err := s.Claims(c.Context(), model)
			if err != nil {
				return err
			}
			if asJSON {
				return a.json(list)
			}
			if len(list) == 0 {
				fmt.Fprintln(a.Stdout, "no claims; broker claims add NAME --source … makes one")
			}
			return a.claims(list)
		},
	}
	a.bindModel(c, &model)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// claimsBeside prints what others published about a model under our cells. A daemon's cells stand alone: claims are files of
// whoever reads.
func (a *app) claimsBeside(ctx context.Context, model string) error {
	if a.server != "" || model == "" {
		return nil
	}
	s, err := a.service()
	if err != nil {
		return err
	}
	list, err := s.Claims(ctx, model)
	if err != nil || len(list) == 0 {
		return err
	}
	fmt.Fprintf(a.Stdout, "\nfigures that others published about %s; not measured here, and in no ratio with the cells above:\n", model)
	return a.claims(list)
}

// claims prints figures of others so that they cannot be taken for ours.
func (a *app) claims(list []service.Claim) error {
	for _, x := range list {
		fmt.Fprintf(a.Stdout, "CLAIM %s: %s %s on %s %s\n", x.Name, x.Engine, x.Version, x.Model, x.Artifact)
		fmt.Fprintf(a.Stdout, "    source      %s (%s on %s)\n", x.Source, x.Retrieved.State, x.Retrieved.At)
		fmt.Fprintf(a.Stdout, "    conditions  policy %s, prefix cache %s, nodes %s, clock ceiling %s MHz\n", strings.TrimSpace(x.Policy+" "+x.Drafter), x.PrefixCache, x.Nodes, x.Clock)
		for _, f := range x.Figures {
			where := ""
			if f.Concurrency != "" {
				where = " at concurrency " + f.Concurrency
			}
			fmt.Fprintf(a.Stdout, "    claimed     %s %s %s%s  %s\n", f.Metric, f.Value, f.Unit, where, f.Condition)
		}
		for _, u := range x.Unverified {
			fmt.Fprintf(a.Stdout, "    unverified  %s\n", u)
		}
		reasons, err := service.Inconsistent(x)
		if err != nil {
			return err
		}
		for _, r := range reasons {
			fmt.Fprintf(a.Stdout, "    WITHHELD    %s: %s; %s\n", r.Code, r.Detail, r.Next)
		}
	}
	return nil
}

func (a *app) claimsAddCommand() *cobra.Command {
	var x service.Claim
	var figures []string
	c := &cobra.Command{Use: "add NAME --source URL --engine ENGINE --model MODEL --figure 'METRIC=VALUE UNIT[@CONCURRENCY]' --why TEXT", Short: "Keep a published figure", Args: cobra.ExactArgs(1),
		Example: "  broker claims add spark-arena-42 --source https://example.org/42 --engine sglang --model qwen3.8-27b --policy drafted \\\n    --figure 'decode_tok_s=38.28 tok/s@1' --why 'quoted against us'",
		RunE: func(c *cobra.Command, args []string) error {
			for _, f := range figures {
				y, err := figure(f)
				if err != nil {
					return err
				}
				x.Figures = append(x.Figures, y)
			}
			return a.addClaim(c, x, args[0], "")
		},
	}
	a.bindClaim(c, &x)
	c.Flags().StringArrayVar(&figures, "figure", nil, "METRIC=VALUE UNIT[@CONCURRENCY], as it was published; the unit of a ratio is the two figures it stands beside, A/B; repeat for several")
	return c
}

// figure reads METRIC=VALUE UNIT[@CONCURRENCY]. The value stays text.
func figure(s string) (service.Figure, error) {
	metric, rest, ok := strings.Cut(s, "=")
	value, unit, ok2 := strings.Cut(rest, " ")
	unit, concurrency, _ := strings.Cut(unit, "@")
	if !ok || !ok2 || metric == "" || value == "" || strings.TrimSpace(unit) == "" {
		return service.Figure{}, usage("--figure: %q is not METRIC=VALUE UNIT[@CONCURRENCY]", s)
	}
	return service.Figure{Metric: metric, Value: value, Unit: strings.TrimSpace(unit), Concurrency: concurrency}, nil
}

func (a *app) claimsImportCommand() *cobra.Command {
	var x service.Claim
	c := &cobra.Command{Use: "import NAME FILE --source URL --engine ENGINE --why TEXT", Short: "Keep the figures of a published result file: llama-benchy, vllm bench serve, guidellm and others", Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error { return a.addClaim(c, x, args[0], args[1]) },
	}
	a.bindClaim(c, &x)
	return c
}

func (a *app) bindClaim(c *cobra.Command, x *service.Claim) {
	a.bindModel(c, &x.Model)
	f := c.Flags()
	f.StringVar(&x.Source, "source", "", "where it was published")
	f.StringVar(&x.Retrieved.State, "retrieved", "read", "how the source was seen: read, indexed, unreachable")
	f.StringVar(&x.Retrieved.At, "retrieved-at", "", "when (default: today)")
	f.StringVar(&x.Engine, "engine", "", "engine it is about")
	f.StringVar(&x.Version, "version", "", "its version, as the source says")
	f.StringVar(&x.Artifact, "artifact", "", "its artifact, as the source says")
	f.StringVar(&x.Policy, "policy", "", "raw, drafted or unknown (default: unknown)")
	f.StringVar(&x.Drafter, "drafter", "", "drafter, as the source says")
	f.StringVar(&x.PrefixCache, "prefix-cache", "", "on, off or unknown (default: unknown)")
	f.StringVar(&x.Nodes, "nodes", "", "how many boxes (default: unknown)")
	f.StringVar(&x.Clock, "clock-ceiling", "", "MHz (default: unknown)")
	f.StringArrayVar(&x.Unverified, "unverified", nil, "what the source says and nobody could check; repeat for several")
	f.StringVar(&x.Recorded.Why, "why", "", "why it is kept")
	f.StringVar(&x.Recorded.By, "by", "", "who keeps it (default: $USER)")
}

func (a *app) addClaim(c *cobra.Command, x service.Claim, name, file string) error {
	s, err := a.service()
	if err != nil {
		return err
	}
	x.Name, x.Recorded.At = name, time.Now().UTC().Format(time.RFC3339)
	if x.Retrieved.At == "" {
		x.Retrieved.At = time.Now().UTC().Format(time.DateOnly)
	}
	if x.Recorded.By == "" {
		x.Recorded.By = a.Getenv("USER")
	}
	if file == "" {
		x, err = s.AddClaim(c.Context(), x)
	} else {
		x, err = s.ImportClaim(c.Context(), x, file)
	}
	if err != nil {
		return err
	}
	return a.claims([]service.Claim{x})
}
