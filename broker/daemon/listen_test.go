package daemon

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"enginebroker/broker/service"
)

// authority makes certificates for tests.
type authority struct {
	dir, name string
	key       *ecdsa.PrivateKey
	cert      *x509.Certificate
}

func newAuthority(t *testing.T, name string) *authority {
	a := &authority{dir: t.TempDir(), name: name}
	a.key, a.cert = a.make(t, name, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, time.Hour)
	return a
}

func (a *authority) make(t *testing.T, name string, c *x509.Certificate, valid time.Duration) (*ecdsa.PrivateKey, *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.SerialNumber, c.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(valid)
	parent, signer := c, key
	if a.cert != nil {
		parent, signer = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for ext, b := range map[string]*pem.Block{".pem": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "PRIVATE KEY", Bytes: raw}} {
		if err := os.WriteFile(filepath.Join(a.dir, name+ext), pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return key, cert
}

// side is the files of one side of a connection.
func (a *authority) side(t *testing.T, name string, valid time.Duration) TLS {
	a.make(t, name, &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}, valid)
	return TLS{Cert: filepath.Join(a.dir, name+".pem"), Key: filepath.Join(a.dir, name+".key"), CA: filepath.Join(a.dir, a.name+".pem")}
}

func TestCertificatesOnBothSides(t *testing.T) {
	lab, other := newAuthority(t, "lab"), newAuthority(t, "other")
	l, creds, err := Listen("127.0.0.1:0", lab.side(t, "server", time.Hour), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Serve(ctx, newFake(t), Options{Listener: l, Creds: creds, Log: zaptest.NewLogger(t)})
	}()
	defer func() { cancel(); <-done }()
	good := lab.side(t, "client", time.Hour)
	expired := lab.side(t, "late", -time.Hour)
	foreign := other.side(t, "stranger", time.Hour)
	foreign.CA = good.CA
	wrongCA := good
	wrongCA.CA = filepath.Join(other.dir, "other.pem")
	for name, x := range map[string]struct {
		tls TLS
		ok  bool
	}{"good": {good, true}, "expired": {expired, false}, "foreign": {foreign, false}, "wrong CA for the server": {wrongCA, false}} {
		c, err := Dial(l.Addr().String(), x.tls)
		if err != nil {
			t.Fatal(err)
		}
		cctx, stop := context.WithTimeout(ctx, 5*time.Second)
		_, err = c.ListModels(cctx)
		if (err == nil) != x.ok {
			t.Errorf("%s: %v", name, err)
		}
		stop()
		c.Close()
	}
	if _, err := Dial(l.Addr().String(), TLS{}); cause(err) != service.CauseUsage {
		t.Errorf("no certificate: %v", err)
	}
	// Plain HTTP/2 is hung up on.
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
	conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	buf := make([]byte, 64)
	if n, err := conn.Read(buf); err == nil && strings.HasPrefix(string(buf[:n]), "HTTP") {
		t.Errorf("plain TCP is answered: %q", buf[:n])
	}
}

func cause(err error) service.Cause {
	if e, ok := errors.AsType[*service.Error](err); ok {
		return e.Cause
	}
	return ""
}

func TestListenRefuses(t *testing.T) {
	dir := t.TempDir()
	log := zaptest.NewLogger(t)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[string]string{
		"127.0.0.1:0":       "certificates",
		"somewhere":         "unix:///path or host:port",
		"unix://relative":   "absolute",
		"unix://" + file:    "no socket",
		"unix:///proc/1/x/": "",
		"unix://" + dir + "/" + strings.Repeat("x", 120): "bytes",
	} {
		l, _, err := Listen(addr, TLS{}, log)
		if err == nil {
			l.Close()
			t.Errorf("%s is served", addr)
		} else if cause(err) != service.CauseUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", addr, err)
		}
	}
}

func TestSocketsOfOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "b.sock")
	log := zaptest.NewLogger(t)
	l, _, err := Listen("unix://"+path, TLS{}, log)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if _, _, err := Listen("unix://"+path, TLS{}, log); cause(err) != service.CauseBusy || !strings.Contains(err.Error(), fmt.Sprintf("%s already (PID %d)", path, os.Getpid())) {
		t.Errorf("a second daemon: %v", err)
	}
	// A daemon that was killed leaves its socket and nobody who holds the lock.
	l.(*bounded).Listener.(*ownUser).UnixListener.SetUnlinkOnClose(false)
	l.Close()
	if _, err := os.Stat(path); err != nil {
		t.Fatal("the test leaves no stale socket")
	}
	l, _, err = Listen("unix://"+path, TLS{}, log)
	if err != nil {
		t.Fatalf("a stale socket: %v", err)
	}
	l.Close()
}

