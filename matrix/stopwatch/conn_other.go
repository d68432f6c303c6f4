//go:build !linux

package stopwatch

import (
	"context"
	"net"
	"time"
)

// conn is one TCP connection.
type conn struct {
	net    net.Conn
	remote string
}

func dial(ctx context.Context, address string) (*conn, error) {
	d := net.Dialer{Timeout: dialLimit, KeepAlive: -1}
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &conn{c, c.RemoteAddr().String()}, nil
}

func (c *conn) write(b []byte, deadline time.Time) error {
	_ = c.net.SetWriteDeadline(deadline) // a closed connection says so in the write
	_, err := c.net.Write(b)
	return err
}

// stale cannot be told without a read here: a request on a connection that the server closed fails.
func (c *conn) stale() bool { return false }

// shut ends what is in progress on the connection, in any goroutine.
func (c *conn) shut()        { _ = c.net.SetDeadline(time.Unix(1, 0)) }
func (c *conn) close() error { return c.net.Close() }

// reader reads in the goroutine of each request; there is no kernel stamp.
type reader struct{}

func newReader(int) (*reader, error) { return &reader{}, nil }

func (*reader) receive(i *intake) {
	for {
		_ = i.conn.net.SetReadDeadline(i.limit())
		n, err := i.conn.net.Read(i.room())
		if n > 0 {
			err = nil // it comes again
		}
		if i.took(reading{n: n, at: time.Now(), lag: -1, err: err}) {
			return
		}
	}
}

func (*reader) close() {}

func (c clock) sleepUntil(at int64, done <-chan struct{}) {
	t := time.NewTimer(time.Duration(at - c.now()))
	defer t.Stop()
	select {
	case <-t.C:
	case <-done:
	}
}
