package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"enginebroker/broker/service"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

// listed is a daemon on a real socket with finished runs behind it.
func listed(b *testing.B, f *fake) brokerv1.RunServiceClient {
	b.Helper()
	path := filepath.Join(b.TempDir(), "b.sock")
	l, _, err := Listen("unix://"+path, TLS{}, zap.NewNop())
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, f, Options{Listener: l, Log: zap.NewNop()}) }()
	cc, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { cc.Close(); cancel(); <-done })
	return brokerv1.NewRunServiceClient(cc)
}

func benchFake(b *testing.B) *fake { return &fake{dir: b.TempDir(), runs: map[string]string{}} }

// BenchmarkUnary prints the p99 of a unary call over the socket (issue 8: ≤ 5 ms idle, ≤ 20 ms while measuring).
func BenchmarkUnary(b *testing.B) {
	for _, measuring := range []bool{false, true} {
		b.Run(fmt.Sprintf("measuring=%v", measuring), func(b *testing.B) {
			f := benchFake(b)
			began, let := make(chan string, 1), make(chan struct{})
			f.run = func(ctx context.Context, name string, on func(service.Event)) error {
				w := service.WindowsOf(ctx)
				if measuring {
					w.Open()
					defer w.Close()
				}
				return hold(began, let)(ctx, name, on)
			}
			c := listed(b, f)
			defer close(let)
			if _, err := c.CreateRun(b.Context(), &brokerv1.CreateRunRequest{Spec: spec(), RunId: new("r1")}); err != nil {
				b.Fatal(err)
			}
			<-began
			var took []time.Duration
			for b.Loop() {
				t := time.Now()
				if _, err := c.GetRun(b.Context(), &brokerv1.GetRunRequest{Name: new("runs/r1")}); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(t))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
		})
	}
}

// BenchmarkWatchers prints what one step of a run costs the daemon and its clients together with 100 watchers (issue 8:
// everything but the stopwatch ≤ 1 % of a core; a run has about three steps a minute and arm).
func BenchmarkWatchers(b *testing.B) {
	f := benchFake(b)
	steps := make(chan struct{})
	began := make(chan string, 1)
	f.run = func(ctx context.Context, name string, on func(service.Event)) error {
		began <- name
		for range steps {
			on(service.Event{At: time.Now(), Kind: "leg", Arm: "ours", Load: "0001-g0", Point: "c8", LoadsDone: 1, LoadsTotal: 4})
		}
		return nil
	}
	c := listed(b, f)
	if _, err := c.CreateRun(b.Context(), &brokerv1.CreateRunRequest{Spec: spec(), RunId: new("r1")}); err != nil {
		b.Fatal(err)
	}
	<-began
	const watchers = 100
	heard := make(chan struct{}, watchers)
	for range watchers {
		w, err := c.WatchRun(b.Context(), &brokerv1.WatchRunRequest{Name: new("runs/r1")})
		if err != nil {
			b.Fatal(err)
		}
		go func() {
			for {
				m, err := w.Recv()
				if err != nil {
					if !errors.Is(err, io.EOF) && b.Context().Err() == nil {
						b.Error(err)
					}
					return
				}
				if m.GetStep().GetKind() == "leg" {
					heard <- struct{}{}
				}
			}
		}()
	}
	before := cpu()
	n := 0
	for b.Loop() {
		steps <- struct{}{}
		for range watchers {
			<-heard
		}
		n++
	}
	b.ReportMetric(float64((cpu()-before).Microseconds())/float64(n), "cpu-µs/step")
	close(steps)
}

func cpu() time.Duration {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// BenchmarkStart prints how long a daemon takes from its start to its first answer with 1,000 runs that it remembers
// (issue 8: ≤ 300 ms; listing them ≤ 50 ms).
func BenchmarkStart(b *testing.B) {
	f := benchFake(b)
	st := store{f.StateDir("jobs")}
	for i := range 1000 {
		name := fmt.Sprintf("run-%04d", i)
		j := &job{Name: name, RequestID: name, Digest: strings.Repeat("0", 64), Request: &service.Request{Model: "m", Run: name}, State: brokerv1.RunState_RUN_STATE_COMPLETE.String(), Created: time.Now(), Updated: time.Now()}
		if err := st.save(j); err != nil {
			b.Fatal(err)
		}
		f.runs[name] = service.StateComplete
	}
	var list time.Duration
	n := 0
	for b.Loop() {
		ctx, cancel := context.WithCancel(context.Background())
		l, err := net.Listen("unix", filepath.Join(b.TempDir(), fmt.Sprint(n, ".sock")))
		if err != nil {
			b.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- Serve(ctx, f, Options{Listener: l, Log: zap.NewNop()}) }()
		cc, err := grpc.NewClient("unix://"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			b.Fatal(err)
		}
		c := brokerv1.NewRunServiceClient(cc)
		if _, err := c.GetRun(ctx, &brokerv1.GetRunRequest{Name: new("runs/run-0001")}, grpc.WaitForReady(true)); err != nil {
			b.Fatal(err)
		}
		t := time.Now()
		r, err := c.ListRuns(ctx, &brokerv1.ListRunsRequest{PageSize: new(int64(1000))})
		if err != nil || len(r.GetRuns()) != 1000 {
			b.Fatal(err, len(r.GetRuns()))
		}
		list += time.Since(t)
		n++
		cc.Close()
		cancel()
		<-done
	}
	b.ReportMetric(float64(list.Microseconds())/float64(n), "list-µs")
}
