package box

import (
	"bufio"
	"encoding/json"
	"io"
	"slices"

	"enginebroker/matrix"
)

// rawSchema versions the JSON lines below.
const rawSchema = 1

// rawHead is the first line of a window's raw samples; the lines after it carry exactly one of gpu, mem and host. Stamps
// are CLOCK_MONOTONIC ns of the boot named here.
type rawHead struct {
	Schema  int    `json:"schema"`
	BootID  string `json:"boot_id"`
	Profile string `json:"box_profile"`
	Device  string `json:"gpu_uuid,omitempty"`
	Start   int64  `json:"start_ns"`
	End     int64  `json:"end_ns"`
}

type rawLine struct {
	At   int64    `json:"at_ns"`
	GPU  *rawGPU  `json:"gpu,omitempty"`
	Mem  *int64   `json:"mem_available_kib,omitempty"`
	Host *rawHost `json:"host,omitempty"`
}

type rawGPU struct {
	Values    map[string]int64                `json:"values"`
	Missing   map[string]matrix.ReadingStatus `json:"missing,omitempty"`
	Foreign   int                             `json:"foreign_procs"`
	Unmatched int                             `json:"unmatched_procs"`
	Lost      bool                            `json:"gpu_lost,omitempty"`
}

// rawHost is in clock ticks over all CPUs; -1 is unknown.
type rawHost struct {
	Busy     int64   `json:"busy"`
	Ours     int64   `json:"ours"`
	Steal    int64   `json:"steal"`
	Total    int64   `json:"total"`
	Swap     int64   `json:"swap_pages"`
	Load     float64 `json:"loadavg1"`
	StallCPU int64   `json:"psi_cpu_us"`
	StallIO  int64   `json:"psi_io_us"`
	StallMem int64   `json:"psi_memory_us"`
	Slept    int64   `json:"suspended_ns"`
}

// raw copies the window's samples and the nearest ones around it, and returns a writer of them: one JSON value a line, in
// order of time within each kind.
func (s *series) raw(w window) func(io.Writer) error {
	gpu := slices.Clone(spread(between(s.gpu, gpuAt, w.start, w.end)))
	mem := slices.Clone(spread(between(s.mem, memAt, w.start, w.end)))
	host := slices.Clone(spread(between(s.host, hostAt, w.start, w.end)))
	head := rawHead{Schema: rawSchema, BootID: w.bootID, Profile: w.profile.Name, Start: w.start, End: w.end}
	if d, ok := w.device.Get(); ok {
		head.Device = d.UUID
	}
	return func(to io.Writer) error {
		buf := bufio.NewWriter(to)
		enc := json.NewEncoder(buf)
		if err := enc.Encode(head); err != nil {
			return err
		}
		for _, x := range gpu {
			if err := enc.Encode(rawLine{At: x.at, GPU: x.raw()}); err != nil {
				return err
			}
		}
		for _, x := range mem {
			if err := enc.Encode(rawLine{At: x.at, Mem: &x.kib}); err != nil {
				return err
			}
		}
		for _, x := range host {
			if err := enc.Encode(rawLine{At: x.at, Host: &rawHost{Busy: x.cpu.busy, Ours: x.ours, Steal: x.cpu.steal, Total: x.cpu.total,
				Swap: x.swap, Load: x.load, StallCPU: x.stallCPU, StallIO: x.stallIO, StallMem: x.stallMem, Slept: x.slept}}); err != nil {
				return err
			}
		}
		return buf.Flush()
	}
}

func (x gpuSample) raw() *rawGPU {
	r := &rawGPU{Values: map[string]int64{}, Foreign: x.foreign, Unmatched: x.unmatched, Lost: x.lost}
	for i, f := range gpuFields {
		if v, ok := x.value(f); ok {
			r.Values[f] = v
		} else if x.why[i] != "" {
			if r.Missing == nil {
				r.Missing = map[string]matrix.ReadingStatus{}
			}
			r.Missing[f] = x.why[i]
		}
	}
	return r
}
