//go:build linux && cgo

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"enginebroker/engines/host"
	"enginebroker/matrix"
)

// Where BenchmarkSampling finds a plugin that is built already, and a library other than the stub: so it runs on a box with a
// GPU and no Go (go test -c).
const (
	pluginEnv = "BROKER_BENCH_PLUGIN"
	driverEnv = "BROKER_BENCH_LIBRARY"
)

// BenchmarkSampling samples for 20 s at 10 Hz by the way the broker does: the plugin in a process of its own, its samples over
// gRPC. It prints what the plugin takes of a core (goal 0.5 %) and of memory (goal 20 MiB), and how far from their time the
// samples are at the 99th percentile (goal 5 ms). With -benchtime 1x.
func BenchmarkSampling(b *testing.B) {
	tel := launch(b, "")
	for b.Loop() {
		ctx, cancel := context.WithCancel(b.Context())
		var at []int64
		var from time.Duration
		var began time.Time
		const settled, enough = 20, 220
		_ = tel.Sample(ctx, 10, func(s matrix.Sample) {
			switch at = append(at, s.At); len(at) {
			case settled:
				from, began = cpu(tel.PID()), time.Now()
			case enough:
				b.ReportMetric(100*(cpu(tel.PID())-from).Seconds()/time.Since(began).Seconds(), "%core")
				cancel()
			}
		})
		cancel()
		if len(at) < enough {
			b.Fatalf("%d samples", len(at))
		}
		var off []float64
		for i, t := range at[settled:] {
			off = append(off, float64(t-at[settled])/1e6-float64(i)*100)
		}
		slices.Sort(off)
		median := off[len(off)/2]
		for i := range off {
			off[i] = max(off[i]-median, median-off[i])
		}
		slices.Sort(off)
		b.ReportMetric(off[len(off)*99/100], "ms-jitter-p99")
	}
	for field, unit := range map[string]string{"VmRSS": "MiB-rss", "RssAnon": "MiB-own"} {
		b.ReportMetric(statusMiB(tel.PID(), field), unit)
	}
}

// BenchmarkHungDriver prints how long after its last answer a driver that hangs is noticed (goal 2 s).
func BenchmarkHungDriver(b *testing.B) {
	if os.Getenv(driverEnv) != "" {
		b.Skip("the stub library hangs; a real driver is not made to")
	}
	for b.Loop() {
		tel := launch(b, "hang")
		ctx, cancel := context.WithCancel(b.Context())
		var good int64
		_ = tel.Sample(ctx, 10, func(s matrix.Sample) {
			if s.Fields[matrix.FieldSMClock].Status == matrix.ReadingValue {
				good = s.At
			} else {
				b.ReportMetric(float64(monotonic()-good)/1e9, "s-to-notice")
				cancel()
			}
		})
		cancel()
	}
}

func launch(b *testing.B, mode string) *host.Telemetry {
	path, library := os.Getenv(pluginEnv), os.Getenv(driverEnv)
	if path == "" {
		dir, err := built()
		if err != nil {
			b.Fatal(err)
		}
		path = filepath.Join(dir, "nvml")
	}
	if library == "" {
		library = stub(b)
	}
	b.Setenv(libraryEnv, library)
	b.Setenv("STUB_MODE", mode)
	tel, err := host.LaunchTelemetry(b.Context(), host.Config{Plugin: host.Plugin{Path: path}, Env: []string{libraryEnv, "STUB_MODE"}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = tel.Close(context.Background()) })
	if d, err := tel.Describe(b.Context()); err != nil || len(d.Devices) == 0 {
		b.Fatalf("%v, %s", err, d.Why)
	}
	return tel
}

// cpu is what every thread of a process has run, to the nanosecond (proc(5), schedstat).
func cpu(pid int) time.Duration {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid)) // the pattern is well formed
	var sum int64
	for _, t := range tasks {
		text, _ := os.ReadFile(t) // a thread that has ended is missing
		ns, _, _ := strings.Cut(string(text), " ")
		n, _ := strconv.ParseInt(ns, 10, 64)
		sum += n
	}
	return time.Duration(sum)
}

func statusMiB(pid int, field string) float64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // 0 says that it is gone
	_, x, _ := strings.Cut(string(text), "\n"+field+":")
	kib, _ := strconv.ParseFloat(strings.Fields(x + " 0")[0], 64)
	return kib / 1024
}
