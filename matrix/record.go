package matrix

import "time"

// LegID names a leg in a run: the slot of its load, the grid, the attempt and the point.
type LegID struct {
	Load       int    `json:"load"` // sequence number of the load in the run: a superblock that is begun anew has new loads
	Grid       int    `json:"grid"`
	Group      string `json:"group"`
	Superblock int    `json:"superblock"` // planned index; a re-run superblock keeps drawing new ones
	Block      int    `json:"block"`
	Position   int    `json:"position"`
	Arm        string `json:"arm"`
	Point      string `json:"point"`
	LeadIn     bool   `json:"lead_in,omitempty"`
}

// Env is what the box showed around a load and a leg. Absent: the box or its profile cannot tell, and the gate is not evaluable.
type Env struct {
	BootIDStart      string       `json:"boot_id_start"`
	BootIDEnd        string       `json:"boot_id_end"`
	ForeignGPU       Opt[int64]   `json:"foreign_gpu_procs,omitzero"` // the most seen at start, end or any sample
	MemBaselineKiB   Opt[int64]   `json:"mem_baseline_kib,omitzero"`
	MemBeforeKiB     Opt[int64]   `json:"mem_before_kib,omitzero"` // before the load, after the wait
	ResidentPages    Opt[int64]   `json:"resident_pages,omitzero"`
	LoadAverage      Opt[float64] `json:"loadavg1,omitzero"`
	ForeignCPU       Opt[float64] `json:"foreign_cpu,omitzero"` // share of the box over the leg, 0..1
	Steal            Opt[float64] `json:"steal,omitzero"`       // share, 0..1
	ThermalDelta     Opt[int64]   `json:"thermal_delta_ns,omitzero"`
	SwapDelta        Opt[int64]   `json:"swap_delta_pages,omitzero"`
	PeakMemDeltaKiB  Opt[int64]   `json:"peak_mem_delta_kib,omitzero"` // peak of (baseline − MemAvailable)
	ThermalOffset    bool         `json:"thermal_start_offset,omitempty"`
	GPULost          bool         `json:"gpu_lost,omitempty"`
	KilledByHost     string       `json:"killed_by_host,omitempty"` // who
	HostVanished     bool         `json:"host_vanished,omitempty"`
	EnergyMilliJoule Opt[int64]   `json:"energy_mj,omitzero"`
	SettleTook       int64        `json:"settle_ns,omitempty"`
	Unevaluable      []string     `json:"unevaluable,omitempty"` // gates this box could not judge
}

// Clock is the SM clock record of one leg: a 1 s series made from the raw samples (protocol §2.7).
type Clock struct {
	Seconds     []ClockSecond `json:"seconds"`
	Persistence Opt[bool]     `json:"persistence,omitzero"`
	Static      Facts         `json:"static,omitempty"` // name, uuid, driver, vbios, memory size, persistence
	BootID      string        `json:"boot_id"`
	MaxMHz      Opt[int64]    `json:"max_mhz,omitzero"`
	HeadMHz     []int64       `json:"head_mhz,omitempty"` // samples inside [request start, first token]
	MeanMissing bool          `json:"mean_missing,omitempty"`
}

// ClockSecond is one second: last clock, maximum utilisation, union of event bits.
type ClockSecond struct {
	MHz  int64  `json:"mhz"`
	Util int64  `json:"util"`
	Bits uint64 `json:"bits"`
}

// CanaryResult is one canary pass.
type CanaryResult struct {
	When string       `json:"when"` // before, or between:POINT
	OK   bool         `json:"ok"`
	Got  string       `json:"got"`
	Want string       `json:"want"` // the answer, or "self-match"
	Rate Opt[float64] `json:"tok_s,omitzero"`
}

