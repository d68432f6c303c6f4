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

// exchange sends one request over a connection of its own and records the answer. It returns the connection, used up, nil where
// there was none. A connection carries one request: llama-server b11669 announces keep-alive and closes after a streamed
// answer, and a client that never retries loses every second request to that race. The same holds for every engine, so that
// none is asked in another way than the others. k is a connection that was opened before, nil: one is opened now, before the
// send stamp. used is the connection of the request before this one: it is closed once this one is sent, whose lateness that
// would be.
func (s *pass) exchange(k, used *conn, x *Exchange) *conn {
	s.sent[x.Index] = true
	defer s.settle(x)
	deadline := time.Now().Add(s.total)
	k, ok := s.send(k, x, deadline)
	s.drop(used)
	if ok {
		s.reader.receive(&intake{pass: s, conn: k, x: x, block: x.Wire[0], deadline: deadline, last: time.Now(), ended: make(chan struct{})})
	}
	return k
}

// send reports whether an answer is to be expected; where not, the exchange says why.
func (s *pass) send(k *conn, x *Exchange, deadline time.Time) (*conn, bool) {
	if k != nil && k.stale() {
		s.drop(k)
		k = nil
	}
	if k == nil {
		var err error
		if k, err = s.connect(); err != nil {
			x.Ending, x.Error, x.End = EndDial, err.Error(), s.clock.now()
			return nil, false
		}
	}
	x.Begin = s.clock.now()
	err := k.write(s.requests[x.Index], deadline)
	x.Sent = s.clock.now()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		x.Ending, x.Error, x.End = EndTotal, fmt.Sprintf("the request could not be written within the total limit of %v", s.total), x.Sent
	case err != nil:
		x.Ending, x.Error, x.End = EndWrite, "write: "+err.Error(), x.Sent
	}
	return k, err == nil
}

// intake is an answer that is being read into the arrival log, until HTTP framing says that it is whole.
type intake struct {
	pass     *pass
	conn     *conn
	x        *Exchange
	wire     wire
	block    []byte // the last of x.Wire
	size     int64
	last     time.Time // of the last byte
	deadline time.Time
	ended    chan struct{}
}

// limit is when the request has met its idle or its total limit.
func (i *intake) limit() time.Time {
	if t := i.last.Add(i.pass.idle); t.Before(i.deadline) {
		return t
	}
	return i.deadline
}

// room is where the next read goes.
func (i *intake) room() []byte {
	if cap(i.block)-len(i.block) < minRead {
		i.x.Wire[len(i.x.Wire)-1] = i.block
		i.block = make([]byte, 0, min(max(2*cap(i.block), maxRead), maxBlock))
		i.x.Wire = append(i.x.Wire, i.block)
	}
	return i.block[len(i.block):min(cap(i.block), len(i.block)+maxRead)]
}

// took records a read into room. It reports that the answer has ended.
func (i *intake) took(r reading) bool {
	x := i.x
	if r.err != nil {
		x.Wire[len(x.Wire)-1] = i.block
		i.end(r)
		return true
	}
	i.last = r.at
	rest := i.block[len(i.block) : len(i.block)+r.n]
	i.block = i.block[:len(i.block)+r.n]
	x.Segments = append(x.Segments, Segment{At: i.pass.clock.at(r.at), Lag: r.lag, Bytes: r.n})
	i.size += int64(r.n)
	for len(rest) > 0 && i.wire.state != atEnd && i.wire.err == nil {
		_, rest = i.wire.next(rest)
	}
	switch {
	case i.wire.err != nil:
		x.Ending, x.Error = EndProtocol, i.wire.err.Error()
	case i.wire.state == atEnd:
		x.Ending = EndClean
	case i.size > i.pass.most:
		x.Ending, x.Error = EndOversize, fmt.Sprintf("the answer is larger than the cap of %d bytes", i.pass.most)
	default:
		return false
	}
	x.Wire[len(x.Wire)-1] = i.block
	x.End = i.pass.clock.at(r.at)
	return true
}

// end says why reading ended without the answer being whole.
func (i *intake) end(r reading) {
	x, s := i.x, i.pass
	x.End = s.clock.at(r.at)
	switch {
	case errors.Is(r.err, os.ErrDeadlineExceeded) && !r.at.Before(i.deadline):
		x.Ending, x.Error = EndTotal, fmt.Sprintf("not finished within the total limit of %v", s.total)
	case errors.Is(r.err, os.ErrDeadlineExceeded):
		x.Ending, x.Error = EndIdle, fmt.Sprintf("no byte came for the idle limit of %v", s.idle)
	case errors.Is(r.err, io.EOF) && i.wire.state == inRest:
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
