package stopwatch

import (
	"context"
	"errors"
	"io"

	"enginebroker/matrix"
)

var errNotBuilt = errors.New("stopwatch: not built yet")

// Client holds the warmed connections of one load at one point.
type Client struct{}

// Open opens and warms one connection per request in flight to the dialect's server.
func Open(ctx context.Context, d matrix.Dialect, concurrency int) (*Client, error) {
	return nil, errNotBuilt
}

// Run runs one pass and returns what was recorded, also where ctx ended it early.
func (c *Client) Run(ctx context.Context, j Job) (*Recording, error) { return nil, errNotBuilt }

// Close closes the connections.
func (c *Client) Close() error { return nil }

// Once asks one prompt outside any window and keeps the text.
func Once(ctx context.Context, d matrix.Dialect, p matrix.Point, prompt Prompt) (matrix.Request, error) {
	return matrix.Request{}, errNotBuilt
}

// Reduce turns a recording into requests.
func Reduce(rec *Recording, d matrix.Dialect, p matrix.Point) []matrix.Request { return nil }

// Cost is what the client measured of itself; requests are those Reduce made of the recording.
func (r *Recording) Cost(requests []matrix.Request) matrix.ClientCost { return matrix.ClientCost{} }

// WriteTo writes the recording.
func (r *Recording) WriteTo(w io.Writer) (int64, error) { return 0, errNotBuilt }

// ReadRecording reads a recording whole.
func ReadRecording(r io.Reader) (*Recording, error) { return nil, errNotBuilt }
