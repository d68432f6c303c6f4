// Package daemon serves what the service does over gRPC, so that a box is driven by scripts.
//
// It owns nothing of the measurement: a run is the service's, judged by the service, and the daemon adds what a process that
// lives longer than a command needs. It is quiet while a timed window is open, and it loses nothing that it once said.
//
// The way of a call:
//
//  1. listen: a unix socket for this user alone, or TCP with certificates on both sides
//  2. guard: limits, unknown fields, panics, one log line
//  3. catalog, engine, run, box: one file for each service; messages to values, one call of the service, values to messages
//  4. quiet: what is expensive waits until no timed window is open
//  5. queue: one run at a time; every change of state is written to disk before anybody hears of it
//  6. events: watchers read at their own pace and slow nobody down
//
// Client is the other side: it offers what the command line needs of the service and asks a daemon for it.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"enginebroker/broker/service"
	"enginebroker/matrix"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

// Broker is what the daemon needs of the service.
type Broker interface {
	Models() []service.CatalogModel
	Inspect(ctx context.Context, locator string, headers, rehash bool) (service.Inspection, error)
	Engines(ctx context.Context, labels ...string) ([]service.Engine, error)
	Check(q service.Request) error
	CheckTrial(t service.Trial) error
	NewRun(asked, stem string, taken func(string) bool) (string, error)
	NoRun(name string, known []string) error
	Plan(ctx context.Context, q service.Request) (service.Planned, error)
	Prepare(ctx context.Context, q service.Request, on func(service.Event)) (service.Planned, error)
	Matrix(ctx context.Context, q service.Request, on func(service.Event)) (service.Outcome, error)
	Resume(ctx context.Context, name string, on func(service.Event)) (service.Outcome, error)
	Rerun(ctx context.Context, name string, words []string, by service.RerunBy, on func(service.Event)) (service.Outcome, error)
	Try(ctx context.Context, t service.Trial, on func(service.Event)) (service.TrialResult, error)
	Runs(ctx context.Context) ([]service.RunInfo, error)
	Report(ctx context.Context, name string) (matrix.Report, error)
	Cells(ctx context.Context, run string, words []string) ([]matrix.Cell, error)
	Hold(ctx context.Context, run string, words []string, h service.Held) ([]matrix.Cell, error)
	Compare(ctx context.Context, first, second string) (service.Comparison, error)
	DiffArms(ctx context.Context, a, b service.ArmName) ([]service.Diff, error)
	Pins(ctx context.Context) ([]service.PinInfo, error)
	Carried(ctx context.Context, pin string) ([]service.Carried, error)
	Audit(ctx context.Context, name string) (service.AuditResult, error)
	DiagnoseBox(ctx context.Context) (*brokerv1.DiagnoseBoxResponse, error)
	WatchBox(ctx context.Context, every time.Duration, send func(*brokerv1.WatchBoxResponse) error) error
	StateDir(name string) string
}

var _ Broker = (*service.Service)(nil)

// Limits of the daemon (docs/grpc.md lists them). They bound what one caller can cost a box whose processors belong to a
// measurement.
const (
	maxRequestBytes = 1 << 20  // requests are names and lists of names
	maxTextBytes    = 2 << 10  // of one text in a request
	maxAnswerBytes  = 64 << 20 // a report of a binding run with every leg
	maxStreams      = 256      // calls at once on one connection; more wait in the client
	maxConnections  = 1024     // more are not accepted until one ends
	maxCalls        = 64       // unary calls at once; more are refused with a RetryInfo
	maxWatchers     = 4096     // streams at once; more are refused with a RetryInfo
	maxQueue        = 1024     // waiting runs
	handshakeLimit  = 5 * time.Second
	callLimit       = 10 * time.Minute // of one unary call: an audit of a large run
	pingAfter       = 60 * time.Second // silence after which a peer is asked whether it is there
	pingAnswer      = 20 * time.Second
	pingEvery       = 10 * time.Second // clients that ping more often are cut off
	drainLimit      = 3 * time.Second  // for open calls, once the run has ended
)

