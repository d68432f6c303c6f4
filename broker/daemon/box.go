package daemon

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"enginebroker/broker/service"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

type boxServer struct {
	brokerv1.UnimplementedBoxServiceServer
	b     Broker
	quiet *quiet
}

func (s *boxServer) DiagnoseBox(ctx context.Context, _ *brokerv1.DiagnoseBoxRequest) (*brokerv1.DiagnoseBoxResponse, error) {
	ctx, leave, err := s.quiet.enter(ctx, "DiagnoseBox")
	if err != nil {
		return nil, err
	}
	defer leave()
	return s.b.DiagnoseBox(ctx)
}

const (
	readingEvery = 2 * time.Second
	readingLeast = time.Second
)

// WatchBox reads the box for as long as its caller reads. It pauses while a window is open.
func (s *boxServer) WatchBox(r *brokerv1.WatchBoxRequest, stream grpc.ServerStreamingServer[brokerv1.WatchBoxResponse]) error {
	every := readingEvery
	if d := r.GetInterval(); d != nil {
		if every = d.AsDuration(); d.CheckValid() != nil || every < readingLeast {
			return service.Bad("interval", "give at least %v", readingLeast)
		}
	}
	return s.b.WatchBox(stream.Context(), every, func(m *brokerv1.WatchBoxResponse) error {
		if s.quiet.measuring() {
			s.quiet.note("box reading")
			m.Measuring = new(true)
		}
		if err := stream.Send(m); err != nil {
			return err
		}
		return s.quiet.closed(stream.Context())
	})
}
