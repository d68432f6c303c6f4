package daemon

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"enginebroker/broker/service"
	"enginebroker/matrix"
)

func TestExpensiveCallsWaitForTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuiet()
		q.Open()
		go func() { time.Sleep(time.Second); q.Close() }()
		began := time.Now()
		_, leave, err := q.enter(t.Context(), "x")
		if err != nil || time.Since(began) != time.Second {
			t.Fatalf("let in after %v: %v", time.Since(began), err)
		}
		leave()
	})
}

func TestLongWindowsAreRefusedWithARetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuiet()
		q.Open()
		began := time.Now()
		_, _, err := q.enter(t.Context(), "x")
		if m, ok := errors.AsType[*service.MeasuringError](err); !ok || m.Retry != retryAfter || time.Since(began) != patience {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if got := reason(service.StatusOf(err).Err()); got != "Unavailable MEASURING" {
			t.Errorf("status %s", got)
		}
	})
}

// did is what a window tells, in one line.
func did(list []matrix.DaemonWork) string {
	var out []string
	for _, w := range list {
		out = append(out, fmt.Sprintf("%s ×%d %v", w.Request, w.Times, time.Duration(w.Busy)))
	}
	return strings.Join(out, ", ")
}

// Work that takes longer than the time between two windows leaves while one is open: no window waits for it, and none has it
// inside.
func TestLongWorkPausesWhileAWindowIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuiet()
		ctx, leave, err := q.enter(t.Context(), "InspectArtifact")
		if err != nil {
			t.Fatal(err)
		}
		read, done, other := 0, make(chan error, 1), make(chan error, 1)
		go func() {
			defer leave()
			for ; read < 1000; read++ {
				if err := service.Pause(ctx); err != nil {
					done <- err
					return
				}
				time.Sleep(time.Millisecond)
			}
			done <- nil
		}()
		for range 5 {
			time.Sleep(100*time.Millisecond + time.Microsecond)
			began := time.Now()
			q.Open()
			if d := time.Since(began); d > time.Millisecond {
				t.Errorf("a window waited %v", d)
			}
			before := read
			time.Sleep(time.Minute)
			inside := read - before
			if got := did(q.Close()); got != "" || inside != 0 {
				t.Errorf("did %s, %d chunks", got, inside)
			}
		}
		// Another call takes the time in which it is out, and is waited for.
		time.Sleep(time.Microsecond)
		q.Open()
		go func() {
			_, leave, err := q.enter(t.Context(), "GetReport")
			if err == nil {
				time.Sleep(10 * time.Millisecond)
				leave()
			}
			other <- err
		}()
		time.Sleep(time.Second)
		q.Close()
		if err := <-done; err != nil || read != 1000 {
			t.Errorf("%d chunks, %v", read, err)
		}
		if err := <-other; err != nil {
			t.Error(err)
		}
	})
}

// A call that ends while it pauses does not let others in twice.
func TestAPausedCallEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuiet()
		ctx, cancel := context.WithCancel(t.Context())
		ctx, leave, err := q.enter(ctx, "InspectArtifact")
		if err != nil {
			t.Fatal(err)
		}
		q.Open()
		cancel()
		if err := service.Pause(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		q.Close()
		_, other, err := q.enter(t.Context(), "GetReport")
		if err != nil {
			t.Fatal(err)
		}
		leave()
		if q.working == nil || q.working.what != "GetReport" {
			t.Error("the call that is in was taken for the one that ended")
		}
		other()
	})
}

