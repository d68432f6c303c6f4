package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"enginebroker/broker/service"
	"enginebroker/matrix"
)

func (a *app) calibrateCommand() *cobra.Command {
	q := service.Calibration{}
	var asJSON, truth bool
	c := &cobra.Command{
		Use:     "calibrate",
		GroupID: "tools",
		Short:   "Measure a server whose times are known and print what the timed client reports beside them",
		Long: `calibrate runs the timed client against the simulated engine in a process of its own, at each concurrency, and prints
reported minus configured. A level passes if the mean of TTFT, TPOT and ITL is within 1 % of configured, or 0.2 ms where that
is more; the p99 says what this box adds to some, scheduling of the server included, and is not judged. With --url it measures
a mock of yours, which has to do what --ttft, --itl and --tokens declare, and to report usage. Exit 11 where a level fails.

The simulated engine shares the cores with the client: on a busy box, or with more streams than the cores can wake at once,
what it adds itself is in the difference. Reader lag and lateness beside the levels are the client's own share.`,
		Example: "  broker calibrate\n  broker calibrate --url http://127.0.0.1:8000 --ttft 100ms --itl 10ms --tokens 64 --concurrency 1,8",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if truth {
				for _, other := range []string{"url", "served-model", "prompt", "ttft", "itl", "tokens", "concurrency", "requests"} {
					if c.Flags().Changed(other) {
						return usage("--truth is a fixed question; leave --%s out", other)
					}
				}
				return a.truth(c, asJSON)
			}
			if q.URL != "" && !(c.Flags().Changed("ttft") && c.Flags().Changed("itl")) {
				return usage("--url: declare what the mock does with --ttft and --itl")
			}
			s, err := a.service()
			if err != nil {
				return err
			}
			var all []service.Calibrated
			err = s.Calibrate(c.Context(), q, func(x service.Calibrated) {
				if !asJSON && len(all) == 0 {
					a.calibrationHead()
				}
				all = append(all, x)
				if !asJSON {
					a.calibrated(x)
				}
			})
			if err != nil {
				return err
			}
			if asJSON {
				if err := a.json(all); err != nil {
					return err
				}
			}
			for _, x := range all {
				if !x.Pass() {
					return exit(ExitDiffers)
				}
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&q.URL, "url", "", "mock to measure, http://HOST:PORT (default: the simulated engine)")
	f.StringVar(&q.Model, "served-model", "", "model to ask the mock for (default: the first it lists)")
	f.StringVar(&q.Prompt, "prompt", "", "prompt to ask with (default: a short sentence)")
	f.DurationVar(&q.TTFT, "ttft", 50*time.Millisecond, "time to first token of the server")
	f.DurationVar(&q.ITL, "itl", 20*time.Millisecond, "time from token to token of the server")
	f.IntVar(&q.Tokens, "tokens", 32, "tokens of an answer")
	f.IntSliceVar(&q.Concurrency, "concurrency", []int{1, 2, 4, 8, 16, 32, 64}, "streams at once, a level each")
	f.IntVar(&q.Requests, "requests", 0, "requests of a level, at least (default: 8, and two for each stream)")
	f.BoolVar(&truth, "truth", false, "ask what harnesses are known to answer wrongly: 64 requests at 16 streams, and 8 errors in 32 streams")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// truth prints the row of this client in the table that six others are in.
func (a *app) truth(c *cobra.Command, asJSON bool) error {
	s, err := a.service()
	if err != nil {
		return err
	}
	t, err := s.Truth(c.Context())
	if err != nil {
		return err
	}
	switch {
	case asJSON:
		err = a.json(t)
	default:
		a.calibrationHead()
		a.calibrated(t.Times)
		fmt.Fprintf(a.Stdout, "every fourth of 32 streams carries an error: %d ok, %d failed (24 and 8 are true)\n", t.OK, t.Failed)
	}
	if err == nil && !t.Pass() {
		return exit(ExitDiffers)
	}
	return err
}

func (a *app) calibrationHead() {
	fmt.Fprintf(a.Stdout, "%s: no engine was measured; a program whose times are known answered\n", matrix.Simulated)
	fmt.Fprintf(a.Stdout, "%-4s %-5s %13s %9s %8s %9s %8s %6s %6s\n", "c", "", "configured ms", "mean", "diff", "p99", "diff", "limit", "p99")
}

func (a *app) calibrated(x service.Calibrated) {
	w := a.Stdout
	for _, r := range x.Rows {
		verdict := "pass"
		if !r.Pass {
			verdict = "FAIL"
		}
		p99 := "–"
		if most, ok := r.LimitP99.Get(); ok {
			p99 = fmt.Sprintf("%.2f", most)
		}
		fmt.Fprintf(w, "%-4d %-5s %13.3f %9.3f %+8.3f %9.3f %+8.3f %6.2f %6s  %s\n", x.Concurrency, r.Metric, r.Configured, r.Mean, r.Mean-r.Configured, r.P99, r.P99-r.Configured, r.Limit, p99, verdict)
	}
	if x.Problem != "" {
		fmt.Fprintf(w, "%-4d FAIL: %d ok, %d not, of %d: %s\n", x.Concurrency, x.OK, x.Failed, x.Requests, x.Problem)
		return
	}
	fmt.Fprintf(w, "     client: %d requests, reader lag p50 %s p99 %s, send lateness p99 %s, CPU %s an event, %d stalls\n", x.Requests,
		nanos(x.Client.LagP50.Get()), nanos(x.Client.LagP99.Get()), nanos(x.Client.LatenessP99.Get()), nanos(x.Client.CPUPerEvent.Get()), x.Client.Stalls)
}

// nanos prints a time of the client's own cost, a dash where it is absent.
func nanos(ns int64, ok bool) string {
	if !ok {
		return "–"
	}
	return time.Duration(ns).Round(time.Microsecond).String()
}
