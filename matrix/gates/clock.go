package gates

import (
	"fmt"
	"math"
	"math/bits"
	"slices"

	"enginebroker/matrix"
	"enginebroker/matrix/stats"
)

// Clock limits (protocol §4.1–4.2; [V] assert-clock, bench-assert-clock-state). Percentages are inclusive with clockEps.
const (
	clockMinBusy     = 30
	clockMinFraction = 0.5
	clockMaxSpread   = 5.0
	clockMaxOffset   = 1.0
	clockEps         = 1e-9
	flatSpread       = 1.5 // percent, merged: "pinned flat" [own]
	headSamples      = 30  // inside [request start, first token], per arm (protocol §4.5)
)

// ClockStats is what a window of the 1 s series, or several windows merged, says. Busy means utilisation > 0.
type ClockStats struct {
	Busy, Idle int
	Median     float64             // MHz over busy samples; median of medians when merged
	Mean       matrix.Opt[float64] // MHz; sample-weighted when merged; absent where the window recorded none
	Min, Max   float64
	SpreadPct  float64 // (max−min)/median
	Bits       uint64  // union over busy and idle samples
	BootID     string
}

// MeanCostPct is (median − mean)/median in percent; absent without a mean.
func (s ClockStats) MeanCostPct() matrix.Opt[float64] {
	m, ok := s.Mean.Get()
	if !ok || s.Median == 0 {
		return matrix.Opt[float64]{}
	}
	return matrix.Some(100 * (s.Median - m) / s.Median)
}

// ClockWindow reduces one leg's series. A series without busy seconds has zero Busy and no figures.
func ClockWindow(c matrix.Clock) ClockStats {
	s := ClockStats{BootID: c.BootID}
	mhz := make([]int64, 0, len(c.Seconds))
	sum := 0.0
	for _, x := range c.Seconds {
		s.Bits |= x.Bits
		if x.Util <= 0 {
			s.Idle++
			continue
		}
		mhz = append(mhz, x.MHz)
		sum += float64(x.MHz)
	}
	s.Busy = len(mhz)
	if s.Busy == 0 {
		return s
	}
	slices.Sort(mhz)
	s.Median = float64(mhz[(s.Busy-1)/2]+mhz[s.Busy/2]) / 2
	s.Min, s.Max = float64(mhz[0]), float64(mhz[s.Busy-1])
	if !c.MeanMissing {
		s.Mean = matrix.Some(sum / float64(s.Busy))
	}
	s.spread()
	return s
}

func (s *ClockStats) spread() {
	if s.Median > 0 {
		s.SpreadPct = 100 * (s.Max - s.Min) / s.Median
	}
}

// ClockMerge merges the windows of one arm: mean weighted by sample count, median of medians, range and event bits over
// all (protocol §4.2, vectors K15, K16). Windows of two boots cannot be merged; windows without busy samples add nothing.
func ClockMerge(windows []ClockStats) (ClockStats, error) {
	var out ClockStats
	var medians []float64
	sum, mean := 0.0, true
	for i, w := range windows {
		switch {
		case i == 0:
			out.BootID = w.BootID
		case w.BootID != out.BootID:
			return ClockStats{}, fmt.Errorf("clock windows of boots %s and %s cannot be merged", out.BootID, w.BootID)
		}
		out.Bits |= w.Bits
		out.Idle += w.Idle
		if w.Busy == 0 {
			continue
		}
		m, ok := w.Mean.Get()
		mean = mean && ok
		sum += m * float64(w.Busy)
		if out.Busy == 0 {
			out.Min, out.Max = w.Min, w.Max
		}
		out.Min, out.Max = math.Min(out.Min, w.Min), math.Max(out.Max, w.Max)
		out.Busy += w.Busy
		medians = append(medians, w.Median)
	}
	if out.Busy == 0 {
		return out, nil
	}
	med, err := stats.Median(medians)
	if err != nil {
		return ClockStats{}, err
	}
	out.Median = med
	if mean {
		out.Mean = matrix.Some(sum / float64(out.Busy))
	}
	out.spread()
	return out, nil
}

// ClockCodes judges one window, or a merged one, by the leg rules that need nothing but the series (protocol §4.1).
func ClockCodes(s ClockStats, mask uint64) []matrix.LegCode {
	var out []matrix.LegCode
	if s.Busy < clockMinBusy {
		out = append(out, matrix.ClockFewBusy)
	}
	if n := s.Busy + s.Idle; n == 0 || float64(s.Busy)/float64(n) < clockMinFraction {
		out = append(out, matrix.ClockBusyFraction)
	}
	if s.SpreadPct > clockMaxSpread+clockEps {
		out = append(out, matrix.ClockSpread)
	}
	if s.Bits&^mask != 0 {
		out = append(out, matrix.ClockThrottled)
	}
	return out
}

