// Package gates says which evidence counts. A leg that fails any gate is void: nothing of it is dropped and the rest
// kept, and no rate is made of it (protocol §4.1).
//
// Gates are judged on three levels, each on the records alone: a leg by itself (Leg), the legs of one run beside each
// other (Series: identity, canary, what voids a whole load), and the two arms of a pair (Blocks and Facts, protocol
// §4.2–4.3). Each failed gate is a code with a detail; several codes of a leg resolve to one cause, which decides
// whether the cell is withheld, the superblock run again, or the harness blamed.
//
// A gate that cannot be evaluated is not passed. It is listed as absent, and where the box is why, it costs certification.
package gates

import (
	"fmt"
	"slices"
	"strings"

	"enginebroker/matrix"
)

// excuses are, per code of the engine, the codes beside which it says nothing about the engine. A step inside a load beside
// a clock that moved is the box's doing (protocol §4.1). The rest extends that rule to boxes without clocks and to the
// client [own, docs/protocol.md §6]: a neighbour on the cores or a late reader makes a step as a clock does, and how a
// stream was spread is told by stamps that a late reader has falsified.
var excuses = map[matrix.LegCode][]matrix.LegCode{
	matrix.LoadStep: {matrix.ClockDegraded, matrix.ClockSpread, matrix.ClockThrottled, matrix.ThermalCounter,
		matrix.ForeignCPU, matrix.ClientLag},
	matrix.StreamSpread:   {matrix.ClientLag},
	matrix.BufferedStream: {matrix.ClientLag},
}

// Telling are the codes of a leg that say something: all but those that another one of them excuses.
func Telling(codes []matrix.LegCode) []matrix.LegCode {
	return slices.DeleteFunc(slices.Clone(codes), func(c matrix.LegCode) bool {
		return slices.ContainsFunc(codes, func(x matrix.LegCode) bool { return slices.Contains(excuses[c], x) })
	})
}

// hostExcuses explain an engine's failure whatever else is on the leg (protocol §4.1).
var hostExcuses = []matrix.LegCode{matrix.GPULost, matrix.KilledByHost, matrix.HostVanished}

// Cause resolves the codes of one leg: ENGINE before ENV before HARNESS, unless the host itself explains the failure
// (protocol §4.1, vectors L11–L14). No codes: no cause. An unknown code is an error.
func Cause(codes []matrix.LegCode) (matrix.Cause, error) {
	has := func(of []matrix.LegCode) bool {
		return slices.ContainsFunc(codes, func(c matrix.LegCode) bool { return slices.Contains(of, c) })
	}
	best, telling := matrix.Cause(""), Telling(codes)
	for _, code := range codes {
		cause, err := code.Cause()
		if err != nil {
			return "", err
		}
		if !slices.Contains(telling, code) {
			continue
		}
		if best == "" || rank(cause) > rank(best) {
			best = cause
		}
	}
	if has(hostExcuses) {
		best = matrix.CauseEnv
	}
	return best, nil
}

func rank(c matrix.Cause) int {
	return slices.Index([]matrix.Cause{matrix.CauseHarness, matrix.CauseEnv, matrix.CauseEngine}, c)
}

// result collects what the gates of one leg say.
type result struct{ matrix.GateResult }

func (r *result) fail(code matrix.LegCode, format string, args ...any) {
	if slices.Contains(r.Codes, code) {
		return
	}
	r.Codes = append(r.Codes, code)
	if r.Detail == nil {
		r.Detail = map[matrix.LegCode]string{}
	}
	r.Detail[code] = fmt.Sprintf(format, args...)
}

func (r *result) flag(name string) {
	if !slices.Contains(r.Flags, name) {
		r.Flags = append(r.Flags, name)
	}
}

func (r *result) absent(codes ...matrix.LegCode) {
	for _, c := range codes {
		if !slices.Contains(r.Absent, string(c)) {
			r.Absent = append(r.Absent, string(c))
		}
	}
}

// done sorts everything, so that a result does not depend on the order of the checks, and resolves the cause.
func (r *result) done() matrix.GateResult {
	slices.Sort(r.Codes)
	slices.Sort(r.Flags)
	slices.Sort(r.Absent)
	cause, err := Cause(r.Codes)
	if err != nil {
		panic(err) // every code this package sets has a cause
	}
	r.Cause = cause
	return r.GateResult
}

// Add returns the result with one more code, its cause resolved again. The result given is left as it is.
func Add(g matrix.GateResult, code matrix.LegCode, detail string) matrix.GateResult {
	r := result{g}
	r.Codes, r.Flags, r.Absent = slices.Clone(g.Codes), slices.Clone(g.Flags), slices.Clone(g.Absent)
	r.Detail = map[matrix.LegCode]string{}
	for c, d := range g.Detail {
		r.Detail[c] = d
	}
	r.fail(code, "%s", detail)
	return r.done()
}

// FlagITLCoalesced marks a leg whose per-token gaps cannot be derived; its other metrics stand.
const FlagITLCoalesced = "ITL_COALESCED"

// FlagClientLag says that ITL is withheld for the client's own lateness.
const FlagClientLag = "client_lag"

// join lists at most three of many.
func join(items []string) string {
	if len(items) > 3 {
		return strings.Join(items[:3], ", ") + fmt.Sprintf(" and %d more", len(items)-3)
	}
	return strings.Join(items, ", ")
}
