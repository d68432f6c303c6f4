package daemon

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"enginebroker/broker/service"
)

func TestExpensiveCallsWaitForTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuiet()
		q.Open()
		go func() { time.Sleep(time.Second); q.Close() }()
		began := time.Now()
		leave, err := q.enter(t.Context(), "x")
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
		_, err := q.enter(t.Context(), "x")
		if m, ok := errors.AsType[*service.MeasuringError](err); !ok || m.Retry != retryAfter || time.Since(began) != patience {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if got := reason(service.StatusOf(err).Err()); got != "Unavailable MEASURING" {
			t.Errorf("status %s", got)
		}
	})
}

func TestAWindowWaitsForWorkThatHasBegunAndNamesTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuiet()
		leave, err := q.enter(t.Context(), "AuditRun")
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(100*time.Millisecond, leave)
		began := time.Now()
		q.Open()
		if d := time.Since(began); d != 100*time.Millisecond {
			t.Errorf("opened after %v", d)
		}
		if did := q.Close(); len(did) != 0 {
			t.Errorf("did %v", did)
		}
		leave, err = q.enter(t.Context(), "AuditRun")
		if err != nil {
			t.Fatal(err)
		}
		began = time.Now()
		q.Open() // nobody leaves
		if d := time.Since(began); d != settle {
			t.Errorf("opened after %v", d)
		}
		q.note("GetRun")
		q.note("GetRun")
		if got := fmt.Sprint(q.Close()); got != "[GetRun ×2 still at work: AuditRun ×1]" {
			t.Errorf("did %s", got)
		}
		leave()
		q.note("GetRun") // no window: not counted
		q.Open()
		if did := q.Close(); len(did) != 0 {
			t.Errorf("did %v", did)
		}
	})
}

func TestOneExpensiveCallAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuiet()
		in, most, done := 0, 0, make(chan bool)
		for range 5 {
			go func() {
				leave, err := q.enter(t.Context(), "x")
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
		if _, err := q.enter(ctx, "x"); !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that left: %v", err)
		}
	})
}
