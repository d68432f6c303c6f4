package cli

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"enginebroker/broker/service"
	"enginebroker/matrix"
)

func (a *app) boxCommand() *cobra.Command {
	c := &cobra.Command{Use: "box", GroupID: "tools", Short: "Look at this box", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	c.AddCommand(a.boxWatchCommand())
	return c
}

func (a *app) boxWatchCommand() *cobra.Command {
	var every time.Duration
	var asJSON bool
	c := &cobra.Command{
		Use:   "watch",
		Short: "Show memory, processors and GPU of this box, one line each time, until Ctrl-C",
		Long: `watch shows one line each time. It takes no lock; beside a run it costs that run one telemetry reading each. GPU watts
are of the GPU rail alone, not of the machine.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if every < 100*time.Millisecond {
				return usage("--every: %v; at least 100ms", every)
			}
			s, err := a.service()
			if err != nil {
				return err
			}
			live, done, err := s.Live(c.Context(), every)
			if err != nil {
				return err
			}
			defer done()
			out := json.NewEncoder(a.Stdout)
			for x, err := range live {
				if err == nil && asJSON {
					err = out.Encode(x)
				} else if err == nil {
					_, err = fmt.Fprintln(a.Stdout, snapshotLine(x))
				}
				if c.Context().Err() != nil {
					break
				}
				if err != nil {
					return err
				}
			}
			return nil // Ctrl-C is how a watch ends
		},
	}
	c.Flags().DurationVar(&every, "every", time.Second, "time between two lines")
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	return c
}

// dashed prints a value that is known, and a dash for one that is not.
func dashed[T any](o matrix.Opt[T], format func(T) string) string {
	if v, ok := o.Get(); ok {
		return format(v)
	}
	return "–"
}

// snapshotLine prints what is known; a dash stands for what is not.
func snapshotLine(x service.Snapshot) string {
	share := func(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) }
	cached := dashed(x.CachedKiB, func(kib int64) string { return fmt.Sprint(kib >> 10) })
	load := dashed(x.LoadAverage, func(v float64) string { return fmt.Sprintf("%.2f", v) })
	s := fmt.Sprintf("%s  mem available %d MiB, free %d, cached %s · cpu %s, steal %s, load %s", x.At.Local().Format("15:04:05"), x.AvailableKiB>>10,
		x.FreeKiB>>10, cached, dashed(x.Busy, share), dashed(x.Steal, share), load)
	if g, ok := x.GPU.Get(); ok {
		field := func(name, unit string, per int64) string {
			return dashed(g.Fields[name].Value, func(v int64) string { return fmt.Sprintf("%d %s", v/per, unit) })
		}
		processes := dashed(g.Fields[matrix.FieldProcesses].Value, func(int64) string { return fmt.Sprint(len(g.Processes)) })
		s += fmt.Sprintf(" · GPU %s, %s busy, %s, %s (rail), %s processes", field(matrix.FieldSMClock, "MHz", 1), field(matrix.FieldUtilization, "%", 1),
			field(matrix.FieldTemperature, "°C", 1), field(matrix.FieldPower, "W", 1000), processes)
		if bits, ok := g.Fields[matrix.FieldEventReasons].Value.Get(); !ok {
			s += ", event bits –"
		} else if bits != 0 {
			s += fmt.Sprintf(", event bits %#x", bits)
		}
	}
	if h, ok := x.Holder.Get(); ok {
		s += fmt.Sprintf(" · held by PID %d (%s)", h.PID, h.Name)
	}
	return s
}
