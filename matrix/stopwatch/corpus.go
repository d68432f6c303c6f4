package stopwatch

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"enginebroker/matrix"
	"enginebroker/matrix/regular"
)

const (
	maxCorpusBody = 256 << 20 // of one corpus file, decoded
	maxFed        = 1 << 20   // of a body, between two looks at whether to go on
	maxChoices    = 1024      // that a recorded request asked for
	maxAsked      = 1 << 32   // tokens that it asked for
	maxInline     = 2000      // runes of content that a record writes out; longer content is given by its hash
)

// companion is the description beside a recorded stream (testdata/sse/README.md).
type companion struct {
	ID       string `json:"id"`
	Body     string `json:"body"`
	Endpoint string `json:"endpoint"` // chat, completions, llamacpp_native or sglang_native
	HTTP     struct {
		Status  int               `json:"status"`
		Headers map[string]string `json:"headers"`
	} `json:"http"`
	Request struct {
		Model      string `json:"model"`
		MaxTokens  int64  `json:"max_tokens"`
		IgnoreEOS  bool   `json:"ignore_eos"`
		ExpectCold bool   `json:"expect_cold"`
		N          int64  `json:"n"`
	} `json:"request"`
	Transport struct {
		Segments json.RawMessage `json:"segments"`
		End      string          `json:"end"`
	} `json:"transport"`
	Expect json.RawMessage `json:"expect"`
}

// CorpusRecord is what a recorded stream parses to, in the words and the order of the corpus.
type CorpusRecord struct {
	SSEEvents       int                     `json:"sse_events"`
	Comments        int                     `json:"comments"`
	JSONEvents      int                     `json:"json_events"`
	TokenEvents     int                     `json:"token_events"`
	FirstTokenEvent matrix.Opt[int]         `json:"first_token_event"`
	FirstTokenKind  matrix.Opt[string]      `json:"first_token_kind"`
	Content         matrix.Opt[string]      `json:"content,omitzero"`
	Reasoning       string                  `json:"reasoning"`
	ToolArgs        string                  `json:"tool_args"`
	PerChoice       map[string]CorpusChoice `json:"per_choice"`
	Usage           json.RawMessage         `json:"usage"`
	UsageEvent      matrix.Opt[int]         `json:"usage_event"`
	FinishReason    matrix.Opt[string]      `json:"finish_reason"`
	Done            bool                    `json:"done"`
	EventsAfterDone int                     `json:"events_after_done"`
	Error           *CorpusError            `json:"error"`
	Flags           []string                `json:"flags"`
	Reasons         []string                `json:"reasons"`
	Verdict         matrix.Outcome          `json:"verdict"`
	ContentSHA256   string                  `json:"content_sha256,omitempty"`
	ContentRunes    int                     `json:"content_len_runes,omitempty"`
	Timing          *CorpusTiming           `json:"timing,omitempty"`

	id     string
	expect json.RawMessage
}

// CorpusChoice is one choice of a stream that asked for several.
type CorpusChoice struct {
	Content      string             `json:"content"`
	Reasoning    string             `json:"reasoning"`
	FinishReason matrix.Opt[string] `json:"finish_reason"`
}

// CorpusError is the error a server reported, its members as they stood.
type CorpusError struct {
	Message json.RawMessage `json:"message"`
	Type    json.RawMessage `json:"type"`
	Code    json.RawMessage `json:"code"`
}

// CorpusTiming says what may be derived from the arrivals; absent where the token count cannot be trusted.
type CorpusTiming struct {
	PerTokenITL bool            `json:"per_token_itl_valid"`
	FirstAnswer matrix.Opt[int] `json:"first_answer_event,omitzero"` // the first content after reasoning
	Why         string          `json:"why,omitempty"`
}

// ID is the companion's id.
func (r CorpusRecord) ID() string { return r.id }

// JSON writes the record as the corpus writes it: indented by one space, text unescaped.
func (r CorpusRecord) JSON() ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	if err := enc.Encode(r); err != nil {
		return nil, fmt.Errorf("%s: %w", r.id, err)
	}
	return b.Bytes(), nil
}

// ParseFile parses a recorded stream in the corpus format. path names the companion (.json) or the body beside it (.txt).
// An error is about the files; what is wrong with the stream is in the record.
func ParseFile(ctx context.Context, path string) (CorpusRecord, error) {
	c, body, err := readCompanion(path)
	if err != nil {
		return CorpusRecord{}, err
	}
	cuts, err := c.cuts(body)
	if err != nil {
		return CorpusRecord{}, fmt.Errorf("%s: %w", path, err)
	}
	return c.parse(ctx, body, cuts)
}

