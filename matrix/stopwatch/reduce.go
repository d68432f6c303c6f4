package stopwatch

import (
	"io"
	"iter"
	"slices"
	"strings"

	"enginebroker/matrix"
)

// maxBodyKept is how much of a body that is no event stream is kept to find its error message.
const maxBodyKept = 64 << 10

// Reduce turns a recording into requests, in the order of the recording, each with its Stream. It is pure: the same
// recording, dialect and point give the same requests.
func Reduce(rec *Recording, d matrix.Dialect, p matrix.Point) []matrix.Request {
	return reduce(rec, d, p, false)
}

func reduce(rec *Recording, d matrix.Dialect, p matrix.Point, keepText bool) []matrix.Request {
	r := newReducer(rec, d, p)
	r.ask.keepText = keepText
	out := make([]matrix.Request, 0, len(rec.Exchanges))
	for i := range rec.Exchanges {
		x := &rec.Exchanges[i]
		events := make([]matrix.StreamEvent, 0, len(x.Segments)+2)
		r.begin(func(e matrix.StreamEvent) { events = append(events, e) })
		x.each(r.segment)
		q := r.end(x)
		q.Stream = events
		out = append(out, q)
	}
	return out
}

// Requests reduces a recording while it is read, in memory that depends neither on the number of requests nor on the
// length of a stream. Each event goes to emit, where that is not nil, before its request is yielded; Stream stays nil.
// The first error ends the sequence.
func Requests(rd *Reader, d matrix.Dialect, p matrix.Point, emit func(matrix.StreamEvent)) iter.Seq2[matrix.Request, error] {
	if emit == nil {
		emit = func(matrix.StreamEvent) {}
	}
	return func(yield func(matrix.Request, error) bool) {
		r := newReducer(&rd.Recording, d, p)
		for {
			r.begin(emit)
			x, err := rd.next(r.segment)
			if x == nil && err == nil {
				return
			}
			if err != nil {
				yield(matrix.Request{}, err)
				return
			}
			if !yield(r.end(x), nil) {
				return
			}
		}
	}
}

// ReadRequests is Reduce of a recording that is read from r: no more of its bytes than one piece is in memory. A file that is
// cut, of another version or claims what it does not hold is an error that wraps ErrRecording, and gives no request.
func ReadRequests(r io.Reader, d matrix.Dialect, p matrix.Point) ([]matrix.Request, error) {
	rd, err := NewReader(r)
	if err != nil {
		return nil, err
	}
	out, events := []matrix.Request{}, []matrix.StreamEvent{}
	for q, err := range Requests(rd, d, p, func(e matrix.StreamEvent) { events = append(events, e) }) {
		if err != nil {
			return nil, err
		}
		q.Stream, events = events, []matrix.StreamEvent{}
		out = append(out, q)
	}
	return out, nil
}

// each hands every segment with its bytes to fn.
func (x *Exchange) each(fn func(s Segment, b []byte)) {
	var block []byte
	next := 0
	for _, s := range x.Segments {
		for left := s.Bytes; left > 0; {
			for len(block) == 0 && next < len(x.Wire) {
				block = x.Wire[next]
				next++
			}
			n := min(left, len(block))
			if n == 0 {
				return
			}
			fn(Segment{At: s.At, Lag: s.Lag, Bytes: n}, block[:n])
			block, left = block[n:], left-n
		}
	}
}

// reducer reads one response after the other; its buffers are reused.
type reducer struct {
	repetition int
	requested  int64
	ask        asked

	wire   wire
	framer framer
	stream stream
	lags   histogram
	body   []byte // of an answer that is no event stream
	r      response
	first  int64 // arrival of the first byte, -1: none
	bytes  int64
}

func newReducer(rec *Recording, d matrix.Dialect, p matrix.Point) *reducer {
	a := asked{form: d.Form, end: d.End, cumulative: d.Cumulative, running: d.RunningUsage, sources: d.Sources, requested: int64(p.OutputTokens), choices: 1,
		ignoreEOS: p.IgnoreEOS, cold: rec.ExpectCold}
	if d.EchoesModel {
		a.model = d.Model
	}
	return &reducer{repetition: rec.Repetition, requested: int64(p.OutputTokens), ask: a}
}

func (r *reducer) begin(emit func(matrix.StreamEvent)) {
	r.wire = wire{line: r.wire.line[:0], headers: r.wire.headers[:0]}
	r.framer.reset()
	r.stream.reset(r.ask, emit)
	r.lags.reset()
	r.body, r.r = r.body[:0], response{}
	r.first, r.bytes = -1, 0
}

// segment takes what one read returned.
func (r *reducer) segment(s Segment, b []byte) {
	if r.first < 0 {
		r.first = s.At
	}
	r.bytes += int64(len(b))
	if s.Lag >= 0 {
		r.lags.add(s.Lag)
	}
	for len(b) > 0 && r.wire.state != atEnd && r.wire.err == nil {
		var payload []byte
		payload, b = r.wire.next(b)
		if len(payload) > 0 {
			r.payload(s.At, payload)
		}
	}
}

