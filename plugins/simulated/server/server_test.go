package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func params(dialect string) Params {
	c := Default()
	c.Dialect, c.TTFT, c.ITL = dialect, 0, 0
	return Params{Config: c, Model: "m", Path: "models/m", LoadID: "load-1", Context: 512, Slots: 8}
}

func start(t *testing.T, p Params) *httptest.Server {
	t.Helper()
	hs := httptest.NewUnstartedServer(New(p))
	hs.Config.ErrorLog = nil
	hs.Start()
	t.Cleanup(func() { hs.CloseClientConnections(); hs.Close() })
	return hs
}

func post(t *testing.T, hs *httptest.Server, path, body string) (int, string, error) {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Post(hs.URL+path, "application/json", strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

func dataEvents(body string) []string {
	var out []string
	for s := bufio.NewScanner(strings.NewReader(body)); s.Scan(); {
		if d, ok := strings.CutPrefix(s.Text(), "data: "); ok {
			out = append(out, d)
		}
	}
	return out
}

// paths lists the fields of a JSON value; of a list its first element counts.
func paths(v any, at string, out map[string]bool) {
	switch x := v.(type) {
	case map[string]any:
		for k, e := range x {
			out[at+"."+k] = true
			paths(e, at+"."+k, out)
		}
	case []any:
		if len(x) > 0 {
			paths(x[0], at+"[]", out)
		}
	}
}

// stamped are the fields that a real answer need not have: they carry the stamp.
var stamped = []string{".system_fingerprint", ".meta_info.system_fingerprint"}

// notSimulated are times and internals of real engines that nobody reads.
var notSimulated = map[string][]string{
	"sglang": {".meta_info.storage_prefetch_wait", ".meta_info.storage_staging_wait", ".meta_info.forward_entry_time", ".meta_info.prefill_finished_time",
		".meta_info.queue_time", ".meta_info.weight_versions", ".meta_info.weight_versions[].version", ".meta_info.weight_versions[].start",
		".meta_info.weight_versions[].end", ".meta_info.request_received_ts", ".meta_info.first_token_latency",
		".meta_info.api_server_dispatch_finish_ts", ".meta_info.response_sent_to_client_ts", ".meta_info.request_finished_ts",
		".meta_info.decode_throughput", ".index"},
}

// The answers hold the fields of the captured answers of the real engines (engines.md B3, C3, C8, D3, D8, E3).
func TestShapes(t *testing.T) {
	for _, d := range Dialects {
		t.Run(d, func(t *testing.T) {
			raw, err := os.ReadFile("testdata/" + d + ".json")
			if err != nil {
				t.Fatal(err)
			}
			var captured map[string]any
			if err := json.Unmarshal(raw, &captured); err != nil {
				t.Fatal(err)
			}
			hs := start(t, params(d))
			seen := map[string]any{}
			stream := func(name, path, body string) {
				status, text, err := post(t, hs, path, body)
				if status != 200 || err != nil {
					t.Fatal(name, status, text, err)
				}
				ev := dataEvents(text)
				if last := ev[len(ev)-1]; (last == "[DONE]") != (path != "/completion") {
					t.Errorf("%s ends with %s", name, last)
				}
				n := 0
				for _, e := range ev {
					var v map[string]any
					if e == "[DONE]" {
						continue
					}
					if err := json.Unmarshal([]byte(e), &v); err != nil {
						t.Fatalf("%s: %v in %s", name, err, e)
					}
					ch, _ := v["choices"].([]any)
					switch {
					case path == "/completion" || path == "/generate":
						seen[name+"_end"] = v
						if n == 0 {
							seen[name+"_first"] = v
						}
						n++
						continue
					case len(ch) == 0:
						seen[name+"_usage"] = v
						continue
					}
					c := ch[0].(map[string]any)
					delta, _ := c["delta"].(map[string]any)
					switch {
					case delta["role"] != nil:
						seen[name+"_role"] = v
					case c["finish_reason"] != nil:
						seen[name+"_finish"] = v
					case n == 0:
						seen[name+"_first"] = v
						n++
					default:
						seen[name+"_next"] = v
					}
				}
			}
			answer := func(name, path, body string) {
				_, text, err := post(t, hs, path, body)
				var v any
				if err == nil {
					err = json.Unmarshal([]byte(text), &v)
				}
				if err != nil {
					t.Fatal(name, err, text)
				}
				seen[name] = v
			}
			const usage = `,"stream":true,"stream_options":{"include_usage":true`
			stream("completions", "/v1/completions", `{"model":"m","prompt":"the cat","max_tokens":4`+usage+`}}`)
			stream("chat", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":4`+usage+`}}`)
			ids := ""
			if d == "vllm" {
				ids = `,"return_token_ids":true`
			}
			stream("running", "/v1/completions", `{"model":"m","prompt":"the cat","max_tokens":4`+ids+usage+`,"continuous_usage_stats":true}}`)
			stream("ids", "/v1/completions", `{"model":"m","prompt":"the cat","max_tokens":4,"return_token_ids":true`+usage+`}}`)
			stream("timings", "/v1/completions", `{"model":"m","prompt":"the cat","max_tokens":4,"timings_per_token":true`+usage+`}}`)
			answer("answer", "/v1/completions", `{"model":"m","prompt":"the cat","max_tokens":4`+ids+`}`)
			answer("chat_answer", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":4}`)
			answer("tokenize", "/tokenize", `{"model":"m","prompt":"the cat","content":"the cat"}`)
			if d != "sglang" && d != "llamacpp" {
				answer("wrong_model", "/v1/completions", `{"model":"nope","prompt":"the cat","max_tokens":4}`)
			}
			switch d {
			case "llamacpp":
				stream("native", "/completion", `{"prompt":"the cat","n_predict":4,"stream":true}`)
				seen["native_end"].(map[string]any)["generation_settings"] = map[string]any{}
			case "sglang":
				stream("native", "/generate", `{"text":"the cat","sampling_params":{"max_new_tokens":4},"stream":true}`)
			}
			for name, want := range captured {
				got, ok := seen[name]
				if !ok {
					t.Errorf("%s: no such event came", name)
					continue
				}
				w, g := map[string]bool{}, map[string]bool{}
				paths(want, "", w)
				paths(got, "", g)
				for _, p := range stamped {
					delete(w, p)
					delete(g, p)
				}
				for _, p := range notSimulated[d] {
					delete(w, p)
				}
				if diff := cmp.Diff(w, g); diff != "" {
					t.Errorf("%s (-captured +ours):\n%s", name, diff)
				}
			}
		})
	}
}

// Everything says that it is simulated.
func TestStamp(t *testing.T) {
	for _, d := range Dialects {
		hs := start(t, params(d))
		for _, body := range []string{`{"model":"m","prompt":"x","max_tokens":2}`, `{"model":"m","prompt":"x","max_tokens":2,"stream":true,"stream_options":{"include_usage":true}}`} {
			_, text, err := post(t, hs, "/v1/completions", body)
			if err != nil || !strings.Contains(text, d+"-simulated-1.0") {
				t.Errorf("%s: %s %v", d, text, err)
			}
		}
	}
}

func joined(t *testing.T, body string) (text string, done bool) {
	t.Helper()
	for _, e := range dataEvents(body) {
		if e == "[DONE]" {
			done = true
			continue
		}
		var v struct {
			Choices []struct{ Text string }
		}
		if json.Unmarshal([]byte(e), &v) == nil && len(v.Choices) > 0 {
			text += v.Choices[0].Text
		}
	}
	return text, done
}

// The same prompt gives the same tokens in every dialect, and as many as were asked for.
func TestSameText(t *testing.T) {
	var want string
	for _, d := range Dialects {
		for _, chunk := range []int{1, 3} {
			p := params(d)
			p.ChunkTokens = chunk
			hs := start(t, p)
			_, body, err := post(t, hs, "/v1/completions", `{"model":"m","prompt":"tell me","max_tokens":17,"stream":true}`)
			if err != nil {
				t.Fatal(err)
			}
			got, done := joined(t, body)
			if want == "" {
				want = got
			}
			if got != want || !done || len(Tokenize(got)) != 17 {
				t.Errorf("%s in chunks of %d: %q, want %q", d, chunk, got, want)
			}
		}
	}
}

func TestCanary(t *testing.T) {
	for wrong, want := range map[bool]string{false: " 437", true: " 456"} {
		p := params("vllm")
		p.WrongAnswer = wrong
		_, body, err := post(t, start(t, p), "/v1/completions", `{"model":"m","prompt":"What is 19 × 23?","max_tokens":4}`)
		if err != nil || !strings.Contains(body, want) {
			t.Errorf("wrong=%v: %s %v", wrong, body, err)
		}
	}
}

// Each fault breaks what its name says and nothing else, in every dialect.
func TestFaults(t *testing.T) {
	has := func(s string) func(int, string, error) bool {
		return func(_ int, body string, err error) bool { return err == nil && strings.Contains(body, s) }
	}
	lacks := func(s string) func(int, string, error) bool {
		return func(_ int, body string, err error) bool { return err == nil && !strings.Contains(body, s) }
	}
	tokens := func(n int) func(int, string, error) bool {
		return func(_ int, body string, err error) bool {
			text, _ := joined(t, body)
			return err == nil && len(Tokenize(text)) == n
		}
	}
	checks := map[Fault]func(int, string, error) bool{
		FaultError: func(_ int, body string, err error) bool {
			return has(`{"error"`)(0, body, err) || has(`"object":"error"`)(0, body, err)
		},
		FaultErrorFirst: tokens(0),
		FaultErrorJSON: func(s int, body string, err error) bool {
			return s == 200 && len(dataEvents(body)) == 0 && strings.Contains(body, "error")
		},
		FaultCut:        func(_ int, _ string, err error) bool { return err != nil },
		FaultBusy:       func(s int, _ string, _ error) bool { return s == 503 },
		FaultShort:      tokens(4),
		FaultWrongModel: has("another-model"),
		FaultNoUsage:    lacks("completion_tokens"),
		FaultUsage:      has(`"completion_tokens":9`),
		FaultCached:     has(`"cached_tokens":1`),
		FaultNoFinish:   lacks(`"finish_reason":"length"`),
		FaultNoDone:     lacks("[DONE]"),
		FaultEmpty:      tokens(0),
		FaultBuffered:   tokens(8),
		FaultPromptTokens: func(_ int, body string, err error) bool {
			return has(`"prompt_tokens":2`)(0, body, err)
		},
		FaultMalformed: func(_ int, body string, err error) bool {
			return err == nil && slices.ContainsFunc(dataEvents(body), func(e string) bool { return e != "[DONE]" && !json.Valid([]byte(e)) })
		},
	}
	const ask = `{"model":"m","prompt":"one two three","max_tokens":8,"stream":true,"stream_options":{"include_usage":true}}`
	for _, f := range faults {
		if f == FaultHang {
			continue // TestHang
		}
		for _, d := range Dialects {
			p := params(d)
			p.FailEvery, p.FailKind = 2, f
			hs := start(t, p)
			if s, body, err := post(t, hs, "/v1/completions", ask); s != 200 || err != nil || !tokens(8)(s, body, err) || !has("[DONE]")(s, body, err) {
				t.Errorf("%s %s: the first request should be good: %d %v %s", d, f, s, err, body)
			}
			if s, body, err := post(t, hs, "/v1/completions", ask); !checks[f](s, body, err) {
				t.Errorf("%s %s: %d %v\n%s", d, f, s, err, body)
			}
		}
	}
}

// A hung stream sends what came before, then nothing, while /health may go on saying yes.
func TestHang(t *testing.T) {
	p := params("vllm")
	p.FailEvery, p.FailKind, p.HealthLies = 1, FaultHang, true
	hs := start(t, p)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, "POST", hs.URL+"/v1/completions", strings.NewReader(`{"model":"m","prompt":"x","max_tokens":8,"stream":true}`))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	in := bufio.NewReader(resp.Body)
	for n := 0; n < 4; {
		line, err := in.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(line, "data: ") {
			n++
		}
	}
	health, err := http.Get(hs.URL + "/health")
	if err != nil || health.StatusCode != 200 {
		t.Errorf("health: %v %v", health, err)
	}
	health.Body.Close()
	cancel()
	if rest, err := io.ReadAll(in); err == nil {
		t.Errorf("the stream ended by itself with %q", rest)
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestLimits(t *testing.T) {
	long := strings.Repeat("a ", 600)
	for _, c := range []struct {
		dialect, prompt string
		max, status     int
		tokens          int
	}{
		{"vllm", "x", 600, 200, 511}, {"llamacpp", "x", 600, 200, 511}, {"vllmcpp", "x", 600, 200, 511}, {"sglang", "x", 600, 400, 0},
		{"vllm", long, 4, 400, 0}, {"llamacpp", long, 4, 400, 0}, {"sglang", long, 4, 400, 0}, {"vllm", "x", 0, 400, 0}, {"vllm", "", 4, 400, 0},
	} {
		status, body, err := post(t, start(t, params(c.dialect)), "/v1/completions", fmt.Sprintf(`{"model":"m","prompt":%q,"max_tokens":%d}`, c.prompt, c.max))
		if err != nil || status != c.status || c.tokens > 0 && !strings.Contains(body, fmt.Sprintf(`"completion_tokens":%d`, c.tokens)) {
			t.Errorf("%+v: %d %.200s %v", c, status, body, err)
		}
	}
	// An array of ids kills vllm.cpp's engine and leaves its health (engines.md B9).
	hs := start(t, params("vllmcpp"))
	for _, prompt := range []string{"[1,2]", `"x"`} {
		if status, _, _ := post(t, hs, "/v1/completions", `{"model":"m","prompt":`+prompt+`,"max_tokens":4}`); status != 500 {
			t.Errorf("prompt %s: %d", prompt, status)
		}
	}
	for _, bad := range []string{"", "{", "[]", "null", `{"prompt":{}}`, `{"prompt":"x","max_tokens":"y"}`, "\x00"} {
		if status, body, err := post(t, start(t, params("vllm")), "/v1/completions", bad); status != 400 || err != nil {
			t.Errorf("%q: %d %s %v", bad, status, body, err)
		}
	}
}

// Equal seed, load and requests give equal times.
func TestPaceDeterministic(t *testing.T) {
	times := func(load string) []time.Duration {
		p := params("vllm")
		p.TTFT, p.ITL, p.Jitter, p.Seed, p.LoadID = 50*time.Millisecond, 20*time.Millisecond, 0.2, 7, load
		s := New(p)
		s.running.Add(1)
		pc := &pace{s: s, r: &request{}, rng: s.rng(3)}
		var out []time.Duration
		for i := range 5 {
			out = append(out, pc.next(i == 0))
		}
		return out
	}
	if diff := cmp.Diff(times("a"), times("a")); diff != "" {
		t.Error(diff)
	}
	if cmp.Equal(times("a"), times("b")) {
		t.Error("two loads have the same jitter")
	}
}

func TestPaceTruth(t *testing.T) {
	p := params("vllm")
	p.TTFT, p.ITL, p.BatchSlow, p.Speed, p.PromptCost = 50*time.Millisecond, 20*time.Millisecond, 0.5, 2, 10*time.Millisecond
	s := New(p)
	s.running.Add(3)
	pc := &pace{s: s, r: &request{prompt: []int{1, 2}}, rng: s.rng(1)}
	if got := []time.Duration{pc.next(true), pc.next(false), pc.next(false)}; !slices.Equal(got, []time.Duration{35e6, 55e6, 75e6}) {
		t.Errorf("got %v", got)
	}
}

func TestLoadSpeed(t *testing.T) {
	c, bad := Parse(map[string]string{"load_states": "1:0.5,0.9:0.5", "drift": "-0.01", "carry_over": "-0.1", "carry_file": "x", "seed": "3"})
	if len(bad) > 0 {
		t.Fatal(bad)
	}
	n := map[float64]int{}
	for i := range 200 {
		n[c.LoadSpeed(fmt.Sprint("load-", i), 0, false)]++
	}
	if len(n) != 2 || n[1] < 70 || n[0.9] < 70 {
		t.Errorf("states: %v", n)
	}
	a, b := c.LoadSpeed("l", 0, false), c.LoadSpeed("l", 5, true)
	if got := b / a; got < 0.8549 || got > 0.8551 {
		t.Errorf("drift and carry-over: %v", got)
	}
}

func TestParse(t *testing.T) {
	for k, v := range map[string]string{"dialect": "nope", "itl": "-1s", "ttft": "x", "jitter": "NaN", "load_states": "1:0.5", "fail_kind": "x",
		"opens": "gguf", "tokens_per_chunk": "0", "seed": "-1", "nonsense": "1", "fail_every": "3", "fail_loads": "x", "batch_step": "maybe", "carry_over": "0.1"} {
		if _, bad := Parse(map[string]string{k: v}); len(bad) != 1 {
			t.Errorf("%s=%s: %v", k, v, bad)
		}
	}
	if _, bad := Parse(map[string]string{"itl": "x", "ttft": "y"}); len(bad) != 2 {
		t.Errorf("not every problem is reported: %v", bad)
	}
	for _, f := range Fields() {
		if f.Default != "" {
			if _, bad := Parse(map[string]string{f.Name: f.Default}); len(bad) > 0 {
				t.Errorf("the default of %s is not accepted: %v", f.Name, bad)
			}
		}
		if f.Help == "" {
			t.Errorf("%s has no help", f.Name)
		}
	}
	if d, bad := Parse(nil); len(bad) > 0 || !cmp.Equal(d, Default()) {
		t.Errorf("no settings are not the defaults: %+v %v", d, bad)
	}
}

// A fault may be one of some loads alone, as an engine's may be that recovers.
func TestFailLoads(t *testing.T) {
	for loads, want := range map[string]bool{"": true, "-s00-,-s02-": true, "-s01-": false} {
		settings := map[string]string{"fail_every": "1", "fail_kind": "cut"}
		if loads != "" {
			settings["fail_loads"] = loads
		}
		c, bad := Parse(settings)
		if p := (Params{Config: c, LoadID: "0012-g0-0-s02-b04-b"}); len(bad) > 0 || p.fails() != want {
			t.Errorf("fail_loads %q: %v, the load fails: %v", loads, bad, p.fails())
		}
	}
}

func TestTokenize(t *testing.T) {
	for s, n := range map[string]int{"": 0, "the cat in an old": 5, " the": 1, "a  b": 3, "ü": 2, "3 × 4.\n": 7} {
		if got := Tokenize(s); len(got) != n {
			t.Errorf("%q has %d tokens: %v", s, len(got), got)
		}
	}
}

func TestRun(t *testing.T) {
	p := params("llamacpp")
	p.ExitLoad = true
	var out bytes.Buffer
	if err := New(p).Run(t.Context(), "127.0.0.1:0", &out); err != ErrLoad || !strings.Contains(out.String(), "SIMULATED") {
		t.Errorf("%v, log %q", err, out.String())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := New(params("vllm")).Run(ctx, "127.0.0.1:0", io.Discard); err != nil {
		t.Error(err)
	}
	if err := New(params("vllm")).Run(t.Context(), "256.0.0.1:0", io.Discard); err == nil {
		t.Error("an address that is none is listened on")
	}
}

func FuzzRequest(f *testing.F) {
	for _, s := range []string{`{"prompt":"x"}`, `{"prompt":[1],"stream":true}`, `{"messages":[{"content":"x"}]}`, `{`, `null`} {
		f.Add(s, "/v1/completions")
		f.Add(s, "/generate")
	}
	servers := map[string]*Server{}
	for _, d := range Dialects {
		p := params(d)
		p.Context = 32
		servers[d] = New(p)
	}
	f.Fuzz(func(t *testing.T, body, path string) {
		if !strings.HasPrefix(path, "/") {
			return
		}
		for _, s := range servers {
			s.dead.Store(false)
			hr := httptest.NewRequest("POST", "/x", strings.NewReader(body))
			hr.URL.Path = path
			w := httptest.NewRecorder()
			s.ServeHTTP(w, hr)
			if w.Code < 200 || w.Code > 599 {
				t.Errorf("status %d", w.Code)
			}
		}
	})
}

// BenchmarkEvent is the cost of one streamed event, which the client under test pays for on the same cores.
func BenchmarkEvent(b *testing.B) {
	s := New(params("vllm"))
	r := &request{promptTokens: 9, prompt: []int{1}, model: "m", id: "cmpl-1"}
	e := &events{w: httptest.NewRecorder(), r: r}
	for b.Loop() {
		e.w = discard{}
		e.send(s.shape.chunk(r, s.shape.choice(r, content{text: " word", ids: []int{7}}), s.shape.usage(r, 3)))
	}
}

type discard struct{ http.ResponseWriter }

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// BenchmarkLateness is how late tokens are against their absolute times, at 16 streams of 50 tokens a second.
func BenchmarkLateness(b *testing.B) {
	var a alarm
	for b.Loop() {
		late := make(chan time.Duration, 16*50)
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				at := now() + time.Duration(i)*time.Millisecond
				for range 50 {
					at += 20 * time.Millisecond
					if err := a.wait(b.Context(), at); err != nil {
						b.Error(err)
						return
					}
					late <- now() - at
				}
			})
		}
		wg.Wait()
		close(late)
		var all []time.Duration
		for d := range late {
			all = append(all, d)
		}
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50_us")
		b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99_us")
	}
}
