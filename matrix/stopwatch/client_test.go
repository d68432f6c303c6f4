package stopwatch

import (
	"context"
	"encoding/json"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"enginebroker/matrix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// runOnce opens, runs one pass and reduces it.
func runOnce(t *testing.T, d matrix.Dialect, j Job) (*Recording, []matrix.Request) {
	t.Helper()
	c, err := Open(t.Context(), d, j.Point.Concurrency)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	j.Dialect = d
	rec, err := c.Run(t.Context(), j)
	if err != nil {
		t.Fatal(err)
	}
	return rec, Reduce(rec, d, j.Point)
}

func TestClosedLoop(t *testing.T) {
	var most, now atomicMax
	d := serve(t, func(c net.Conn, n int, body string) bool {
		most.max(now.add(1))
		defer now.add(-1)
		return good(c, n, body)
	})
	rec, reqs := runOnce(t, d, Job{Point: toyPoint(4), Prompts: prompts(24), ExpectCold: true})
	if len(reqs) != 24 || rec.Planned != 24 || rec.Stopped != "" || rec.Dials < 20 || rec.Dials > 23 { // four were open before; a slow starter may not use its own
		t.Fatalf("%d requests, planned %d, stopped %q, %d dials inside the window", len(reqs), rec.Planned, rec.Stopped, rec.Dials)
	}
	if most.v.Load() > 4 {
		t.Errorf("%d requests were in flight, want at most 4", most.v.Load())
	}
	for i, q := range reqs {
		if q.Outcome != matrix.OutcomeOK || q.Index != i || q.Prompt != prompts(24)[i].ID || q.CompletionTokens.Or(0) != 4 || q.PromptTokens != q.ExpectedPrompt {
			t.Fatalf("request %d: %+v", i, q)
		}
		order := []int64{q.Scheduled.Or(-1), q.Sent.Or(-1), q.FirstByte.Or(-1), q.FirstToken.Or(-1), q.LastToken.Or(-1), q.Terminal.Or(-1), q.End.Or(-1)}
		if !slices.IsSorted(order) || order[0] < 0 {
			t.Errorf("request %d: times do not ascend: %v", i, order)
		}
		if last := q.Stream[len(q.Stream)-1]; last.Kind != matrix.EventEOF || len(q.Stream) != q.Events+1 {
			t.Errorf("request %d: the stream has %d elements for %d events, last %v", i, len(q.Stream), q.Events, last)
		}
	}
	cost := rec.Cost(reqs)
	if cost.Events != 24*7 || cost.Bytes == 0 || !cost.LatenessP50.Present() || !cost.CPUPerEvent.Present() {
		t.Errorf("cost %+v", cost)
	}
	if rec.End <= rec.Start || d.BaseURL != "http://"+rec.Address {
		t.Errorf("window [%d, %d], address %s", rec.Start, rec.End, rec.Address)
	}
	if runtime.GOOS == "linux" && !cost.LagP50.Present() {
		t.Error("no kernel receive stamps")
	}
}

// Every sampling field is sent, and the dialect's own beside them.
func TestRequestBody(t *testing.T) {
	sent := make(chan string, 1)
	d := serve(t, func(c net.Conn, n int, body string) bool {
		sent <- body
		return good(c, n, body)
	})
	d.RunningUsage = true
	d.Body = map[string]any{"top_k": 1, "stream_options": map[string]any{"include_usage": true}, "temperature": 0.0}
	p := toyPoint(1)
	p.Seed = 7
	runOnce(t, d, Job{Point: p, Prompts: prompts(1)})
	want := `{"ignore_eos":true,"max_tokens":4,"model":"toy","prompt":"a tide","seed":7,"stream":true,` +
		`"stream_options":{"continuous_usage_stats":true,"include_usage":true},"temperature":0,"top_k":1,"top_p":1}`
	if got := <-sent; got != want {
		t.Errorf("sent %s\nwant %s", got, want)
	}
}

func TestForms(t *testing.T) {
	ids := Prompt{ID: "p", Text: "a tide", IDs: []int{5, 6}}
	chat := toyPoint(1)
	chat.Endpoint = "chat"
	for _, c := range []struct {
		name   string
		form   string
		prompt string
		point  matrix.Point
		want   string
		path   string
	}{
		{"completions with ids", "openai", "ids", toyPoint(1), `"prompt":[5,6]`, "/v1/completions"},
		{"chat takes text", "openai", "ids", chat, `"messages":[{"content":"a tide","role":"user"}]`, "/v1/chat/completions"},
		{"llama.cpp", "llamacpp_native", "ids", toyPoint(1), `"prompt":[5,6]`, "/v1/completions"},
		{"sglang ids", "sglang_native", "ids", toyPoint(1), `"input_ids":[5,6],"sampling_params":{"ignore_eos":true`, "/v1/completions"},
		{"sglang text", "sglang_native", "text", toyPoint(1), `"text":"a tide"`, "/v1/completions"},
	} {
		d := matrix.Dialect{BaseURL: "http://127.0.0.1:1", Path: "/v1/completions", ChatPath: "/v1/chat/completions", Form: c.form, PromptForm: c.prompt, MaxTokensField: "max_tokens"}
		f, path, err := fields(d, c.point, ids)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := json.Marshal(f)
		if path != c.path || !strings.Contains(string(b), c.want) {
			t.Errorf("%s: %s %s, want %s", c.name, path, b, c.want)
		}
	}
}

// What cannot be asked is refused before anything is sent.
func TestRefusedJobs(t *testing.T) {
	d := serve(t, good)
	c, err := Open(t.Context(), d, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for want, change := range map[string]func(*Job){
		"no prompts":               func(j *Job) { j.Prompts = nil },
		"concurrency 3":            func(j *Job) { j.Point.Concurrency = 3 },
		"idle_limit":               func(j *Job) { j.Point.IdleLimit = 0 },
		"total_limit":              func(j *Job) { j.Point.TotalLimit = 0 },
		"the job's server":         func(j *Job) { j.Dialect.BaseURL = "http://127.0.0.1:1" },
		"per_minute":               func(j *Job) { j.Point.Rate = matrix.Rate{Process: "poisson", PerMinute: -1} },
		"not poisson or constant":  func(j *Job) { j.Point.Rate = matrix.Rate{Process: "bursts", PerMinute: 1} },
		"output_tokens":            func(j *Job) { j.Point.OutputTokens = 0 },
		"endpoint":                 func(j *Job) { j.Point.Endpoint = "embeddings" },
		"max_tokens_field":         func(j *Job) { j.Dialect.MaxTokensField = "" },
		"prompt_form":              func(j *Job) { j.Dialect.PromptForm = "" },
		"no token ids":             func(j *Job) { j.Dialect.PromptForm = "ids" },
		"has no text":              func(j *Job) { j.Prompts[0].Text = "" },
		"dialect.form":             func(j *Job) { j.Dialect.Form = "morse" },
		"has no chat":              func(j *Job) { j.Dialect.Form, j.Point.Endpoint = "sglang_native", "chat" },
		"dialect.body.temperature": func(j *Job) { j.Dialect.Body = map[string]any{"temperature": 0.7} },
		"is set by the client":     func(j *Job) { j.Dialect.Headers = map[string]string{"accept-encoding": "gzip"} },
		"is malformed":             func(j *Job) { j.Dialect.Headers = map[string]string{"X-A": "b\r\nX-C: d"} },
		"include_usage is false": func(j *Job) {
			j.Dialect.Body = map[string]any{"stream_options": map[string]any{"include_usage": false}}
		},
		"leave it out of the diale": func(j *Job) { j.Dialect.Body = map[string]any{"prompt": "another"} },
	} {
		j := Job{Dialect: d, Point: toyPoint(2), Prompts: prompts(2)}
		change(&j)
		if rec, err := c.Run(t.Context(), j); err == nil || rec != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
	for _, url := range []string{"https://127.0.0.1:1", "127.0.0.1:1", "http://", "::"} {
		if _, err := Open(t.Context(), matrix.Dialect{BaseURL: url}, 1); err == nil {
			t.Errorf("base URL %q was accepted", url)
		}
	}
	if _, err := Open(t.Context(), matrix.Dialect{BaseURL: "http://127.0.0.1:1"}, 1); err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("a closed port gave %v", err)
	}
}

// Bad servers: each failure has its own name, nothing hangs, and the recording holds what came.
func TestBadServers(t *testing.T) {
	short := toyPoint(1)
	short.IdleLimit, short.TotalLimit = 50*time.Millisecond, 200*time.Millisecond
	quiet := func(c net.Conn) { // until the client goes away
		_, _ = c.Read(make([]byte, 1))
	}
	for _, c := range []struct {
		name    string
		point   matrix.Point
		serve   script
		outcome matrix.Outcome
		reasons string
		detail  string
	}{
		{"503", toyPoint(1), func(c net.Conn, _ int, _ string) bool {
			return send(c, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 45\r\n\r\n"+`{"error":{"message":"Loading","type":"x"}}    `)
		}, matrix.OutcomeNotReady, "http_status", "503: Loading"},
		{"404 with another shape", toyPoint(1), func(c net.Conn, _ int, _ string) bool {
			return send(c, "HTTP/1.1 404 Not Found\r\nContent-Length: 22\r\n\r\n"+`{"detail":"Not Found"}`)
		}, matrix.OutcomeFailed, "http_status", `404: {"detail":"Not Found"}`},
		{"redirect is not followed", toyPoint(1), func(c net.Conn, _ int, _ string) bool {
			return send(c, "HTTP/1.1 307 Temporary Redirect\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n")
		}, matrix.OutcomeFailed, "http_status", "307"},
		{"closes without a byte", toyPoint(1), func(net.Conn, int, string) bool { return false }, matrix.OutcomeFailed, "connection_lost", "closed"},
		{"not HTTP", toyPoint(1), func(c net.Conn, _ int, _ string) bool { return send(c, "SSH-2.0-OpenSSH_9.2\r\n\r\n") }, matrix.OutcomeFailed, "bad_http", "SSH"},
		{"never answers", short, func(c net.Conn, _ int, _ string) bool { quiet(c); return false }, matrix.OutcomeFailed, "idle_limit", "50ms"},
		{"stops in mid-stream", short, func(c net.Conn, _ int, _ string) bool {
			send(c, sseHead+chunked(tokenEvent("two")))
			quiet(c)
			return false
		}, matrix.OutcomeFailed, "idle_limit", "50ms"},
		{"never ends", short, func(c net.Conn, _ int, _ string) bool {
			send(c, sseHead)
			for send(c, chunked(tokenEvent("x"))) {
				time.Sleep(2 * time.Millisecond)
			}
			return false
		}, matrix.OutcomeFailed, "total_limit", "200ms"},
		{"keep-alives and no tokens", short, func(c net.Conn, _ int, _ string) bool {
			send(c, sseHead)
			for send(c, chunked(":\n\n")) {
				time.Sleep(2 * time.Millisecond)
			}
			return false
		}, matrix.OutcomeFailed, "total_limit", "200ms"},
		{"gzip although identity was asked for", toyPoint(1), func(c net.Conn, _ int, _ string) bool {
			return send(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc")
		}, matrix.OutcomeFailed, "content_encoded", "identity"},
		{"huge head", toyPoint(1), func(c net.Conn, _ int, _ string) bool {
			return send(c, "HTTP/1.1 200 OK\r\nX: "+strings.Repeat("y", maxHead)+"\r\n\r\n")
		}, matrix.OutcomeFailed, "bad_http", "longer than"},
		{"error, then [DONE]", toyPoint(1), func(c net.Conn, _ int, _ string) bool {
			return send(c, sseHead+chunked(tokenEvent("two"))+chunked("data: {\"error\":{\"message\":\"engine core stopped\",\"code\":500}}\n\n")+chunked(doneEvent)+"0\r\n\r\n")
		}, matrix.OutcomeFailed, "inband_error", "engine core stopped"},
		{"another model", toyPoint(1), func(c net.Conn, _ int, _ string) bool {
			return send(c, sseHead+strings.ReplaceAll(goodBody(), `"toy"`, `"boy"`))
		}, matrix.OutcomeFailed, "identity_mismatch", "boy"},
		{"close-delimited", toyPoint(1), func(c net.Conn, _ int, _ string) bool {
			send(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"+tokenEvent("a")+tokenEvent("b")+tokenEvent("c")+tokenEvent("d")+finishEvent+usageEvent+doneEvent)
			return false
		}, matrix.OutcomeOK, "", ""},
		{"interim response first", toyPoint(1), func(c net.Conn, n int, body string) bool {
			return send(c, "HTTP/1.1 102 Processing\r\nX: y\r\n\r\n") && good(c, n, body)
		}, matrix.OutcomeOK, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := serve(t, c.serve)
			rec, reqs := runOnce(t, d, Job{Point: c.point, Prompts: prompts(1)})
			q := reqs[0]
			if q.Outcome != c.outcome || strings.Join(q.Reasons, ",") != c.reasons || !strings.Contains(q.Error, c.detail) {
				t.Errorf("got %s %v %q, want %s %s with %q", q.Outcome, q.Reasons, q.Error, c.outcome, c.reasons, c.detail)
			}
			if hung := strings.HasSuffix(c.reasons, "_limit"); rec.Hung() != hung || (rec.Stopped != "") != hung {
				t.Errorf("hung %v, stopped %q", rec.Hung(), rec.Stopped)
			}
		})
	}
}

// A reset at any byte of an answer fails it, or leaves it whole where everything that counts had come; nothing is retried.
func TestResetAtAnyByte(t *testing.T) {
	whole := sseHead + goodBody()
	finish := strings.Index(whole, doneEvent)
	var cut, count atomic.Int64
	d := serve(t, func(c net.Conn, _ int, _ string) bool {
		count.Add(1)
		send(c, whole[:cut.Load()])
		c.(*net.TCPConn).SetLinger(0)
		return false
	})
	c, err := Open(t.Context(), d, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	runs := int64(0)
	for at := 0; at < len(whole); at += 7 {
		runs++
		cut.Store(int64(at))
		rec, err := c.Run(t.Context(), Job{Dialect: d, Point: toyPoint(1), Prompts: prompts(1)})
		if err != nil {
			t.Fatal(err)
		}
		q := Reduce(rec, d, toyPoint(1))[0]
		if q.Outcome == matrix.OutcomeOK && q.Bytes < int64(finish) {
			t.Errorf("cut at %d of %d: ok after %d bytes", at, len(whole), q.Bytes)
		}
		if e := rec.Exchanges[0].Ending; e != EndReset && e != EndEarly {
			t.Errorf("cut at %d: ending %d", at, e)
		}
	}
	if count.Load() != runs {
		t.Errorf("%d requests reached the server in %d passes", count.Load(), runs)
	}
}

// Cancelling ends promptly with what came; what was not sent is missing.
func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	d := serve(t, func(c net.Conn, n int, body string) bool {
		if n != 3 {
			return good(c, n, body)
		}
		send(c, sseHead+chunked(tokenEvent("two")))
		cancel()
		_, _ = c.Read(make([]byte, 1))
		return false
	})
	c, err := Open(t.Context(), d, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	rec, err := c.Run(ctx, Job{Dialect: d, Point: toyPoint(1), Prompts: prompts(20)})
	if err != nil {
		t.Fatal(err)
	}
	reqs := Reduce(rec, d, toyPoint(1))
	if len(reqs) != 4 || rec.Planned != 20 || reqs[2].Outcome != matrix.OutcomeOK || !slices.Equal(reqs[3].Reasons, []string{"cancelled"}) {
		t.Errorf("%d requests of %d, last %v %v", len(reqs), rec.Planned, reqs[len(reqs)-1].Outcome, reqs[len(reqs)-1].Reasons)
	}
	// The client is whole again for another pass.
	rec, err = c.Run(t.Context(), Job{Dialect: d, Point: toyPoint(1), Prompts: prompts(2)})
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range Reduce(rec, d, toyPoint(1)) {
		if q.Outcome != matrix.OutcomeOK {
			t.Errorf("after the cancelled pass: %s %v %s", q.Outcome, q.Reasons, q.Error)
		}
	}
}

// A server that closes after every answer, whatever it announces, costs no failed request: no connection is used twice.
func TestServerClosesAfterEveryAnswer(t *testing.T) {
	d := serve(t, func(c net.Conn, n int, body string) bool {
		send(c, strings.Replace(sseHead, "\r\n\r\n", "\r\nKeep-Alive: timeout=5, max=100\r\n\r\n", 1)+goodBody())
		return false
	})
	rec, reqs := runOnce(t, d, Job{Point: toyPoint(1), Prompts: prompts(3)})
	for _, q := range reqs {
		if q.Outcome != matrix.OutcomeOK {
			t.Errorf("%s %v %s", q.Outcome, q.Reasons, q.Error)
		}
	}
	if rec.Dials != 2 {
		t.Errorf("%d connections were opened inside the window, want 2", rec.Dials)
	}
}

// Times of an open loop hang on the schedule: a request that waits is late, its schedule is not moved.
func TestOpenLoop(t *testing.T) {
	d := serve(t, good)
	p := toyPoint(2)
	p.Rate = matrix.Rate{Process: "poisson", PerMinute: 60_000}
	j := Job{Point: p, Prompts: prompts(50), Seed: 3}
	want, err := schedule(p.Rate, 50, 3)
	if err != nil {
		t.Fatal(err)
	}
	rec, reqs := runOnce(t, d, j)
	if len(reqs) != 50 {
		t.Fatalf("%d requests", len(reqs))
	}
	for i, q := range reqs {
		if q.Scheduled.Or(-1) != want[i] || rec.Exchanges[i].Begin < want[i] || q.Outcome != matrix.OutcomeOK {
			t.Errorf("request %d: scheduled %v, want %d, begun %d, %s", i, q.Scheduled, want[i], rec.Exchanges[i].Begin, q.Outcome)
		}
	}
}

func TestSchedule(t *testing.T) {
	constant, err := schedule(matrix.Rate{Process: "constant", PerMinute: 90}, 4, 1)
	if err != nil || !slices.Equal(constant, []int64{0, 666666666, 1333333333, 2000000000}) {
		t.Errorf("constant: %v, %v", constant, err)
	}
	a, _ := schedule(matrix.Rate{Process: "poisson", PerMinute: 6000}, 10_000, 1)
	b, _ := schedule(matrix.Rate{Process: "poisson", PerMinute: 6000}, 10_000, 1)
	other, _ := schedule(matrix.Rate{Process: "poisson", PerMinute: 6000}, 10_000, 2)
	if !slices.Equal(a, b) || slices.Equal(a, other) || !slices.IsSorted(a) {
		t.Error("poisson: equal seeds must give equal schedules, others not, all ascending")
	}
	// 10 000 exponential gaps of mean 10 ms: the sum is 100 s ± 1 s per SD.
	if last := a[len(a)-1]; last < 95e9 || last > 105e9 {
		t.Errorf("poisson: 10 000 arrivals at 100/s took %d ns", last)
	}
}

func TestOnce(t *testing.T) {
	d := serve(t, good)
	q, err := Once(t.Context(), d, toyPoint(1), prompts(1)[0])
	if err != nil || q.Text != "two small boats drift" || q.Repetition != -1 || q.Outcome != matrix.OutcomeOK {
		t.Errorf("%q, %+v, %v", q.Text, q, err)
	}
	if _, err := Once(t.Context(), d, matrix.Point{}, prompts(1)[0]); err == nil {
		t.Error("a point without limits was asked")
	}
}

// The counting part of harnesses.md §3.7, where four of six peers report 32 ok: every fourth of 32 streams carries an error
// and then ends as a good one does.
func TestErrorInEveryFourthStream(t *testing.T) {
	d := serve(t, func(c net.Conn, n int, _ string) bool {
		if n%4 != 3 {
			return send(c, sseHead+goodBody())
		}
		bad := `data: {"error":{"message":"the engine lost the request","code":500}}` + "\n\n"
		return send(c, sseHead+chunked(tokenEvent("two"))+chunked(bad)+chunked(doneEvent)+"0\r\n\r\n")
	})
	_, reqs := runOnce(t, d, Job{Point: toyPoint(4), Prompts: prompts(32)})
	ok, failed := 0, 0
	for _, q := range reqs {
		switch q.Outcome {
		case matrix.OutcomeOK:
			ok++
		case matrix.OutcomeFailed:
			failed++
			if len(q.Reasons) != 1 || q.Reasons[0] != reasonInband || q.Error == "" {
				t.Errorf("request %d: %v %q", q.Index, q.Reasons, q.Error)
			}
		}
	}
	if ok != 24 || failed != 8 {
		t.Errorf("%d ok and %d failed of %d; 24 and 8 are true", ok, failed, len(reqs))
	}
}

// A server that reads nothing costs the total limit, and no more, where the request does not fit its socket.
func TestServerThatNeverReads(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // what it has not accepted goes with it
	p := toyPoint(1)
	p.TotalLimit = 300 * time.Millisecond
	d := matrix.Dialect{BaseURL: "http://" + l.Addr().String(), Path: "/v1/completions", Form: "openai", Model: "toy", PromptForm: "text", MaxTokensField: "max_tokens", End: "done"}
	rec, reqs := runOnce(t, d, Job{Point: p, Prompts: []Prompt{{ID: "large", Text: strings.Repeat("a", 32<<20)}}})
	if q := reqs[0]; rec.Exchanges[0].Ending != EndTotal || q.Outcome != matrix.OutcomeFailed || !strings.Contains(q.Error, "could not be written") {
		t.Errorf("ending %d, %s %v %q", rec.Exchanges[0].Ending, q.Outcome, q.Reasons, q.Error)
	}
}
