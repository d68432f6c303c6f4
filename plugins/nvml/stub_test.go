//go:build linux && cgo

package main

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"enginebroker/matrix"
)

// built is the plugin as make build links it, and the stub libraries, made once for all tests. A library binds its symbols
// once per process, so every case runs the real program against its own stub.
var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "nvml-test-")
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-tags=grpcnotrace", "-ldflags", "-extldflags=-Wl,-z,lazy", "-o", filepath.Join(dir, "nvml"), ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1", "CGO_CFLAGS=-w")
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = &buildError{string(out), err}
	}
	return dir, err
})

type buildError struct {
	out string
	err error
}

func (e *buildError) Error() string { return e.err.Error() + "\n" + e.out }

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, _ := built(); dir != "" {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// stub compiles the stub library and returns its path.
func stub(t testing.TB, defines ...string) string {
	t.Helper()
	cc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc: the stub library cannot be built; install gcc to run this test")
	}
	path := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	args := append([]string{"-shared", "-fPIC", "-w", "-o", path, "testdata/stub/nvml.c"}, defines...)
	if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("stub: %v\n%s", err, out)
	}
	return path
}

type output struct {
	head    head
	samples []matrix.Sample
	stderr  string
	code    int
}

// run samples with the plugin program against a library.
func run(t *testing.T, library, mode, seconds string) output {
	t.Helper()
	dir, err := built()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "nvml"), "--sample", seconds)
	cmd.Env = append(os.Environ(), libraryEnv+"="+library, "STUB_MODE="+mode)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, _ := cmd.Output() // an exit code other than 0 is part of what is tested
	if ctx.Err() != nil {
		t.Fatalf("the plugin hangs (%s)", mode)
	}
	o := output{stderr: stderr.String(), code: cmd.ProcessState.ExitCode()}
	if o.code == 127 {
		t.Fatalf("exit 127: a missing symbol was called; stderr %s", o.stderr)
	}
	if len(stdout) == 0 {
		return o
	}
	lines := bytes.Split(bytes.TrimSpace(stdout), []byte("\n"))
	if err := json.Unmarshal(lines[0], &o.head); err != nil {
		t.Fatalf("first line %q: %v; exit %d, stderr %s", lines[0], err, o.code, o.stderr)
	}
	for _, l := range lines[1:] {
		var s matrix.Sample
		if err := json.Unmarshal(l, &s); err != nil {
			t.Fatalf("sample %q: %v", l, err)
		}
		o.samples = append(o.samples, s)
	}
	return o
}

func (o output) last(t *testing.T) matrix.Sample {
	t.Helper()
	if len(o.samples) == 0 {
		t.Fatalf("no sample; telemetry says %q, stderr %s", o.head.Telemetry.Why, o.stderr)
	}
	return o.samples[len(o.samples)-1]
}

func wantReading(t *testing.T, s matrix.Sample, field string, status matrix.ReadingStatus, value int64) {
	t.Helper()
	r := s.Fields[field]
	v, has := r.Value.Get()
	if r.Status != status || has != (status == matrix.ReadingValue) || v != value {
		t.Errorf("%s = %s %d (present %v), want %s %d", field, r.Status, v, has, status, value)
	}
}

// The states of gb10-nvml.md §3 as NVML shows them: in the stuck and the capped state nothing but the clock speaks.
func TestStates(t *testing.T) {
	lib := stub(t)
	for _, c := range []struct {
		mode                      string
		mhz, util, mw, bits, heat int64
	}{
		{"", 2405, 96, 92000, 0, 55},
		{"idle", 2405, 0, 11170, 0, 55},
		{"stuck", 799, 96, 19500, 0, 55},
		{"cap", 2190, 96, 92000, 0, 55},
		{"throttle", 2405, 96, 92000, 0x20, 92},
	} {
		t.Run(c.mode, func(t *testing.T) {
			t.Parallel()
			o := run(t, lib, c.mode, "0.5")
			s := o.last(t)
			wantReading(t, s, matrix.FieldSMClock, matrix.ReadingValue, c.mhz)
			wantReading(t, s, matrix.FieldUtilization, matrix.ReadingValue, c.util)
			wantReading(t, s, matrix.FieldPower, matrix.ReadingValue, c.mw)
			wantReading(t, s, matrix.FieldEventReasons, matrix.ReadingValue, c.bits)
			slow := o.samples[0]
			wantReading(t, slow, matrix.FieldTemperature, matrix.ReadingValue, c.heat)
			wantReading(t, slow, matrix.FieldMemClock, matrix.ReadingNotSupported, 0)
			wantReading(t, slow, matrix.FieldPowerBrake, matrix.ReadingNotSupported, 0)
			wantReading(t, slow, matrix.FieldMemUsed, matrix.ReadingNotSupported, 0)
		})
	}
}

