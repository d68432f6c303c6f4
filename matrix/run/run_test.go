package run

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"enginebroker/matrix"
	"enginebroker/matrix/stopwatch"
)

func inBubble(t *testing.T, f func(t *testing.T)) { t.Helper(); synctest.Test(t, f) }

func TestRunFollowsThePlan(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w, p := newWorld(), plan(2)
		if err := Run(t.Context(), w.config(p)); err != nil {
			t.Fatal(err)
		}
		var want, got []string
		for _, gs := range p.Order() {
			for _, s := range p.Groups[gs[0]].Superblocks[gs[1]].Slots(gs[0]) {
				want = append(want, s.Arm)
			}
		}
		for _, l := range w.loads {
			got = append(got, l.Slot.Arm)
		}
		if !slices.Equal(got, want) {
			t.Errorf("loads ran as %v, the plan is %v", got, want)
		}
		if n := len(w.legs); n != len(want)*2 {
			t.Errorf("%d legs, want %d", n, len(want)*2)
		}
		for _, leg := range w.legs {
			reps := 2
			if leg.ID.LeadIn {
				reps = 1
			}
			if len(leg.Repetitions) != reps {
				t.Errorf("leg %+v has %d repetitions, want %d", leg.ID, len(leg.Repetitions), reps)
			}
		}
		if first, last := w.records[0], w.records[len(w.records)-1]; first != "grid_open" || last != "grid_close" {
			t.Errorf("the record begins with %s and ends with %s", first, last)
		}
		for inst, up := range w.running {
			if up {
				t.Errorf("%s is left running", inst)
			}
		}
	})
}

// Protocol §1: all arms of a block share prompts, no two repetitions or blocks do.
func TestPromptsAreSharedInABlockAndDisjointOtherwise(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld()
		if err := Run(t.Context(), w.config(plan(2))); err != nil {
			t.Fatal(err)
		}
		where := map[string]string{}
		for _, leg := range w.legs {
			for _, rep := range leg.Repetitions {
				for _, q := range rep.Requests {
					at := strings.Join([]string{leg.ID.Group, itoa(leg.ID.Superblock), itoa(leg.ID.Block), leg.ID.Point, itoa(rep.Index)}, "/")
					if old, ok := where[q.Prompt]; ok && old != at {
						t.Errorf("prompt %s is asked in %s and in %s", q.Prompt, old, at)
					}
					where[q.Prompt] = at
				}
			}
		}
	})
}

func itoa(n int) string { return string(rune('a' + n + 5)) }

func TestFailedStartsBecomeVoidLegsAndThenAreNotRepeated(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld()
		ok := w.start
		w.start = func(instance string, n int) (matrix.Ready, error) {
			if instance == "b" {
				return matrix.Ready{}, &matrix.StartFailure{Code: "exited", Message: "exit 1"}
			}
			return ok(instance, n)
		}
		if err := Run(t.Context(), w.config(plan(2))); err != nil {
			t.Fatal(err)
		}
		if w.starts["b"] != failsInRow {
			t.Errorf("b was started %d times, want %d", w.starts["b"], failsInRow)
		}
		for _, leg := range w.legs {
			if leg.ID.Arm == "b" && (len(leg.Repetitions) != 1 || leg.Repetitions[0].Planned == 0 || leg.Note == "") {
				t.Errorf("leg %+v does not say that its requests were planned and never made: %+v", leg.ID, leg)
			}
		}
		if len(w.legs) != len(w.loads)*2 {
			t.Errorf("%d legs of %d loads", len(w.legs), len(w.loads))
		}
	})
}

func TestPinMismatchEndsTheLoadBeforeTiming(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld()
		w.pin = matrix.Some(matrix.PinCheck{Pin: "vllm", Mismatch: []matrix.PinMismatch{{Field: "version", Expected: "0.26.0", Found: "0.25.0", Where: "/version"}}})
		w.during = func(stopwatch.Job) { t.Error("something was timed") }
		if err := Run(t.Context(), w.config(plan(1))); err != nil {
			t.Fatal(err)
		}
		for _, l := range w.loads {
			if !strings.Contains(l.Aborted, "expected 0.26.0, found 0.25.0") {
				t.Errorf("load %s: %q", l.ID, l.Aborted)
			}
		}
		if w.starts["a"] != 1 || w.starts["b"] != 1 {
			t.Errorf("a mismatched arm was loaded again: %v", w.starts)
		}
	})
}

