package plugin

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

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
	out := &burst{send: stream.Send, failed: cancel}
	err := s.telemetry.Sample(ctx, toInt(r.GetHz()), func(x matrix.Sample) {
		m, err := encoding(func(e enc) *telemetryv1.SampleResponse { return e.sample(x) })
		if err != nil {
			cancel(err)
			return
		}
		out.add(m, x)
	})
	out.end()
	if cause := context.Cause(ctx); cause != nil && stream.Context().Err() == nil {
		err = cause
	}
	return toStatus(err)
}

// burstEvery is how long samples wait to be sent together. A message sent alone costs a wakeup, an encrypted record and a
// system call, a quarter of what sampling took at 10 Hz (docs/performance.md). Nothing that reads them acts within a second, and
// what one would act on is sent at once.
const burstEvery = time.Second

// burst sends samples together. Of a stream the first goes at once, because whoever asks for one reading waits for it, and so
// does one with more failures than the device's last: then the driver hangs, or the device is lost. Its methods may be called
// side by side, as a source may read its devices.
type burst struct {
	send   func(*telemetryv1.SampleResponse) error
	failed func(error)

	mu     sync.Mutex
	wait   []*telemetryv1.SampleResponse
	bad    map[int]int // device → failed fields of its last sample
	timer  *time.Timer
	closed bool // failed, or ended
}

func (b *burst) add(m *telemetryv1.SampleResponse, x matrix.Sample) {
	bad := 0
	for _, r := range x.Fields {
		if r.Status == matrix.ReadingStale || r.Status == matrix.ReadingError {
			bad++
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	worse := bad > b.bad[x.Device]
	if b.bad == nil {
		b.bad = map[int]int{}
	}
	b.bad[x.Device] = bad
	b.wait = append(b.wait, m)
	switch {
	case b.timer == nil:
		b.timer = time.AfterFunc(burstEvery, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.flush()
		})
		b.flush()
	case worse:
		b.flush()
	case len(b.wait) == 1:
		b.timer.Reset(burstEvery)
	}
}

// flush is called with mu held.
func (b *burst) flush() {
	for _, m := range b.wait {
		if b.closed {
			break
		}
		if err := b.send(m); err != nil {
			b.closed = true
			b.failed(err)
		}
	}
	clear(b.wait)
	b.wait = b.wait[:0]
}

// end sends what waits; afterwards nothing is sent any more.
func (b *burst) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flush()
	b.closed = true
	if b.timer != nil {
		b.timer.Stop()
	}
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
