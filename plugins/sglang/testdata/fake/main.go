// Command fake answers like an SGLang server, from captured answers, and misbehaves as FAKE_MODE says: exit, hangs, wrong_model,
// other_weights, other_engine, caches, counts_hits, uncounted, radix_on, drafts, clips, bfloat16, sleeps, no_ids. The file data
// beside it says where the answers lie.
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
	"sync/atomic"
	"syscall"
)

func main() {
	exe, _ := os.Executable()
	data, err := os.ReadFile(filepath.Join(filepath.Dir(exe), "data"))
	fatal(err)
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(data)), name))
		fatal(err)
		return b
	}
	if len(os.Args) < 4 || os.Args[1] != "-m" || os.Args[2] != "sglang.launch_server" {
		fmt.Fprintln(os.Stderr, "No module named that")
		os.Exit(1)
	}
	if os.Args[3] == "--help" {
		os.Stdout.Write(read("help.txt"))
		return
	}
	args, mode := map[string]string{}, os.Getenv("FAKE_MODE")
	for i, a := range os.Args {
		if strings.HasPrefix(a, "--") && i+1 < len(os.Args) {
			args[a] = os.Args[i+1]
		}
	}
	os.Stderr.Write(read("load.log"))
	if mode == "exit" {
		fmt.Fprintln(os.Stderr, "[2026-12-01 14:01:54] Scheduler hit an exception: Traceback (most recent call last):\nRuntimeError: Not enough memory. Please try to increase --mem-fraction-static.")
		for range 300 {
			fmt.Fprintln(os.Stderr, "  File \"scheduler.py\", line 1, in frame")
		}
		fmt.Fprintln(os.Stderr, "[2026-12-01 14:01:55] Received sigquit from a child process. It usually means the child failed.")
		os.Exit(137)
	}
	number := func(name string) int { n, _ := strconv.Atoi(args[name]); return n }
	name, context, path := args["--served-model-name"], number("--context-length"), args["--model-path"]
	switch mode {
	case "wrong_model":
		name = "another"
	case "other_weights":
		path = "/somewhere/else"
	case "clips":
		context /= 2
	}
	var info, models, model map[string]any
	fatal(json.Unmarshal(read("server_info.json"), &info))
	fatal(json.Unmarshal(read("models.json"), &models))
	fatal(json.Unmarshal(read("model_info.json"), &model))
	for k, v := range map[string]any{"model_path": path, "served_model_name": name, "dtype": args["--dtype"], "max_running_requests": number("--max-running-requests"),
		"max_total_num_tokens": number("--max-total-tokens"), "max_req_input_len": context - 6, "internal_states": []any{}} {
		info[k] = v
	}
	model["model_path"] = path
	switch mode {
	case "bfloat16":
		info["dtype"] = "bfloat16"
	case "radix_on":
		info["disable_radix_cache"] = false
	case "drafts":
		info["speculative_algorithm"] = "NGRAM"
	case "sleeps":
		info["sleep_on_idle"] = true
	}
	card := models["data"].([]any)[0].(map[string]any)
	card["id"], card["root"], card["max_model_len"] = name, name, context
	if mode == "other_engine" {
		card["owned_by"] = "vllm"
	}
	reply := func(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }
	answer := func(path string, v any) {
		http.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { reply(w, v) })
	}
	answer("/v1/models", models)
	answer("/server_info", info)
	answer("/model_info", model)
	var hits atomic.Int64
	metrics := string(read("metrics.txt"))
	http.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		text := metrics
		switch mode {
		case "counts_hits":
			text += fmt.Sprintf("# TYPE sglang:cached_tokens_total counter\nsglang:cached_tokens_total %d\n", hits.Add(16))
		case "uncounted":
			text = "# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs 0\n"
		}
		fmt.Fprint(w, text)
	})
	http.HandleFunc("/tokenize", func(w http.ResponseWriter, r *http.Request) {
		var q struct{ Prompt string }
		_ = json.NewDecoder(r.Body).Decode(&q)
		reply(w, map[string]any{"tokens": make([]int, len(q.Prompt))})
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
		n := 0
		switch p := q.Prompt.(type) {
		case string:
			n = len(p)
		case []any:
			n = len(p)
		}
		usage := map[string]any{"prompt_tokens": n, "completion_tokens": q.Max, "prompt_tokens_details": map[string]any{"cached_tokens": 0}}
		switch mode {
		case "caches":
			usage["prompt_tokens_details"] = map[string]any{"cached_tokens": n - 1}
		case "counts_hits", "uncounted":
			usage["prompt_tokens_details"] = nil
		}
		choice := map[string]any{"text": "words", "finish_reason": "length", "token_ids": make([]int, q.Max)}
		if mode == "no_ids" {
			delete(choice, "token_ids")
		}
		reply(w, map[string]any{"model": q.Model, "usage": usage, "choices": []any{choice}})
	})
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	go func() { fmt.Fprintln(os.Stderr, http.ListenAndServe(args["--host"]+":"+args["--port"], nil)) }()
	<-term
}

func fatal(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "fake:", err)
		os.Exit(3)
	}
}