// A socket that somebody answers is not taken away from him, whatever he speaks.
func TestSocketsThatAreAnswered(t *testing.T) {
	dir := t.TempDir()
	stream, err := net.Listen("unix", filepath.Join(dir, "stream"))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	packets, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "packets"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer packets.Close()
	for _, name := range []string{"stream", "packets"} {
		path := filepath.Join(dir, name)
		for range 2 { // the lock is given back
			if _, _, err := Listen("unix://"+path, TLS{}, zaptest.NewLogger(t)); cause(err) != service.CauseBusy || !strings.Contains(err.Error(), "another program listens on "+path) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
	}
	// A lock is no way to another file.
	file := filepath.Join(dir, "file")
	if err := errors.Join(os.WriteFile(file, []byte("mine"), 0o600), os.Symlink(file, filepath.Join(dir, "b.sock.lock"))); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Listen("unix://"+filepath.Join(dir, "b.sock"), TLS{}, zaptest.NewLogger(t)); cause(err) != service.CauseUsage {
		t.Errorf("a link: %v", err)
	}
	if data, err := os.ReadFile(file); string(data) != "mine" {
		t.Errorf("the file behind it is %q, %v", data, err)
	}
}

func TestPrivateFolder(t *testing.T) {
	for name, x := range map[string]struct {
		parent, dir fs.FileMode
		want        string
	}{
		"ours alone":         {0o700, 0o700, ""},
		"under all's":        {0o777 | fs.ModeSticky, 0o700, ""},
		"read by others":     {0o700, 0o755, "chmod 700"},
		"under one of all's": {0o777, 0o700, "XDG_RUNTIME_DIR"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "p", "broker")
			if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(filepath.Dir(dir), x.parent), os.Chmod(dir, x.dir)); err != nil {
				t.Fatal(err)
			}
			err := PrivateFolder(filepath.Join(dir, "broker.sock"))
			if x.want == "" && err != nil || x.want != "" && (cause(err) != service.CauseUsage || !strings.Contains(err.Error(), x.want)) {
				t.Errorf("error %v", err)
			}
		})
	}
	if os.Geteuid() != 0 {
		return
	}
	dir := filepath.Join(t.TempDir(), "broker")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, 12345, -1)); err != nil {
		t.Fatal(err)
	}
	if err := PrivateFolder(filepath.Join(dir, "broker.sock")); cause(err) != service.CauseUsage || !strings.Contains(err.Error(), "user 12345") {
		t.Errorf("another user's: %v", err)
	}
}

// Another user is hung up on, even where the socket can be reached.
func TestOtherUsers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "b.sock")
	l, _, err := Listen("unix://"+path, TLS{}, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	own := l.(*bounded).Listener.(*ownUser)
	own.peer = func(*net.UnixConn) (int, error) { return os.Geteuid() + 1, nil }
	done := make(chan error)
	go func() {
		_, err := l.Accept()
		done <- err
	}()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read: %v", err)
	}
	l.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept: %v", err)
	}
}

func TestPeerUID(t *testing.T) {
	path := filepath.Join(t.TempDir(), "b.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if uid, err := peerUID(s); err != nil || uid != os.Geteuid() {
		t.Errorf("uid %d, %v", uid, err)
	}
}

func TestNotify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n.sock")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	env := func(string) string { return path }
	if err := Notify(env, "READY=1", "STATUS=no run"); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	n, err := l.Read(buf)
	if err != nil || string(buf[:n]) != "READY=1\nSTATUS=no run" {
		t.Errorf("%q, %v", buf[:n], err)
	}
	if err := Notify(func(string) string { return "" }, "READY=1"); err != nil {
		t.Errorf("without a manager: %v", err)
	}
}

func TestDefaultSocket(t *testing.T) {
	for env, want := range map[string]string{"RUNTIME_DIRECTORY": "/run/broker/broker.sock", "XDG_RUNTIME_DIR": "/run/broker/broker/broker.sock"} {
		if got := DefaultSocket(func(k string) string {
			if k == env {
				return "/run/broker"
			}
			return ""
		}); got != want {
			t.Errorf("%s: %s, want %s", env, got, want)
		}
	}
}
