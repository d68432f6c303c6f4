// Command fake answers like vllm.cpp's server of July 2026 (d85906ae), or, called server-newer, like its later source. It
// misbehaves as FAKE_MODE says: fatal, wrong_model, hangs, caches, drafts, clips, dies (after six generations, while
// /health stays 200).
package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
)

const usage = `usage: server --model <dir> [--host H] [--port P] [--tokenizer-config F]
               [--served-model-name N] [--block-size N] [--num-blocks N] [--max-model-len N]
               [--max-num-seqs N] [--max-num-batched-tokens N]
               [--[no-]enable-prefix-caching]
               [--scheduling-policy fcfs|priority]
`

func main() {
	newer := strings.HasSuffix(os.Args[0], "-newer")
	args := map[string]string{}
	for i, a := range os.Args {
		if strings.HasPrefix(a, "-") && i+1 < len(os.Args) {
			args[a] = os.Args[i+1]
		}
		switch {
		case a == "--help":
			fmt.Fprint(os.Stderr, usage)
			if newer {
				fmt.Fprint(os.Stderr, "  --version\n  --speculative-config JSON\n  --generation-config auto|vllm|<dir>\n  --kv-cache-dtype T\n  --device D\n")
			}
			return
		case a == "--version" && newer:
			fmt.Println("vllm.cpp 0.0.1+cuda c-abi=26")
			return
		}
	}
	mode := os.Getenv("FAKE_MODE")
	fmt.Println("server: loading model from " + args["--model"])
	if mode == "fatal" {
		fmt.Println("server: fatal: vt: qwen3_5 gguf: unexpected architecture 'qwen3' at gguf.cpp:573")
		os.Exit(1)
	}
	if mode != "caches" {
		fmt.Println("server: prefix caching disabled")
	} else {
		fmt.Println("server: prefix caching enabled")
	}
	name := args["--served-model-name"]
	if mode == "wrong_model" {
		name = "another"
	}
	var generated atomic.Int64
	reply := func(w http.ResponseWriter, status int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v)
	}
	fail := func(w http.ResponseWriter, status int, message string) {
		reply(w, status, map[string]any{"error": map[string]any{"code": status, "message": message}})
	}
	http.HandleFunc("/health", func(http.ResponseWriter, *http.Request) {})
	http.HandleFunc("/version", func(w http.ResponseWriter, _ *http.Request) { reply(w, 200, map[string]any{"version": "0.0.1"}) })
	http.HandleFunc("/v1/models", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, 200, map[string]any{"object": "list", "data": []any{map[string]any{"id": name, "owned_by": "vllm"}}})
	})
	http.HandleFunc("/v1/completions", func(w http.ResponseWriter, r *http.Request) {
		if mode == "hangs" {
			<-r.Context().Done()
			return
		}
		var q struct {
			Model  string
			Prompt any
			Max    int `json:"max_tokens"`
		}
		_ = json.NewDecoder(r.Body).Decode(&q)
		text, isText := q.Prompt.(string)
		switch {
		case q.Model != name:
			fail(w, 404, "The model `"+q.Model+"` does not exist.")
		case !isText || mode == "dies" && generated.Add(1) > 4:
			fail(w, 500, "EngineCore encountered an issue. [request submitted to a stopped AsyncLLM]")
		default:
			reply(w, 200, map[string]any{"model": q.Model, "choices": []any{map[string]any{"text": "words", "finish_reason": "length"}},
				"usage": map[string]any{"prompt_tokens": len(text), "completion_tokens": q.Max}})
		}
	})
	if newer {
		http.HandleFunc("/tokenize", func(w http.ResponseWriter, r *http.Request) {
			limit, _ := strconv.Atoi(args["--max-model-len"])
			if mode == "clips" {
				limit /= 2
			}
			var q struct{ Prompt string }
			_ = json.NewDecoder(r.Body).Decode(&q)
			reply(w, 200, map[string]any{"tokens": make([]int, len(q.Prompt)), "count": len(q.Prompt), "max_model_len": limit})
		})
		http.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name=\"x\"} 0\n# TYPE vllm:prefix_cache_hits_total counter\nvllm:prefix_cache_hits_total{model_name=\"x\"} 0\n")
			if mode == "drafts" || args["--speculative-config"] != "" {
				fmt.Fprint(w, "# TYPE vllm:spec_decode_num_drafts_total counter\nvllm:spec_decode_num_drafts_total 0\n")
			}
		})
	}
	fmt.Printf("server: listening on http://%s:%s (model '%s', HTTP worker pool 8 fixed)\n", args["--host"], args["--port"], name)
	fmt.Println(http.ListenAndServe(args["--host"]+":"+args["--port"], nil))
	os.Exit(1)
}
