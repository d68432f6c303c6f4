package plugin

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"enginebroker/engines"
	"enginebroker/matrix"
	enginev1 "enginebroker/proto/gen/engine/v1"
)

// Client is an engine at the far end of a connection.
type Client struct {
	rpc    enginev1.EngineServiceClient
	exited context.Context
}

var _ engines.Engine = (*Client)(nil)

// NewClient speaks engine.v1 over conn. The context exited ends once the process at the other end has been seen to end; a
// call that finds the connection broken waits for that, and returns engines.ErrGone.
func NewClient(conn grpc.ClientConnInterface, exited context.Context) *Client {
	return &Client{rpc: enginev1.NewEngineServiceClient(conn), exited: exited}
}

// Describe implements engines.Engine.
func (c *Client) Describe(ctx context.Context) (matrix.Description, error) {
	m, err := c.rpc.Describe(ctx, &enginev1.DescribeRequest{})
	return received(ctx, c.exited, err, func(d dec) matrix.Description { return d.description(m.GetDescription()) })
}

// Configure implements engines.Engine.
func (c *Client) Configure(ctx context.Context, s engines.Settings) ([]engines.FieldError, error) {
	m, err := c.rpc.Configure(ctx, valid(&enginev1.ConfigureRequest{Settings: s}))
	return received(ctx, c.exited, err, func(d dec) []engines.FieldError { return each(m.GetFieldErrors(), d.fieldError) })
}

// Preflight implements engines.Engine.
func (c *Client) Preflight(ctx context.Context, r matrix.StartRequest, progress func(matrix.Progress)) (matrix.PreflightResult, error) {
	launch, err := encoding(func(e enc) *enginev1.Launch { return e.launch(r) })
	if err != nil {
		return matrix.PreflightResult{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.rpc.Preflight(ctx, &enginev1.PreflightRequest{Launch: launch})
	last, err := lastEvent(stream, err, progress)
	return received(ctx, c.exited, err, func(d dec) matrix.PreflightResult { return d.preflight(last.GetResult()) })
}

// Start implements engines.Engine. Cancelled, it stops a server whose readiness was on its way, for at most DefaultStop.
func (c *Client) Start(ctx context.Context, r matrix.StartRequest, progress func(matrix.Progress)) (matrix.Ready, error) {
	launch, err := encoding(func(e enc) *enginev1.Launch { return e.launch(r) })
	if err != nil {
		return matrix.Ready{}, err
	}
	call, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.rpc.Start(call, &enginev1.StartRequest{Launch: launch})
	last, err := lastEvent(stream, err, progress)
	if err != nil && ctx.Err() != nil {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), DefaultStop)
		defer cancel()
		_, _ = c.Stop(stop, DefaultStop) // not started is what it should say
	}
	return received(ctx, c.exited, err, func(d dec) matrix.Ready { return d.ready(last.GetReady()) })
}

// Observe implements engines.Engine.
func (c *Client) Observe(ctx context.Context) (matrix.State, error) {
	m, err := c.rpc.Observe(ctx, &enginev1.ObserveRequest{})
	return received(ctx, c.exited, err, func(d dec) matrix.State { return d.state(m.GetState()) })
}

// Tokenize implements engines.Engine.
func (c *Client) Tokenize(ctx context.Context, text string) ([]int, error) {
	m, err := c.rpc.Tokenize(ctx, &enginev1.TokenizeRequest{Text: []byte(text)})
	return received(ctx, c.exited, err, func(dec) []int { return each(m.GetIds(), toInt) })
}

// Stop implements engines.Engine.
func (c *Client) Stop(ctx context.Context, deadline time.Duration) (matrix.Stopped, error) {
	m, err := c.rpc.Stop(ctx, &enginev1.StopRequest{Deadline: durationpb.New(deadline)})
	return received(ctx, c.exited, err, func(d dec) matrix.Stopped { return d.stopped(m.GetStopped()) })
}

// received returns the error of a call, or its value.
func received[T any](ctx, exited context.Context, err error, f func(dec) T) (T, error) {
	if err != nil {
		var none T
		return none, seen(ctx, exited, err)
	}
	return decoding(f)
}

// seen is fromStatus for a call on a process: its connection breaks up to some 50 ms before its end is seen, so a broken
// connection waits for that, and is engines.ErrGone then.
func seen(ctx, exited context.Context, err error) error {
	switch code := status.Code(err); {
	case code == codes.Canceled && ctx.Err() == nil && exited.Err() != nil: // closed on this side, after the end
		return engines.ErrGone
	case code == codes.Unavailable:
		select {
		case <-exited.Done():
			return engines.ErrGone
		case <-ctx.Done():
		case <-time.After(exitWait):
		}
		return &remoteError{status.Convert(err).Message(), ErrUnreachable}
	}
	return fromStatus(err)
}

// event is one message of a start or preflight.
type event[T any] interface {
	*T
	GetProgress() *enginev1.Progress
}

// lastEvent hands progress on and returns the message that is none. A stream that ends without one has broken the contract.
func lastEvent[M event[T], T any](stream grpc.ServerStreamingClient[T], err error, progress func(matrix.Progress)) (M, error) {
	if err != nil {
		return nil, err
	}
	var last M
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && last != nil:
			return last, nil
		case errors.Is(err, io.EOF):
			return nil, status.Error(codes.Internal, "the plugin ended the stream without an answer")
		case err != nil:
			return nil, err
		}
		p := M(m).GetProgress()
		if p == nil {
			last = m
		} else if progress != nil {
			progress(dec{}.progress(p))
		}
	}
}
