package daemon

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"enginebroker/broker/service"
)

const (
	// patience is how long an expensive call waits for a window to close before its caller is asked to come back. Gaps
	// between repetitions are milliseconds and legs last seconds, so that a longer wait holds a stream for nothing.
	patience = 2 * time.Second
	// retryAfter is what a caller is told to wait.
	retryAfter = time.Second
	// settle is how long a window waits for expensive work that has begun. What is left by then is named in the evidence.
	settle = 500 * time.Millisecond
)

// quiet keeps the daemon from disturbing timed windows. It lets one expensive call in at a time, and none while a window is
// open; what was answered inside a window is counted for the evidence.
type quiet struct {
	mu      sync.Mutex
	open    bool
	working string        // the expensive call that is in
	changed chan struct{} // closed and replaced at every change
	did     map[string]int
}

var _ service.Windows = (*quiet)(nil)

func newQuiet() *quiet { return &quiet{changed: make(chan struct{}), did: map[string]int{}} }

func (q *quiet) change() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// enter waits until an expensive call may be made. leave must be called when it is over.
func (q *quiet) enter(ctx context.Context, what string) (leave func(), err error) {
	t := time.NewTimer(patience)
	defer t.Stop()
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.open || q.working != "" {
		window, changed := q.open, q.changed
		q.mu.Unlock()
		var late bool
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
		q.mu.Lock()
		if late {
			return nil, err
		}
	}
	q.working = what
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.working = ""
		q.change()
	}, nil
}

// Open implements service.Windows.
func (q *quiet) Open() {
	t := time.NewTimer(settle)
	defer t.Stop()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open = true
	clear(q.did)
	for q.working != "" {
		changed := q.changed
		q.mu.Unlock()
		var late bool
		select {
		case <-changed:
		case <-t.C:
			late = true
		}
		q.mu.Lock()
		if late {
			q.did["still at work: "+q.working]++
			break
		}
	}
	q.change()
}

// Close implements service.Windows.
func (q *quiet) Close() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open = false
	q.change()
	var out []string
	for _, k := range slices.Sorted(maps.Keys(q.did)) {
		out = append(out, fmt.Sprintf("%s ×%d", k, q.did[k]))
	}
	return out
}

// note counts a call that is answered inside a window.
func (q *quiet) note(what string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open {
		q.did[what]++
	}
}

// closed waits until no window is open.
func (q *quiet) closed(ctx context.Context) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.open {
		changed := q.changed
		q.mu.Unlock()
		var err error
		select {
		case <-changed:
		case <-ctx.Done():
			err = ctx.Err()
		}
		q.mu.Lock()
		if err != nil {
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
