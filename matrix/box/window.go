package box

import (
	"fmt"
	"strconv"

	"enginebroker/matrix"
)

// window is what is reduced: a stretch of time and what the box is.
type window struct {
	start, end int64
	heads      [][2]int64
	profile    Profile
	base       matrix.Opt[Baseline]
	bootID     string
	device     matrix.Opt[matrix.Device]
}

// staleAfter is how long telemetry may be silent inside a window before the silence itself is said (a hung driver is
// noticed within 2 s).
const staleAfter = 2e9

// silentFor begins what is said of such a silence.
const silentFor = "telemetry was silent"

// sleptMost allows for reading two clocks one after the other, in ns.
const sleptMost = 100e6

// env reduces the samples of a window. Nothing is judged here.
func (s *series) env(w window) matrix.Env {
	e := matrix.Env{BootIDStart: w.bootID}
	if !w.profile.Watched {
		return e
	}
	s.hostPart(w, &e)
	if mem, _, _ := between(s.mem, memAt, w.start, w.end); len(mem) > 0 {
		if base, ok := w.base.Get(); ok {
			low := mem[0].kib
			for _, x := range mem {
				low = min(low, x.kib)
			}
			e.PeakMemDeltaKiB = matrix.Some(base.AvailableKiB - low)
		}
	}
	if w.profile.GPU {
		s.gpuPart(w, &e)
	}
	return e
}

func (s *series) hostPart(w window, e *matrix.Env) {
	cannot := func(c matrix.LegCode, why string) { e.Unevaluable = append(e.Unevaluable, unevaluable(c, why)) }
	in, before, after := between(s.host, hostAt, w.start, w.end)
	all := spread(in, before, after)
	cpu := func(f func(hostSample) int64) (float64, bool) {
		return moved(all, hostAt, func(h hostSample) (int64, bool) { return f(h), !h.cannot }, w.start, w.end)
	}
	total, ok := cpu(func(h hostSample) int64 { return h.cpu.total })
	if !ok || total <= 0 {
		cannot(matrix.ForeignCPU, "no CPU times from /proc/stat over the window")
	} else {
		busy, _ := cpu(func(h hostSample) int64 { return h.cpu.busy })
		mine, _ := cpu(func(h hostSample) int64 { return h.ours })
		steal, _ := cpu(func(h hostSample) int64 { return h.cpu.steal })
		// The two sources tick apart; a hair below zero is zero.
		e.ForeignCPU = matrix.Some(max(0, busy-mine) / total)
		e.Steal = matrix.Some(max(0, steal) / total)
	}
	// CLOCK_MONOTONIC stands still while the box sleeps: only this tells that it was away.
	if n := len(all); n > 0 && all[n-1].slept-all[0].slept > sleptMost {
		e.HostVanished = true
	}
	first, last := int64(-1), int64(-1)
	for _, h := range all {
		if h.swap >= 0 {
			if first < 0 {
				first = h.swap
			}
			last = h.swap
		}
	}
	if first < 0 {
		cannot(matrix.SwapActivity, "/proc/vmstat names no pswpin and pswpout")
	} else {
		e.SwapDelta = matrix.Some(last - first)
	}
}

func (s *series) gpuPart(w window, e *matrix.Env) {
	cannot := func(c matrix.LegCode, why string) { e.Unevaluable = append(e.Unevaluable, unevaluable(c, why)) }
	in, _, _ := between(s.gpu, gpuAt, w.start, w.end)
	if len(in) == 0 {
		for _, c := range []matrix.LegCode{matrix.ClockThrottled, matrix.ThermalCounter, matrix.Cotenant} {
			cannot(c, errNoGPU.Error())
		}
		return
	}
	if gap := longestGap(in, w); gap > staleAfter {
		cannot(matrix.ClockThrottled, fmt.Sprintf(silentFor+" for %.1f s of the window", float64(gap)/1e9))
	}
	unmatchedMost, foreignMost := 0, 0
	for _, x := range in {
		e.GPULost = e.GPULost || x.lost
		foreignMost, unmatchedMost = max(foreignMost, x.foreign), max(unmatchedMost, x.unmatched)
	}
	// A foreign process is one whatever else there is; none seen says something only where every process could be matched.
	switch {
	case len(having(in, matrix.FieldProcesses)) == 0:
		cannot(matrix.Cotenant, "the device lists no processes")
	case foreignMost > 0 || unmatchedMost == 0:
		e.ForeignGPU = matrix.Some(int64(foreignMost))
	default:
		cannot(matrix.Cotenant, fmt.Sprintf("%d GPU processes belong to another PID namespace", unmatchedMost))
	}
	var thermal int64
	known := 0
	for _, f := range thermalFields {
		if d, ok := counterDelta(s.gpu, f, w.start, w.end); ok {
			thermal += d
			known++
		} else {
			cannot(matrix.ThermalCounter, f+" has no two readings that follow each other")
		}
	}
	if known > 0 {
		e.ThermalDelta = matrix.Some(thermal)
	}
	if mj, ok := energy(s.gpu, w.start, w.end); ok {
		e.EnergyMilliJoule = matrix.Some(mj)
	}
}

