package host

import (
	"context"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"enginebroker/engines/plugin"
)

var handshake = goplugin.HandshakeConfig{MagicCookieKey: plugin.Cookie, MagicCookieValue: plugin.CookieValue}

// clientPlugins is what this host can speak, by protocol version. Dispensing KindEngine gives a *plugin.Client,
// KindTelemetry a *plugin.TelemetryClient.
func clientPlugins() map[int]goplugin.PluginSet {
	return map[int]goplugin.PluginSet{plugin.Protocol: {plugin.KindEngine: glue{kind: plugin.KindEngine}, plugin.KindTelemetry: glue{kind: plugin.KindTelemetry}}}
}

// glue is a plugin in go-plugin's sense, seen from the host.
type glue struct {
	goplugin.NetRPCUnsupportedPlugin
	kind string
}

var _ goplugin.GRPCPlugin = glue{}

// GRPCServer is not called: a plugin serves by engines/plugin.
func (glue) GRPCServer(*goplugin.GRPCBroker, *grpc.Server) error { return nil }

// GRPCClient implements goplugin.GRPCPlugin; exited ends once the process has been seen to end.
func (g glue) GRPCClient(exited context.Context, _ *goplugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	if g.kind == plugin.KindTelemetry {
		return plugin.NewTelemetryClient(conn, exited), nil
	}
	return plugin.NewClient(conn, exited), nil
}
