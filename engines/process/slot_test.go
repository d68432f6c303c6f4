package process

import (
	"context"
	"errors"
	"testing"
	"time"

	"enginebroker/engines"
	"enginebroker/matrix"
)

func TestSlotHoldsOneServer(t *testing.T) {
	var slot Slot
	if _, err := slot.Stop(t.Context(), time.Second); !errors.Is(err, engines.ErrNotStarted) {
		t.Errorf("empty: %v", err)
	}
	if _, err := slot.Start(t.Context(), start(spec(t, "listen"))); err != nil {
		t.Fatal(err)
	}
	_, err := slot.Start(t.Context(), start(spec(t, "listen")))
	if f, ok := errors.AsType[*matrix.StartFailure](err); !ok || f.Code != CodeBusy {
		t.Errorf("second: %v", err)
	}
	if _, err := slot.Tree(); err != nil {
		t.Error(err)
	}
	if s, err := slot.Stop(t.Context(), 3*time.Second); err != nil || !s.Gone() {
		t.Errorf("%+v %v", s, err)
	}
	if _, err := slot.Tree(); !errors.Is(err, engines.ErrNotStarted) {
		t.Errorf("after stop: %v", err)
	}
	if _, err := slot.Start(t.Context(), start(spec(t, "listen"))); err != nil {
		t.Fatalf("a slot that was emptied: %v", err)
	}
	if s, err := slot.Stop(t.Context(), 3*time.Second); err != nil || !s.Gone() {
		t.Errorf("%+v %v", s, err)
	}
}

func TestSlotStopCancelsAStart(t *testing.T) {
	var slot Slot
	s := spec(t, "fork,ignoreterm")
	st := start(s)
	waiting := make(chan struct{})
	st.Ready = func(ctx context.Context, _ Tree, _ func(matrix.Progress)) error {
		close(waiting)
		<-ctx.Done()
		return ctx.Err()
	}
	failed := make(chan error)
	go func() {
		_, err := slot.Start(context.Background(), st)
		failed <- err
	}()
	<-waiting
	stopped := make(chan error)
	go func() {
		_, err := slot.Stop(context.Background(), time.Second)
		stopped <- err
	}()
	if f, ok := errors.AsType[*matrix.StartFailure](<-failed); !ok || f.Code != CodeCancelled {
		t.Errorf("the start: %+v", f)
	}
	if err := <-stopped; !errors.Is(err, engines.ErrNotStarted) {
		t.Errorf("the stop: %v", err)
	}
	nothingLeft(t, s)
}
