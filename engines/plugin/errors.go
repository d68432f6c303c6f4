package plugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"

	"enginebroker/engines"
	"enginebroker/matrix"
	enginev1 "enginebroker/proto/gen/engine/v1"
)

// ErrNotServed says that the plugin does not serve the service that was called: it is of the other kind.
var ErrNotServed = errors.New("the plugin does not serve this")

// ErrUnreachable says that the connection is broken although the process was not seen to end.
var ErrUnreachable = errors.New("the plugin cannot be reached")

// domain of every google.rpc.ErrorInfo of this wire.
const domain = "engine.v1"

// exitWait is how long a client waits for a process to be seen to end after its connection broke.
const exitWait = 2 * time.Second

// sentinels that have a reason of their own on the wire.
var sentinels = []struct {
	err    error
	reason string
	code   codes.Code
}{
	{engines.ErrUnsupported, "UNSUPPORTED", codes.Unimplemented},
	{engines.ErrNotConfigured, "NOT_CONFIGURED", codes.FailedPrecondition},
	{engines.ErrNotStarted, "NOT_STARTED", codes.FailedPrecondition},
}

// toStatus is how an error leaves a plugin.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	if f, ok := errors.AsType[*matrix.StartFailure](err); ok {
		return withDetail(codes.Aborted, err, enc{}.startFailure(*f))
	}
	if f, ok := errors.AsType[engines.FieldError](err); ok {
		return withDetail(codes.InvalidArgument, err, enc{}.fieldError(f))
	}
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			return withDetail(s.code, err, &errdetails.ErrorInfo{Reason: s.reason, Domain: domain})
		}
	}
	switch {
	case errors.Is(err, context.Canceled):
		return withDetail(codes.Canceled, err, nil)
	case errors.Is(err, context.DeadlineExceeded):
		return withDetail(codes.DeadlineExceeded, err, nil)
	}
	return withDetail(codes.Unknown, err, nil)
}

func withDetail(code codes.Code, err error, detail proto.Message) error {
	s := status.New(code, strings.ToValidUTF8(err.Error(), "\uFFFD"))
	if detail == nil {
		return s.Err()
	}
	valid(detail)
	d, derr := s.WithDetails(protoadapt.MessageV1Of(detail))
	if derr != nil {
		return s.Err()
	}
	return d.Err()
}

// remoteError keeps the words of the other side and what they mean here.
type remoteError struct {
	text string
	is   error
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.is }

// fromStatus is how an error reaches the host.
func fromStatus(err error) error {
	s, ok := status.FromError(err)
	if !ok || s.Code() == codes.OK {
		return err
	}
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *enginev1.StartFailure:
			f := dec{}.startFailure(d)
			return &f
		case *enginev1.FieldError:
			return dec{}.fieldError(d)
		case *errdetails.ErrorInfo:
			for _, x := range sentinels {
				if d.GetDomain() == domain && d.GetReason() == x.reason {
					return &remoteError{s.Message(), x.err}
				}
			}
		}
	}
	switch s.Code() {
	case codes.Canceled:
		return &remoteError{s.Message(), context.Canceled}
	case codes.DeadlineExceeded:
		return &remoteError{s.Message(), context.DeadlineExceeded}
	case codes.Unimplemented:
		return &remoteError{s.Message(), ErrNotServed}
	}
	return &remoteError{text: s.Message()}
}

// recovered answers a panic of an adapter and keeps its stack in the log.
func recovered(method string, err *error) {
	if p := recover(); p != nil {
		slog.Error("panic in "+method, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		*err = status.Errorf(codes.Internal, "the adapter panicked in %s: %s", method, strings.ToValidUTF8(fmt.Sprint(p), "\uFFFD"))
	}
}
