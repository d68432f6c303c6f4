//go:build !linux

package stopwatch

import "time"

// receiver holds nothing here.
type receiver struct{}

func (c *conn) stampKernel() {}

// read waits for bytes; there is no kernel stamp.
func (c *conn) read(b []byte) reading {
	n, err := c.net.Read(b)
	return reading{n: n, at: time.Now(), lag: -1, err: err}
}

func (c *conn) receive(uintptr) bool { return true }

// stale cannot be told without a read here: a request on a connection that the server closed fails.
func (c *conn) stale() bool { return false }

func (c clock) sleepUntil(at int64, done <-chan struct{}) {
	t := time.NewTimer(time.Duration(at - c.now()))
	defer t.Stop()
	select {
	case <-t.C:
	case <-done:
	}
}
