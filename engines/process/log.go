package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// logFile is the bounded log of one server. The server writes into the file itself, through an appending descriptor, so
// that no line costs us a wake-up inside a timed window and none is lost when we die. Rotation therefore copies and
// truncates; lines written between the two are lost, and the fresh part says so in its first line.
type logFile struct {
	path  string
	limit int64
	f     *os.File
}

func openLog(path string, limit int64) (*logFile, error) {
	if limit <= 0 {
		limit = DefaultLogLimit
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("log %s exists already: evidence is never overwritten, name another file", path)
	}
	if err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	return &logFile{path: path, limit: limit, f: f}, nil
}

// rotate moves a log that outgrew half its limit to PATH.1; the limit bounds both parts together.
func (l *logFile) rotate() error {
	info, err := l.f.Stat()
	if err != nil || info.Size() <= l.limit/2 {
		return err
	}
	src, err := os.Open(l.path)
	if err != nil {
		return err
	}
	defer src.Close()
	// A server that writes faster than we look may have gone far over the limit: keep its last part.
	if _, err := src.Seek(max(0, info.Size()-l.limit/2), io.SeekStart); err != nil {
		return err
	}
	old, err := os.Create(l.path + ".1")
	if err != nil {
		return err
	}
	_, err = io.Copy(old, src)
	if cerr := old.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = l.f.Truncate(0)
	}
	if err == nil {
		_, err = fmt.Fprintf(l.f, "[log rotated: %d bytes so far, the last of them in %s.1; lines written during the move are lost]\n", info.Size(), l.path)
	}
	return err
}

// close may be called twice.
func (l *logFile) close() error {
	if err := l.f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// tailBytes bounds what Tail reads of one file: 400 lines of a real engine are far below it.
const tailBytes = 1 << 20

// Tail returns the last n lines of a log, going back into the rotated part where the current one is short.
func Tail(path string, n int) ([]string, error) {
	lines, err := tailFile(path)
	if err != nil {
		return nil, err
	}
	if len(lines) < n {
		if old, err := tailFile(path + ".1"); err == nil {
			lines = append(old, lines...)
		}
	}
	return lines[max(0, len(lines)-n):], nil
}

func tailFile(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	from := max(0, info.Size()-tailBytes)
	b, err := io.ReadAll(io.NewSectionReader(f, from, tailBytes))
	if err != nil {
		return nil, err
	}
	if from > 0 { // the first line is cut
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			b = b[i+1:]
		}
	}
	text := strings.TrimRight(strings.ToValidUTF8(string(b), "\uFFFD"), "\r\n")
	if text == "" {
		return nil, nil
	}
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], "\r")
	}
	return lines, nil
}

// follower hands on the lines of a growing log, each once.
type follower struct {
	path string
	at   int64
	part []byte
}

// next returns the complete lines that arrived since the last call. A log that became shorter was rotated.
func (f *follower) next() []string {
	file, err := os.Open(f.path)
	if err != nil {
		return nil
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil
	}
	if info.Size() < f.at {
		f.at, f.part = 0, nil
	}
	b, err := io.ReadAll(io.NewSectionReader(file, f.at, tailBytes))
	if err != nil {
		return nil
	}
	f.at += int64(len(b))
	b = append(f.part, b...)
	i := bytes.LastIndexByte(b, '\n')
	if i < 0 {
		f.part = b[max(0, len(b)-tailBytes):]
		return nil
	}
	f.part = bytes.Clone(b[i+1:])
	return strings.Split(strings.ToValidUTF8(string(b[:i]), "\uFFFD"), "\n")
}
