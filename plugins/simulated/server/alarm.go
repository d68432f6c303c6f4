package server

import (
	"container/heap"
	"context"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// alarm wakes the requests of a server at absolute times. It is one timerfd under the runtime's poller: a Go timer on an idle
// process is up to a millisecond late, because the poller waits in milliseconds, and a timer for every request costs the
// cores, which the client under test shares, more than the event that it is for.
type alarm struct {
	mu       sync.Mutex
	sleepers sleepers
	file     *os.File      // the timerfd, opened for the first sleeper
	armed    time.Duration // when it fires; 0: it does not
	awake    bool          // run is there
}

// tooNear is a wait that costs more than it spares: a timer that is armed and a thread that is woken take tens of µs.
const tooNear = 50 * time.Microsecond

// sleeper is one request that waits. Its channel is closed when its time has come.
type sleeper struct {
	at  time.Duration
	due chan struct{}
}

// sleepers is a heap, the earliest first.
type sleepers []sleeper

func (s sleepers) Len() int           { return len(s) }
func (s sleepers) Less(i, j int) bool { return s[i].at < s[j].at }
func (s sleepers) Swap(i, j int)      { s[i], s[j] = s[j], s[i] }
func (s *sleepers) Push(x any)        { *s = append(*s, x.(sleeper)) }
func (s *sleepers) Pop() any {
	last := len(*s) - 1
	x := (*s)[last]
	*s = (*s)[:last]
	return x
}

// booted is CLOCK_MONOTONIC and Go's own clock at one moment.
var booted = func() (b struct {
	at   time.Duration
	then time.Time
}) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // the clock exists on every Linux
	}
	b.at, b.then = time.Duration(t.Nano()), time.Now()
	return b
}()

// now is CLOCK_MONOTONIC, in which deadlines are given, without the system call.
func now() time.Duration { return booted.at + time.Since(booted.then) }

// wait returns at the deadline, at once where it has passed, or when ctx ends.
func (a *alarm) wait(ctx context.Context, deadline time.Duration) error {
	if err := ctx.Err(); err != nil || deadline <= now() {
		return err
	}
	s := sleeper{deadline, make(chan struct{})}
	if err := a.add(s); err != nil {
		return err
	}
	select {
	case <-s.due:
		return nil
	case <-ctx.Done():
		return ctx.Err() // its place in the heap goes when its time comes
	}
}

func (a *alarm) add(s sleeper) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.file == nil {
		fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
		if err != nil {
			return os.NewSyscallError("timerfd_create", err)
		}
		a.file = os.NewFile(uintptr(fd), "timerfd")
	}
	heap.Push(&a.sleepers, s)
	if !a.awake {
		a.awake = true
		go a.run()
	} else if a.armed > s.at {
		return a.arm(s.at)
	}
	return nil
}

// arm sets the timer.
func (a *alarm) arm(at time.Duration) error {
	raw, err := a.file.SyscallConn()
	if err != nil {
		return err
	}
	a.armed = at
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(at))}
	var set error
	if err := raw.Control(func(fd uintptr) { set = unix.TimerfdSettime(int(fd), unix.TFD_TIMER_ABSTIME, &spec, nil) }); err != nil {
		return err
	}
	return os.NewSyscallError("timerfd_settime", set)
}

// run wakes the sleepers until there are none.
func (a *alarm) run() {
	for {
		left, ok := a.wake()
		switch {
		case !ok:
			return
		case left < tooNear:
			runtime.Gosched() // those that were woken write meanwhile
		default:
			var ticks [8]byte
			if _, err := a.file.Read(ticks[:]); err != nil {
				panic(err) // nobody closes the timer while somebody sleeps
			}
		}
	}
}

// wake wakes those whose time has come. It returns how long the next one has, with the timer armed where that is worth it,
// and false where there is none.
func (a *alarm) wake() (time.Duration, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.armed = 0
	for len(a.sleepers) > 0 {
		left := a.sleepers[0].at - now()
		if left <= 0 {
			close(heap.Pop(&a.sleepers).(sleeper).due)
			continue
		}
		if left >= tooNear {
			if err := a.arm(a.sleepers[0].at); err != nil {
				panic(err) // a timer that was created can be set
			}
		}
		return left, true
	}
	a.awake = false
	return 0, false
}
