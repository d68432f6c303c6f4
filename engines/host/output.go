package host

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Bounds of what is kept of a plugin's output: a handshake with a certificate is some 1 KiB, a log line is cut at go-plugin's
// own limit of 64 KiB, and the last words of a dying plugin are the first lines of a panic.
const (
	maxHandshake = 8 << 10
	maxLine      = 64 << 10
	tailLines    = 3
	printedLines = 20
)

// firstLine takes a plugin's stdout. A reader gets the first line once it is complete, or what there is of it when the
// output ends or is too long to be a handshake; the rest is handed on.
type firstLine struct {
	mu       sync.Mutex
	line     []byte
	bytes    int
	complete bool // ends with a newline
	closed   bool
	ready    chan struct{}
	unread   io.Reader
	rest     io.Writer
}

func newFirstLine(rest io.Writer) *firstLine {
	return &firstLine{ready: make(chan struct{}), rest: rest}
}

func (f *firstLine) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(b)
	if !f.complete {
		f.bytes += n
	}
	if f.closed {
		if f.complete {
			_, _ = f.rest.Write(b)
		}
		return n, nil
	}
	head, rest, found := bytes.Cut(b, []byte("\n"))
	f.line = append(f.line, head[:min(len(head), maxHandshake-len(f.line))]...)
	if found {
		f.complete = true
		_, _ = f.rest.Write(rest)
	}
	if found || len(f.line) == maxHandshake {
		f.close()
	}
	return n, nil
}

func (f *firstLine) close() {
	if !f.closed {
		f.closed = true
		f.unread = bytes.NewReader(f.line)
		close(f.ready)
	}
}

// end is called when no more output comes.
func (f *firstLine) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.close()
}

// Read implements io.Reader.
func (f *firstLine) Read(b []byte) (int, error) {
	<-f.ready
	return f.unread.Read(b)
}

// seen is what there is of the line so far.
func (f *firstLine) seen() (line string, complete bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return string(f.line), f.complete
}

// total is how many bytes came without a newline.
func (f *firstLine) total() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bytes
}

// lines calls fn with each line written; one that is too long is cut.
func lines(fn func(string)) io.Writer { return &lineWriter{fn: fn} }

type lineWriter struct {
	mu      sync.Mutex
	fn      func(string)
	partial []byte
	skip    bool // the rest of a line that was cut
}

func (w *lineWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(b)
	for len(b) > 0 {
		head, rest, found := bytes.Cut(b, []byte("\n"))
		if !w.skip {
			w.partial = append(w.partial, head[:min(len(head), maxLine-len(w.partial))]...)
		}
		if found || len(w.partial) == maxLine {
			if !w.skip && len(w.partial) > 0 {
				w.fn(strings.ToValidUTF8(string(w.partial), "\uFFFD"))
			}
			w.skip = !found
			w.partial = w.partial[:0]
		}
		b = rest
	}
	return n, nil
}

// printed logs what a plugin prints where it should print nothing, and no more of it than somebody would read.
func printed(log *zap.Logger, where string) func(string) {
	var n atomic.Int64
	return func(line string) {
		level := zap.WarnLevel
		switch i := n.Add(1); {
		case i > printedLines:
			level = zap.DebugLevel
		case i == printedLines:
			line += " (what follows is logged at debug)"
		}
		log.Log(level, "printed on "+where, zap.String("line", line))
	}
}

// tail keeps the first lines of the last outburst: a panic says what it is on its first line.
type tail struct {
	mu    sync.Mutex
	lines []string
}

func (t *tail) add(line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
		t.lines = nil
	} else if len(t.lines) > 0 && (strings.HasPrefix(t.lines[0], "panic: ") || strings.HasPrefix(t.lines[0], "fatal error: ")) {
		return
	}
	t.lines = append(t.lines, line)
	if len(t.lines) > tailLines {
		t.lines = t.lines[1:]
	}
}

func (t *tail) words() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.lines, " / ")
}

var levels = map[string]zapcore.Level{
	"trace": zap.DebugLevel, "debug": zap.DebugLevel, "info": zap.InfoLevel, "warn": zap.WarnLevel, "error": zap.ErrorLevel,
}

// logLine writes a line in hclog's JSON form to log; another line it returns as it is, and false. Whatever the fields hold is
// somebody else's: go-plugin's own parser panics on an @message that is not a string.
func logLine(log *zap.Logger, line string) (message string, level zapcore.Level, ok bool) {
	var fields map[string]any
	if !strings.HasPrefix(line, "{") || json.Unmarshal([]byte(line), &fields) != nil {
		return line, 0, false
	}
	message, ok = fields["@message"].(string)
	if !ok {
		return line, 0, false
	}
	word, _ := fields["@level"].(string)
	if level, ok = levels[word]; !ok {
		level = zap.WarnLevel
	}
	var out []zap.Field
	for _, k := range slices.Sorted(maps.Keys(fields)) {
		if k != "@message" && k != "@level" && k != "@timestamp" {
			out = append(out, zap.Any(k, fields[k]))
		}
	}
	log.Log(level, message, out...)
	return message, level, true
}

// sink takes what go-plugin says about its own work.
type sink struct{ log *zap.Logger }

var _ hclog.SinkAdapter = sink{}

// Accept implements hclog.SinkAdapter. It is all debug: what matters to a person becomes a Problem.
func (s sink) Accept(_ string, level hclog.Level, msg string, args ...any) {
	s.log.Debug(msg, zap.Stringer("level", level), zap.Any("args", args))
}
