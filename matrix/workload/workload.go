// Package workload says what is asked of an engine: named workloads, run profiles, the points they make together, and
// the prompt corpus they are asked with.
//
// Stance: every number that changes the measurement is in a point or in the corpus, both are part of the method id, and
// none of them is guessed at run time. A prompt has exactly the length its point names, by the tokenizer that counted it,
// or the corpus says that nobody counted. No prompt is asked twice where a cold cache is claimed.
//
// The way it works:
//
//  1. Named, or a Workload of the user's own, validated
//  2. Points: workload × run profile → the points of the method
//  3. Grow: on a fast model, more requests, so that a repetition lasts long enough to decide anything
//  4. LimitsOf: what the points need of a server
//  5. SpecOf and Build: prompts of exact token length, disjoint per (block, point, repetition)
package workload

import (
	"fmt"
	"strconv"
	"time"

	"enginebroker/matrix"
)

// Workload is a list of points before a run profile has chosen among them and sized them.
type Workload struct {
	Name   string
	Title  string
	Source string  // where its numbers come from
	Seed   int64   // sampling seed sent to the engine with every request
	Shapes []Shape // in ascending order of load
}

// Shape is what one request of a point looks like and how many are in flight.
type Shape struct {
	ID           string // empty: c and the concurrency
	Endpoint     string // completions or chat
	PromptTokens int
	OutputTokens int
	IgnoreEOS    bool
	Concurrency  int
	Rate         matrix.Rate // zero: closed loop
	SharedPrefix int         // tokens at the head of every prompt that all prompts of the point share; 0: a cold workload
	IdleLimit    time.Duration
	TotalLimit   time.Duration
}

// named holds the shipped workloads. serve-low is the campaign's (vllm.cpp cuda-sglang-low-concurrency: 1024 in, 128 out,
// c = 1, 2, 4, 8, 16, ignore EOS, seed 0); the other two are the project's own.
var named = []Workload{
	{
		Name: "serve-low", Title: "1024 tokens in, 128 out, c = 1, 2, 4, 8, 16", Source: "vllm.cpp cuda-sglang-low-concurrency",
		Shapes: levels(Shape{Endpoint: "completions", PromptTokens: 1024, OutputTokens: 128, IgnoreEOS: true}, 1, 2, 4, 8, 16),
	},
	{
		Name: "chat-short", Title: "128 tokens in, 256 out through the chat endpoint, c = 1, 4, 8", Source: "own",
		Shapes: levels(Shape{Endpoint: "chat", PromptTokens: 128, OutputTokens: 256, IgnoreEOS: true}, 1, 4, 8),
	},
	{
		Name: "serve-ctx", Title: "a growing prompt of 2048 to 32768 tokens, 128 out, c = 1", Source: "own",
		Shapes: contexts(2048, 8192, 16384, 32768),
	},
}

func levels(s Shape, concurrency ...int) []Shape {
	out := make([]Shape, len(concurrency))
	for i, c := range concurrency {
		s.Concurrency = c
		out[i] = s
	}
	return out
}

func contexts(tokens ...int) []Shape {
	out := make([]Shape, len(tokens))
	for i, n := range tokens {
		out[i] = Shape{ID: "ctx" + strconv.Itoa(n), Endpoint: "completions", PromptTokens: n, OutputTokens: 128, IgnoreEOS: true, Concurrency: 1}
	}
	return out
}

// Default is the workload of a run that names none.
const Default = "serve-low"

// Names lists the shipped workloads.
func Names() []string {
	out := make([]string, len(named))
	for i, w := range named {
		out[i] = w.Name
	}
	return out
}

// Named returns a shipped workload.
func Named(name string) (Workload, bool) {
	for _, w := range named {
		if w.Name == name {
			return w, true
		}
	}
	return Workload{}, false
}

// Levels makes a workload of one shape at several concurrency levels, which is what a configuration file declares.
func Levels(name string, s Shape, concurrency ...int) Workload {
	return Workload{Name: name, Title: name, Source: "configuration", Shapes: levels(s, concurrency...)}
}

// OpenLoop makes a workload of one shape at several rates of one arrival process.
func OpenLoop(name string, s Shape, process string, perMinute ...int) Workload {
	w := Workload{Name: name, Title: name, Source: "configuration"}
	for _, n := range perMinute {
		s.ID, s.Rate = "r"+strconv.Itoa(n), matrix.Rate{Process: process, PerMinute: n}
		w.Shapes = append(w.Shapes, s)
	}
	return w
}

// id is the point id of a shape.
func (s Shape) id() string {
	if s.ID != "" {
		return s.ID
	}
	return "c" + strconv.Itoa(s.Concurrency)
}

// maxConcurrency bounds the requests in flight; each holds a connection and a reader.
const maxConcurrency = 4096

// Validate reports the first thing in a workload that cannot be run, by shape and field.
func (w Workload) Validate() error {
	if w.Name == "" {
		return fmt.Errorf("workload: it has no name")
	}
	if len(w.Shapes) == 0 {
		return fmt.Errorf("workload %s: it has no point; name at least one concurrency", w.Name)
	}
	seen := map[string]bool{}
	for i, s := range w.Shapes {
		if err := s.validate(); err != nil {
			return fmt.Errorf("workload %s, point %d (%s): %w", w.Name, i+1, s.id(), err)
		}
		if seen[s.id()] {
			return fmt.Errorf("workload %s: two points are called %s; give one of them another id", w.Name, s.id())
		}
		seen[s.id()] = true
	}
	return nil
}

func (s Shape) validate() error {
	switch {
	case s.Endpoint != "completions" && s.Endpoint != "chat":
		return fmt.Errorf("endpoint: %q is neither completions nor chat", s.Endpoint)
	case s.PromptTokens < 1:
		return fmt.Errorf("prompt_tokens: %d is not positive", s.PromptTokens)
	case s.OutputTokens < 2:
		return fmt.Errorf("output_tokens: %d; a time per token needs at least 2", s.OutputTokens)
	case s.Concurrency < 1 || s.Concurrency > maxConcurrency:
		return fmt.Errorf("concurrency: %d is not in 1..%d", s.Concurrency, maxConcurrency)
	case s.SharedPrefix < 0 || s.SharedPrefix >= s.PromptTokens:
		return fmt.Errorf("shared_prefix: %d is not in 0..%d (it must leave room for a part of its own in every prompt)", s.SharedPrefix, s.PromptTokens-1)
	case s.Rate.PerMinute < 0:
		return fmt.Errorf("rate: %d requests per minute", s.Rate.PerMinute)
	case !s.Rate.IsZero() && s.Rate.Process != "poisson" && s.Rate.Process != "constant":
		return fmt.Errorf("rate: process %q is neither poisson nor constant", s.Rate.Process)
	case s.IdleLimit < 0 || s.TotalLimit < 0:
		return fmt.Errorf("idle_limit, total_limit: a limit is positive, or 0 for the default")
	}
	return nil
}
