package daemon

import (
	"context"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"enginebroker/broker/service"
	"enginebroker/matrix"
)

const (
	// patience is how long an expensive call waits for a window to close before its caller is asked to come back. Gaps
	// between repetitions are milliseconds and legs last seconds, so that a longer wait holds a stream for nothing.
	patience = 2 * time.Second
	// retryAfter is what a caller is told to wait.
	retryAfter = time.Second
	// settle is how long a window waits for expensive work that has begun. What is left by then is measured and named in the evidence.
	settle = 500 * time.Millisecond
)

// quiet keeps the daemon from disturbing timed windows. It lets one expensive call in at a time, and none while a window is
// open; what is done inside a window all the same is measured, and is evidence of the window.
//
// What is measured is the processor time of the threads that handle calls and code messages. Framing and TLS run on threads
// of their own, which serve the stopwatch's connections as well, and are in the process's time per event alone.
type quiet struct {
	mu      sync.Mutex
	open    bool          // a window is open, or about to be: nothing expensive may begin
	opened  time.Time     // when it was open for the stopwatch; zero otherwise
	working *work         // the expensive call that is in
	changed chan struct{} // closed and replaced at every change
	did     map[string]*matrix.DaemonWork
	inside  map[*span]struct{} // calls that are being answered and are not expensive
	cpu     func(tid int) time.Duration
}

// work is one expensive call.
type work struct{ what string }

// span is one call on a thread of its own.
type span struct {
	what string
	tid  int
	from time.Duration // processor time of the thread when the call began, or when the window opened
}

type spanKey struct{}

var _ service.Windows = (*quiet)(nil)

func newQuiet() *quiet {
	return &quiet{changed: make(chan struct{}), did: map[string]*matrix.DaemonWork{}, inside: map[*span]struct{}{}, cpu: threadCPU}
}

