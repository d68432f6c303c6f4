// Command fake answers like an SGLang server, from captured answers, and misbehaves as FAKE_MODE says: exit, hangs, wrong_model,
// other_weights, other_engine, caches, counts_hits, uncounted, radix_on, drafts, clips, bfloat16, sleeps, no_ids. The file data
// beside it says where the answers lie.
package main

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"

	"enginebroker/engines/adapter/adaptertest/fakeserver"
)

func main() {
	if len(os.Args) < 4 || os.Args[1] != "-m" || os.Args[2] != "sglang.launch_server" {
		fmt.Fprintln(os.Stderr, "No module named that")
		os.Exit(1)
	}
	if os.Args[3] == "--help" {
		os.Stdout.Write(fakeserver.Read("help.txt"))
		return
	}
	args, mode := fakeserver.Args(), fakeserver.Mode()
	os.Stderr.Write(fakeserver.Read("load.log"))
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
	info := fakeserver.JSON("server_info.json")
	models := fakeserver.JSON("models.json")
	model := fakeserver.JSON("model_info.json")
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
	fakeserver.Answer("/v1/models", models)
	fakeserver.Answer("/server_info", info)
	fakeserver.Answer("/model_info", model)
	var hits atomic.Int64
	metrics := string(fakeserver.Read("metrics.txt"))
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
	fakeserver.Tokenize()
	fakeserver.Completions(func(model string, answer, choice map[string]any) {
		answer["model"] = model
		if mode == "no_ids" {
			delete(choice, "token_ids")
		}
	})
	fakeserver.Serve(args["--host"], args["--port"])
}