// Issue 5: a pin is checked again after each leg; the leg that ran on something else is kept as evidence and is the last.
func TestPinIsCheckedAfterEachLeg(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld()
		c := w.config(plan(1))
		checks := map[string]int{}
		c.CheckPin = func(arm matrix.Arm, _ matrix.Ready) matrix.Opt[matrix.PinCheck] {
			checks[arm.Label]++
			return matrix.Some(matrix.PinCheck{Pin: "p", OK: arm.Label == "b" || checks[arm.Label] == 1})
		}
		if err := Run(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		legs := map[string]int{}
		for _, l := range w.legs {
			if l.Note == "" {
				legs[l.ID.Arm]++
			}
		}
		loads := 0
		for _, l := range w.loads {
			p, ok := l.Pin.Get()
			if l.ArmKey == "kb" {
				loads++
			} else if ok && p.OK {
				t.Errorf("load %s ended with its pin met", l.ID)
			}
		}
		if w.starts["a"] != 1 || legs["a"] != 1 {
			t.Errorf("a ran %d loads and %d legs after its pin was not met any more", w.starts["a"], legs["a"])
		}
		if checks["b"] != loads*3 {
			t.Errorf("b was checked %d times in %d loads of two legs", checks["b"], loads)
		}
	})
}

func TestChangedPrintAndGrantedLimitsEndTheLoad(t *testing.T) {
	for name, c := range map[string]struct {
		change func(r *matrix.Ready, n int)
		want   string
	}{
		"another print": {func(r *matrix.Ready, n int) {
			if n > 1 {
				r.Print = "other"
			}
		}, "differs from the first load"},
		"less context": {func(r *matrix.Ready, _ int) { r.Granted.ContextTokens = 64 }, "grants context per request 64, the workload needs 128"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWorld()
				ok := w.start
				w.start = func(instance string, n int) (matrix.Ready, error) {
					r, err := ok(instance, n)
					c.change(&r, n)
					return r, err
				}
				if err := Run(t.Context(), w.config(plan(1))); err != nil {
					t.Fatal(err)
				}
				if !slices.ContainsFunc(w.loads, func(l matrix.LoadRecord) bool { return strings.Contains(l.Aborted, c.want) }) {
					t.Errorf("no load says %q", c.want)
				}
			})
		})
	}
}

func TestInterruptDropsTheLegAndStopsTheEngine(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld()
		ctx, cancel := context.WithCancel(t.Context())
		passes := 0
		w.during = func(stopwatch.Job) {
			if passes++; passes == 5 {
				cancel()
			}
		}
		err := Run(ctx, w.config(plan(2)))
		if !errors.Is(err, ErrInterrupted) {
			t.Fatalf("got %v", err)
		}
		for inst, up := range w.running {
			if up {
				t.Errorf("%s is left running", inst)
			}
		}
		if last := w.records[len(w.records)-1]; last != "abort" {
			t.Errorf("the record ends with %s", last)
		}
		if len(w.legs) == 0 || len(w.legs) > 2 {
			t.Errorf("%d legs were kept, the one in flight should be dropped", len(w.legs))
		}
	})
}

func TestResumeRepeatsNoCompleteSuperblock(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w, p := newWorld(), plan(2)
		c := w.config(p)
		for i, s := range p.Groups[0].Superblocks[0].Slots(0) {
			c.Done = append(c.Done, matrix.LoadRecord{ID: "old", Seq: i + 1, Slot: s, Group: p.Groups[0].ID, ArmKey: "k" + s.Arm, Ready: matrix.Some(matrix.Ready{Print: "print-" + s.Arm})})
		}
		c.Resumed, c.Seq = true, len(c.Done)
		if err := Run(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		for _, l := range w.loads {
			if l.Slot.Superblock == 0 {
				t.Errorf("load %s repeats a complete superblock", l.ID)
			}
			if l.Seq <= len(c.Done) {
				t.Errorf("load %s takes a sequence number that is used", l.ID)
			}
		}
		if slices.Contains(w.records, "grid_open") {
			t.Error("a resumed grid was opened again")
		}
	})
}

