package service

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	"enginebroker/engines/openai"
	"enginebroker/matrix"
	"enginebroker/matrix/metrics"
	"enginebroker/matrix/stopwatch"
)

// Calibration asks the timed client to measure a server whose times are known.
type Calibration struct {
	URL         string        // of a mock that somebody runs; empty: the simulated engine beside this binary
	Model       string        // to ask the mock for; empty: the first of its /v1/models
	Prompt      string        // empty: a short sentence
	TTFT        time.Duration // what the server is configured for, or declared to do
	ITL         time.Duration
	Tokens      int   // per answer
	Concurrency []int // levels, each a pass of its own
	Requests    int   // per level, at least; 0: 8, and two for each stream
}

// Calibrated is one level of concurrency: what the client reports beside what the server does.
type Calibrated struct {
	Mark        matrix.Reason     `json:"mark"` // SIMULATED
	Concurrency int               `json:"concurrency"`
	Requests    int               `json:"requests"`
	OK          int               `json:"ok"`
	Failed      int               `json:"failed"` // failed, not ready or suspect
	Problem     string            `json:"problem,omitempty"`
	Rows        []CalibrationRow  `json:"rows,omitempty"`
	Client      matrix.ClientCost `json:"client"`
}

// Pass reports whether every request was answered and every mean is within its limit.
func (c Calibrated) Pass() bool {
	return c.Problem == "" && len(c.Rows) > 0 && !slices.ContainsFunc(c.Rows, func(r CalibrationRow) bool { return !r.Pass })
}

// CalibrationRow is one metric, in ms, with how far its mean and its p99 may be from what is configured.
type CalibrationRow struct {
	Metric     string              `json:"metric"`
	Configured float64             `json:"configured_ms"`
	Mean       float64             `json:"mean_ms"`
	P99        float64             `json:"p99_ms"`
	Limit      float64             `json:"limit_ms"`
	LimitP99   matrix.Opt[float64] `json:"limit_p99_ms,omitzero"` // absent: it shows what the box adds to some, and is not judged
	Pass       bool                `json:"pass"`
}

func (r *CalibrationRow) judge() {
	r.Pass = math.Abs(r.Mean-r.Configured) <= r.Limit
	if most, ok := r.LimitP99.Get(); ok {
		r.Pass = r.Pass && math.Abs(r.P99-r.Configured) <= most
	}
}

// calibrationShare and calibrationFloor are the rule: the mean of each metric within 1 % of configured, or 0.2 ms where
// that is more. [own] The floor is what two processes of one box need to hand a packet over.
const (
	calibrationShare = 0.01
	calibrationFloor = 0.2
)

// Bounds of a calibration [own]. A level is kept in memory whole, some 400 bytes for a token and 8 KiB for a request, so that
// its tokens are bounded together as well.
const (
	calibrationTokens   = 1 << 16
	calibrationRequests = 1 << 16
	calibrationStreams  = 4096
	calibrationLevel    = 1 << 20 // tokens of all requests of a level
	calibrationWait     = time.Hour
)

// check names the first thing that cannot be measured by its flag.
func (q Calibration) check() error {
	bad := func(format string, args ...any) error { return fail(CauseUsage, "", format, args...) }
	switch {
	case q.TTFT < 0 || q.TTFT > calibrationWait:
		return bad("--ttft: %v is not in 0..%v", q.TTFT, calibrationWait)
	case q.ITL < 0 || q.ITL > calibrationWait:
		return bad("--itl: %v is not in 0..%v", q.ITL, calibrationWait)
	case q.Tokens < 2 || q.Tokens > calibrationTokens:
		return bad("--tokens: %d is not in 2..%d", q.Tokens, calibrationTokens)
	case q.Requests < 0 || q.Requests > calibrationRequests:
		return bad("--requests: %d is not in 0..%d", q.Requests, calibrationRequests)
	case len(q.Concurrency) == 0:
		return bad("--concurrency: name at least one level")
	case q.URL == "" && (q.Model != "" || q.Prompt != ""):
		return bad("--served-model and --prompt are for a mock of yours: name it with --url, or leave them out")
	}
	for _, c := range q.Concurrency {
		if c < 1 || c > calibrationStreams {
			return bad("--concurrency: %d is not in 1..%d", c, calibrationStreams)
		}
		if n := q.requests(c); n*q.Tokens > calibrationLevel {
			return bad("--tokens: %d requests of %d tokens at concurrency %d are more than the %d tokens that a level may have; lower --tokens, --requests or --concurrency", n, q.Tokens, c, calibrationLevel)
		}
	}
	if u, err := url.Parse(q.URL); q.URL != "" && (err != nil || u.Scheme != "http" || u.Hostname() == "") {
		return bad("--url: %q is not http://HOST:PORT", q.URL)
	}
	return nil
}

