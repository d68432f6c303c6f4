package daemon

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"enginebroker/broker/service"
	"enginebroker/matrix"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

type runServer struct {
	brokerv1.UnimplementedRunServiceServer
	b     Broker
	q     *queue
	quiet *quiet
}

func runID(name string) (string, error) {
	id, err := service.ResourceID(service.RunPrefix, name)
	if err != nil {
		return "", service.Bad("name", "%v", err)
	}
	return id, nil
}

func (s *runServer) PlanRun(ctx context.Context, r *brokerv1.PlanRunRequest) (*brokerv1.PlanRunResponse, error) {
	q, err := service.SpecOf(r.GetSpec())
	if err != nil {
		return nil, err
	}
	ctx, leave, err := s.quiet.enter(ctx, "PlanRun")
	if err != nil {
		return nil, err
	}
	defer leave()
	p, err := s.b.Plan(ctx, q)
	if err != nil {
		return nil, err
	}
	plan, err := service.ToPlan(p)
	if err == nil && !r.GetCanonical() {
		plan.CanonicalJson = nil
	}
	return &brokerv1.PlanRunResponse{Plan: plan}, err
}

var requestIDRule = regexp.MustCompile(`^[A-Za-z0-9._-]{1,80}$`)

func (s *runServer) CreateRun(_ context.Context, r *brokerv1.CreateRunRequest) (*brokerv1.CreateRunResponse, error) {
	j, err := s.jobOf(r)
	if err != nil {
		return nil, err
	}
	if r.RequestId != nil && !requestIDRule.MatchString(r.GetRequestId()) {
		return nil, service.Bad("request_id", "1 to 80 letters, digits, '.', '_' and '-'")
	}
	asked := ""
	if r.RunId != nil {
		if asked, err = service.ResourceID(service.RunPrefix, service.RunPrefix+r.GetRunId()); err != nil {
			return nil, service.Bad("run_id", "%v", err)
		}
	}
	wait, err := waitLimit(r.GetWaitLimit())
	if err != nil {
		return nil, err
	}
	if j.RequestID = r.GetRequestId(); j.RequestID != "" {
		if j.Digest, err = digestOf(r); err != nil {
			return nil, err
		}
	}
	run, err := s.q.create(j, asked, wait)
	if err != nil {
		return nil, err
	}
	return &brokerv1.CreateRunResponse{Run: run}, nil
}

// jobOf is what a request asks for: something to measure or something to try.
func (s *runServer) jobOf(r *brokerv1.CreateRunRequest) (*job, error) {
	if r.Trial == nil {
		q, err := service.SpecOf(r.GetSpec())
		if err != nil {
			return nil, err
		}
		return &job{Request: &q}, s.b.Check(q)
	}
	if r.Spec != nil {
		return nil, service.Bad("trial", "give spec or trial, not both")
	}
	t, err := service.TrialOf(r.GetTrial())
	if err != nil {
		return nil, err
	}
	return &job{Trial: &t}, s.b.CheckTrial(t)
}

// digestOf is what a request asks for. Unknown fields were refused, so that the deterministic form is one of this program.
func digestOf(r *brokerv1.CreateRunRequest) (string, error) {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(r)
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), err
}

func waitLimit(d *durationpb.Duration) (time.Duration, error) {
	if d == nil {
		return 0, nil
	}
	if err := d.CheckValid(); err != nil || d.AsDuration() <= 0 {
		return 0, service.Bad("wait_limit", "give a length of time of more than 0")
	}
	return d.AsDuration(), nil
}

func (s *runServer) ResumeRun(ctx context.Context, r *brokerv1.ResumeRunRequest) (*brokerv1.ResumeRunResponse, error) {
	name, err := runID(r.GetName())
	if err != nil {
		return nil, err
	}
	wait, err := waitLimit(r.GetWaitLimit())
	if err != nil {
		return nil, err
	}
	again, err := rerunOf(r.GetRerun())
	if err != nil {
		return nil, err
	}
	info, err := s.q.info(ctx, name)
	return s.q.resume(name, info, err, again, wait)
}

