package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"enginebroker/broker/service"
)

func (a *app) auditCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:     "audit RUN",
		GroupID: "read",
		Short:   "Derive every number and verdict of a run again from its evidence, and fail on any difference",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			s, err := a.backend()
			if err != nil {
				return err
			}
			r, err := s.Audit(c.Context(), args[0])
			if err != nil && len(r.Findings) == 0 {
				return err
			}
			if asJSON {
				if err := a.json(r); err != nil {
					return err
				}
			} else {
				for _, f := range r.Findings {
					fmt.Fprintf(a.Stdout, "%s  %s\n    %s\n", f.Kind, f.Where, f.Detail)
				}
				fmt.Fprintf(a.Stdout, "run %s: %s%d records, %d legs, %d requests, %d cells; %d findings\n", r.Run, stamp(r.Simulated, "", ", "), r.Records, r.Legs, r.Requests, r.Cells, len(r.Findings))
			}
			if len(r.Findings) > 0 {
				return exit(ExitEvidence)
			}
			return nil
		},
		ValidArgsFunction: a.completeRuns,
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func (a *app) inspectCommand() *cobra.Command {
	var asJSON, headers, rehash bool
	c := &cobra.Command{
		Use:     "inspect PATH",
		GroupID: "who",
		Short:   "Say what the files of an artifact really hold: a path, or hf:ORG/NAME@REVISION in the local cache",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			s, err := a.backend()
			if err != nil {
				return err
			}
			x, err := s.Inspect(c.Context(), args[0], headers, rehash)
			if err != nil {
				return err
			}
			if asJSON {
				return a.json(x)
			}
			return a.inspection(x)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().BoolVar(&headers, "headers", false, "read headers only, hash nothing")
	c.Flags().BoolVar(&rehash, "rehash", false, "hash every file again, whatever is known of it from an earlier time")
	return c
}

func (a *app) inspection(x service.Inspection) error {
	m := x.Manifest
	return a.table(x.Report.Locator+"\t", func(w io.Writer) {
		row := func(k string, v any) { fmt.Fprintf(w, "  %s\t%s\n", oneLine(k), oneLine(fmt.Sprint(v))) }
		row("kind", x.Report.Kind)
		row("container", m.Container)
		row("architecture", orDash(m.Architecture))
		row("quantization", m.Quantization+" (from the tensors)")
		row("tensors", m.Tensors)
		row("parameters", m.Parameters)
		for _, k := range slices.Sorted(maps.Keys(m.DtypeBytes)) {
			row("bytes in "+k, m.DtypeBytes[k])
		}
		for _, f := range m.Claimed {
			row("claimed "+f.Name, f.Value+"  ("+f.Where+")")
		}
		for _, c := range m.Contradicts {
			row("CONTRADICTION", c)
		}
		for _, r := range x.Report.Rows {
			row(r.Name, r.Value+"  ("+r.Where+")")
		}
		row("tokenizer", orDash(m.Tokenizer.Or("")))
		row("chat template", orDash(m.ChatTemplate.Or("")))
		for _, f := range m.Files {
			row("file "+f.Path, fmt.Sprintf("%d bytes  %s", f.Bytes.Or(0), f.SHA256.Or("not hashed")))
		}
		row("manifest", orDash(m.SHA256))
	})
}

// oneLine keeps foreign text from making rows of its own.
func oneLine(s string) string { return strings.NewReplacer("\n", `\n`, "\t", `\t`).Replace(s) }

func (a *app) streamCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "stream FILE...",
		GroupID: "tools",
		Short:   "Parse recorded streams and print their records; exit 11 where a given expectation differs",
		Long: `stream reads streams in the corpus format (a body and a JSON companion that describes it, see
matrix/stopwatch/testdata/sse/README.md) with the parser that timed runs use.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.here(); err != nil {
				return err
			}
			differs := false
			for _, path := range args {
				x, err := service.ParseStream(c.Context(), path)
				if err != nil {
					return err
				}
				fmt.Fprintf(a.Stdout, "%s\n", x.Record)
				for _, d := range x.Differences {
					differs = true
					fmt.Fprintf(a.Stderr, "%s: %s\n", path, d)
				}
			}
			if differs {
				return exit(ExitDiffers)
			}
			return nil
		},
	}
}

func (a *app) protocolCommand() *cobra.Command {
	c := &cobra.Command{Use: "protocol", GroupID: "tools", Short: "Check the measurement protocol itself", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	c.AddCommand(&cobra.Command{
		Use:   "check FILE...",
		Short: "Run protocol vectors through the functions the product uses; exit 11 where one differs",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.here(); err != nil {
				return err
			}
			failed := 0
			for _, path := range args {
				n, err := service.CheckProtocol(a.Stdout, path)
				if err != nil {
					return err
				}
				failed += n
			}
			if failed > 0 {
				return exit(ExitDiffers)
			}
			return nil
		},
	}, a.protocolCalibrateCommand())
	return c
}
