package plugin

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"enginebroker/engines"
	"enginebroker/matrix"
	enginev1 "enginebroker/proto/gen/engine/v1"
)

// DefaultStop is the deadline of a stop that names none: SGLang and vLLM take up to some 10 s to leave on SIGTERM.
const DefaultStop = 30 * time.Second

// RegisterEngine serves an engine as engine.v1.
func RegisterEngine(s grpc.ServiceRegistrar, e engines.Engine) {
	enginev1.RegisterEngineServiceServer(s, &engineServer{engine: e})
}

// engineServer is the adapter's end of the wire.
type engineServer struct {
	enginev1.UnimplementedEngineServiceServer
	engine engines.Engine
}

func (s *engineServer) Describe(ctx context.Context, _ *enginev1.DescribeRequest) (*enginev1.DescribeResponse, error) {
	d, err := s.engine.Describe(ctx)
	return answer(err, func(e enc) *enginev1.DescribeResponse {
		return &enginev1.DescribeResponse{Description: e.description(d)}
	})
}

func (s *engineServer) Configure(ctx context.Context, r *enginev1.ConfigureRequest) (*enginev1.ConfigureResponse, error) {
	fields, err := s.engine.Configure(ctx, r.GetSettings())
	return answer(err, func(e enc) *enginev1.ConfigureResponse {
		return &enginev1.ConfigureResponse{FieldErrors: each(fields, e.fieldError)}
	})
}

func (s *engineServer) Preflight(r *enginev1.PreflightRequest, stream grpc.ServerStreamingServer[enginev1.PreflightResponse]) error {
	return events(r.GetLaunch(), stream, s.engine.Preflight,
		func(p *enginev1.Progress) *enginev1.PreflightResponse {
			return &enginev1.PreflightResponse{Event: &enginev1.PreflightResponse_Progress{Progress: p}}
		},
		func(e enc, r matrix.PreflightResult) *enginev1.PreflightResponse {
			return &enginev1.PreflightResponse{Event: &enginev1.PreflightResponse_Result{Result: e.preflight(r)}}
		})
}

func (s *engineServer) Start(r *enginev1.StartRequest, stream grpc.ServerStreamingServer[enginev1.StartResponse]) error {
	return events(r.GetLaunch(), stream, s.start,
		func(p *enginev1.Progress) *enginev1.StartResponse {
			return &enginev1.StartResponse{Event: &enginev1.StartResponse_Progress{Progress: p}}
		},
		func(e enc, r matrix.Ready) *enginev1.StartResponse {
			return &enginev1.StartResponse{Event: &enginev1.StartResponse_Ready{Ready: e.ready(r)}}
		})
}

// start stops a server that became ready after nobody waits for it any more.
func (s *engineServer) start(ctx context.Context, r matrix.StartRequest, progress func(matrix.Progress)) (matrix.Ready, error) {
	ready, err := s.engine.Start(ctx, r, progress)
	if err == nil && ctx.Err() != nil {
		_, stopErr := s.engine.Stop(context.WithoutCancel(ctx), DefaultStop)
		return matrix.Ready{}, errors.Join(ctx.Err(), stopErr)
	}
	return ready, err
}

func (s *engineServer) Observe(ctx context.Context, _ *enginev1.ObserveRequest) (*enginev1.ObserveResponse, error) {
	state, err := s.engine.Observe(ctx)
	return answer(err, func(e enc) *enginev1.ObserveResponse {
		return &enginev1.ObserveResponse{State: e.state(state)}
	})
}

func (s *engineServer) Tokenize(ctx context.Context, r *enginev1.TokenizeRequest) (*enginev1.TokenizeResponse, error) {
	ids, err := s.engine.Tokenize(ctx, string(r.GetText()))
	return answer(err, func(enc) *enginev1.TokenizeResponse {
		return &enginev1.TokenizeResponse{Ids: each(ids, fromInt)}
	})
}

func (s *engineServer) Stop(ctx context.Context, r *enginev1.StopRequest) (*enginev1.StopResponse, error) {
	deadline := DefaultStop
	if r.GetDeadline() != nil {
		deadline = r.GetDeadline().AsDuration()
	}
	stopped, err := s.engine.Stop(ctx, deadline)
	return answer(err, func(e enc) *enginev1.StopResponse {
		return &enginev1.StopResponse{Stopped: e.stopped(stopped)}
	})
}

// answer sends the adapter's error, or its value.
func answer[M interface {
	*T
	proto.Message
}, T any](err error, f func(enc) M) (M, error) {
	if err != nil {
		return nil, toStatus(err)
	}
	m, err := encoding(f)
	return m, toStatus(err)
}

// events runs a start or preflight and streams what it says. The adapter may report progress from several goroutines, and
// even after it returned: the stream takes one message at a time and none after the last.
func events[R any, M interface {
	*T
	proto.Message
}, T any](
	launch *enginev1.Launch,
	stream grpc.ServerStreamingServer[T],
	run func(context.Context, matrix.StartRequest, func(matrix.Progress)) (R, error),
	progress func(*enginev1.Progress) M,
	result func(enc, R) M,
) error {
	request, err := decoding(func(d dec) matrix.StartRequest { return d.launch(launch) })
	if err != nil {
		return toStatus(err)
	}
	var mu sync.Mutex
	closed := false
	v, err := run(stream.Context(), request, func(p matrix.Progress) {
		m, err := encoding(func(e enc) M { return progress(e.progress(p)) })
		mu.Lock()
		defer mu.Unlock()
		if err == nil && !closed {
			closed = stream.Send(m) != nil // a host that is gone cancels the context of run
		}
	})
	mu.Lock()
	defer mu.Unlock()
	closed = true
	if err != nil {
		return toStatus(err)
	}
	last, err := encoding(func(e enc) M { return result(e, v) })
	if err != nil {
		return toStatus(err)
	}
	return stream.Send(last)
}
