package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"enginebroker/engines/adapter"
	"enginebroker/engines/fingerprint"
	"enginebroker/engines/openai"
	"enginebroker/matrix"
)

// serverInfo is what is used of GET /server_info. Keys and the rest are not read, so that no secret of them can be recorded.
type serverInfo struct {
	ModelPath     string           `json:"model_path"`
	ServedName    string           `json:"served_model_name"`
	Version       string           `json:"version"`
	Dtype         string           `json:"dtype"`
	Quantization  string           `json:"quantization"`
	KVDtype       string           `json:"kv_cache_dtype"`
	Device        string           `json:"device"`
	Attention     string           `json:"attention_backend"`
	Sampling      string           `json:"sampling_backend"`
	FP4           string           `json:"fp4_gemm_runner_backend"`
	Defaults      string           `json:"sampling_defaults"`
	Seed          int64            `json:"random_seed"`
	Interval      int              `json:"stream_interval"`
	Chunked       int              `json:"chunked_prefill_size"`
	Nodes         int              `json:"nnodes"`
	MaxRunning    int              `json:"max_running_requests"`
	MaxTokens     int              `json:"max_total_num_tokens"`
	MaxInput      int              `json:"max_req_input_len"`
	NoRadix       matrix.Opt[bool] `json:"disable_radix_cache"`
	SleepOnIdle   matrix.Opt[bool] `json:"sleep_on_idle"`
	NoAutotune    matrix.Opt[bool] `json:"disable_flashinfer_autotune"`
	Graphs        graphConfig      `json:"cuda_graph_config"` // as resolved; disable_cuda_graph is what was asked
	NoOverlap     matrix.Opt[bool] `json:"disable_overlap_schedule"`
	Speculative   string           `json:"speculative_algorithm"`
	States        []schedulerState `json:"internal_states"`
	DisaggregMode string           `json:"disaggregation_mode"`
}

type graphConfig struct {
	Decode, Prefill struct{ Backend string }
}

type schedulerState struct {
	MaxRunning int `json:"effective_max_running_requests_per_dp"`
}

// state is what a running server says of itself.
type state struct {
	info     serverInfo
	path     string // /model_info model_path
	granted  matrix.Limits
	maxInput int
}

// readBack asks a server of this name for limits and configuration.
func readBack(ctx context.Context, c *openai.Client, model string) (state, error) {
	var s state
	list, err := c.Models(ctx)
	if err != nil {
		return s, err
	}
	for _, m := range list {
		if m.OwnedBy != "sglang" {
			return s, &matrix.StartFailure{Code: "wrong_model", Message: fmt.Sprintf("the server is owned by %q, not by sglang (/v1/models)", m.OwnedBy), Fix: "this is another engine"}
		}
		if m.ID == model || s.granted.ContextTokens == 0 {
			s.granted.ContextTokens = m.MaxModelLen.Or(0)
		}
	}
	var m struct {
		Path string `json:"model_path"`
	}
	if err := c.Get(ctx, "/model_info", &m); err != nil {
		return s, err
	}
	s.path = m.Path
	raw, err := c.Raw(ctx, http.MethodGet, "/server_info", nil)
	if err != nil {
		return s, err
	}
	if s.info, err = parseServerInfo(raw); err != nil {
		return s, err
	}
	s.granted.Concurrency, s.granted.KVTokens, s.maxInput = s.info.MaxRunning, s.info.MaxTokens, s.info.MaxInput
	for _, x := range s.info.States {
		if x.MaxRunning > 0 {
			s.granted.Concurrency = min(s.granted.Concurrency, x.MaxRunning)
		}
	}
	return s, nil
}

func parseServerInfo(b []byte) (serverInfo, error) {
	var i serverInfo
	if err := json.Unmarshal(b, &i); err != nil {
		return i, fmt.Errorf("/server_info: %w", err)
	}
	if i.Version == "" || i.MaxInput == 0 || i.MaxRunning == 0 {
		return i, fmt.Errorf("/server_info: no version, max_req_input_len or max_running_requests")
	}
	return i, nil
}

