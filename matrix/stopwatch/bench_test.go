package stopwatch

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"enginebroker/matrix"
)

var (
	benchArrivals = flag.Int("arrivals", 200_000, "arrivals that BenchmarkReduce reads; the target is stated for 10000000")
	benchStreams  = flag.Int("streams", 32, "streams of BenchmarkEndToEnd; the target is stated for 256")
)

// Framer and location of the token in a stream as vLLM sends it, with running usage. Target: 1 000 000 events/s on one
// core, 0 allocs/op.
func BenchmarkFramerAndLocator(b *testing.B) {
	for _, name := range []string{"vllm/completions-stream", "vllm/completions-stream-continuous-ids", "vllmcpp/completions-stream-continuous", "llamacpp/completions-stream-timings", "sglang/completions-stream"} {
		b.Run(name, func(b *testing.B) {
			wire, err := os.ReadFile("testdata/captures/" + name + ".http")
			if err != nil {
				b.Fatal(err)
			}
			body := dechunk(wire, len(wire))
			events := len(frame(body, len(body)))
			r := newReducer(&Recording{}, matrix.Dialect{RunningUsage: true}, matrix.Point{OutputTokens: 1 << 20})
			r.begin(func(matrix.StreamEvent) {})
			b.ReportAllocs()
			b.SetBytes(int64(len(body) / events))
			for i := 0; b.Loop(); i++ {
				if i%events == 0 { // one op is one event
					b.StopTimer()
					r.begin(func(matrix.StreamEvent) {})
					r.r.status, r.r.eventStream = 200, true
					b.StartTimer()
					r.payload(1, body)
				}
			}
			if st := &r.stream; st.malformed >= 0 || st.tokenEvents == 0 { // a parser that gives up is fast
				b.Fatalf("event at byte %d is malformed, %d token events", st.malformed, st.tokenEvents)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// endless writes a recording of n arrivals in one stream without holding it.
func endless(w io.Writer, n int) error {
	event := []byte(chunked(`data: {"id":"cmpl-96e00d65798e0d11","object":"text_completion","created":1796132489,"model":"toy","choices":[{"index":0,"text":" and","logprobs":null,"finish_reason":null}],"usage":null}` + "\n\n"))
	tail := []byte(chunked(finishEvent) + chunked(fmt.Sprintf(`data: {"choices":[],"usage":{"completion_tokens":%d}}`+"\n\n", n)) + chunked(doneEvent) + "0\r\n\r\n")
	rec := Recording{Planned: 1, CPU: -1, Exchanges: []Exchange{{Wire: [][]byte{nil}}}}
	var head bytes.Buffer
	if _, err := rec.WriteTo(&head); err != nil {
		return err
	}
	head.Truncate(head.Len() - 1) // the number of segments, 0 in that recording
	e := &encoder{w: newWriter(w)}
	e.write(head.Bytes())
	e.u(int64(n) + 2)
	segment := func(b []byte) {
		e.u(20_000)
		e.u(40_001)
		e.u(int64(len(b)))
		e.write(b)
	}
	segment([]byte(sseHead))
	for range n {
		segment(event)
	}
	segment(tail)
	return e.w.Flush()
}

// Reading a recording and reducing it. Target: 10 000 000 arrivals in at most 10 s and 256 MiB, whatever the length of a
// stream: go test -bench Reduce -benchtime 1x -arrivals 10000000.
func BenchmarkReduce(b *testing.B) {
	b.ReportAllocs()
	var before, after runtime.MemStats
	for b.Loop() {
		runtime.GC()
		runtime.ReadMemStats(&before)
		pr, pw := io.Pipe()
		go func() { pw.CloseWithError(endless(pw, *benchArrivals)) }()
		rd, err := NewReader(pr)
		if err != nil {
			b.Fatal(err)
		}
		events := 0
		for q, err := range Requests(rd, matrix.Dialect{}, matrix.Point{OutputTokens: *benchArrivals}, func(matrix.StreamEvent) { events++ }) {
			if err != nil {
				b.Fatal(err)
			}
			if q.Outcome != matrix.OutcomeOK {
				b.Fatalf("%s %v %s", q.Outcome, q.Reasons, q.Error)
			}
		}
		runtime.ReadMemStats(&after)
	}
	b.ReportMetric(float64(*benchArrivals)*float64(b.N)/b.Elapsed().Seconds(), "arrivals/s")
	b.ReportMetric(float64(after.Sys)/(1<<20), "MiB-from-OS")
}

// The client against a loopback server of this process: streams at 50 events/s each, a second per pass. It prints the CPU
// of the whole process per event, so the server's part is in it, and the reader's lag behind the kernel. Target for 256
// streams: 20 µs CPU per event of the client, p50 lag 0.3 ms.
func BenchmarkEndToEnd(b *testing.B) {
	const events = 50
	d := serve(b, func(c net.Conn, _ int, _ string) bool {
		if !send(c, sseHead) {
			return false
		}
		start := time.Now()
		one := chunked(tokenEvent(" and"))
		for i := range events {
			time.Sleep(time.Until(start.Add(time.Duration(i+1) * 20 * time.Millisecond)))
			if !send(c, one) {
				return false
			}
		}
		return send(c, chunked(finishEvent)+chunked(fmt.Sprintf(`data: {"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":%d}}`+"\n\n", events))+chunked(doneEvent)+"0\r\n\r\n")
	})
	d.EchoesModel = false
	p := toyPoint(*benchStreams)
	p.OutputTokens = events
	c, err := Open(b.Context(), d, p.Concurrency)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	var cost matrix.ClientCost
	for b.Loop() {
		rec, err := c.Run(b.Context(), Job{Dialect: d, Point: p, Prompts: prompts(p.Concurrency)})
		if err != nil {
			b.Fatal(err)
		}
		reqs := Reduce(rec, d, p)
		for _, q := range reqs {
			if q.Outcome != matrix.OutcomeOK {
				b.Fatalf("%s %v %s", q.Outcome, q.Reasons, q.Error)
			}
		}
		cost = rec.Cost(reqs)
	}
	b.ReportMetric(float64(cost.CPUPerEvent.Or(0))/1e3, "µs-cpu/event")
	b.ReportMetric(float64(cost.LagP50.Or(0))/1e3, "µs-lag-p50")
	b.ReportMetric(float64(cost.LagP99.Or(0))/1e3, "µs-lag-p99")
	b.ReportMetric(float64(cost.LatenessP99.Or(0))/1e3, "µs-late-p99")
}

// The receive path alone: the server writes as fast as it can. 0 allocs per event in steady state.
func BenchmarkCapture(b *testing.B) {
	one := []byte(chunked(tokenEvent(" and")))
	n := make(chan int, 1)
	d := serve(b, func(c net.Conn, _ int, _ string) bool {
		if !send(c, sseHead) {
			return false
		}
		for range <-n {
			if _, err := c.Write(one); err != nil { // not send: a string would be copied, and counted here
				return false
			}
		}
		return send(c, chunked(finishEvent)+chunked(usageEvent)+chunked(doneEvent)+"0\r\n\r\n")
	})
	c, err := Open(b.Context(), d, 1)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	p := toyPoint(1)
	b.ReportAllocs()
	const events = 100_000
	p.OutputTokens = events
	for b.Loop() {
		n <- events
		rec, err := c.Run(b.Context(), Job{Dialect: d, Point: p, Prompts: prompts(1)})
		if err != nil || rec.Exchanges[0].Ending != EndClean {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*events)/b.Elapsed().Seconds(), "events/s")
}
