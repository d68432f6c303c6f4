package stopwatch

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// conn is one TCP connection, taken out of the runtime's poller: the reader waits for all of them in one place.
type conn struct {
	fd     int
	remote string
	sys    receiver
}

// receiver is the message of the receive call. It lives as long as the connection: unix.Recvmsg would allocate one a read.
type receiver struct {
	msg unix.Msghdr
	iov unix.Iovec
	oob [128]byte
}

// dial connects to an address in numbers and asks for the kernel's receive time of every read. Where the kernel refuses, lags
// are absent. It does without net, whose connections cost a wait for the runtime's poller: a request's connection is opened
// inside the window, and what that takes is lateness of the client.
func dial(ctx context.Context, address string) (*conn, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	fail := func(call string, err error) error {
		return &net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(to), Err: os.NewSyscallError(call, err)}
	}
	family, at := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
	if to.Addr().Is6() {
		family, at = unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fail("socket", err)
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
	if err = unix.Connect(fd, at); errors.Is(err, unix.EINPROGRESS) || errors.Is(err, unix.EINTR) {
		err = connected(ctx, fd)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fail("connect", err)
	}
	return &conn{fd: fd, remote: address}, nil
}

// connected waits until a connect has ended.
func connected(ctx context.Context, fd int) error {
	for end := time.Now().Add(dialLimit); time.Now().Before(end); {
		ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		n, err := unix.Poll(ready, int(tick/time.Millisecond))
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && err != unix.EINTR:
			return err
		case n > 0:
			code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
			if err != nil || code == 0 {
				return err
			}
			return unix.Errno(code)
		}
	}
	return unix.ETIMEDOUT
}

// write sends all of b, or fails with os.ErrDeadlineExceeded.
func (c *conn) write(b []byte, deadline time.Time) error {
	for len(b) > 0 {
		n, err := unix.SendmsgN(c.fd, b, nil, nil, unix.MSG_NOSIGNAL)
		switch {
		case err == nil:
			b = b[n:]
		case err == unix.EAGAIN:
			left := time.Until(deadline)
			if left <= 0 {
				return os.ErrDeadlineExceeded
			}
			ready := []unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLOUT}}
			if _, err := unix.Poll(ready, int(min(left, tick)/time.Millisecond)+1); err != nil && err != unix.EINTR {
				return os.NewSyscallError("poll", err)
			}
		case err != unix.EINTR:
			return err
		}
	}
	return nil
}

// read takes what the kernel has. For TCP its stamp is that of the last segment merged into the read. false: there is nothing.
func (c *conn) read(b []byte) (reading, bool) {
	r := &c.sys
	r.iov.Base = &b[0]
	r.iov.SetLen(len(b))
	defer func() { r.iov.Base = nil }()
	for {
		r.msg.Iov, r.msg.Control, r.msg.Flags = &r.iov, &r.oob[0], 0
		r.msg.SetIovlen(1)
		r.msg.SetControllen(len(r.oob))
		n, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(c.fd), uintptr(unsafe.Pointer(&r.msg)), unix.MSG_DONTWAIT)
		got := reading{n: int(n), at: time.Now(), lag: -1}
		switch {
		case errno == unix.EINTR:
			continue
		case errno == unix.EAGAIN:
			return got, false
		case errno != 0:
			got.n, got.err = 0, errno
			return got, true
		case n == 0:
			got.err = io.EOF
		}
		if stamp := kernelStamp(r.oob[:r.msg.Controllen]); stamp > 0 {
			got.lag = max(0, got.at.UnixNano()-stamp)
		}
		return got, true
	}
}

// kernelStamp finds the SCM_TIMESTAMPNS message in the control bytes of a read: ns of CLOCK_REALTIME, 0 where there is none.
func kernelStamp(oob []byte) int64 {
	for len(oob) >= unix.CmsgLen(0) {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&oob[0]))
		size := int(h.Len)
		if size < unix.CmsgLen(0) || size > len(oob) {
			return 0
		}
		if h.Level == unix.SOL_SOCKET && h.Type == unix.SCM_TIMESTAMPNS && size >= unix.CmsgLen(int(unsafe.Sizeof(unix.Timespec{}))) {
			return (*unix.Timespec)(unsafe.Pointer(&oob[unix.CmsgLen(0)])).Nano()
		}
		oob = oob[min(len(oob), unix.CmsgSpace(size-unix.CmsgLen(0))):]
	}
	return 0
}

// stale reports that the server closed an idle connection, or sent what nobody asked for.
func (c *conn) stale() bool {
	_, _, err := unix.Recvfrom(c.fd, c.sys.oob[:1], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return err != unix.EAGAIN
}

// shut ends what is in progress on the connection, in any goroutine; close frees it.
func (c *conn) shut()        { _ = unix.Shutdown(c.fd, unix.SHUT_RDWR) }
func (c *conn) close() error { return os.NewSyscallError("close", unix.Close(c.fd)) }

// sleepUntil sleeps to within tens of microseconds; Go's own timers are up to a millisecond late, as its poller waits in
// milliseconds. It holds its thread, and returns early where done closes.
func (c clock) sleepUntil(at int64, done <-chan struct{}) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for {
		left := at - c.now()
		select {
		case <-done:
			return
		default:
		}
		if left <= 0 {
			return
		}
		ts := unix.NsecToTimespec(min(left, int64(10*time.Millisecond)))
		_ = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &ts, nil) // cut short by a signal: the loop goes on
	}
}
