package box

import (
	"fmt"
	"time"
)

// Guard is the memory guard: it ends the engine before the host dies. Running out on unified memory does not look like an
// OOM: the host hangs and is power-cycled. One trace fell from 34.0 to 12.7 GiB in 1.5 s (gb10-nvml.md §2), so the guard
// judges the time to the floor by the slope, not the floor alone.
type Guard struct {
	FloorKiB int64         // never let MemAvailable come here; default 8 GiB (one operator's figure), at most 1/16 of memory
	Horizon  time.Duration // act when the slope reaches the floor within this; default 500 ms [own]
	Grace    time.Duration // from the polite stop to SIGKILL; default 200 ms [own]; at the floor there is none
	Every    time.Duration // sampling; default 100 ms, never above 200 ms (issue: ≤ 200 ms)
}

const (
	guardFloorKiB  = 8 << 20
	guardShare     = 16
	guardHorizon   = 500 * time.Millisecond
	guardGrace     = 200 * time.Millisecond
	guardEvery     = 100 * time.Millisecond
	guardMostEvery = 200 * time.Millisecond
	guardWindow    = 300 * time.Millisecond // the slope is taken over this
)

func (g Guard) withDefaults(totalKiB int64) Guard {
	if g.FloorKiB == 0 {
		g.FloorKiB = min(guardFloorKiB, totalKiB/guardShare)
	}
	if g.Horizon == 0 {
		g.Horizon = guardHorizon
	}
	if g.Grace == 0 {
		g.Grace = guardGrace
	}
	if g.Every == 0 {
		g.Every = guardEvery
	}
	g.Every = min(g.Every, guardMostEvery)
	return g
}

// fits says whether there is room above the floor now; where there is none, every engine would be ended as it starts.
func (g Guard) fits(availableKiB int64) error {
	if g.FloorKiB < availableKiB {
		return nil
	}
	return fmt.Errorf("the floor of the memory guard is %d MiB and MemAvailable is %d MiB before anything runs", g.FloorKiB>>10, availableKiB>>10)
}

// Trip is why the guard acted.
type Trip struct {
	At           int64 // CLOCK_MONOTONIC ns
	AvailableKiB int64
	FloorKiB     int64
	SlopeKiBs    int64 // change of MemAvailable per second; negative while it falls
}

func (t Trip) String() string {
	return fmt.Sprintf("MemAvailable is %d MiB and changes by %d MiB/s; the floor is %d MiB", t.AvailableKiB>>10, t.SlopeKiBs>>10, t.FloorKiB>>10)
}

// memSample is one reading of MemAvailable.
type memSample struct {
	at, kib int64
}

// judge looks at the latest samples, oldest first, and says whether to act now.
func (g Guard) judge(last []memSample) (Trip, bool) {
	if len(last) == 0 {
		return Trip{}, false
	}
	now := last[len(last)-1]
	t := Trip{At: now.at, AvailableKiB: now.kib, FloorKiB: g.FloorKiB}
	from := now
	for i := len(last) - 1; i >= 0 && now.at-last[i].at <= int64(guardWindow); i-- {
		from = last[i]
	}
	if dt := now.at - from.at; dt > 0 {
		t.SlopeKiBs = int64(float64(now.kib-from.kib) / (float64(dt) / 1e9))
	}
	if now.kib <= g.FloorKiB {
		return t, true
	}
	if t.SlopeKiBs >= 0 {
		return t, false
	}
	left := float64(now.kib-g.FloorKiB) / float64(-t.SlopeKiBs)
	return t, left <= g.Horizon.Seconds()
}
