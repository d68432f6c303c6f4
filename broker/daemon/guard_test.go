package daemon

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"go.uber.org/zap/zaptest"

	"enginebroker/broker/service"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

// fields are the fields that a status says cannot be used.
func fields(err error) []string {
	var out []string
	for _, d := range status.Convert(err).Details() {
		if b, ok := d.(*errdetails.BadRequest); ok {
			for _, v := range b.GetFieldViolations() {
				out = append(out, v.GetField())
			}
		}
	}
	return out
}

func TestBadRequests(t *testing.T) {
	s := serve(t, newFake(t), true)
	unknownField := spec()
	unknownField.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 999, protowire.VarintType), 1))
	create := func(r *brokerv1.CreateRunRequest) error {
		_, err := s.runs.CreateRun(t.Context(), r)
		return err
	}
	for name, x := range map[string]struct {
		err   error
		code  codes.Code
		field string
	}{
		"no spec":        {create(&brokerv1.CreateRunRequest{}), codes.InvalidArgument, "spec.model"},
		"unknown field":  {create(&brokerv1.CreateRunRequest{Spec: unknownField}), codes.InvalidArgument, "spec.999"},
		"name is a path": {create(&brokerv1.CreateRunRequest{Spec: spec(), RunId: new("../../etc/x")}), codes.InvalidArgument, "run_id"},
		"hidden name":    {create(&brokerv1.CreateRunRequest{Spec: spec(), RunId: new(".broker")}), codes.InvalidArgument, "run_id"},
		"long name":      {create(&brokerv1.CreateRunRequest{Spec: spec(), RunId: new(strings.Repeat("x", 81))}), codes.InvalidArgument, "run_id"},
		"bad request id": {create(&brokerv1.CreateRunRequest{Spec: spec(), RequestId: new("a b")}), codes.InvalidArgument, "request_id"},
		"empty id":       {create(&brokerv1.CreateRunRequest{Spec: spec(), RequestId: new("")}), codes.InvalidArgument, "request_id"},
		"no such model":  {create(&brokerv1.CreateRunRequest{Spec: &brokerv1.RunSpec{Model: new("models/x")}}), codes.InvalidArgument, ""},
		"pair of one":    {create(&brokerv1.CreateRunRequest{Spec: &brokerv1.RunSpec{Model: new("models/m"), Pairs: []*brokerv1.Pair{{A: new("a"), B: new("a")}}}}), codes.InvalidArgument, "spec.pairs[0]"},
	} {
		if status.Code(x.err) != x.code || x.field != "" && !slices.Contains(fields(x.err), x.field) {
			t.Errorf("%s: %v, fields %v", name, x.err, fields(x.err))
		}
	}
	for _, name := range []string{"", "runs/", "r1", "runs/../r1", "runs/..", "runs/a/b", "runs/a\x00b", "runs/a\nb", "engines/r1", "runs/" + strings.Repeat("a", 81)} {
		n := &name
		calls := map[string]func() error{
			"GetRun":    func() error { _, err := s.runs.GetRun(t.Context(), &brokerv1.GetRunRequest{Name: n}); return err },
			"CancelRun": func() error { _, err := s.runs.CancelRun(t.Context(), &brokerv1.CancelRunRequest{Name: n}); return err },
			"ResumeRun": func() error { _, err := s.runs.ResumeRun(t.Context(), &brokerv1.ResumeRunRequest{Name: n}); return err },
			"GetReport": func() error { _, err := s.runs.GetReport(t.Context(), &brokerv1.GetReportRequest{Name: n}); return err },
			"AuditRun":  func() error { _, err := s.runs.AuditRun(t.Context(), &brokerv1.AuditRunRequest{Name: n}); return err },
			"ListCells": func() error { _, err := s.runs.ListCells(t.Context(), &brokerv1.ListCellsRequest{Name: n}); return err },
			"WatchRun": func() error {
				w, err := s.runs.WatchRun(t.Context(), &brokerv1.WatchRunRequest{Name: n})
				if err != nil {
					return err
				}
				_, err = w.Recv()
				return err
			},
		}
		for call, f := range calls {
			if err := f(); status.Code(err) != codes.InvalidArgument || !slices.Contains(fields(err), "name") {
				t.Errorf("%s of %q: %v", call, name, err)
			}
		}
	}
	// A run of another box is not here.
	if _, err := s.runs.GetRun(t.Context(), &brokerv1.GetRunRequest{Name: new("runs/elsewhere")}); reason(err) != "NotFound NOT_FOUND" {
		t.Errorf("another box: %v", err)
	}
	if _, err := s.runs.ListRuns(t.Context(), &brokerv1.ListRunsRequest{States: []brokerv1.RunState{77}}); !slices.Contains(fields(err), "states[0]") {
		t.Errorf("unknown enum value: %v", err)
	}
	if _, err := s.runs.ListRuns(t.Context(), &brokerv1.ListRunsRequest{States: []brokerv1.RunState{brokerv1.RunState_RUN_STATE_QUEUED, 0}}); !slices.Contains(fields(err), "states[1]") {
		t.Errorf("a state that no run is in finds none and says nothing: %v", err)
	}
	// What is refused is told within what a client takes of trailers, and the connection lives.
	long := spec()
	long.Quant, long.Points = new(strings.Repeat("x", maxTextBytes+1)), []string{"c1", strings.Repeat("y", maxTextBytes+1)}
	if got := fields(create(&brokerv1.CreateRunRequest{Spec: long})); fmt.Sprint(got) != "[spec.quant spec.points[1]]" && fmt.Sprint(got) != "[spec.points[1] spec.quant]" {
		t.Errorf("long texts: %v", got)
	}
	many := spec()
	many.Engines = slices.Repeat([]string{"engines/../x"}, 50_000)
	if err := create(&brokerv1.CreateRunRequest{Spec: many}); status.Code(err) != codes.InvalidArgument || len(fields(err)) != 21 || !strings.Contains(fmt.Sprint(status.Convert(err).Details()), "49980 more") {
		t.Errorf("many fields: %.200v", err)
	}
	if _, err := s.runs.ListRuns(t.Context(), &brokerv1.ListRunsRequest{Model: new("m")}); !slices.Contains(fields(err), "model") {
		t.Errorf("a model without its prefix finds no run and says nothing: %v", err)
	}
	if _, err := s.runs.HoldCells(t.Context(), &brokerv1.HoldCellsRequest{Name: new("runs/x"), Words: []string{"a"}, Who: new(" "), Why: new("b")}); !slices.Contains(fields(err), "who") {
		t.Errorf("held by a blank: %v", err)
	}
	if _, err := s.runs.ResumeRun(t.Context(), &brokerv1.ResumeRunRequest{Name: new("runs/x"), Rerun: &brokerv1.Rerun{Who: new("a"), Why: new("\t")}}); !slices.Contains(fields(err), "rerun.why") {
		t.Errorf("run again for no reason: %v", err)
	}
	if _, err := s.runs.RenderReport(t.Context(), &brokerv1.RenderReportRequest{Name: new("runs/x")}); !slices.Contains(fields(err), "format") {
		t.Errorf("no format: %v", err)
	}
	if err := create(&brokerv1.CreateRunRequest{Spec: &brokerv1.RunSpec{Model: new("models/" + strings.Repeat("x", 2<<20))}}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a message of 2 MiB: %v", err)
	}
}