// LegRecord is the evidence of one leg, before any judgement.
type LegRecord struct {
	ID          LegID             `json:"id"`
	ArmKey      string            `json:"arm_key"`
	ArmPrint    string            `json:"arm_print"`
	MethodID    string            `json:"method_id"`
	LoadID      string            `json:"load_id"`
	Seq         int               `json:"seq"` // execution order in the run
	StartUTC    time.Time         `json:"start_utc"`
	EndUTC      time.Time         `json:"end_utc"`
	Repetitions []Repetition      `json:"repetitions"`
	Warmup      []Request         `json:"warmup,omitempty"` // labelled warmup-discard, in no rate
	Env         Env               `json:"env"`
	Clock       Opt[Clock]        `json:"clock,omitzero"`
	Canaries    []CanaryResult    `json:"canaries,omitempty"` // before and after this leg
	Died        bool              `json:"died,omitempty"`     // server process gone or restarted
	Hung        bool              `json:"hung,omitempty"`
	Counter     Opt[CounterDelta] `json:"counter,omitzero"`
	PrintEnd    string            `json:"arm_print_end"`
	MethodEnd   string            `json:"method_id_end"`
	Missing     []string          `json:"missing,omitempty"` // evidence that should exist and does not
	Note        string            `json:"note,omitempty"`
}

// CounterDelta is what the engine's own counters moved over the leg.
type CounterDelta struct {
	Generated Opt[int64] `json:"generated,omitzero"`
	Cached    Opt[int64] `json:"cached,omitzero"`
	Drafted   Opt[int64] `json:"drafted,omitzero"`
	Accepted  Opt[int64] `json:"accepted,omitzero"`
	Exact     bool       `json:"exact,omitempty"` // the dialect vouches that Generated counts what complete answers report
}

// Answered sums the tokens that the server reported for the requests of a leg, its warm-up included, as the engine's own
// counter saw them: CounterDelta.Generated runs from before the warm-up to after the last repetition. False where a request
// was not answered in full or has no count, so that there is nothing to hold against the counter.
func (r LegRecord) Answered() (tokens int64, ok bool) {
	sum := func(reqs []Request) bool {
		for _, q := range reqs {
			n, counted := q.CompletionTokens.Get()
			if !counted || q.Outcome != OutcomeOK {
				return false
			}
			tokens += n
		}
		return true
	}
	if len(r.Warmup) == 0 || !sum(r.Warmup) {
		return 0, false
	}
	for _, rep := range r.Repetitions {
		if len(rep.Requests) != rep.Planned || !sum(rep.Requests) {
			return 0, false
		}
	}
	return tokens, true
}

// LoadRecord is the evidence of one load.
type LoadRecord struct {
	ID       string            `json:"id"`
	Grid     int               `json:"grid"`
	Seq      int               `json:"seq"`
	Slot     Slot              `json:"slot"`
	Group    string            `json:"group"`
	ArmKey   string            `json:"arm_key"`
	StartUTC time.Time         `json:"start_utc"`
	EndUTC   time.Time         `json:"end_utc"`
	Ready    Opt[Ready]        `json:"ready,omitzero"`
	Failure  Opt[StartFailure] `json:"failure,omitzero"`
	Pin      Opt[PinCheck]     `json:"pin,omitzero"`
	Env      Env               `json:"env"`
	Canaries []CanaryResult    `json:"canaries,omitempty"`
	Stopped  Opt[Stopped]      `json:"stopped,omitzero"`
	Aborted  string            `json:"aborted,omitempty"` // why the load ended before its legs
}

// PinCheck is what comparing a running arm with its declared pin gave.
type PinCheck struct {
	Pin      string        `json:"pin"`
	OK       bool          `json:"ok"`
	Mismatch []PinMismatch `json:"mismatch,omitempty"`
	Unlisted []string      `json:"unlisted,omitempty"` // artifacts that were opened and that the pin has no manifest of
}

// PinMismatch is one field of a pin that what runs does not match.
type PinMismatch struct {
	Field    string `json:"field"`
	Expected string `json:"expected"`
	Found    string `json:"found"`
	Where    string `json:"where"`
}
