package stopwatch

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"enginebroker/matrix"
)

// script answers one request on a raw connection; returning false closes it.
type script func(c net.Conn, n int, body string) bool

// serve runs a server of our own on loopback that answers every request by the script, and returns its dialect.
func serve(t testing.TB, s script) matrix.Dialect {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var requests int
	open := map[net.Conn]bool{}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[c] = true
			mu.Unlock()
			all.Go(func() {
				defer c.Close()
				r := bufio.NewReader(c)
				for {
					q, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					body, err := io.ReadAll(q.Body)
					if err != nil {
						return
					}
					mu.Lock()
					n := requests
					requests++
					mu.Unlock()
					if !s(c, n, string(body)) {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for c := range open {
			c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	return matrix.Dialect{BaseURL: "http://" + l.Addr().String(), Path: "/v1/completions", ChatPath: "/v1/chat/completions", Form: "openai", Model: "toy",
		EchoesModel: true, PromptForm: "text", MaxTokensField: "max_tokens", End: "done", Usage: "own_chunk"}
}

// toyPoint is a point with limits that a test outlives.
func toyPoint(concurrency int) matrix.Point {
	return matrix.Point{ID: "toy", Endpoint: "completions", OutputTokens: 4, IgnoreEOS: true, Concurrency: concurrency,
		IdleLimit: 10 * time.Second, TotalLimit: 20 * time.Second}
}

func prompts(n int) []Prompt {
	out := make([]Prompt, n)
	for i := range out {
		out[i] = Prompt{ID: fmt.Sprintf("p%d", i), Text: "a tide", Tokens: matrix.Some(int64(2))}
	}
	return out
}

const sseHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

func chunked(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }

func tokenEvent(text string) string {
	return fmt.Sprintf(`data: {"model":"toy","choices":[{"index":0,"text":%q,"finish_reason":null}]}`+"\n\n", text)
}

const (
	finishEvent = `data: {"model":"toy","choices":[{"index":0,"text":"","finish_reason":"length"}]}` + "\n\n"
	usageEvent  = `data: {"model":"toy","choices":[],"usage":{"prompt_tokens":2,"completion_tokens":4,"total_tokens":6}}` + "\n\n"
	doneEvent   = "data: [DONE]\n\n"
)

// goodBody is a whole answer of four tokens, one chunk per event.
func goodBody() string {
	var b strings.Builder
	for _, w := range []string{"two", " small", " boats", " drift"} {
		b.WriteString(chunked(tokenEvent(w)))
	}
	for _, e := range []string{finishEvent, usageEvent, doneEvent} {
		b.WriteString(chunked(e))
	}
	return b.String() + "0\r\n\r\n"
}

// send writes and ignores that the client may have gone.
func send(c net.Conn, s string) bool {
	_, err := io.WriteString(c, s)
	return err == nil
}

func good(c net.Conn, _ int, _ string) bool { return send(c, sseHead+goodBody()) }

type atomicMax struct{ v atomic.Int64 }

func (a *atomicMax) add(n int64) int64 { return a.v.Add(n) }

func (a *atomicMax) max(n int64) {
	for old := a.v.Load(); n > old && !a.v.CompareAndSwap(old, n); old = a.v.Load() {
	}
}
