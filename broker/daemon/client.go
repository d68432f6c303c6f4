package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"enginebroker/broker/service"
	"enginebroker/matrix"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

// Client asks a daemon for what the command line needs of the service, with the same results and the same errors.
type Client struct {
	conn    *grpc.ClientConn
	catalog brokerv1.CatalogServiceClient
	engines brokerv1.EngineServiceClient
	runs    brokerv1.RunServiceClient
	watch   *watch // of the run that Prepare began, until Matrix takes it over
}

// Dial prepares a client of unix:///path or host:port; the latter needs certificates. Nothing is sent yet.
func Dial(addr string, t TLS, opts ...grpc.DialOption) (*Client, error) {
	opts = append(opts, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes)), grpc.WithUnaryInterceptor(waitWhileMeasuring))
	switch {
	case strings.HasPrefix(addr, "unix:///"), strings.HasPrefix(addr, "passthrough:"):
		opts = append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))
	default:
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return nil, failf(service.CauseUsage, "", "--server %q: write unix:///path or host:port", addr)
		}
		if !t.complete() {
			return nil, failf(service.CauseUsage, "give --tls-cert, --tls-key and --tls-ca", "--server %s: TCP is spoken with certificates on both sides alone", addr)
		}
		cfg, err := t.config()
		if err != nil {
			return nil, err
		}
		opts = append(opts, grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
		addr = "passthrough:///" + addr
	}
	conn, err := grpc.NewClient(addr, opts...)
	if err != nil {
		return nil, failf(service.CauseUsage, "", "--server: %w", err)
	}
	return &Client{conn: conn, catalog: brokerv1.NewCatalogServiceClient(conn), engines: brokerv1.NewEngineServiceClient(conn), runs: brokerv1.NewRunServiceClient(conn)}, nil
}

// Close ends the connection. Runs go on.
func (c *Client) Close() error { return c.conn.Close() }

// waitWhileMeasuring asks again where the daemon is quiet because a run measures; the local command would have been the one
// to disturb it.
func waitWhileMeasuring(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	for {
		err := invoke(ctx, method, req, reply, cc, opts...)
		delay, ok := measuring(err)
		if !ok {
			return err
		}
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return err
		}
	}
}

func measuring(err error) (delay time.Duration, ok bool) {
	st := status.Convert(err)
	if st.Code() != codes.Unavailable {
		return 0, false
	}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			ok = d.GetReason() == service.ReasonMeasuring
		case *errdetails.RetryInfo:
			delay = d.GetRetryDelay().AsDuration()
		}
	}
	return max(delay, 100*time.Millisecond), ok
}

// ListModels lists the catalog.
func (c *Client) ListModels(ctx context.Context) ([]service.CatalogModel, error) {
	r, err := c.catalog.ListModels(ctx, &brokerv1.ListModelsRequest{})
	if err != nil {
		return nil, service.FromStatus(err)
	}
	return list(r.GetModels(), service.ModelOf)
}

func list[M, V any](in []M, f func(M) (V, error)) ([]V, error) {
	var out []V
	for _, m := range in {
		v, err := f(m)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

// Inspect reads an artifact on the daemon's machine.
func (c *Client) Inspect(ctx context.Context, locator string, headers, rehash bool) (service.Inspection, error) {
	r, err := c.catalog.InspectArtifact(ctx, &brokerv1.InspectArtifactRequest{Locator: &locator, HeadersOnly: &headers, Rehash: &rehash})
	if err != nil {
		return service.Inspection{}, service.FromStatus(err)
	}
	return service.InspectionOf(r)
}

// Engines describes instances.
func (c *Client) Engines(ctx context.Context, labels ...string) ([]service.Engine, error) {
	req := &brokerv1.ListEnginesRequest{}
	for _, l := range labels {
		req.Names = append(req.Names, service.EnginePrefix+l)
	}
	r, err := c.engines.ListEngines(ctx, req)
	if err != nil {
		return nil, service.FromStatus(err)
	}
	return list(r.GetEngines(), service.EngineOf)
}

// Plan negotiates and schedules.
func (c *Client) Plan(ctx context.Context, q service.Request) (service.Planned, error) {
	spec, err := service.ToSpec(q)
	if err != nil {
		return service.Planned{}, err
	}
	r, err := c.runs.PlanRun(ctx, &brokerv1.PlanRunRequest{Spec: spec, Canonical: new(true)})
	if err != nil {
		return service.Planned{}, service.FromStatus(err)
	}
	return service.PlannedOf(r.GetPlan())
}

// Runs lists every run.
func (c *Client) Runs(ctx context.Context) ([]service.RunInfo, error) {
	var out []service.RunInfo
	req := &brokerv1.ListRunsRequest{PageSize: new(int64(pageMost))}
	for {
		r, err := c.runs.ListRuns(ctx, req)
		if err != nil {
			return nil, service.FromStatus(err)
		}
		for _, m := range r.GetRuns() {
			if m.Trial == nil { // a trial has no evidence: it is in no listing of runs
				out = append(out, service.RunOf(m))
			}
		}
		if req.PageToken = r.NextPageToken; req.PageToken == nil {
			return out, nil
		}
	}
}

// Report judges a run again.
func (c *Client) Report(ctx context.Context, name string) (matrix.Report, error) {
	var out matrix.Report
	r, err := c.runs.RenderReport(ctx, &brokerv1.RenderReportRequest{Name: new(service.RunPrefix + name), Format: brokerv1.ReportFormat_REPORT_FORMAT_JSON.Enum()})
	if err != nil {
		return out, service.FromStatus(err)
	}
	if err := json.Unmarshal(r.GetContent(), &out); err != nil {
		return out, fmt.Errorf("report of %s: %w", name, err)
	}
	return out, nil
}

// ExplainCells writes why cells have their verdict.
func (c *Client) ExplainCells(ctx context.Context, w io.Writer, run string, words []string, look service.Look) error {
	req := &brokerv1.ExplainCellsRequest{Words: words, Rendering: &brokerv1.Rendering{Width: new(int64(look.Width)), Color: &look.Color, Secondary: &look.All}}
	if run != "" {
		req.Name = new(service.RunPrefix + run)
	}
	r, err := c.runs.ExplainCells(ctx, req)
	if err != nil {
		return service.FromStatus(err)
	}
	_, err = w.Write(r.GetText())
	return err
}

// Audit derives every number of a run again.
func (c *Client) Audit(ctx context.Context, name string) (service.AuditResult, error) {
	r, err := c.runs.AuditRun(ctx, &brokerv1.AuditRunRequest{Name: new(service.RunPrefix + name)})
	if err != nil {
		return service.AuditResult{}, service.FromStatus(err)
	}
	return service.AuditOf(r), nil
}

// Cancel ends a run, waiting or in flight, and says where it stands then.
func (c *Client) Cancel(ctx context.Context, name string) (service.RunInfo, error) {
	r, err := c.runs.CancelRun(ctx, &brokerv1.CancelRunRequest{Name: new(service.RunPrefix + name)})
	if err != nil {
		return service.RunInfo{}, service.FromStatus(err)
	}
	return service.RunOf(r.GetRun()), nil
}
