package stopwatch

import (
	"context"
	"errors"

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