func rerunOf(m *brokerv1.Rerun) (*rerun, error) {
	if m == nil {
		return nil, nil
	}
	for _, x := range [][2]string{{"rerun.who", m.GetWho()}, {"rerun.why", m.GetWhy()}} {
		if strings.TrimSpace(x[1]) == "" {
			return nil, service.Bad(x[0], "a re-run says who wants it and why")
		}
	}
	return &rerun{m.GetWords(), service.RerunBy{Who: m.GetWho(), Why: m.GetWhy()}}, nil
}

func (s *runServer) GetRun(ctx context.Context, r *brokerv1.GetRunRequest) (*brokerv1.GetRunResponse, error) {
	name, err := runID(r.GetName())
	if err != nil {
		return nil, err
	}
	run, err := s.q.get(ctx, name)
	if err != nil {
		return nil, err
	}
	return &brokerv1.GetRunResponse{Run: run}, nil
}

const (
	pageDefault = 100
	pageMost    = 1000
)

func (s *runServer) ListRuns(ctx context.Context, r *brokerv1.ListRunsRequest) (*brokerv1.ListRunsResponse, error) {
	size, start := pageDefault, 0
	if r.PageSize != nil {
		if r.GetPageSize() < 1 {
			return nil, service.Bad("page_size", "give 1 to %d", pageMost)
		}
		size = int(min(r.GetPageSize(), pageMost))
	}
	if i := slices.Index(r.GetStates(), brokerv1.RunState_RUN_STATE_UNSPECIFIED); i >= 0 {
		return nil, service.Bad(fmt.Sprintf("states[%d]", i), "no run is in state %v", r.GetStates()[i])
	}
	if r.Model != nil {
		if _, err := service.ResourceID(service.ModelPrefix, r.GetModel()); err != nil {
			return nil, service.Bad("model", "%v", err)
		}
	}
	list, err := s.q.list(ctx)
	if err != nil {
		return nil, err
	}
	if r.Model != nil || len(r.GetStates()) > 0 {
		list = slices.DeleteFunc(list, func(x *brokerv1.Run) bool {
			return r.Model != nil && service.ModelPrefix+x.GetModel() != r.GetModel() || len(r.GetStates()) > 0 && !slices.Contains(r.GetStates(), x.GetState())
		})
	}
	if r.PageToken != nil {
		// A page begins after a run, not at a number: runs that come meanwhile repeat nothing and hide nothing.
		i := slices.IndexFunc(list, func(x *brokerv1.Run) bool { return x.GetName() == r.GetPageToken() })
		if i < 0 {
			return nil, service.Bad("page_token", "it is of no run in this list; begin with the first page")
		}
		start = i + 1
	}
	end := min(start+size, len(list))
	out := &brokerv1.ListRunsResponse{Runs: list[start:end]}
	if end < len(list) {
		out.NextPageToken = list[end-1].Name
	}
	return out, nil
}

func (s *runServer) WatchRun(r *brokerv1.WatchRunRequest, stream grpc.ServerStreamingServer[brokerv1.WatchRunResponse]) error {
	name, err := runID(r.GetName())
	if err != nil {
		return err
	}
	e, err := s.q.eventsOf(name)
	if err != nil {
		return err
	}
	after, err := e.after(r.GetResumeToken())
	if err != nil {
		return err
	}
	return e.watch(stream.Context(), after, func(m *brokerv1.WatchRunResponse) error {
		if m.Plan != nil && !r.GetCanonical() {
			m = proto.CloneOf(m)
			m.Plan.CanonicalJson = nil
		}
		return stream.Send(m)
	})
}

func (s *runServer) CancelRun(_ context.Context, r *brokerv1.CancelRunRequest) (*brokerv1.CancelRunResponse, error) {
	name, err := runID(r.GetName())
	if err != nil {
		return nil, err
	}
	run, err := s.q.cancel(name)
	if err != nil {
		return nil, err
	}
	return &brokerv1.CancelRunResponse{Run: run}, nil
}

