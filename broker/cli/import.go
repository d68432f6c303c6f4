package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"enginebroker/broker/service"
)

func (a *app) importCommand() *cobra.Command {
	var run, format string
	c := &cobra.Command{
		Use:     "import FILE...",
		GroupID: "read",
		Short:   "Keep result files of other clients as a run marked EXTERNAL, to be read beside ours and in no ratio with it",
		Long: `import reads the result files of vllm bench serve, sglang.bench_serving, guidellm, aiperf, inference-perf and llama-benchy.
The files are kept as they are; every number carries the name and version of the tool whose formula computed it, and the
report says what each tool is known to count wrongly.`,
		Example: "  broker import --run peers vllm-c16.json profile_export_aiperf.json",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			s, err := a.service()
			if err != nil {
				return err
			}
			r, err := s.Import(c.Context(), run, args)
			if err != nil {
				return err
			}
			fmt.Fprintf(a.Stderr, "imported as run %s\n", r.Run)
			return service.Render(a.Stdout, r, format, a.look())
		},
	}
	c.Flags().StringVar(&run, "run", "", "name of the run (default: external and time)")
	bindFormat(c, &format)
	return c
}