func TestJudgeOrdersReplacementsAndExtensions(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w, p := newWorld(), plan(1)
		w.next = []Next{{Rerun: []Redo{{Replaces: 0}}}, {Extend: []int{0}}}
		if err := Run(t.Context(), w.config(p)); err != nil {
			t.Fatal(err)
		}
		var seen []int
		for _, l := range w.loads {
			if l.Slot.LeadIn {
				seen = append(seen, l.Slot.Superblock)
			}
		}
		if !slices.Equal(seen, []int{0, 1, 2}) {
			t.Errorf("superblocks %v ran, want 0 and fresh draws 1, 2", seen)
		}
	})
}

// What the operator asks for is run first, as the next draw of the stream, and the record says for which superblock it is.
func TestOperatorRedoes(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w, p := newWorld(), plan(1)
		if err := Run(t.Context(), w.config(p)); err != nil {
			t.Fatal(err)
		}
		c := w.config(p)
		c.Resumed, c.Done, c.Seq, c.Again = true, slices.Clone(w.loads), len(w.loads), []Redo{{Replaces: 0}}
		w.next = []Next{{Rerun: []Redo{{Replaces: 1}}}}
		w.begun = nil
		if err := Run(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range w.begun {
			got = append(got, fmt.Sprint(s.Superblock.Index, " for ", s.Replaces.Or(-1), " ", s.Why))
		}
		if want := []string{"1 for 0 operator", "2 for 1 rerun"}; !slices.Equal(got, want) {
			t.Errorf("%q ran, want %q", got, want)
		}
	})
}

func TestBudgetStartsNoFurtherSuperblock(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld()
		c := w.config(plan(3))
		c.Deadline = matrix.Some(time.Now().Add(time.Second))
		if err := Run(t.Context(), c); !errors.Is(err, ErrBudget) {
			t.Fatalf("got %v", err)
		}
		if n := len(w.loads); n != 5 {
			t.Errorf("%d loads ran, want the 5 of the first superblock", n)
		}
	})
}

func TestUnwritableEvidenceEndsTheRun(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld()
		w.putErr = errors.New("disk full")
		if err := Run(t.Context(), w.config(plan(1))); !errors.Is(err, w.putErr) {
			t.Fatalf("got %v", err)
		}
	})
}

func TestSurvivorsDropTheArm(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld()
		w.survivors = true
		if err := Run(t.Context(), w.config(plan(1))); err != nil {
			t.Fatal(err)
		}
		if w.starts["a"] != 1 || w.starts["b"] != 1 {
			t.Errorf("an arm whose server could not be proved gone was loaded again: %v", w.starts)
		}
	})
}

// The memory guard acts while an engine loads: its start is called off, and the legs are void by the host, not the engine.
func TestGuardDuringTheLoad(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld()
		w.start = func(instance string, n int) (matrix.Ready, error) {
			if instance == "a" {
				w.guard("MemAvailable is 3 MiB")
				return matrix.Ready{}, context.Canceled
			}
			return matrix.Ready{Print: "print-" + instance, Processes: []matrix.Process{{PID: 7}}}, nil
		}
		if err := Run(t.Context(), w.config(plan(1))); err != nil {
			t.Fatal(err)
		}
		killedByGuard(t, w, "a")
		for _, l := range w.loads {
			if f, failed := l.Failure.Get(); failed && f.Code != "killed" {
				t.Errorf("%+v", f)
			}
		}
	})
}

// It acts while a leg is measured: the engine is stopped, the leg is void by the host.
func TestGuardDuringALeg(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld()
		w.during = func(stopwatch.Job) {
			if w.running["a"] {
				w.guard("MemAvailable is 3 MiB")
			}
		}
		if err := Run(t.Context(), w.config(plan(1))); err != nil {
			t.Fatal(err)
		}
		killedByGuard(t, w, "a")
	})
}

