package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"enginebroker/plugins/simulated/server"
)

// serve is the server process. Its flags are the settings of the plugin and the parameters of one load.
func serve(args []string, log io.Writer) error {
	fs := flag.NewFlagSet("simulated serve", flag.ContinueOnError)
	fs.SetOutput(log)
	settings := map[string]string{}
	for _, f := range server.Fields() {
		usage := f.Help
		if len(f.Values) > 0 {
			usage += ": " + strings.Join(f.Values, ", ")
		}
		set := func(v string) error { settings[f.Name] = v; return nil }
		if f.Type == "bool" {
			fs.BoolFunc(f.Name, usage, set)
		} else {
			fs.Func(f.Name, usage, set)
		}
	}
	var p server.Params
	addr := fs.String("addr", "127.0.0.1:0", "address to listen on")
	fs.StringVar(&p.Model, "model", "simulated", "served model name")
	fs.StringVar(&p.Path, "path", "", "path of the artifact, repeated where the dialect does")
	fs.StringVar(&p.LoadID, "load-id", "", "name of this load: draws what differs between loads")
	fs.Float64Var(&p.Speed, "speed", 1, "speed of this load")
	fs.IntVar(&p.Context, "context", 1<<20, "usable tokens of one request")
	fs.IntVar(&p.Slots, "slots", 1<<10, "requests at once")
	fs.StringVar(&p.Quantization, "quantization", "none", "quantization it reports")
	fs.StringVar(&p.KVDtype, "kv-dtype", "auto", "KV cache type it reports")
	fs.StringVar(&p.Speculation, "speculation", "none", "drafter it reports")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return fmt.Errorf("simulated: fatal: %w", err)
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("simulated: fatal: unexpected argument %q", fs.Arg(0))
	}
	c, bad := server.Parse(settings)
	for _, b := range bad {
		fmt.Fprintf(log, "simulated: fatal: %s: %s\n", b.Field, b.Message)
	}
	if len(bad) > 0 {
		return errors.New("simulated: fatal: the settings cannot be used")
	}
	p.Config = c
	ctx := context.Background()
	if c.IgnoreTerm {
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
	} else {
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
		defer stop()
	}
	if c.ForkChild {
		if err := fork(); err != nil {
			return fmt.Errorf("simulated: fatal: worker: %w", err)
		}
	}
	// One thread answers every stream. A second one would take the core that the client under test has where there are two,
	// and waking it costs more than the few events it would answer sooner.
	runtime.GOMAXPROCS(1)
	return server.New(p).Run(ctx, *addr, log)
}

// fork starts a worker that nobody waits for, as some engines leave one behind.
func fork() error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(exe, "worker")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Start()
}

// worker does nothing until it is killed.
func worker() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGTERM, syscall.SIGINT)
	<-c
}