// report judges a run again, when it disturbs nobody.
func (s *runServer) report(ctx context.Context, name, what string) (matrix.Report, error) {
	id, err := runID(name)
	if err != nil {
		return matrix.Report{}, err
	}
	ctx, leave, err := s.quiet.enter(ctx, what)
	if err != nil {
		return matrix.Report{}, err
	}
	defer leave()
	return s.b.Report(ctx, id)
}

func (s *runServer) GetReport(ctx context.Context, r *brokerv1.GetReportRequest) (*brokerv1.GetReportResponse, error) {
	rep, err := s.report(ctx, r.GetName(), "GetReport")
	if err != nil {
		return nil, err
	}
	m, err := service.ToReport(rep)
	return &brokerv1.GetReportResponse{Report: m}, err
}

var formats = map[brokerv1.ReportFormat][2]string{
	brokerv1.ReportFormat_REPORT_FORMAT_TERMINAL: {"terminal", "text/plain; charset=utf-8"},
	brokerv1.ReportFormat_REPORT_FORMAT_MARKDOWN: {"markdown", "text/markdown; charset=utf-8"},
	brokerv1.ReportFormat_REPORT_FORMAT_CSV:      {"csv", "text/csv; charset=utf-8"},
	brokerv1.ReportFormat_REPORT_FORMAT_JSON:     {"json", "application/json"},
	brokerv1.ReportFormat_REPORT_FORMAT_HTML:     {"html", "text/html; charset=utf-8"},
}

func (s *runServer) RenderReport(ctx context.Context, r *brokerv1.RenderReportRequest) (*brokerv1.RenderReportResponse, error) {
	f, ok := formats[r.GetFormat()]
	if !ok {
		return nil, service.Bad("format", "give one of the REPORT_FORMAT values")
	}
	rep, err := s.report(ctx, r.GetName(), "RenderReport")
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := service.Render(&b, rep, f[0], look(r.GetRendering())); err != nil {
		return nil, err
	}
	return &brokerv1.RenderReportResponse{ContentType: &f[1], Content: b.Bytes()}, nil
}

func look(r *brokerv1.Rendering) service.Look {
	return service.Look{Width: int(min(r.GetWidth(), 1000)), Color: r.GetColor(), All: r.GetSecondary()}
}

var requirements = map[brokerv1.Requirement]string{
	brokerv1.Requirement_REQUIREMENT_UNSPECIFIED: "",
	brokerv1.Requirement_REQUIREMENT_PROVISIONAL: "provisional",
	brokerv1.Requirement_REQUIREMENT_ESTABLISHED: "established",
}

func (s *runServer) JudgeRun(ctx context.Context, r *brokerv1.JudgeRunRequest) (*brokerv1.JudgeRunResponse, error) {
	rep, err := s.report(ctx, r.GetName(), "JudgeRun")
	if err != nil {
		return nil, err
	}
	ab, err := marginOf(r.GetMargin(), rep.Plan)
	if err != nil {
		return nil, err
	}
	if err := service.Judge(rep, requirements[r.GetRequire()]); err != nil {
		return nil, service.Explained(err, rep.Plan.Refusals)
	}
	out := &brokerv1.JudgeRunResponse{}
	if rep.Simulated {
		out.Simulated = new(true)
	}
	if r.Margin == nil {
		return out, nil
	}
	cells := service.JudgeAB(rep, ab)
	for _, x := range cells {
		out.Margins = append(out.Margins, service.ToMarginCell(x))
	}
	return out, service.JudgeMargin(cells)
}

// marginOf is what a run is held to; its arm is one of the run's.
func marginOf(m *brokerv1.Margin, plan matrix.Plan) (service.AB, error) {
	ab := service.AB{New: m.GetArm(), Margin: m.GetMargin()}
	switch {
	case m == nil:
		return ab, nil
	case !(ab.Margin > 0 && ab.Margin < 1):
		return ab, service.Bad("margin.margin", "a margin is a fraction between 0 and 1, like 0.02")
	case !slices.ContainsFunc(plan.Groups, func(g matrix.Group) bool {
		return slices.ContainsFunc(g.Arms, func(a matrix.Arm) bool { return a.Label == ab.New })
	}):
		return ab, service.Bad("margin.arm", "the run has no arm %.80q", ab.New)
	}
	return ab, nil
}

