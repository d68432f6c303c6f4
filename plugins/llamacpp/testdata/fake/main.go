// Command fake answers like a llama-server, and misbehaves as FAKE_MODE says: exit, loading, wrong_model, router, caches,
// drafts, clips, hangs, no_cached_count. Its --help is the file beside it.
package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	exe, _ := os.Executable()
	args := map[string]string{}
	for i, a := range os.Args {
		if strings.HasPrefix(a, "-") && i+1 < len(os.Args) {
			args[a] = os.Args[i+1]
		}
		switch a {
		case "--help":
			b, err := os.ReadFile(filepath.Join(filepath.Dir(exe), "help.txt"))
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Stdout.Write(b)
			return
		case "--version":
			fmt.Fprintln(os.Stderr, "version: 0.7.0 (build 11669, commit 10bf611)\nbuilt with nothing")
			return
		}
	}
	mode := os.Getenv("FAKE_MODE")
	if mode == "exit" {
		fmt.Fprintln(os.Stderr, "llama_model_load: error loading model: unknown model architecture: 'zzzzz'")
		for range 50 {
			fmt.Fprintln(os.Stderr, "srv: a line that says nothing")
		}
		fmt.Fprintln(os.Stderr, "srv: exiting due to model loading error")
		os.Exit(1)
	}
	ctx, _ := strconv.Atoi(args["--ctx-size"])
	slots, _ := strconv.Atoi(args["--parallel"])
	per := ctx / max(1, slots)
	if mode == "clips" {
		per /= 2
	}
	alias := args["--alias"]
	if mode == "wrong_model" {
		alias = "another"
	}
	reply := func(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }
	http.HandleFunc("/health", func(w http.ResponseWriter, _ *http.Request) {
		if mode == "loading" {
			w.WriteHeader(http.StatusServiceUnavailable)
			reply(w, map[string]any{"error": map[string]any{"message": "Loading model", "code": 503}})
			return
		}
		reply(w, map[string]any{"status": "ok"})
	})
	http.HandleFunc("/v1/models", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, map[string]any{"data": []any{map[string]any{"id": alias}}})
	})
	http.HandleFunc("/props", func(w http.ResponseWriter, _ *http.Request) {
		n := per
		if mode == "router" {
			n = 0
		}
		reply(w, map[string]any{"default_generation_settings": map[string]any{"n_ctx": n}, "total_slots": slots, "model_alias": alias, "model_path": args["--model"],
			"model_ftype": "Q8_0", "build_info": "b11669-10bf611", "chat_template": "t", "is_sleeping": false})
	})
	http.HandleFunc("/slots", func(w http.ResponseWriter, _ *http.Request) {
		var list []any
		for i := range slots {
			list = append(list, map[string]any{"id": i, "n_ctx": per, "speculative": mode == "drafts", "is_processing": false})
		}
		reply(w, list)
	})
	http.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "# TYPE llamacpp:tokens_predicted_total counter\nllamacpp:tokens_predicted_total 4\n# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing 0\n")
	})
	http.HandleFunc("/tokenize", func(w http.ResponseWriter, r *http.Request) {
		var q struct{ Content string }
		_ = json.NewDecoder(r.Body).Decode(&q)
		reply(w, map[string]any{"tokens": make([]int, len(q.Content))})
	})
	http.HandleFunc("/v1/completions", func(w http.ResponseWriter, r *http.Request) {
		if mode == "hangs" {
			<-r.Context().Done()
			return
		}
		var q struct {
			Prompt string
			Max    int `json:"max_tokens"`
		}
		_ = json.NewDecoder(r.Body).Decode(&q)
		cached := 0
		if mode == "caches" {
			cached = len(q.Prompt) - 1
		}
		usage := map[string]any{"prompt_tokens": len(q.Prompt) + 1, "completion_tokens": q.Max, "prompt_tokens_details": map[string]any{"cached_tokens": cached}}
		if mode == "no_cached_count" {
			delete(usage, "prompt_tokens_details")
		}
		reply(w, map[string]any{"model": alias, "choices": []any{map[string]any{"text": "words", "finish_reason": "length"}}, "usage": usage,
			"__verbose": map[string]any{"tokens": make([]int, q.Max)}})
	})
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	go func() { fmt.Fprintln(os.Stderr, http.ListenAndServe(args["--host"]+":"+args["--port"], nil)) }()
	<-term
}
