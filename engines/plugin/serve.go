package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"enginebroker/engines"
)

// Serve is the whole main of an engine adapter: it serves the engine until the host lets go of it, stops the engine's server
// if one still runs, and returns. By hand, `PLUGIN --describe [setting=value …]` prints what Describe answers.
func Serve(newEngine func() engines.Engine) {
	serve(func() service { return engineService{newEngine()} })
}

// ServeTelemetry is the whole main of a telemetry plugin.
func ServeTelemetry(newTelemetry func() engines.Telemetry) {
	serve(func() service { return telemetryService{newTelemetry()} })
}

// service is what a plugin serves.
type service interface {
	kind() string
	register(grpc.ServiceRegistrar)
	// describe answers for a person at a terminal, as JSON.
	describe(context.Context, engines.Settings) (any, error)
	// end leaves nothing running.
	end(context.Context) error
}

func serve(newService func() service) {
	if os.Getenv(Cookie) != CookieValue {
		if code := byHand(newService, os.Args, os.Stdout, os.Stderr); code != 0 {
			os.Exit(code)
		}
		return
	}
	slog.SetDefault(slog.New(logHandler(os.Stderr)))
	svc := newService()
	l := &life{}
	l.watch(os.Stdin)
	if err := l.serve(svc, os.Stdout); err != nil {
		slog.Error("the plugin cannot be reached", "error", err)
		os.Exit(1)
	}
	l.end(svc)
}

// byHand serves a person.
func byHand(newService func() service, args []string, stdout, stderr io.Writer) int {
	name := filepath.Base(args[0])
	if len(args) < 2 || args[1] != "--describe" {
		fmt.Fprintf(stderr, "%s is a plugin of broker: put it into a plugins directory and run `broker engines`. "+
			"To see what it finds on this machine, run `%s --describe [setting=value ...]`.\n", name, name)
		return 1
	}
	settings := engines.Settings{}
	for _, arg := range args[2:] {
		k, v, ok := strings.Cut(arg, "=")
		if !ok {
			fmt.Fprintf(stderr, "%s: %q is not setting=value\n", name, arg)
			return 1
		}
		settings[k] = v
	}
	v, err := newService().describe(context.Background(), settings)
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return 1
	}
	enc := json.NewEncoder(stdout)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return 1
	}
	return 0
}

// logHandler writes records as hclog does, so that level and fields arrive in the host's log.
func logHandler(w io.Writer) slog.Handler {
	return slog.NewJSONHandler(w, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) > 0 {
				return a
			}
			switch a.Key {
			case slog.TimeKey:
				return slog.String("@timestamp", a.Value.Time().Format("2006-01-02T15:04:05.000000Z07:00"))
			case slog.LevelKey:
				return slog.String("@level", strings.ToLower(a.Value.String()))
			case slog.MessageKey:
				return slog.String("@message", a.Value.String())
			}
			return a
		},
	})
}

// life ends a plugin in order: calls in progress are cancelled and waited for, then the service ends.
type life struct {
	mu    sync.Mutex
	grpc  *grpc.Server
	ended bool
	calls sync.WaitGroup
}

// watch ends the plugin when the host is gone: its end of lifeline closes, or the kernel or a person sends SIGTERM.
func (l *life) watch(lifeline io.Reader) {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM, syscall.SIGHUP)
	// A line to a log nobody reads any more must not kill the plugin before it stopped its server, and an interrupt from a
	// terminal is the host's to answer. Notify rather than Ignore: servers would inherit an ignored signal.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE, syscall.SIGINT)
	go func() {
		_, _ = io.Copy(io.Discard, lifeline)
		l.cancel("the broker is gone")
	}()
	go func() {
		l.cancel((<-term).String())
	}()
}

// cancel ends a plugin that nobody asked to end.
func (l *life) cancel(why string) {
	if l.stop() {
		slog.Info("ending", "why", why)
	}
}

// stop makes serve return, and reports whether it is the first to do so. Before there is a server there is nothing to end.
func (l *life) stop() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	l.ended = true
	if l.grpc == nil {
		os.Exit(0)
	}
	go l.grpc.Stop()
	return true
}

func (l *life) server(opts []grpc.ServerOption) *grpc.Server {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.grpc = grpc.NewServer(opts...)
	return l.grpc
}

// count knows the calls in progress.
func (l *life) count() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			l.calls.Add(1)
			defer l.calls.Done()
			return next(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			l.calls.Add(1)
			defer l.calls.Done()
			return next(srv, ss)
		}),
	}
}

// end runs once the server takes no calls any more. An adapter that ignores its contexts delays it, but not for ever.
func (l *life) end(svc service) {
	limit := time.AfterFunc(3*DefaultStop, func() {
		slog.Error("the adapter does not stop its server; leaving")
		os.Exit(1)
	})
	defer limit.Stop()
	done := make(chan struct{})
	go func() {
		l.calls.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(DefaultStop):
		slog.Error("a call does not end; stopping the server under it")
	}
	if err := svc.end(context.Background()); err != nil {
		slog.Error("the server could not be stopped", "error", err)
	}
	// The server removed its socket; the directory is the host's, who may be gone.
	if dir := os.Getenv(envSocketDir); dir != "" {
		_ = os.Remove(dir)
	}
}

type engineService struct{ engine engines.Engine }

func (s engineService) kind() string                     { return KindEngine }
func (s engineService) register(r grpc.ServiceRegistrar) { RegisterEngine(r, s.engine) }

func (s engineService) describe(ctx context.Context, settings engines.Settings) (any, error) {
	if len(settings) > 0 {
		fields, err := s.engine.Configure(ctx, settings)
		if err != nil {
			return nil, err
		}
		var errs []error
		for _, f := range fields {
			errs = append(errs, f)
		}
		if err := errors.Join(errs...); err != nil {
			return nil, err
		}
	}
	return s.engine.Describe(ctx)
}

func (s engineService) end(ctx context.Context) error {
	stopped, err := s.engine.Stop(ctx, DefaultStop)
	switch {
	case errors.Is(err, engines.ErrNotStarted), errors.Is(err, engines.ErrNotConfigured):
		return nil
	case err != nil:
		return err
	case !stopped.Gone():
		return fmt.Errorf("%d processes survive, port free: %t", len(stopped.Survivors), stopped.PortFree)
	}
	return nil
}

type telemetryService struct{ telemetry engines.Telemetry }

func (s telemetryService) kind() string                     { return KindTelemetry }
func (s telemetryService) register(r grpc.ServiceRegistrar) { RegisterTelemetry(r, s.telemetry) }
func (s telemetryService) end(context.Context) error        { return nil }

func (s telemetryService) describe(ctx context.Context, settings engines.Settings) (any, error) {
	if len(settings) > 0 {
		return nil, errors.New("a telemetry plugin has no settings")
	}
	return s.telemetry.Describe(ctx)
}
