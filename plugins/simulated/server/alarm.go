package server

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// alarm wakes one request at absolute times. It is a timerfd under the runtime's poller: a Go timer on an idle process is
// up to a millisecond late, because the poller waits in milliseconds, and a spinning one would take the cores that the
// engines and the client share.
type alarm struct{ file *os.File }

// now is CLOCK_MONOTONIC, in which deadlines are given.
func now() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // the clock exists on every Linux
	}
	return time.Duration(t.Nano())
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("timerfd_create", err)
	}
	return &alarm{os.NewFile(uintptr(fd), "timerfd")}, nil
}

// wait returns at the deadline, at once where it has passed, or when ctx ends.
func (a *alarm) wait(ctx context.Context, deadline time.Duration) error {
	if err := ctx.Err(); err != nil || deadline <= now() {
		return err
	}
	raw, err := a.file.SyscallConn()
	if err != nil {
		return err
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(deadline))}
	if ctl := raw.Control(func(fd uintptr) { err = unix.TimerfdSettime(int(fd), unix.TFD_TIMER_ABSTIME, &spec, nil) }); ctl != nil || err != nil {
		return errors.Join(ctl, os.NewSyscallError("timerfd_settime", err))
	}
	// A context that ends makes the read return at once.
	stop := context.AfterFunc(ctx, func() { a.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var ticks [8]byte
	if _, err := a.file.Read(ticks[:]); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return err
	}
	if binary.NativeEndian.Uint64(ticks[:]) == 0 {
		return errors.New("timerfd: woken without a tick")
	}
	return nil
}

func (a *alarm) close() { a.file.Close() }
