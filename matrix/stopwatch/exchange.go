package stopwatch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

const (
	minRead  = 4 << 10  // room left in a block below which the next block is opened
	maxRead  = 64 << 10 // one read returns at most this
	maxBlock = 1 << 20
)

// exchange sends one request over a connection of its own and records the answer. A connection carries one request:
// llama-server b11669 announces keep-alive and closes after a streamed answer, and a client that never retries loses every
// second request to that race. The same holds for every engine, so that none is asked in another way than the others. k is
// a connection that was opened before, nil: one is opened now, before the send stamp.
func (s *pass) exchange(k *conn, x *Exchange) {
	s.sent[x.Index] = true
	defer s.settle(x)
	if k != nil && k.stale() {
		s.drop(k)
		k = nil
	}
	if k == nil {
		var err error
		if k, err = s.connect(); err != nil {
			x.Ending, x.Error, x.End = EndDial, err.Error(), s.clock.now()
			return
		}
	}
	defer s.drop(k)
	deadline := time.Now().Add(s.total)
	err := k.net.SetDeadline(deadline)
	x.Begin = s.clock.now()
	if err == nil {
		_, err = k.net.Write(s.requests[x.Index])
	}
	x.Sent = s.clock.now()
	if err != nil {
		x.Ending, x.Error, x.End = EndWrite, "write: "+err.Error(), x.Sent
		if errors.Is(err, os.ErrDeadlineExceeded) {
			x.Ending, x.Error = EndTotal, fmt.Sprintf("the request could not be written within the total limit of %v", s.total)
		}
		return
	}
	s.receive(k, x, deadline)
}

// receive reads the answer into the arrival log until HTTP framing says it is whole.
func (s *pass) receive(k *conn, x *Exchange, deadline time.Time) {
	var w wire
	block := x.Wire[0]
	var size int64
	last := time.Now()
	for {
		if cap(block)-len(block) < minRead {
			x.Wire[len(x.Wire)-1] = block
			block = make([]byte, 0, min(max(2*cap(block), maxRead), maxBlock))
			x.Wire = append(x.Wire, block)
		}
		limit := last.Add(s.idle)
		if limit.After(deadline) {
			limit = deadline
		}
		_ = k.net.SetReadDeadline(limit) // a closed connection says so in the read
		tail := block[len(block):min(cap(block), len(block)+maxRead)]
		r := k.read(tail)
		last = r.at
		if r.err != nil {
			x.Wire[len(x.Wire)-1] = block
			s.readEnd(x, &w, r, deadline)
			return
		}
		block = block[:len(block)+r.n]
		x.Segments = append(x.Segments, Segment{At: s.clock.at(r.at), Lag: r.lag, Bytes: r.n})
		size += int64(r.n)
		rest := tail[:r.n]
		for len(rest) > 0 && w.state != atEnd && w.err == nil {
			_, rest = w.next(rest)
		}
		switch {
		case w.err != nil:
			x.Ending, x.Error = EndProtocol, w.err.Error()
		case w.state == atEnd:
			x.Ending = EndClean
		case size > s.most:
			x.Ending, x.Error = EndOversize, fmt.Sprintf("the answer is larger than the cap of %d bytes", s.most)
		default:
			continue
		}
		x.Wire[len(x.Wire)-1] = block
		x.End = s.clock.at(r.at)
		return
	}
}

// readEnd says why reading ended without the answer being whole.
func (s *pass) readEnd(x *Exchange, w *wire, r reading, deadline time.Time) {
	x.End = s.clock.at(r.at)
	switch {
	case errors.Is(r.err, os.ErrDeadlineExceeded) && !r.at.Before(deadline):
		x.Ending, x.Error = EndTotal, fmt.Sprintf("not finished within the total limit of %v", s.total)
	case errors.Is(r.err, os.ErrDeadlineExceeded):
		x.Ending, x.Error = EndIdle, fmt.Sprintf("no byte came for the idle limit of %v", s.idle)
	case errors.Is(r.err, io.EOF) && w.state == inRest:
		x.Ending = EndClean
	case errors.Is(r.err, io.EOF):
		x.Ending, x.Error = EndEarly, "the server closed the connection before the answer was whole"
	default:
		x.Ending, x.Error = EndReset, r.err.Error()
	}
}

// settle marks what ended because the caller ended it, and stops the pass where going on would only repeat the failure.
func (s *pass) settle(x *Exchange) {
	s.mu.Lock()
	ended := s.ended
	s.mu.Unlock()
	if ended && x.Ending != EndClean {
		x.Ending, x.Error = EndCancelled, context.Canceled.Error()
	}
	switch x.Ending {
	case EndIdle, EndTotal, EndDial:
		s.stop(fmt.Sprintf("request %d: %s", x.Index, x.Error))
	}
}
