package gates

import (
	"fmt"

	"enginebroker/matrix"
)

// env judges what the box showed around a load and a leg (protocol §2.6, §2.7, §4.1). A reading the box did not give
// makes its gate absent.
func (r *result) env(e matrix.Env, p Profile) {
	if e.GPULost {
		r.fail(matrix.GPULost, "the card fell off the bus")
	}
	if e.KilledByHost != "" {
		r.fail(matrix.KilledByHost, "the engine was ended by %s", e.KilledByHost)
	}
	if e.HostVanished {
		r.fail(matrix.HostVanished, "the machine went away during the leg")
	}
	if e.BootIDStart != e.BootIDEnd {
		r.fail(matrix.ClockBootMismatchC, "boot %s at the start, %s at the end", e.BootIDStart, e.BootIDEnd)
	}
	if p.Clock {
		judge(r, matrix.ThermalCounter, e.ThermalDelta, 0, "a thermal or power-brake counter moved by %v ns")
	}
	if p.GPUProcesses {
		judge(r, matrix.Cotenant, e.ForeignGPU, 0, "%v foreign compute processes on the card")
	}
	if p.PageCache {
		judge(r, matrix.PageCacheResident, e.ResidentPages, 0, "%v pages of artifact or binary were resident before the load")
	}
	if p.Swap {
		judge(r, matrix.SwapActivity, e.SwapDelta, 0, "%v pages were swapped")
	}
	if p.Memory {
		base, ok1 := e.MemBaselineKiB.Get()
		before, ok2 := e.MemBeforeKiB.Get()
		switch {
		case !ok1 || !ok2:
			r.absent(matrix.MemoryNotReturned)
		case before < base-p.MemorySlack:
			r.fail(matrix.MemoryNotReturned, "%d KiB free before the load, baseline %d, at most %d below it", before, base, p.MemorySlack)
		}
	}
	if limit, ok := p.LoadAverage.Get(); ok {
		judge(r, matrix.LoadAverageCode, e.LoadAverage, limit, "loadavg1 was %v before the load")
	}
	if limit, ok := p.ForeignCPU.Get(); ok {
		judge(r, matrix.ForeignCPU, percent(e.ForeignCPU), 100*limit, "foreign processes took %.1f %% of the box")
	}
	if limit, ok := p.Steal.Get(); ok {
		judge(r, matrix.ForeignCPU, percent(e.Steal), 100*limit, "the hypervisor took %.1f %% of the box")
	}
}

// percent turns a share into percent, as details are written.
func percent(share matrix.Opt[float64]) matrix.Opt[float64] {
	x, ok := share.Get()
	if !ok {
		return share
	}
	return matrix.Some(100 * x)
}

// judge fails a reading above its limit; a NaN is above every limit.
func judge[T int64 | float64](r *result, code matrix.LegCode, reading matrix.Opt[T], limit T, format string) {
	x, ok := reading.Get()
	switch {
	case !ok:
		r.absent(code)
	case !(x <= limit):
		r.fail(code, "%s", fmt.Sprintf(format, x)+fmt.Sprintf(", at most %v allowed", limit))
	}
}

// startCodes are the failures of a start that are the engine's doing, with the code of its legs. The others are not: a port
// that others hold, an engine that is not installed, a plugin that ended, and whatever an adapter may add.
var startCodes = map[string]matrix.LegCode{
	"exited": matrix.ServerDied, "not_ready": matrix.ServerDied, "killed": matrix.ServerDied, "wrong_model": matrix.IdentityChanged,
	"unsupported_flag": matrix.FailedRequests, "limits": matrix.FailedRequests, "bad_artifact": matrix.FailedRequests,
}

// EngineFailed reports that a load failed by the engine's doing, by the code of its failure.
func EngineFailed(code string) bool { return startCodes[code] != "" }

// Load judges a load that never came to its legs: its failure voids every leg it should have had. A load that was ready,
// or was only interrupted, has no code here.
func Load(rec matrix.LoadRecord, p Profile) matrix.GateResult {
	var r result
	f, failed := rec.Failure.Get()
	if !failed {
		return matrix.GateResult{}
	}
	switch code := startCodes[f.Code]; code {
	case "":
		r.fail(matrix.EvidenceMissing, "%s: %s", f.Code, f.Message)
	case matrix.FailedRequests:
		r.fail(code, "the engine refused the load: %s", f.Message)
	default:
		r.fail(code, "%s", f.Message)
	}
	r.env(rec.Env, p)
	r.Absent = nil // a leg that never ran has no gates left to list
	return r.done()
}