func TestAWindowWaitsForWorkThatHasBegunAndMeasuresTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuiet()
		_, leave, err := q.enter(t.Context(), "AuditRun")
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(100*time.Millisecond, leave)
		began := time.Now()
		q.Open()
		if d := time.Since(began); d != 100*time.Millisecond {
			t.Errorf("opened after %v", d)
		}
		if got := did(q.Close()); got != "" {
			t.Errorf("did %s", got)
		}
		if _, leave, err = q.enter(t.Context(), "AuditRun"); err != nil {
			t.Fatal(err)
		}
		began = time.Now()
		q.Open() // nobody leaves
		if d := time.Since(began); d != settle {
			t.Errorf("opened after %v", d)
		}
		q.note("GetRun")
		q.note("GetRun")
		time.Sleep(time.Second)
		if got := did(q.Close()); got != "AuditRun ×1 1s, GetRun ×2 0s" {
			t.Errorf("did %s", got)
		}
		q.Open()
		time.Sleep(time.Second)
		leave() // in the middle of a window
		time.Sleep(time.Second)
		if got := did(q.Close()); got != "AuditRun ×1 1s" {
			t.Errorf("did %s", got)
		}
		q.note("GetRun") // no window: not counted
		q.Open()
		if got := did(q.Close()); got != "" {
			t.Errorf("did %s", got)
		}
	})
}

// Of a call the part inside the window counts, whichever end of the window it crosses.
func TestProcessorTimeInsideAWindow(t *testing.T) {
	used := time.Duration(0)
	take := func(d time.Duration) { used += d }
	for name, x := range map[string]struct {
		do   func(t *testing.T, q *quiet)
		want string
	}{
		"inside": {func(t *testing.T, q *quiet) {
			q.Open()
			q.note("GetRun")
			_, over := q.handle(t.Context(), "GetRun")
			take(3)
			over()
		}, "GetRun ×1 3ns"},
		"before": {func(t *testing.T, q *quiet) {
			_, over := q.handle(t.Context(), "GetRun")
			take(5)
			over()
			q.Open()
		}, ""},
		"across the beginning": {func(t *testing.T, q *quiet) {
			_, over := q.handle(t.Context(), "ListRuns")
			take(5)
			q.Open()
			take(2)
			over()
			take(9)
		}, "ListRuns ×1 2ns"},
		"across the end": {func(t *testing.T, q *quiet) {
			q.Open()
			_, over := q.handle(t.Context(), "ListRuns")
			take(4)
			t.Cleanup(over)
		}, "ListRuns ×1 4ns"},
		"an expensive one that waits for the end": {func(t *testing.T, q *quiet) {
			ctx, over := q.handle(t.Context(), "AuditRun")
			_, leave, err := q.enter(ctx, "AuditRun")
			if err != nil {
				t.Fatal(err)
			}
			take(7)
			leave()
			q.Open()
			take(8)
			over()
		}, ""},
		"coding": {func(t *testing.T, q *quiet) {
			q.brief("WatchRun")()
			q.Open()
			over := q.brief("WatchRun")
			take(6)
			over()
		}, "WatchRun ×1 6ns"},
	} {
		t.Run(name, func(t *testing.T) {
			q := newQuiet()
			q.cpu = func(int) time.Duration { return used }
			x.do(t, q)
			if got := did(q.Close()); got != x.want {
				t.Errorf("did %s, want %s", got, x.want)
			}
		})
	}
}

func TestThreadCPU(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	from := threadCPU(unix.Gettid())
	for i, end := 0, time.Now().Add(time.Minute); threadCPU(unix.Gettid()) == from && time.Now().Before(end); i++ {
		_ = fmt.Sprint(i)
	}
	if threadCPU(unix.Gettid()) <= from {
		t.Error("the thread worked and its clock stands still")
	}
	if d := threadCPU(1 << 22); d != 0 {
		t.Errorf("a thread that is not there: %v", d)
	}
}

func TestOneExpensiveCallAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuiet()
		in, most, done := 0, 0, make(chan bool)
		for range 5 {
			go func() {
				_, leave, err := q.enter(t.Context(), "x")
				if err != nil {
					t.Error(err)
				} else {
					in++
					most = max(most, in)
					time.Sleep(3 * time.Second) // longer than patience: that is for windows
					in--
					leave()
				}
				done <- true
			}()
		}
		for range 5 {
			<-done
		}
		if most != 1 {
			t.Errorf("%d at once", most)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		q.Open()
		if _, _, err := q.enter(ctx, "x"); !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that left: %v", err)
		}
	})
}