func TestAPanicIsOneCall(t *testing.T) {
	g := newGuard(zaptest.NewLogger(t), newQuiet(), newMetrics())
	_, err := g.unary(t.Context(), &brokerv1.GetRunRequest{}, &grpc.UnaryServerInfo{FullMethod: "/s/M"}, func(context.Context, any) (any, error) { panic("secret") })
	if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "secret") {
		t.Errorf("error %v", err)
	}
}

func TestCallsAtOnceAreBounded(t *testing.T) {
	g := newGuard(zaptest.NewLogger(t), newQuiet(), newMetrics())
	let := make(chan struct{})
	var in, refused atomic.Int64
	var wg sync.WaitGroup
	call := func(next grpc.UnaryHandler) error {
		_, err := g.unary(t.Context(), &brokerv1.GetRunRequest{}, &grpc.UnaryServerInfo{FullMethod: "/s/M"}, next)
		return err
	}
	for range maxCalls {
		wg.Go(func() {
			if err := call(func(context.Context, any) (any, error) { in.Add(1); <-let; return nil, nil }); err != nil {
				refused.Add(1)
			}
		})
	}
	for in.Load() < maxCalls {
		time.Sleep(time.Millisecond)
	}
	err := call(func(context.Context, any) (any, error) { return nil, nil })
	if reason(err) != "ResourceExhausted LIMIT" {
		t.Errorf("one more: %v", err)
	}
	close(let)
	wg.Wait()
	if refused.Load() != 0 {
		t.Errorf("%d refused within the limit", refused.Load())
	}
	if err := call(func(context.Context, any) (any, error) { return nil, nil }); err != nil {
		t.Errorf("after the others ended: %v", err)
	}
}

