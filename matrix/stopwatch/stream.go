package stopwatch

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"hash"

	"enginebroker/matrix"
)

// maxEvents caps the events of one response, or four for each token asked for where that is more. Above it the request
// has failed with too_many_events. A million events in one segment are read; a server that sends twice that for a few
// hundred tokens is broken.
const maxEvents = 2 << 20

func (a asked) eventCap() int { return int(max(maxEvents, 4*a.requested)) }

// hashPiece is how much text is gathered before it goes into the digest, where the text is not kept.
const hashPiece = 32 << 10

// Names of the token sources a stream can carry (matrix.TokenSource).
const (
	sourceUsage     = "usage"
	sourceRunning   = "running_usage"
	sourceIDs       = "token_ids"
	sourceTimings   = "timings"
	sourcePredicted = "tokens_predicted"
)

// asked is what was asked of the server, as far as the rules compare the answer with it.
type asked struct {
	form        string // Dialect.Form
	model       string // what an echoed model name must be; empty: the echo proves nothing
	end         string // Dialect.End
	cumulative  bool
	running     bool
	sources     []matrix.TokenSource
	requested   int64 // tokens per choice; 0: unknown
	choices     int64 // n of the request, at least 1
	ignoreEOS   bool
	cold        bool
	keepText    bool
	perChoice   bool // gather text per choice and channel
	keepDetails bool // keep the raw usage and error objects
}

// stream reads the events of one response and holds what the rules need. It is reused from request to request.
type stream struct {
	ask  asked
	emit func(matrix.StreamEvent)
	s    scanner
	c    chunk

	events, jsonEvents, tokenEvents int
	afterDone                       int
	done                            bool
	ended                           bool              // a choice has a finish reason
	finished                        int64             // choices of those asked for that have one
	stray                           matrix.Opt[int64] // the first choice that was not asked for
	finishReason                    string
	firstToken, usageEvent          int // event indices, -1: none
	firstKind                       matrix.EventKind
	firstAnswer                     int // index of the first content event, -1: none
	oneArrival                      bool
	firstAt, lastAt, answerAt       int64 // of token events and of the first content
	terminalAt                      int64
	counts                          usage
	cacheN                          matrix.Opt[int64]
	usageRaw, failureRaw            []byte
	failed                          bool
	failure                         string
	malformed                       int64 // offset of the first event that is no JSON, -1: none
	model, fingerprint              []byte
	identity                        string // what did not match

	tallies  [4]tally
	best     int // index of the tally that StreamEvent.Tokens comes from, -1: none yet
	sofar    int64
	firstSum matrix.Opt[int64]

	sum   hash.Hash
	out   []byte  // text of choice 0 in order of arrival, not yet in sum unless kept
	last  []byte  // cumulative forms: the source of the text so far
	texts []texts // of the choices asked for, by index
}

// tally is one token source that runs along the stream.
type tally struct {
	name  string
	kind  matrix.CountKind
	known bool // the dialect lists it
	seen  bool
	back  bool // a running total fell: it is no count
	total int64
	step  matrix.Opt[int64] // brought by the event at hand
}

// texts is what one choice said; the pieces are gathered where asked.perChoice.
type texts struct {
	content, reasoning []byte
	tool               []byte
	seen, ended        bool
	finish             string
}

func (st *stream) reset(a asked, emit func(matrix.StreamEvent)) {
	sum := st.sum
	if sum == nil {
		sum = sha256.New()
	}
	sum.Reset()
	*st = stream{ask: a, emit: emit, s: scanner{key: st.s.key}, c: st.c, sum: sum, out: st.out[:0], last: st.last[:0], texts: st.texts[:0],
		model: st.model[:0], fingerprint: st.fingerprint[:0], firstToken: -1, usageEvent: -1, firstAnswer: -1, malformed: -1, best: -1}
	for i, name := range []string{sourceIDs, sourceRunning, sourcePredicted, sourceTimings} {
		t := tally{name: name, kind: matrix.CountLossy}
		for _, s := range a.sources {
			if s.Name == name {
				t.kind, t.known = s.Kind, true
			}
		}
		st.tallies[i] = t
	}
}

