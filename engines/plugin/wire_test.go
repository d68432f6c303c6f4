package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"enginebroker/engines"
	"enginebroker/matrix"
	telemetryv1 "enginebroker/proto/gen/telemetry/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scripted answers as its fields say; what is not set fails as an engine that is not started.
type scripted struct {
	engines.Engine
	describe  func(context.Context) (matrix.Description, error)
	configure func(engines.Settings) ([]engines.FieldError, error)
	start     func(context.Context, matrix.StartRequest, func(matrix.Progress)) (matrix.Ready, error)
	tokenize  func(string) ([]int, error)
	stop      func(time.Duration) (matrix.Stopped, error)
}

func (s *scripted) Describe(ctx context.Context) (matrix.Description, error) { return s.describe(ctx) }
func (s *scripted) Configure(_ context.Context, x engines.Settings) ([]engines.FieldError, error) {
	return s.configure(x)
}
func (s *scripted) Start(ctx context.Context, r matrix.StartRequest, p func(matrix.Progress)) (matrix.Ready, error) {
	return s.start(ctx, r, p)
}
func (s *scripted) Tokenize(_ context.Context, x string) ([]int, error) { return s.tokenize(x) }
func (s *scripted) Stop(_ context.Context, d time.Duration) (matrix.Stopped, error) {
	return s.stop(d)
}
func (s *scripted) Observe(context.Context) (matrix.State, error) {
	return matrix.State{}, engines.ErrNotStarted
}

// connect serves with this package's own options, in memory.
func connect(t testing.TB, register func(grpc.ServiceRegistrar)) (*grpc.ClientConn, *grpc.Server) {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	s := grpc.NewServer(ServerOptions()...)
	register(s)
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(l) })
	conn, err := grpc.NewClient("passthrough:///memory", append(DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		s.Stop()
		wg.Wait()
	})
	return conn, s
}

func client(t testing.TB, e engines.Engine) *Client {
	conn, _ := connect(t, func(s grpc.ServiceRegistrar) { RegisterEngine(s, e) })
	return NewClient(conn, t.Context())
}

func TestErrorsCrossTheWire(t *testing.T) {
	failure := &matrix.StartFailure{Code: "exited", Phase: "load", Message: "exited while loading", Fix: "free memory",
		RootCause: []string{"out of memory", strings.Repeat("x", 200_000)}, Exit: matrix.Some(0), LogPath: "/l"}
	field := engines.FieldError{Field: "binary", Message: "no such file", Fix: "install it"}
	for name, test := range map[string]struct {
		send error
		want func(error) bool
	}{
		"unsupported":    {engines.ErrUnsupported, func(err error) bool { return errors.Is(err, engines.ErrUnsupported) }},
		"not configured": {fmt.Errorf("start: %w", engines.ErrNotConfigured), func(err error) bool { return errors.Is(err, engines.ErrNotConfigured) }},
		"not started":    {engines.ErrNotStarted, func(err error) bool { return errors.Is(err, engines.ErrNotStarted) }},
		"start failure": {fmt.Errorf("start: %w", failure), func(err error) bool {
			f, ok := errors.AsType[*matrix.StartFailure](err)
			return ok && f.Fix == failure.Fix && len(f.RootCause[1]) == 200_000 && f.Exit == matrix.Some(0)
		}},
		"field error": {field, func(err error) bool { return errors.Is(err, field) }},
		"cancelled":   {context.Canceled, func(err error) bool { return errors.Is(err, context.Canceled) }},
		"deadline":    {context.DeadlineExceeded, func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }},
		"any other":   {errors.New("50% of \xff"), func(err error) bool { return err.Error() == "50% of \uFFFD" }},
	} {
		t.Run(name, func(t *testing.T) {
			c := client(t, &scripted{start: func(context.Context, matrix.StartRequest, func(matrix.Progress)) (matrix.Ready, error) {
				return matrix.Ready{}, test.send
			}})
			_, err := c.Start(t.Context(), matrix.StartRequest{}, nil)
			if err == nil || !test.want(err) {
				t.Errorf("got %v", err)
			}
			for _, other := range []error{engines.ErrUnsupported, engines.ErrNotConfigured, engines.ErrNotStarted, engines.ErrGone} {
				if errors.Is(err, other) && !errors.Is(test.send, other) {
					t.Errorf("%v became %v", test.send, other)
				}
			}
		})
	}
}

