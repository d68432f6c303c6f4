package external

import "encoding/json"

type inferencePerfFile struct {
	Seconds *float64 `json:"benchmark_time_seconds"`
	Load    struct {
		Concurrency *float64 `json:"concurrency"` // in files of one stage
	} `json:"load_summary"`
	Successes struct {
		Count   *float64 `json:"count"`
		Latency struct {
			Request inferencePerfMetric `json:"request_latency"`
			TPOT    inferencePerfMetric `json:"time_per_output_token"`
			TTFT    inferencePerfMetric `json:"time_to_first_token"`
			ITL     inferencePerfMetric `json:"inter_token_latency"`
		} `json:"latency"`
		Throughput struct {
			Output   *float64 `json:"output_tokens_per_sec"`
			Total    *float64 `json:"total_tokens_per_sec"`
			Requests *float64 `json:"requests_per_sec"`
		} `json:"throughput"`
		Prompt struct {
			Total *float64 `json:"total"`
		} `json:"prompt_tokens"`
		Output struct {
			Total *float64 `json:"total"`
		} `json:"output_tokens"`
		Mismatches *float64 `json:"token_count_mismatches"`
	} `json:"successes"`
	Failures struct {
		Count *float64 `json:"count"`
	} `json:"failures"`
}

// inferencePerfMetric is in seconds.
type inferencePerfMetric struct {
	Mean   *float64 `json:"mean"`
	Median *float64 `json:"median"`
	P90    *float64 `json:"p90"`
	P95    *float64 `json:"p95"`
	P99    *float64 `json:"p99"`
}

func readInferencePerf(doc json.RawMessage) ([]Result, error) {
	var f inferencePerfFile
	if err := json.Unmarshal(doc, &f); err != nil {
		return nil, err
	}
	r, ok := start("inference-perf", ""), f.Successes
	err := r.counts([]counted{
		{&r.OK, "successes.count", ok.Count}, {&r.Failed, "failures.count", f.Failures.Count}, {&r.Concurrency, "load_summary.concurrency", f.Load.Concurrency},
		{&r.PromptTokens, "successes.prompt_tokens.total", ok.Prompt.Total}, {&r.OutputTokens, "successes.output_tokens.total", ok.Output.Total},
	})
	if err != nil {
		return nil, err
	}
	r.Missing = append(r.Missing, "planned requests (in the configuration, not in the result)")
	r.seconds("benchmark_time_seconds", f.Seconds, 1)
	r.inferencePerf("ttft", "time_to_first_token", ok.Latency.TTFT)
	r.inferencePerf("tpot", "time_per_output_token", ok.Latency.TPOT)
	r.inferencePerf("itl", "inter_token_latency", ok.Latency.ITL)
	r.inferencePerf("e2el", "request_latency", ok.Latency.Request)
	r.number("output_tok_s", "throughput.output_tokens_per_sec", "tok/s", ok.Throughput.Output, 1)
	r.number("total_tok_s", "throughput.total_tokens_per_sec", "tok/s", ok.Throughput.Total, 1)
	r.number("req_s", "throughput.requests_per_sec", "req/s", ok.Throughput.Requests, 1)
	r.warn(failuresCountAsOK)
	r.warn("this tool may leave requests out without counting them (seen: 27 of 32, 53 of 64)")
	if ok.Mismatches != nil && *ok.Mismatches > 0 {
		r.warn("the tool counts requests whose tokens differ from the server's usage")
	}
	return []Result{r.Result}, nil
}

func (r *draft) inferencePerf(name, field string, m inferencePerfMetric) {
	field = "latency." + field + "."
	r.number(name+"_mean", field+"mean", "ms", m.Mean, 1000)
	r.number(name+"_median", field+"median", "ms", m.Median, 1000)
	r.number(name+"_p90", field+"p90", "ms", m.P90, 1000)
	r.number(name+"_p95", field+"p95", "ms", m.P95, 1000)
	r.number(name+"_p99", field+"p99", "ms", m.P99, 1000)
}
