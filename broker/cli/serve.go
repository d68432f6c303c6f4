package cli

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"enginebroker/broker/daemon"
	"enginebroker/broker/service"
)

// idleMemory keeps the heap small between runs: the box's memory belongs to the engines (architecture §5).
const idleMemory = 48 << 20

func (a *app) serveCommand() *cobra.Command {
	var listen, metrics, logs, unfinished string
	c := &cobra.Command{
		Use:     "serve",
		GroupID: "tools",
		Short:   "Serve the same commands to scripts over gRPC, one run at a time",
		Long: `serve answers on a unix socket that this user alone can reach, or on TCP with certificates on both sides (--tls-cert,
--tls-key, --tls-ca); there is no plain TCP. Runs outlive those who asked for them and wait in a queue for the box. While a
timed window is open nothing expensive is done. SIGTERM drains: the leg in flight is dropped, engines are stopped, evidence
is kept, and the next serve says what it found and goes on with it (--unfinished).

docs/grpc.md shows every use with grpcurl.`,
		Example: "  broker serve\n  broker serve --listen box.example:7443 --tls-cert box.pem --tls-key box.key --tls-ca lab.pem --metrics 127.0.0.1:9464",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := a.here(); err != nil {
				return err
			}
			if unfinished != "resume" && unfinished != "keep" {
				return usage("--unfinished: %q; write resume or keep", unfinished)
			}
			log, err := a.serveLog(logs, c.Flags().Changed("log"))
			if err != nil {
				return err
			}
			defer func() { _ = log.Sync() }() // a pipe cannot be synced
			debug.SetMemoryLimit(idleMemory)
			s, err := service.Open(service.Options{Config: a.config, Runs: a.runs, Getenv: a.Getenv, Log: log, Version: version})
			if err != nil {
				return err
			}
			if listen == "" {
				path := daemon.DefaultSocket(a.Getenv)
				if err := daemon.PrivateFolder(path); err != nil {
					return err
				}
				listen = "unix://" + path
			}
			l, creds, err := daemon.Listen(listen, a.tls, log)
			if err != nil {
				return err
			}
			notify := func(state ...string) {
				if err := daemon.Notify(a.Getenv, state...); err != nil {
					log.Warn("the service manager was not told", zap.Error(err))
				}
			}
			err = daemon.Serve(c.Context(), s, daemon.Options{Listener: l, Creds: creds, Log: log, Metrics: metrics, Resume: unfinished == "resume",
				Ready: func() {
					notify("READY=1", "STATUS=no run")
					fmt.Fprintf(a.Stderr, "serving %s\n", listen)
				},
				Status: func(s string) { notify("STATUS=" + s) },
				Drain:  func() { notify("STOPPING=1") },
			})
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&listen, "listen", "", "unix:///path or host:port (default: a socket in the runtime directory)")
	f.StringVar(&metrics, "metrics", "", "address of Prometheus metrics, plain HTTP (default: none)")
	f.StringVar(&logs, "log-format", "console", "form of the log on standard error: console or json")
	f.StringVar(&unfinished, "unfinished", "resume", "what to do with runs that an earlier daemon left unfinished: resume or keep")
	return c
}

// serveLog is the log of a daemon: level info unless another one is asked for.
func (a *app) serveLog(format string, levelGiven bool) (*zap.Logger, error) {
	level := zapcore.InfoLevel
	if levelGiven {
		var err error
		if level, err = zapcore.ParseLevel(a.log); err != nil {
			return nil, usage("--log: %q is not a level; debug, info, warn or error", a.log)
		}
	}
	var enc zapcore.Encoder
	switch format {
	case "console":
		enc = zapcore.NewConsoleEncoder(zap.NewDevelopmentEncoderConfig())
	case "json":
		cfg := zap.NewProductionEncoderConfig()
		cfg.EncodeTime = zapcore.RFC3339NanoTimeEncoder
		enc = zapcore.NewJSONEncoder(cfg)
	default:
		return nil, usage("--log-format: %q; write console or json", format)
	}
	return zap.New(zapcore.NewCore(enc, zapcore.Lock(zapcore.AddSync(a.Stderr)), level)), nil
}

func (a *app) watchCommand() *cobra.Command {
	var format, require string
	c := &cobra.Command{
		Use:     "watch RUN --server ADDRESS",
		GroupID: "run",
		Short:   "Follow a run of a daemon to its end and print the matrix; Ctrl-C leaves the run alone",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			level, err := parseRequire(require)
			if err != nil {
				return err
			}
			d, err := a.client()
			if err != nil {
				return err
			}
			out, err := d.Watch(c.Context(), args[0], a.progress())
			return a.finish(out, err, format, level)
		},
	}
	bindFormat(c, &format)
	bindRequire(c, &require)
	return c
}

func (a *app) cancelCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "cancel RUN --server ADDRESS",
		GroupID: "run",
		Short:   "End a run of a daemon in good order, waiting or in flight",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			d, err := a.client()
			if err != nil {
				return err
			}
			r, err := d.Cancel(c.Context(), args[0])
			if err != nil {
				return err
			}
			fmt.Fprintf(a.Stdout, "%s is %s\n", r.Name, r.State)
			return nil
		},
	}
}
