package box

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"enginebroker/matrix"
)

func TestMain(m *testing.M) {
	if mib := os.Getenv(eaterEnv); mib != "" {
		eat(mib)
		return
	}
	goleak.VerifyTestMain(m)
}

const bootA = "aaaaaaaa-0000-4000-8000-000000000001"

// fakeProc is a /proc tree in a directory.
type fakeProc struct {
	t    *testing.T
	root string
}

// newProc makes the /proc of an idle box with 119 GiB, 112 of them available.
func newProc(t *testing.T) fakeProc {
	p := fakeProc{t, t.TempDir()}
	p.put("sys/kernel/random/boot_id", bootA+"\n")
	p.put("sys/kernel/osrelease", "6.14.0-1013-nvidia\n")
	p.put("cpuinfo", "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd85\n\nprocessor\t: 1\nCPU implementer\t: 0x41\nCPU part\t: 0xd87\n")
	p.put("loadavg", "0.10 0.20 0.30 1/300 4242\n")
	p.put("vmstat", "pswpin 5\npswpout 7\noom_kill 0\n")
	p.cpu(1000, 0, 100000)
	p.memory(112 << 20)
	if err := os.MkdirAll(filepath.Join(p.root, "self/ns"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("pid:[4026531836]", filepath.Join(p.root, "self/ns/pid")); err != nil {
		t.Fatal(err)
	}
	return p
}

// put replaces a file at once: the box reads while the test writes.
func (p fakeProc) put(name, text string) {
	p.t.Helper()
	path := filepath.Join(p.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		p.t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		p.t.Fatal(err)
	}
	defer f.Close()
	// meminfo stays open in the guard: the text is replaced in place, padded to what was there.
	if st, err := f.Stat(); err == nil && int64(len(text)) < st.Size() {
		text += string(make([]byte, st.Size()-int64(len(text))))
	}
	if _, err := f.WriteAt([]byte(text), 0); err != nil {
		p.t.Fatal(err)
	}
}

const totalKiB = 119 << 20

// memory says how much is available; everything else is cache of processes.
func (p fakeProc) memory(availableKiB int64) {
	free := availableKiB - 4<<20
	p.put("meminfo", fmt.Sprintf("MemTotal: %12d kB\nMemFree: %12d kB\nMemAvailable: %12d kB\nBuffers: 0 kB\nCached: %12d kB\nAnonPages: %12d kB\nSlab: 0 kB\nSwapFree: 0 kB\n",
		totalKiB, free, availableKiB, 4<<20, totalKiB-free-(4<<20)-(200<<10)))
}

// cpu writes two CPUs' worth of ticks.
func (p fakeProc) cpu(busy, steal, total int64) {
	idle := total - busy - steal
	p.put("stat", fmt.Sprintf("cpu  %d 0 0 %d 0 0 0 %d 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0\n", busy, idle, steal))
}

// process writes one process of the tree.
func (p fakeProc) process(pid, ppid int, own, reaped int64, start uint64, children string) {
	p.put(fmt.Sprintf("%d/stat", pid), fmt.Sprintf("%d (a (b) c) S %d 0 0 0 0 0 0 0 0 0 %d 0 %d 0 20 0 1 0 %d 0 0\n", pid, ppid, own, reaped, start))
	p.put(fmt.Sprintf("%d/task/%d/children", pid, pid), children)
}

func (p fakeProc) exit(pid int) {
	if err := os.RemoveAll(filepath.Join(p.root, fmt.Sprint(pid))); err != nil {
		p.t.Fatal(err)
	}
}

// fakeGPU is a sampler whose readings a test sets.
type fakeGPU struct {
	device matrix.Device
	now    func() int64
	sample func(at int64) map[string]int64
	procs  []matrix.GPUProcess
	// from when on every call says that the card is lost, or nothing comes any more; 0: never
	lostFrom, silentFrom int64
}

// set fixes one field from now on.
func (g *fakeGPU) set(field string, v int64) {
	was := g.sample
	g.sample = func(at int64) map[string]int64 { m := was(at); m[field] = v; return m }
}

func newGPU(name string, now func() int64, sample func(at int64) map[string]int64) *fakeGPU {
	g := &fakeGPU{now: now, sample: sample}
	g.device = matrix.Device{UUID: "GPU-1", Name: name, Fields: map[string]matrix.ReadingStatus{}, Facts: matrix.Facts{
		{Name: matrix.DeviceFactDriver, Value: "580.142"}, {Name: matrix.DeviceFactPersistence, Value: "on"}, {Name: matrix.DeviceFactMaxSM, Value: "3003"}}}
	for f := range sample(0) {
		g.device.Fields[f] = matrix.ReadingValue
	}
	g.device.Fields[matrix.FieldProcesses] = matrix.ReadingValue
	return g
}

func (g *fakeGPU) Describe(context.Context) (matrix.Telemetry, error) {
	return matrix.Telemetry{Devices: []matrix.Device{g.device}}, nil
}

func (g *fakeGPU) Sample(ctx context.Context, hz int, fn func(matrix.Sample)) error {
	for wait(ctx, time.Second/time.Duration(hz)) == nil {
		if at := g.now(); g.silentFrom == 0 || at < g.silentFrom {
			fn(g.at(at))
		}
	}
	return ctx.Err()
}

func (g *fakeGPU) at(at int64) matrix.Sample {
	s := matrix.Sample{At: at, Fields: map[string]matrix.Reading{matrix.FieldProcesses: reading(int64(len(g.procs)))}, Processes: g.procs}
	for f, v := range g.sample(at) {
		s.Fields[f] = reading(v)
		if g.lostFrom != 0 && at >= g.lostFrom {
			s.Fields[f] = matrix.Reading{Status: matrix.ReadingError, Code: matrix.CodeGPULost}
		}
	}
	return s
}

func reading(v int64) matrix.Reading {
	return matrix.Reading{Status: matrix.ReadingValue, Value: matrix.Some(v)}
}

// healthy is a GB10 at work, with counters that stand still.
func healthy(at int64) map[string]int64 {
	return map[string]int64{matrix.FieldSMClock: 2190, matrix.FieldUtilization: 96, matrix.FieldEventReasons: 0, matrix.FieldPower: 92000,
		matrix.FieldEnergy: at / 1e9 * 92000, matrix.FieldTemperature: 55, matrix.FieldSWThermal: 7, matrix.FieldHWThermal: 0, matrix.FieldPowerBrake: 0}
}

// open opens a box over a fake /proc.
func open(t *testing.T, p fakeProc, opt Options) *Box {
	t.Helper()
	opt.Proc = p.root
	if opt.RuntimeDir == "" {
		opt.RuntimeDir = t.TempDir()
	}
	b, err := Open(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// since is a monotonic clock that a synctest bubble moves.
func since() func() int64 {
	start := time.Now()
	return func() int64 { return int64(time.Since(start)) + 1 }
}
