// Package cli is the command line: flags and words in, text and an exit code out. It calls the service and nothing below
// it, so that the daemon can do whatever a command does.
//
// Every command is one file with one constructor. The world comes in through Env; nothing here touches os but OS().
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"enginebroker/broker/daemon"
	"enginebroker/broker/service"
)

// version is set at link time.
var version = "unknown"

// Env is the world a command sees.
type Env struct {
	Args   []string
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	Getenv func(string) string
	Width  int  // columns of the terminal, 0: not a terminal
	Color  bool // the terminal shows colours
}

// app is what the commands of one invocation share.
type app struct {
	Env
	config string
	runs   string
	log    string
	server string
	tls    daemon.TLS
	asked  string // the command, by its path

	closers []io.Closer // connections, open as long as the invocation
}

// Run executes one command line and returns its exit code.
func Run(ctx context.Context, env Env) int {
	env.Stdout, env.Stderr = harmless{env.Stdout, env.Color}, harmless{env.Stderr, env.Color}
	a := &app{Env: env}
	root := a.root()
	root.SetArgs(env.Args)
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	err := root.ExecuteContext(ctx)
	for _, c := range a.closers {
		c.Close()
	}
	if err == nil {
		return ExitOK
	}
	code := exitCode(err)
	if errors.Is(err, context.Canceled) && code == ExitInterrupted {
		if _, ours := errors.AsType[*service.Error](err); !ours {
			err = errors.New("interrupted")
		}
	}
	var quiet *exitError
	if !errors.As(err, &quiet) || quiet.err != nil {
		fmt.Fprintf(env.Stderr, "broker: %v\n", err)
	}
	if code == ExitUsage {
		fmt.Fprintln(env.Stderr, "Run `broker help` or add --help to a command.")
	}
	return code
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "broker",
		Short: "Compare LLM inference engines on one machine, and refuse where no honest comparison exists",
		Long: `broker measures which of several LLM inference engines is faster on this machine. A number exists only if it was
measured against a verified identity, complete, on a healthy box, in balanced order and often enough; otherwise the
cell says which reason forbids it. There is no headline ratio.

Exit codes:
` + exitTable(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,
		Args:          cobra.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			a.asked = c.CommandPath()
			if a.server == "" && c.Flags().Changed("server") {
				return usage("--server is empty: write unix:///path or host:port, or leave it out to work on this machine")
			}
			return nil
		},
	}
	f := root.PersistentFlags()
	f.StringVar(&a.config, "config", "", "configuration file (default: ./broker.yaml where it exists, else the four engines under their usual names)")
	f.StringVar(&a.runs, "runs", "", "folder of runs (default ./runs)")
	f.StringVar(&a.log, "log", "warn", "log level on standard error: debug, info, warn, error")
	f.StringVar(&a.server, "server", "", "ask a daemon instead of working here: unix:///path or host:port")
	f.StringVar(&a.tls.Cert, "tls-cert", "", "certificate of this side, for TCP")
	f.StringVar(&a.tls.Key, "tls-key", "", "its key")
	f.StringVar(&a.tls.CA, "tls-ca", "", "certificate authority that the other side's certificate must come from")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%v", err) })
	root.AddGroup(
		&cobra.Group{ID: "run", Title: "Measure:"},
		&cobra.Group{ID: "read", Title: "Read what was measured:"},
		&cobra.Group{ID: "who", Title: "Know what runs:"},
		&cobra.Group{ID: "tools", Title: "Check the tools:"},
	)
	root.SetHelpCommandGroupID("tools")
	root.SetCompletionCommandGroupID("tools")
	for _, c := range a.commands() {
		root.AddCommand(c)
	}
	return root
}

// service opens the service of this machine.
func (a *app) service() (*service.Service, error) {
	if err := a.here(); err != nil {
		return nil, err
	}
	log, err := a.logger()
	if err != nil {
		return nil, err
	}
	return service.Open(service.Options{Config: a.config, Runs: a.runs, Getenv: a.Getenv, Log: log, Version: version})
}

// here refuses a command that works on this machine alone where another one is named.
func (a *app) here() error {
	if a.server == "" {
		return nil
	}
	return usage("%s works on this machine alone; leave --server out", a.asked)
}

func (a *app) logger() (*zap.Logger, error) {
	level, err := zapcore.ParseLevel(a.log)
	if err != nil {
		return nil, usage("--log: %q is not a level; debug, info, warn or error", a.log)
	}
	enc := zap.NewDevelopmentEncoderConfig()
	return zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(enc), zapcore.AddSync(a.Stderr), level)), nil
}

// OS is the world of the real process.
func OS() Env {
	e := Env{Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv}
	e.Width, e.Color = terminal(os.Stdout)
	return e
}