func value(t *testing.T, s matrix.Sample, field string) int64 {
	t.Helper()
	v, ok := s.Fields[field].Value.Get()
	if !ok {
		t.Fatalf("%s: %+v", field, s.Fields[field])
	}
	return v
}

// Counters come on the slow passes alone: the first, and then every 5 s.
func TestCounters(t *testing.T) {
	o := run(t, stub(t), "throttle", "6.6")
	var slow []matrix.Sample
	for _, s := range o.samples {
		if _, ok := s.Fields[matrix.FieldSWThermal]; ok {
			slow = append(slow, s)
		}
	}
	if len(slow) != 2 {
		t.Fatalf("%d slow passes in 6.6 s, want 2", len(slow))
	}
	if d := value(t, slow[1], matrix.FieldSWThermal) - value(t, slow[0], matrix.FieldSWThermal); d <= 0 {
		t.Errorf("SW thermal counter moved by %d ns", d)
	}
	if d := value(t, slow[1], matrix.FieldEnergy) - value(t, slow[0], matrix.FieldEnergy); d <= 0 {
		t.Errorf("energy moved by %d mJ", d)
	}
}

func TestCollapseOnFirstRequest(t *testing.T) {
	o := run(t, stub(t), "collapse", "1.6")
	wantReading(t, o.samples[0], matrix.FieldSMClock, matrix.ReadingValue, 2223)
	wantReading(t, o.last(t), matrix.FieldSMClock, matrix.ReadingValue, 695)
}

func TestIdentity(t *testing.T) {
	lib := stub(t)
	o := run(t, lib, "", "0.2")
	d := o.head.Telemetry.Devices[0]
	if d.Name != "NVIDIA GB10" || d.UUID != "GPU-00000000-0000-0000-0000-00000000b10b" {
		t.Errorf("device %s %s", d.Name, d.UUID)
	}
	for name, want := range map[string]string{
		matrix.DeviceFactDriver: "580.142", matrix.DeviceFactVBIOS: "9A.0B.12.00.0C", matrix.DeviceFactPersistence: "on",
		matrix.DeviceFactMaxSM: "3003", "compute_capability": "12.1",
	} {
		if got := d.Facts.Value(name).Or("absent"); got != want {
			t.Errorf("%s = %s, want %s", name, got, want)
		}
	}
	for _, name := range []string{"power_limit_mw", "ecc", "mig"} {
		if d.Fields[name] != matrix.ReadingNotSupported || d.Facts.Value(name).Present() {
			t.Errorf("%s: %s, fact present %v", name, d.Fields[name], d.Facts.Value(name).Present())
		}
	}
	if d.Fields["pci_bus"] != matrix.ReadingAbsent {
		t.Errorf("pci_bus: %s; the stub has no such symbol", d.Fields["pci_bus"])
	}
	if got := o.head.Telemetry.Library.Value("library_path").Or(""); got != lib {
		t.Errorf("library_path %q, want the stub %q", got, lib)
	}
	if got := o.head.Telemetry.Library.Value("nvml_version").Or(""); got != "13.580.142" {
		t.Errorf("nvml_version %q", got)
	}
	ps := o.last(t).Processes
	if len(ps) != 2 || ps[0].PID != 4242 || ps[0].Bytes.Or(0) != 63931<<20 || ps[1].Bytes.Present() {
		t.Errorf("processes %+v", ps)
	}
}

