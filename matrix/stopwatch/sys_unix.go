//go:build unix

package stopwatch

import "golang.org/x/sys/unix"

// monotonic is CLOCK_MONOTONIC in ns, which the processes of one machine share; Go's own monotonic reading never leaves one.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return ts.Nano()
}

// processCPU is user plus system time of this process in ns; -1 where it cannot be read.
func processCPU() int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return -1
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
