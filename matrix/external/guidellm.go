package external

import (
	"encoding/json"
	"fmt"
)

type guidellmFile struct {
	Metadata struct {
		Version string `json:"guidellm_version"`
	} `json:"metadata"`
	Benchmarks []struct {
		Config struct {
			Strategy struct {
				Streams *float64 `json:"streams"`
			} `json:"strategy"`
			Backend struct {
				Model string `json:"model"`
			} `json:"backend"`
		} `json:"config"`
		Duration *float64 `json:"duration"`
		Metrics  struct {
			Totals struct {
				Successful *float64 `json:"successful"`
				Errored    *float64 `json:"errored"`
				Incomplete *float64 `json:"incomplete"`
				Total      *float64 `json:"total"`
			} `json:"request_totals"`
			TTFT     guidellmMetric `json:"time_to_first_token_ms"`
			TPOT     guidellmMetric `json:"time_per_output_token_ms"`
			ITL      guidellmMetric `json:"inter_token_latency_ms"`
			Latency  guidellmMetric `json:"request_latency"` // seconds
			Prompt   guidellmMetric `json:"prompt_token_count"`
			Output   guidellmMetric `json:"output_token_count"`
			Requests guidellmMetric `json:"requests_per_second"`
			Out      guidellmMetric `json:"output_tokens_per_second"`
			All      guidellmMetric `json:"tokens_per_second"`
		} `json:"metrics"`
	} `json:"benchmarks"`
}

type guidellmMetric struct {
	Successful struct {
		Mean        *float64            `json:"mean"`
		Median      *float64            `json:"median"`
		Sum         *float64            `json:"total_sum"`
		Percentiles map[string]*float64 `json:"percentiles"`
	} `json:"successful"`
}

func readGuidellm(doc json.RawMessage) ([]Result, error) {
	var f guidellmFile
	if err := json.Unmarshal(doc, &f); err != nil {
		return nil, err
	}
	var out []Result
	for i, b := range f.Benchmarks {
		r, m := start("guidellm", f.Metadata.Version), b.Metrics
		r.Model = b.Config.Backend.Model
		err := r.counts([]counted{
			{&r.Concurrency, "config.strategy.streams", b.Config.Strategy.Streams}, {&r.Planned, "request_totals.total", m.Totals.Total},
			{&r.OK, "request_totals.successful", m.Totals.Successful}, {&r.Failed, "request_totals.errored", m.Totals.Errored},
			{&r.Incomplete, "request_totals.incomplete", m.Totals.Incomplete},
			{&r.PromptTokens, "prompt_token_count.successful.total_sum", m.Prompt.Successful.Sum},
			{&r.OutputTokens, "output_token_count.successful.total_sum", m.Output.Successful.Sum},
		})
		if err != nil {
			return nil, fmt.Errorf("benchmark %d: %w", i, err)
		}
		r.seconds("duration", b.Duration, 1)
		r.guidellm("ttft", "time_to_first_token_ms", m.TTFT, 1)
		r.guidellm("tpot", "time_per_output_token_ms", m.TPOT, 1)
		r.guidellm("itl", "inter_token_latency_ms", m.ITL, 1)
		r.guidellm("e2el", "request_latency", m.Latency, 1000)
		r.number("output_tok_s", "output_tokens_per_second.successful.mean", "tok/s", m.Out.Successful.Mean, 1)
		r.number("total_tok_s", "tokens_per_second.successful.mean", "tok/s", m.All.Successful.Mean, 1)
		r.number("req_s", "requests_per_second.successful.mean", "req/s", m.Requests.Successful.Mean, 1)
		r.warn("its TPOT includes the time to first token and its ITL percentiles are over requests, not gaps")
		out = append(out, r.Result)
	}
	return out, nil
}

func (r *draft) guidellm(name, field string, m guidellmMetric, scale float64) {
	field += ".successful."
	r.number(name+"_mean", field+"mean", "ms", m.Successful.Mean, scale)
	r.number(name+"_median", field+"median", "ms", m.Successful.Median, scale)
	for _, p := range []string{"p90", "p95", "p99"} {
		r.number(name+"_"+p, field+"percentiles."+p, "ms", m.Successful.Percentiles[p], scale)
	}
}