func TestFieldErrorsAreComplete(t *testing.T) {
	want := []engines.FieldError{{Field: "a", Message: "m", Fix: "f"}, {Field: "b"}}
	got, err := client(t, &scripted{configure: func(s engines.Settings) ([]engines.FieldError, error) {
		if s["k"] != "v" {
			t.Errorf("settings %v", s)
		}
		return want, nil
	}}).Configure(t.Context(), engines.Settings{"k": "v"})
	if err != nil || len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("%v, %v", got, err)
	}
}

// TestProgress reports from many goroutines and after the end: the stream stays one message at a time, and Ready is last.
func TestProgress(t *testing.T) {
	var late func(matrix.Progress)
	c := client(t, &scripted{start: func(_ context.Context, r matrix.StartRequest, p func(matrix.Progress)) (matrix.Ready, error) {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 50 {
					p(matrix.Progress{Phase: "load", Line: "caf\xe9"})
				}
			})
		}
		wg.Wait()
		late = p
		return matrix.Ready{LogPath: r.LogPath}, nil
	}})
	n := 0
	ready, err := c.Start(t.Context(), matrix.StartRequest{LogPath: "/log"}, func(p matrix.Progress) {
		if p.Line != "caf\uFFFD" {
			t.Errorf("%q", p.Line)
		}
		n++
	})
	if err != nil || ready.LogPath != "/log" || n != 400 {
		t.Errorf("%v, %v, %d progress events", ready, err, n)
	}
	late(matrix.Progress{Line: "after the end"})
}

func TestCancelReachesTheAdapter(t *testing.T) {
	began, ended := make(chan struct{}), make(chan error, 1)
	c := client(t, &scripted{stop: notStarted, start: func(ctx context.Context, _ matrix.StartRequest, _ func(matrix.Progress)) (matrix.Ready, error) {
		close(began)
		<-ctx.Done()
		ended <- ctx.Err()
		return matrix.Ready{}, ctx.Err()
	}})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-began; cancel() }()
	if _, err := c.Start(ctx, matrix.StartRequest{}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the adapter saw %v", err)
	}
}

func notStarted(time.Duration) (matrix.Stopped, error) {
	return matrix.Stopped{}, engines.ErrNotStarted
}

