package service

import (
	flags "flag"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"enginebroker/matrix"
	"enginebroker/matrix/stopwatch"
)

var auditLoads = flags.Int("audit-loads", 7, "loads of the run that BenchmarkAudit audits; the target is stated for 95")

// BenchmarkAudit audits a run of the size that issue 6 measures: five points up to 16 streams, three repetitions, three arms.
// Target for 95 loads, some 9 million arrivals: ≤ 60 s and ≤ 256 MiB.
func BenchmarkAudit(b *testing.B) {
	s := testService(b)
	p := evidencePlan(b, 3, []string{"c1", "c2", "c4", "c8", "c16"}, "ours", "sglang", "vllm")
	p.Method.Repetitions = 3
	for i := range p.Method.Points {
		pt := &p.Method.Points[i]
		pt.OutputTokens, pt.Concurrency, pt.Requests = 170, 1<<i, 6<<i
	}
	p.MethodID, _ = p.Method.ID()
	r := newEvidence(b, s, "big", p, nil)
	raws := map[string]*stopwatch.Recording{}
	reqs := map[string][]matrix.Request{}
	arrivals := 0
	r.big = func(pt matrix.Point, d matrix.Dialect) (*stopwatch.Recording, []matrix.Request) {
		if raws[pt.ID] == nil {
			raws[pt.ID] = stream(pt, 12, false)
			reqs[pt.ID] = stopwatch.Reduce(raws[pt.ID], d, pt)
		}
		for _, x := range raws[pt.ID].Exchanges {
			arrivals += 3 * len(x.Segments)
		}
		return raws[pt.ID], reqs[pt.ID]
	}
	r.grid((*auditLoads + 6) / 7)
	r.close()
	clear(raws)
	clear(reqs)
	r.big = nil
	runtime.GC()
	var peak atomic.Uint64
	stop := make(chan struct{})
	go func() {
		var m runtime.MemStats
		for {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
				runtime.ReadMemStats(&m)
				if m.HeapInuse > peak.Load() {
					peak.Store(m.HeapInuse)
				}
			}
		}
	}()
	b.ResetTimer()
	for b.Loop() {
		a, err := s.Audit(b.Context(), "big")
		if err != nil || len(a.Findings) > 0 {
			b.Fatalf("%+v, %v", a, err)
		}
	}
	close(stop)
	b.ReportMetric(float64(peak.Load())/(1<<20), "MiB-heap")
	b.ReportMetric(float64(arrivals), "arrivals")
}
