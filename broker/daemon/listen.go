package daemon

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"enginebroker/broker/service"
	"enginebroker/matrix/regular"
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
	lock, held, err := lockFile(path + ".lock")
	switch {
	case held:
		return nil, failf(service.CauseBusy, "use it with --server unix://"+path+", or end it", "a daemon serves %s already%s", path, holder(path+".lock"))
	case err != nil:
		return nil, failf(service.CauseUsage, "", "socket: %w", err)
	}
	if err := vacate(path, log); err != nil {
		lock.Close()
		return nil, err
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

// vacate removes the socket that a killed daemon left. One that somebody answers is another program's, whatever its lock says.
func vacate(path string, log *zap.Logger) error {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return failf(service.CauseUsage, "", "socket: %w", err)
	case st.Mode()&os.ModeSocket == 0:
		return failf(service.CauseUsage, "give --listen another path", "%s is there and is no socket", path)
	}
	c, err := net.DialTimeout("unix", path, handshakeLimit)
	if err == nil {
		c.Close()
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return failf(service.CauseBusy, "end it, or give --listen another path", "another program listens on %s", path)
	}
	log.Info("a socket was left here; it is replaced", zap.String("path", path))
	if err := os.Remove(path); err != nil {
		return failf(service.CauseUsage, "", "socket: %w", err)
	}
	return nil
}

// PrivateFolder makes the folder of the default socket. One in which another user could put a socket of his own is refused:
// whoever asks the daemon there would ask him.
func PrivateFolder(path string) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return failf(service.CauseUsage, "give --listen a path", "runtime folder: %w", err)
	}
	for _, x := range []struct {
		path    string
		refused func(owner int, mode fs.FileMode) bool
		fix     string
	}{
		{dir, func(owner int, mode fs.FileMode) bool { return owner != os.Geteuid() || mode.Perm()&0o077 != 0 }, "make it yours alone (chmod 700 " + dir + ")"},
		{filepath.Dir(dir), func(owner int, mode fs.FileMode) bool {
			return owner != os.Geteuid() && owner != 0 || mode.Perm()&0o022 != 0 && mode&fs.ModeSticky == 0
		}, "set XDG_RUNTIME_DIR to a folder that is yours alone"},
	} {
		st, err := os.Lstat(x.path)
		if err != nil {
			return failf(service.CauseUsage, "give --listen a path", "runtime folder: %w", err)
		}
		owner := int(st.Sys().(*syscall.Stat_t).Uid)
		if !st.IsDir() || x.refused(owner, st.Mode()) {
			return failf(service.CauseUsage, x.fix+", or give --listen a path", "runtime folder %s is of user %d with mode %v: others could serve in your place", x.path, owner, st.Mode())
		}
	}
	return nil
}

// lockFile holds a file for this process, until it is closed or the process ends; held: another one does. The file names its
// holder; where there is no room for that it holds all the same.
func lockFile(path string) (l *os.File, held bool, err error) {
	if l, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0o600); err != nil {
		return nil, false, err
	}
	if err = unix.Flock(int(l.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		l.Close()
		return nil, errors.Is(err, unix.EWOULDBLOCK), fmt.Errorf("%s: %w", path, err)
	}
	if l.Truncate(0) == nil {
		_, _ = fmt.Fprintln(l, os.Getpid())
	}
	return l, false, nil
}

// holder names the process that holds a file, for a message; nothing where the file does not say.
func holder(path string) string {
	data, err := regular.ReadFile(path, 64)
	pid, bad := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || bad != nil {
		return ""
	}
	return fmt.Sprintf(" (PID %d)", pid)
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