func readCompanion(path string) (c companion, body []byte, err error) {
	if ext := filepath.Ext(path); ext != ".json" {
		path = strings.TrimSuffix(path, ext) + ".json"
	}
	raw, err := regular.ReadFile(path, maxCorpusBody)
	if err != nil {
		return c, nil, fmt.Errorf("a recorded stream needs its companion (the corpus format): %w", err)
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return c, nil, fmt.Errorf("%s: %w", path, err)
	}
	switch {
	case c.Body == "" || filepath.Base(c.Body) != c.Body:
		return c, nil, fmt.Errorf("%s: body %q must be the name of a file beside it", path, c.Body)
	case c.HTTP.Status < 100 || c.HTTP.Status > 999:
		return c, nil, fmt.Errorf("%s: http.status %d is no HTTP status", path, c.HTTP.Status)
	case !slices.Contains([]string{"chat", "completions", "llamacpp_native", "sglang_native"}, c.Endpoint):
		return c, nil, fmt.Errorf("%s: endpoint %q is not chat, completions, llamacpp_native or sglang_native", path, c.Endpoint)
	case c.Request.N < 0 || c.Request.N > maxChoices:
		return c, nil, fmt.Errorf("%s: request.n %d is not in 1..%d", path, c.Request.N, maxChoices)
	case c.Request.N > 1 && strings.HasSuffix(c.Endpoint, "_native"):
		return c, nil, fmt.Errorf("%s: request.n %d: %s has one choice; leave it out", path, c.Request.N, c.Endpoint)
	case c.Request.MaxTokens < 0 || c.Request.MaxTokens > maxAsked:
		return c, nil, fmt.Errorf("%s: request.max_tokens %d is not in 0..%d", path, c.Request.MaxTokens, int64(maxAsked))
	case len(c.Expect) > 0 && c.Expect[0] != '{' && string(c.Expect) != "null":
		return c, nil, fmt.Errorf("%s: expect must be an object: a record as broker stream prints it", path)
	case c.Transport.End != "clean" && c.Transport.End != "reset":
		return c, nil, fmt.Errorf("%s: transport.end %q is not clean or reset", path, c.Transport.End)
	}
	body, err = regular.ReadFile(filepath.Join(filepath.Dir(path), c.Body), maxCorpusBody)
	return c, body, err
}

func readCapped(r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxCorpusBody+1))
	if err == nil && len(b) > maxCorpusBody {
		err = fmt.Errorf("it is larger than %d bytes", maxCorpusBody)
	}
	return b, err
}

// cuts returns where the body was cut into segments: the offsets that begin a new one.
func (c companion) cuts(body []byte) ([]int, error) {
	switch raw := string(bytes.TrimSpace(c.Transport.Segments)); raw {
	case "", "null":
		return eventCuts(body), nil
	case `"every-byte"`:
		return everyByte(body), nil
	}
	var cuts []int
	if err := json.Unmarshal(c.Transport.Segments, &cuts); err != nil {
		return nil, fmt.Errorf("transport.segments: %w", err)
	}
	if !slices.IsSorted(cuts) || len(cuts) > 0 && (cuts[0] < 0 || cuts[len(cuts)-1] > len(body)) {
		return nil, fmt.Errorf("transport.segments: offsets must ascend within the body's %d bytes", len(body))
	}
	return cuts, nil
}

func everyByte(body []byte) []int {
	cuts := make([]int, len(body))
	for i := range cuts {
		cuts[i] = i
	}
	return cuts
}

// eventCuts cuts after every blank line: one write per event.
func eventCuts(body []byte) []int {
	var cuts []int
	blank := true // the line at hand is empty so far
	for i := 0; i < len(body); i++ {
		if body[i] != '\n' && body[i] != '\r' {
			blank = false
			continue
		}
		if body[i] == '\r' && i+1 < len(body) && body[i+1] == '\n' {
			i++
		}
		if blank {
			cuts = append(cuts, i+1)
		}
		blank = true
	}
	return cuts
}

// parse runs the body through the reducer with these cuts; segments arrive 1 ms apart. The error is the end of ctx.
func (c companion) parse(ctx context.Context, body []byte, cuts []int) (CorpusRecord, error) {
	a := asked{form: c.Endpoint, model: c.Request.Model, requested: c.Request.MaxTokens, choices: max(c.Request.N, 1), ignoreEOS: c.Request.IgnoreEOS,
		cold: c.Request.ExpectCold, perChoice: true, keepDetails: true}
	if a.form == "llamacpp_native" {
		a.end = "stop_true"
	}
	a.cumulative = a.form == "sglang_native"
	r := &reducer{ask: a}
	r.begin(func(matrix.StreamEvent) {})
	r.wire.status = c.HTTP.Status
	for k, v := range c.HTTP.Headers {
		r.wire.headers = append(r.wire.headers, header{strings.ToLower(k), v})
	}
	r.head()
	if r.r.encoded {
		body, cuts = decode(body, r)
	}
	last := 0
	for i, cut := range append(slices.Clone(cuts), len(body)) {
		for last < cut {
			if err := ctx.Err(); err != nil {
				return CorpusRecord{}, err
			}
			next := min(cut, last+maxFed)
			r.payload(int64(i)*1e6, body[last:next])
			last = next
		}
	}
	if c.Transport.End == "reset" {
		r.r.ending = EndReset
	}
	v := r.finish()
	if r.r.ending == EndReset { // the corpus says it in transport.end
		v.flags = slices.DeleteFunc(v.flags, func(f string) bool { return f == flagLost })
	}
	return r.record(c, v), nil
}

