// Package openai is what the engines with an OpenAI-shaped HTTP server share outside timed windows: asking, polling until a
// token was generated, reading metrics, and the starting point of a dialect.
//
// Its stance: a server is ready when it generated a token as the model it was started for. An open port, a 200 from
// /health or an answered /v1/models prove nothing; all of them were seen to lie. What an answer does not say stays absent.
//
// It measures nothing. The timed client is another one and shares no code with this.
package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// maxAnswer bounds an answer that is read whole; the largest known one (SGLang's server_info) is below 1 MiB.
const maxAnswer = 16 << 20

// Client asks one server. It follows no proxy and no redirect, so that what answers is what was asked.
type Client struct {
	Base    string            // http://127.0.0.1:8080
	Headers map[string]string // may hold a key; never recorded
	http    *http.Client
}

// New returns a client for a base URL. Close it to drop its idle connections.
func New(base string, headers map[string]string) *Client {
	return &Client{Base: strings.TrimRight(base, "/"), Headers: headers, http: &http.Client{
		Transport:     &http.Transport{DisableCompression: true, IdleConnTimeout: 2 * time.Second, MaxIdleConnsPerHost: 2},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// StatusError is an answer that is not 200.
type StatusError struct {
	Method, Path string
	Status       int
	Message      string // the server's own words
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("%s %s: %d %s: %s", e.Method, e.Path, e.Status, http.StatusText(e.Status), e.Message)
}

// IsStatus reports whether err is an answer of this status.
func IsStatus(err error, status int) bool {
	e, ok := errors.AsType[*StatusError](err)
	return ok && e.Status == status
}

// Raw sends in as JSON (nil: no body) and returns the body of a 200 answer.
func (c *Client) Raw(ctx context.Context, method, path string, in any) ([]byte, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", method, path, err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.Base+path, body)
	if err != nil {
		return nil, err
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for k, v := range c.Headers {
		req.Header.Set(k, v)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("%s %s: answer cut after %d bytes: %w", method, path, len(b), err)
	}
	if len(b) > maxAnswer {
		return nil, fmt.Errorf("%s %s: answer longer than %d bytes", method, path, maxAnswer)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, &StatusError{Method: method, Path: path, Status: resp.StatusCode, Message: errorMessage(b)}
	}
	return b, nil
}

// JSON is Raw with the answer decoded into out. A 200 that carries an error object is an error.
func (c *Client) JSON(ctx context.Context, method, path string, in, out any) error {
	b, err := c.Raw(ctx, method, path, in)
	if err != nil {
		return err
	}
	if len(bytes.TrimSpace(b)) == 0 {
		return fmt.Errorf("%s %s: 200 with an empty body", method, path)
	}
	var e struct {
		Object string          `json:"object"`
		Error  json.RawMessage `json:"error"`
	}
	if json.Unmarshal(b, &e) == nil && (e.Object == "error" || len(e.Error) > 0 && string(e.Error) != "null") {
		return &StatusError{Method: method, Path: path, Status: http.StatusOK, Message: errorMessage(b)}
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("%s %s: answer is not the JSON expected: %w", method, path, err)
	}
	return nil
}

// Get is JSON with GET.
func (c *Client) Get(ctx context.Context, path string, out any) error {
	return c.JSON(ctx, http.MethodGet, path, nil, out)
}

// Post is JSON with POST.
func (c *Client) Post(ctx context.Context, path string, in, out any) error {
	return c.JSON(ctx, http.MethodPost, path, in, out)
}

// errorMessage finds the server's words in the shapes the engines use: {"error":{"message"}}, {"error":"…"},
// {"object":"error","message"}, {"detail"}.
func errorMessage(b []byte) string {
	var e struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
		Detail  json.RawMessage `json:"detail"`
	}
	if json.Unmarshal(b, &e) == nil {
		var inner struct {
			Message string `json:"message"`
		}
		var text string
		switch {
		case json.Unmarshal(e.Error, &inner) == nil && inner.Message != "":
			return inner.Message
		case json.Unmarshal(e.Error, &text) == nil && text != "":
			return text
		case e.Message != "":
			return e.Message
		case len(e.Detail) > 0:
			return string(e.Detail)
		}
	}
	text := strings.TrimSpace(strings.ToValidUTF8(string(b[:min(len(b), 300)]), "\uFFFD"))
	if text == "" {
		return "empty body"
	}
	return text
}
