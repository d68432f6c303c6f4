package cli

import (
	"github.com/spf13/cobra"

	"enginebroker/broker/service"
)

func (a *app) protocolCalibrateCommand() *cobra.Command {
	var q service.ProtocolCalibration
	c := &cobra.Command{
		Use:   "calibrate",
		Short: "Simulate the whole protocol on scripted leg values and print its error rates",
		Long: `calibrate asks the protocol what it does when the truth is known. Leg values are scripted under noise, drift, warm-up,
carry-over, steps, load states and shifts between boots, and go the way of real ones: plan, run, gates, formulas, verdict.
It prints how often a better arm is named where there is none, how often an interval misses, how often a difference is
called equivalent, how often an effect is found, and what schedules without balance make of the same disturbances.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := a.here(); err != nil {
				return err
			}
			return service.CalibrateProtocol(a.Stdout, q)
		},
	}
	f := c.Flags()
	f.IntVar(&q.Series, "series", 1000, "series per scenario and truth")
	f.Uint64Var(&q.Seed, "seed", 2026, "seed of the simulation")
	f.Float64Var(&q.Effect, "effect", 0.03, "difference whose detection the power column counts, as a fraction")
	f.IntVar(&q.Workers, "workers", 0, "series at once (default: as many as there are processors)")
	f.BoolVar(&q.Direct, "direct", false, "hand the values straight to the judge, leaving out run, gates and formulas")
	return c
}
