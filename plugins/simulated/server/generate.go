package server

import (
	"context"
	"hash/fnv"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"time"
)

// errBroken aborts the handler so that the connection breaks without an end of the body.
var errBroken = http.ErrAbortHandler

// generate answers one generation request, streamed or not.
func (s *Server) generate(w http.ResponseWriter, hr *http.Request) {
	if s.loading(w) {
		return
	}
	if s.dead.Load() {
		s.refuse(w, errDead)
		return
	}
	r, err := s.read(w, hr)
	if err != nil {
		s.refuse(w, err)
		return
	}
	n := s.requests.Add(1)
	streamed := int64(0)
	if r.Stream {
		streamed = s.streamed.Add(1)
		if s.p.FailEvery > 0 && s.p.fails() && streamed%int64(s.p.FailEvery) == 0 {
			r.fault = s.p.FailKind
		}
	}
	from := r.start
	select { // as many at once as there are slots, the others wait and begin when they get one
	case s.slots <- struct{}{}:
	default:
		select {
		case s.slots <- struct{}{}:
			from = now()
		case <-hr.Context().Done():
			return
		}
	}
	defer func() { <-s.slots }()
	s.running.Add(1)
	defer s.running.Add(-1)
	s.prepare(r, n)
	if s.p.HangAfter > 0 && s.streamed.Load() > int64(s.p.HangAfter) {
		<-hr.Context().Done()
		return
	}
	p := &pace{s: s, r: r, at: from, slow: s.p.SlowAfter > 0 && n > int64(s.p.SlowAfter), rng: s.rng(n)}
	dies := s.p.DieAfter > 0 && streamed > int64(s.p.DieAfter)
	g := newAnswer(r.prompt, r.text, s.p.WrongAnswer, uint64(n))
	if r.Stream {
		s.stream(hr.Context(), w, r, g, p, dies)
		return
	}
	s.whole(hr.Context(), w, r, g, p)
}

// prepare fills in what the answer says of itself.
func (s *Server) prepare(r *request, n int64) {
	r.created = int(time.Now().Unix())
	r.fingerprint = s.p.Dialect + "-simulated-" + s.p.Config.Version
	r.id = s.requestID(r, n)
	s.promptTotal.Add(int64(len(r.prompt)))
	switch r.fault {
	case FaultCached:
		r.cached = max(1, len(r.prompt)/2)
		s.cachedTotal.Add(int64(r.cached))
	case FaultWrongModel:
		r.model = "another-model"
	case FaultPromptTokens:
		r.promptTokens--
	case FaultShort:
		r.tokens = max(1, r.tokens/2)
	}
}

// pace gives the absolute time of each token: no lateness of one token moves the next.
type pace struct {
	s    *Server
	r    *request
	at   time.Duration
	slow bool
	rng  *rand.Rand
}

func (p *pace) next(first bool) time.Duration {
	c := p.s.p
	d := float64(c.ITL) * (1 + c.BatchSlow*float64(max(0, p.s.running.Load()-1)))
	if first {
		d = float64(c.TTFT) + float64(c.PromptCost)*float64(len(p.r.prompt))
	}
	if c.Jitter > 0 {
		d *= 1 + c.Jitter*(2*p.rng.Float64()-1)
	}
	speed := c.Speed
	if p.slow {
		speed *= c.SlowFactor
	}
	p.at += time.Duration(d / speed)
	if c.BatchStep && c.ITL > 0 {
		step := time.Duration(float64(c.ITL) / speed)
		since := p.at - p.s.born
		return p.s.born + (since+step-1)/step*step
	}
	return p.at
}

// rng is the random source of one request: of seed, load and number, and of nothing else.
func (s *Server) rng(n int64) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(s.p.LoadID))
	return rand.New(rand.NewPCG(s.p.Seed^h.Sum64(), uint64(n)))
}

// whole answers at the end.
func (s *Server) whole(ctx context.Context, w http.ResponseWriter, r *request, g *answer, p *pace) {
	c := content{finish: "length"}
	var text strings.Builder
	at := time.Duration(0)
	for i := range r.tokens {
		at = p.next(i == 0)
		if i == 0 {
			r.firstToken = at
		}
		t := g.next()
		text.WriteString(t.text)
		c.ids = append(c.ids, t.id)
	}
	if s.alarm.wait(ctx, at) != nil {
		return
	}
	c.text, r.produced, r.due = text.String(), r.tokens, at
	s.generated.Add(int64(r.tokens))
	if r.native {
		s.json(w, http.StatusOK, s.nativeAnswer(r, c))
		return
	}
	s.json(w, http.StatusOK, s.shape.answer(r, c, s.shape.usage(r, r.produced)))
}