// H03: three ways to say that there is no memory of its own, one result.
func TestUnifiedMemory(t *testing.T) {
	lib := stub(t)
	for _, mode := range []string{"", "memory_zero", "memory_shim"} {
		o := run(t, lib, mode, "0.3")
		o.last(t)
		wantReading(t, o.samples[0], matrix.FieldMemUsed, matrix.ReadingNotSupported, 0)
		wantReading(t, o.samples[0], matrix.FieldMemFree, matrix.ReadingNotSupported, 0)
		if o.head.Telemetry.Devices[0].Facts.Value(matrix.DeviceFactMemory).Present() {
			t.Errorf("%s: a memory size is stated", mode)
		}
	}
	o := run(t, lib, "discrete", "0.3")
	o.last(t)
	wantReading(t, o.samples[0], matrix.FieldMemUsed, matrix.ReadingValue, 771<<20)
	if got := o.head.Telemetry.Devices[0].Facts.Value(matrix.DeviceFactMemory).Or(""); got != "150754820096" {
		t.Errorf("memory_bytes %s", got)
	}
}

// People preload a library that answers the memory call alone. The record names it, and its figures are not used.
func TestPreloadedShim(t *testing.T) {
	lib := stub(t)
	if _, err := built(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	source, shim := filepath.Join(dir, "shim.c"), filepath.Join(dir, "shim.so")
	if err := os.WriteFile(source, []byte("int nvmlDeviceGetMemoryInfo(void *d, unsigned long long *m) { m[0] = 128ULL << 30; m[1] = m[0]; m[2] = 0; return 0; }"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", shim, source).CombinedOutput(); err != nil {
		t.Fatalf("shim: %v\n%s", err, out)
	}
	t.Setenv("LD_PRELOAD", shim)
	o := run(t, lib, "", "0.3")
	o.last(t)
	wantReading(t, o.samples[0], matrix.FieldMemUsed, matrix.ReadingNotSupported, 0)
	for name, want := range map[string]string{"library_path": lib, "memory_library_path": shim, "ld_preload": shim} {
		if got := o.head.Telemetry.Library.Value(name).Or(""); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
}

func TestGPULost(t *testing.T) {
	s := run(t, stub(t), "lost", "1.6").last(t)
	r := s.Fields[matrix.FieldSMClock]
	if r.Status != matrix.ReadingError || r.Code != matrix.CodeGPULost || r.Value.Present() {
		t.Errorf("SM clock %+v, want error %s", r, matrix.CodeGPULost)
	}
}

// J09: what the library lacks is absent, and the process lives.
func TestMissingSymbols(t *testing.T) {
	o := run(t, stub(t, "-DNO_REASONS", "-DNO_COUNTERS", "-DNO_PROCESSES"), "", "0.3")
	for _, f := range []string{matrix.FieldEventReasons, matrix.FieldSWThermal, matrix.FieldSWPowerCap, matrix.FieldProcesses} {
		wantReading(t, o.samples[0], f, matrix.ReadingAbsent, 0)
		if o.head.Telemetry.Devices[0].Fields[f] != matrix.ReadingAbsent {
			t.Errorf("%s is described as %s", f, o.head.Telemetry.Devices[0].Fields[f])
		}
	}
	wantReading(t, o.last(t), matrix.FieldSMClock, matrix.ReadingValue, 2405)
}

func TestNoUsableDriver(t *testing.T) {
	lib := stub(t)
	text := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	if err := os.WriteFile(text, []byte("not a library"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, library, mode, why string }{
		{"no library", filepath.Join(t.TempDir(), "libnvidia-ml.so.1"), "", "cannot be loaded"},
		{"not a library", text, "", "cannot be loaded"},
		{"another library", stub(t, "-DNO_INIT"), "", "lacks nvmlInit_v2"},
		{"driver mismatch", lib, "mismatch", "lib_rm_version_mismatch"},
		{"a container without permissions", lib, "no_permission_init", "no_permission (this user may not open /dev/nvidia*; in a container pass the devices in)"},
		{"no device", lib, "none", "knows no device"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := run(t, c.library, c.mode, "0.3")
			if !strings.Contains(o.head.Telemetry.Why, c.why) || len(o.head.Telemetry.Devices) != 0 || len(o.samples) != 0 || o.code != 0 {
				t.Errorf("why %q, %d samples, exit %d", o.head.Telemetry.Why, len(o.samples), o.code)
			}
		})
	}
}

// A hung call is noticed within 2 s, costs samples and ends when the program does.
func TestHungDriver(t *testing.T) {
	o := run(t, stub(t), "hang", "3.5")
	var lastGood, firstStale int64
	for _, s := range o.samples {
		switch s.Fields[matrix.FieldPower].Status {
		case matrix.ReadingValue:
			lastGood = s.At
		case matrix.ReadingStale:
			if firstStale == 0 {
				firstStale = s.At + int64(visitFor+passLimit) // handed out at the latest when its visit was given up
			}
			if s.Fields[matrix.FieldPower].Value.Present() {
				t.Fatal("a stale field repeats a value")
			}
		}
	}
	if lastGood == 0 || firstStale == 0 || firstStale-lastGood > 2e9 {
		t.Errorf("last good sample at %d, noticed at %d", lastGood, firstStale)
	}
}

func TestHungInit(t *testing.T) {
	o := run(t, stub(t), "hang_init", "0.5")
	if o.code != 1 || len(o.samples) != 0 || !strings.Contains(o.stderr, "has not returned") {
		t.Errorf("exit %d, %d samples, stderr %s", o.code, len(o.samples), o.stderr)
	}
}

func TestTwoDevices(t *testing.T) {
	o := run(t, stub(t), "two", "0.3")
	if n := len(o.head.Telemetry.Devices); n != 2 || o.samples[0].Device != 0 || o.samples[1].Device != 1 {
		t.Errorf("%d devices", n)
	}
}

// A user who may see the card and read nothing: every reading says so, on both ways of reading, and none has a value.
func TestNoPermission(t *testing.T) {
	o := run(t, stub(t), "no_permission", "0.9")
	o.last(t)
	for _, s := range o.samples {
		for f, r := range s.Fields {
			if r.Value.Present() || r.Status != matrix.ReadingNoPermission && r.Status != matrix.ReadingNotSupported {
				t.Fatalf("%s: %+v", f, r)
			}
		}
	}
	wantReading(t, o.samples[0], matrix.FieldEnergy, matrix.ReadingNoPermission, 0)
	wantReading(t, o.last(t), matrix.FieldSMClock, matrix.ReadingNoPermission, 0)
}

// A divided card is named as one, and its utilisation, which NVML does not tell then, is no zero.
func TestMIG(t *testing.T) {
	o := run(t, stub(t), "mig", "0.3")
	if got := o.head.Telemetry.Devices[0].Facts.Value("mig").Or(""); got != "on" {
		t.Errorf("mig %q", got)
	}
	wantReading(t, o.last(t), matrix.FieldUtilization, matrix.ReadingNotSupported, 0)
}

// J10: symbols that the driver lacks must not be asked for at start.
func TestNotBoundAtStart(t *testing.T) {
	dir, err := built()
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.Open(filepath.Join(dir, "nvml"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const dfBindNow, df1Now = 0x8, 0x1
	for tag, bit := range map[elf.DynTag]uint64{elf.DT_FLAGS: dfBindNow, elf.DT_FLAGS_1: df1Now} {
		vs, err := f.DynValue(tag)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range vs {
			if v&bit != 0 {
				t.Errorf("%s has %#x: a driver without one of our symbols would end the program before main", tag, bit)
			}
		}
	}
	if vs, _ := f.DynValue(elf.DT_BIND_NOW); len(vs) > 0 {
		t.Error("DT_BIND_NOW is set")
	}
}
