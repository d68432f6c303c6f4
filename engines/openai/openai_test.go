package openai

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"enginebroker/engines"
	"enginebroker/matrix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve answers each path with a fixed status and body.
func serve(t *testing.T, answers map[string]string) *Client {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := answers[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		if code, rest, ok := strings.Cut(body, "|"); ok {
			var status int
			_, _ = fmt.Sscan(code, &status)
			w.WriteHeader(status)
			body = rest
		}
		fmt.Fprint(w, body)
	}))
	c := New(s.URL, nil)
	t.Cleanup(func() {
		c.Close()
		s.Close()
	})
	return c
}

func TestErrorsCarryTheServersWords(t *testing.T) {
	c := serve(t, map[string]string{
		"/openai": `400|{"error":{"message":"too long","type":"x"}}`, "/bare": `500|{"error":"broken"}`, "/flat": `400|{"object":"error","message":"flat words"}`,
		"/detail": `405|{"detail":"Method Not Allowed"}`, "/empty": `404|`, "/text": `502|<html>bad gateway</html>`,
		"/ok-error": `{"error":{"message":"inside a 200"}}`, "/ok-flat": `{"object":"error","message":"flat inside a 200"}`, "/ok-empty": ``, "/ok-text": `words`,
		"/ok": `{"error":null,"value":1}`, "/moved": `307|`,
	})
	for path, want := range map[string]string{
		"/openai": "too long", "/bare": "broken", "/flat": "flat words", "/detail": "Method Not Allowed", "/empty": "empty body", "/text": "bad gateway",
		"/ok-error": "inside a 200", "/ok-flat": "flat inside", "/ok-empty": "empty body", "/ok-text": "not the JSON", "/nowhere": "404", "/moved": "307",
	} {
		var out map[string]any
		if err := c.Get(t.Context(), path, &out); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
	var out struct{ Value int }
	if err := c.Get(t.Context(), "/ok", &out); err != nil || out.Value != 1 {
		t.Errorf("%v %v", out, err)
	}
	if err := c.Get(t.Context(), "/bare", &out); !IsStatus(err, 500) || IsStatus(err, 400) {
		t.Errorf("%v", err)
	}
}

func TestParseCompletion(t *testing.T) {
	real, err := os.ReadFile("testdata/llama-completion.json")
	if err != nil {
		t.Fatal(err)
	}
	a, err := ParseCompletion(real)
	if err != nil || a.Text != "0l0lE andrEEEE0M2EW" || a.CompletionTokens != matrix.Some[int64](16) || a.PromptTokens != matrix.Some[int64](11) || a.CachedTokens != matrix.Some[int64](10) || a.FinishReason != "length" {
		t.Errorf("%+v %v", a, err)
	}
	// N18: null is unknown, not 0.
	a, err = ParseCompletion([]byte(`{"choices":[{"text":"x"}],"usage":{"completion_tokens":1,"prompt_tokens_details":null}}`))
	if err != nil || a.CachedTokens.Present() {
		t.Errorf("%+v %v", a.CachedTokens, err)
	}
	for _, bad := range []string{``, `{}`, `{"choices":[]}`, `{"choices":[{"text":"x"}]}`, `{"choices":[{"text":""}],"usage":{"completion_tokens":0}}`, `{"choices":{}}`} {
		if _, err := ParseCompletion([]byte(bad)); err == nil {
			t.Errorf("%s proves no token", bad)
		}
	}
}

func FuzzParseCompletion(f *testing.F) {
	f.Add([]byte(`{"choices":[{"text":"x","token_ids":[1]}],"usage":{"completion_tokens":1}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if a, err := ParseCompletion(b); err == nil && a.CompletionTokens.Or(0) < 1 {
			t.Errorf("%+v", a)
		}
	})
}

func TestMetrics(t *testing.T) {
	m, err := ParseMetrics([]byte("# TYPE vllm:success counter\nvllm:success{reason=\"length\",model=\"a\"} 3\nvllm:success{reason=\"stop\",model=\"a\"} 4\n# TYPE g gauge\ng 0\n# TYPE h histogram\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		labels []string
		want   matrix.Opt[int64]
	}{
		{"vllm:success", nil, matrix.Some[int64](7)},
		{"vllm:success", []string{"reason", "stop"}, matrix.Some[int64](4)},
		{"vllm:success", []string{"reason", "abort"}, matrix.Opt[int64]{}},
		{"g", nil, matrix.Some[int64](0)}, // a real zero
		{"absent", nil, matrix.Opt[int64]{}},
		{"h", nil, matrix.Opt[int64]{}},
	} {
		if got := m.Count(c.name, c.labels...); got != c.want {
			t.Errorf("%s %v: %v, want %v", c.name, c.labels, got, c.want)
		}
	}
	if !m.Has("g") || m.Has("absent") {
		t.Error("Has")
	}
	if _, err := ParseMetrics([]byte("<html>")); err == nil {
		t.Error("no error for a page")
	}
}

func FuzzParseMetrics(f *testing.F) {
	f.Add([]byte("# TYPE a counter\na{b=\"c\"} 1\n"))
	f.Fuzz(func(_ *testing.T, b []byte) {
		if m, err := ParseMetrics(b); err == nil {
			for name := range m {
				m.Sum(name)
			}
		}
	})
}

func TestPollBacksOffAndKeepsTheLastAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Second, errors.New("limit"))
		defer cancel()
		calls := 0
		err := Poll(ctx, time.Second, func(context.Context) error {
			calls++
			return fmt.Errorf("answer %d", calls)
		})
		if err == nil || !strings.Contains(err.Error(), "limit") || !strings.Contains(err.Error(), fmt.Sprintf("answer %d", calls)) {
			t.Errorf("%v", err)
		}
		if calls < 10 || calls > 30 { // 50 ms growing to 1 s
			t.Errorf("%d calls in 10 s", calls)
		}
		// A call that never returns by itself is asked again.
		hung := 0
		err = Poll(t.Context(), time.Second, func(ctx context.Context) error {
			if hung++; hung == 3 {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		})
		if err != nil || hung != 3 {
			t.Errorf("%d %v", hung, err)
		}
	})
}

func TestReady(t *testing.T) {
	const models, done = `{"data":[{"id":"tiny"}]}`, `{"model":"tiny","choices":[{"text":"x"}],"usage":{"completion_tokens":2}}`
	for _, c := range []struct {
		name    string
		answers map[string]string
		echoes  bool
		code    string
		text    string
	}{
		{"ready", map[string]string{"/v1/models": models, "/v1/completions": done}, true, "", ""},
		{"served name", map[string]string{"/v1/models": `{"data":[{"id":"other"}]}`, "/v1/completions": done}, false, "wrong_model", "other"},
		{"answer of another model", map[string]string{"/v1/models": models, "/v1/completions": strings.Replace(done, "tiny", "other", 1)}, true, "wrong_model", "other"},
		{"health 200, no tokens", map[string]string{"/health": "", "/v1/models": models, "/v1/completions": `500|{"error":{"message":"dead engine"}}`}, false, "", "dead engine"},
		{"200 without a token", map[string]string{"/v1/models": models, "/v1/completions": `{"choices":[{"text":""}],"usage":{"completion_tokens":0}}`}, false, "", "no generated token"},
		{"a request it refuses", map[string]string{"/v1/models": models, "/v1/completions": `400|{"error":{"message":"top_k must be -1"}}`}, false, "not_ready", "top_k must be -1"},
		{"no model yet", map[string]string{"/v1/models": `{"data":[]}`}, false, "", "no model yet"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			_, err := Ready(ctx, serve(t, c.answers), Readiness{Model: "tiny", Prompt: "Hello", Tokens: 2, Echoes: c.echoes})
			f, typed := errors.AsType[*matrix.StartFailure](err)
			switch {
			case c.text == "" && err != nil, c.text != "" && (err == nil || !strings.Contains(err.Error(), c.text)), typed != (c.code != ""), typed && f.Code != c.code:
				t.Errorf("%v", err)
			}
		})
	}
}

func TestCacheProof(t *testing.T) {
	var n atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		cached := "0"
		if n.Add(1) == 2 {
			cached = "30"
		}
		fmt.Fprintf(w, `{"choices":[{"text":"x"}],"usage":{"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":%s}}}`, cached)
	}))
	defer s.Close()
	c := New(s.URL, nil)
	defer c.Close()
	if cached, err := CacheProof(t.Context(), c, "m", "p", nil); err != nil || cached != matrix.Some[int64](30) {
		t.Errorf("%v %v: the second answer counts", cached, err)
	}
}

func TestCheckSettings(t *testing.T) {
	schema := []matrix.Setting{
		{Name: "binary", Type: "path", Required: true, Help: "where it is"}, {Name: "n", Type: "int"}, {Name: "on", Type: "bool"},
		{Name: "for", Type: "duration", Default: "3s"}, {Name: "args", Type: "list"}, {Name: "env", Type: "map"}, {Name: "kind", Type: "string", Values: []string{"a", "b"}},
	}
	var fields []string
	for _, f := range CheckSettings(schema, engines.Settings{"n": "x", "on": "perhaps", "for": "-1s", "args": "[1", "env": "x", "env.": "y", "kind": "c", "typo": "z"}) {
		fields = append(fields, f.Field)
	}
	if want := []string{"args", "binary", "env", "env.", "for", "kind", "n", "on", "typo"}; !slices.Equal(fields, want) {
		t.Errorf("%v", fields)
	}
	s := engines.Settings{"binary": "x", "n": "7", "on": "true", "args": `["--kv","a,b"]`, "env.A": "1", "kind": "a"}
	if f := CheckSettings(schema, s); len(f) > 0 {
		t.Fatalf("%v", f)
	}
	v := NewValues(schema, s)
	if n, _ := v.Int("n").Get(); n != 7 || !v.Bool("on") || v.Duration("for") != 3*time.Second || !slices.Equal(v.List("args"), []string{"--kv", "a,b"}) || v.Map("env")["A"] != "1" || !strings.HasPrefix(v.Path("binary"), "/") {
		t.Errorf("%+v", v)
	}
	if v = NewValues(schema, engines.Settings{"args": "a,b"}); !slices.Equal(v.List("args"), []string{"a", "b"}) || v.Int("n").Present() || v.Path("binary") != "" {
		t.Errorf("%+v", v)
	}
}

func TestCheckURL(t *testing.T) {
	for s, ok := range map[string]bool{"http://127.0.0.1:8080": true, "https://host/": true, "localhost:8080": false, "http://h/v1": false, "": false, "ftp://h": false} {
		if msg := CheckURL(s); (msg == "") != ok {
			t.Errorf("%q: %q", s, msg)
		}
	}
}
