package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// request is one generation: what was asked, and how its answer goes.
type request struct {
	Model    string          `json:"model"`
	Prompt   json.RawMessage `json:"prompt"`
	Text     *string         `json:"text"`      // sglang native
	InputIDs []int           `json:"input_ids"` // sglang native
	Messages []struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	} `json:"messages"`
	MaxTokens           *int `json:"max_tokens"`
	MaxCompletionTokens *int `json:"max_completion_tokens"`
	NPredict            *int `json:"n_predict"`
	SamplingParams      struct {
		MaxNewTokens *int `json:"max_new_tokens"`
	} `json:"sampling_params"`
	Stream        bool `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
		Running      bool `json:"continuous_usage_stats"`
	} `json:"stream_options"`
	ReturnIDs bool `json:"return_token_ids"`
	Timings   bool `json:"timings_per_token"`

	chat, native bool
	id           string
	created      int
	model        string // in the answer
	fingerprint  string
	prompt       []int
	text         string
	promptTokens int // as counted in the answer
	cached       int
	tokens       int // to generate
	events       int
	fault        Fault
	start        time.Duration // monotonic, when the request had arrived
	firstToken   time.Duration
	due          time.Duration // of the tokens at hand
	produced     int
	out          strings.Builder // native sglang: the text so far
	outIDs       []int
}

// refusal is an answer with a status.
type refusal struct {
	status  int
	kind    string
	message string
}

func (e *refusal) Error() string { return e.message }

// maxBody bounds a request.
const maxBody = 16 << 20

// read reads and checks a generation request.
func (s *Server) read(w http.ResponseWriter, hr *http.Request) (*request, error) {
	r := &request{chat: hr.URL.Path == "/v1/chat/completions", native: hr.URL.Path == "/completion" || hr.URL.Path == "/generate"}
	body, err := io.ReadAll(http.MaxBytesReader(w, hr.Body, maxBody))
	r.start = arrived(hr.Context())
	if err != nil {
		return nil, &refusal{http.StatusBadRequest, "BadRequestError", err.Error()}
	}
	if err := json.Unmarshal(body, r); err != nil {
		return nil, &refusal{http.StatusBadRequest, "BadRequestError", "Invalid JSON body: " + err.Error()}
	}
	if err := s.readPrompt(r); err != nil {
		return nil, err
	}
	r.model = s.model()
	switch {
	case r.native || r.Model == "" || r.Model == r.model || s.p.Dialect == "llamacpp":
	case s.p.Dialect == "sglang":
		r.model = r.Model // accepted and echoed
	default:
		return nil, &refusal{http.StatusNotFound, "NotFoundError", fmt.Sprintf("The model `%s` does not exist.", r.Model)}
	}
	return r, s.limit(r)
}

func (s *Server) readPrompt(r *request) error {
	missing := &refusal{http.StatusBadRequest, "BadRequestError", "prompt: field required"}
	switch {
	case r.chat:
		for _, m := range r.Messages {
			r.text += m.Content
		}
		if len(r.Messages) == 0 {
			return missing
		}
	case r.InputIDs != nil:
		r.prompt = r.InputIDs
	case r.Text != nil:
		r.text = *r.Text
	default:
		raw := bytes.TrimSpace(r.Prompt)
		if json.Unmarshal(raw, &r.text) == nil && len(raw) > 0 && raw[0] == '"' {
			break
		}
		if json.Unmarshal(raw, &r.prompt) != nil || len(r.prompt) == 0 {
			return missing
		}
		if s.p.Dialect == "vllmcpp" {
			// An array of ids stops that engine for good, while its /health goes on answering 200.
			s.dead.Store(true)
			return errDead
		}
	}
	if r.prompt == nil {
		r.prompt = Tokenize(r.text)
	}
	if len(r.prompt) == 0 {
		return missing
	}
	r.promptTokens = len(r.prompt)
	return nil
}

var errDead = &refusal{http.StatusInternalServerError, "InternalServerError",
	"EngineCore encountered an issue. See stack trace (above) for the root cause. [request submitted to a stopped AsyncLLM]"}

// limit applies the context: a prompt that is too long is refused, and a sum that is too long is shortened without a word
// by every engine but SGLang, which refuses it.
func (s *Server) limit(r *request) error {
	r.tokens = 16
	if s.p.Dialect == "llamacpp" {
		r.tokens = s.p.Context
	}
	for _, n := range []*int{r.MaxTokens, r.MaxCompletionTokens, r.NPredict, r.SamplingParams.MaxNewTokens} {
		if n != nil {
			r.tokens = *n
		}
	}
	if r.tokens <= 0 {
		return &refusal{http.StatusBadRequest, "BadRequestError", "max_tokens must be at least 1"}
	}
	n := len(r.prompt)
	switch {
	case n >= s.p.Context && s.p.Dialect == "llamacpp":
		return &refusal{http.StatusBadRequest, "exceed_context_size_error",
			fmt.Sprintf("request (%d tokens) exceeds the available context size (%d tokens), try increasing it", n, s.p.Context)}
	case n >= s.p.Context:
		return &refusal{http.StatusBadRequest, "BadRequestError",
			fmt.Sprintf("The input (%d tokens) is longer than the model's context length (%d tokens).", n, s.p.Context)}
	case n+r.tokens > s.p.Context && s.p.Dialect == "sglang":
		return &refusal{http.StatusBadRequest, "BadRequestError",
			fmt.Sprintf("Requested token count exceeds the model's maximum context length of %d tokens.", s.p.Context)}
	}
	r.tokens = min(r.tokens, s.p.Context-n)
	return nil
}

// refuse answers with the dialect's error.
func (s *Server) refuse(w http.ResponseWriter, err error) {
	var e *refusal
	if !errors.As(err, &e) {
		e = &refusal{http.StatusInternalServerError, "InternalServerError", err.Error()}
	}
	s.json(w, e.status, s.shape.error(e.status, e.kind, e.message))
}

// timings is what llama-server says of a request so far.
func (r *request) timings() object {
	prompt, predicted := 0.0, 0.0
	if r.firstToken > 0 {
		prompt = float64(r.firstToken-r.start) / 1e6
		predicted = float64(r.due-r.firstToken) / 1e6
	}
	rate := func(n int, ms float64) float64 {
		if ms <= 0 {
			return 0
		}
		return float64(n) / ms * 1000
	}
	share := func(n int, ms float64) float64 {
		if n == 0 {
			return 0
		}
		return ms / float64(n)
	}
	n := r.promptTokens - r.cached
	return object{"cache_n", r.cached, "prompt_n", n, "prompt_ms", prompt, "prompt_per_token_ms", share(n, prompt), "prompt_per_second", rate(n, prompt),
		"predicted_n", r.produced, "predicted_ms", predicted, "predicted_per_token_ms", share(r.produced, predicted), "predicted_per_second", rate(r.produced, predicted)}
}
