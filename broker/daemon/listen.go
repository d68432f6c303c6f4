package daemon

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"enginebroker/broker/service"
)

// TLS names the files of one side: its own certificate and key, and the authority that the other side's must come from.
type TLS struct{ Cert, Key, CA string }

func (t TLS) complete() bool { return t.Cert != "" && t.Key != "" && t.CA != "" }

// config reads the files. Version 1.3 alone: both sides are this program or a client of today.
func (t TLS) config() (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return nil, failf(service.CauseUsage, "", "--tls-cert, --tls-key: %w", err)
	}
	pem, err := os.ReadFile(t.CA)
	if err != nil {
		return nil, failf(service.CauseUsage, "", "--tls-ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, failf(service.CauseUsage, "", "--tls-ca: %s holds no certificate", t.CA)
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13}, nil
}

// DefaultSocket is the socket in the runtime directory of the service manager or the user.
func DefaultSocket(getenv func(string) string) string {
	if d, _, _ := strings.Cut(getenv("RUNTIME_DIRECTORY"), ":"); d != "" {
		return filepath.Join(d, "broker.sock")
	}
	dir := cmp.Or(getenv("XDG_RUNTIME_DIR"), filepath.Join(os.TempDir(), "broker-"+strconv.Itoa(os.Getuid())))
	return filepath.Join(dir, "broker", "broker.sock")
}

// maxSocketPath is what sun_path of unix(7) holds, with its final zero.
const maxSocketPath = 107

// Listen opens the address of a daemon: unix:///path, or host:port with certificates on both sides. There is no plain TCP,
// not on loopback either: every user of a machine can reach that.
func Listen(addr string, t TLS, log *zap.Logger) (net.Listener, grpc.ServerOption, error) {
	if path, ok := strings.CutPrefix(addr, "unix://"); ok {
		l, err := listenUnix(path, log)
		return l, nil, err
	}
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return nil, nil, failf(service.CauseUsage, "", "address %q: write unix:///path or host:port", addr)
	}
	if !t.complete() {
		return nil, nil, failf(service.CauseUsage, "give --tls-cert, --tls-key and --tls-ca, or listen on a unix socket", "TCP is served with certificates on both sides alone")
	}
	cfg, err := t.config()
	if err != nil {
		return nil, nil, err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, nil, failf(service.CauseUsage, "", "%w", err)
	}
	return &bounded{Listener: l, free: make(chan struct{}, maxConnections)}, grpc.Creds(credentials.NewTLS(cfg)), nil
}

func listenUnix(path string, log *zap.Logger) (net.Listener, error) {
	switch {
	case !filepath.IsAbs(path):
		return nil, failf(service.CauseUsage, "", "socket %q: write unix:///path with an absolute path", path)
	case len(path) > maxSocketPath:
		return nil, failf(service.CauseUsage, "give --listen a shorter one", "socket path %s has %d bytes, the system takes %d", path, len(path), maxSocketPath)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, failf(service.CauseUsage, "", "socket: %w", err)
	}
	// One daemon holds the lock; a socket that lies there without a holder is left from one that was killed.
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, failf(service.CauseUsage, "", "socket: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return nil, failf(service.CauseBusy, "use it with --server unix://"+path+", or end it", "a daemon serves %s already", path)
	}
	if st, err := os.Lstat(path); err == nil {
		if st.Mode()&os.ModeSocket == 0 {
			lock.Close()
			return nil, failf(service.CauseUsage, "give --listen another path", "%s is there and is no socket", path)
		}
		log.Info("a socket was left here; it is replaced", zap.String("path", path))
		if err := os.Remove(path); err != nil {
			lock.Close()
			return nil, failf(service.CauseUsage, "", "socket: %w", err)
		}
	}
	old := unix.Umask(0o177) // never a moment in which others may connect
	l, err := net.Listen("unix", path)
	unix.Umask(old)
	if err != nil {
		lock.Close()
		return nil, failf(service.CauseUsage, "", "socket: %w", err)
	}
	return &bounded{Listener: &ownUser{UnixListener: l.(*net.UnixListener), uid: os.Geteuid(), peer: peerUID, lock: lock, log: log}, free: make(chan struct{}, maxConnections)}, nil
}

// ownUser accepts processes of the daemon's user and of root; others are hung up on, even where the mode of the socket or
// of its folder was changed.
type ownUser struct {
	*net.UnixListener
	uid  int
	peer func(*net.UnixConn) (int, error) // uid of the other side
	lock *os.File
	log  *zap.Logger
}

func (l *ownUser) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		uid, err := l.peer(c)
		if err == nil && (uid == l.uid || uid == 0) {
			return c, nil
		}
		l.log.Warn("a peer was refused", zap.Int("uid", uid), zap.Error(err))
		c.Close()
	}
}

func (l *ownUser) Close() error { return errors.Join(l.UnixListener.Close(), l.lock.Close()) }

func peerUID(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	var cred *unix.Ucred
	var got error
	err = raw.Control(func(fd uintptr) { cred, got = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, got); err != nil {
		return -1, fmt.Errorf("SO_PEERCRED: %w", err)
	}
	return int(cred.Uid), nil
}

// bounded hangs up on connections for which there is no place.
type bounded struct {
	net.Listener
	free chan struct{}
}

func (l *bounded) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.free <- struct{}{}:
			return &placed{Conn: c, done: sync.OnceFunc(func() { <-l.free })}, nil
		default:
			c.Close()
		}
	}
}

type placed struct {
	net.Conn
	done func()
}

func (c *placed) Close() error {
	defer c.done()
	return c.Conn.Close()
}
