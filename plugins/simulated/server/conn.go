package server

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// listener hands out connections that know when the kernel had what was read from them. A request begins then, and not when
// this process got round to reading it: sixty-four requests at once wait for one another here by milliseconds, which would
// stand in a client's times as if the server had been configured so.
type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return c, nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1) }) // without: when it is read
	return &conn{TCPConn: tcp, raw: raw}, nil
}

// conn is a connection with the arrival of the last bytes read.
type conn struct {
	*net.TCPConn
	raw  syscall.RawConn
	last atomic.Int64 // CLOCK_MONOTONIC ns
}

func (c *conn) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	oob := make([]byte, 64)
	var n, oobn int
	var got error
	err := c.raw.Read(func(fd uintptr) bool {
		for {
			n, oobn, _, _, got = unix.Recvmsg(int(fd), b, oob, 0)
			if got != unix.EINTR {
				return got != unix.EAGAIN
			}
		}
	})
	switch {
	case err != nil:
		return 0, err
	case got != nil:
		return 0, got
	case n == 0:
		return 0, io.EOF
	}
	at := now()
	if stamp, ok := kernelStamp(oob[:oobn]); ok {
		at -= max(0, time.Duration(time.Now().UnixNano()-stamp))
	}
	c.last.Store(int64(at))
	return n, nil
}

// kernelStamp is the receive time in the control bytes of a read, ns of CLOCK_REALTIME.
func kernelStamp(oob []byte) (int64, bool) {
	list, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return 0, false
	}
	for _, m := range list {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= int(unsafe.Sizeof(unix.Timespec{})) {
			return (*unix.Timespec)(unsafe.Pointer(&m.Data[0])).Nano(), true
		}
	}
	return 0, false
}

type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// arrived is when the kernel had the last byte of the request at hand; now where the connection cannot say.
func arrived(ctx context.Context) time.Duration {
	if c, ok := ctx.Value(connKey{}).(*conn); ok {
		if at := c.last.Load(); at > 0 {
			return time.Duration(at)
		}
	}
	return now()
}