// Offsets compares two windows: a/b − 1 in percent, the clock allowance κ (protocol §3.3) and the reported burdens.
type Offsets struct {
	MedianPct matrix.Opt[float64]
	MeanPct   matrix.Opt[float64]
	Kappa     matrix.Opt[float64]
	BurdenPct matrix.Opt[float64] // |cost_a − cost_b| of absolute values: reported, never judged (case C)
}

// ClockCompare compares the windows of the two arms of a block, or two merged arms (protocol §4.2). A missing mean is a
// refusal, not a skip.
func ClockCompare(a, b ClockStats) (Offsets, []matrix.LegCode) {
	var o Offsets
	var codes []matrix.LegCode
	if a.BootID != b.BootID {
		codes = append(codes, matrix.ClockBootMismatchC)
	}
	if a.Median > 0 && b.Median > 0 {
		off := 100 * (a.Median/b.Median - 1)
		o.MedianPct = matrix.Some(off)
		if math.Abs(off) > clockMaxOffset+clockEps {
			codes = append(codes, matrix.ClockMedianOffset)
		}
	}
	ma, okA := a.Mean.Get()
	mb, okB := b.Mean.Get()
	if !okA || !okB || mb <= 0 {
		return o, append(codes, matrix.ClockMeanMissing)
	}
	off := 100 * (ma/mb - 1)
	o.MeanPct = matrix.Some(off)
	if math.Abs(off) > clockMaxOffset+clockEps {
		codes = append(codes, matrix.ClockMeanOffset)
	}
	o.Kappa = matrix.Some(math.Log1p(math.Max(math.Abs(o.MedianPct.Or(0)), math.Abs(off)) / 100))
	ca, cb := a.MeanCostPct(), b.MeanCostPct()
	if ca.Present() && cb.Present() {
		o.BurdenPct = matrix.Some(math.Abs(math.Abs(ca.Or(0)) - math.Abs(cb.Or(0))))
	}
	return o, codes
}

// eventNames are the clock event reasons of NVML without their prefix (gb10-nvml §4).
var eventNames = map[uint64]string{
	0x001: "GpuIdle", 0x002: "ApplicationsClocksSetting", 0x004: "SwPowerCap", 0x008: "HwSlowdown", 0x010: "SyncBoost",
	0x020: "SwThermalSlowdown", 0x040: "HwThermalSlowdown", 0x080: "HwPowerBrakeSlowdown", 0x100: "DisplayClockSetting",
}

// ThrottleNames names the bits of an event mask, sorted; a bit nobody has named yet is written as unknown, never dropped.
func ThrottleNames(mask uint64) []string {
	var out []string
	for ; mask != 0; mask &= mask - 1 {
		bit := uint64(1) << bits.TrailingZeros64(mask)
		name, ok := eventNames[bit]
		if !ok {
			name = fmt.Sprintf("unknown 0x%x", bit)
		}
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// CleanWindow is the chance that a window of n requests carries no label when each carries one with probability p
// (protocol §4.7, vector K18).
func CleanWindow(p float64, requests int) (float64, error) {
	if requests < 0 || !(p >= 0 && p <= 1) {
		return 0, fmt.Errorf("clean window: %d requests at probability %v", requests, p)
	}
	return math.Pow(1-p, float64(requests)), nil
}

// HeadObserved reports whether the clock on request heads is known well enough for phase metrics: both arms pinned flat,
// or at least 30 samples inside [request start, first token] per arm whose means agree within 1 % (protocol §4.5).
func HeadObserved(a, b ClockStats, headA, headB []int64) bool {
	if a.Busy > 0 && b.Busy > 0 && a.SpreadPct <= flatSpread && b.SpreadPct <= flatSpread {
		return true
	}
	if len(headA) < headSamples || len(headB) < headSamples {
		return false
	}
	ma, mb := meanInt(headA), meanInt(headB)
	return mb > 0 && math.Abs(100*(ma/mb-1)) <= clockMaxOffset+clockEps
}

func meanInt(xs []int64) float64 {
	sum := 0.0
	for _, x := range xs {
		sum += float64(x)
	}
	return sum / float64(len(xs))
}
