package box

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"enginebroker/matrix"
)

const second = int64(time.Second)

func gb10() Profile {
	p, _, err := pick("gb10", matrix.Some(matrix.Device{Name: "NVIDIA GB10"}))
	if err != nil {
		panic(err)
	}
	return p
}

// sampled makes a series at 10 Hz over n seconds.
func sampled(n int, edit func(i int, s *matrix.Sample)) *series {
	s := &series{}
	g := newGPU("NVIDIA GB10", nil, healthy)
	for i := range n * 10 {
		x := g.at(int64(i) * second / 10)
		if i%30 != 0 { // counters come every 3 s
			for _, f := range append([]string{matrix.FieldEnergy}, thermalFields...) {
				delete(x.Fields, f)
			}
		}
		if edit != nil {
			edit(i, &x)
		}
		s.gpu = append(s.gpu, compact(x, func(pid int) ownership { return ownership(pid) }))
	}
	return s
}

func win(start, end int64) window {
	return window{start: start, end: end, profile: gb10(), bootID: bootA, device: matrix.Some(newGPU("NVIDIA GB10", nil, healthy).device)}
}

// Protocol §2.7: per second the last clock, the maximum utilisation, the union of the event bits.
func TestClockSeries(t *testing.T) {
	s := sampled(3, func(i int, x *matrix.Sample) {
		x.Fields[matrix.FieldSMClock] = reading(int64(2000 + i))
		x.Fields[matrix.FieldUtilization] = reading(int64(i % 10))
		x.Fields[matrix.FieldEventReasons] = reading(map[int]int64{12: 0x4, 17: 0x20}[i])
	})
	w := win(0, 3*second)
	w.heads = [][2]int64{{second / 20, second / 4}, {second, second + second/10}}
	got, why := s.clock(w)
	c, ok := got.Get()
	if !ok || len(why) > 0 {
		t.Fatalf("clock %v, %v", ok, why)
	}
	want := []matrix.ClockSecond{{MHz: 2009, Util: 9}, {MHz: 2019, Util: 9, Bits: 0x24}, {MHz: 2029, Util: 9}}
	if !reflect.DeepEqual(c.Seconds, want) {
		t.Errorf("seconds %+v, want %+v", c.Seconds, want)
	}
	if !reflect.DeepEqual(c.HeadMHz, []int64{2001, 2002, 2010, 2011}) {
		t.Errorf("heads %v", c.HeadMHz)
	}
	if c.MaxMHz.Or(0) != 3003 || !c.Persistence.Or(false) || c.Static.Value(matrix.DeviceFactDriver).Or("") != "580.142" {
		t.Errorf("static facts %+v", c)
	}
	if Ceiling(c).Or(0) != 2029 {
		t.Errorf("ceiling %v", Ceiling(c))
	}
}

// A second without a reading is missing from the series, never zero; without utilisation there is no clock record.
func TestClockSeriesWithHoles(t *testing.T) {
	s := sampled(6, func(i int, x *matrix.Sample) {
		if i >= 20 && i < 50 {
			for f := range x.Fields {
				x.Fields[f] = matrix.Reading{Status: matrix.ReadingStale}
			}
		}
	})
	got, _ := s.clock(win(0, 6*second))
	c, _ := got.Get()
	if len(c.Seconds) != 3 || c.Seconds[2].MHz != 2190 {
		t.Errorf("seconds %+v, want those of 0, 1 and 5", c.Seconds)
	}
	e := s.env(win(0, 6*second))
	if !contains(e.Unevaluable, "silent for 3") {
		t.Errorf("a silence of 3 s is not said: %v", e.Unevaluable)
	}
	blind := sampled(2, func(i int, x *matrix.Sample) {
		x.Fields[matrix.FieldUtilization] = matrix.Reading{Status: matrix.ReadingNotSupported}
	})
	if got, why := blind.clock(win(0, 2*second)); got.Present() || len(why) == 0 {
		t.Errorf("a clock record without utilisation: %+v", got)
	}
	deaf := sampled(2, func(i int, x *matrix.Sample) {
		x.Fields[matrix.FieldEventReasons] = matrix.Reading{Status: matrix.ReadingAbsent}
	})
	if _, why := deaf.clock(win(0, 2*second)); !contains(why, string(matrix.ClockThrottled)) {
		t.Errorf("event reasons are absent and nothing says so: %v", why)
	}
}

