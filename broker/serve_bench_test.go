package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	brokerv1 "enginebroker/proto/gen/broker/v1"
)

// measure lets a daemon perform a run to its end.
func (l *life) measure(ctx context.Context, name string) {
	l.t.Helper()
	if _, err := l.runs.CreateRun(ctx, &brokerv1.CreateRunRequest{Spec: &brokerv1.RunSpec{Model: new("models/qwen3.8-27b"), Seed: new(uint64(7))}, RunId: &name}); err != nil {
		l.t.Fatal(err)
	}
	w, err := l.runs.WatchRun(ctx, &brokerv1.WatchRunRequest{Name: new("runs/" + name)})
	var last *brokerv1.WatchRunResponse
	for err == nil {
		var m *brokerv1.WatchRunResponse
		if m, err = w.Recv(); err == nil {
			last = m
		}
	}
	if last.GetState() != brokerv1.RunState_RUN_STATE_COMPLETE {
		l.t.Fatalf("run %s ended as %v\n%s", name, last, l.logs())
	}
}

func (l *life) end() {
	l.t.Helper()
	if err := errors.Join(l.conn.Close(), l.cmd.Process.Signal(os.Interrupt), l.cmd.Wait()); err != nil {
		l.t.Fatal(err)
	}
}

// BenchmarkServe prints, of the real daemon with 1,000 finished runs on disk: from the start of its process to serving
// (issue 8: ≤ 300 ms), listing them over the socket (≤ 50 ms), and what it holds without a run once they were listed
// (resident ≤ 48 MiB).
func BenchmarkServe(b *testing.B) {
	const runs = 1000
	h := newHouse(b)
	ctx := b.Context()
	l := h.start(ctx)
	l.measure(ctx, "r0")
	l.end()
	base := filepath.Join(h.dir, "runs")
	for i := 1; i < runs; i++ {
		name := fmt.Sprintf("r%d", i)
		for _, dir := range []string{".", filepath.Join(".broker", "jobs")} {
			if err := os.MkdirAll(filepath.Join(base, dir, name), 0o755); err != nil {
				b.Fatal(err)
			}
		}
		for _, f := range []string{"plan.json", "ledger.jsonl", "ledger.head", "report.json", "summary.json", filepath.Join(".broker", "jobs", "%s", "job.json"), filepath.Join(".broker", "jobs", "%s", "events.jsonl")} {
			from, to := filepath.Join("r0", f), filepath.Join(name, f)
			if strings.Contains(f, "%s") {
				from, to = fmt.Sprintf(f, "r0"), fmt.Sprintf(f, name)
			}
			data, err := os.ReadFile(filepath.Join(base, from))
			if err != nil {
				b.Fatal(err)
			}
			if f != "plan.json" && !strings.HasPrefix(f, "ledger") {
				data = []byte(strings.ReplaceAll(string(data), `"r0"`, `"`+name+`"`))
			}
			if err := os.WriteFile(filepath.Join(base, to), data, 0o600); err != nil {
				b.Fatal(err)
			}
		}
	}
	var start, list []time.Duration
	var held memory
	for b.Loop() {
		began := time.Now()
		l := h.start(ctx)
		start = append(start, time.Since(began))
		for range 5 {
			began = time.Now()
			r, err := l.runs.ListRuns(ctx, &brokerv1.ListRunsRequest{PageSize: new(int64(runs))})
			if err != nil || len(r.GetRuns()) != runs {
				b.Fatal(err, len(r.GetRuns()))
			}
			list = append(list, time.Since(began))
		}
		held.most(family(l.cmd.Process.Pid)[l.cmd.Process.Pid].memory)
		l.end()
	}
	b.ReportMetric(median(start), "ms-start")
	b.ReportMetric(median(list), "ms-list")
	b.ReportMetric(held.rss, "MiB-rss")
	b.ReportMetric(held.own, "MiB-own")
}

func median(d []time.Duration) float64 {
	slices.Sort(d)
	return float64(d[len(d)/2].Microseconds()) / 1000
}

// BenchmarkWatched prints, of a run of the real daemon with nobody and with 100 watching: what the daemon did inside timed
// windows in percent of a core, on average and in the worst window (issue 8: ≤ 1 %), legs that were void for it, and by how
// much the median output rate of the legs differs (within the A/A noise floor, which broker aa prints for a box).
func BenchmarkWatched(b *testing.B) {
	h := newHouse(b)
	ctx := b.Context()
	l := h.start(ctx)
	n := 0
	lengths := map[int][]float64{} // of windows; every one has the same tokens
	worst, busy, window, void := 0.0, 0.0, 0.0, 0
	for b.Loop() {
		n++
		for _, watchers := range []int{0, 100} {
			name := fmt.Sprintf("w%d-%d", n, watchers)
			watching, stop := context.WithCancel(ctx)
			done := make(chan struct{}, watchers)
			go func() {
				for range watchers {
					go func() {
						defer func() { done <- struct{}{} }()
						for watching.Err() == nil { // from before the run exists
							w, err := l.runs.WatchRun(watching, &brokerv1.WatchRunRequest{Name: new("runs/" + name)})
							heard := false
							for err == nil {
								_, err = w.Recv()
								heard = heard || err == nil
							}
							if heard {
								return
							}
							time.Sleep(50 * time.Millisecond)
						}
					}()
				}
			}()
			l.measure(ctx, name)
			stop()
			for range watchers {
				<-done
			}
			for line := range strings.SplitSeq(h.read("runs", name, "ledger.jsonl"), "\n") {
				var rec struct {
					Kind string
					Body struct {
						Repetitions []struct {
							Start  int64 `json:"start_ns"`
							End    int64 `json:"end_ns"`
							Daemon []struct {
								Busy int64 `json:"busy_ns"`
							}
						}
					}
				}
				if json.Unmarshal([]byte(line), &rec) != nil || rec.Kind != "leg" {
					continue
				}
				for _, rep := range rec.Body.Repetitions {
					took := float64(rep.End - rep.Start)
					if took <= 0 {
						continue // one that never began
					}
					lengths[watchers] = append(lengths[watchers], took)
					sum := 0.0
					for _, d := range rep.Daemon {
						sum += float64(d.Busy)
					}
					if watchers > 0 {
						busy, window, worst = busy+sum, window+took, max(worst, sum/took)
					}
				}
			}
			void += strings.Count(h.read("runs", name, "report.json"), "the daemon took")
		}
	}
	l.end()
	mid := func(list []float64) float64 {
		if len(list) == 0 {
			b.Fatal("no window was measured")
		}
		slices.Sort(list)
		return list[len(list)/2]
	}
	b.ReportMetric(100*busy/window, "%core")
	b.ReportMetric(100*worst, "%core-worst-window")
	b.ReportMetric(float64(void), "legs-void")
	b.ReportMetric(100*(mid(lengths[0])/mid(lengths[100])-1), "%rate-watched/alone")
}
