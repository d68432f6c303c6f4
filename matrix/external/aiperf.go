package external

import (
	"encoding/json"
	"strconv"
)

type aiperfFile struct {
	Version  string `json:"aiperf_version"`
	Complete *bool  `json:"is_complete"`
	Input    struct {
		Models struct {
			Items []struct {
				Name string `json:"name"`
			} `json:"items"`
		} `json:"models"`
		Phases []struct {
			Kind        string   `json:"kind"`
			Requests    *float64 `json:"requests"`
			Concurrency *float64 `json:"concurrency"`
		} `json:"phases"`
	} `json:"input_config"`
	Errors *[]struct {
		Count float64 `json:"count"`
	} `json:"error_summary"`
	Requests      aiperfMetric `json:"request_count"`
	ErrorRequests aiperfMetric `json:"error_request_count"`
	Duration      aiperfMetric `json:"benchmark_duration"`
	Prompt        aiperfMetric `json:"total_isl"`
	Output        aiperfMetric `json:"total_osl"`
	TTFT          aiperfMetric `json:"time_to_first_token"`
	ITL           aiperfMetric `json:"inter_token_latency"`
	ICL           aiperfMetric `json:"inter_chunk_latency"`
	Latency       aiperfMetric `json:"request_latency"`
	OutputRate    aiperfMetric `json:"output_token_throughput"`
	TotalRate     aiperfMetric `json:"total_token_throughput"`
	RequestRate   aiperfMetric `json:"request_throughput"`
	Usage         aiperfMetric `json:"total_usage_completion_tokens"`
}

type aiperfMetric struct {
	Unit string   `json:"unit"`
	Avg  *float64 `json:"avg"`
	P50  *float64 `json:"p50"`
	P90  *float64 `json:"p90"`
	P95  *float64 `json:"p95"`
	P99  *float64 `json:"p99"`
}

func readAiperf(doc json.RawMessage) ([]Result, error) {
	var f aiperfFile
	if err := json.Unmarshal(doc, &f); err != nil {
		return nil, err
	}
	r := start("aiperf", f.Version)
	if len(f.Input.Models.Items) > 0 {
		r.Model = f.Input.Models.Items[0].Name
	}
	failed := f.ErrorRequests.Avg
	if failed == nil && f.Errors != nil { // a run without errors leaves the count out and writes an empty summary
		n := 0.0
		for _, e := range *f.Errors {
			n += e.Count
		}
		failed = &n
	}
	list := []counted{
		{&r.OK, "request_count", f.Requests.Avg}, {&r.Failed, "error_request_count", failed},
		{&r.PromptTokens, "total_isl", f.Prompt.Avg}, {&r.OutputTokens, "total_osl", f.Output.Avg},
	}
	for _, p := range f.Input.Phases {
		if p.Kind == "profiling" {
			list = append(list, counted{&r.Planned, "input_config.phases.requests", p.Requests}, counted{&r.Concurrency, "input_config.phases.concurrency", p.Concurrency})
		}
	}
	if err := r.counts(list); err != nil {
		return nil, err
	}
	if scale, ok := r.scale("benchmark_duration", f.Duration, aiperfTimes); ok {
		r.seconds("benchmark_duration", f.Duration.Avg, scale/1000)
	}
	r.aiperf("ttft", "time_to_first_token", f.TTFT)
	r.aiperf("itl", "inter_token_latency", f.ITL)
	r.aiperf("chunk_gap", "inter_chunk_latency", f.ICL)
	r.aiperf("e2el", "request_latency", f.Latency)
	r.aiperfRate("output_tok_s", "output_token_throughput", "tok/s", f.OutputRate, aiperfTokenRates)
	r.aiperfRate("total_tok_s", "total_token_throughput", "tok/s", f.TotalRate, aiperfTokenRates)
	r.aiperfRate("req_s", "request_throughput", "req/s", f.RequestRate, aiperfRequestRates)
	r.warn(failuresCountAsOK)
	r.warn("its inter-token latency is what others call TPOT, its inter-chunk latency what others call ITL")
	if usage, err := r.count("total_usage_completion_tokens", f.Usage.Avg); err == nil && usage.Present() && usage != r.OutputTokens {
		r.warn("its own count of output tokens differs from the server's usage: the file says both")
	}
	if f.Complete != nil && !*f.Complete {
		r.warn("the tool says that its run is not complete")
	}
	return []Result{r.Result}, nil
}

// Units that aiperf writes: of latencies and durations, in ms, and of rates, per second.
var (
	aiperfTimes        = map[string]float64{"ms": 1, "sec": 1000, "us": 1e-3, "ns": 1e-6}
	aiperfTokenRates   = map[string]float64{"tokens/sec": 1}
	aiperfRequestRates = map[string]float64{"requests/sec": 1}
)

// scale is what a metric is multiplied with; false where its unit is not known, and the metric is then missing.
func (r *draft) scale(field string, m aiperfMetric, units map[string]float64) (float64, bool) {
	scale, known := units[m.Unit]
	if !known {
		r.Missing = append(r.Missing, field+" in a known unit (it says "+strconv.Quote(m.Unit)+")")
	}
	return scale, known
}

func (r *draft) aiperfRate(name, field, unit string, m aiperfMetric, units map[string]float64) {
	if scale, ok := r.scale(field, m, units); ok {
		r.number(name, field, unit, m.Avg, scale)
	}
}

func (r *draft) aiperf(name, field string, m aiperfMetric) {
	scale, ok := r.scale(field, m, aiperfTimes)
	if !ok {
		return
	}
	r.number(name+"_mean", field+".avg", "ms", m.Avg, scale)
	r.number(name+"_median", field+".p50", "ms", m.P50, scale)
	r.number(name+"_p90", field+".p90", "ms", m.P90, scale)
	r.number(name+"_p95", field+".p95", "ms", m.P95, scale)
	r.number(name+"_p99", field+".p99", "ms", m.P99, scale)
}
