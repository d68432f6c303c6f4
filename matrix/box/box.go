// Package box is the machine under the engines: its clocks, heat, memory and neighbours, seen from outside.
//
// It states what was seen and never judges it: gates decide what a reading is worth. What this box or its profile cannot
// tell is absent and named in Env.Unevaluable as "CODE: why", never zero. It changes nothing of the machine but two things
// it is asked for: it drops the page cache of named files, and its memory guard ends the engine before the host dies. It
// needs no root, sets no clock, and says which command an operator may run instead.
//
// The way it works:
//
//  1. Open reads the machine's identity and picks a profile (protocol §2.7); Acquire takes the one lock of the box
//  2. Baseline records, per boot, what an empty box looks like: MemAvailable, free GPU memory, GPU temperature T0
//  3. Settle waits before a load until the box is back there; Evict proves that the load will be cold (protocol §2.6)
//  4. Watch samples while an engine lives; Window reduces what lies between two stamps to matrix.Env and matrix.Clock
//  5. Doctor says what this box can certify and how to make it certify more
//
// Stamps are CLOCK_MONOTONIC nanoseconds, which all processes of one boot share. The package reads Linux's /proc and works
// on Linux alone.
package box

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"enginebroker/matrix"
)

// Sampler is a source of device readings; engines.Telemetry is one.
type Sampler interface {
	Describe(ctx context.Context) (matrix.Telemetry, error)
	// Sample calls fn at the rate until ctx ends.
	Sample(ctx context.Context, hz int, fn func(matrix.Sample)) error
}

// Options say which box to open. The zero value opens this machine without a GPU's telemetry.
type Options struct {
	Profile    string       // gb10, nvidia, cpu or simulated; empty detects one
	Look       bool         // nothing runs: where the profile's device is not here, what is here is looked at
	Device     string       // UUID of the GPU that runs the engines; needed only where there are several
	RuntimeDir string       // lock and baselines; empty: /run/lock/enginebroker.*, which a boot clears
	Proc       string       // empty: /proc
	Sampler    Sampler      // nil: no telemetry
	Hz         int          // telemetry rate; 0: 10
	Guard      Guard        // zero fields take their defaults
	Now        func() int64 // CLOCK_MONOTONIC ns; nil reads it
	Slept      func() int64 // ns this boot has been suspended; nil reads it
	Progress   func(string) // what a wait waits for; may be nil
}

// Box is one opened machine. Its methods may be called from several goroutines.
type Box struct {
	opt       Options
	proc      procfs
	profile   Profile
	unlike    string // why this is not the box that was asked for; of one that is looked at
	bootID    string
	telemetry matrix.Telemetry
	device    matrix.Opt[matrix.Device]
	facts     matrix.Facts
	warnings  []string
}

const describeLimit = 5 * time.Second // a driver that does not answer by then is treated as absent

// Open reads the identity of the machine and settles its profile. A missing or broken telemetry source is a warning, not
// an error: the cpu and simulated profiles need none, and Doctor says what its absence costs. Asking for gb10 or nvidia on
// a box whose telemetry shows no such device is an error, unless the box is only looked at.
func Open(ctx context.Context, opt Options) (*Box, error) {
	if opt.Proc == "" {
		opt.Proc = "/proc"
	}
	if opt.Hz == 0 {
		opt.Hz = 10
	}
	if opt.Now == nil {
		opt.Now = Monotonic
	}
	if opt.Slept == nil {
		opt.Slept = func() int64 { return readClock(unix.CLOCK_BOOTTIME) - Monotonic() }
	}
	if opt.Progress == nil {
		opt.Progress = func(string) {}
	}
	b := &Box{opt: opt, proc: procfs{opt.Proc}}
	var err error
	if b.bootID, err = b.proc.bootID(); err != nil {
		return nil, fmt.Errorf("boot id: %w: runs of one boot cannot be told from another's (mount /proc)", err)
	}
	b.describe(ctx)
	if b.profile, b.unlike, err = pick(opt.Profile, b.device); err != nil {
		return nil, err
	}
	if b.unlike != "" && !opt.Look {
		return nil, errors.New(b.unlike)
	}
	mem, err := b.proc.meminfo()
	if err != nil {
		return nil, err
	}
	b.opt.Guard = opt.Guard.withDefaults(mem.total)
	b.facts = b.readFacts(mem)
	return b, nil
}

// Monotonic reads CLOCK_MONOTONIC in nanoseconds.
func Monotonic() int64 { return readClock(unix.CLOCK_MONOTONIC) }