// 1,000 watchers hear of the end, and one that never reads holds nobody up.
func TestThousandWatchers(t *testing.T) {
	_, s, _, let := occupied(t)
	const connections, streams = 8, 125
	var ready, wg sync.WaitGroup
	var heard atomic.Int64
	for range connections {
		c := s.again(t)
		for i := range streams {
			w, err := c.runs.WatchRun(t.Context(), &brokerv1.WatchRunRequest{Name: new("runs/r1")})
			if err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				continue // never reads
			}
			ready.Add(1)
			wg.Go(func() {
				for n := 0; ; n++ {
					m, err := w.Recv()
					if n == 0 {
						ready.Done()
					}
					if err != nil {
						return
					}
					if m.GetState() == brokerv1.RunState_RUN_STATE_COMPLETE {
						heard.Add(1)
					}
				}
			})
		}
	}
	ready.Wait()
	close(let)
	wg.Wait()
	if n := heard.Load(); n != connections*(streams-1) {
		t.Errorf("%d watchers heard of the end", n)
	}
}

func TestHealthAndReflection(t *testing.T) {
	s := serve(t, newFake(t), true)
	h := healthv1.NewHealthClient(s.conn)
	for _, name := range []string{"", "broker.v1.RunService", "broker.v1.CatalogService", "broker.v1.EngineService", "broker.v1.BoxService"} {
		r, err := h.Check(t.Context(), &healthv1.HealthCheckRequest{Service: name})
		if err != nil || r.GetStatus() != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("%q: %v, %v", name, r, err)
		}
	}
}

// A peer that says nothing, or stops in the middle of its greeting, costs a place for the time of a greeting.
func TestHalfOpenConnections(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, newFake(t), Options{Listener: l, Log: zaptest.NewLogger(t)}) }()
	var silent []net.Conn
	for range 50 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c.Write([]byte("PRI * HT"))
		silent = append(silent, c)
	}
	cc, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := brokerv1.NewCatalogServiceClient(cc).ListModels(t.Context(), &brokerv1.ListModelsRequest{}); err != nil {
		t.Errorf("a good client beside them: %v", err)
	}
	cc.Close()
	cancel()
	<-done // and the daemon ends
	for _, c := range silent {
		c.Close()
	}
}

func TestWhileMeasuringTheListIsTheOneFromBefore(t *testing.T) {
	f := newFake(t)
	began, let := make(chan string, 1), make(chan struct{})
	f.runs["old"] = service.StateComplete
	f.run = func(ctx context.Context, name string, on func(service.Event)) error {
		w := service.WindowsOf(ctx)
		w.Open()
		err := hold(began, let)(ctx, name, on)
		var what []string
		for _, d := range w.Close() {
			what = append(what, fmt.Sprintf("%s ×%d", d.Request, d.Times))
			if d.Busy <= 0 {
				return fmt.Errorf("%s took nothing", d.Request)
			}
		}
		if got := strings.Join(what, " "); got != "GetReport ×1 GetRun ×1 ListRuns ×1" {
			return fmt.Errorf("did %s", got)
		}
		return err
	}
	s := serve(t, f, true)
	s.create(t, "r1")
	<-began
	f.set("unseen", service.StateComplete)
	l, err := s.runs.ListRuns(t.Context(), &brokerv1.ListRunsRequest{})
	if err != nil || len(l.GetRuns()) != 2 {
		t.Errorf("%v, %v", l, err)
	}
	if _, err := s.runs.GetRun(t.Context(), &brokerv1.GetRunRequest{Name: new("runs/r1")}); err != nil {
		t.Error(err)
	}
	// The client's own patience ends with its deadline, before it asks again.
	ctx, stop := context.WithTimeout(t.Context(), patience+retryAfter/2)
	defer stop()
	if _, err := s.runs.GetReport(ctx, &brokerv1.GetReportRequest{Name: new("runs/old")}); reason(err) != "Unavailable MEASURING" {
		t.Errorf("report: %v", err)
	}
	close(let)
	if got := fmt.Sprint(states(s.events(t, "r1", ""))); got != "[QUEUED PREPARING RUNNING COMPLETE]" {
		t.Errorf("states %s: a call was not counted", got)
	}
}