func (s *runServer) CompareRuns(ctx context.Context, r *brokerv1.CompareRunsRequest) (*brokerv1.CompareRunsResponse, error) {
	var names [2]string
	for i, x := range []struct{ field, name string }{{"first", r.GetFirst()}, {"second", r.GetSecond()}} {
		var err error
		if names[i], err = service.ResourceID(service.RunPrefix, x.name); err != nil {
			return nil, service.Bad(x.field, "%v", err)
		}
	}
	ctx, leave, err := s.quiet.enter(ctx, "CompareRuns")
	if err != nil {
		return nil, err
	}
	defer leave()
	c, err := s.b.Compare(ctx, names[0], names[1])
	if err != nil {
		return nil, service.About("second", err)
	}
	return service.ToComparison(c)
}

func (s *runServer) HoldCells(ctx context.Context, r *brokerv1.HoldCellsRequest) (*brokerv1.HoldCellsResponse, error) {
	name, err := runID(r.GetName())
	if err != nil {
		return nil, err
	}
	for _, x := range []struct {
		field string
		given bool
	}{{"words", len(r.GetWords()) > 0}, {"who", strings.TrimSpace(r.GetWho()) != ""}, {"why", strings.TrimSpace(r.GetWhy()) != ""}} {
		if !x.given {
			return nil, service.Bad(x.field, "a hold says which cells, who holds and why")
		}
	}
	ctx, leave, err := s.quiet.enter(ctx, "HoldCells")
	if err != nil {
		return nil, err
	}
	defer leave()
	cells, err := s.b.Hold(ctx, name, r.GetWords(), service.Held{Who: r.GetWho(), Why: r.GetWhy(), Release: r.GetRelease()})
	if err != nil {
		return nil, service.About("words", err)
	}
	out, err := toCells(cells)
	return &brokerv1.HoldCellsResponse{Cells: out}, err
}

func toCells(cells []matrix.Cell) ([]*brokerv1.Cell, error) {
	var out []*brokerv1.Cell
	for _, c := range cells {
		m, err := service.ToCell(c)
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

// cells finds cells; an absent name is the newest run.
func (s *runServer) cells(ctx context.Context, name *string, words []string, what string) ([]matrix.Cell, []*brokerv1.Cell, error) {
	id := ""
	if name != nil {
		var err error
		if id, err = runID(*name); err != nil {
			return nil, nil, err
		}
	}
	ctx, leave, err := s.quiet.enter(ctx, what)
	if err != nil {
		return nil, nil, err
	}
	defer leave()
	cells, err := s.b.Cells(ctx, id, words)
	if err != nil {
		return nil, nil, service.About("words", err)
	}
	out, err := toCells(cells)
	return cells, out, err
}

func (s *runServer) ListCells(ctx context.Context, r *brokerv1.ListCellsRequest) (*brokerv1.ListCellsResponse, error) {
	_, out, err := s.cells(ctx, r.Name, r.GetWords(), "ListCells")
	return &brokerv1.ListCellsResponse{Cells: out}, err
}

func (s *runServer) ExplainCells(ctx context.Context, r *brokerv1.ExplainCellsRequest) (*brokerv1.ExplainCellsResponse, error) {
	cells, out, err := s.cells(ctx, r.Name, r.GetWords(), "ExplainCells")
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	for _, c := range cells {
		if err := service.Explain(&b, c, look(r.GetRendering())); err != nil {
			return nil, err
		}
	}
	return &brokerv1.ExplainCellsResponse{Cells: out, Text: b.Bytes()}, nil
}

func (s *runServer) AuditRun(ctx context.Context, r *brokerv1.AuditRunRequest) (*brokerv1.AuditRunResponse, error) {
	id, err := runID(r.GetName())
	if err != nil {
		return nil, err
	}
	ctx, leave, err := s.quiet.enter(ctx, "AuditRun")
	if err != nil {
		return nil, err
	}
	defer leave()
	a, err := s.b.Audit(ctx, id)
	if err != nil && len(a.Findings) == 0 {
		return nil, err
	}
	return service.ToAudit(a), nil
}
