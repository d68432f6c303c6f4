package stopwatch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"enginebroker/matrix"
)

// userAgent names the client to the server; what identifies a measurement is matrix.Method.Client.
const userAgent = "broker-stopwatch/1"

// request writes one HTTP request whole, so that nothing is built inside the window. Every sampling field is sent (greedy,
// protocol §8 sampling): an engine's own defaults, or those of a checkpoint's generation_config, never decide.
func request(d matrix.Dialect, p matrix.Point, prompt Prompt, base *url.URL) ([]byte, error) {
	fields, path, err := fields(d, p, prompt)
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(path, "/") || strings.ContainsFunc(path, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return nil, fmt.Errorf("the dialect's path for %s is %q, must begin with / and hold no spaces", p.Endpoint, path)
	}
	if err := merge(fields, d.Body, "dialect.body"); err != nil {
		return nil, err
	}
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(fields); err != nil {
		return nil, fmt.Errorf("dialect.body: %w", err)
	}
	body.Truncate(body.Len() - 1)
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: %s\r\nAccept: text/event-stream\r\nAccept-Encoding: identity\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n", strings.TrimSuffix(base.EscapedPath(), "/")+path, base.Host, userAgent, body.Len())
	if err := writeHeaders(&b, d.Headers); err != nil {
		return nil, err
	}
	b.WriteString("\r\n")
	b.Write(body.Bytes())
	return b.Bytes(), nil
}

// ours are the headers that decide framing, encoding and the connection.
var ours = []string{"host", "user-agent", "accept", "accept-encoding", "content-type", "content-length", "transfer-encoding", "connection", "expect", "upgrade"}

func writeHeaders(b *bytes.Buffer, headers map[string]string) error {
	names := make([]string, 0, len(headers))
	for name, value := range headers {
		if slices.Contains(ours, strings.ToLower(name)) {
			return fmt.Errorf("dialect header %s is set by the client; leave it out", name)
		}
		if name == "" || strings.ContainsAny(name, " \t\r\n:") || strings.ContainsAny(value, "\r\n") {
			return fmt.Errorf("dialect header %q is malformed", name)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(b, "%s: %s\r\n", name, headers[name])
	}
	return nil
}

// fields are the body fields of one request in the dialect's form, and the path it goes to.
func fields(d matrix.Dialect, p matrix.Point, prompt Prompt) (map[string]any, string, error) {
	if p.OutputTokens < 1 {
		return nil, "", fmt.Errorf("point %s: output_tokens is %d, must be at least 1", p.ID, p.OutputTokens)
	}
	chat := p.Endpoint == "chat"
	if !chat && p.Endpoint != "completions" {
		return nil, "", fmt.Errorf("point %s: endpoint %q is not completions or chat", p.ID, p.Endpoint)
	}
	limit := d.MaxTokensField
	if limit == "" {
		return nil, "", fmt.Errorf("dialect.max_tokens_field is empty; an unset limit would leave the length to the server")
	}
	sampling := map[string]any{"temperature": 0, "top_p": 1, "ignore_eos": p.IgnoreEOS, limit: p.OutputTokens}
	if chat {
		if d.Form != "openai" && d.Form != "" {
			return nil, "", fmt.Errorf("dialect form %s has no chat; use an openai form", d.Form)
		}
		sampling["messages"] = []map[string]string{{"role": "user", "content": prompt.Text}}
		if prompt.Text == "" {
			return nil, "", fmt.Errorf("prompt %s has no text; chat takes text alone", prompt.ID)
		}
		return openAI(sampling, d, p), d.ChatPath, nil
	}
	ids := d.PromptForm == "ids"
	switch {
	case !ids && d.PromptForm != "text":
		return nil, "", fmt.Errorf("dialect.prompt_form %q is not text or ids", d.PromptForm)
	case ids && len(prompt.IDs) == 0:
		return nil, "", fmt.Errorf("prompt %s has no token ids, the dialect asks for them", prompt.ID)
	case !ids && prompt.Text == "":
		return nil, "", fmt.Errorf("prompt %s has no text, the dialect asks for it", prompt.ID)
	}
	var value any = prompt.Text
	if ids {
		value = prompt.IDs
	}
	switch d.Form {
	case "openai", "":
		sampling["prompt"] = value
		return openAI(sampling, d, p), d.Path, nil
	case "llamacpp_native":
		sampling["prompt"], sampling["stream"], sampling["seed"] = value, true, p.Seed
		return sampling, d.Path, nil
	case "sglang_native":
		name := "text"
		if ids {
			name = "input_ids"
		}
		sampling["sampling_seed"] = p.Seed
		return map[string]any{name: value, "sampling_params": sampling, "stream": true}, d.Path, nil
	}
	return nil, "", fmt.Errorf("dialect.form %q is not openai, llamacpp_native or sglang_native", d.Form)
}

func openAI(f map[string]any, d matrix.Dialect, p matrix.Point) map[string]any {
	f["model"], f["stream"], f["seed"] = d.Model, true, p.Seed
	options := map[string]any{"include_usage": true}
	if d.RunningUsage {
		options["continuous_usage_stats"] = true
	}
	if d.Usage != "none" {
		f["stream_options"] = options
	}
	return f
}

// merge lays the dialect's fields over the method's. What the method sets stays: a dialect that says otherwise is an error.
func merge(dst, src map[string]any, path string) error {
	for name, value := range src {
		have, ok := dst[name]
		if !ok {
			dst[name] = value
			continue
		}
		a, isMap := have.(map[string]any)
		b, alsoMap := value.(map[string]any)
		if isMap && alsoMap {
			if err := merge(a, b, path+"."+name); err != nil {
				return err
			}
			continue
		}
		x, err := json.Marshal(have)
		if err != nil {
			return fmt.Errorf("%s.%s: %w", path, name, err)
		}
		y, err := json.Marshal(value)
		if err != nil {
			return fmt.Errorf("%s.%s: %w", path, name, err)
		}
		if !bytes.Equal(x, y) {
			return fmt.Errorf("%s.%s is %s, the method says %s; leave it out of the dialect", path, name, y, x)
		}
	}
	return nil
}
