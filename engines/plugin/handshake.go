package plugin

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/emptypb"
)

// The plugin's side of go-plugin's handshake, as its guide for plugins that are not written in Go describes it. go-plugin
// itself stays in the host: linked into a plugin it brings net/rpc, which finds methods by reflection and so keeps every method
// of the program alive, and a plugin is resident beside a timed engine (docs/performance.md).

// What the host hands over in the environment.
const (
	envClientCert = "PLUGIN_CLIENT_CERT"     // PEM; the only client that may connect
	envSocketDir  = "PLUGIN_UNIX_SOCKET_DIR" // a directory of this plugin alone, for its socket
)

// coreProtocol is the version of the handshake line itself.
const coreProtocol = 1

// serve listens, says where on one line, and returns when the server has been stopped.
func (l *life) serve(svc service, stdout io.Writer) error {
	creds, leaf, err := mutualTLS(os.Getenv(envClientCert))
	if err != nil {
		return err
	}
	dir := os.Getenv(envSocketDir)
	if dir == "" {
		return fmt.Errorf("%s is empty: a broker of this release makes a directory for each plugin and names it there", envSocketDir)
	}
	listener, err := net.Listen("unix", filepath.Join(dir, "socket")) // removed when the listener closes
	if err != nil {
		return err
	}
	server := l.server(append(append(ServerOptions(), l.count()...), grpc.Creds(creds)))
	server.RegisterService(&controller, l)
	svc.register(server)
	line := fmt.Sprintf("%d|%d|unix|%s|grpc|%s\n", coreProtocol, Protocol, listener.Addr(), base64.RawStdEncoding.EncodeToString(leaf))
	if _, err := io.WriteString(stdout, line); err != nil {
		return errors.Join(err, listener.Close())
	}
	return server.Serve(listener)
}

// mutualTLS makes a certificate for this process alone and admits exactly one client. The leaf goes to that client, which
// trusts nothing else.
func mutualTLS(client string) (credentials.TransportCredentials, []byte, error) {
	admitted := x509.NewCertPool()
	if !admitted.AppendCertsFromPEM([]byte(client)) {
		return nil, nil, fmt.Errorf("%s holds no certificate: a broker of this release sends its own there", envClientCert)
	}
	key, leaf, err := certificate()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{leaf}, PrivateKey: key}},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    admitted,
		MinVersion:   tls.VersionTLS13,
	}), leaf, nil
}

// certificate does not expire: a box whose clock jumps must not lose its plugins.
func certificate() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	self := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "localhost"},
		DNSNames:              []string{"localhost"},
		NotBefore:             time.Unix(0, 0),
		NotAfter:              time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), // RFC 5280 4.1.2.5: no expiry
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	leaf, err := x509.CreateCertificate(rand.Reader, self, self, key.Public(), key)
	if err != nil {
		return nil, nil, err
	}
	return key, leaf, nil
}

// controller is go-plugin's service that ends a plugin: Shutdown takes and returns an empty message. It runs outside of the
// interceptors, so that it is no call that the end of the plugin waits for. The host also asks for go-plugin's GRPCBroker
// and GRPCStdio and goes on without them: no second connection is needed, and what a plugin prints reaches the host by
// its real standard output and error.
var controller = grpc.ServiceDesc{
	ServiceName: "plugin.GRPCController",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Shutdown", Handler: func(l any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		if err := decode(new(emptypb.Empty)); err != nil {
			return nil, err
		}
		l.(*life).stop()
		return new(emptypb.Empty), nil
	}}},
}