// TestReadyThatNobodyWaitsFor stops a server whose adapter did not look at its context.
func TestReadyThatNobodyWaitsFor(t *testing.T) {
	began, cancelled, stopped := make(chan struct{}), make(chan struct{}), make(chan struct{})
	stops := 0
	c := client(t, &scripted{
		start: func(ctx context.Context, _ matrix.StartRequest, _ func(matrix.Progress)) (matrix.Ready, error) {
			close(began)
			<-ctx.Done()
			<-cancelled // the client's own Stop came first and found nothing
			return matrix.Ready{}, nil
		},
		stop: func(time.Duration) (matrix.Stopped, error) {
			if stops++; stops == 1 {
				close(cancelled)
				return matrix.Stopped{}, engines.ErrNotStarted
			}
			close(stopped)
			return matrix.Stopped{How: "kill", PortFree: true}, nil
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-began; cancel() }()
	if _, err := c.Start(ctx, matrix.StartRequest{}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	<-stopped
}

func TestPanicIsAnAnswer(t *testing.T) {
	c := client(t, &scripted{
		describe: func(context.Context) (matrix.Description, error) { panic("nil map\xff") },
		start: func(context.Context, matrix.StartRequest, func(matrix.Progress)) (matrix.Ready, error) {
			panic("in a stream")
		},
	})
	if _, err := c.Describe(t.Context()); err == nil || !strings.Contains(err.Error(), "the adapter panicked in /engine.v1.EngineService/Describe: nil map") {
		t.Errorf("got %v", err)
	}
	if _, err := c.Start(t.Context(), matrix.StartRequest{}, nil); err == nil || !strings.Contains(err.Error(), "in a stream") {
		t.Errorf("got %v", err)
	}
}

// TestJ03 sends messages beyond gRPC's own limit of 4 MiB in both directions, and one beyond ours.
func TestJ03(t *testing.T) {
	c := client(t, &scripted{tokenize: func(s string) ([]int, error) { return make([]int, len(s)), nil }})
	for _, n := range []int{4<<20 - 1, 4 << 20, 4<<20 + 1, 6 << 20} {
		ids, err := c.Tokenize(t.Context(), strings.Repeat("\xff", n))
		if err != nil || len(ids) != n {
			t.Errorf("%d bytes: %d ids, %v", n, len(ids), err)
		}
	}
	if _, err := c.Tokenize(t.Context(), strings.Repeat("a", MaxMessage)); err == nil || !strings.Contains(err.Error(), "larger than max") {
		t.Errorf("beyond the limit: %v", err)
	}
}

func TestOtherKind(t *testing.T) {
	conn, _ := connect(t, func(s grpc.ServiceRegistrar) {
		RegisterTelemetry(s, readings(func(context.Context, func(matrix.Sample)) error { return nil }))
	})
	if _, err := NewClient(conn, t.Context()).Describe(t.Context()); !errors.Is(err, ErrNotServed) || errors.Is(err, engines.ErrUnsupported) {
		t.Errorf("got %v", err)
	}
}

// TestGone waits for the exit to be seen before it says so.
func TestGone(t *testing.T) {
	exited, exit := context.WithCancel(context.Background())
	defer exit()
	began := make(chan struct{})
	conn, server := connect(t, func(s grpc.ServiceRegistrar) {
		RegisterEngine(s, &scripted{start: func(ctx context.Context, _ matrix.StartRequest, _ func(matrix.Progress)) (matrix.Ready, error) {
			close(began)
			<-ctx.Done()
			return matrix.Ready{}, ctx.Err()
		}})
	})
	go func() {
		<-began
		server.Stop()
		exit()
	}()
	if _, err := NewClient(conn, exited).Start(t.Context(), matrix.StartRequest{}, nil); !errors.Is(err, engines.ErrGone) {
		t.Errorf("mid-stream: %v", err)
	}
	if _, err := NewClient(conn, exited).Observe(t.Context()); !errors.Is(err, engines.ErrGone) {
		t.Errorf("next call: %v", err)
	}
}

type readings func(context.Context, func(matrix.Sample)) error

func (r readings) Describe(context.Context) (matrix.Telemetry, error) {
	return matrix.Telemetry{Why: "no library"}, nil
}
func (r readings) Sample(ctx context.Context, _ int, fn func(matrix.Sample)) error {
	return r(ctx, fn)
}

func TestSamples(t *testing.T) {
	absent := map[string]matrix.Reading{matrix.FieldPower: {Status: matrix.ReadingAbsent}}
	ended := make(chan struct{})
	conn, _ := connect(t, func(s grpc.ServiceRegistrar) {
		RegisterTelemetry(s, readings(func(ctx context.Context, fn func(matrix.Sample)) error {
			defer close(ended)
			for n := range int64(3) {
				fn(matrix.Sample{At: n, Fields: absent})
			}
			<-ctx.Done()
			return ctx.Err()
		}))
	})
	c := NewTelemetryClient(conn, t.Context())
	if d, err := c.Describe(t.Context()); err != nil || d.Why != "no library" {
		t.Errorf("%v, %v", d, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	n := int64(0)
	err := c.Sample(ctx, 10, func(s matrix.Sample) {
		if r := s.Fields[matrix.FieldPower]; s.At != n || r.Value.Present() || r.Status != matrix.ReadingAbsent {
			t.Errorf("sample %d: %+v", n, s)
		}
		if n++; n == 3 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) || n != 3 {
		t.Errorf("%v after %d", err, n)
	}
	<-ended
}

// Samples go together once a second; the first of a stream and one that tells of a new failure go at once.
func TestSamplesGoTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var sent []string
		b := &burst{failed: func(error) {}, send: func(m *telemetryv1.SampleResponse) error {
			sent = append(sent, fmt.Sprintf("%d at %v", m.GetAtNs(), time.Since(start).Round(time.Millisecond)))
			return nil
		}}
		status := matrix.ReadingValue
		for n := range int64(25) {
			if n == 20 {
				status = matrix.ReadingStale
			}
			b.add(&telemetryv1.SampleResponse{AtNs: new(n)}, matrix.Sample{Fields: map[string]matrix.Reading{matrix.FieldPower: {Status: status}}})
			time.Sleep(130 * time.Millisecond)
		}
		b.end()
		b.add(&telemetryv1.SampleResponse{AtNs: new(int64(99))}, matrix.Sample{})
		synctest.Wait()
		want := map[int]string{0: "0 at 0s", 1: "1 at 1.13s", 8: "8 at 1.13s", 9: "9 at 2.17s", 16: "16 at 2.17s", 17: "17 at 2.6s", 20: "20 at 2.6s", 21: "21 at 3.25s", 24: "24 at 3.25s"}
		if len(sent) != 25 {
			t.Errorf("%d sent", len(sent))
		}
		for i, w := range want {
			if i < len(sent) && sent[i] != w {
				t.Errorf("%s, want %s", sent[i], w)
			}
		}
	})
}

// TestSampleThatCannotBeSent ends the stream with the reason instead of a hole in the series.
func TestSampleThatCannotBeSent(t *testing.T) {
	conn, _ := connect(t, func(s grpc.ServiceRegistrar) {
		RegisterTelemetry(s, readings(func(ctx context.Context, fn func(matrix.Sample)) error {
			fn(matrix.Sample{Fields: map[string]matrix.Reading{"power_mw": {Status: "perhaps"}}})
			<-ctx.Done()
			return nil
		}))
	})
	err := NewTelemetryClient(conn, t.Context()).Sample(t.Context(), 10, func(matrix.Sample) { t.Error("got a sample") })
	if err == nil || !strings.Contains(err.Error(), `"perhaps"`) {
		t.Errorf("got %v", err)
	}
}

func TestByHand(t *testing.T) {
	s := &scripted{
		describe: func(context.Context) (matrix.Description, error) { return matrix.Description{Engine: "fake"}, nil },
		configure: func(s engines.Settings) ([]engines.FieldError, error) {
			if s["binary"] != "/x" {
				return []engines.FieldError{{Field: "binary", Message: "no such file"}}, nil
			}
			return nil, nil
		},
	}
	for _, test := range []struct {
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{[]string{"/opt/plugins/fake"}, 1, "", "fake is a plugin of broker"},
		{[]string{"fake", "--describe"}, 0, `"engine": "fake"`, ""},
		{[]string{"fake", "--describe", "binary=/x"}, 0, `"engine": "fake"`, ""},
		{[]string{"fake", "--describe", "binary=/y"}, 1, "", "binary: no such file"},
		{[]string{"fake", "--describe", "binary"}, 1, "", "is not setting=value"},
	} {
		var out, errs bytes.Buffer
		code := byHand(func() service { return engineService{s} }, test.args, &out, &errs)
		if code != test.code || !strings.Contains(out.String(), test.stdout) || !strings.Contains(errs.String(), test.stderr) || (test.stdout == "") != (out.Len() == 0) {
			t.Errorf("%v: %d, %q, %q", test.args, code, out.String(), errs.String())
		}
	}
	var out, errs bytes.Buffer
	telemetry := readings(nil)
	if code := byHand(func() service { return telemetryService{telemetry} }, []string{"nvml", "--describe"}, &out, &errs); code != 0 || !strings.Contains(out.String(), "no library") {
		t.Errorf("%d %q %q", code, out.String(), errs.String())
	}
}