// payload takes a piece of the body.
func (r *reducer) payload(at int64, b []byte) {
	if r.r.status == 0 {
		r.head()
	}
	if r.r.status != 200 || !r.r.eventStream || r.r.encoded && !r.r.decoded {
		r.body = append(r.body, b[:min(len(b), maxBodyKept-len(r.body))]...)
		return
	}
	r.framer.feed(b)
	for !r.r.tooMany {
		data, ok := r.framer.next()
		if !ok {
			break
		}
		if r.stream.events == r.ask.eventCap() {
			r.r.tooMany = true
			break
		}
		r.stream.event(at, data, r.framer.begin, r.framer.failed)
	}
}

// head notes what the head of the response says of its body.
func (r *reducer) head() {
	media, _, _ := strings.Cut(r.wire.header("content-type"), ";")
	r.r.status = r.wire.status
	r.r.eventStream = strings.EqualFold(strings.TrimSpace(media), "text/event-stream")
	if e := r.wire.header("content-encoding"); e != "" && !strings.EqualFold(e, "identity") {
		r.r.encoded = true
	}
}

// end closes the response and judges it.
func (r *reducer) end(x *Exchange) matrix.Request {
	if r.r.status == 0 && r.wire.headed() {
		r.head()
	}
	r.r.ending, r.r.cause = x.Ending, x.Error
	if r.wire.err != nil && endingReason[x.Ending] == "" {
		r.r.ending, r.r.cause = EndProtocol, r.wire.err.Error()
	}
	st := &r.stream
	st.emit(matrix.StreamEvent{At: x.End, Kind: matrix.EventEOF})
	v := r.finish()
	q := matrix.Request{
		Index: x.Index, Repetition: r.repetition, Prompt: x.Prompt, Outcome: v.outcome, Reasons: v.reasons, Flags: v.flags, Error: v.detail,
		Status: r.r.status, Scheduled: matrix.Some(x.Scheduled), Sent: stamp(x.Sent), FirstByte: stamp(r.first), End: matrix.Some(x.End),
		PromptTokens: st.counts.prompt, CompletionTokens: st.counts.completion, CachedTokens: st.cached(), ReasoningTokens: st.counts.reasoning,
		FirstTokens: st.firstSum, Requested: r.requested, ExpectedPrompt: x.Expected, Counts: st.tokenCounts(), Events: st.events,
		TokenEvents: st.tokenEvents, FinishReason: st.finishReason, Model: string(unquote(nil, text{raw: st.model, escaped: true})),
		Fingerprint: string(st.fingerprint), Bytes: r.bytes, LagP99: r.lags.quantile(0.99),
	}
	if st.tokenEvents > 0 {
		q.FirstToken, q.LastToken = matrix.Some(st.firstAt), matrix.Some(st.lastAt)
		if !q.FirstTokens.Present() {
			q.Flags = append(q.Flags, FlagFirstAssumed)
			slices.Sort(q.Flags)
		}
	}
	if st.firstAnswer >= 0 {
		q.FirstText = matrix.Some(st.answerAt)
	}
	if st.ended {
		q.Terminal = matrix.Some(st.terminalAt)
	}
	q.Text, q.TextSHA256 = st.digest()
	return q
}

// finish tells the rules how the body ended.
func (r *reducer) finish() verdict {
	r.r.bom, r.r.brokenEvent, r.r.eventTooBig = r.framer.bom, r.framer.broken(), r.framer.over
	if r.r.brokenEvent {
		r.stream.events++ // the corpus counts the event that was cut
	}
	if len(r.body) > 0 {
		c := chunk{}
		if c.parse(&scanner{}, r.body) && c.failure != nil {
			r.r.bodyError = c.failure
		}
		r.r.body = r.body
	}
	return r.stream.judge(r.r)
}

func stamp(ns int64) matrix.Opt[int64] {
	if ns < 0 {
		return matrix.Opt[int64]{}
	}
	return matrix.Some(ns)
}

// tokenCounts lists what every source counted. A source that the dialect does not list is lossy: nobody vouched for it.
func (st *stream) tokenCounts() []matrix.TokenCount {
	var out []matrix.TokenCount
	if n, ok := st.counts.completion.Get(); ok {
		kind := matrix.CountExact
		for _, s := range st.ask.sources {
			if s.Name == sourceUsage {
				kind = s.Kind
			}
		}
		out = append(out, matrix.TokenCount{Source: sourceUsage, Kind: kind, Tokens: n})
	}
	for _, t := range st.tallies {
		if t.seen {
			out = append(out, matrix.TokenCount{Source: t.name, Kind: t.kind, Tokens: t.total})
		}
	}
	return out
}
