package server

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
)

// routes registers what the dialect offers; everything else is its 404.
func (s *Server) routes() {
	gen := func(paths ...string) {
		for _, p := range paths {
			s.mux.HandleFunc("POST "+p, s.generate)
		}
	}
	get := func(path string, body func() any) {
		s.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			if !s.loading(w) {
				s.json(w, http.StatusOK, body())
			}
		})
	}
	gen("/v1/completions", "/v1/chat/completions")
	get("/v1/models", s.models)
	s.mux.HandleFunc("GET /health", s.health)
	get("/simulated", func() any { return s.Report() })
	s.mux.HandleFunc("GET /metrics", s.metrics)
	s.mux.HandleFunc("POST /tokenize", s.tokenize)
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { s.notFound(w) })
	switch s.p.Dialect {
	case "vllm", "vllmcpp":
		get("/version", func() any { return object{"version", s.Version()} })
		get("/server_info", s.serverInfo)
	case "sglang":
		gen("/generate")
		get("/server_info", s.serverInfo)
		get("/model_info", s.serverInfo)
	case "llamacpp":
		gen("/completion")
		get("/props", s.props)
		get("/slots", s.slotList)
	}
}

// loading answers for a server that is not ready, as the dialects do: 503.
func (s *Server) loading(w http.ResponseWriter) bool {
	if s.ready.Load() {
		return false
	}
	s.json(w, http.StatusServiceUnavailable, object{"error", object{"message", "Loading model", "type", "unavailable_error", "code", 503}})
	return true
}

func (s *Server) json(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(appendValue(nil, v))
}

func (s *Server) notFound(w http.ResponseWriter) {
	switch s.p.Dialect {
	case "vllmcpp":
		w.WriteHeader(http.StatusNotFound)
	case "llamacpp":
		s.json(w, http.StatusNotFound, object{"error", object{"message", "File Not Found", "type", "not_found_error", "code", 404}})
	default:
		s.json(w, http.StatusNotFound, object{"detail", "Not Found"})
	}
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	healthy := s.ready.Load() && (s.p.HangAfter == 0 || s.streamed.Load() <= int64(s.p.HangAfter))
	switch {
	case !healthy && !s.p.HealthLies:
		w.WriteHeader(http.StatusServiceUnavailable)
	case s.p.Dialect == "llamacpp":
		s.json(w, http.StatusOK, object{"status", "ok"})
	default:
		w.WriteHeader(http.StatusOK)
	}
}

func (s *Server) models() any {
	card := object{"id", s.model(), "object", "model", "created", 0, "owned_by", s.shape.owner}
	switch s.p.Dialect {
	case "vllm", "sglang":
		card = append(card, "root", s.p.Path, "parent", nil, "max_model_len", s.p.Context)
	case "llamacpp":
		card = append(card, "aliases", []object{}, "tags", []object{}, "meta", object{"n_ctx", s.p.Context, "ftype", "SIMULATED"})
	}
	return object{"object", "list", "data", []object{card}}
}

func (s *Server) serverInfo() any {
	return object{"version", s.Version(), "commit", s.p.Commit, "model_path", s.p.Path, "served_model_name", s.model(),
		"dtype", s.p.Dtype, "max_model_len", s.p.Context, "max_num_seqs", s.p.Slots, "enable_prefix_caching", false,
		"disable_radix_cache", true, "speculative", "none", "simulated", true}
}

func (s *Server) props() any {
	return object{"build_info", s.Version(), "model_path", s.p.Path, "model_alias", s.model(), "total_slots", s.p.Slots,
		"default_generation_settings", object{"n_ctx", s.p.Context, "params", object{"speculative.types", "none"}},
		"model_ftype", "SIMULATED", "is_sleeping", false, "simulated", true}
}

func (s *Server) slotList() any {
	out := make([]object, min(s.p.Slots, 256))
	busy := int(s.running.Load())
	for i := range out {
		out[i] = object{"id", i, "n_ctx", s.p.Context, "speculative", false, "is_processing", i < busy}
	}
	return out
}

