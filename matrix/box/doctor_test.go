package box

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"enginebroker/matrix"
)

// made is a load of so many tokens that lasts as long as it is let.
type made int64

func (made) Start(ctx context.Context) ([]int, error) {
	return []int{4242}, wait(ctx, 5*time.Minute) // loads take minutes; only what follows is judged
}

func (m made) Generate(ctx context.Context) (int64, error) {
	<-ctx.Done()
	return int64(m), ctx.Err()
}

func (made) Stop(context.Context) error { return nil }

func TestDoctorCertifiesUnderItsOwnLoad(t *testing.T) {
	for _, c := range []struct {
		name   string
		edit   func(at int64, v map[string]int64)
		tokens int64
		costs  string // of the finding about clocks; empty: ok
		fix    string
		pin    string
	}{
		{"flat", nil, 2000, "", "", "pinned"},
		{"N07: healthy at idle, collapsed under load", func(at int64, v map[string]int64) { v[matrix.FieldSMClock] = 695 }, 2000, "CLOCK_DEGRADED_STATE", "AC power", "unpinned"},
		{"N06: busy without a token is a hang, not a clock", func(at int64, v map[string]int64) { v[matrix.FieldSMClock] = 695 }, 0, "ENGINE_HUNG", "log", "unpinned"},
		{"unpinned", func(at int64, v map[string]int64) { v[matrix.FieldSMClock] = 2281 + at/second%2*124 }, 2000, "CLOCK_SPREAD", "nvidia-smi -lgc 2190", "unpinned"},
		{"throttled at a flat clock", func(at int64, v map[string]int64) { v[matrix.FieldEventReasons] = 0x8 }, 2000, "CLOCK_THROTTLED", "PERFORMANCE", "unpinned"},
		{"throttled by a bit without a name, once", func(at int64, v map[string]int64) {
			if at/second == 310 {
				v[matrix.FieldEventReasons] = 0x4000
			}
		}, 2000, "CLOCK_THROTTLED", "PERFORMANCE", "unpinned"},
		{"bits of an idle card and of a lock", func(at int64, v map[string]int64) { v[matrix.FieldEventReasons] = 0x103 }, 2000, "", "", "pinned"},
		{"idle", func(at int64, v map[string]int64) { v[matrix.FieldUtilization] = 0 }, 2000, "CLOCK_FEW_BUSY_SAMPLES", "larger", "unpinned"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newProc(t)
			synctest.Test(t, func(t *testing.T) {
				now := since()
				g := newGPU("NVIDIA GB10", now, func(at int64) map[string]int64 {
					v := healthy(at)
					if c.edit != nil {
						c.edit(at, v)
					}
					return v
				})
				b := open(t, p, Options{Sampler: g, Now: now})
				d, err := b.Doctor(t.Context(), Checks{Load: made(c.tokens), Throttled: throttled, CleanWindow: func(n int) float64 { return 0.021 }})
				if err != nil {
					t.Fatal(err)
				}
				f := find(t, d, "clocks")
				if (f.State == StateOK) != (c.costs == "") || !strings.Contains(f.Costs, c.costs) || !strings.Contains(f.Fix, c.fix) {
					t.Errorf("%+v", f)
				}
				if got := b.Facts().Value("clock_ceiling_mhz").Present(); got != (c.costs == "" || c.costs == "CLOCK_SPREAD") {
					t.Errorf("a clock ceiling is stated: %v", got)
				}
				if b.PinState() != c.pin {
					t.Errorf("pin state %s", b.PinState())
				}
				if fit := len(d.Uncertified(false)) == 0; fit != (c.costs == "") {
					t.Errorf("fit to certify: %v, %+v", fit, d.Uncertified(false))
				}
				if advised := slices.ContainsFunc(d.Findings, func(f Finding) bool { return f.What == whatPin }); advised != (c.pin != "pinned") {
					t.Errorf("advice on unpinned runs: %v", advised)
				}
			})
		})
	}
}

