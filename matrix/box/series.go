package box

import (
	"math"
	"slices"

	"enginebroker/matrix"
)

// series is what a watch has seen: three streams of samples, each in order of time.
type series struct {
	gpu  []gpuSample  // telemetry rate
	mem  []memSample  // the memory guard's
	host []hostSample // once a second, and at the ends of windows
}

// gpuFields are the telemetry fields that are kept, in the order of gpuSample's arrays.
var gpuFields = []string{
	matrix.FieldSMClock, matrix.FieldMemClock, matrix.FieldUtilization, matrix.FieldPower, matrix.FieldEnergy,
	matrix.FieldTemperature, matrix.FieldEventReasons, matrix.FieldMemUsed, matrix.FieldMemFree,
	matrix.FieldSWThermal, matrix.FieldHWThermal, matrix.FieldPowerBrake, matrix.FieldSWPowerCap, matrix.FieldPState,
	matrix.FieldProcesses,
}

const gpuFieldCount = 15

// gpuSample is a matrix.Sample without its maps: a watch keeps hours of them.
type gpuSample struct {
	at        int64
	present   uint16 // bit i: gpuFields[i] has a value
	stale     bool   // any field did not come in time
	lost      bool   // the driver says the card fell off
	foreign   int    // processes on the card that are not ours
	unmatched int    // processes on the card that this /proc does not show
	values    [gpuFieldCount]int64
	why       [gpuFieldCount]matrix.ReadingStatus // where there is no value; empty where the field was not due
}

var fieldIndex = func() map[string]int {
	m := map[string]int{}
	for i, f := range gpuFields {
		m[f] = i
	}
	return m
}()

func (s gpuSample) value(field string) (int64, bool) {
	i := fieldIndex[field]
	return s.values[i], s.present&(1<<i) != 0
}

// compact keeps of a sample what is known; classify says what a process on the card is.
func compact(in matrix.Sample, classify func(pid int) ownership) gpuSample {
	out := gpuSample{at: in.At}
	for i, name := range gpuFields {
		r, ok := in.Fields[name]
		v, has := r.Value.Get()
		switch {
		case !ok: // counters do not come with every sample
		case r.Status == matrix.ReadingValue && has:
			out.values[i] = v
			out.present |= 1 << i
		default:
			out.why[i] = r.Status
			out.stale = out.stale || r.Status == matrix.ReadingStale
			out.lost = out.lost || r.Code == matrix.CodeGPULost
		}
	}
	for _, p := range in.Processes {
		switch classify(p.PID) {
		case foreign:
			out.foreign++
		case unmatched:
			out.unmatched++
		}
	}
	return out
}

type ownership int

const (
	ours ownership = iota
	foreign
	unmatched // from another PID namespace: neither foreign nor ours (bugs.md H08)
)

// hostSample is one reading of the host's counters.
type hostSample struct {
	at                int64
	cpu               cpuStat
	ours              int64 // ticks of the engine's tree and the broker
	swap              int64 // pswpin + pswpout, pages; -1 where unknown
	load              float64
	stallCPU, stallIO int64 // PSI some, µs; -1 where unknown
	stallMem          int64
	slept             int64 // ns this boot has been suspended
	cannot            bool  // /proc/stat could not be read
}

// between returns the part of a stream inside [start, end], and the whole stream's samples just outside it.
func between[T any](all []T, at func(T) int64, start, end int64) (in []T, before, after *T) {
	lo, _ := slices.BinarySearchFunc(all, start, func(x T, t int64) int { return sign(at(x), t) })
	hi := lo
	for hi < len(all) && at(all[hi]) <= end {
		hi++
	}
	if lo > 0 {
		before = &all[lo-1]
	}
	if hi < len(all) {
		after = &all[hi]
	}
	return all[lo:hi], before, after
}

