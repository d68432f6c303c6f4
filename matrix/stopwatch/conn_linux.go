package stopwatch

import (
	"io"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// stampKernel asks for the kernel's receive time of every read. Where the kernel refuses, lags are absent.
func (c *conn) stampKernel() {
	_ = c.raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1) })
}

// receiver is the message of the receive call. It lives as long as the connection: unix.Recvmsg would allocate one a read.
type receiver struct {
	msg unix.Msghdr
	iov unix.Iovec
	oob [128]byte
}

// read waits for bytes. For TCP the kernel's stamp is that of the last segment merged into the read.
func (c *conn) read(b []byte) reading {
	r := &c.sys
	r.iov.Base = &b[0]
	r.iov.SetLen(len(b))
	err := c.raw.Read(c.wake)
	r.iov.Base = nil
	if err != nil {
		return reading{at: time.Now(), lag: -1, err: err}
	}
	return c.last
}

func (c *conn) receive(fd uintptr) bool {
	r := &c.sys
	for {
		r.msg.Iov, r.msg.Control, r.msg.Flags = &r.iov, &r.oob[0], 0
		r.msg.SetIovlen(1)
		r.msg.SetControllen(len(r.oob))
		n, _, errno := unix.Syscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&r.msg)), 0)
		at := time.Now()
		switch {
		case errno == unix.EINTR:
			continue
		case errno == unix.EAGAIN:
			return false
		case errno != 0:
			c.last = reading{at: at, lag: -1, err: errno}
			return true
		}
		c.last = reading{n: int(n), at: at, lag: -1}
		if n == 0 {
			c.last.err = io.EOF
		}
		if stamp := kernelStamp(r.oob[:r.msg.Controllen]); stamp > 0 {
			c.last.lag = max(0, at.UnixNano()-stamp)
		}
		return true
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
	gone := true
	_ = c.raw.Control(func(fd uintptr) {
		_, _, err := unix.Recvfrom(int(fd), c.sys.oob[:1], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		gone = err != unix.EAGAIN
	})
	return gone
}

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
