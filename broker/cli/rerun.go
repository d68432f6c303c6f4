package cli

import (
	"github.com/spf13/cobra"

	"enginebroker/broker/service"
)

func (a *app) rerunCommand() *cobra.Command {
	var by service.RerunBy
	var format, require string
	c := &cobra.Command{
		Use:     "rerun RUN [CELL...]",
		GroupID: "run",
		Short:   "Run superblocks again in which an engine failed, to release the cells that this withholds; who and why go on record",
		Long: `rerun takes cells by name as the report prints them, or any words of such a name (none: every cell), and runs again each
superblock in which an engine failed for them (ENGINE_VOID_ON_RECORD): the same arms, a fresh draw of the schedule, prompts
that were not used before, on the boot of the grid. If the engine passes, its cells are released and judged by all blocks
that count; if it fails again, that stands on record too. Nothing is replaced: the legs that failed stay in the ledger and in
no number, every cell says what was run again, by whom and why, and broker explain shows the verdict from before.

A run whose grid was measured before the last boot cannot be completed; measure it again in a new run.`,
		Example: "  broker rerun RUN ours:vllm c8 --who ana --why 'the driver was reset during superblock 1'",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if by.Who == "" || by.Why == "" {
				return usage("--who and --why: a re-run says who wants it and why")
			}
			level, err := parseRequire(require)
			if err != nil {
				return err
			}
			b, err := a.backend()
			if err != nil {
				return err
			}
			out, err := b.Rerun(c.Context(), args[0], args[1:], by, a.progress())
			return a.finish(out, err, format, level)
		},
		ValidArgsFunction: a.completeRuns,
	}
	f := c.Flags()
	f.StringVar(&by.Who, "who", "", "who wants it run again")
	f.StringVar(&by.Why, "why", "", "why")
	bindFormat(c, &format)
	bindRequire(c, &require)
	return c
}
