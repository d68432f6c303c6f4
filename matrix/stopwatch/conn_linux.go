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

// read waits for bytes and returns how many came, when the read returned, and how long after the kernel had them; -1 where
// it did not say. For TCP the kernel's stamp is that of the last segment merged into the read.
func (c *conn) read(b []byte) (n int, at time.Time, lag int64, err error) {
	c.buf = b
	err = c.raw.Read(c.wake)
	c.buf = nil
	if err != nil {
		return 0, time.Now(), -1, err
	}
	return c.n, c.at, c.lag, c.err
}

func (c *conn) receive(fd uintptr) bool {
	for {
		n, oobn, _, _, err := unix.Recvmsg(int(fd), c.buf, c.oob[:], 0)
		switch err {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return false
		}
		c.at = time.Now()
		c.n, c.lag, c.err = max(n, 0), -1, err
		if err == nil && n == 0 {
			c.err = io.EOF
		}
		if stamp := kernelStamp(c.oob[:max(oobn, 0)]); stamp > 0 {
			c.lag = max(0, c.at.UnixNano()-stamp)
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
		_, _, err := unix.Recvfrom(int(fd), c.oob[:1], unix.MSG_PEEK|unix.MSG_DONTWAIT)
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
