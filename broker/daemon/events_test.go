package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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
		e, err := readEvents(path, "r")
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

// What cannot be written is not told, and its number goes to the next that can.
func TestUnwritableEventsAreNotTold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "e")
	e, err := openEvents(path, "r")
	if err != nil {
		t.Fatal(err)
	}
	publish := func(s brokerv1.RunState) error { return e.publish(change(s), time.Unix(1, 0), false) }
	full := func(s brokerv1.RunState) error {
		return e.record(change(s), time.Unix(1, 0), false, func() error { return errors.New("no space left on device") })
	}
	if err := errors.Join(publish(brokerv1.RunState_RUN_STATE_QUEUED), publish(brokerv1.RunState_RUN_STATE_PREPARING)); err != nil {
		t.Fatal(err)
	}
	if full(brokerv1.RunState_RUN_STATE_FAILED) == nil {
		t.Error("a full disk is no error")
	}
	if f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0); err == nil {
		good := e.file
		e.file = f
		if publish(brokerv1.RunState_RUN_STATE_FAILED) == nil {
			t.Error("a full disk is no error")
		}
		e.file = good
		f.Close()
	}
	if err := errors.Join(publish(brokerv1.RunState_RUN_STATE_RUNNING), e.close()); err != nil {
		t.Fatal(err)
	}
	again, err := readEvents(path, "r")
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range [][]*brokerv1.WatchRunResponse{e.list, again.list} {
		gapless(t, list, 1)
		if got := fmt.Sprint(states(list)); got != "[QUEUED PREPARING RUNNING]" {
			t.Errorf("states %s", got)
		}
	}
}

// Damage is told once, in the place of the events that it cost; those behind it keep their numbers.
func TestDamagedEvents(t *testing.T) {
	good := func(n int) string { return fmt.Sprintf(`{"sequence":"%d","state":"RUN_STATE_RUNNING"}`+"\n", n) }
	const half = `{"sequence":"2","bro` + "\n"
	for name, x := range map[string]struct {
		text    string
		numbers string // of what is told
		lost    string // how the damage is told; empty: nothing is lost
	}{
		"half a line":          {good(1) + half + good(3), "[1 2 3]", "event 2 of run r cannot be read: PATH:2: "},
		"three lines":          {good(1) + half + half + half + good(5), "[1 4 5]", "events 2 to 4 of run r cannot be read: PATH:2: "},
		"a line in two":        {good(1) + half + "}\n" + good(3), "[1 2 3]", "event 2 of run r"},
		"two lines in one":     {good(1) + half[:len(half)-1] + good(3) + good(4), "[1 3 4]", "events 2 to 3 of run r"},
		"an empty line":        {good(1) + "\n" + good(2), "[1 2]", ""},
		"a number twice":       {good(1) + good(2) + good(2) + good(3), "[1 2 3]", ""},
		"a line is gone":       {good(1) + good(3) + good(4), "[1 2 3 4]", "event 2 of run r cannot be read: PATH:2 follows event 1"},
		"the first is gone":    {good(2), "[1 2]", "event 1 of run r"},
		"the last is damaged":  {good(1) + half, "[1 2]", "event 2 of run r cannot be read: PATH:2: "},
		"a number is damaged":  {good(1) + good(12) + good(3), "[1 2 3]", "event 2 of run r cannot be read: PATH:2: it has number 12"},
		"a number of millions": {good(1) + good(1e12), "[1 2]", "event 2 of run r"},
		"a negative number":    {good(1) + good(-2) + good(3), "[1 2 3]", "event 2 of run r"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "e")
			if err := os.WriteFile(path, []byte(x.text), 0o600); err != nil {
				t.Fatal(err)
			}
			for what, open := range map[string]func(string, string) (*events, error){"read": readEvents, "open": openEvents} {
				e, err := open(path, "r")
				if err != nil {
					t.Fatal(err)
				}
				e.ended = true
				var numbers []int64
				var lost []string
				if err := e.watch(t.Context(), 0, func(m *brokerv1.WatchRunResponse) error {
					numbers = append(numbers, m.GetSequence())
					if m.Step != nil {
						lost = append(lost, m.GetStep().GetText())
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				if fmt.Sprint(numbers) != x.numbers {
					t.Errorf("%s: numbers %v, want %s", what, numbers, x.numbers)
				}
				if want := strings.ReplaceAll(x.lost, "PATH", path); want == "" && len(lost) > 0 || want != "" && (len(lost) != 1 || !strings.HasPrefix(lost[0], want)) {
					t.Errorf("%s: told %q", what, lost)
				}
				if err := e.close(); err != nil {
					t.Error(err)
				}
			}
			if left, err := os.ReadFile(path); err != nil || string(left) != x.text {
				t.Errorf("left %q, %v", left, err)
			}
		})
	}
}

// Where the event that ended a run is lost, the record of the run says how it ended.
func TestTheEndIsToldWhereItsEventIsLost(t *testing.T) {
	for name, damage := range map[string]func([]byte) []byte{
		"damaged": func(b []byte) []byte { b[bytes.LastIndexByte(b[:len(b)-1], '\n')+1] = 'x'; return b },
		"gone":    func(b []byte) []byte { return b[:bytes.LastIndexByte(b[:len(b)-1], '\n')+1] },
		"all":     func([]byte) []byte { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			s := serve(t, f, true)
			s.create(t, "r1")
			s.events(t, "r1", "")
			path := filepath.Join(f.StateDir("jobs"), "r1", eventsFile)
			data, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, damage(data), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			list := s.events(t, "r1", "")
			if last := list[len(list)-1]; last.GetState() != brokerv1.RunState_RUN_STATE_COMPLETE || !strings.Contains(last.GetStep().GetText(), "cannot be read") {
				t.Errorf("last event %v", last)
			}
		})
	}
}

func FuzzReadEvents(f *testing.F) {
	f.Add([]byte(`{"sequence":"1","state":"RUN_STATE_QUEUED"}` + "\n" + `{"sequence":"2"}`))
	f.Add([]byte("\n\n{}\n"))
	f.Add([]byte(`{"sequence":"1"}` + "\nx\n" + `{"sequence":"9"}` + "\n" + `{"sequence":"3"}` + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "e")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		e, err := openEvents(path, "r")
		if err != nil {
			t.Fatal(err)
		}
		if left, err := os.ReadFile(path); err != nil || !bytes.Equal(left, data[:bytes.LastIndexByte(data, '\n')+1]) {
			t.Fatalf("a damaged log was changed: %v", err)
		}
		n := len(e.list)
		if err := errors.Join(e.publish(change(brokerv1.RunState_RUN_STATE_QUEUED), time.Unix(0, 0), false), e.close()); err != nil {
			t.Fatal(err)
		}
		again, err := readEvents(path, "r")
		if err != nil || len(again.list) != n+1 || again.list[n].GetState() != brokerv1.RunState_RUN_STATE_QUEUED {
			t.Errorf("%d events, want %d: %v", len(again.list), n+1, err)
		}
	})
}