// Options of a daemon.
type Options struct {
	Listener net.Listener // see Listen
	Creds    grpc.ServerOption
	Log      *zap.Logger
	Metrics  string // address of the metrics listener, empty: none
	// Resume goes on with the runs that an earlier daemon left, instead of only saying so.
	Resume bool
	// Ready is called once calls are answered. It may be nil.
	Ready func()
	// Drain is called once the daemon takes nothing in any more. It may be nil.
	Drain func()
	// Status is called with a line about what the daemon does. It may be nil.
	Status func(string)
}

// Serve answers calls until ctx ends, then drains: no new runs, the leg in flight is dropped, engines are stopped, evidence
// is kept, watchers hear of it.
func Serve(ctx context.Context, b Broker, o Options) error {
	defer o.Listener.Close()
	m := newMetrics()
	q := newQueue(b, o.Log, m)
	lock, err := q.store.lock()
	if err != nil {
		return err
	}
	defer lock.Close()
	q.load()
	if err := q.recover(o.Resume); err != nil {
		return err
	}
	srv, hs := newServer(b, q, o, m)
	stopMetrics, err := m.serve(o.Metrics, o.Log)
	if err != nil {
		return err
	}
	defer stopMetrics()
	runCtx, stopRuns := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRuns()
	ran := make(chan struct{})
	go func() { defer close(ran); q.work(runCtx, o.Status) }()
	served := make(chan error, 1)
	go func() { served <- srv.Serve(o.Listener) }()
	if o.Ready != nil {
		o.Ready()
	}
	select {
	case err := <-served: // the listener broke
		stopRuns()
		<-ran
		return err
	case <-ctx.Done():
	}
	o.Log.Info("draining")
	hs.Shutdown()
	if o.Drain != nil {
		o.Drain()
	}
	q.drain()
	stopRuns()
	<-ran
	q.hangUp()
	stopServer(srv)
	return errors.Join(<-served)
}

func stopServer(srv *grpc.Server) {
	t := time.AfterFunc(drainLimit, srv.Stop)
	defer t.Stop()
	srv.GracefulStop()
}

func newServer(b Broker, q *queue, o Options, m *metrics) (*grpc.Server, *health.Server) {
	g := newGuard(o.Log, q.quiet, m)
	opts := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxRequestBytes), grpc.MaxSendMsgSize(maxAnswerBytes), grpc.MaxConcurrentStreams(maxStreams), grpc.ConnectionTimeout(handshakeLimit),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingAnswer}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingEvery, PermitWithoutStream: true}),
		grpc.ForceServerCodecV2(newCodec(q.quiet)), grpc.ChainUnaryInterceptor(g.unary), grpc.ChainStreamInterceptor(g.stream),
	}
	if o.Creds != nil {
		opts = append(opts, o.Creds)
	}
	srv := grpc.NewServer(opts...)
	brokerv1.RegisterCatalogServiceServer(srv, &catalogServer{b: b, quiet: q.quiet})
	brokerv1.RegisterEngineServiceServer(srv, &engineServer{b: b, quiet: q.quiet})
	brokerv1.RegisterRunServiceServer(srv, &runServer{b: b, q: q, quiet: q.quiet})
	brokerv1.RegisterBoxServiceServer(srv, &boxServer{b: b, quiet: q.quiet})
	hs := health.NewServer()
	healthv1.RegisterHealthServer(srv, hs)
	for name := range srv.GetServiceInfo() {
		hs.SetServingStatus(name, healthv1.HealthCheckResponse_SERVING)
	}
	reflection.Register(srv)
	return srv, hs
}

func failf(c service.Cause, fix, format string, args ...any) error {
	return &service.Error{Cause: c, Err: fmt.Errorf(format, args...), Fix: fix}
}
