package stopwatch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"runtime"
	"sync"

	"enginebroker/matrix"
)

// Client asks the server of one load at one point. A connection carries one request; those that a pass begins with, one per
// request in flight, are opened before its window, the others before the send stamp of their request. It runs one pass at a
// time and shares nothing between passes but connections that were not used.
type Client struct {
	base    *url.URL
	address string // in numbers
	mu      sync.Mutex
	running bool
	slots   []*conn // nil where a connection has to be opened
}

// Open resolves the dialect's server and opens one connection per request in flight. The server must be reached over plain
// HTTP: encryption would move the arrival times.
func Open(ctx context.Context, d matrix.Dialect, concurrency int) (*Client, error) {
	if concurrency < 1 {
		return nil, fmt.Errorf("concurrency is %d, must be at least 1", concurrency)
	}
	base, err := url.Parse(d.BaseURL)
	if err != nil {
		return nil, fmt.Errorf("dialect.base_url: %w", err)
	}
	if base.Scheme != "http" || base.Hostname() == "" {
		return nil, fmt.Errorf("dialect.base_url %q must be http://HOST:PORT", d.BaseURL)
	}
	port := base.Port()
	if port == "" {
		port = "80"
	}
	c := &Client{base: base, slots: make([]*conn, concurrency)}
	if err := c.find(ctx, base.Hostname(), port); err != nil {
		return nil, err
	}
	if err := c.warm(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// ErrNoConnection says that the server takes no connection: nothing was sent, and the engine is answerable for it.
var ErrNoConnection = errors.New("the server takes no connection")

// find opens the first connection, to the first address of the host at which somebody listens.
func (c *Client) find(ctx context.Context, host, port string) error {
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoConnection, err)
	}
	var errs []error
	for _, ip := range ips {
		c.address = net.JoinHostPort(ip.Unmap().String(), port)
		if c.slots[0], err = dial(ctx, c.address); err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return fmt.Errorf("%w: connection 1 of %d to %s: %w", ErrNoConnection, len(c.slots), net.JoinHostPort(host, port), errors.Join(errs...))
}

// warm opens every connection that is missing or that the server has closed meanwhile.
func (c *Client) warm(ctx context.Context) error {
	for i, k := range c.slots {
		if k != nil && !k.stale() {
			continue
		}
		if k != nil {
			_ = k.close()
			c.slots[i] = nil
		}
		k, err := dial(ctx, c.address)
		if err != nil {
			return fmt.Errorf("%w: connection %d of %d to %s: %w", ErrNoConnection, i+1, len(c.slots), c.address, err)
		}
		c.slots[i] = k
	}
	return nil
}

// Close closes the connections.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for i, k := range c.slots {
		if k != nil {
			errs = append(errs, k.close())
			c.slots[i] = nil
		}
	}
	return errors.Join(errs...)
}

// Run runs one pass and returns what was recorded. In closed loop the point's concurrency requests are in flight, and the
// next one is sent when one ends; in open loop requests are sent when the seeded schedule says, whatever is in flight.
// An error means that nothing was sent. Where ctx ends, Run returns promptly with what was recorded: requests in flight end
// with EndCancelled, and those not yet sent are missing. After a request that met a limit of the point, or could not
// connect, no further ones are sent and Stopped says so: the leg is void, and each of them would cost the same limit again.
func (c *Client) Run(ctx context.Context, j Job) (*Recording, error) {
	if err := c.claim(); err != nil {
		return nil, err
	}
	defer c.release()
	p, err := c.newPass(j)
	if err != nil {
		return nil, err
	}
	if err := c.warm(ctx); err != nil {
		return nil, err
	}
	if p.reader, err = newReader(len(c.slots)); err != nil {
		return nil, err
	}
	defer p.reader.close()
	runtime.GC() // so that a collection inside the window is rarer
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu := processCPU()
	p.run(ctx)
	if now := processCPU(); now >= 0 {
		p.rec.CPU = now - cpu
	}
	runtime.ReadMemStats(&after)
	p.rec.GCPauses, p.rec.GCPauseNs = int(after.NumGC-before.NumGC), int64(after.PauseTotalNs-before.PauseTotalNs)
	return p.recording(), nil
}

func (c *Client) claim() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running {
		return errors.New("the client runs another pass; it runs one at a time")
	}
	c.running = true
	return nil
}

func (c *Client) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running = false
}

// Once asks one prompt outside any window and keeps the text. The point gives endpoint, length, limits and seed. The error
// is about the question; what went wrong with the answer is in the request.
func Once(ctx context.Context, d matrix.Dialect, p matrix.Point, prompt Prompt) (matrix.Request, error) {
	p.Concurrency, p.Rate = 1, matrix.Rate{}
	c, err := Open(ctx, d, 1)
	if err != nil {
		return matrix.Request{}, err
	}
	rec, err := c.Run(ctx, Job{Dialect: d, Point: p, Repetition: -1, Prompts: []Prompt{prompt}})
	if err = errors.Join(err, c.Close()); err != nil {
		return matrix.Request{}, err
	}
	if len(rec.Exchanges) == 0 {
		return matrix.Request{}, fmt.Errorf("prompt %s was not sent: %w", prompt.ID, context.Cause(ctx))
	}
	return reduce(rec, d, p, true)[0], nil
}
