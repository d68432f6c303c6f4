// Package plugin is how an adapter reaches the broker: one call in its main.
//
// An adapter writes
//
//	func main() { plugin.Serve(llamacpp.New) }
//
// and implements engines.Engine. It does not see gRPC: this package serves the engine as engine.v1, carries errors and
// values across, sends what it logs through log/slog to the host, and ends the engine's server when the host is gone. The
// host's end of the same wire is Client, which is an engines.Engine again.
//
// The way of a call: Client → convert (enc) → engine.v1 → server → convert (dec) → the adapter, and back. Errors cross in
// toStatus and fromStatus alone, values in enc and dec alone.
//
// Nobody outlives its parent. The host holds the other end of the plugin's standard input for as long as it lives, and has
// the kernel send SIGTERM when it dies; on either the plugin cancels the calls in progress, stops its server and exits. An
// adapter therefore never reads standard input, and never hands its standard output or error to a server.
package plugin

import (
	"context"

	"google.golang.org/grpc"
)

// Protocol is the version this build speaks.
//
//	1: engine.v1 and telemetry.v1 over gRPC
//
// A field with presence does not change it. A package engine.v2 would be served as version 2 beside version 1; go-plugin
// agrees on the highest version both sides know.
const Protocol = 1

// Cookie is the environment variable that tells a plugin that a broker launched it, and CookieValue what it holds. It is no
// secret: it keeps a person who starts a plugin by hand from staring at a silent terminal.
const (
	Cookie      = "BROKER_PLUGIN"
	CookieValue = "engine.v1/telemetry.v1"
)

// Names of what a plugin may serve.
const (
	KindEngine    = "engine"
	KindTelemetry = "telemetry"
)

// MaxMessage bounds one message in either direction, in bytes. gRPC's own 4 MiB is too little: a prompt of a million tokens
// is some 5 MiB of text and its ids as much again. It is no larger because a broken plugin must not fill the memory of a
// broker whose budget is 64 MiB while a window is open.
const MaxMessage = 64 << 20

// ServerOptions are the options of every server of this package: message limits, and a panic of an adapter answered as an
// error, because a plugin that dies leaves its engine's server running.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(MaxMessage),
		grpc.MaxSendMsgSize(MaxMessage),
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
			defer recovered(info.FullMethod, &err)
			return next(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
			defer recovered(info.FullMethod, &err)
			return next(srv, ss)
		}),
	}
}

// DialOptions are the options of every client of this package.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessage), grpc.MaxCallSendMsgSize(MaxMessage))}
}
