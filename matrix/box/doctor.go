package box

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"enginebroker/matrix"
)

// State is what a finding says.
type State string

const (
	StateOK     State = "ok"
	StateCannot State = "cannot" // this box cannot certify it as it is
	StateNote   State = "note"   // worth knowing; costs nothing
)

// Finding is one line of a diagnosis: what was looked at, what was seen, what it costs and the way out.
type Finding struct {
	What  string `json:"what"`
	State State  `json:"state"`
	Saw   string `json:"saw"`
	Costs string `json:"costs,omitempty"` // gate or reason that follows from it
	Fix   string `json:"fix,omitempty"`   // command or step; the broker never changes the box itself
}

// Diagnosis is what a box can and cannot certify.
type Diagnosis struct {
	Profile    string            `json:"profile"`
	Certifies  matrix.Verdict    `json:"certifies_up_to"`
	Simulated  bool              `json:"simulated,omitempty"`
	Findings   []Finding         `json:"findings"`
	CeilingMHz matrix.Opt[int64] `json:"ceiling_mhz,omitzero"` // highest SM clock seen under the load
}

// Checks says what a diagnosis may use.
type Checks struct {
	// Load is the engine that doctor runs. Without one clocks are not certified: an idle clock proves nothing.
	Load Load
	// Files are artifact and binary files whose page cache a cold load has to drop.
	Files []string
	// Throttled names the event bits that void a leg on this box (protocol §4.1). It is needed with a Load.
	Throttled func(bits uint64) []string
	// CleanWindow gives the chance that a leg of n requests runs in one clock window on an unpinned box (vector K18).
	CleanWindow func(requests int) float64
}

// Load is an engine under doctor's eyes. Start may take as long as the engine needs; what is judged is Generate.
type Load interface {
	// Start returns when the engine is ready, with its processes.
	Start(ctx context.Context) (processes []int, err error)
	// Generate makes tokens until ctx ends and returns how many came.
	Generate(ctx context.Context) (tokens int64, err error)
	// Stop ends what Start began, also when that failed.
	Stop(ctx context.Context) error
}

// Doctor looks at everything a certificate depends on. With a load it takes a minute beyond the start of the engine, and
// wants the lock.
func (b *Box) Doctor(ctx context.Context, c Checks) (Diagnosis, error) {
	d := Diagnosis{Profile: b.profile.Name, Certifies: b.profile.Certifies, Simulated: b.profile.Name == "simulated"}
	if d.Simulated {
		d.add("box", StateNote, "SIMULATED: no box stands behind these numbers", string(matrix.Simulated), "")
		return d, nil
	}
	if b.unlike != "" {
		d.add("configuration", StateCannot, b.unlike, "no run begins", "make what the lines about telemetry say, or take `box` out of broker.yaml")
	}
	if b.profile.Certifies > matrix.Established {
		d.add(whatProfile, StateCannot, b.profile.Name+": no contract for this kind of box is argued for", string(matrix.BoxUncertified), "measure on a GB10 or an NVIDIA card for ESTABLISHED")
	} else {
		d.add(whatProfile, StateOK, b.profile.Name, "", "")
	}
	if h, ok := b.holder().Get(); ok && h.PID != os.Getpid() {
		d.add("lock", StateNote, (&HeldError{Path: b.runtimePath("lock"), Holder: h, Known: true}).Error(), "", "")
	}
	switch version := b.proc.line("driver/nvidia/version"); {
	case b.profile.GPU || b.opt.Sampler != nil:
		b.checkTelemetry(&d)
	case version != "":
		d.add("telemetry", StateCannot, "an NVIDIA driver is loaded and no telemetry is configured, so its card is not seen: "+version,
			"no clock, heat or neighbour gate can be judged: "+string(matrix.BoxUncertified), "put `telemetry: nvml` into broker.yaml")
	}
	if err := b.checkMemory(ctx, &d); err != nil {
		return d, err
	}
	b.checkHost(ctx, &d)
	b.checkFiles(&d, c.Files)
	if b.profile.GPU {
		return d, b.certifyClocks(ctx, &d, c)
	}
	if c.Load != nil {
		d.add("load", StateNote, "not run: this box shows no GPU clock that it could certify", "", "")
	}
	return d, ctx.Err()
}

func (d *Diagnosis) add(what string, state State, saw, costs, fix string) {
	d.Findings = append(d.Findings, Finding{What: what, State: state, Saw: saw, Costs: costs, Fix: fix})
}

