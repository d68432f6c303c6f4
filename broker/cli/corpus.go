package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"enginebroker/broker/service"
)

func (a *app) corpusCommand() *cobra.Command {
	c := &cobra.Command{Use: "corpus", GroupID: "tools", Short: "Build, list and check the prompt corpora that runs are asked with", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	c.AddCommand(a.corpusBuildCommand(), a.corpusListCommand(), a.corpusVerifyCommand())
	return c
}

func (a *app) corpusBuildCommand() *cobra.Command {
	var r request
	c := &cobra.Command{
		Use:   "build --model MODEL",
		Short: "Make the prompts of a plan, each of exactly the tokens its point names, through an engine's tokenizer",
		Long: `build makes what broker matrix with the same flags would make before it measures. A corpus is named by what it is made
for (points, repetitions, superblocks, tokenizer), so that building again finds it. An engine is started only where its
tokenizer needs a running server.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			q, err := r.request(c)
			if err != nil {
				return err
			}
			s, err := a.service()
			if err != nil {
				return err
			}
			x, err := s.BuildCorpus(c.Context(), q, a.progress())
			if err != nil {
				return err
			}
			how := "was there"
			if x.Built {
				how = "built"
			}
			fmt.Fprintf(a.Stdout, "%s: %d prompts, %d bytes, sha256 %s\n%s\n", how, x.Manifest.Prompts, x.Bytes, x.Manifest.SHA256, x.Path)
			return nil
		},
	}
	r.bind(c, a)
	return c
}

func (a *app) corpusListCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "list",
		Short: "List the corpora on this machine by what their manifests say",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := a.service()
			if err != nil {
				return err
			}
			list, err := s.Corpora(c.Context(), false)
			if err != nil {
				return err
			}
			return a.corpora(list, asJSON)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func (a *app) corpusVerifyCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "verify [KEY...]",
		Short: "Read every prompt of the corpora against their manifests; exit 9 where one does not hold",
		RunE: func(c *cobra.Command, args []string) error {
			s, err := a.service()
			if err != nil {
				return err
			}
			list, err := s.Corpora(c.Context(), true, args...)
			if err != nil {
				return err
			}
			if err := a.corpora(list, asJSON); err != nil {
				return err
			}
			for _, x := range list {
				if x.Problem != "" {
					return exit(ExitEvidence)
				}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func (a *app) corpora(list []service.CorpusInfo, asJSON bool) error {
	if asJSON {
		return a.json(list)
	}
	if len(list) == 0 {
		fmt.Fprintln(a.Stdout, "no corpora yet; broker corpus build --model MODEL makes one")
		return nil
	}
	return a.table("KEY\tTOKENIZER\tPOINTS:TOKENS\tPROMPTS\tBYTES\tSHA256\t", func(w io.Writer) {
		for _, x := range list {
			m := x.Manifest
			fmt.Fprintf(w, "%.12s\t%s\t%s\t%d\t%d\t%.12s\t%s\n", x.Key, orDash(m.Spec.Tokenizer.Name), orDash(x.Where()), m.Prompts, x.Bytes, orDash(m.SHA256), x.Problem)
		}
	})
}
