package stopwatch

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// tick is how often limits are looked at: the shortest limits of a point are seconds.
const tick = 50 * time.Millisecond

// reader waits for the answers of all connections of a pass in one thread. A goroutine per connection under the runtime's
// poller costs a wake of a goroutine, and often of a thread, for every event, which at hundreds of streams is more than the
// reading, and the tokens wait meanwhile.
type reader struct {
	epoll, bell int // bell rings at the end
	mu          sync.Mutex
	intakes     map[int32]*intake // by descriptor
	ended       bool
	done        chan struct{}
}

func newReader(connections int) (*reader, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(epoll)
		return nil, os.NewSyscallError("eventfd", err)
	}
	r := &reader{epoll: epoll, bell: bell, intakes: make(map[int32]*intake, connections), done: make(chan struct{})}
	if err := r.watch(bell); err != nil {
		_, _ = unix.Close(bell), unix.Close(epoll)
		return nil, err
	}
	go r.run()
	return r, nil
}

func (r *reader) watch(fd int) error {
	e := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(r.epoll, unix.EPOLL_CTL_ADD, fd, &e))
}

// receive returns when the answer has ended.
func (r *reader) receive(i *intake) {
	r.mu.Lock()
	r.intakes[int32(i.conn.fd)] = i
	r.mu.Unlock()
	if err := r.watch(i.conn.fd); err != nil {
		r.mu.Lock()
		delete(r.intakes, int32(i.conn.fd))
		r.mu.Unlock()
		i.took(reading{at: time.Now(), lag: -1, err: err})
		return
	}
	<-i.ended
}

// close ends the reader. Nobody receives any more.
func (r *reader) close() {
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
	_, _ = unix.Write(r.bell, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	<-r.done
	_, _ = unix.Close(r.bell), unix.Close(r.epoll)
}

func (r *reader) run() {
	defer close(r.done)
	events := make([]unix.EpollEvent, 256)
	looked := time.Now()
	for {
		n, err := unix.EpollWait(r.epoll, events, int(tick/time.Millisecond))
		if err != nil && err != unix.EINTR {
			panic(fmt.Errorf("epoll_wait: %w", err)) // its descriptor is open as long as this runs
		}
		ended := false
		for _, e := range events[:max(0, n)] {
			ended = r.ready(e.Fd) || ended
		}
		if ended {
			runtime.Gosched() // the next request is sent from this thread: waking another for it would be its lateness
		}
		r.mu.Lock()
		ended = r.ended
		r.mu.Unlock()
		if ended {
			return
		}
		if now := time.Now(); now.Sub(looked) >= tick {
			looked = now
			r.expire(now)
		}
	}
}

// ready reads once: what is left makes the descriptor ready again, after the others had their turn. It reports that an answer
// has ended.
func (r *reader) ready(fd int32) bool {
	r.mu.Lock()
	i := r.intakes[fd]
	r.mu.Unlock()
	if i == nil {
		return false // the bell
	}
	got, ok := i.conn.read(i.room())
	if !ok || !i.took(got) {
		return false
	}
	r.forget(i)
	return true
}

// expire ends those whose limit has passed.
func (r *reader) expire(now time.Time) {
	r.mu.Lock()
	var late []*intake
	for _, i := range r.intakes {
		if !now.Before(i.limit()) {
			late = append(late, i)
		}
	}
	r.mu.Unlock()
	for _, i := range late {
		i.took(reading{at: now, lag: -1, err: os.ErrDeadlineExceeded})
		r.forget(i)
	}
}

// forget lets the receiver go on.
func (r *reader) forget(i *intake) {
	_ = unix.EpollCtl(r.epoll, unix.EPOLL_CTL_DEL, i.conn.fd, nil)
	r.mu.Lock()
	delete(r.intakes, int32(i.conn.fd))
	r.mu.Unlock()
	close(i.ended)
}
