package box

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"enginebroker/matrix"
)

// A GB10 after a stop: memory comes back 40 s after exit, the GPU is cool 90 s after, the load average falls.
func TestSettleGB10(t *testing.T) {
	p := newProc(t)
	synctest.Test(t, func(t *testing.T) {
		var temperature atomic.Int64
		temperature.Store(40)
		now := since()
		g := newGPU("NVIDIA GB10", now, func(at int64) map[string]int64 {
			v := healthy(at)
			v[matrix.FieldTemperature] = temperature.Load()
			return v
		})
		b := open(t, p, Options{Sampler: g, Now: now})
		if b.Profile().Name != "gb10" {
			t.Fatalf("profile %s", b.Profile().Name)
		}
		if _, err := b.Baseline(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.memory(60 << 20)
		temperature.Store(71)
		p.put("loadavg", "3.10 0.20 0.30 1/300 4242\n")
		start := time.Now()
		time.AfterFunc(40*time.Second, func() { p.memory(112<<20 - 900<<10) })
		time.AfterFunc(130*time.Second, func() { temperature.Store(45) })
		time.AfterFunc(150*time.Second, func() { p.put("loadavg", "0.90 0.20 0.30 1/300 4242\n") })
		e, err := b.Settle(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d < 150*time.Second || d > 155*time.Second || e.SettleTook < 150*second {
			t.Errorf("settled after %v (%d ns)", d, e.SettleTook)
		}
		if e.ThermalOffset || e.LoadAverage.Or(9) != 0.9 || e.ForeignGPU.Or(1) != 0 || e.MemBaselineKiB.Or(0) != 112<<20 || e.MemBeforeKiB.Or(0) != 112<<20-900<<10 || len(e.Unevaluable) > 0 {
			t.Errorf("%+v", e)
		}
	})
}

// What does not come back within the limits is reported, and the run goes on.
func TestSettleLimits(t *testing.T) {
	p := newProc(t)
	synctest.Test(t, func(t *testing.T) {
		now := since()
		var hot atomic.Bool
		g := newGPU("NVIDIA GB10", now, func(at int64) map[string]int64 {
			v := healthy(at)
			if hot.Load() {
				v[matrix.FieldTemperature] = 90
			}
			return v
		})
		b := open(t, p, Options{Sampler: g, Now: now})
		if _, err := b.Baseline(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.memory(80 << 20)
		hot.Store(true)
		g.procs = []matrix.GPUProcess{{PID: 9}, {PID: 10}} // 10 is of another namespace
		p.process(9, 1, 0, 0, 1, "")
		start := time.Now()
		e, err := b.Settle(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d < 2*memoryLimit+settleLimit || d > 2*memoryLimit+settleLimit+10*time.Second {
			t.Errorf("gave up after %v", d)
		}
		if !e.ThermalOffset || e.MemBeforeKiB.Or(0) != 80<<20 || e.ForeignGPU.Or(0) != 1 {
			t.Errorf("%+v", e)
		}
	})
}

func TestSettleOtherProfiles(t *testing.T) {
	for _, c := range []struct {
		profile string
		want    time.Duration
	}{{"cpu", 2 * time.Second}, {"simulated", 0}} {
		p := newProc(t)
		synctest.Test(t, func(t *testing.T) {
			b := open(t, p, Options{Profile: c.profile, Now: since()})
			if _, err := b.Baseline(t.Context()); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			if _, err := b.Settle(t.Context()); err != nil {
				t.Fatal(err)
			}
			if d := time.Since(start); d != c.want {
				t.Errorf("%s settled in %v, want %v", c.profile, d, c.want)
			}
		})
	}
}

func TestSettleIsCancelled(t *testing.T) {
	p := newProc(t)
	synctest.Test(t, func(t *testing.T) {
		b := open(t, p, Options{Profile: "cpu", Now: since()})
		if _, err := b.Baseline(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.memory(50 << 20)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := b.Settle(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("err %v", err)
		}
	})
}

func TestSettleWithoutBaseline(t *testing.T) {
	b := open(t, newProc(t), Options{Profile: "cpu"})
	if _, err := b.Settle(t.Context()); err == nil || !strings.Contains(err.Error(), "Baseline") {
		t.Errorf("err %v", err)
	}
}

func TestBaselineBelongsToTheBoot(t *testing.T) {
	p := newProc(t)
	b := open(t, p, Options{Profile: "cpu"})
	take := func() Baseline {
		t.Helper()
		x, err := b.Baseline(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	if x := take(); x.AvailableKiB != 112<<20 {
		t.Fatalf("%+v", x)
	}
	p.memory(112<<20 - 500<<10) // within the slack: the box can return to what it was
	if x := take(); x.AvailableKiB != 112<<20 {
		t.Errorf("the baseline sinks: %+v", x)
	}
	p.memory(100 << 20) // a desktop opened: processes own it
	if x := take(); x.AvailableKiB != 100<<20 || x.Note == "" {
		t.Errorf("a baseline that cannot be reached stays, or changes silently: %+v", x)
	}
	p.memory(110 << 20)
	if x := take(); x.AvailableKiB != 110<<20 {
		t.Errorf("%+v", x)
	}
	p.put("sys/kernel/random/boot_id", "bbbbbbbb-0000-4000-8000-000000000002\n")
	p.memory(80 << 20)
	b = open(t, p, Options{Profile: "cpu", RuntimeDir: b.opt.RuntimeDir})
	if x := take(); x.AvailableKiB != 80<<20 || x.Note != "" {
		t.Errorf("another boot's baseline is used: %+v", x)
	}
}

// N13: memory that no process owns.
func TestBaselineUnattributed(t *testing.T) {
	p := newProc(t)
	p.put("meminfo", "MemTotal: 127600748 kB\nMemFree: 85000000 kB\nMemAvailable: 86000000 kB\nCached: 4000000 kB\nAnonPages: 3000000 kB\nSlab: 500000 kB\nBuffers: 0 kB\n")
	b := open(t, p, Options{Profile: "cpu"})
	x, err := b.Baseline(t.Context())
	if !errors.Is(err, ErrUnattributed) || x.AvailableKiB != 86000000 || !strings.Contains(err.Error(), "reboot") {
		t.Errorf("%+v, %v", x, err)
	}
}

func TestOpen(t *testing.T) {
	p := newProc(t)
	for _, c := range []struct {
		name, profile, device string
		gpus                  []string
		want, problem         string
	}{
		{name: "no telemetry", want: "cpu"},
		{name: "GB10", gpus: []string{"NVIDIA GB10"}, want: "gb10"},
		{name: "card", gpus: []string{"NVIDIA H200"}, want: "nvidia"},
		{name: "cpu asked for", profile: "cpu", gpus: []string{"NVIDIA H200"}, want: "cpu"},
		{name: "gb10 asked for on a card", profile: "gb10", gpus: []string{"NVIDIA H200"}, problem: "nvidia"},
		{name: "gb10 asked for without telemetry", profile: "gb10", problem: "no device"},
		{name: "unknown profile", profile: "tpu", problem: "unknown box profile"},
		{name: "two cards, none named", gpus: []string{"NVIDIA H200", "NVIDIA H200"}, want: "cpu"},
		{name: "two cards, one named", gpus: []string{"NVIDIA H200", "NVIDIA H200"}, device: "GPU-2", want: "nvidia"},
	} {
		var s Sampler
		if c.gpus != nil {
			s = several(c.gpus)
		}
		b, err := Open(t.Context(), Options{Proc: p.root, RuntimeDir: t.TempDir(), Profile: c.profile, Device: c.device, Sampler: s})
		if c.problem != "" {
			looked, lerr := Open(t.Context(), Options{Proc: p.root, RuntimeDir: t.TempDir(), Profile: c.profile, Device: c.device, Sampler: s, Look: true})
			if known := c.profile != "tpu"; known != (lerr == nil) || known && looked.unlike != err.Error() {
				t.Errorf("%s, looked at: %v", c.name, lerr)
			}
			if err == nil || !strings.Contains(err.Error(), c.problem) {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if err != nil || b.Profile().Name != c.want {
			t.Errorf("%s: %v, %v", c.name, b, err)
			continue
		}
		if got := b.Facts().Value("cpu_model").Or(""); got != "arm 0x41/0xd85 + arm 0x41/0xd87" {
			t.Errorf("cpu model %q", got)
		}
		if c.name == "two cards, none named" && !strings.Contains(strings.Join(b.Warnings(), ""), "GPU-2") {
			t.Errorf("warnings %v", b.Warnings())
		}
	}
	if _, err := Open(t.Context(), Options{Proc: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "boot id") {
		t.Errorf("without /proc: %v", err)
	}
}

// several is a sampler of many idle cards.
type several []string

func (s several) Describe(context.Context) (matrix.Telemetry, error) {
	var t matrix.Telemetry
	for i, n := range s {
		t.Devices = append(t.Devices, matrix.Device{Index: i, UUID: "GPU-" + string(rune('1'+i)), Name: n})
	}
	return t, nil
}

func (s several) Sample(ctx context.Context, _ int, _ func(matrix.Sample)) error {
	<-ctx.Done()
	return ctx.Err()
}