func readClock(id int32) int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		panic("the clock cannot be read: " + err.Error()) // cannot happen on Linux
	}
	return ts.Nano()
}

// describe asks the sampler which device there is.
func (b *Box) describe(ctx context.Context) {
	if b.opt.Sampler == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, describeLimit)
	defer cancel()
	t, err := b.opt.Sampler.Describe(ctx)
	if err != nil {
		b.warnings = append(b.warnings, "telemetry: "+err.Error())
		return
	}
	b.telemetry = t
	if len(t.Devices) == 0 {
		b.warnings = append(b.warnings, "telemetry: "+t.Why)
		return
	}
	i := slices.IndexFunc(t.Devices, func(d matrix.Device) bool { return d.UUID == b.opt.Device })
	switch {
	case i >= 0:
		b.device = matrix.Some(t.Devices[i])
	case b.opt.Device != "":
		b.warnings = append(b.warnings, "telemetry: no device "+b.opt.Device+"; there is "+uuids(t.Devices))
	case len(t.Devices) == 1:
		b.device = matrix.Some(t.Devices[0])
	default:
		b.warnings = append(b.warnings, "telemetry: several devices and none is named; name one of "+uuids(t.Devices))
	}
}

func uuids(ds []matrix.Device) string {
	var s []string
	for _, d := range ds {
		s = append(s, d.UUID+" ("+d.Name+")")
	}
	return strings.Join(s, ", ")
}

// Profile returns the box profile in force.
func (b *Box) Profile() Profile { return b.profile }

// BootID returns the boot's id: runs of different boots are different grids.
func (b *Box) BootID() string { return b.bootID }

// Device returns the GPU that runs the engines, absent without telemetry.
func (b *Box) Device() matrix.Opt[matrix.Device] { return b.device }

// Facts is the identity of the machine: boot, kernel, CPU, memory, device, driver and library, and the clock ceiling that
// Doctor saw under load on this boot. Each fact says where it was read.
func (b *Box) Facts() matrix.Facts {
	f := slices.Clone(b.facts)
	if c, ok := b.clocks().Get(); ok {
		f = append(f, matrix.Fact{Name: "clock_ceiling_mhz", Value: fmt.Sprint(c.CeilingMHz), Where: "doctor, under load", Standing: matrix.Observed})
	}
	return f
}

// Warnings are the lines about telemetry that could not be had.
func (b *Box) Warnings() []string { return slices.Clone(b.warnings) }

func (b *Box) readFacts(mem meminfo) matrix.Facts {
	var f matrix.Facts
	add := func(name, value, where string) {
		if value != "" {
			f = append(f, matrix.Fact{Name: name, Value: value, Where: where, Standing: matrix.Observed})
		}
	}
	add("box_profile", b.profile.Name, "detected")
	if b.opt.Profile != "" {
		f[0].Where, f[0].Standing = "configured", matrix.Claimed
	}
	add("boot_id", b.bootID, b.proc.path("sys/kernel/random/boot_id"))
	add("kernel", b.proc.line("sys/kernel/osrelease"), b.proc.path("sys/kernel/osrelease"))
	add("cpu_model", b.proc.cpuModel(), b.proc.path("cpuinfo"))
	if st, err := b.proc.stat(); err == nil {
		add("cpus", fmt.Sprint(st.cpus), b.proc.path("stat"))
	}
	const governor = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
	if g, err := os.ReadFile(governor); err == nil {
		add("cpu_governor", strings.TrimSpace(string(g)), governor)
	}
	add("mem_total_kib", fmt.Sprint(mem.total), b.proc.path("meminfo"))
	if un, err := mem.unattributed(0); err == nil {
		add("mem_unattributed_kib", fmt.Sprint(un), b.proc.path("meminfo"))
	}
	if d, ok := b.device.Get(); ok {
		add("gpu_name", d.Name, "telemetry")
		add("gpu_uuid", d.UUID, "telemetry")
		for _, x := range d.Facts {
			x.Name = "gpu_" + x.Name
			f = append(f, x)
		}
	}
	return append(f, b.telemetry.Library...)
}

// runtimePath names a file of this box that a boot may clear.
func (b *Box) runtimePath(name string) string {
	if b.opt.RuntimeDir != "" {
		return filepath.Join(b.opt.RuntimeDir, name)
	}
	dir := "/run/lock"
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		dir = os.TempDir()
	}
	return filepath.Join(dir, "enginebroker."+name)
}

// errNoGPU is why a gate that needs telemetry is not evaluable.
var errNoGPU = errors.New("no telemetry of a GPU")
