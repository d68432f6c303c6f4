package box

import (
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

const gib = 1 << 20 // in KiB

// trace is MemAvailable of a public report: 34.0 to 12.7 GiB in 1.5 s, and on at that slope (bugs.md N09).
func trace(after time.Duration) int64 {
	v := 34.0 - (34.0-12.7)/1.5*after.Seconds()
	return int64(max(v, 0.5) * gib)
}

// replay is when a guard with that phase of its samples acts on the trace; projected is from when on the slope reaches the
// floor inside the horizon.
func replay(g Guard, phase time.Duration) (acted, projected, floorAt time.Duration) {
	slope := (34.0 - 12.7) / 1.5
	floorAt = time.Duration((34.0 - float64(g.FloorKiB)/gib) / slope * 1e9)
	projected = floorAt - g.Horizon
	var seen []memSample
	for at := phase - 2*time.Second; at < 3*time.Second; at += g.Every {
		v := int64(34 * gib)
		if at > 0 {
			v = trace(at)
		}
		seen = append(seen, memSample{int64(at), v})
		if _, now := g.judge(seen); now {
			return at, projected, floorAt
		}
	}
	return -1, projected, floorAt
}

// The guard acts within 300 ms of the moment from which the slope reaches the floor inside the horizon, and before the
// floor is reached, whatever the phase of its samples.
func TestGuardReplay(t *testing.T) {
	g := Guard{}.withDefaults(totalKiB)
	if g.FloorKiB < 7*gib || g.FloorKiB > 8*gib {
		t.Fatalf("floor %d KiB", g.FloorKiB)
	}
	for phase := time.Duration(0); phase < g.Every; phase += 10 * time.Millisecond {
		if acted, projected, floorAt := replay(g, phase); acted < projected || acted > projected+300*time.Millisecond || acted >= floorAt {
			t.Errorf("phase %v: acted at %v; projected %v, floor reached %v", phase, acted, projected, floorAt)
		}
	}
}

// A normal load falls by 2.7 GiB/s and ends 12 GiB above nothing; a steady box near the floor is left alone.
func TestGuardLeavesHealthyLoads(t *testing.T) {
	g := Guard{}.withDefaults(totalKiB)
	var seen []memSample
	for at := time.Duration(0); at < 40*time.Second; at += g.Every {
		v := max(int64((110-2.7*at.Seconds())*gib), 12*gib)
		seen = append(seen, memSample{int64(at), v})
		if trip, now := g.judge(seen); now {
			t.Fatalf("acted at %v: %s", at, trip)
		}
	}
}

func TestGuardAtTheFloor(t *testing.T) {
	g := Guard{FloorKiB: 8 * gib}.withDefaults(totalKiB)
	if _, now := g.judge([]memSample{{0, 8 * gib}}); !now {
		t.Error("the floor itself is allowed")
	}
	if _, now := g.judge(nil); now {
		t.Error("acts without a sample")
	}
}

// The whole watch over the replayed trace: the guard asks for a stop once and says why.
func TestWatchStopsTheEngine(t *testing.T) {
	p := newProc(t)
	synctest.Test(t, func(t *testing.T) {
		now := since()
		b := open(t, p, Options{Profile: "cpu", Now: now})
		p.memory(34 * gib)
		var stops atomic.Int64
		var said atomic.Value
		w, err := b.Watch(t.Context(), func() []int { return nil }, func(why string) { stops.Add(1); said.Store(why) })
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if w.Trip().Present() {
			t.Error("the guard acted on a steady box")
		}
		start := time.Now()
		for time.Since(start) < 1800*time.Millisecond {
			time.Sleep(10 * time.Millisecond)
			p.memory(max(trace(time.Since(start)), 5*gib))
		}
		w.Close()
		trip, ok := w.Trip().Get()
		if !ok || stops.Load() != 1 || said.Load() != trip.String() {
			t.Fatalf("trip %v %v, %d stops", trip, ok, stops.Load())
		}
		if trip.AvailableKiB <= trip.FloorKiB || trip.SlopeKiBs > -10*gib {
			t.Errorf("acted late: %s", trip)
		}
	})
}

// A floor above what is available would end every engine as it starts.
func TestGuardFits(t *testing.T) {
	for floor, fits := range map[int64]bool{0: true, 111 << 20: true, 112 << 20: false, 1 << 40: false} {
		if err := (Guard{FloorKiB: floor}).fits(112 << 20); (err == nil) != fits || err != nil && !strings.Contains(err.Error(), "MemAvailable is 114688 MiB") {
			t.Errorf("floor %d KiB: %v", floor, err)
		}
	}
}

// A stop that does not help is followed by SIGKILL to exactly the engine's processes.
func TestWatchKills(t *testing.T) {
	b, err := Open(t.Context(), Options{Profile: "cpu", RuntimeDir: t.TempDir(), Guard: Guard{FloorKiB: 1 << 60}})
	if err != nil {
		t.Fatal(err)
	}
	engine := exec.Command("sleep", "60")
	if err := engine.Start(); err != nil {
		t.Fatal(err)
	}
	bystander := exec.Command("sleep", "60")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { bystander.Process.Kill(); bystander.Wait() }()
	w, err := b.Watch(t.Context(), func() []int { return []int{engine.Process.Pid} }, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	engine.Wait()
	if st := engine.ProcessState.Sys().(syscall.WaitStatus); st.Signal() != syscall.SIGKILL {
		t.Errorf("the engine ended by %v", st)
	}
	if err := bystander.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("a process that is not the engine's was ended: %v", err)
	}
}
