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

// serverInfo is what is used of GET /server_info?config_format=json (dev mode). Its env_vars and the rest are not read, so
// that no secret of them can be recorded.
type serverInfo struct {
	Config struct {
		Model struct {
			Model         string           `json:"model"`
			Dtype         string           `json:"dtype"` // torch.float32
			MaxLen        int              `json:"max_model_len"`
			Quantization  string           `json:"quantization"`
			EnforceEager  matrix.Opt[bool] `json:"enforce_eager"`
			GenerationCfg string           `json:"generation_config"`
		} `json:"model_config"`
		Cache struct {
			Dtype  string           `json:"cache_dtype"`
			Prefix matrix.Opt[bool] `json:"enable_prefix_caching"`
			Tokens int              `json:"kv_cache_size_tokens"`
		} `json:"cache_config"`
		Scheduler struct {
			MaxSeqs        int              `json:"max_num_seqs"`
			MaxBatched     int              `json:"max_num_batched_tokens"`
			StreamInterval int              `json:"stream_interval"`
			Async          matrix.Opt[bool] `json:"async_scheduling"`
		} `json:"scheduler_config"`
		Parallel struct {
			Nodes int `json:"nnodes"`
			World int `json:"world_size"`
		} `json:"parallel_config"`
		Kernel struct {
			Autotune matrix.Opt[bool] `json:"enable_flashinfer_autotune"`
		} `json:"kernel_config"`
		Attention struct {
			Backend json.RawMessage `json:"backend"`
		} `json:"attention_config"`
		Device struct {
			Device string `json:"device"`
		} `json:"device_config"`
		Speculative *struct {
			Method string `json:"method"`
			Tokens int    `json:"num_speculative_tokens"`
		} `json:"speculative_config"`
	} `json:"vllm_config"`
	System struct {
		Version string `json:"vllm_version"`
		Torch   string `json:"torch_version"`
		CUDA    string `json:"cuda_runtime_version"`
		Driver  string `json:"nvidia_driver_version"`
	} `json:"system_env"`
}

// state is what a running server says of itself.
type state struct {
	info     matrix.Opt[serverInfo] // absent without dev mode
	path     string                 // root of /v1/models
	version  string
	sleeping matrix.Opt[bool]
	granted  matrix.Limits
}

// readBack asks a server of this name for limits and configuration.
func readBack(ctx context.Context, c *openai.Client, model string) (state, error) {
	var s state
	list, err := c.Models(ctx)
	if err != nil {
		return s, err
	}
	for _, m := range list {
		if m.OwnedBy != "vllm" {
			return s, &matrix.StartFailure{Code: "wrong_model", Message: fmt.Sprintf("the server is owned by %q, not by vllm (/v1/models)", m.OwnedBy), Fix: "this is another engine"}
		}
		if m.ID == model || s.path == "" {
			s.path, s.granted.ContextTokens = m.Root, m.MaxModelLen.Or(0)
		}
	}
	var version struct{ Version string }
	if err := c.Get(ctx, "/version", &version); err != nil {
		return s, err
	}
	s.version = version.Version
	raw, err := c.Raw(ctx, http.MethodGet, "/server_info?config_format=json", nil)
	if openai.IsStatus(err, http.StatusNotFound) {
		return s, nil // an attached server without dev mode
	}
	if openai.IsStatus(err, http.StatusInternalServerError) { // its list of packages comes from pip or uv, and nothing is caught
		return s, &matrix.StartFailure{Code: "unsupported_flag", Message: err.Error(), Fix: "install pip into the environment, or put uv on PATH: vLLM lists its packages there for /server_info, and says nothing without"}
	}
	if err != nil {
		return s, err
	}
	info, err := parseServerInfo(raw)
	if err != nil {
		return s, err
	}
	s.info = matrix.Some(info)
	s.granted = matrix.Limits{ContextTokens: info.Config.Model.MaxLen, Concurrency: info.Config.Scheduler.MaxSeqs, KVTokens: info.Config.Cache.Tokens}
	var sleep struct {
		Sleeping *bool `json:"is_sleeping"`
	}
	if err := c.Get(ctx, "/is_sleeping", &sleep); err == nil && sleep.Sleeping != nil {
		s.sleeping = matrix.Some(*sleep.Sleeping)
	}
	return s, nil
}

