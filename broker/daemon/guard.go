package daemon

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"runtime/debug"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"enginebroker/broker/service"
)

// guard stands before every call: it bounds how many there are, refuses what it does not understand, turns errors into
// statuses, and writes one line about each.
type guard struct {
	log      *zap.Logger
	quiet    *quiet
	m        *metrics
	calls    atomic.Int64
	watchers atomic.Int64
}

func newGuard(log *zap.Logger, q *quiet, m *metrics) *guard { return &guard{log: log, quiet: q, m: m} }

func (g *guard) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
	began := time.Now()
	g.quiet.note(path.Base(info.FullMethod))
	defer func() { err = g.done(ctx, info.FullMethod, began, err, recover()) }()
	if g.calls.Add(1) > maxCalls {
		g.calls.Add(-1)
		return nil, service.Exhausted("%d calls are being answered already", maxCalls)
	}
	defer g.calls.Add(-1)
	ctx, over := g.quiet.handle(ctx, path.Base(info.FullMethod))
	defer over()
	if err := known(req); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return next(ctx, req)
}

func (g *guard) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	began := time.Now()
	g.quiet.note(path.Base(info.FullMethod))
	defer func() { err = g.done(ss.Context(), info.FullMethod, began, err, recover()) }()
	if g.watchers.Add(1) > maxWatchers {
		g.watchers.Add(-1)
		return service.Exhausted("%d streams are open already", maxWatchers)
	}
	g.m.opened.Inc()
	defer func() { g.watchers.Add(-1); g.m.opened.Dec() }()
	return next(srv, &checkedStream{ss})
}

// checkedStream looks at what a stream is asked.
type checkedStream struct{ grpc.ServerStream }

func (s *checkedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return known(m)
}

func (g *guard) done(ctx context.Context, method string, began time.Time, err error, panicked any) error {
	if panicked != nil {
		g.log.Error("panic in a call", zap.String("method", method), zap.Any("panic", panicked), zap.ByteString("stack", debug.Stack()))
		err = fmt.Errorf("a fault in %s; the log of the daemon has it", path.Base(method))
	}
	st := service.StatusOf(err)
	g.m.calls.WithLabelValues(path.Base(method), st.Code().String()).Inc()
	who := ""
	if p, ok := peer.FromContext(ctx); ok && p.AuthInfo != nil {
		who = p.AuthInfo.AuthType()
	}
	g.log.Debug("call", zap.String("method", path.Base(method)), zap.Stringer("code", st.Code()), zap.Duration("took", time.Since(began)), zap.String("auth", who), zap.String("message", st.Message()))
	return st.Err()
}

// known refuses a request with a field that this program does not know: to pass over it would be to do something else than
// what was asked. A text that is too long is refused with it: an answer repeats what it refuses in its trailers, of which
// clients take some kilobytes.
func known(req any) error {
	m, ok := req.(proto.Message)
	if !ok {
		return nil
	}
	if bytes.Equal(m.ProtoReflect().GetUnknown(), unreadable) {
		return refuseUnreadable()
	}
	var bad service.FieldErrors
	unknown(m.ProtoReflect(), "", &bad)
	if len(bad) == 0 {
		return nil
	}
	return bad.Err()
}

func unknown(m protoreflect.Message, at string, bad *service.FieldErrors) {
	if len(m.GetUnknown()) > 0 {
		num, _, _ := protowire.ConsumeTag(m.GetUnknown())
		*bad = append(*bad, service.FieldError{Field: join(at, fmt.Sprint(num)), Message: "no such field in " + string(m.Descriptor().FullName())})
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		name := join(at, string(fd.Name()))
		switch {
		case fd.Kind() == protoreflect.EnumKind:
			each(fd, v, name, func(v protoreflect.Value, at string) {
				if fd.Enum().Values().ByNumber(v.Enum()) == nil {
					*bad = append(*bad, service.FieldError{Field: at, Message: fmt.Sprintf("%d is no %s", v.Enum(), fd.Enum().Name())})
				}
			})
		case fd.Kind() == protoreflect.StringKind:
			each(fd, v, name, func(v protoreflect.Value, at string) {
				if n := len(v.String()); n > maxTextBytes {
					*bad = append(*bad, service.FieldError{Field: at, Message: fmt.Sprintf("%d bytes; at most %d", n, maxTextBytes)})
				}
			})
		case fd.Message() == nil || fd.IsMap():
		case fd.IsList():
			for i := range v.List().Len() {
				unknown(v.List().Get(i).Message(), fmt.Sprintf("%s[%d]", name, i), bad)
			}
		default:
			unknown(v.Message(), name, bad)
		}
		return len(*bad) < 20
	})
}

// each looks at the value of a field, or at every one of a list.
func each(fd protoreflect.FieldDescriptor, v protoreflect.Value, name string, look func(v protoreflect.Value, at string)) {
	if !fd.IsList() {
		look(v, name)
		return
	}
	for i := range v.List().Len() {
		look(v.List().Get(i), fmt.Sprintf("%s[%d]", name, i))
	}
}

func join(at, name string) string {
	if at == "" {
		return name
	}
	return at + "." + name
}
