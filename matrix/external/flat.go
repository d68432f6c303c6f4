package external

import "encoding/json"

// vLLM's client and SGLang's, which descends from it, write one flat object per benchmark, in ms and per second.

// flat is an object of which only numbers are wanted.
type flat map[string]json.RawMessage

func (f flat) number(name string) *float64 {
	var v *float64
	if json.Unmarshal(f[name], &v) != nil {
		return nil // a string or a list is no number: the field is missing
	}
	return v
}

func (f flat) text(name string) string {
	var s string
	_ = json.Unmarshal(f[name], &s) // anything but a string is none
	return s
}

// flatNumbers adds the statistics of one latency. Percentiles are the user's choice in these tools, so only the mean and
// the median are missed.
func (r *draft) flatNumbers(f flat, ours, theirs string) {
	for _, stat := range []string{"mean", "median", "p90", "p95", "p99"} {
		field := stat + "_" + theirs + "_ms"
		if v := f.number(field); v != nil || stat == "mean" || stat == "median" {
			r.number(ours+"_"+stat, field, "ms", v, 1)
		}
	}
}

func readVLLM(doc json.RawMessage) ([]Result, error) {
	var f flat
	if err := json.Unmarshal(doc, &f); err != nil {
		return nil, err
	}
	r := start("vllm bench serve", "")
	r.Model = f.text("model_id")
	err := r.counts([]counted{
		{&r.Concurrency, "max_concurrency", f.number("max_concurrency")}, {&r.Planned, "num_prompts", f.number("num_prompts")},
		{&r.OK, "completed", f.number("completed")}, {&r.Failed, "failed", f.number("failed")},
		{&r.PromptTokens, "total_input_tokens", f.number("total_input_tokens")}, {&r.OutputTokens, "total_output_tokens", f.number("total_output_tokens")},
	})
	if err != nil {
		return nil, err
	}
	r.seconds("duration", f.number("duration"), 1)
	for _, q := range []string{"ttft", "tpot", "itl", "e2el"} {
		r.flatNumbers(f, q, q)
	}
	r.number("output_tok_s", "output_throughput", "tok/s", f.number("output_throughput"), 1)
	r.number("total_tok_s", "total_token_throughput", "tok/s", f.number("total_token_throughput"), 1)
	r.number("req_s", "request_throughput", "req/s", f.number("request_throughput"), 1)
	r.warn(failuresCountAsOK)
	return []Result{r.Result}, nil
}

func readSGLang(doc json.RawMessage) ([]Result, error) {
	var f flat
	if err := json.Unmarshal(doc, &f); err != nil {
		return nil, err
	}
	r := start("sglang.bench_serving", "")
	err := r.counts([]counted{
		{&r.Concurrency, "max_concurrency", f.number("max_concurrency")}, {&r.OK, "completed", f.number("completed")},
		{&r.PromptTokens, "total_input_tokens", f.number("total_input_tokens")}, {&r.OutputTokens, "total_output_tokens", f.number("total_output_tokens")},
	})
	if err != nil {
		return nil, err
	}
	r.sglangFailures(f)
	r.seconds("duration", f.number("duration"), 1)
	for _, q := range []string{"ttft", "tpot", "itl"} {
		r.flatNumbers(f, q, q)
	}
	r.flatNumbers(f, "e2el", "e2e_latency")
	r.number("output_tok_s", "output_throughput", "tok/s", f.number("output_throughput"), 1)
	r.number("total_tok_s", "total_throughput", "tok/s", f.number("total_throughput"), 1)
	r.number("req_s", "request_throughput", "req/s", f.number("request_throughput"), 1)
	r.warn("without usage from the server this tool takes the requested length for the output's")
	if again, err := r.count("total_output_tokens_retokenized", f.number("total_output_tokens_retokenized")); err == nil && again != r.OutputTokens {
		r.warn("output tokens and their re-tokenisation differ: the file says both")
	}
	return []Result{r.Result}, nil
}

// sglangFailures counts errors where the details of the requests were written; the summary has no such field.
func (r *draft) sglangFailures(f flat) {
	var errs []string
	if raw, ok := f["errors"]; !ok || json.Unmarshal(raw, &errs) != nil {
		r.Missing = append(r.Missing, "failed requests (the tool counts them only with --output-details)")
		return
	}
	failed := 0
	for _, e := range errs {
		if e != "" {
			failed++
		}
	}
	n, all := float64(failed), float64(len(errs))
	r.Failed, _ = r.count("errors", &n) // a length is a count
	r.Planned, _ = r.count("errors", &all)
}