const (
	tallyIDs = iota
	tallyRunning
	tallyPredicted
	tallyTimings
)

func (t *tally) add(n int64) {
	t.seen, t.total, t.step = true, t.total+n, matrix.Some(n)
}

func (t *tally) set(total int64) {
	t.back = t.back || total < t.total
	step := max(0, total-t.total)
	t.seen, t.total, t.step = true, total, matrix.Some(step)
}

// event takes one dispatched event. at is the arrival of the byte that completed it, offset where its data began; failed
// says that it is named error.
func (st *stream) event(at int64, data []byte, offset int64, failed bool) {
	index := st.events
	st.events++
	if st.done {
		st.afterDone++
	}
	if string(data) == "[DONE]" {
		st.done = true
		st.emit(matrix.StreamEvent{At: at, Kind: matrix.EventDone})
		return
	}
	if !st.c.parse(&st.s, data) {
		if st.malformed < 0 {
			st.malformed = offset
		}
		if failed && !st.failed {
			st.fail(data)
		}
		st.emit(matrix.StreamEvent{At: at})
		return
	}
	st.jsonEvents++
	if failed && st.c.failure == nil {
		st.c.failure = data
	}
	if st.c.failure != nil && !st.failed {
		st.fail(st.c.failure)
	}
	if st.afterDone > 0 { // output after [DONE] is flagged and counts for nothing
		st.emit(matrix.StreamEvent{At: at})
		return
	}
	st.identify()
	e := matrix.StreamEvent{At: at, Choices: st.c.hasChoices}
	for i := range st.tallies {
		st.tallies[i].step = matrix.Opt[int64]{}
	}
	switch st.ask.form {
	case "llamacpp_native":
		st.llamacpp(&e)
	case "sglang_native":
		st.sglang(&e)
	default:
		st.openai(&e)
	}
	st.count(&e, index)
	st.mark(&e, index)
	st.emit(e)
}

// output takes a piece of output of one choice; the first non-empty piece gives the event its kind.
func (st *stream) output(e *matrix.StreamEvent, choice int64, kind matrix.EventKind, t text) {
	if t.empty() {
		return
	}
	if !e.Kind.Token() {
		e.Kind = kind
	}
	if kind == matrix.EventText && st.firstAnswer < 0 {
		st.firstAnswer, st.answerAt = st.events-1, e.At
	}
	if x := st.choice(choice); x != nil && st.ask.perChoice {
		switch kind {
		case matrix.EventReasoning:
			x.reasoning = unquote(x.reasoning, t)
		case matrix.EventTool:
			x.tool = unquote(x.tool, t)
		default:
			x.content = unquote(x.content, t)
		}
	}
	if choice != 0 {
		return
	}
	st.out = unquote(st.out, t)
	if len(st.out) >= hashPiece && !st.ask.keepText {
		st.sum.Write(st.out)
		st.out = st.out[:0]
	}
}

// choice notes that a choice was seen; nil where it was not asked for.
func (st *stream) choice(index int64) *texts {
	if index < 0 || index >= st.ask.choices {
		if !st.stray.Present() {
			st.stray = matrix.Some(index)
		}
		return nil
	}
	for int64(len(st.texts)) <= index {
		st.texts = append(st.texts, texts{})
	}
	x := &st.texts[index]
	x.seen = true
	return x
}

// finish takes a finish reason. Some say that the engine gave the request up; detail is then what else it says, as JSON.
func (st *stream) finish(e *matrix.StreamEvent, choice int64, reason text, detail []byte) {
	e.Finish = true
	name := string(reason.raw)
	if choice == 0 || !st.ended {
		st.finishReason = name
	}
	st.ended, st.terminalAt = true, e.At
	if x := st.choice(choice); x != nil {
		if !x.ended {
			st.finished++
		}
		x.ended, x.finish = true, name
	}
	if (name == "abort" || name == "error") && !st.failed { // FinishReason of vLLM and SGLang
		if len(detail) == 0 || detail[0] != '{' {
			detail = []byte(`"the engine ended the request with finish_reason ` + name + `"`)
		}
		st.fail(detail)
	}
}

