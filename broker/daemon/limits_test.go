package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"enginebroker/broker/service"
	"enginebroker/matrix"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

// 10,000 streams at once on the socket: as many as the limit are served, the others are refused with the time to wait, the
// run goes its way though nobody reads, everybody who was let in hears its end, and nothing is left behind.
func TestTenThousandStreams(t *testing.T) {
	const streams, connections, steps = 10_000, 40, 20 // 250 streams a connection, within its limit of 256
	path := filepath.Join(t.TempDir(), "b.sock")
	l, creds, err := Listen("unix://"+path, TLS{}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	f := newFake(t)
	began, let, ran := make(chan string, 1), make(chan struct{}), make(chan struct{})
	f.run = func(_ context.Context, name string, on func(service.Event)) error {
		defer close(ran)
		began <- name
		<-let
		for i := range steps {
			on(service.Event{At: time.Now(), Kind: "leg", Arm: "a", Point: fmt.Sprint("c", i), LoadsTotal: 4})
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	serving, end := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- Serve(serving, f, Options{Listener: l, Creds: creds, Log: zap.NewNop()}) }()
	dial := func() *grpc.ClientConn {
		cc, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		return cc
	}
	one := dial()
	runs := brokerv1.NewRunServiceClient(one)
	if _, err := runs.CreateRun(ctx, &brokerv1.CreateRunRequest{Spec: spec(), RunId: new("r1")}); err != nil {
		t.Fatal(err)
	}
	<-began
	before := used()
	var answered, wg sync.WaitGroup
	var refused, heard, other atomic.Int64
	read := make(chan struct{})
	conns := make([]*grpc.ClientConn, connections)
	for i := range conns {
		conns[i] = dial()
		c := brokerv1.NewRunServiceClient(conns[i])
		for range streams / connections {
			answered.Add(1)
			wg.Go(func() {
				w, err := c.WatchRun(ctx, &brokerv1.WatchRunRequest{Name: new("runs/r1")})
				if err == nil {
					_, err = w.Recv()
				}
				answered.Done()
				if err != nil {
					if reason(err) != "ResourceExhausted LIMIT" || !retries(err) {
						other.Add(1)
						t.Error(err)
					}
					refused.Add(1)
					return
				}
				<-read
				for {
					m, err := w.Recv()
					if m.GetState() == brokerv1.RunState_RUN_STATE_COMPLETE {
						heard.Add(1)
					}
					if err != nil {
						if !errors.Is(err, io.EOF) {
							t.Error(err)
						}
						return
					}
				}
			})
		}
	}
	answered.Wait()
	// Both sides of every stream are in this process, and the limit is what bounds the daemon's.
	t.Logf("%d streams refused; %d KiB and %.1f goroutines for each that is open, both sides together", refused.Load(), (used()-before)/maxWatchers>>10, float64(runtime.NumGoroutine())/maxWatchers)
	if grown := used() - before; grown > maxWatchers*256<<10 {
		t.Errorf("%d MiB for %d streams", grown>>20, maxWatchers)
	}
	close(let)
	<-ran // nobody reads yet
	if _, err := runs.GetRun(ctx, &brokerv1.GetRunRequest{Name: new("runs/r1")}); err != nil {
		t.Errorf("a call beside them: %v", err)
	}
	close(read)
	wg.Wait()
	if r, h := refused.Load(), heard.Load(); r != streams-maxWatchers || h != maxWatchers {
		t.Errorf("%d refused and %d heard the end, want %d and %d", r, h, streams-maxWatchers, maxWatchers)
	}
	// Their places are free again.
	w, err := runs.WatchRun(ctx, &brokerv1.WatchRunRequest{Name: new("runs/r1")})
	if err == nil {
		_, err = w.Recv()
	}
	if err != nil {
		t.Errorf("one more, after they ended: %v", err)
	}
	for _, cc := range append(conns, one) {
		cc.Close()
	}
	end()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// used is what the process holds in heap and stacks.
func used() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

func retries(err error) bool {
	for _, d := range status.Convert(err).Details() {
		if r, ok := d.(*errdetails.RetryInfo); ok && r.GetRetryDelay().AsDuration() > 0 {
			return true
		}
	}
	return false
}

// raw sends bytes as they are.
type raw struct{ encoding.CodecV2 }

func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

// Bytes that are no request are refused by status, with details, by calls of both kinds, and nothing of them is kept.
func TestBytesThatAreNoRequest(t *testing.T) {
	s := serve(t, newFake(t), true)
	group := func(depth int) []byte {
		var b []byte
		for range depth {
			b = protowire.AppendTag(b, 999, protowire.StartGroupType)
		}
		for range depth {
			b = protowire.AppendTag(b, 999, protowire.EndGroupType)
		}
		return b
	}
	text := func(n protowire.Number, v string) []byte {
		return protowire.AppendString(protowire.AppendTag(nil, n, protowire.BytesType), v)
	}
	for name, x := range map[string]struct {
		data []byte
		code codes.Code
	}{
		"garbage":                {[]byte("\xff\xff\xff"), codes.InvalidArgument},
		"cut off":                {text(1, "runs/r1")[:4], codes.InvalidArgument},
		"not UTF-8":              {text(1, "runs/\xff"), codes.InvalidArgument},
		"field number 0":         {[]byte{0, 0}, codes.InvalidArgument},
		"nests 20,000 deep":      {group(20_000), codes.InvalidArgument},
		"nests 120,000 deep":     {group(120_000), codes.InvalidArgument},
		"unknown and nests less": {group(100), codes.InvalidArgument},
		"a group without end":    {protowire.AppendTag(nil, 999, protowire.StartGroupType), codes.InvalidArgument},
		"too large":              {text(1, strings.Repeat("x", maxRequestBytes)), codes.ResourceExhausted},
	} {
		forced := grpc.ForceCodecV2(raw{encoding.GetCodecV2("proto")})
		unary := s.conn.Invoke(t.Context(), brokerv1.RunService_GetRun_FullMethodName, &x.data, &[]byte{}, forced)
		st, err := s.conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, brokerv1.RunService_WatchRun_FullMethodName, forced)
		if err != nil {
			t.Fatal(err)
		}
		if err = st.SendMsg(&x.data); err == nil {
			st.CloseSend()
			err = st.RecvMsg(&[]byte{})
		}
		for kind, err := range map[string]error{"unary": unary, "stream": err} {
			if status.Code(err) != x.code || x.code == codes.InvalidArgument && (len(fields(err)) == 0 || reason(err) != "InvalidArgument USAGE") {
				t.Errorf("%s, %s: %v, fields %v", name, kind, err, fields(err))
			}
		}
	}
	if _, err := s.runs.ListRuns(t.Context(), &brokerv1.ListRunsRequest{}); err != nil {
		t.Errorf("a good call after them: %v", err)
	}
}

// A peer that begins a greeting and goes no further is hung up on.
func TestSilentPeersAreHungUpOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "b.sock")
	l, _, err := Listen("unix://"+path, TLS{}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	l.(*bounded).free = make(chan struct{}, 3)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, newFake(t), Options{Listener: l, Log: zap.NewNop()}) }()
	defer func() { cancel(); <-done }()
	var silent []net.Conn
	for i := range 4 {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i < 3 {
			if _, err := c.Write([]byte("PRI * HTTP/2.0")); err != nil {
				t.Fatal(err)
			}
		}
		silent = append(silent, c)
	}
	// There is no place for the last one; the others lose theirs when their greeting takes too long.
	for i := range silent {
		c := silent[len(silent)-1-i]
		c.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
			t.Errorf("connection %d is held for a minute", len(silent)-1-i)
		}
	}
	c, err := Dial("unix://"+path, TLS{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.ListModels(ctx); err != nil {
		t.Errorf("their places are not free: %v", err)
	}
}

func isTimeout(err error) bool {
	e, ok := errors.AsType[net.Error](err)
	return ok && e.Timeout()
}

// Cancelling while a run is being torn down changes nothing, as often as it is asked; a run that ends well meanwhile has
// ended well.
func TestCancelDuringTeardown(t *testing.T) {
	for name, x := range map[string]struct {
		err  error
		want string
	}{
		"dropped":  {errors.New("interrupted; the evidence is kept"), "[QUEUED PREPARING RUNNING CANCELLING INTERRUPTED]"},
		"complete": {nil, "[QUEUED PREPARING RUNNING CANCELLING COMPLETE]"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			began, stopping, gone := make(chan struct{}), make(chan struct{}), make(chan struct{})
			f.run = func(ctx context.Context, _ string, _ func(service.Event)) error {
				close(began)
				<-ctx.Done()
				close(stopping)
				<-gone
				return x.err
			}
			s := serve(t, f, true)
			s.create(t, "r1")
			<-began
			cancel := func() (*brokerv1.CancelRunResponse, error) {
				return s.runs.CancelRun(t.Context(), &brokerv1.CancelRunRequest{Name: new("runs/r1")})
			}
			for i := range 3 {
				if r, err := cancel(); err != nil || r.GetRun().GetState() != brokerv1.RunState_RUN_STATE_CANCELLING {
					t.Errorf("cancel %d: %v, %v", i, r, err)
				}
				if i == 0 {
					<-stopping
				}
			}
			close(gone)
			if got := fmt.Sprint(states(s.events(t, "r1", ""))); got != x.want {
				t.Errorf("states %s, want %s", got, x.want)
			}
			if r, err := cancel(); err != nil || !over(r.GetRun().GetState()) {
				t.Errorf("after the end: %v, %v", r, err)
			}
		})
	}
}