// decode undoes gzip, the one encoding recorded streams have; anything else stays encoded and fails.
func decode(body []byte, r *reducer) ([]byte, []int) {
	if !strings.EqualFold(r.wire.header("content-encoding"), "gzip") {
		return body, nil
	}
	z, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return body, nil
	}
	plain, err := readCapped(z)
	if err != nil {
		return body, nil
	}
	r.r.decoded = true
	return plain, nil
}

func (r *reducer) record(c companion, v verdict) CorpusRecord {
	st := &r.stream
	rec := CorpusRecord{SSEEvents: st.events, Comments: r.framer.comments, JSONEvents: st.jsonEvents, TokenEvents: st.tokenEvents,
		FirstTokenEvent: position(st.firstToken), UsageEvent: position(st.usageEvent), PerChoice: map[string]CorpusChoice{}, Usage: st.usageRaw,
		Done: st.done, EventsAfterDone: st.afterDone, Flags: append([]string{}, v.flags...), Reasons: append([]string{}, v.reasons...),
		Verdict: v.outcome, id: c.ID, expect: c.Expect}
	if rec.Usage == nil {
		rec.Usage = json.RawMessage("null")
	}
	if st.tokenEvents > 0 {
		rec.FirstTokenKind = matrix.Some(map[matrix.EventKind]string{matrix.EventText: "content", matrix.EventReasoning: "reasoning", matrix.EventTool: "tool_call"}[st.firstKind])
	}
	if st.ended {
		rec.FinishReason = matrix.Some(st.finishReason)
	}
	r.texts(&rec, c)
	if st.failureRaw != nil {
		rec.Error = corpusError(st.failureRaw)
	} else if r.r.bodyError != nil {
		rec.Error = corpusError(r.r.bodyError)
	}
	if v.outcome == matrix.OutcomeOK || v.outcome == matrix.OutcomeSuspect {
		rec.Timing = r.timing(v)
	}
	return rec
}

func position(i int) matrix.Opt[int] {
	if i < 0 {
		return matrix.Opt[int]{}
	}
	return matrix.Some(i)
}

func (r *reducer) texts(rec *CorpusRecord, c companion) {
	st := &r.stream
	first := texts{}
	for i, x := range st.texts {
		if i == 0 {
			first = x
		}
		if c.Request.N > 1 && x.seen {
			choice := CorpusChoice{Content: string(x.content), Reasoning: string(x.reasoning)}
			if x.ended {
				choice.FinishReason = matrix.Some(x.finish)
			}
			rec.PerChoice[strconv.Itoa(i)] = choice
		}
	}
	if st.ask.cumulative {
		first.content = unquote(nil, text{raw: st.last, escaped: true})
	}
	rec.Reasoning, rec.ToolArgs = string(first.reasoning), string(first.tool)
	if n := utf8.RuneCount(first.content); n > maxInline {
		sum := sha256.Sum256(first.content)
		rec.ContentSHA256, rec.ContentRunes = hex.EncodeToString(sum[:]), n
	} else {
		rec.Content = matrix.Some(string(first.content))
	}
}

// timing says whether gaps between events are gaps between tokens (corpus rule 7).
func (r *reducer) timing(v verdict) *CorpusTiming {
	for _, reason := range []string{reasonNoUsage, reasonShort, reasonConflict} {
		if slices.Contains(v.reasons, reason) {
			return nil
		}
	}
	st := &r.stream
	t := &CorpusTiming{}
	n := st.counts.completion.Or(0)
	switch {
	case r.r.encoded:
		t.Why = "compressor block boundaries, not tokens, set arrival times; send Accept-Encoding: identity"
	case int64(st.tokenEvents) != n:
		t.Why = fmt.Sprintf("%d tokens came in %d events", n, st.tokenEvents)
	case st.oneArrival:
		t.Why = "all token events share one arrival time; ITL is a property of the socket, not the engine"
	default:
		t.PerTokenITL = true
		if st.firstKind != matrix.EventText {
			t.FirstAnswer = position(st.firstAnswer)
		}
	}
	return t
}

// corpusError keeps message, type and code of an error object; anything else is the message.
func corpusError(raw []byte) *CorpusError {
	e := &CorpusError{}
	if json.Unmarshal(raw, e) == nil {
		return e
	}
	e.Message = raw
	if !json.Valid(raw) {
		e.Message, _ = json.Marshal(string(raw)) // a string always is JSON
	}
	return e
}
