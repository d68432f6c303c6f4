package box

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"enginebroker/matrix"
)

// Profile is what this room does differently on the kinds of box of protocol §2.7. Thresholds that judge a leg belong to
// gates; these are the ones that decide how long to wait.
type Profile struct {
	Name string
	// GPU says that clock, heat and GPU neighbours exist here and are to be watched.
	GPU bool
	// Memory says what has to come back before the next load.
	Memory MemoryKind
	// Quiet is how long to wait after memory is back (§2.6: 60 s; cpu 2 s).
	Quiet time.Duration
	// Temperature says to wait until the GPU is within 5 °C of T0 (§2.6).
	Temperature bool
	// LoadAverage says that loadavg1 ≤ 1.0 is wanted before a load (§2.7).
	LoadAverage bool
	// Watched says that /proc is sampled at all; a simulated engine has no box.
	Watched bool
	// Certifies is the highest verdict a cell of this box can carry (§2.7).
	Certifies matrix.Verdict
}

// MemoryKind says which memory is watched between loads.
type MemoryKind string

const (
	MemoryHost   MemoryKind = "MemAvailable"    // unified memory, or no GPU
	MemoryDevice MemoryKind = "free GPU memory" // a discrete card
	MemoryNone   MemoryKind = ""
)

// Settle limits of protocol §2.6.
const (
	memorySlackKiB   = 1 << 20 // back at the baseline means within 1 GiB
	memoryLimit      = 120 * time.Second
	temperatureSlack = 5 // °C above T0
	settleLimit      = 300 * time.Second
	loadAverageMax   = 1.0
)

var profiles = []Profile{
	{Name: "gb10", GPU: true, Memory: MemoryHost, Quiet: 60 * time.Second, Temperature: true, LoadAverage: true, Watched: true, Certifies: matrix.Established},
	{Name: "nvidia", GPU: true, Memory: MemoryDevice, Quiet: 60 * time.Second, Temperature: true, LoadAverage: true, Watched: true, Certifies: matrix.Established},
	{Name: "cpu", Memory: MemoryHost, Quiet: 2 * time.Second, Watched: true, Certifies: matrix.Provisional},
	{Name: "simulated", Certifies: matrix.Provisional},
}

// pick takes the named profile, or the one the device speaks for: gb10 by its name, nvidia for any other card, else cpu.
// simulated is never detected. Where the named profile is of another device, unlike says so, and the profile is the one of what is here.
func pick(name string, device matrix.Opt[matrix.Device]) (p Profile, unlike string, err error) {
	d, has := device.Get()
	found := "cpu"
	if has {
		found = "nvidia"
		if strings.Contains(d.Name, "GB10") {
			found = "gb10"
		}
	}
	if name == "" {
		name = found
	}
	i := slices.IndexFunc(profiles, func(p Profile) bool { return p.Name == name })
	if i < 0 {
		return p, "", fmt.Errorf("unknown box profile %q; there is gb10, nvidia, cpu and simulated", name)
	}
	if p = profiles[i]; p.GPU && p.Name != found {
		unlike = fmt.Sprintf("box profile %s is asked for, but what telemetry shows is %s (%s); leave the profile out to detect it, or repair the telemetry plugin", name, found, orNone(d.Name))
		p, _, err = pick("", device)
	}
	return p, unlike, err
}

func orNone(s string) string {
	if s == "" {
		return "no device"
	}
	return s
}