// throttled is the rule of a GB10, with the bits for names.
func throttled(bits uint64) []string {
	if bits &^= 0x103; bits != 0 {
		return []string{fmt.Sprintf("%#x", bits)}
	}
	return nil
}

// The latest look counts: whatever makes it fail takes the certificate of an earlier one away.
func TestDoctorWithdrawsACertificate(t *testing.T) {
	for _, c := range []struct {
		name   string
		spoil  func(g *fakeGPU, from int64) // from: when the second load begins to generate
		tokens int64
		saw    string
	}{
		{"stuck in low power", func(g *fakeGPU, _ int64) { g.set(matrix.FieldSMClock, 799) }, 2000, "low-power state"},
		{"throttled", func(g *fakeGPU, _ int64) { g.set(matrix.FieldEventReasons, 0x20) }, 2000, "0x20"},
		{"hot", func(g *fakeGPU, _ int64) {
			was := g.sample
			g.sample = func(at int64) map[string]int64 { v := was(at); v[matrix.FieldSWThermal] = at; return v }
		}, 2000, "heat"},
		{"idle", func(g *fakeGPU, _ int64) { g.set(matrix.FieldUtilization, 0) }, 2000, "busy seconds"},
		{"hung engine", func(*fakeGPU, int64) {}, 0, "no token"},
		{"card lost", func(g *fakeGPU, from int64) { g.lostFrom = from + 20*second }, 2000, "lost the card"},
		{"silent driver", func(g *fakeGPU, from int64) { g.silentFrom = from + 20*second }, 2000, "telemetry was silent"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newProc(t)
			synctest.Test(t, func(t *testing.T) {
				now := since()
				g := newGPU("NVIDIA GB10", now, healthy)
				b := open(t, p, Options{Sampler: g, Now: now})
				if _, err := b.Doctor(t.Context(), Checks{Load: made(2000), Throttled: throttled}); err != nil || b.PinState() != "pinned" {
					t.Fatal(b.PinState(), err)
				}
				c.spoil(g, now()+int64(5*time.Minute))
				d, err := b.Doctor(t.Context(), Checks{Load: made(c.tokens), Throttled: throttled})
				if err != nil {
					t.Fatal(err)
				}
				if f := find(t, d, "clocks"); f.State == StateOK || !strings.Contains(f.Saw, c.saw) {
					t.Errorf("%+v", f)
				}
				if b.PinState() != "unpinned" || b.Facts().Value("clock_ceiling_mhz").Present() {
					t.Errorf("still %s, ceiling %v", b.PinState(), b.Facts().Value("clock_ceiling_mhz"))
				}
				g.lostFrom, g.silentFrom, g.sample = 0, 0, healthy
				if d, err = b.Doctor(t.Context(), Checks{}); err != nil || find(t, d, "clocks").State != StateCannot {
					t.Errorf("without a load afterwards: %+v, %v", find(t, d, "clocks"), err)
				}
			})
		})
	}
}

func find(t *testing.T, d Diagnosis, what string) Finding {
	t.Helper()
	i := slices.IndexFunc(d.Findings, func(f Finding) bool { return f.What == what })
	if i < 0 {
		t.Fatalf("no finding about %s in %+v", what, d.Findings)
	}
	return d.Findings[i]
}

