package stopwatch

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"
)

// dialLimit bounds one connect; on loopback it takes microseconds.
const dialLimit = 10 * time.Second

// conn is one TCP connection with its receive side opened up, so that a read is stamped the moment it returns.
type conn struct {
	net  *net.TCPConn
	raw  syscall.RawConn
	wake func(fd uintptr) bool // bound once: a closure per read would allocate

	last reading // of the read in progress
	sys  receiver
}

// reading is what one read returned: how many bytes, when, how long after the kernel had them (-1: it did not say).
type reading struct {
	n   int
	at  time.Time
	lag int64
	err error
}

func dial(ctx context.Context, address string) (*conn, error) {
	d := net.Dialer{Timeout: dialLimit, KeepAlive: -1}
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return nil, errors.Join(errors.New("not a TCP connection"), c.Close())
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, tcp.Close())
	}
	k := &conn{net: tcp, raw: raw}
	k.wake = k.receive
	k.stampKernel()
	return k, nil
}

// clock turns wall and monotonic readings of this process into ns since a window's start.
type clock struct {
	anchor time.Time
	start  int64 // CLOCK_MONOTONIC at anchor
}

func newClock() clock {
	return clock{anchor: time.Now(), start: monotonic()}
}

func (c clock) at(t time.Time) int64 { return int64(t.Sub(c.anchor)) }
func (c clock) now() int64           { return int64(time.Since(c.anchor)) }