func (b *Box) checkTelemetry(d *Diagnosis) {
	dev, ok := b.device.Get()
	if !ok {
		saw := strings.ReplaceAll(strings.Join(b.warnings, "; "), "telemetry: ", "")
		if saw == "" {
			saw = "no telemetry plugin is configured"
		}
		fix := "make nvidia-smi work for this user, and build the plugin with a C compiler (make build); on a box without a GPU take `telemetry` out of broker.yaml"
		if len(b.telemetry.Devices) > 0 {
			fix = "put `device: UUID` of the card that runs the engines into broker.yaml"
		}
		d.add("telemetry", StateCannot, saw, "no clock, heat or neighbour gate can be judged: "+string(matrix.BoxUncertified), fix)
		return
	}
	library := b.telemetry.Library.Value("library_path").Or("unknown library")
	driver := dev.Facts.Value(matrix.DeviceFactDriver).Or("unknown")
	d.add("telemetry", StateOK, fmt.Sprintf("%s (%s), driver %s, %s", dev.Name, dev.UUID, driver, library), "", "")
	if other, ok := b.telemetry.Library.Value("memory_library_path").Get(); ok {
		d.add("library", StateNote, "memory calls are answered by "+other+", not by the driver's library; its figures are not used", "", "remove the shim to be sure what answers")
	}
	switch dev.Facts.Value(matrix.DeviceFactPersistence).Or("") {
	case "on":
		d.add("persistence", StateOK, "on", "", "")
	case "off":
		d.add("persistence", StateCannot, "off: the driver forgets its state when the last process leaves", string(matrix.ClockPersistence), "sudo nvidia-smi -pm 1")
	default:
		d.add("persistence", StateCannot, "the driver does not tell it", string(matrix.ClockPersistence), "see: nvidia-smi -q -d PERFORMANCE")
	}
	if dev.Facts.Value("mig").Or("off") == "on" {
		d.add("MIG", StateCannot, "the card is divided: its clock and neighbours are shared", string(matrix.Cotenant), "sudo nvidia-smi -mig 0")
	}
	for _, f := range []struct {
		field string
		code  matrix.LegCode
	}{
		{matrix.FieldSMClock, matrix.ClockSpread}, {matrix.FieldUtilization, matrix.ClockFewBusy}, {matrix.FieldEventReasons, matrix.ClockThrottled},
		{matrix.FieldSWThermal, matrix.ThermalCounter}, {matrix.FieldHWThermal, matrix.ThermalCounter}, {matrix.FieldPowerBrake, matrix.ThermalCounter},
		{matrix.FieldProcesses, matrix.Cotenant},
	} {
		if s := dev.Fields[f.field]; s != matrix.ReadingValue {
			d.add(f.field, StateCannot, string(orAbsent(s)), string(f.code)+" cannot be judged", fixOf(s))
		}
	}
	if s := dev.Fields[matrix.FieldEnergy]; s != matrix.ReadingValue {
		d.add("energy", StateNote, string(orAbsent(s))+": no energy per token", "", "")
	} else {
		d.add("energy", StateNote, "GPU rail only; GPU watts are not machine watts", "", "")
	}
}

func orAbsent(s matrix.ReadingStatus) matrix.ReadingStatus {
	if s == "" {
		return matrix.ReadingAbsent
	}
	return s
}

func fixOf(s matrix.ReadingStatus) string {
	switch s {
	case matrix.ReadingNoPermission:
		return "give this user access to /dev/nvidia*, or pass the devices into the container"
	case matrix.ReadingStale, matrix.ReadingError:
		return "the driver does not answer: see dmesg, then power-cycle the box"
	}
	return "this driver does not offer it; try another driver release"
}

// freeShare is how small MemFree may be against MemAvailable before an engine that reads MemFree may refuse (bugs.md H04).
const freeShare = 0.6

func (b *Box) checkMemory(ctx context.Context, d *Diagnosis) error {
	m, err := b.proc.meminfo()
	if err != nil {
		return err
	}
	base, err := b.takeBaseline(ctx)
	if err != nil {
		return err
	}
	if u, ok := base.UnattributedKiB.Get(); !ok {
		d.add("unattributed memory", StateCannot, "meminfo does not name its pools", string(matrix.BoxUncertified), "mount a full /proc")
	} else if u > unattributedLimitKiB {
		d.add("unattributed memory", StateCannot, fmt.Sprintf("%d MiB are neither free nor owned by any process or cache", u>>10), string(matrix.BoxUncertified), "reboot the box")
	} else {
		d.add("unattributed memory", StateOK, fmt.Sprintf("%d MiB", u>>10), "", "")
	}
	if float64(m.free) < freeShare*float64(m.available) {
		d.add("free memory", StateNote, fmt.Sprintf("MemAvailable %d MiB, MemFree only %d MiB: an engine that asks the GPU for free memory sees MemFree and may refuse", m.available>>10, m.free>>10), "", "sync; echo 3 | sudo tee /proc/sys/vm/drop_caches")
	}
	if err := b.opt.Guard.fits(m.available); err != nil {
		d.add("memory guard", StateCannot, err.Error(), "every engine is ended while it loads: "+string(matrix.KilledByHost), "lower memory_floor_mib in broker.yaml, or free memory")
	} else {
		d.add("memory guard", StateNote, fmt.Sprintf("ends an engine before MemAvailable comes below %d MiB", b.opt.Guard.FloorKiB>>10), "", "")
	}
	return nil
}