// requests is how many a level of c streams has.
func (q Calibration) requests(c int) int { return max(q.Requests, 8, 2*c) }

// Calibrate measures the server at every level. each sees a level when it is done. A level at which requests fail has a
// problem and no rows: the client reports no number of an incomplete set.
func (s *Service) Calibrate(ctx context.Context, q Calibration, each func(Calibrated)) error {
	if err := q.check(); err != nil {
		return err
	}
	d, done, err := s.calibrationServer(ctx, q)
	if err != nil {
		return err
	}
	defer done()
	for _, c := range q.Concurrency {
		level, err := calibrate(ctx, d, q, c)
		if q.URL != "" && errors.Is(err, stopwatch.ErrNoConnection) && ctx.Err() == nil {
			return fail(CauseUsage, "", "--url: %w", err)
		}
		if err != nil {
			return interrupted(ctx, err, "")
		}
		each(level)
	}
	return nil
}

// calibrationServer is the dialect of the mock that was named, or of a simulated engine started for this.
func (s *Service) calibrationServer(ctx context.Context, q Calibration) (matrix.Dialect, func(), error) {
	if q.URL == "" {
		m, err := s.mock(ctx, "--ttft", q.TTFT.String(), "--itl", q.ITL.String())
		if err != nil {
			return matrix.Dialect{}, nil, err
		}
		return openai.BaseDialect(m.url, mockModel), m.stop, nil
	}
	model := q.Model
	if model == "" {
		var err error
		if model, err = firstModel(ctx, q.URL); err != nil {
			return matrix.Dialect{}, nil, fail(CauseUsage, "name the model with --served-model", "the mock at %s does not say what it serves: %w", q.URL, err)
		}
	}
	return matrix.Dialect{BaseURL: strings.TrimSuffix(q.URL, "/"), Path: "/v1/completions", Form: "openai", Model: model, PromptForm: "text",
		MaxTokensField: "max_tokens", End: "done", Usage: "own_chunk", Sources: []matrix.TokenSource{{Name: "usage", Kind: matrix.CountExact}}}, func() {}, nil
}

func firstModel(ctx context.Context, base string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	client := openai.New(base, nil)
	defer client.Close()
	list, err := client.Models(ctx)
	if err != nil {
		return "", err
	}
	if len(list) == 0 || list[0].ID == "" {
		return "", errors.New("GET /v1/models lists no model")
	}
	return list[0].ID, nil
}

// calibrate measures one level: a warm-up pass of one request a stream, then the timed one.
func calibrate(ctx context.Context, d matrix.Dialect, q Calibration, c int) (Calibrated, error) {
	n := q.requests(c)
	longest := q.TTFT + time.Duration(q.Tokens)*q.ITL
	p := matrix.Point{ID: fmt.Sprintf("c%d", c), Endpoint: "completions", OutputTokens: q.Tokens, IgnoreEOS: true, Concurrency: c, Requests: n,
		IdleLimit: 30*time.Second + q.TTFT + q.ITL, TotalLimit: time.Minute + 4*longest}
	client, err := stopwatch.Open(ctx, d, c)
	if err != nil {
		return Calibrated{}, err
	}
	defer client.Close()
	for rep, k := range []int{c, n} {
		rec, err := client.Run(ctx, stopwatch.Job{Dialect: d, Point: p, Repetition: rep - 1, Prompts: calibrationPrompts(q.Prompt, k)})
		if err != nil {
			return Calibrated{}, err
		}
		if ctx.Err() != nil {
			return Calibrated{}, ctx.Err()
		}
		if rep == 1 {
			reqs := stopwatch.Reduce(rec, d, p)
			return calibrated(matrix.Repetition{Start: rec.Start, End: rec.End, Planned: n, Requests: reqs, Client: rec.Cost(reqs)}, q, c)
		}
	}
	panic("unreachable: the second pass returns")
}