func sign(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func gpuAt(s gpuSample) int64   { return s.at }
func memAt(s memSample) int64   { return s.at }
func hostAt(s hostSample) int64 { return s.at }

// spread adds the nearest samples outside a window to those inside it, so that a counter's move at the very edge is seen.
func spread[T any](in []T, before, after *T) []T {
	var out []T
	if before != nil {
		out = append(out, *before)
	}
	out = append(out, in...)
	if after != nil {
		out = append(out, *after)
	}
	return out
}

// counterDelta is what a counter moved over a window and to the nearest readings around it. A counter that fell was reset
// by a driver reload: then nothing is known.
func counterDelta(all []gpuSample, field string, start, end int64) (int64, bool) {
	s := spread(between(having(all, field), gpuAt, start, end))
	if len(s) < 2 {
		return 0, false
	}
	last, _ := s[0].value(field)
	first := last
	for _, x := range s[1:] {
		v, _ := x.value(field)
		if v < last {
			return 0, false
		}
		last = v
	}
	return last - first, true
}

// having returns the samples that have a value of the field.
func having(all []gpuSample, field string) []gpuSample {
	var out []gpuSample
	for _, x := range all {
		if _, ok := x.value(field); ok {
			out = append(out, x)
		}
	}
	return out
}

// energy is the energy of exactly [start, end] in mJ: the counter's readings, carried to the ends with the power readings
// that lie between, because the counter is read only every few seconds and a window begins and ends under load.
func energy(all []gpuSample, start, end int64) (int64, bool) {
	counter, power := having(all, matrix.FieldEnergy), having(all, matrix.FieldPower)
	if len(counter) == 0 || len(power) == 0 {
		return 0, false
	}
	at := func(t int64) float64 {
		from := counter[0]
		for _, x := range counter {
			if x.at <= t {
				from = x
			}
		}
		e, _ := from.value(matrix.FieldEnergy)
		return float64(e) + work(power, from.at, t)
	}
	if _, ok := counterDelta(all, matrix.FieldEnergy, start, end); !ok {
		return 0, false
	}
	d := at(end) - at(start)
	return int64(math.Round(d)), d >= 0
}

// work is the integral of the power readings from one time to a later or earlier one, in mJ; a reading holds until the next.
func work(power []gpuSample, from, to int64) float64 {
	if to < from {
		return -work(power, to, from)
	}
	var sum float64
	for i, x := range power {
		a, b := x.at, int64(math.MaxInt64)
		if i == 0 {
			a = math.MinInt64
		}
		if i+1 < len(power) {
			b = power[i+1].at
		}
		if lo, hi := max(a, from), min(b, to); hi > lo {
			mw, _ := x.value(matrix.FieldPower)
			sum += float64(mw) * float64(hi-lo) / 1e9
		}
	}
	return sum
}

// interpolate reads a counter between two samples.
func interpolate(t, t0, t1, v0, v1 int64) float64 {
	if t1 <= t0 {
		return float64(v1)
	}
	f := math.Min(1, math.Max(0, float64(t-t0)/float64(t1-t0)))
	return float64(v0) + f*float64(v1-v0)
}

// moved is a counter's move over exactly [start, end], interpolated at both ends.
func moved[T any](all []T, at func(T) int64, get func(T) (int64, bool), start, end int64) (float64, bool) {
	edge := func(t int64) (float64, bool) {
		var p, q *T
		for i := range all {
			if _, ok := get(all[i]); !ok {
				continue
			}
			if at(all[i]) <= t {
				p = &all[i]
			} else if q == nil {
				q = &all[i]
			}
		}
		switch {
		case p == nil && q == nil:
			return 0, false
		case p == nil:
			v, _ := get(*q)
			return float64(v), true
		case q == nil:
			v, _ := get(*p)
			return float64(v), true
		}
		v0, _ := get(*p)
		v1, _ := get(*q)
		return interpolate(t, at(*p), at(*q), v0, v1), true
	}
	a, ok1 := edge(start)
	b, ok2 := edge(end)
	return b - a, ok1 && ok2
}