func (b *Box) checkHost(ctx context.Context, d *Diagnosis) {
	if _, err := b.proc.stat(); err != nil {
		d.add("CPU times", StateCannot, err.Error(), string(matrix.ForeignCPU)+" cannot be judged", "mount /proc")
	}
	switch load, err := b.proc.loadAverage(); {
	case err != nil && b.profile.LoadAverage:
		d.add("load average", StateCannot, err.Error(), string(matrix.LoadAverageCode)+" cannot be judged", "mount /proc")
	case err != nil || load <= loadAverageMax:
	case b.profile.LoadAverage:
		d.add("load average", StateNote, fmt.Sprintf("%.2f; above %.1f a load waits, and its legs are void if it stays", load, loadAverageMax), string(matrix.LoadAverageCode)+" while it stays", "stop what else runs here")
	default:
		d.add("load average", StateNote, fmt.Sprintf("%.2f: something runs here; what it takes of the CPUs during a leg is judged", load), string(matrix.ForeignCPU)+" while it stays", "stop what else runs here")
	}
	if len(b.proc.vmCounters("pswpin", "pswpout")) != 2 {
		d.add("swap counters", StateCannot, "/proc/vmstat names none", string(matrix.SwapActivity)+" cannot be judged", "mount /proc")
	}
	if b.profile.GPU && !b.proc.initialPIDNamespace() {
		d.add("process numbers", StateCannot, "this process lives in a PID namespace; the driver tells the host's numbers", string(matrix.Cotenant)+" cannot be judged", "run the broker on the host, or with --pid=host")
	}
	if s, ok := b.read(ctx); ok && len(s.Processes) > 0 {
		var pids []string
		for _, p := range s.Processes {
			pids = append(pids, fmt.Sprint(p.PID))
		}
		d.add("GPU processes", StateNote, "on the card now: PID "+strings.Join(pids, ", "), string(matrix.Cotenant)+" while they stay", "end them before a run")
	}
	if _, readable := readKmsg("/dev/kmsg", 0); !readable {
		d.add("kernel log", StateNote, "not readable: a kill by the kernel can be counted but not named", "", "sudo sysctl kernel.dmesg_restrict=0")
	}
}

func (b *Box) checkFiles(d *Diagnosis, files []string) {
	var foreign []string
	owner := uint32(0)
	for _, f := range files {
		st, err := os.Stat(f)
		if err != nil {
			d.add("page cache", StateCannot, err.Error(), string(matrix.PageCacheResident)+" cannot be judged", "make the file readable")
			return
		}
		if sys, ok := st.Sys().(*syscall.Stat_t); ok && !mayKnowResidency(f, sys.Uid) {
			foreign, owner = append(foreign, f), sys.Uid
		}
	}
	switch {
	case len(foreign) > 0:
		d.add("page cache", StateCannot, fmt.Sprintf("%d files belong to uid %d (first: %s): their residency is not told to others", len(foreign), owner, foreign[0]), string(matrix.PageCacheResident)+" cannot be judged",
			fmt.Sprintf("sudo chown -R %d the artifact's directory, or run as its owner", os.Getuid()))
	case len(files) > 0:
		d.add("page cache", StateOK, fmt.Sprintf("%d files can be evicted and proved so", len(files)), "", "")
	}
}

// Uncertified lists what keeps this box from certifying what its profile can. That a profile certifies less than another
// is no fault of the box; neither is, with likelyVoid, a clock that is not pinned, whose legs judge themselves.
func (d Diagnosis) Uncertified(likelyVoid bool) []Finding {
	var out []Finding
	for _, f := range d.Findings {
		if f.State == StateCannot && f.What != whatProfile && !(likelyVoid && f.What == whatPin) {
			out = append(out, f)
		}
	}
	return out
}

// Findings that Uncertified treats in a way of their own.
const (
	whatProfile = "profile"
	whatPin     = "clock pin"
)

var errNoTokens = errors.New("the load generated no token")
