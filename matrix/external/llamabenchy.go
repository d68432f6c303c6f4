package external

import (
	"encoding/json"
	"fmt"

	"enginebroker/matrix"
)

type llamaBenchyFile struct {
	Version    string `json:"version"`
	Model      string `json:"model"`
	Benchmarks []struct {
		Concurrency *float64          `json:"concurrency"`
		TTFR        llamaBenchyMetric `json:"ttfr"`     // ms
		TTFT        llamaBenchyMetric `json:"e2e_ttft"` // ms
		Decode      llamaBenchyMetric `json:"tg_req_throughput"`
		DecodeAll   llamaBenchyMetric `json:"tg_throughput"`
		PrefillAll  llamaBenchyMetric `json:"pp_throughput"`
	} `json:"benchmarks"`
}

type llamaBenchyMetric struct {
	Mean   *float64  `json:"mean"`
	Values []float64 `json:"values"`
}

func readLlamaBenchy(doc json.RawMessage) ([]Result, error) {
	var f llamaBenchyFile
	if err := json.Unmarshal(doc, &f); err != nil {
		return nil, err
	}
	var out []Result
	for i, b := range f.Benchmarks {
		r := start("llama-benchy", f.Version)
		r.Model = f.Model
		if err := r.counts([]counted{{&r.Concurrency, "concurrency", b.Concurrency}}); err != nil {
			return nil, fmt.Errorf("benchmark %d: %w", i, err)
		}
		r.Missing = append(r.Missing, "failed requests", "planned requests", "duration", "token counts (chunks are counted as tokens)")
		if n := len(b.TTFR.Values); n > 0 {
			r.OK = matrix.Some(int64(n))
			if kept := len(b.Decode.Values); kept != n {
				r.warn(fmt.Sprintf("its decode rate is over %d of %d requests: those whose decode time read as zero were dropped", kept, n))
			}
		} else {
			r.Missing = append(r.Missing, "ttfr.values")
		}
		r.number("ttfr_mean", "ttfr.mean", "ms", b.TTFR.Mean, 1)
		r.number("ttft_mean", "e2e_ttft.mean", "ms", b.TTFT.Mean, 1)
		r.number("decode_tok_s_mean", "tg_req_throughput.mean", "tok/s", b.Decode.Mean, 1)
		r.number("decode_tok_s_all", "tg_throughput.mean", "tok/s", b.DecodeAll.Mean, 1)
		r.number("prefill_tok_s_all", "pp_throughput.mean", "tok/s", b.PrefillAll.Mean, 1)
		r.warn(failuresCountAsOK)
		out = append(out, r.Result)
	}
	return out, nil
}
