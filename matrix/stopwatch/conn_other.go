//go:build !linux

package stopwatch

import "time"

func (c *conn) stampKernel() {}

// read waits for bytes and returns how many came and when; without a kernel stamp the lag is -1.
func (c *conn) read(b []byte) (n int, at time.Time, lag int64, err error) {
	n, err = c.net.Read(b)
	return n, time.Now(), -1, err
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
