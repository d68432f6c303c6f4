package plugin

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"

	"enginebroker/engines"
	"enginebroker/matrix"
	telemetryv1 "enginebroker/proto/gen/telemetry/v1"
)

// RegisterTelemetry serves a source of readings as telemetry.v1.
func RegisterTelemetry(s grpc.ServiceRegistrar, t engines.Telemetry) {
	telemetryv1.RegisterTelemetryServiceServer(s, &telemetryServer{telemetry: t})
}

type telemetryServer struct {
	telemetryv1.UnimplementedTelemetryServiceServer
	telemetry engines.Telemetry
}

func (s *telemetryServer) Describe(ctx context.Context, _ *telemetryv1.DescribeRequest) (*telemetryv1.DescribeResponse, error) {
	t, err := s.telemetry.Describe(ctx)
	return answer(err, func(e enc) *telemetryv1.DescribeResponse { return e.telemetry(t) })
}

func (s *telemetryServer) Sample(r *telemetryv1.SampleRequest, stream grpc.ServerStreamingServer[telemetryv1.SampleResponse]) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	var mu sync.Mutex // a source may read its devices side by side
	err := s.telemetry.Sample(ctx, toInt(r.GetHz()), func(x matrix.Sample) {
		m, err := encoding(func(e enc) *telemetryv1.SampleResponse { return e.sample(x) })
		mu.Lock()
		defer mu.Unlock()
		if err == nil && ctx.Err() == nil {
			err = stream.Send(m)
		}
		if err != nil {
			cancel(err)
		}
	})
	mu.Lock()
	defer mu.Unlock()
	if cause := context.Cause(ctx); cause != nil && stream.Context().Err() == nil {
		err = cause
	}
	return toStatus(err)
}

// TelemetryClient is a source of readings at the far end of a connection.
type TelemetryClient struct {
	rpc    telemetryv1.TelemetryServiceClient
	exited context.Context
}

var _ engines.Telemetry = (*TelemetryClient)(nil)

// NewTelemetryClient speaks telemetry.v1 over conn; exited is as in NewClient.
func NewTelemetryClient(conn grpc.ClientConnInterface, exited context.Context) *TelemetryClient {
	return &TelemetryClient{rpc: telemetryv1.NewTelemetryServiceClient(conn), exited: exited}
}

// Describe implements engines.Telemetry.
func (c *TelemetryClient) Describe(ctx context.Context) (matrix.Telemetry, error) {
	m, err := c.rpc.Describe(ctx, &telemetryv1.DescribeRequest{})
	return received(ctx, c.exited, err, func(d dec) matrix.Telemetry { return d.telemetry(m) })
}

// Sample implements engines.Telemetry. It returns the context's error once ctx ends, and nil where the source ends by
// itself.
func (c *TelemetryClient) Sample(ctx context.Context, hz int, fn func(matrix.Sample)) error {
	parent := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.rpc.Sample(ctx, &telemetryv1.SampleRequest{Hz: number(hz)})
	for err == nil {
		var m *telemetryv1.SampleResponse
		if m, err = stream.Recv(); err == nil {
			var x matrix.Sample
			if x, err = decoding(func(d dec) matrix.Sample { return d.sample(m) }); err != nil {
				return err
			}
			fn(x)
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	if parent.Err() != nil {
		return parent.Err()
	}
	return seen(parent, c.exited, err)
}