// count settles how many tokens the event brought: from the first exact source seen, and from that one to the end.
func (st *stream) count(e *matrix.StreamEvent, index int) {
	if st.c.usage != nil {
		st.usageEvent = index
		if st.ask.keepDetails || !st.c.counts.completion.Present() { // the error shows a usage that does not count
			st.usageRaw = append(st.usageRaw[:0], st.c.usage...)
		}
	}
	for i := range st.tallies {
		if t := &st.tallies[i]; st.best < 0 && t.step.Present() && t.kind != matrix.CountLossy {
			st.best = i
		}
	}
	if st.best < 0 {
		return
	}
	if n, ok := st.tallies[st.best].step.Get(); ok {
		e.Tokens = matrix.Some(int(n))
		st.sofar += n
	}
}

// mark notes what is first and last.
func (st *stream) mark(e *matrix.StreamEvent, index int) {
	if !e.Kind.Token() {
		return
	}
	if st.tokenEvents == 0 {
		st.firstToken, st.firstKind, st.firstAt, st.oneArrival = index, e.Kind, e.At, true
		if st.best >= 0 {
			st.firstSum = matrix.Some(st.sofar)
		}
	}
	if st.firstAnswer < 0 && e.Kind == matrix.EventText { // a cumulative form, which has no pieces
		st.firstAnswer, st.answerAt = index, e.At
	}
	st.tokenEvents++
	st.lastAt = e.At
	st.oneArrival = st.oneArrival && e.At == st.firstAt
}

// identify holds the server to one model and one fingerprint (corpus rule 9).
func (st *stream) identify() {
	c := &st.c
	if !c.model.empty() && !bytes.Equal(c.model.raw, st.model) {
		st.model = append(st.model[:0], c.model.raw...)
		if name := string(unquote(nil, c.model)); st.ask.model != "" && name != st.ask.model && st.identity == "" {
			st.identity = "the stream says model " + name + ", asked for " + st.ask.model
		}
	}
	if !c.fingerprint.empty() && !bytes.Equal(c.fingerprint.raw, st.fingerprint) {
		if len(st.fingerprint) > 0 && st.identity == "" {
			st.identity = "system_fingerprint changed inside the stream from " + string(st.fingerprint) + " to " + string(c.fingerprint.raw)
		}
		st.fingerprint = append(st.fingerprint[:0], c.fingerprint.raw...)
	}
}

// fail takes the first error the server reported.
func (st *stream) fail(raw []byte) {
	st.failed = true
	st.failure = failureMessage(raw)
	if st.ask.keepDetails {
		st.failureRaw = bytes.Clone(raw)
	}
}

// failureMessage reads the message of an error object, or an error that is a string.
func failureMessage(raw []byte) string {
	s := scanner{b: raw}
	if s.peek() == '"' {
		return string(unquote(nil, s.str()))
	}
	message := ""
	for open := s.open('{'); open && s.member(); {
		if string(s.name) == "message" {
			message = string(unquote(nil, s.text()))
		} else {
			s.skip()
		}
	}
	if message == "" {
		return string(raw)
	}
	return message
}

// digest ends the text and returns it, where it was kept, with its sha256.
func (st *stream) digest() (kept, digest string) {
	if st.ask.form == "sglang_native" && st.ask.cumulative {
		st.out = unquote(st.out[:0], text{raw: st.last, escaped: true, set: true})
	}
	if st.tokenEvents == 0 {
		return "", ""
	}
	st.sum.Write(st.out)
	if st.ask.keepText {
		kept = string(st.out)
	}
	return kept, hex.EncodeToString(st.sum.Sum(nil))
}