// Every line that keeps the box from certifying says what to do, and the whole is plain JSON.
func TestDoctorNamesTheFix(t *testing.T) {
	p := newProc(t)
	synctest.Test(t, func(t *testing.T) {
		now := since()
		g := newGPU("NVIDIA GB10", now, healthy)
		g.device.Facts = matrix.Facts{{Name: matrix.DeviceFactPersistence, Value: "off"}, {Name: "mig", Value: "on"}}
		g.device.Fields = map[string]matrix.ReadingStatus{matrix.FieldSMClock: matrix.ReadingNoPermission}
		p.put("stat", "")
		p.put("vmstat", "nothing 1\n")
		p.put("loadavg", "")
		os.Remove(filepath.Join(p.root, "self/ns/pid"))
		if err := os.Symlink("pid:[4026532000]", filepath.Join(p.root, "self/ns/pid")); err != nil {
			t.Fatal(err)
		}
		b := open(t, p, Options{Sampler: g, Now: now})
		d, err := b.Doctor(t.Context(), Checks{})
		if err != nil {
			t.Fatal(err)
		}
		for _, what := range []string{"persistence", "MIG", matrix.FieldSMClock, matrix.FieldProcesses, "CPU times", "load average", "swap counters", "process numbers", "clocks"} {
			if f := find(t, d, what); f.State != StateCannot || f.Fix == "" || f.Costs == "" {
				t.Errorf("%+v", f)
			}
		}
		if len(d.Uncertified(false)) < 7 {
			t.Errorf("%d lines", len(d.Uncertified(false)))
		}
		if _, err := json.Marshal(d); err != nil {
			t.Error(err)
		}
	})
}

// What doctor says of a card that it cannot read: which of the ways out is this box's.
func TestDoctorWithoutTelemetry(t *testing.T) {
	for _, c := range []struct {
		name     string
		sampler  Sampler
		driver   string // of /proc/driver/nvidia/version
		saw, fix string // empty: no finding
	}{
		{name: "no card"},
		{name: "a card that nobody asked for", driver: "NVRM version: NVIDIA UNIX Open Kernel Module  580.142\n", saw: "580.142", fix: "`telemetry: nvml`"},
		{name: "no driver", sampler: silent{why: "the NVML library cannot be loaded: no such file"}, saw: "the NVML library cannot be loaded", fix: "take `telemetry` out"},
		{name: "two cards", sampler: several{"NVIDIA H200", "NVIDIA H200"}, saw: "several devices", fix: "`device: UUID`"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newProc(t)
			p.put("loadavg", "9.00 9.00 9.00 1/100 5\n")
			if c.driver != "" {
				p.put("driver/nvidia/version", c.driver)
			}
			d, err := open(t, p, Options{Sampler: c.sampler}).Doctor(t.Context(), Checks{})
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(d.Findings, func(f Finding) bool { return f.What == "telemetry" })
			if (i >= 0) != (c.saw != "") {
				t.Fatalf("%+v", d.Findings)
			}
			if i >= 0 {
				if f := d.Findings[i]; f.State != StateCannot || !strings.HasPrefix(f.Saw, "an NVIDIA driver") && !strings.HasPrefix(f.Saw, c.saw) || !strings.Contains(f.Saw, c.saw) || !strings.Contains(f.Fix, c.fix) {
					t.Errorf("%+v", f)
				}
			}
			if f := find(t, d, "load average"); strings.Contains(f.Saw, "waits") { // a box without a GPU waits for no load average
				t.Errorf("%+v", f)
			}
		})
	}
}

// A library that answers the memory call in the driver's place is named.
func TestDoctorNamesAShim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := since()
		g := shimmed{newGPU("NVIDIA GB10", now, healthy)}
		d, err := open(t, newProc(t), Options{Sampler: g, Now: now}).Doctor(t.Context(), Checks{})
		if err != nil {
			t.Fatal(err)
		}
		if f := find(t, d, "library"); f.State != StateNote || !strings.Contains(f.Saw, "/opt/shim.so") || f.Fix == "" {
			t.Errorf("%+v", f)
		}
	})
}

type shimmed struct{ Sampler }

func (s shimmed) Describe(ctx context.Context) (matrix.Telemetry, error) {
	t, err := s.Sampler.Describe(ctx)
	t.Library = append(t.Library, matrix.Fact{Name: "memory_library_path", Value: "/opt/shim.so"})
	return t, err
}

// silent has no device and says why.
type silent struct{ why string }

func (s silent) Describe(context.Context) (matrix.Telemetry, error) {
	return matrix.Telemetry{Why: s.why}, nil
}