// stream answers event by event.
func (s *Server) stream(ctx context.Context, w http.ResponseWriter, r *request, g *answer, p *pace, dies bool) {
	failure := s.shape.error(500, "InternalServerError", "EngineCore encountered an issue. See stack trace (above) for the root cause.")
	if r.native || s.p.Dialect == "sglang" {
		failure = object{"error", object{"message", "scheduler failure", "code", 500}}
	}
	switch r.fault {
	case FaultBusy:
		s.refuse(w, &refusal{http.StatusServiceUnavailable, "ServiceUnavailableError", "The engine is overloaded."})
		return
	case FaultErrorJSON:
		s.json(w, http.StatusOK, failure)
		return
	}
	out := &events{w: w, rc: http.NewResponseController(w), r: r}
	h := w.Header()
	h.Set("Content-Type", s.shape.contentType)
	if s.p.Dialect == "llamacpp" {
		h.Set("X-Accel-Buffering", "no")
	}
	w.WriteHeader(http.StatusOK)
	out.rc.Flush()                               // as asynchronous servers do: the head is not what the first token waits for
	early := r.chat && s.p.Dialect != "llamacpp" // llama-server sends its role chunk with the first token
	if early {
		out.send(s.shape.chunk(r, s.shape.choice(r, content{role: true}), nil))
		out.flush()
	}
	breakAt := r.tokens / 2
	ownFinish := !r.native && (s.p.Dialect == "llamacpp" || s.p.Dialect == "sglang" && r.chat)
	var c content
	tokens := r.tokens
	if r.fault == FaultEmpty {
		tokens = 0
	}
	for i := range tokens {
		at := p.next(i == 0)
		t := g.next()
		c.text += t.text
		c.ids = append(c.ids, t.id)
		if i == 0 {
			r.firstToken, c.first = at, true
		}
		last := i == r.tokens-1
		broken := i == breakAt || r.fault == FaultErrorFirst
		if len(c.ids) < s.p.ChunkTokens && !last && !broken {
			continue
		}
		r.due = at
		due := func() bool { return r.fault == FaultBuffered && !last || s.alarm.wait(ctx, at) == nil }
		if broken {
			if !due() {
				return
			}
			switch {
			case dies:
				out.flush()
				os.Exit(139)
			case r.fault == FaultError || r.fault == FaultErrorFirst:
				out.send(failure)
				out.done()
				return
			case r.fault == FaultCut:
				panic(errBroken)
			case r.fault == FaultHang:
				<-ctx.Done()
				return
			case r.fault == FaultMalformed:
				out.raw("data: {\"choices\":[{\"text\":\n\n")
			}
		}
		if i+1 == r.tokens && !ownFinish && r.fault != FaultNoFinish {
			c.finish = "length"
		}
		if r.chat && !early && c.first {
			out.send(s.shape.chunk(r, s.shape.choice(r, content{role: true}), nil))
		}
		r.produced += len(c.ids)
		if r.native {
			out.send(s.nativeChunk(r, c))
		} else {
			out.send(s.shape.chunk(r, s.shape.choice(r, c), s.runningUsage(r)))
		}
		if !due() { // all that is left at the deadline is a write
			return
		}
		s.generated.Add(int64(len(c.ids)))
		if r.fault != FaultBuffered || last {
			out.flush()
		}
		c = content{}
	}
	s.finish(out, r, ownFinish)
	out.flush()
}

func (s *Server) runningUsage(r *request) object {
	if !r.StreamOptions.Running || r.fault == FaultNoUsage || s.p.Dialect == "llamacpp" {
		return nil
	}
	return s.shape.usage(r, r.produced)
}

// finish sends what follows the last token.
func (s *Server) finish(out *events, r *request, ownFinish bool) {
	var usage object
	if r.fault != FaultNoUsage {
		n := r.produced
		if r.fault == FaultUsage {
			n++
		}
		usage = s.shape.usage(r, n)
	}
	if r.native {
		if s.p.Dialect == "llamacpp" {
			out.send(s.nativeEnd(r))
		} else {
			out.done()
		}
		return
	}
	inFinish := s.shape.inFinish && !r.chat
	if ownFinish && r.fault != FaultNoFinish {
		own := object(nil)
		if inFinish {
			own = usage
		}
		out.send(s.shape.chunk(r, s.shape.choice(r, content{finish: "length"}), own))
		out.flush()
	}
	if usage != nil && !inFinish && (r.StreamOptions.IncludeUsage || s.p.Dialect == "llamacpp") {
		out.send(s.shape.chunk(r, nil, usage))
		out.flush()
	}
	if r.fault != FaultNoDone {
		out.done()
	}
}

// events writes server-sent events: they are gathered until they are flushed.
type events struct {
	w   http.ResponseWriter
	rc  *http.ResponseController
	r   *request
	buf []byte
}

func (e *events) send(o object) {
	e.buf = append(e.buf, "data: "...)
	e.buf = o.append(e.buf)
	e.buf = append(e.buf, "\n\n"...)
	e.r.events++
}

func (e *events) raw(s string) {
	e.buf = append(e.buf, s...)
	e.flush()
}

func (e *events) flush() {
	e.w.Write(e.buf) // a client that is gone ends the request's context
	e.buf = e.buf[:0]
	e.rc.Flush()
}
func (e *events) done() { e.raw("data: [DONE]\n\n") }
