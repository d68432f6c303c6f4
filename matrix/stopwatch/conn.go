package stopwatch

import "time"

// dialLimit bounds one connect; on loopback it takes microseconds.
const dialLimit = 10 * time.Second

// reading is what one read returned: how many bytes, when, how long after the kernel had them (-1: it did not say).
type reading struct {
	n   int
	at  time.Time
	lag int64
	err error // io.EOF, os.ErrDeadlineExceeded, or the connection's
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
