// Command fake answers like a vLLM server, from captured answers, and misbehaves as FAKE_MODE says: exit, hangs, wrong_model,
// other_engine, caches, counts_hits, uncounted, prefix_on, drafts, clips, bfloat16, no_info, hidden. The file data
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
	if len(os.Args) < 3 || os.Args[1] != "serve" {
		fmt.Fprintln(os.Stderr, "vllm serve: error: not serve")
		os.Exit(2)
	}
	if os.Args[2] == "--help=all" {
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
		fmt.Fprintln(os.Stderr, "(EngineCore pid=7) ERROR ValueError: Free memory on device cuda:0 (60.0/119.6 GiB) on startup is less than desired GPU memory utilization (0.92, 110.1 GiB).")
		for range 300 {
			fmt.Fprintln(os.Stderr, "(APIServer)   File \"core.py\", line 1, in frame")
		}
		fmt.Fprintln(os.Stderr, "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}")
		os.Exit(1)
	}
	number := func(name string) int { n, _ := strconv.Atoi(args[name]); return n }
	name, context := args["--served-model-name"], number("--max-model-len")
	switch mode {
	case "wrong_model":
		name = "another"
	case "clips":
		context /= 2
	}
	var info map[string]any
	fatal(json.Unmarshal(read("server_info.json"), &info))
	config := info["vllm_config"].(map[string]any)
	part := func(key string) map[string]any { return config[key].(map[string]any) }
	part("model_config")["dtype"], part("model_config")["max_model_len"] = "torch."+args["--dtype"], context
	part("scheduler_config")["max_num_seqs"] = number("--max-num-seqs")
	switch mode {
	case "bfloat16":
		part("model_config")["dtype"] = "torch.bfloat16"
	case "prefix_on":
		part("cache_config")["enable_prefix_caching"] = true
	case "drafts":
		config["speculative_config"] = map[string]any{"method": "ngram", "num_speculative_tokens": 3}
	}
	var models map[string]any
	fatal(json.Unmarshal(read("models.json"), &models))
	card := models["data"].([]any)[0].(map[string]any)
	card["id"], card["root"], card["max_model_len"] = name, os.Args[2], context
	switch mode {
	case "other_engine":
		card["owned_by"] = "sglang"
	case "hidden":
		card["root"] = "/somewhere/else"
	}
	reply := func(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }
	answer := func(path string, v any) {
		http.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { reply(w, v) })
	}
	answer("/v1/models", models)
	answer("/version", map[string]any{"version": "0.32.0"})
	answer("/is_sleeping", map[string]any{"is_sleeping": false})
	if mode != "no_info" {
		answer("/server_info", info)
	}
	var hits atomic.Int64
	metrics := string(read("metrics.txt"))
	http.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		text := metrics
		switch mode {
		case "counts_hits":
			text = strings.ReplaceAll(text, `vllm:prompt_tokens_cached_total{engine="0",model_name="tiny-qwen3"} 0.0`,
				fmt.Sprintf(`vllm:prompt_tokens_cached_total{engine="0",model_name="tiny-qwen3"} %d`, hits.Add(16)))
		case "uncounted":
			text = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\n"
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
		reply(w, map[string]any{"model": name, "system_fingerprint": "vllm-0.32.0-fake", "usage": usage,
			"choices": []any{map[string]any{"text": "words", "finish_reason": "length", "token_ids": make([]int, q.Max)}}})
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