// threadCPU is the processor time that a thread of this process has used; 0 where it cannot be read. The clock's number is
// that of pthread_getcpuclockid(3).
func threadCPU(tid int) time.Duration {
	const perThread, scheduled = 4, 2
	var ts unix.Timespec
	if unix.ClockGettime(int32(^tid<<3|perThread|scheduled), &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

func (q *quiet) change() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// timed reports whether what is done now is done inside a window. q.mu is held.
func (q *quiet) timed() bool { return !q.opened.IsZero() }

// add counts work that was done inside the open window. q.mu is held.
func (q *quiet) add(what string, times int, busy time.Duration) {
	w := q.did[what]
	if w == nil {
		w = &matrix.DaemonWork{Request: what}
		q.did[what] = w
	}
	w.Times += times
	w.Busy += max(0, int64(busy))
}

// handle measures a call until done is called; its goroutine keeps one thread meanwhile.
func (q *quiet) handle(ctx context.Context, what string) (_ context.Context, done func()) {
	runtime.LockOSThread()
	s := &span{what: what, tid: unix.Gettid()}
	q.mu.Lock()
	defer q.mu.Unlock()
	s.from = q.cpu(s.tid)
	q.inside[s] = struct{}{}
	return context.WithValue(ctx, spanKey{}, s), func() {
		q.mu.Lock()
		q.took(s)
		delete(q.inside, s)
		q.mu.Unlock()
		runtime.UnlockOSThread()
	}
}

// took counts what a call took of the open window so far. q.mu is held.
func (q *quiet) took(s *span) {
	if _, ok := q.inside[s]; ok && q.timed() {
		now := q.cpu(s.tid)
		q.add(s.what, 0, now-s.from)
		s.from = now
	}
}

// brief measures work that never waits, where a window is open. Nothing is locked meanwhile: thousands of streams may do
// it at once.
func (q *quiet) brief(what string) (done func()) {
	if !q.measuring() {
		return func() {}
	}
	runtime.LockOSThread()
	tid := unix.Gettid()
	from := q.cpu(tid)
	return func() {
		busy := q.cpu(tid) - from
		runtime.UnlockOSThread()
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.timed() {
			q.add(what, 0, busy)
		}
	}
}

// enter waits until an expensive call may be made. leave must be called when it is over. What takes long under the context
// pauses while a window is open.
func (q *quiet) enter(ctx context.Context, what string) (_ context.Context, leave func(), err error) {
	w := &work{what}
	t := time.NewTimer(patience)
	defer t.Stop()
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.open || q.working != nil {
		window := q.open
		late := false
		q.wait(func(changed <-chan struct{}) {
			select {
			case <-changed:
			case <-ctx.Done():
				late, err = true, ctx.Err()
			case <-t.C:
				if late = window; window {
					err = &service.MeasuringError{Retry: retryAfter}
				} else {
					t.Reset(patience) // another call is in: that is no measurement, and it ends
				}
			}
		})
		if late {
			return nil, nil, err
		}
	}
	q.working = w
	if s, ok := ctx.Value(spanKey{}).(*span); ok {
		delete(q.inside, s) // from here on it counts as expensive work, by the time that it is in
	}
	leave = func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.out(w)
	}
	return service.WithPause(ctx, func(ctx context.Context) error { return q.pause(ctx, w) }), leave, nil
}

// wait lets others go on until f returns; changed is closed at the next change. q.mu is held.
func (q *quiet) wait(f func(changed <-chan struct{})) {
	changed := q.changed
	q.mu.Unlock()
	f(changed)
	q.mu.Lock()
}

// await waits for the next change, or the end of ctx. q.mu is held.
func (q *quiet) await(ctx context.Context) error {
	q.wait(func(changed <-chan struct{}) {
		select {
		case <-changed:
		case <-ctx.Done():
		}
	})
	return ctx.Err()
}

// out takes an expensive call out. q.mu is held.
func (q *quiet) out(w *work) {
	if q.working == w {
		q.left()
		q.working = nil
		q.change()
	}
}

// pause takes an expensive call out while a window is open or about to be, and in again afterwards, however long that is.
func (q *quiet) pause(ctx context.Context, w *work) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open {
		q.out(w)
	}
	for q.working != w {
		if !q.open && q.working == nil {
			q.working = w
			break
		}
		if err := q.await(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// Open implements service.Windows.
func (q *quiet) Open() {
	t := time.NewTimer(settle)
	defer t.Stop()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open = true
	clear(q.did)
	for late := false; q.working != nil && !late; {
		q.wait(func(changed <-chan struct{}) {
			select {
			case <-changed:
			case <-t.C:
				late = true
			}
		})
	}
	q.opened = time.Now()
	for s := range q.inside {
		s.from = q.cpu(s.tid)
	}
	q.change()
}

// left counts the expensive work that a window found and did not get rid of. q.mu is held.
func (q *quiet) left() {
	if q.timed() && q.working != nil {
		q.add(q.working.what, 1, time.Since(q.opened))
	}
}

// Close implements service.Windows.
func (q *quiet) Close() []matrix.DaemonWork {
	q.mu.Lock()
	defer q.mu.Unlock()
	for s := range q.inside {
		q.took(s)
	}
	q.left()
	q.open, q.opened = false, time.Time{}
	q.change()
	var out []matrix.DaemonWork
	for _, k := range slices.Sorted(maps.Keys(q.did)) {
		w := *q.did[k]
		w.Times = max(w.Times, 1) // one that had begun before
		out = append(out, w)
	}
	return out
}

// note counts a call that comes inside a window.
func (q *quiet) note(what string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.timed() {
		q.add(what, 1, 0)
	}
}

// closed waits until no window is open.
func (q *quiet) closed(ctx context.Context) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.open {
		if err := q.await(ctx); err != nil {
			return err
		}
	}
	return nil
}

// measuring reports whether a window is open.
func (q *quiet) measuring() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.open
}
