// Package fakeserver is what the fake servers of the Python engines share: captured answers, the arguments they were started
// with, and completions that misbehave as FAKE_MODE says: hangs, caches, counts_hits, uncounted.
package fakeserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

// Mode is how the server misbehaves; empty: it does not.
func Mode() string { return os.Getenv("FAKE_MODE") }

// Read returns a captured answer. The file data beside the program says where they lie.
func Read(name string) []byte {
	exe, err := os.Executable()
	Must(err)
	dir, err := os.ReadFile(filepath.Join(filepath.Dir(exe), "data"))
	Must(err)
	b, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), name))
	Must(err)
	return b
}

// JSON returns a captured answer that is an object.
func JSON(name string) map[string]any {
	var v map[string]any
	Must(json.Unmarshal(Read(name), &v))
	return v
}

// Args are the flags of the command line, each with what follows it.
func Args() map[string]string {
	args := map[string]string{}
	for i, a := range os.Args {
		if strings.HasPrefix(a, "--") && i+1 < len(os.Args) {
			args[a] = os.Args[i+1]
		}
	}
	return args
}

// Must ends the program where there is an error.
func Must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "fake:", err)
		os.Exit(3)
	}
}

func reply(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }

// Answer always answers alike on a path.
func Answer(path string, v any) {
	http.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { reply(w, v) })
}

// Tokenize answers with one id for each byte of the prompt.
func Tokenize() {
	http.HandleFunc("/tokenize", func(w http.ResponseWriter, r *http.Request) {
		var q struct{ Prompt string }
		_ = json.NewDecoder(r.Body).Decode(&q)
		reply(w, map[string]any{"tokens": make([]int, len(q.Prompt))})
	})
}

// Completions answers with the number of tokens that was asked for. finish completes the answer to a request for model, of
// which the choice is given apart.
func Completions(finish func(model string, answer, choice map[string]any)) {
	http.HandleFunc("/v1/completions", func(w http.ResponseWriter, r *http.Request) {
		if Mode() == "hangs" {
			<-r.Context().Done()
			return
		}
		var q struct {
			Model  string
			Prompt any
			Max    int `json:"max_tokens"`
		}
		_ = json.NewDecoder(r.Body).Decode(&q)
		n := 0
		switch p := q.Prompt.(type) {
		case string:
			n = len(p)
		case []any:
			n = len(p)
		}
		usage := map[string]any{"prompt_tokens": n, "completion_tokens": q.Max, "prompt_tokens_details": map[string]any{"cached_tokens": 0}}
		switch Mode() {
		case "caches":
			usage["prompt_tokens_details"] = map[string]any{"cached_tokens": n - 1}
		case "counts_hits", "uncounted":
			usage["prompt_tokens_details"] = nil
		}
		choice := map[string]any{"text": "words", "finish_reason": "length", "token_ids": make([]int, q.Max)}
		answer := map[string]any{"usage": usage, "choices": []any{choice}}
		finish(q.Model, answer, choice)
		reply(w, answer)
	})
}

// Serve listens until it is told to end.
func Serve(host, port string) {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	go func() { fmt.Fprintln(os.Stderr, http.ListenAndServe(host+":"+port, nil)) }()
	<-term
}