// Report is what a server says of itself on /simulated, in every dialect: what an adapter of a real engine collects from
// many places.
type Report struct {
	Version      string `json:"version"`
	Commit       string `json:"commit"`
	Dtype        string `json:"dtype"`
	KVDtype      string `json:"kv_dtype"`
	Quantization string `json:"quantization"`
	Speculation  string `json:"speculation"`
	PrefixCache  string `json:"prefix_cache"`
	Model        string `json:"model"`
	Path         string `json:"path"`
	Context      int    `json:"context"`
	Slots        int    `json:"slots"`
	Running      int64  `json:"running"`
	Generated    int64  `json:"generated"`
	Cached       int64  `json:"cached"`
}

// Report reads the server's state.
func (s *Server) Report() Report {
	return Report{Version: s.Version(), Commit: s.p.Commit, Dtype: s.p.Dtype, KVDtype: s.p.KVDtype, Quantization: s.p.Quantization,
		Speculation: s.p.Speculation, PrefixCache: "off", Model: s.model(), Path: s.p.Path, Context: s.p.Context, Slots: s.p.Slots,
		Running: s.running.Load(), Generated: s.generated.Load(), Cached: s.cachedTotal.Load()}
}

// tokenize answers in the dialect's form.
func (s *Server) tokenize(w http.ResponseWriter, hr *http.Request) {
	var q struct {
		Prompt  *string `json:"prompt"`
		Content *string `json:"content"`
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, hr.Body, maxBody))
	if err == nil {
		err = json.Unmarshal(body, &q)
	}
	text := q.Prompt
	if s.p.Dialect == "llamacpp" {
		text = q.Content
	}
	if err != nil || text == nil {
		s.refuse(w, &refusal{http.StatusBadRequest, "BadRequestError", "a text to tokenize is missing"})
		return
	}
	ids := Tokenize(*text)
	switch s.p.Dialect {
	case "llamacpp":
		s.json(w, http.StatusOK, object{"tokens", ids})
	case "sglang":
		s.json(w, http.StatusOK, object{"tokens", ids, "count", len(ids), "max_model_len", s.p.Context})
	default:
		s.json(w, http.StatusOK, object{"count", len(ids), "max_model_len", s.p.Context, "tokens", ids, "token_strs", nil})
	}
}

// metrics gives the counters that adapters read, under the dialect's names.
func (s *Server) metrics(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	labels := fmt.Sprintf("{model_name=%q}", s.model())
	names := [4]string{"vllm:num_requests_running", "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:prefix_cache_hits_total"}
	switch s.p.Dialect {
	case "sglang":
		names = [4]string{"sglang:num_running_reqs", "sglang:prompt_tokens_total", "sglang:generation_tokens_total", "sglang:cached_tokens_total"}
	case "llamacpp":
		labels = ""
		names = [4]string{"llamacpp:requests_processing", "llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total", "llamacpp:prompt_tokens_cached_total"}
	}
	for i, v := range []int64{s.running.Load(), s.promptTotal.Load(), s.generated.Load(), s.cachedTotal.Load()} {
		kind := "counter"
		if i == 0 {
			kind = "gauge"
		}
		fmt.Fprintf(w, "# TYPE %s %s\n%s%s %d\n", names[i], kind, names[i], labels, v)
	}
}

// requestID looks like the dialect's and is the same for the same request of the same load.
func (s *Server) requestID(r *request, n int64) string {
	h := fnv.New64a()
	fmt.Fprint(h, s.p.Seed, s.p.LoadID, n)
	prefix := "cmpl-"
	if r.chat || s.p.Dialect == "llamacpp" {
		prefix = "chatcmpl-"
	}
	switch s.p.Dialect {
	case "sglang":
		return fmt.Sprintf("%016x%016x", h.Sum64(), uint64(n))
	case "vllmcpp":
		return fmt.Sprintf("%s%d", prefix, n-1)
	}
	return fmt.Sprintf("%s%016x", prefix, h.Sum64())
}