// thermalFields are the counters that must stand still (protocol §4.1 THERMAL_COUNTER).
var thermalFields = []string{matrix.FieldSWThermal, matrix.FieldHWThermal, matrix.FieldPowerBrake}

// longestGap is the longest stretch of the window without a fresh reading, in ns.
func longestGap(in []gpuSample, w window) int64 {
	last, longest := w.start, int64(0)
	for _, x := range in {
		if x.stale {
			continue
		}
		longest = max(longest, x.at-last)
		last = x.at
	}
	return max(longest, w.end-last)
}

// clock makes the 1 s series of protocol §2.7 from the raw samples: per second of the window the last clock, the maximum
// utilisation and the union of event bits. A second without a complete reading is missing from it, never zero. It is absent
// where the device tells no SM clock or no utilisation: then no clock gate can be judged.
func (s *series) clock(w window) (matrix.Opt[matrix.Clock], []string) {
	if !w.profile.GPU {
		return matrix.Opt[matrix.Clock]{}, nil
	}
	in, _, _ := between(s.gpu, gpuAt, w.start, w.end)
	c := matrix.Clock{BootID: w.bootID}
	var why []string
	second := int64(-1)
	bits := false
	for _, x := range in {
		mhz, ok1 := x.value(matrix.FieldSMClock)
		util, ok2 := x.value(matrix.FieldUtilization)
		if !ok1 || !ok2 {
			continue
		}
		if n := (x.at - w.start) / 1e9; n != second {
			second = n
			c.Seconds = append(c.Seconds, matrix.ClockSecond{})
		}
		cur := &c.Seconds[len(c.Seconds)-1]
		cur.MHz = mhz
		cur.Util = max(cur.Util, util)
		if b, ok := x.value(matrix.FieldEventReasons); ok {
			cur.Bits |= uint64(b)
			bits = true
		}
	}
	if len(c.Seconds) == 0 {
		return matrix.Opt[matrix.Clock]{}, []string{"CLOCK: the device tells no SM clock with utilisation in this window"}
	}
	if !bits {
		why = append(why, unevaluable(matrix.ClockThrottled, "the device tells no event reasons"))
	}
	for _, h := range w.heads {
		head, _, _ := between(in, gpuAt, h[0], h[1])
		for _, x := range head {
			if mhz, ok := x.value(matrix.FieldSMClock); ok {
				c.HeadMHz = append(c.HeadMHz, mhz)
			}
		}
	}
	if d, ok := w.device.Get(); ok {
		c.Static, c.Persistence, c.MaxMHz = staticFacts(d)
	}
	return matrix.Some(c), why
}

// staticFacts are the fields that both legs of a block must share (protocol §4.2).
func staticFacts(d matrix.Device) (matrix.Facts, matrix.Opt[bool], matrix.Opt[int64]) {
	static := matrix.Facts{
		{Name: "name", Value: d.Name, Where: "telemetry", Standing: matrix.Observed},
		{Name: "uuid", Value: d.UUID, Where: "telemetry", Standing: matrix.Observed},
	}
	for _, n := range []string{matrix.DeviceFactDriver, matrix.DeviceFactVBIOS, matrix.DeviceFactMemory, matrix.DeviceFactPersistence} {
		if f, ok := d.Facts.Get(n); ok {
			static = append(static, f)
		}
	}
	var persistence matrix.Opt[bool]
	if v, ok := d.Facts.Value(matrix.DeviceFactPersistence).Get(); ok {
		persistence = matrix.Some(v == "on")
	}
	var most matrix.Opt[int64]
	if v, ok := d.Facts.Value(matrix.DeviceFactMaxSM).Get(); ok {
		if n, err := strconv.ParseInt(v, 10, 64); err == nil {
			most = matrix.Some(n)
		}
	}
	return static, persistence, most
}
