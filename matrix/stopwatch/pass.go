package stopwatch

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"enginebroker/matrix"
)

// pass is one repetition, or the warm-up, while it runs.
type pass struct {
	client   *Client
	rec      *Recording
	requests [][]byte // by index, built before the window
	due      []int64  // open loop: when each is sent; nil in closed loop
	width    int      // connections in flight, closed loop
	idle     time.Duration
	total    time.Duration
	most     int64 // bytes of one response

	clock   clock
	reader  *reader
	next    atomic.Int64
	sent    []bool // the exchange exists; each written by the one goroutine that has its index
	dials   atomic.Int64
	stopped atomic.Pointer[string]

	mu    sync.Mutex
	open  map[*conn]struct{} // to be closed where ctx ends
	ended bool               // ctx has ended
}

// newPass checks the job and builds everything the window needs.
func (c *Client) newPass(j Job) (*pass, error) {
	p := j.Point
	switch {
	case len(j.Prompts) == 0:
		return nil, fmt.Errorf("point %s: no prompts", p.ID)
	case p.Concurrency < 1 || p.Concurrency > len(c.slots):
		return nil, fmt.Errorf("point %s: concurrency %d, the client was opened for %d", p.ID, p.Concurrency, len(c.slots))
	case p.IdleLimit <= 0 || p.TotalLimit <= 0:
		return nil, fmt.Errorf("point %s: idle_limit %v and total_limit %v must be above zero; without them a hang never ends", p.ID, p.IdleLimit, p.TotalLimit)
	case j.Dialect.BaseURL != c.base.String():
		return nil, fmt.Errorf("the job's server is %s, the client was opened for %s", j.Dialect.BaseURL, c.base)
	}
	n := len(j.Prompts)
	s := &pass{client: c, width: min(p.Concurrency, n), idle: p.IdleLimit, total: p.TotalLimit, most: responseCap(j.Dialect, p),
		requests: make([][]byte, n), sent: make([]bool, n), open: map[*conn]struct{}{},
		rec: &Recording{Repetition: j.Repetition, ExpectCold: j.ExpectCold, Planned: n, CPU: -1, Exchanges: make([]Exchange, n)}}
	if !p.Rate.IsZero() {
		due, err := schedule(p.Rate, n, j.Seed)
		if err != nil {
			return nil, fmt.Errorf("point %s: %w", p.ID, err)
		}
		s.due = due
	}
	for i, prompt := range j.Prompts {
		b, err := request(j.Dialect, p, prompt, c.base)
		if err != nil {
			return nil, err
		}
		s.requests[i] = b
		s.rec.Exchanges[i] = newExchange(i, prompt, j.Dialect, p)
	}
	return s, nil
}

// newExchange preallocates the arrival log of one request: room for one segment and 320 bytes of chunk per token, the size
// of a chunk with running usage. What does not fit grows by blocks of 64 KiB to 1 MiB that are never copied.
func newExchange(i int, prompt Prompt, d matrix.Dialect, p matrix.Point) Exchange {
	x := Exchange{Index: i, Prompt: prompt.ID, Begin: -1, Sent: -1, Segments: make([]Segment, 0, p.OutputTokens+16)}
	if n, ok := prompt.Tokens.Get(); ok && p.Endpoint != "chat" { // a chat template adds what the corpus does not count
		x.Expected = matrix.Some(n + int64(d.AddedPrompt))
	}
	x.Wire = [][]byte{make([]byte, 0, min(max(1<<10+320*p.OutputTokens, 2*minRead), maxBlock))}
	return x
}

// responseCap is the most one response may have: 64 MiB, and where text and ids are cumulative 8 bytes per token and event.
func responseCap(d matrix.Dialect, p matrix.Point) int64 {
	n := int64(64 << 20)
	if d.Cumulative {
		n += 8 * int64(p.OutputTokens) * int64(p.OutputTokens)
	}
	return n
}

// run opens the window, sends, and closes it with the last response.
func (s *pass) run(ctx context.Context) {
	for _, k := range s.client.slots {
		s.open[k] = struct{}{}
		s.rec.Address = k.remote
	}
	cancel := context.AfterFunc(ctx, s.end)
	defer cancel()
	if s.due != nil {
		s.openLoop(ctx)
	} else {
		s.closedLoop()
	}
	s.rec.Start = s.clock.start
}

// closedLoop keeps width requests in flight.
func (s *pass) closedLoop() {
	var workers sync.WaitGroup
	var ready sync.WaitGroup
	start := make(chan struct{})
	for slot := range s.width {
		ready.Add(1)
		workers.Go(func() {
			ready.Done()
			<-start
			last := int64(0)
			var used *conn
			defer func() { s.drop(used) }()
			for s.running() {
				i := int(s.next.Add(1) - 1)
				if i >= len(s.requests) {
					return
				}
				x := &s.rec.Exchanges[i]
				x.Scheduled = last
				used = s.exchange(s.take(slot), used, x)
				last = x.End
			}
		})
	}
	ready.Wait()
	s.clock = newClock()
	close(start)
	workers.Wait()
}

// openLoop sends each request when it is due. A free connection is used where there is one, else one is opened.
func (s *pass) openLoop(ctx context.Context) {
	var workers sync.WaitGroup
	work := make(chan int)
	for slot := range s.client.slots {
		workers.Go(func() {
			for i := range work {
				s.drop(s.exchange(s.take(slot), nil, &s.rec.Exchanges[i]))
			}
		})
	}
	s.clock = newClock()
	for i, at := range s.due {
		s.clock.sleepUntil(at, ctx.Done())
		if !s.running() {
			break
		}
		s.rec.Exchanges[i].Scheduled = at
		select {
		case work <- i:
		default:
			workers.Go(func() { s.drop(s.exchange(nil, nil, &s.rec.Exchanges[i])) })
		}
	}
	close(work)
	workers.Wait()
}

// take hands out the connection that was opened for a slot before the window; nil once it is used.
func (s *pass) take(slot int) *conn {
	k := s.client.slots[slot]
	s.client.slots[slot] = nil
	return k
}

// running reports whether another request may be sent.
func (s *pass) running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.ended && s.stopped.Load() == nil
}

// end shuts every connection: a read in progress returns at once.
func (s *pass) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for k := range s.open {
		k.shut()
	}
}

// connect opens a connection inside the window.
func (s *pass) connect() (*conn, error) {
	s.dials.Add(1)
	k, err := dial(context.Background(), s.client.address)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		_ = k.close()
		return nil, net.ErrClosed
	}
	s.open[k] = struct{}{}
	return k, nil
}

// drop closes a connection for good; nil is none.
func (s *pass) drop(k *conn) {
	if k == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, k)
	_ = k.close()
}

// stop ends the sending of further requests; the first reason stays.
func (s *pass) stop(why string) { s.stopped.CompareAndSwap(nil, &why) }

// recording is what the pass has recorded: the exchanges that were begun, in order.
func (s *pass) recording() *Recording {
	r := s.rec
	kept := r.Exchanges[:0]
	end := int64(0)
	for i := range r.Exchanges {
		if s.sent[i] {
			kept = append(kept, r.Exchanges[i])
			end = max(end, r.Exchanges[i].End)
		}
	}
	r.Exchanges = slices.Clip(kept)
	r.End = r.Start + end
	r.Dials = int(s.dials.Load())
	if why := s.stopped.Load(); why != nil {
		r.Stopped = *why
	}
	return r
}
