package matrix

// Outcome is how one request ended. A stream yields exactly one.
type Outcome string

const (
	OutcomeOK       Outcome = "ok"
	OutcomeSuspect  Outcome = "suspect"
	OutcomeFailed   Outcome = "failed"
	OutcomeNotReady Outcome = "not_ready"
)

// EventKind is what one dispatched stream event carried.
type EventKind uint8

const (
	EventOther EventKind = iota // keep-alive chunk, empty choices
	EventRole
	EventText
	EventReasoning
	EventTool
	EventFinish
	EventUsage
	EventDone
	EventEOF
)

// Token reports whether the event carried output.
func (k EventKind) Token() bool { return k == EventText || k == EventReasoning || k == EventTool }

// StreamEvent is one dispatched event. At is ns since the window's start. Tokens is how many tokens it brought, from the
// dialect's best exact source; absent where no source says.
type StreamEvent struct {
	At      int64
	Kind    EventKind
	Tokens  Opt[int]
	Choices bool // the event had a non-empty choices array
	Finish  bool // the event carried a finish reason
}

// TokenCount is one source's count of one request's output.
type TokenCount struct {
	Source string    `json:"source"`
	Kind   CountKind `json:"kind"`
	Tokens int64     `json:"tokens"`
}

// Request is the reduced record of one request. Times are ns since the window's start.
type Request struct {
	Index      int      `json:"index"`
	Repetition int      `json:"repetition"` // -1 for warm-up
	Prompt     string   `json:"prompt"`     // prompt id in the corpus
	Outcome    Outcome  `json:"outcome"`
	Reasons    []string `json:"reasons,omitempty"`
	Flags      []string `json:"flags,omitempty"`
	Error      string   `json:"error,omitempty"`
	Status     int      `json:"status,omitempty"`

	Scheduled  Opt[int64] `json:"scheduled_ns,omitzero"` // when it should have been sent
	Sent       Opt[int64] `json:"sent_ns,omitzero"`      // write returned
	FirstByte  Opt[int64] `json:"first_byte_ns,omitzero"`
	FirstToken Opt[int64] `json:"first_token_ns,omitzero"`
	FirstText  Opt[int64] `json:"first_answer_ns,omitzero"` // first content after reasoning
	LastToken  Opt[int64] `json:"last_token_ns,omitzero"`
	Terminal   Opt[int64] `json:"terminal_ns,omitzero"` // finish marker
	End        Opt[int64] `json:"end_ns,omitzero"`

	PromptTokens     Opt[int64]   `json:"prompt_tokens,omitzero"`
	CompletionTokens Opt[int64]   `json:"completion_tokens,omitzero"`
	CachedTokens     Opt[int64]   `json:"cached_tokens,omitzero"`
	ReasoningTokens  Opt[int64]   `json:"reasoning_tokens,omitzero"`
	FirstTokens      Opt[int64]   `json:"first_tokens,omitzero"` // tokens of the first token event, from an exact source
	Requested        int64        `json:"requested"`
	ExpectedPrompt   Opt[int64]   `json:"expected_prompt,omitzero"`
	Counts           []TokenCount `json:"counts,omitempty"`
	Events           int          `json:"events"`
	TokenEvents      int          `json:"token_events"`
	FinishReason     string       `json:"finish_reason,omitempty"`
	Model            string       `json:"model,omitempty"`
	Fingerprint      string       `json:"fingerprint,omitempty"`
	TextSHA256       string       `json:"text_sha256,omitempty"`
	Text             string       `json:"text,omitempty"` // kept for canaries and preflight only
	Bytes            int64        `json:"bytes"`
	LagP99           Opt[int64]   `json:"lag_p99_ns,omitzero"` // reader lag against kernel receive stamps

	Stream []StreamEvent `json:"-"`
}

// ClientCost is what the timed client measured of itself over one repetition.
type ClientCost struct {
	LatenessP50 Opt[int64] `json:"send_lateness_p50_ns,omitzero"`
	LatenessP99 Opt[int64] `json:"send_lateness_p99_ns,omitzero"`
	LagP50      Opt[int64] `json:"reader_lag_p50_ns,omitzero"`
	LagP99      Opt[int64] `json:"reader_lag_p99_ns,omitzero"`
	CPUPerEvent Opt[int64] `json:"cpu_per_event_ns,omitzero"`
	Stalls      int        `json:"stalls"`
	GCPauses    int        `json:"gc_pauses"`
	GCPauseNs   int64      `json:"gc_pause_ns"`
	Events      int64      `json:"events"`
	Bytes       int64      `json:"bytes"`
}

// Repetition is one timed pass of a point.
type Repetition struct {
	Index    int        `json:"index"`
	Start    int64      `json:"start_ns"` // CLOCK_MONOTONIC
	End      int64      `json:"end_ns"`
	Planned  int        `json:"planned"`
	Requests []Request  `json:"requests"`
	Client   ClientCost `json:"client"`

	// Daemon is what the process did inside this window beside measuring, where it serves others too.
	Daemon []DaemonWork `json:"daemon,omitempty"`
}

// DaemonWork is what a daemon did inside one timed window for one kind of request.
type DaemonWork struct {
	Request string `json:"request"` // method of broker.v1
	Times   int    `json:"times"`
	// Busy is processor time in ns. For expensive work that had begun before the window and was not over it is the time
	// that it was at work inside: what it has others do for it is not seen.
	Busy int64 `json:"busy_ns"`
}
