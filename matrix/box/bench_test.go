package box

import (
	"os"
	"testing"

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
