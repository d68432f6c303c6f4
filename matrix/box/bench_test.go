package box

import (
	"os"
	"testing"
	"time"

	"enginebroker/matrix"
)

// What sampling costs: the guard's reading comes ten times a second, the host's once, a device sample ten times.
func BenchmarkSampling(b *testing.B) {
	box, err := Open(b.Context(), Options{Profile: "cpu", RuntimeDir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	w, err := box.Watch(b.Context(), func() []int { return nil }, func(string) {})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	b.Run("memory", func(b *testing.B) {
		f, err := os.Open("/proc/meminfo")
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		buf := make([]byte, 4096)
		for b.Loop() {
			n, _ := f.ReadAt(buf, 0)
			if _, ok := availableKiB(buf[:n]); !ok {
				b.Fatal("no MemAvailable")
			}
		}
	})
	b.Run("host", func(b *testing.B) {
		for b.Loop() {
			w.sampleHost()
		}
	})
	b.Run("device", func(b *testing.B) {
		g := newGPU("NVIDIA GB10", nil, healthy)
		g.procs = []matrix.GPUProcess{{PID: os.Getpid()}}
		s := g.at(1)
		for b.Loop() {
			w.addDevice(s)
		}
	})
}

// How long after the projection the guard acts on the replayed trace at the worst phase of its samples (goal 300 ms), and how
// long before the floor. What the operating system adds to a sample's time is not in it.
func BenchmarkGuardReplay(b *testing.B) {
	g := Guard{}.withDefaults(totalKiB)
	var late, left time.Duration
	for b.Loop() {
		late, left = 0, time.Hour
		for phase := time.Duration(0); phase < g.Every; phase += time.Millisecond {
			acted, projected, floorAt := replay(g, phase)
			late, left = max(late, acted-projected), min(left, floorAt-acted)
		}
	}
	b.ReportMetric(float64(late.Milliseconds()), "ms-late-worst")
	b.ReportMetric(float64(left.Milliseconds()), "ms-before-floor")
}
