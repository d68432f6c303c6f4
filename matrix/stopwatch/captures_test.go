package stopwatch

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"enginebroker/matrix"
)

// recorded makes a recording of one answer, cut every size bytes, the segments 1 ms apart.
func recorded(wire []byte, size int, ending Ending) *Recording {
	x := Exchange{Prompt: "p", Ending: ending, Wire: [][]byte{wire}}
	for at := 0; at < len(wire); at += size {
		x.End = int64(len(x.Segments)+1) * 1e6
		x.Segments = append(x.Segments, Segment{At: x.End, Lag: -1, Bytes: min(size, len(wire)-at)})
	}
	return &Recording{Planned: 1, End: x.End, CPU: -1, Exchanges: []Exchange{x}}
}

// Real answers of the four servers (testdata/captures). Each reads the same whatever the segmentation.
func TestCaptures(t *testing.T) {
	sources := func(names ...string) (out []matrix.TokenSource) {
		for _, n := range names {
			name, kind, _ := strings.Cut(n, "=")
			out = append(out, matrix.TokenSource{Name: name, Kind: matrix.CountKind(kind)})
		}
		return out
	}
	vllm := matrix.Dialect{Form: "openai", Model: "tiny-qwen3", EchoesModel: true, End: "done", Sources: sources("usage=exact")}
	ids := vllm
	ids.RunningUsage, ids.Sources = true, sources("usage=exact", "running_usage=cumulative", "token_ids=exact")
	ours := matrix.Dialect{Form: "openai", Model: "gate", EchoesModel: true, End: "done", Sources: sources("usage=exact")}
	oursRunning := ours
	oursRunning.RunningUsage, oursRunning.Sources = true, sources("usage=exact", "running_usage=cumulative")
	llama := matrix.Dialect{Form: "openai", Model: "MODELS/tiny-qwen3-bf16.gguf", EchoesModel: true, End: "done", Sources: sources("usage=exact", "timings=cumulative")}
	native := matrix.Dialect{Form: "llamacpp_native", End: "stop_true", Sources: sources("tokens_predicted=cumulative", "token_ids=lossy")}
	sglang := matrix.Dialect{Form: "openai", Model: "tiny-qwen3", End: "done", Sources: sources("usage=exact")}
	running := sglang
	running.RunningUsage, running.Sources = true, sources("usage=exact", "running_usage=cumulative", "token_ids=exact")
	generate := matrix.Dialect{Form: "sglang_native", End: "done", Cumulative: true, RunningUsage: true, Sources: sources("running_usage=cumulative", "token_ids=cumulative")}
	const text = `0l0lE andrEEEE0M2EW`

	for _, c := range []struct {
		file    string
		d       matrix.Dialect
		tokens  int
		ignore  bool
		ending  Ending
		outcome matrix.Outcome
		reasons string
		flags   string
		events  int
		output  int    // events with output
		count   int64  // completion tokens, -1: none
		prompt  int64  // prompt tokens, -1: none
		first   int64  // tokens of the first token event, -1: none
		counts  string // every source
		finish  string
		text    string // how it begins
	}{
		{"vllm/completions-stream", vllm, 16, true, 0, "ok", "", "", 18, 16, 16, 11, -1, "usage/exact=16", "length", text},
		{"vllm/completions-stream-continuous-ids", ids, 16, true, 0, "ok", "", "", 18, 16, 16, 11, 1, "usage/exact=16 token_ids/exact=16 running_usage/cumulative=16", "length", text},
		{"vllm/completions-stream-nousage", vllm, 8, true, 0, "suspect", "no_usage", "no_usage", 9, 8, -1, -1, -1, "", "length", text[:8]},
		{"vllm/chat-stream", vllm, 16, true, 0, "ok", "", "", 19, 16, 16, 27, -1, "usage/exact=16", "length", ""},
		{"vllm/engine-killed-midstream", vllm, 64, true, 0, "failed", "inband_error", "no_usage", 5, 3, -1, -1, -1, "", "", "0l0"},
		{"vllm/over-context", vllm, 600, false, 0, "failed", "http_status", "", 0, 0, -1, -1, -1, "", "", ""},
		{"vllm/sum-over-context", vllm, 505, true, 0, "failed", "not_event_stream", "", 0, 0, -1, -1, -1, "", "", ""},
		{"vllmcpp/completions-stream", ours, 32, true, 0, "ok", "", "", 31, 29, 32, 11, -1, "usage/exact=32", "length", text},
		{"vllmcpp/completions-stream-continuous", oursRunning, 16, true, 0, "ok", "", "", 17, 15, 16, 11, 1, "usage/exact=16 running_usage/cumulative=16", "length", text},
		{"vllmcpp/chat-stream", ours, 16, true, 0, "ok", "", "", 19, 16, 16, 19, -1, "usage/exact=16", "length", "thandN"},
		{"vllmcpp/stream-after-engine-death", ours, 16, true, 0, "failed", "http_status", "", 0, 0, -1, -1, -1, "", "", ""},
		{"vllmcpp/token-array-kills-engine", ours, 16, true, 0, "failed", "http_status", "", 0, 0, -1, -1, -1, "", "", ""},
		{"llamacpp/completions-stream", llama, 32, true, 0, "ok", "", "cached_prompt_tokens", 34, 32, 32, 11, -1, "usage/exact=32 timings/cumulative=32", "length", text},
		{"llamacpp/completions-stream-timings", llama, 16, true, 0, "ok", "", "cached_prompt_tokens", 18, 16, 16, 11, 1, "usage/exact=16 timings/cumulative=16", "length", text},
		{"llamacpp/chat-stream", llama, 16, true, 0, "ok", "", "", 20, 16, 16, 19, -1, "usage/exact=16 timings/cumulative=16", "length", ""},
		{"llamacpp/native-stream", native, 8, true, 0, "ok", "", "", 9, 8, 8, 4, 1, "usage/exact=8 token_ids/lossy=8 tokens_predicted/cumulative=8", "limit", "3ingring3D>M"},
		{"llamacpp/prompt-too-long", llama, 16, true, 0, "failed", "http_status", "", 0, 0, -1, -1, -1, "", "", ""},
		{"sglang/completions-stream", sglang, 16, true, 0, "ok", "", "", 16, 14, 16, 11, -1, "usage/exact=16", "length", text},
		{"sglang/completions-stream-nousage", sglang, 4, true, 0, "suspect", "no_usage", "no_usage", 5, 4, -1, -1, -1, "", "length", ""},
		{"sglang/stream-continuous-usage", running, 6, true, 0, "ok", "", "", 6, 4, 6, 11, 1, "usage/exact=6 running_usage/cumulative=6", "length", "0l0lE and"},
		{"sglang/stream-return-token-ids", running, 4, true, 0, "ok", "", "", 6, 4, 4, 11, 1, "usage/exact=4 token_ids/exact=4", "length", "0l0l"},
		{"sglang/stream-eos-stop", sglang, 64, false, 0, "ok", "", "", 15, 12, 14, 11, -1, "usage/exact=14", "stop", text[:14]},
		{"sglang/chat-stream", sglang, 16, true, 0, "ok", "", "", 19, 15, 16, 27, -1, "usage/exact=16", "length", ""},
		{"sglang/wrong-model-stream", sglang, 4, false, 0, "suspect", "no_usage", "no_usage", 5, 4, -1, -1, -1, "", "length", ""},
		{"sglang/native-stream", generate, 16, true, 0, "ok", "", "", 16, 15, 16, 11, 1, "usage/exact=16 token_ids/cumulative=16 running_usage/cumulative=16", "length", text},
		{"sglang/crash-midstream", sglang, 4000, true, EndEarly, "failed", "truncated_stream", "connection_lost,no_done,no_usage", 161, 161, -1, -1, -1, "", "", text},
		{"sglang/health-starting", sglang, 16, true, 0, "not_ready", "http_status", "", 0, 0, -1, -1, -1, "", "", ""},
		{"sglang/over-context-stream", sglang, 5000, true, 0, "failed", "http_status", "", 0, 0, -1, -1, -1, "", "", ""},
		{"sglang/native-bad", generate, 16, true, 0, "failed", "http_status", "", 0, 0, -1, -1, -1, "", "", ""},
	} {
		t.Run(c.file, func(t *testing.T) {
			wire, err := os.ReadFile(filepath.Join("testdata/captures", c.file+".http"))
			if err != nil {
				t.Fatal(err)
			}
			p := matrix.Point{OutputTokens: c.tokens, IgnoreEOS: c.ignore}
			var before matrix.Request
			for _, size := range []int{len(wire), 1, 7, 1000} {
				q := reduce(recorded(wire, size, c.ending), c.d, p, true)[0]
				var counts []string
				for _, n := range q.Counts {
					counts = append(counts, fmt.Sprintf("%s/%s=%d", n.Source, n.Kind, n.Tokens))
				}
				got := fmt.Sprint(q.Outcome, q.Reasons, streamFlags(q), q.Events, q.TokenEvents, q.CompletionTokens.Or(-1), q.PromptTokens.Or(-1), q.FirstTokens.Or(-1), counts, q.FinishReason)
				want := fmt.Sprint(c.outcome, list(c.reasons), list(c.flags), c.events, c.output, c.count, c.prompt, c.first, strings.Fields(c.counts), c.finish)
				if got != want || !strings.HasPrefix(q.Text, c.text) {
					t.Fatalf("in segments of %d: got %s %q (%s)\nwant %s", size, got, q.Text, q.Error, want)
				}
				var sum, lost int
				for _, e := range q.Stream {
					n, ok := e.Tokens.Get()
					sum += n
					if !ok {
						lost++
					}
				}
				if c.first >= 0 && int64(sum) != c.count {
					t.Errorf("the events' tokens add up to %d, want %d", sum, c.count)
				}
				timeless(&q)
				if size != len(wire) && !reflect.DeepEqual(q, before) {
					t.Errorf("in segments of %d: %+v\nbefore: %+v", size, q, before)
				}
				before = q
			}
		})
	}
}

func list(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

// timeless removes what depends on the segmentation.
func timeless(q *matrix.Request) {
	none := matrix.Opt[int64]{}
	q.FirstByte, q.FirstToken, q.FirstText, q.LastToken, q.Terminal, q.End, q.LagP99 = none, none, none, none, none, none, none
	for i := range q.Stream {
		q.Stream[i].At = 0
	}
}