func calibrationPrompts(text string, n int) []stopwatch.Prompt {
	if text == "" {
		text = "two small boats drift on a slow tide"
	}
	out := make([]stopwatch.Prompt, n)
	for i := range out {
		out[i] = stopwatch.Prompt{ID: fmt.Sprintf("calibration/%d", i), Text: text}
	}
	return out
}

// calibrated compares what broker/1 makes of a pass with what is true.
func calibrated(rep matrix.Repetition, q Calibration, c int) (Calibrated, error) {
	out := Calibrated{Mark: matrix.Simulated, Concurrency: c, Requests: rep.Planned, Client: rep.Client}
	for _, r := range rep.Requests {
		if r.Outcome == matrix.OutcomeOK {
			out.OK++
			continue
		}
		out.Failed++
		if out.Problem == "" {
			out.Problem = fmt.Sprintf("request %d %s: %s: %s", r.Index, r.Outcome, strings.Join(r.Reasons, ", "), r.Error)
		}
	}
	if out.Problem != "" {
		return out, nil
	}
	if len(rep.Requests) != rep.Planned {
		out.Problem = fmt.Sprintf("%d of %d requests were sent", len(rep.Requests), rep.Planned)
		return out, nil
	}
	m, err := metrics.Repetition(metrics.Broker1, rep)
	if err != nil {
		return out, err
	}
	for _, x := range []struct {
		name string
		want time.Duration
	}{{"ttft", q.TTFT}, {"tpot", q.ITL}, {"itl", q.ITL}} {
		mean, ok := m[x.name+"_mean"].Get()
		p99, ok2 := m[x.name+"_p99"].Get()
		if !ok || !ok2 {
			out.Problem = x.name + " cannot be told from these streams: chunks are not tokens, or no exact count came with them"
			return out, nil
		}
		want := float64(x.want) / 1e6
		row := CalibrationRow{Metric: strings.ToUpper(x.name), Configured: want, Mean: mean, P99: p99, Limit: max(calibrationShare*want, calibrationFloor)}
		row.judge()
		out.Rows = append(out.Rows, row)
	}
	return out, nil
}

// Truth is what this client says where six others were asked (harnesses.md §3.7).
type Truth struct {
	Mark   matrix.Reason `json:"mark"`  // SIMULATED
	Times  Calibrated    `json:"times"` // 64 requests at 16 streams, TTFT 50 ms, ITL 20 ms, 32 tokens
	OK     int           `json:"ok"`    // of 32 requests at 4 streams of which every fourth carries an error, then [DONE]
	Failed int           `json:"failed"`
}

// Pass reports whether the times are within the bounds of the client's charter (mean TTFT 0.5 ms, p99 2 ms, TPOT 0.1 %) and
// the 24 good and 8 bad streams were counted so.
func (t Truth) Pass() bool { return t.Times.Pass() && t.OK == 24 && t.Failed == 8 }

// Truth asks the client what harnesses.md §3.7 asked the others, of the simulated engine.
func (s *Service) Truth(ctx context.Context) (Truth, error) {
	q := Calibration{TTFT: 50 * time.Millisecond, ITL: 20 * time.Millisecond, Tokens: 32, Requests: 64}
	times, err := s.truth(ctx, q, 16)
	if err != nil {
		return Truth{}, err
	}
	for i := range times.Rows {
		r := &times.Rows[i]
		switch r.Metric {
		case "TTFT":
			r.Limit, r.LimitP99 = 0.5, matrix.Some(2.0)
		case "TPOT":
			r.Limit = 0.001 * r.Configured
		}
		r.judge()
	}
	q.Requests = 32
	counted, err := s.truth(ctx, q, 4, "--fail_every", "4", "--fail_kind", "error_then_done")
	return Truth{Mark: matrix.Simulated, Times: times, OK: counted.OK, Failed: counted.Failed}, err
}

func (s *Service) truth(ctx context.Context, q Calibration, c int, faults ...string) (Calibrated, error) {
	m, err := s.mock(ctx, append([]string{"--ttft", q.TTFT.String(), "--itl", q.ITL.String()}, faults...)...)
	if err != nil {
		return Calibrated{}, err
	}
	defer m.stop()
	out, err := calibrate(ctx, openai.BaseDialect(m.url, mockModel), q, c)
	if err != nil {
		return out, interrupted(ctx, err, "")
	}
	return out, nil
}