func parseServerInfo(b []byte) (serverInfo, error) {
	var i serverInfo
	if err := json.Unmarshal(b, &i); err != nil {
		return i, fmt.Errorf("/server_info: %w", err)
	}
	if i.Config.Model.Dtype == "" || i.Config.Model.MaxLen == 0 {
		return i, fmt.Errorf("/server_info: no dtype or max_model_len in model_config")
	}
	return i, nil
}

// facts are the answers as facts. An auto KV cache is the model's dtype; where the checkpoint declares another, vLLM replaces
// auto with it.
func (s state) facts() matrix.Facts {
	const where = "/server_info "
	facts := matrix.Facts{
		adapter.Said(matrix.FactVersion, s.version, "/version"),
		adapter.Seen(matrix.FactModelPath, s.path, "/v1/models root"),
		adapter.Seen(matrix.FactContextTokens, strconv.Itoa(s.granted.ContextTokens), "/v1/models max_model_len"),
	}
	i, ok := s.info.Get()
	if !ok {
		return facts
	}
	c := i.Config
	dtype, quantization := adapter.DtypeName(c.Model.Dtype), c.Model.Quantization
	if quantization == "" {
		quantization = "none"
		facts = append(facts, adapter.Seen(matrix.FactActivationDtype, dtype, where+"model_config.dtype of an unquantized model"))
	}
	kv := adapter.Seen(matrix.FactKVDtype, adapter.DtypeName(c.Cache.Dtype), where+"cache_config.cache_dtype")
	if c.Cache.Dtype == "auto" {
		kv.Value, kv.Where = dtype, kv.Where+" auto: the model's dtype"
	}
	speculation := "none"
	if c.Speculative != nil {
		speculation = c.Speculative.Method
	}
	facts = append(facts, kv,
		adapter.Seen(matrix.FactComputeDtype, dtype, where+"model_config.dtype"),
		adapter.Seen(matrix.FactQuantization, quantization, where+"model_config.quantization"),
		adapter.Seen(matrix.FactSpeculation, speculation, where+"speculative_config"),
		adapter.Seen(matrix.FactConcurrency, strconv.Itoa(c.Scheduler.MaxSeqs), where+"scheduler_config.max_num_seqs"),
		adapter.Seen("kv_tokens", strconv.Itoa(c.Cache.Tokens), where+"cache_config.kv_cache_size_tokens"), // moves with free memory: no identity
		adapter.Seen(fingerprint.FactConfig+"max_num_batched_tokens", strconv.Itoa(c.Scheduler.MaxBatched), where+"scheduler_config"),
		adapter.Seen(fingerprint.FactConfig+"stream_interval", strconv.Itoa(c.Scheduler.StreamInterval), where+"scheduler_config"),
		adapter.Seen(fingerprint.FactConfig+"generation_config", c.Model.GenerationCfg, where+"model_config"),
		adapter.Seen(fingerprint.FactConfig+"device", c.Device.Device, where+"device_config"),
		adapter.Said(fingerprint.FactPackage+"torch", i.System.Torch, where+"system_env"),
	)
	for name, b := range map[string]matrix.Opt[bool]{"enforce_eager": c.Model.EnforceEager, "async_scheduling": c.Scheduler.Async, "flashinfer_autotune": c.Kernel.Autotune} {
		if on, ok := b.Get(); ok {
			facts = append(facts, adapter.Seen(fingerprint.FactConfig+name, strconv.FormatBool(on), where))
		}
	}
	if b := strings.Trim(string(c.Attention.Backend), `"`); b != "" && b != "null" {
		facts = append(facts, adapter.Seen(fingerprint.FactKernel+"attention_asked", b, where+"attention_config.backend"))
	}
	if asleep, ok := s.sleeping.Get(); ok && !asleep {
		facts = append(facts, adapter.Seen(matrix.FactSleepOnIdle, "off", "/is_sleeping"))
	}
	return facts
}

