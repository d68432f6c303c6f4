package service

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"enginebroker/matrix"
)

// answered is a request of n tokens, the first after ttft, the others itl apart, one to an event.
func answered(i int, ttft, itl time.Duration, n int) matrix.Request {
	at := int64(ttft)
	q := matrix.Request{Index: i, Outcome: matrix.OutcomeOK, Sent: matrix.Some(int64(0)), FirstToken: matrix.Some(at), CompletionTokens: matrix.Some(int64(n)), FirstTokens: matrix.Some(int64(1))}
	for k := range n {
		q.Stream = append(q.Stream, matrix.StreamEvent{At: at + int64(k)*int64(itl), Kind: matrix.EventText, Tokens: matrix.Some(1)})
	}
	last := q.Stream[n-1].At
	q.LastToken, q.End = matrix.Some(last), matrix.Some(last)
	q.Stream = append(q.Stream, matrix.StreamEvent{At: last, Kind: matrix.EventEOF})
	return q
}

// The rule of issue 4: the mean within 1 % or 0.2 ms, whichever is more; a request that was not answered leaves no number.
func TestCalibrationRule(t *testing.T) {
	q := Calibration{TTFT: 50 * time.Millisecond, ITL: 5 * time.Millisecond, Tokens: 8}
	for name, c := range map[string]struct {
		ttft, itl time.Duration
		pass      []bool // TTFT, TPOT, ITL
	}{
		"as configured":    {50 * time.Millisecond, 5 * time.Millisecond, []bool{true, true, true}},
		"within both":      {50490 * time.Microsecond, 5190 * time.Microsecond, []bool{true, true, true}},
		"TTFT beyond 1 %":  {50510 * time.Microsecond, 5 * time.Millisecond, []bool{false, true, true}},
		"TTFT too early":   {49480 * time.Microsecond, 5 * time.Millisecond, []bool{false, true, true}},
		"gaps over 0.2 ms": {50 * time.Millisecond, 5210 * time.Microsecond, []bool{true, false, false}},
	} {
		rep := matrix.Repetition{Planned: 2, Requests: []matrix.Request{answered(0, c.ttft, c.itl, 8), answered(1, c.ttft, c.itl, 8)}}
		got, err := calibrated(rep, q, 1)
		if err != nil || got.Problem != "" || len(got.Rows) != 3 {
			t.Fatalf("%s: %+v %v", name, got, err)
		}
		all := true
		for i, r := range got.Rows {
			all = all && c.pass[i]
			if r.Pass != c.pass[i] {
				t.Errorf("%s: %+v, want pass %v", name, r, c.pass[i])
			}
		}
		if got.Pass() != all {
			t.Errorf("%s: the level passes: %v", name, got.Pass())
		}
	}
	bad := answered(1, q.TTFT, q.ITL, 8)
	bad.Outcome, bad.Reasons = matrix.OutcomeFailed, []string{"inband_error"}
	got, err := calibrated(matrix.Repetition{Planned: 2, Requests: []matrix.Request{answered(0, q.TTFT, q.ITL, 8), bad}}, q, 1)
	if err != nil || got.OK != 1 || got.Failed != 1 || got.Problem == "" || len(got.Rows) != 0 || got.Pass() {
		t.Errorf("one of two failed: %+v %v", got, err)
	}
	if got, err := calibrated(matrix.Repetition{Planned: 3, Requests: []matrix.Request{answered(0, q.TTFT, q.ITL, 8)}}, q, 1); err != nil || got.Pass() || got.Problem == "" {
		t.Errorf("two of three were never sent: %+v %v", got, err)
	}
}

// What cannot be measured is refused by its flag, before a server is started or a byte is set aside.
func TestCalibrationBounds(t *testing.T) {
	const huge = 1 << 62
	for _, c := range []struct {
		change func(*Calibration)
		want   string
	}{
		{func(*Calibration) {}, ""},
		{func(q *Calibration) { q.Tokens = 1 }, "--tokens: 1 is not in"},
		{func(q *Calibration) { q.Tokens = huge }, "--tokens: 4611686018427387904 is not in"},
		{func(q *Calibration) { q.Requests = huge }, "--requests: "},
		{func(q *Calibration) { q.Requests = -1 }, "--requests: -1"},
		{func(q *Calibration) { q.Concurrency = nil }, "--concurrency: name"},
		{func(q *Calibration) { q.Concurrency = []int{1, huge} }, "--concurrency: 4611686018427387904"},
		{func(q *Calibration) { q.Concurrency = []int{0} }, "--concurrency: 0"},
		{func(q *Calibration) { q.Tokens, q.Requests = 65536, 65536 }, "65536 requests of 65536 tokens"},
		{func(q *Calibration) { q.TTFT = huge }, "--ttft: "},
		{func(q *Calibration) { q.ITL = -1 }, "--itl: "},
		{func(q *Calibration) { q.Model = "m" }, "--served-model"},
		{func(q *Calibration) { q.URL = "https://h" }, "--url: "},
		{func(q *Calibration) { q.URL = "127.0.0.1:80" }, "--url: "},
	} {
		q := Calibration{TTFT: time.Second, ITL: time.Millisecond, Tokens: 32, Concurrency: []int{1, 64}}
		c.change(&q)
		err := q.check()
		e, is := errors.AsType[*Error](err)
		if c.want == "" && err != nil || c.want != "" && (!is || e.Cause != CauseUsage || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v, want %q", q, err, c.want)
		}
	}
}

// A mock is asked itself: what it points to elsewhere is not what is measured.
func TestCalibrationFollowsNobody(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"data":[{"id":"elsewhere"}]}`)) }))
	defer other.Close()
	mock := httptest.NewServer(http.RedirectHandler(other.URL+"/v1/models", http.StatusFound))
	defer mock.Close()
	if name, err := firstModel(t.Context(), mock.URL); err == nil {
		t.Errorf("the model is %s", name)
	}
}