// It acts while a canary is asked, or while nothing is: whatever the server says of itself after that, the guard ended it.
func TestGuardOutsideTheWindow(t *testing.T) {
	for _, c := range []struct {
		name  string
		asked int // the canary that it is: the first is before the points, the others after one
		from  int // the first leg that it voids
	}{
		{"in the canary before the points", 1, 0},
		{"in the canary after the first point", 2, 0},
		{"in the canary after the last point", 3, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWorld()
				n, load := 0, 0
				w.asked = func() {
					if !w.running["a"] {
						return
					}
					if w.starts["a"] != load {
						n, load = 0, w.starts["a"]
					}
					if n++; n == c.asked {
						w.guard("MemAvailable is 3 MiB")
					}
				}
				if err := Run(t.Context(), w.config(plan(1))); err != nil {
					t.Fatal(err)
				}
				legs := map[string]int{}
				for _, l := range w.legs {
					void := l.ID.Arm == "a" && legs[l.LoadID] >= c.from
					legs[l.LoadID]++
					if got := l.Died && strings.Contains(l.Env.KilledByHost, "the memory guard"); got != void {
						t.Errorf("leg %+v: died %v, killed by host %q", l.ID, l.Died, l.Env.KilledByHost)
					}
					if wrong := slices.ContainsFunc(l.Canaries, func(x matrix.CanaryResult) bool { return !x.OK }); wrong {
						t.Errorf("leg %+v: a kill is taken for a wrong answer: %+v", l.ID, l.Canaries)
					}
				}
				for _, l := range w.loads {
					if got := strings.Contains(l.Env.KilledByHost, "the memory guard"); got != (l.ArmKey == "ka") {
						t.Errorf("load %s of %s: %q", l.ID, l.ArmKey, l.Env.KilledByHost)
					}
				}
			})
		})
	}
}

// killedByGuard checks every leg of an arm, and that the other's are untouched.
func killedByGuard(t *testing.T, w *world, arm string) {
	t.Helper()
	for _, l := range w.legs {
		if got := strings.Contains(l.Env.KilledByHost, "the memory guard"); got != (l.ID.Arm == arm) {
			t.Errorf("leg %+v: killed by host %q", l.ID, l.Env.KilledByHost)
		}
	}
}

// A server that is gone before the first repetition voids its legs, the rest of its load's points too, and the run goes on.
func TestServerGoneBetweenPassesVoidsTheLoadAlone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld()
		w.pass = func(j stopwatch.Job) error {
			if j.Repetition == 0 {
				return fmt.Errorf("%w: refused", stopwatch.ErrNoConnection)
			}
			return nil
		}
		w.observe = func(string) matrix.State { return matrix.State{} }
		if err := Run(t.Context(), w.config(plan(1))); err != nil {
			t.Fatal(err)
		}
		if len(w.legs) != 2*len(w.loads) {
			t.Errorf("%d legs of %d loads with two points each", len(w.legs), len(w.loads))
		}
		for _, leg := range w.legs {
			if !leg.Died || len(leg.Repetitions) == 0 || leg.Repetitions[0].Planned == 0 {
				t.Errorf("leg %+v does not say that its server was gone: %+v", leg.ID, leg)
			}
		}
	})
}

// Every repetition keeps what the process did inside its window; the warm-up has none.
func TestWindowsAreOfRepetitions(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld()
		c := w.config(plan(1))
		opened, open := 0, false
		w.during = func(j stopwatch.Job) {
			if open != (j.Repetition >= 0) {
				t.Errorf("repetition %d runs with a window open: %v", j.Repetition, open)
			}
		}
		c.Window = func() func() []matrix.DaemonWork {
			opened++
			n := opened
			open = true
			return func() []matrix.DaemonWork {
				open = false
				return []matrix.DaemonWork{{Request: "GetRun", Times: n}}
			}
		}
		if err := Run(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		seen := 0
		for _, l := range w.legs {
			for _, rep := range l.Repetitions {
				seen++
				if len(rep.Daemon) != 1 || rep.Daemon[0].Times != seen {
					t.Errorf("%s %s repetition %d has %v, want the work of window %d", l.LoadID, l.ID.Point, rep.Index, rep.Daemon, seen)
				}
			}
		}
		if seen == 0 || seen != opened {
			t.Errorf("%d windows, %d repetitions", opened, seen)
		}
	})
}
