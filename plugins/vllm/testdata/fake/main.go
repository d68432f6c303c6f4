// Command fake answers like a vLLM server, from captured answers, and misbehaves as FAKE_MODE says: exit, hangs, wrong_model,
// other_engine, caches, counts_hits, uncounted, prefix_on, drafts, clips, bfloat16, no_info, no_pip, hidden. The file data
// beside it says where the answers lie.
package main

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"enginebroker/engines/adapter/adaptertest/fakeserver"
)

func main() {
	if len(os.Args) < 3 || os.Args[1] != "serve" {
		fmt.Fprintln(os.Stderr, "vllm serve: error: not serve")
		os.Exit(2)
	}
	if os.Args[2] == "--help=all" {
		os.Stdout.Write(fakeserver.Read("help.txt"))
		return
	}
	args, mode := fakeserver.Args(), fakeserver.Mode()
	os.Stderr.Write(fakeserver.Read("load.log"))
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
	info := fakeserver.JSON("server_info.json")
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
	models := fakeserver.JSON("models.json")
	card := models["data"].([]any)[0].(map[string]any)
	card["id"], card["root"], card["max_model_len"] = name, os.Args[2], context
	switch mode {
	case "other_engine":
		card["owned_by"] = "sglang"
	case "hidden":
		card["root"] = "/somewhere/else"
	}
	fakeserver.Answer("/v1/models", models)
	fakeserver.Answer("/version", map[string]any{"version": "0.32.0"})
	fakeserver.Answer("/is_sleeping", map[string]any{"is_sleeping": false})
	switch mode {
	case "no_info":
	case "no_pip":
		http.HandleFunc("/server_info", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "Internal Server Error", http.StatusInternalServerError)
		})
	default:
		fakeserver.Answer("/server_info", info)
	}
	var hits atomic.Int64
	metrics := string(fakeserver.Read("metrics.txt"))
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
	fakeserver.Tokenize()
	fakeserver.Completions(func(_ string, answer, _ map[string]any) {
		answer["model"], answer["system_fingerprint"] = name, "vllm-0.32.0-fake"
	})
	fakeserver.Serve(args["--host"], args["--port"])
}