// A run that is cancelled when it has left the queue and not begun does not begin.
func TestCancelBeforeTheTurn(t *testing.T) {
	f := newFake(t)
	f.run = func(context.Context, string, func(service.Event)) error {
		t.Error("the run began")
		return nil
	}
	q := newQueue(f, zap.NewNop(), newMetrics())
	if _, err := q.create(&job{Request: &service.Request{Model: "m"}}, "r1", 0); err != nil {
		t.Fatal(err)
	}
	j := q.next(t.Context())
	if r, err := q.cancel("r1"); err != nil || r.GetState() != brokerv1.RunState_RUN_STATE_CANCELLED {
		t.Fatalf("%v, %v", r, err)
	}
	q.turn(t.Context(), j)
	if j.state() != brokerv1.RunState_RUN_STATE_CANCELLED {
		t.Errorf("the run is %s", j.State)
	}
}

// Clients of other languages take 8 KiB of trailers. Whatever is refused reaches one of them with its own code, its reason
// and both sides of as many pairs as there is room for, and with the number of the others.
func TestLargeRefusalsReachSmallClients(t *testing.T) {
	f := newFake(t)
	s := serve(t, f, false, grpc.WithMaxHeaderListSize(8<<10))
	f.set("r1", service.StateComplete)
	judge := func(refused ...matrix.Refusal) (*status.Status, *brokerv1.Failure) {
		f.refused = refused
		_, err := s.runs.JudgeRun(t.Context(), &brokerv1.JudgeRunRequest{Name: new("runs/r1")})
		st := status.Convert(err)
		if reason(err) != "FailedPrecondition NO_COMMON_QUANT" {
			t.Errorf("%d refusals: %v", len(refused), err)
		}
		for _, d := range st.Details() {
			if x, ok := d.(*brokerv1.Failure); ok {
				return st, x
			}
		}
		t.Fatalf("%d refusals: no Failure among %v", len(refused), st.Details())
		return nil, nil
	}
	// 40 instances, 30 refused pairs.
	var refused []matrix.Refusal
	for i := range 30 {
		side := func(l string) matrix.OfferSide {
			out := matrix.OfferSide{Label: l, Engine: "simulated"}
			for j := range 6 {
				out.Opens = append(out.Opens, matrix.Offer{Artifact: fmt.Sprintf("qwen3.8-27b@variant-%d", j), Statement: matrix.Statement{Status: matrix.StatusOK}})
				out.Lacks = append(out.Lacks, matrix.Offer{Artifact: fmt.Sprintf("qwen3.8-27b@other-%d", j), Statement: matrix.Statement{Status: matrix.StatusRefused, Why: "no support for this container in this build"}})
			}
			return out
		}
		a, b := fmt.Sprintf("engine-%02d", i), fmt.Sprintf("engine-%02d", i+1)
		refused = append(refused, matrix.Refusal{Pair: matrix.NewPair(a, b), Reason: matrix.NoCommonQuant, Detail: "no artifact that both open: " + strings.Repeat("ü", 40), Fix: "a build of one that opens what the other opens",
			Sides: []matrix.OfferSide{side(a), side(b)}})
	}
	_, x := judge(refused...)
	if told := len(x.GetRefusals()); told == 0 || int64(told)+x.GetRefusalsLeftOut() != 30 || len(x.GetRefusals()[0].GetSides()[1].GetLacks()) != 6 {
		t.Errorf("%d refusals told and %d left out", told, x.GetRefusalsLeftOut())
	}
	if _, x := judge(refused[0]); len(x.GetRefusals()) != 1 || x.RefusalsLeftOut != nil {
		t.Errorf("what fits is cut: %v", x)
	}
	huge := refused[0]
	huge.Detail = strings.Repeat("x", 64<<10)
	if _, x := judge(huge); x.GetRefusalsLeftOut() != 1 {
		t.Errorf("of a refusal that does not fit %d are left out", x.GetRefusalsLeftOut())
	}
	// Twenty wrong fields, each with a long name of what it should be.
	long := &brokerv1.RunSpec{Model: new("models/m"), Points: slices.Repeat([]string{strings.Repeat("y", maxTextBytes+1)}, 40)}
	_, err := s.runs.PlanRun(t.Context(), &brokerv1.PlanRunRequest{Spec: long})
	if st := status.Convert(err); st.Code() != codes.InvalidArgument || !strings.Contains(st.Message(), "spec.points[0]") {
		t.Errorf("wrong fields: %v", err)
	}
	// A failure of many lines, none of ASCII.
	f.blind = &service.Error{Cause: service.CauseEvidence, Err: errors.New(strings.Repeat("größer als ein Vorspann\n", 2000)), Fix: strings.Repeat("lies alles ", 2000)}
	_, err = s.runs.ListRuns(t.Context(), &brokerv1.ListRunsRequest{})
	if st := status.Convert(err); st.Code() != codes.DataLoss || !strings.HasPrefix(st.Message(), "größer als") || !strings.HasSuffix(st.Message(), "more bytes)") {
		t.Errorf("a long failure: %v", err)
	}
}
