package cli

import (
	"context"
	"io"

	"enginebroker/broker/daemon"
	"enginebroker/broker/service"
	"enginebroker/matrix"
)

// backend is what the commands need that work here and, with --server, in a daemon: the same results and the same errors,
// so that they print the same and end with the same code. A command that is not in it works on this machine alone.
type backend interface {
	Plan(ctx context.Context, q service.Request) (service.Planned, error)
	Prepare(ctx context.Context, q service.Request, on func(service.Event)) (service.Planned, error)
	Matrix(ctx context.Context, q service.Request, on func(service.Event)) (service.Outcome, error)
	Resume(ctx context.Context, name string, on func(service.Event)) (service.Outcome, error)
	Rerun(ctx context.Context, name string, words []string, by service.RerunBy, on func(service.Event)) (service.Outcome, error)
	Report(ctx context.Context, name string) (matrix.Report, error)
	ExplainCells(ctx context.Context, w io.Writer, run string, words []string, look service.Look) error
	Runs(ctx context.Context) ([]service.RunInfo, error)
	Engines(ctx context.Context, labels ...string) ([]service.Engine, error)
	ListModels(ctx context.Context) ([]service.CatalogModel, error)
	Inspect(ctx context.Context, locator string, headers, rehash bool) (service.Inspection, error)
	Audit(ctx context.Context, name string) (service.AuditResult, error)
	Compare(ctx context.Context, first, second string) (service.Comparison, error)
	Hold(ctx context.Context, run string, words []string, h service.Held) ([]matrix.Cell, error)
	Diff(ctx context.Context, a, b string) ([]service.Diff, error)
	Preflight(ctx context.Context, q service.PreflightRequest, on func(service.Event)) ([]service.Preflight, error)
	Gate(ctx context.Context, q service.GateRequest, on func(service.Event)) ([]service.Gate, error)
	Pins(ctx context.Context) ([]service.PinInfo, error)
	Carried(ctx context.Context, pin string) ([]service.Carried, error)
	CheckPin(ctx context.Context, q service.PinRequest, on func(service.Event)) (service.Checked, error)
	RecordPin(ctx context.Context, name string, q service.PinRequest, act service.Act, on func(service.Event)) (service.Pin, error)
	AdvancePin(ctx context.Context, name string, q service.PinRequest, act service.Act, on func(service.Event)) (service.Pin, error)
}

var _, _ backend = (*service.Service)(nil), (*daemon.Client)(nil)

// backend is the service of this machine, or the daemon that --server names.
func (a *app) backend() (backend, error) {
	if a.server == "" {
		return a.service()
	}
	return a.client()
}

// client is the daemon that --server names.
func (a *app) client() (*daemon.Client, error) {
	if a.server == "" {
		return nil, usage("this command needs a daemon; name it with --server, or start one with broker serve")
	}
	c, err := daemon.Dial(a.server, a.tls)
	if err == nil {
		a.closers = append(a.closers, c)
	}
	return c, err
}
