package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"enginebroker/broker/service"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

func change(s brokerv1.RunState) *brokerv1.WatchRunResponse {
	return &brokerv1.WatchRunResponse{State: &s}
}

func step(text string) *brokerv1.WatchRunResponse {
	return &brokerv1.WatchRunResponse{Step: service.ToStep(service.Event{Kind: "settle", Text: text})}
}

// A watcher that takes a second for each event misses progress and no change, and nobody waits for it.
func TestSlowWatcherLosesProgressAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, err := openEvents(filepath.Join(t.TempDir(), "e"), "r")
		if err != nil {
			t.Fatal(err)
		}
		var got []*brokerv1.WatchRunResponse
		done := make(chan error)
		go func() {
			done <- e.watch(t.Context(), 0, func(m *brokerv1.WatchRunResponse) error {
				time.Sleep(time.Second)
				got = append(got, m)
				return nil
			})
		}()
		began := time.Now()
		for i := range 100 {
			e.tell(step(fmt.Sprint(i)), time.Now())
			if i%10 == 9 {
				if err := e.publish(change(brokerv1.RunState_RUN_STATE_RUNNING), time.Now(), false); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		if d := time.Since(began); d != time.Second {
			t.Errorf("the run took %v of 1s", d)
		}
		if err := e.publish(change(brokerv1.RunState_RUN_STATE_COMPLETE), time.Now(), true); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		gapless(t, got, 1)
		progress := 0
		for _, m := range got {
			if m.GetProgress() {
				progress++
			}
		}
		if len(got)-progress != 11 || progress > 20 {
			t.Errorf("%d changes, %d of 100 progress", len(got)-progress, progress)
		}
		if err := e.close(); err != nil {
			t.Error(err)
		}
	})
}

func TestEventsOutliveTheirDaemon(t *testing.T) {
	path := filepath.Join(t.TempDir(), "e")
	write := func(n int) {
		e, err := openEvents(path, "r")
		if err != nil {
			t.Fatal(err)
		}
		for range n {
			if err := e.publish(change(brokerv1.RunState_RUN_STATE_RUNNING), time.Unix(1, 0), false); err != nil {
				t.Fatal(err)
			}
		}
		if err := e.close(); err != nil {
			t.Fatal(err)
		}
	}
	write(3)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// Cut at every byte, a log is opened with the lines that are whole and goes on from there.
	for cut := range len(whole) + 1 {
		if err := os.WriteFile(path, whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		lines := 0
		for _, b := range whole[:cut] {
			if b == '\n' {
				lines++
			}
		}
		write(1)
		e, _, err := readEvents(path, "r")
		if err != nil || len(e.list) != lines+1 {
			t.Fatalf("cut at %d: %d events, want %d: %v", cut, len(e.list), lines+1, err)
		}
		gapless(t, e.list, 1)
	}
}

func TestTokens(t *testing.T) {
	e := &events{run: "r.1", list: make([]*brokerv1.WatchRunResponse, 5)}
	for tok, want := range map[string]int{"": 0, "r.1:0": 0, "r.1:5": 5} {
		if n, err := e.after(tok); err != nil || n != want {
			t.Errorf("%q: %d, %v", tok, n, err)
		}
	}
	for _, tok := range []string{"r.1:6", "r.1:-1", "r.1", "5", "other:1", "r.1:x", ":1", "r.1:1:1", "r.1:99999999999999999999"} {
		if _, err := e.after(tok); reason(service.StatusOf(err).Err()) != "InvalidArgument USAGE" {
			t.Errorf("%q: %v", tok, err)
		}
	}
}

// A disk that is full loses the event for the next daemon; those who listen hear it.
func TestUnwritableEventsAreTold(t *testing.T) {
	f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	e := &events{run: "r", file: f, changed: make(chan struct{})}
	if err := e.publish(change(brokerv1.RunState_RUN_STATE_COMPLETE), time.Now(), true); err == nil {
		t.Error("a full disk is no error")
	}
	var n atomic.Int64
	if err := e.watch(t.Context(), 0, func(*brokerv1.WatchRunResponse) error { n.Add(1); return nil }); err != nil || n.Load() != 1 {
		t.Errorf("%d events, %v", n.Load(), err)
	}
	if err := e.close(); errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
}

func FuzzReadEvents(f *testing.F) {
	f.Add([]byte(`{"sequence":"1","state":"RUN_STATE_QUEUED"}` + "\n" + `{"sequence":"2"}`))
	f.Add([]byte("\n\n{}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "e")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		e, err := openEvents(path, "r")
		if err != nil {
			t.Fatal(err)
		}
		n := len(e.list)
		if err := errors.Join(e.publish(change(brokerv1.RunState_RUN_STATE_QUEUED), time.Unix(0, 0), false), e.close()); err != nil {
			t.Fatal(err)
		}
		again, _, err := readEvents(path, "r")
		if err != nil || len(again.list) != n+1 {
			t.Errorf("%d events, want %d: %v", len(again.list), n+1, err)
		}
	})
}
