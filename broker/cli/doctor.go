package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"enginebroker/broker/service"
)

func (a *app) doctorCommand() *cobra.Command {
	var q service.DoctorRequest
	var asJSON, accept bool
	c := &cobra.Command{
		Use:     "doctor",
		GroupID: "tools",
		Short:   "Say what this box can and cannot certify, each line with its fix; it changes nothing",
		Long: `doctor looks at everything a verdict of this box depends on: telemetry, clocks, memory, neighbours, files. Each line is
ok, cannot (with what it costs and the fix) or a note. A clock is judged only under a load, because an idle clock proves
nothing: with --engine and --model doctor starts that engine and watches the clock while it generates, for a minute beyond
the start. What it saw counts for the runs of this boot.

Exit 0 where the box can certify as much as its profile can, 11 where a line says cannot.`,
		Example: "  broker doctor\n  broker doctor --engine vllm --model qwen3.8-27b",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := a.service()
			if err != nil {
				return err
			}
			d, err := s.Doctor(c.Context(), q, a.progress())
			if err != nil {
				return err
			}
			if asJSON {
				err = a.json(d)
			} else {
				a.diagnosis(d, len(d.Uncertified(accept)))
			}
			if err == nil && len(d.Uncertified(accept)) > 0 {
				err = exit(ExitDiffers)
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&q.Engine, "engine", "", "instance that makes the load under which the clock is judged")
	f.StringVar(&q.Model, "model", "", "model that it runs")
	f.StringVar(&q.Quant, "quant", "", "artifact or quantization that it opens (default: the first it can)")
	f.BoolVar(&accept, "accept-likely-void", false, "an unpinned clock is no failure; its legs judge themselves")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func (a *app) diagnosis(d service.Diagnosis, cannot int) {
	if d.Simulated {
		fmt.Fprintln(a.Stdout, "SIMULATED")
	}
	fmt.Fprintf(a.Stdout, "box profile %s, certifies up to %s\n", d.Profile, d.Certifies)
	for _, f := range d.Findings {
		fmt.Fprintf(a.Stdout, "  %-7s %-20s %s\n", f.State, f.What, f.Saw)
		for _, x := range []struct{ label, text string }{{"costs", f.Costs}, {"fix", f.Fix}} {
			if x.text != "" {
				fmt.Fprintf(a.Stdout, "  %-7s %-20s   %s: %s\n", "", "", x.label, x.text)
			}
		}
	}
	if mhz, ok := d.CeilingMHz.Get(); ok {
		fmt.Fprintf(a.Stdout, "highest clock under load: %d MHz\n", mhz)
	}
	switch cannot {
	case 0:
		fmt.Fprintf(a.Stdout, "this box can certify as much as its profile can: up to %s\n", d.Certifies)
	case 1:
		fmt.Fprintf(a.Stdout, "1 line above keeps this box from what its profile can: up to %s\n", d.Certifies)
	default:
		fmt.Fprintf(a.Stdout, "%d lines above keep this box from what its profile can: up to %s\n", cannot, d.Certifies)
	}
}