func contains(list []string, part string) bool {
	for _, s := range list {
		if strings.Contains(s, part) {
			return true
		}
	}
	return false
}

func TestGPUWindow(t *testing.T) {
	for _, c := range []struct {
		name  string
		edit  func(i int, x *matrix.Sample)
		check func(e matrix.Env) bool
	}{
		{"healthy", nil, func(e matrix.Env) bool {
			v, ok := e.ForeignGPU.Get()
			d, ok2 := e.ThermalDelta.Get()
			return ok && v == 0 && ok2 && d == 0 && !e.GPULost && len(e.Unevaluable) == 2 // no /proc samples in this series
		}},
		{"H02: the SW thermal counter grows inside the window alone", func(i int, x *matrix.Sample) {
			if f, ok := x.Fields[matrix.FieldSWThermal]; ok && i >= 120 {
				x.Fields[matrix.FieldSWThermal] = reading(f.Value.Or(0) + 4e9)
			}
		}, func(e matrix.Env) bool { return e.ThermalDelta.Or(0) == 4e9 }},
		{"a counter that falls was reset", func(i int, x *matrix.Sample) {
			if _, ok := x.Fields[matrix.FieldHWThermal]; ok {
				x.Fields[matrix.FieldHWThermal] = reading(int64(1000 - i))
			}
		}, func(e matrix.Env) bool { return contains(e.Unevaluable, matrix.FieldHWThermal) }},
		{"H06: a neighbour in one sample", func(i int, x *matrix.Sample) {
			if i == 130 {
				x.Processes = []matrix.GPUProcess{{PID: int(ours)}, {PID: int(foreign)}}
			}
		}, func(e matrix.Env) bool { return e.ForeignGPU.Or(0) == 1 }},
		{"H08: a PID of another namespace is unmatched", func(i int, x *matrix.Sample) {
			x.Processes = []matrix.GPUProcess{{PID: int(unmatched)}}
		}, func(e matrix.Env) bool {
			return !e.ForeignGPU.Present() && contains(e.Unevaluable, string(matrix.Cotenant))
		}},
		{"no process list", func(i int, x *matrix.Sample) { delete(x.Fields, matrix.FieldProcesses) }, func(e matrix.Env) bool {
			return !e.ForeignGPU.Present() && contains(e.Unevaluable, string(matrix.Cotenant))
		}},
		{"the card falls off", func(i int, x *matrix.Sample) {
			if i > 150 {
				x.Fields[matrix.FieldSMClock] = matrix.Reading{Status: matrix.ReadingError, Code: matrix.CodeGPULost}
			}
		}, func(e matrix.Env) bool { return e.GPULost }},
	} {
		if e := sampled(30, c.edit).env(win(10*second, 20*second)); !c.check(e) {
			t.Errorf("%s: %+v", c.name, e)
		}
	}
	if e := (&series{}).env(win(0, second)); e.ForeignGPU.Present() || e.ThermalDelta.Present() || len(e.Unevaluable) < 3 {
		t.Errorf("no telemetry at all: %+v", e)
	}
}

// The counter is read every 3 s, the window begins and ends between: 10 s at 92 W are 920 J although idle follows.
func TestEnergy(t *testing.T) {
	s := sampled(30, func(i int, x *matrix.Sample) {
		at := float64(i) / 10
		busy := min(at, 20.5)
		if _, ok := x.Fields[matrix.FieldEnergy]; ok {
			x.Fields[matrix.FieldEnergy] = reading(int64(busy*92000 + (at-busy)*10000))
		}
		if at >= 20.5 {
			x.Fields[matrix.FieldPower] = reading(10000)
		}
	})
	e := s.env(win(10*second+second/2, 20*second+second/2))
	if mj, ok := e.EnergyMilliJoule.Get(); !ok || mj < 919000 || mj > 921000 {
		t.Errorf("energy %d mJ (%v), want 920 J", mj, ok)
	}
}