func (silent) Sample(context.Context, int, func(matrix.Sample)) error { return nil }

func TestDoctorOnACPU(t *testing.T) {
	d, err := open(t, newProc(t), Options{}).Doctor(t.Context(), Checks{Load: made(1)})
	if err != nil {
		t.Fatal(err)
	}
	if f := find(t, d, "load"); f.State != StateNote || !strings.HasPrefix(f.Saw, "not run") || len(d.Uncertified(false)) > 0 {
		t.Errorf("a load that nobody needs: %+v, %+v", f, d.Uncertified(false))
	}
	if d.Certifies != matrix.Provisional || find(t, d, "profile").Costs != string(matrix.BoxUncertified) {
		t.Errorf("%+v", d)
	}
	d, err = open(t, newProc(t), Options{Profile: "simulated"}).Doctor(t.Context(), Checks{})
	if err != nil || !d.Simulated || !strings.Contains(d.Findings[0].Saw, "SIMULATED") {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestLive(t *testing.T) {
	p := newProc(t)
	synctest.Test(t, func(t *testing.T) {
		now := since()
		b := open(t, p, Options{Sampler: newGPU("NVIDIA GB10", now, healthy), Now: now})
		n := 0
		for s, err := range b.Live(t.Context(), time.Second) {
			if err != nil || s.AvailableKiB != 112<<20 || !s.GPU.Present() || s.Holder.Present() {
				t.Errorf("%+v, %v", s, err)
			}
			p.cpu(1000+int64(n+1)*50, 0, 100000+int64(n+1)*200)
			if n++; n == 3 {
				if v, ok := s.Busy.Get(); !ok || v != 0.25 {
					t.Errorf("busy %v %v, want 0.25", v, ok)
				}
				break
			}
		}
	})
}

// A watch over a whole window: telemetry, host and memory come together, and a plugin that hangs costs samples alone.
func TestWatchWindow(t *testing.T) {
	p := newProc(t)
	synctest.Test(t, func(t *testing.T) {
		now := since()
		g := newGPU("NVIDIA GB10", now, healthy)
		g.procs = []matrix.GPUProcess{{PID: 9}}
		p.process(9, 1, 0, 0, 1, "")
		b := open(t, p, Options{Sampler: g, Now: now})
		if _, err := b.Baseline(t.Context()); err != nil {
			t.Fatal(err)
		}
		w, err := b.Watch(t.Context(), func() []int { return nil }, func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		start := now()
		p.memory(70 << 20)
		time.Sleep(10 * time.Second)
		p.cpu(1000+400, 40, 100000+2000)
		e, clock, raw := w.Window(start, now(), nil)
		c, ok := clock.Get()
		if !ok || len(c.Seconds) < 10 || raw == nil {
			t.Errorf("clock %+v", c)
		}
		if e.ForeignGPU.Or(0) != 1 || e.PeakMemDeltaKiB.Or(0) != 42<<20 || e.ThermalDelta.Or(-1) != 0 || e.SwapDelta.Or(-1) != 0 || e.BootIDEnd != bootA || len(e.Unevaluable) > 0 {
			t.Errorf("%+v", e)
		}
		if f, ok := e.ForeignCPU.Get(); !ok || f <= 0 {
			t.Errorf("foreign CPU %v %v", f, ok)
		}
		w.Close()
	})
}

// A telemetry source that is silent from the start: the window waits its limit and says what is missing.
func TestWatchWithSilentTelemetry(t *testing.T) {
	p := newProc(t)
	synctest.Test(t, func(t *testing.T) {
		b := open(t, p, Options{Sampler: several{"NVIDIA GB10"}, Now: since()})
		w, err := b.Watch(t.Context(), func() []int { return nil }, func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		e, clock, _ := w.Window(1, second, nil)
		if clock.Present() || !contains(e.Unevaluable, string(matrix.Cotenant)) {
			t.Errorf("%v %+v", clock, e)
		}
		w.Close()
	})
}