// compare checks what the server grants and does against the request.
func (s state) compare(r matrix.StartRequest, w weights) error {
	fail := func(code, fix, format string, args ...any) error {
		return &matrix.StartFailure{Code: code, Message: fmt.Sprintf(format, args...), Fix: fix}
	}
	if s.path != w.model {
		return fail("wrong_model", "something else answers on this port", "the server says that it serves %s, and not %s (/v1/models root)", s.path, w.model)
	}
	i, ok := s.info.Get()
	if !ok {
		return fail("unsupported_flag", "use another build", "this build has no /server_info, so that nothing could be read back")
	}
	g := s.granted
	if g.ContextTokens < r.Limits.ContextTokens || g.Concurrency < r.Limits.Concurrency || g.KVTokens != 0 && g.KVTokens < r.Limits.KVTokens {
		return fail("limits", "raise gpu_memory_utilization or kv_cache_space, or lower the workload", "asked for %d tokens per request, %d requests at once and %d KV tokens, granted %d, %d and %d (/server_info)",
			r.Limits.ContextTokens, r.Limits.Concurrency, r.Limits.KVTokens, g.ContextTokens, g.Concurrency, g.KVTokens)
	}
	if got := adapter.DtypeName(i.Config.Model.Dtype); r.ComputeDtype != "" && got != adapter.DtypeName(r.ComputeDtype) {
		return fail("compute_dtype", "", "asked for the compute dtype %s, it computes in %s (/server_info)", r.ComputeDtype, got)
	}
	if i.Config.Cache.Prefix.Or(true) {
		return fail("prefix_cache", "", "the prefix cache is on, or it is not said that it is off (/server_info)")
	}
	if want := r.Policy.Kind == matrix.Drafted; (i.Config.Speculative != nil) != want {
		return fail("policy", "", "the policy is %s, and /server_info says speculation: %t", r.Policy, i.Config.Speculative != nil)
	}
	if i.Config.Parallel.Nodes > 1 {
		return fail("unsupported_flag", "", "MULTI_NODE_UNSUPPORTED: the server runs on %d hosts", i.Config.Parallel.Nodes)
	}
	return nil
}

// logged are what the log says of the kernels in use; they decide speed and stand in no endpoint (engines.md C5, F06). A
// fallback is no identity: it may be gone once the caches are warm.
var logged = []adapter.Logged{
	{Name: fingerprint.FactKernel + "attention", Pattern: regexp.MustCompile(`Using (\S+) attention backend|Using (Flash ?Attention|FlashInfer|Triton|FLASH_ATTN\S*) backend`)},
	{Name: fingerprint.FactKernel + "attention_version", Pattern: regexp.MustCompile(`Using (FlashAttention version \d+)`)},
	{Name: fingerprint.FactKernel + "linear", Pattern: regexp.MustCompile(`\b(\w+(?:NvFp4|Fp8|MxFp4|Mxfp8|ScaledMM)\w*Kernel)\b`)},
	{Name: fingerprint.FactKernel + "moe", Pattern: regexp.MustCompile(`Using (\S+) (?:\S+ )?MoE backend`)},
	{Name: fingerprint.FactKernel + "custom_fusions", Pattern: regexp.MustCompile(`Enabled custom fusions: (.+)`)},
	{Name: fingerprint.FactKernel + "model_runner", Pattern: regexp.MustCompile(`using the (V\d) model runner`)},
	{Name: fingerprint.FactKernel + "kv_layout", Pattern: regexp.MustCompile(`Using (\S+) KV cache layout`)},
	{Name: fingerprint.FactWarning, Pattern: regexp.MustCompile(`((?i:falling back to) .{1,80})`)},
}

// counters reads the state counters of /metrics.
func counters(st *matrix.State, m openai.Metrics) {
	st.Running = m.Count("vllm:num_requests_running")
	st.Generated = m.Count("vllm:generation_tokens_total")
	st.CachedTokens = cachedTotal(m)
	st.DraftedTokens = m.Count("vllm:spec_decode_num_draft_tokens_total")
	st.AcceptedTokens = m.Count("vllm:spec_decode_num_accepted_tokens_total")
}

// cachedTotal is the count of prompt tokens that came from a cache; older builds have only the hits of the prefix cache.
func cachedTotal(m openai.Metrics) matrix.Opt[int64] {
	if n := m.Count("vllm:prompt_tokens_cached_total"); n.Present() {
		return n
	}
	return m.Count("vllm:prefix_cache_hits_total")
}