func TestHostWindow(t *testing.T) {
	s := &series{}
	for i := range int64(11) { // 2 CPUs at 100 ticks: 200 a second; 30 % busy, 20 % ours, 1 % stolen
		s.host = append(s.host, hostSample{at: i * second, cpu: cpuStat{busy: i * 60, steal: i * 2, total: i * 200, cpus: 2}, ours: i * 40, swap: 12})
	}
	s.host[6].swap, s.host[7].swap, s.host[8].swap, s.host[9].swap, s.host[10].swap = 15, 15, 15, 15, 15
	s.mem = []memSample{{0, 100 << 20}, {4 * second, 30 << 20}, {9 * second, 20 << 20}}
	w := win(2*second+second/2, 7*second+second/2)
	w.profile = profiles[2]
	w.base = matrix.Some(Baseline{AvailableKiB: 110 << 20})
	e := s.env(w)
	if f := e.ForeignCPU.Or(-1); f < 0.0999 || f > 0.1001 {
		t.Errorf("foreign CPU %v, want 0.1", f)
	}
	if st := e.Steal.Or(-1); st < 0.0099 || st > 0.0101 {
		t.Errorf("steal %v, want 0.01", st)
	}
	if e.SwapDelta.Or(-1) != 3 || e.PeakMemDeltaKiB.Or(0) != 80<<20 || len(e.Unevaluable) != 0 {
		t.Errorf("%+v", e)
	}
	if e.HostVanished {
		t.Error("a box that was awake vanished")
	}
	s.host[6].slept, s.host[7].slept, s.host[8].slept = 30*second, 30*second, 30*second
	if !s.env(w).HostVanished {
		t.Error("a suspended laptop reads as healthy")
	}
	for i := range s.host {
		s.host[i].cannot, s.host[i].swap = true, -1
	}
	if e := s.env(w); e.ForeignCPU.Present() || e.SwapDelta.Present() || len(e.Unevaluable) != 2 {
		t.Errorf("a hidden /proc: %+v", e)
	}
}

// Two real engines on an H200 as nvidia-smi saw them (driver 580.159.04, 2026-12-01).
func TestClockOfRealEngines(t *testing.T) {
	for _, name := range []string{"llama", "vllm"} {
		s, start, end := smi(t, "testdata/h200-2026-12-01/"+name+"-smi.csv")
		w := win(start, end)
		w.profile = profiles[1]
		got, _ := s.clock(w)
		c, ok := got.Get()
		if !ok {
			t.Fatalf("%s: no clock", name)
		}
		busy := 0
		for _, x := range c.Seconds {
			if x.Util > 0 {
				busy++
				if x.MHz != 1980 && x.MHz != 345 { // a second may end idle
					t.Errorf("%s: busy second at %d MHz", name, x.MHz)
				}
			}
			if x.Bits&^0x1 != 0 {
				t.Errorf("%s: bits %#x", name, x.Bits)
			}
		}
		if n := int((end-start)/second) + 1; len(c.Seconds) != n || busy < 20 {
			t.Errorf("%s: %d seconds of %d, %d busy", name, len(c.Seconds), n, busy)
		}
		if Ceiling(c).Or(0) != 1980 {
			t.Errorf("%s: ceiling %v", name, Ceiling(c))
		}
		var raw bytes.Buffer
		if err := s.raw(w)(&raw); err != nil {
			t.Fatal(err)
		}
		lines := bytes.Split(bytes.TrimSpace(raw.Bytes()), []byte("\n"))
		if len(lines) != len(s.gpu)+1 {
			t.Errorf("%s: %d raw lines of %d samples", name, len(lines), len(s.gpu))
		}
		var l rawLine
		if err := json.Unmarshal(lines[1], &l); err != nil || l.At != s.gpu[0].at || len(l.GPU.Values) != 4 {
			t.Errorf("%s: raw line %s: %v", name, lines[1], err)
		}
	}
}

func smi(t *testing.T, path string) (s *series, start, end int64) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := csv.NewReader(f)
	r.TrimLeadingSpace = true
	lines, err := r.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	s = &series{}
	for _, l := range lines[1:] {
		at, err := time.Parse("2006/01/02 15:04:05.000", l[0])
		if err != nil {
			t.Fatal(err)
		}
		x := matrix.Sample{At: at.UnixNano(), Fields: map[string]matrix.Reading{}}
		for col, field := range map[int]string{1: matrix.FieldSMClock, 4: matrix.FieldUtilization, 7: matrix.FieldTemperature, 8: matrix.FieldEventReasons} {
			v, err := strconv.ParseInt(l[col], 0, 64)
			if err != nil {
				t.Fatal(err)
			}
			x.Fields[field] = reading(v)
		}
		s.gpu = append(s.gpu, compact(x, nil))
	}
	return s, s.gpu[0].at, s.gpu[len(s.gpu)-1].at
}
