package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"enginebroker/broker/service"
)

func (a *app) pinsCommand() *cobra.Command {
	c := &cobra.Command{Use: "pins", GroupID: "who", Short: "Record, check and advance what should be running", Args: cobra.NoArgs,
		Long: `A pin is the record of one engine on one box: the exact strings that what runs must match. An instance declares its pin in
the configuration; every load, and every leg after it, is compared with it, and a mismatch ends the load before anything is
timed. A pin is never replaced in silence: advance moves it on, with a reason, and marks the runs that rest on the old one.`,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	c.AddCommand(a.pinsListCommand(), a.pinsRunsCommand(), a.pinsCheckCommand(), a.pinsRecordCommand(), a.pinsAdvanceCommand())
	return c
}

func (a *app) pinsListCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{Use: "list", Short: "List the pins, the instances that declare them, and which do not run", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := a.backend()
			if err != nil {
				return err
			}
			list, err := s.Pins(c.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return a.json(list)
			}
			if len(list) == 0 {
				fmt.Fprintln(a.Stdout, "no pins yet; broker pins record NAME --instance LABEL --model MODEL --why … makes one")
			}
			for _, x := range list {
				p := x.Pin
				fmt.Fprintf(a.Stdout, "%s: %s, recorded by %s on %s: %s\n", p.Name, p.Engine, p.Recorded.By, p.Recorded.At, p.Recorded.Why)
				fmt.Fprintf(a.Stdout, "    %-12s %s\n", "declared by", orDash(strings.Join(x.Labels, ", ")))
				for _, f := range p.Expect.Lines() {
					fmt.Fprintf(a.Stdout, "    %s\n", f)
				}
				if n := len(p.History); n > 0 {
					fmt.Fprintf(a.Stdout, "    advanced %d times, last by %s on %s: %s\n", n, p.History[n-1].Replaced.By, p.History[n-1].Replaced.At, p.History[n-1].Replaced.Why)
				}
				for l, why := range x.DoesNotRun {
					fmt.Fprintf(a.Stdout, "    %s: %s\n", l, why)
				}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func (a *app) pinsRunsCommand() *cobra.Command {
	return &cobra.Command{Use: "runs NAME", Short: "List the runs, cells and goldens that rest on a pin", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			s, err := a.backend()
			if err != nil {
				return err
			}
			list, err := s.Carried(c.Context(), args[0])
			if err != nil {
				return err
			}
			a.carried(args[0], list)
			return nil
		},
	}
}

func (a *app) carried(pin string, list []service.Carried) {
	if len(list) == 0 {
		fmt.Fprintf(a.Stdout, "nothing rests on pin %s\n", pin)
	}
	for _, x := range list {
		fmt.Fprintln(a.Stdout, x)
	}
}

// bindPin adds the flags that say what to start.
func (a *app) bindPin(c *cobra.Command, q *service.PinRequest) {
	a.bindModel(c, &q.Model)
	c.Flags().StringVar(&q.Quant, "quant", "", "artifact id or quantization to start on (default: the preferred one that the instance opens)")
}

func (a *app) pinsCheckCommand() *cobra.Command {
	var q service.PinRequest
	c := &cobra.Command{Use: "check INSTANCE --model MODEL", Short: "Start an instance and compare what runs with its pin; exit 6 where it is something else", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if q.Model == "" {
				return usage("--model: missing; see broker models")
			}
			s, err := a.backend()
			if err != nil {
				return err
			}
			q.Label = args[0]
			x, err := s.CheckPin(c.Context(), q, a.progress())
			if err != nil {
				return err
			}
			fmt.Fprintln(a.Stdout, x)
			if !x.Check.OK {
				return exit(ExitIdentity)
			}
			return nil
		},
		ValidArgsFunction: a.completeLabels,
	}
	a.bindPin(c, &q)
	c.Flags().BoolVar(&q.Rehash, "rehash", false, "hash the artifact's files again, whatever is known of them from an earlier time")
	return c
}

func (a *app) pinsRecordCommand() *cobra.Command {
	var q service.PinRequest
	var act service.Act
	c := &cobra.Command{Use: "record NAME --instance LABEL --model MODEL --why TEXT", Short: "Start an instance and write what runs as a new pin", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			s, err := a.backend()
			if err != nil {
				return err
			}
			if err := a.act(&act, q, "--why"); err != nil {
				return err
			}
			p, err := s.RecordPin(c.Context(), args[0], q, act, a.progress())
			if err != nil {
				return err
			}
			a.pin("recorded", p)
			return nil
		},
	}
	a.bindPin(c, &q)
	a.bindAct(c, &q, &act, "why")
	return c
}

func (a *app) pinsAdvanceCommand() *cobra.Command {
	var q service.PinRequest
	var act service.Act
	c := &cobra.Command{Use: "advance NAME --instance LABEL --model MODEL --reason TEXT", Short: "Move a pin on to what runs now; shows and marks what rests on the old one", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			s, err := a.backend()
			if err != nil {
				return err
			}
			list, err := s.Carried(c.Context(), args[0])
			if err != nil {
				return err
			}
			a.carried(args[0], list)
			if err := a.act(&act, q, "--reason"); err != nil {
				return err
			}
			p, err := s.AdvancePin(c.Context(), args[0], q, act, a.progress())
			if err != nil {
				return err
			}
			a.pin("advanced", p)
			return nil
		},
	}
	a.bindPin(c, &q)
	a.bindAct(c, &q, &act, "reason")
	return c
}

func (a *app) bindAct(c *cobra.Command, q *service.PinRequest, act *service.Act, why string) {
	c.Flags().StringVar(&q.Label, "instance", "", "instance to start")
	c.Flags().StringVar(&act.Why, why, "", "why, for whoever reads the record")
	c.Flags().StringVar(&act.By, "by", "", "who answers for it (default: $USER)")
	c.RegisterFlagCompletionFunc("instance", a.completeLabels)
}

// act completes who and when, and demands a reason.
func (a *app) act(act *service.Act, q service.PinRequest, flag string) error {
	if act.By == "" {
		act.By = a.Getenv("USER")
	}
	act.At = time.Now().UTC().Format(time.RFC3339)
	switch {
	case q.Label == "":
		return usage("--instance: missing; name the instance to start")
	case q.Model == "":
		return usage("--model: missing; see broker models")
	case strings.TrimSpace(act.Why) == "":
		return usage("%s: missing; a pin needs a reason", flag)
	case act.By == "":
		return usage("--by: missing, and the environment has no USER")
	}
	return nil
}

func (a *app) pin(what string, p service.Pin) {
	fmt.Fprintf(a.Stdout, "%s pin %s: %s\n", what, p.Name, p.Engine)
	for _, f := range p.Expect.Lines() {
		fmt.Fprintf(a.Stdout, "    %s\n", f)
	}
	fmt.Fprintf(a.Stdout, "an instance declares it with pin: %s in the configuration\n", p.Name)
}