// facts are the answers as facts. What the log says of the load (logged) stands before them where it knows better.
func (s state) facts() matrix.Facts {
	const where = "/server_info "
	i := s.info
	quantization, speculation := i.Quantization, strings.ToLower(i.Speculative)
	if quantization == "" {
		quantization = "none"
	}
	if speculation == "" {
		speculation = "none"
	}
	facts := matrix.Facts{
		adapter.Said(matrix.FactVersion, i.Version, where+"version"),
		adapter.Seen(matrix.FactModelPath, s.path, "/model_info model_path"),
		adapter.Seen(matrix.FactQuantization, quantization, where+"quantization"),
		adapter.Seen(matrix.FactSpeculation, speculation, where+"speculative_algorithm"),
		adapter.Seen(matrix.FactContextTokens, strconv.Itoa(s.granted.ContextTokens), "/v1/models max_model_len"),
		adapter.Seen(matrix.FactConcurrency, strconv.Itoa(s.granted.Concurrency), where+"max_running_requests"),
		adapter.Seen(matrix.FactBackend, i.Attention, where+"attention_backend"),
		adapter.Seen(fingerprint.FactKernel+"sampling", i.Sampling, where+"sampling_backend"),
		adapter.Seen(fingerprint.FactConfig+"kv_tokens", strconv.Itoa(i.MaxTokens), where+"max_total_num_tokens"),
		adapter.Seen(fingerprint.FactConfig+"stream_interval", strconv.Itoa(i.Interval), where+"stream_interval"),
		adapter.Seen(fingerprint.FactConfig+"chunked_prefill_size", strconv.Itoa(i.Chunked), where+"chunked_prefill_size"),
		adapter.Seen(fingerprint.FactConfig+"device", i.Device, where+"device"),
		adapter.Seen(fingerprint.FactConfig+"random_seed", strconv.FormatInt(i.Seed, 10), where+"random_seed"),
	}
	if i.Graphs.Decode.Backend != "" {
		facts = append(facts, adapter.Seen(fingerprint.FactConfig+"cuda_graph", "decode "+i.Graphs.Decode.Backend+", prefill "+i.Graphs.Prefill.Backend, where+"cuda_graph_config"))
	}
	if d := adapter.DtypeName(i.Dtype); d != "" && d != "auto" {
		facts = append(facts, adapter.Seen(matrix.FactComputeDtype, d, where+"dtype"))
		if i.Quantization == "" {
			facts = append(facts, adapter.Seen(matrix.FactActivationDtype, d, where+"dtype of an unquantized model"))
		}
	}
	if d := adapter.DtypeName(i.KVDtype); d != "" && d != "auto" {
		facts = append(facts, adapter.Seen(matrix.FactKVDtype, d, where+"kv_cache_dtype"))
	}
	if i.FP4 != "" && i.Quantization != "" {
		facts = append(facts, adapter.Seen(fingerprint.FactKernel+"fp4", i.FP4, where+"fp4_gemm_runner_backend"))
	}
	for _, b := range []struct {
		name string
		off  matrix.Opt[bool]
	}{{"flashinfer_autotune", i.NoAutotune}, {"overlap_schedule", i.NoOverlap}} {
		if off, ok := b.off.Get(); ok {
			facts = append(facts, adapter.Seen(fingerprint.FactConfig+b.name, strconv.FormatBool(!off), where))
		}
	}
	if sleeps, ok := i.SleepOnIdle.Get(); ok {
		facts = append(facts, adapter.Seen(matrix.FactSleepOnIdle, onOff(sleeps), where+"sleep_on_idle"))
	}
	return facts
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// compare checks what the server grants and does against the request.
func (s state) compare(r matrix.StartRequest) error {
	fail := func(code, fix, format string, args ...any) error {
		return &matrix.StartFailure{Code: code, Message: fmt.Sprintf(format, args...), Fix: fix}
	}
	i, g := s.info, s.granted
	switch {
	case s.path != r.Artifact.Path || i.ServedName != r.ModelName:
		return fail("wrong_model", "something else answers on this port", "the server says that it serves %s as %s, and not %s as %s (/model_info, /server_info)", s.path, i.ServedName, r.Artifact.Path, r.ModelName)
	case g.ContextTokens < r.Limits.ContextTokens || g.Concurrency < r.Limits.Concurrency || g.KVTokens < r.Limits.KVTokens:
		return fail("limits", "raise mem_fraction_static, or lower the workload", "asked for %d tokens per request, %d requests at once and %d KV tokens, granted %d, %d and %d (/server_info)",
			r.Limits.ContextTokens, r.Limits.Concurrency, r.Limits.KVTokens, g.ContextTokens, g.Concurrency, g.KVTokens)
	case r.ComputeDtype != "" && adapter.DtypeName(i.Dtype) != adapter.DtypeName(r.ComputeDtype):
		return fail("compute_dtype", "", "asked for the compute dtype %s, it computes in %s (/server_info)", r.ComputeDtype, i.Dtype)
	case !i.NoRadix.Or(false):
		return fail("prefix_cache", "", "the radix cache is on, or it is not said that it is off (/server_info)")
	case (i.Speculative != "") != (r.Policy.Kind == matrix.Drafted):
		return fail("policy", "", "the policy is %s, and /server_info says speculation: %q", r.Policy, i.Speculative)
	case i.SleepOnIdle.Or(false):
		return fail("unsupported_flag", "", "the server sleeps on idle (/server_info)")
	case i.Nodes > 1:
		return fail("unsupported_flag", "", "MULTI_NODE_UNSUPPORTED: the server runs on %d hosts", i.Nodes)
	}
	return nil
}

// logged are what the log alone says, or says as resolved where an endpoint repeats what was asked (bugs.md F06). A
// fallback is no identity: it may be gone once the caches are warm.
var logged = []adapter.Logged{
	{Name: matrix.FactKVDtype, Pattern: regexp.MustCompile(`KV Cache is allocated\. dtype: (?:torch\.)?(\w+)`)},
	{Name: fingerprint.FactKernel + "attention", Pattern: regexp.MustCompile(`Use (\S+) attention backend|Attention backend not (?:explicitly )?specified\. Use (\S+) backend`)},
	{Name: fingerprint.FactKernel + "tree_cache", Pattern: regexp.MustCompile(`Tree cache initialized: source=\S+ impl=(\S+)`)},
	{Name: fingerprint.FactWarning, Pattern: regexp.MustCompile(`((?i:falling back to) .{1,80}|roll back to CPU)`)},
	{Name: fingerprint.FactKernel + "cuda_graph", Pattern: regexp.MustCompile(`(Cuda graph is disabled because .{0,80})`)},
}

// counters reads the state counters of /metrics. What is drafted is there as a rate only, and a rate is no count.
func counters(st *matrix.State, m openai.Metrics) {
	st.Running = m.Count("sglang:num_running_reqs")
	st.Generated = m.Count("sglang:generation_tokens_total")
	st.CachedTokens = cachedTotal(m)
}

// cachedTotal is the count of prompt tokens that came from a cache: the counter where there is one, which appears with the
// first hit, else all prompt tokens less those that were computed.
func cachedTotal(m openai.Metrics) matrix.Opt[int64] {
	if n := m.Count("sglang:cached_tokens_total"); n.Present() {
		return n
	}
	all, ok := histogramSum(m, "sglang:prompt_tokens_histogram").Get()
	computed, ok2 := histogramSum(m, "sglang:uncached_prompt_tokens_histogram").Get()
	if !ok || !ok2 {
		return matrix.Opt[int64]{}
	}
	return matrix.Some(int64(all - computed))
}

// histogramSum adds the observations of a histogram.
func histogramSum(m openai.Metrics, name string) matrix.Opt[float64] {
	if !m.Has(name) {
		return matrix.Opt[float64]{}
	}
	sum := 0.0
	for _, s := range m[name].GetMetric() {
		sum += s.GetHistogram().GetSampleSum()
	}
	return matrix.Some(sum)
}
