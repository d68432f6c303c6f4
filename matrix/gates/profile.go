package gates

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"enginebroker/matrix"
)

// Profile is what one kind of box can prove, and the thresholds it is held to (protocol §2.7). It is part of the method
// id by its name; cells of different profiles are never compared.
type Profile struct {
	Name string

	// Clock and thermal gates; false: the box has no clock to read and they are absent.
	Clock        bool
	ClockMask    uint64 // event bits that are normal; any other bit throttles
	ClockFloor   int64  // MHz, busy median below it is the stuck low-power state; 0: half the card's own maximum
	GPUProcesses bool   // COTENANT is judged on compute processes of the card

	Memory      bool  // MEMORY_NOT_RETURNED
	MemorySlack int64 // KiB below the baseline that still count as returned
	PageCache   bool  // PAGE_CACHE_RESIDENT
	Swap        bool  // SWAP_ACTIVITY

	LoadAverage matrix.Opt[float64] // loadavg1 before the load, at most
	ForeignCPU  matrix.Opt[float64] // share of the box over the leg, at most
	Steal       matrix.Opt[float64] // share, at most

	StreamSpread      time.Duration // STREAM_SPREAD floor
	StreamSpreadShare float64       // of E2EL; the floor is the smaller of the two. 0: the floor alone

	Drift matrix.Opt[float64] // SUPERBLOCK_DRIFT limit as a fraction of output tok/s at the first point

	Certifies matrix.Reason // what every cell of this profile carries; empty: up to ESTABLISHED
}

// memorySlack is 1 GiB ([V] online_gate.py).
const memorySlack = 1 << 20

// profiles is the table of protocol §2.7. 0x103 = idle, application clocks, display clocks; 0x4 = power cap, normal on a
// discrete card ([V] assert-clock; gb10-nvml §4). 1400 MHz is sparkview's threshold for the stuck state. loadavg 1.0 and
// the CPU shares are [own]; 0.05 s is [V] run_serve_low --minimum-spread; 6 % is [V] c8_leg_runner.
var profiles = []Profile{
	{
		Name: "gb10", Clock: true, ClockMask: 0x103, ClockFloor: 1400, GPUProcesses: true,
		Memory: true, MemorySlack: memorySlack, PageCache: true, Swap: true, LoadAverage: matrix.Some(1.0),
		StreamSpread: 50 * time.Millisecond, Drift: matrix.Some(0.06),
	},
	{
		Name: "nvidia", Clock: true, ClockMask: 0x107, GPUProcesses: true,
		Memory: true, MemorySlack: memorySlack, PageCache: true, Swap: true, LoadAverage: matrix.Some(1.0),
		StreamSpread: 50 * time.Millisecond, Drift: matrix.Some(0.06),
	},
	{
		Name: "cpu", Memory: true, MemorySlack: memorySlack, PageCache: true, Swap: true,
		ForeignCPU: matrix.Some(0.05), Steal: matrix.Some(0.02),
		StreamSpread: 50 * time.Millisecond, StreamSpreadShare: 0.1, Drift: matrix.Some(0.15), Certifies: matrix.BoxUncertified,
	},
	{
		Name: "simulated", StreamSpread: 50 * time.Millisecond, StreamSpreadShare: 0.1, Certifies: matrix.Simulated,
	},
}

// ProfileByName finds a box profile; an unknown name is an error.
func ProfileByName(name string) (Profile, error) {
	i := slices.IndexFunc(profiles, func(p Profile) bool { return p.Name == name })
	if i < 0 {
		return Profile{}, fmt.Errorf("unknown box profile %q: one of %s", name, strings.Join(ProfileNames(), ", "))
	}
	return profiles[i], nil
}

// ProfileNames lists the box profiles, strictest first.
func ProfileNames() []string {
	var out []string
	for _, p := range profiles {
		out = append(out, p.Name)
	}
	return out
}

// clockCodes are the leg gates that read the clock series.
var clockCodes = []matrix.LegCode{matrix.ClockFewBusy, matrix.ClockBusyFraction, matrix.ClockSpread, matrix.ClockThrottled,
	matrix.ClockPersistence, matrix.ClockDegraded}

// Absent lists the gates that this kind of box never evaluates (protocol §2.7).
func (p Profile) Absent() []matrix.LegCode {
	var out []matrix.LegCode
	if !p.Clock {
		out = append(append(out, clockCodes...), matrix.ThermalCounter)
	}
	if !p.Memory {
		out = append(out, matrix.MemoryNotReturned)
	}
	if !p.PageCache {
		out = append(out, matrix.PageCacheResident)
	}
	if !p.Swap {
		out = append(out, matrix.SwapActivity)
	}
	if !p.GPUProcesses && !p.ForeignCPU.Present() {
		out = append(out, matrix.Cotenant)
	}
	if !p.LoadAverage.Present() && !p.ForeignCPU.Present() {
		out = append(out, matrix.ForeignCPU)
	}
	if !p.Drift.Present() {
		out = append(out, matrix.SuperblockDrift)
	}
	return out
}

// ofBox are the gates whose absence is the box's shortcoming and costs BOX_UNCERTIFIED; an engine that streams no exact
// token count only lacks that check.
var ofBox = append(slices.Clone(clockCodes), matrix.ThermalCounter, matrix.Cotenant, matrix.MemoryNotReturned,
	matrix.PageCacheResident, matrix.LoadAverageCode, matrix.ForeignCPU, matrix.SwapActivity, matrix.SuperblockDrift)

// BoxGate reports whether the absence of that gate, written as CODE or "CODE: why", is the box's.
func BoxGate(absent string) bool {
	code, _, _ := strings.Cut(absent, ":")
	return slices.Contains(ofBox, matrix.LegCode(code))
}
