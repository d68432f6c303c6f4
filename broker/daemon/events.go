package daemon

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	"enginebroker/broker/service"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

// events is the log of one run. Changes of state are numbered without gaps and appended to a file before anybody hears of
// them, so that a daemon that starts again goes on counting. Progress is kept only until the next event: a watcher that
// reads slowly skips it. Publishing never waits for a watcher.
type events struct {
	run string

	mu       sync.Mutex
	file     *os.File
	list     []*brokerv1.WatchRunResponse // changes; list[i] has number i+1
	progress *brokerv1.WatchRunResponse
	fleeting int           // progress events so far
	changed  chan struct{} // closed and replaced at every event
	ended    bool          // the last change ended the run
	closed   bool          // the daemon ends
}

// openEvents reads the log of a run and opens it for more. A last line that a crash left torn is cut off: nobody heard of it.
func openEvents(path, run string) (*events, error) {
	e, whole, err := readEvents(path, run)
	if err != nil {
		return nil, err
	}
	if e.file, err = os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600); err != nil {
		return nil, err
	}
	if err := e.file.Truncate(whole); err != nil {
		return nil, errors.Join(err, e.file.Close())
	}
	e.ended = false
	return e, nil
}

// readEvents reads the log of a run that has ended; whole is the length of its good lines.
func readEvents(path, run string) (e *events, whole int64, err error) {
	e = &events{run: run, changed: make(chan struct{}), ended: true}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return e, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	s := bufio.NewScanner(bytes.NewReader(data))
	s.Buffer(nil, maxAnswerBytes)
	for s.Scan() {
		m := &brokerv1.WatchRunResponse{}
		if err := protojson.Unmarshal(s.Bytes(), m); err != nil || m.GetSequence() != int64(len(e.list)+1) {
			break
		}
		if whole += int64(len(s.Bytes())) + 1; whole > int64(len(data)) {
			whole -= int64(len(s.Bytes())) + 1 // without its end of line it may be half of a longer one
			break
		}
		e.list = append(e.list, m)
	}
	return e, whole, nil
}

// publish tells a change of state. It is written before it is told; where it cannot be written it is told all the same,
// and the error is the daemon's to log.
func (e *events) publish(m *brokerv1.WatchRunResponse, at time.Time, ends bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stamp(m, at, len(e.list)+1)
	line, err := protojson.Marshal(m)
	if err == nil && e.file != nil {
		_, err = e.file.Write(append(line, '\n'))
	}
	e.list = append(e.list, m)
	e.progress, e.ended = nil, ends
	e.wake()
	return err
}

// tell tells progress, which the next event replaces.
func (e *events) tell(m *brokerv1.WatchRunResponse, at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stamp(m, at, len(e.list))
	m.Progress = new(true)
	e.progress = m
	e.fleeting++
	e.wake()
}

func (e *events) stamp(m *brokerv1.WatchRunResponse, at time.Time, n int) {
	m.Sequence, m.Time, m.ResumeToken = new(int64(n)), timestamppb.New(at), new(token(e.run, n))
}

func (e *events) wake() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// close ends every watch once it has told what there is.
func (e *events) close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.wake()
	if e.file == nil {
		return nil
	}
	f := e.file
	e.file = nil
	return errors.Join(f.Sync(), f.Close())
}

// watch sends every change after number `after`, then what comes, until the run ends, the daemon ends or send fails.
func (e *events) watch(ctx context.Context, after int, send func(*brokerv1.WatchRunResponse) error) error {
	seen := 0
	for {
		e.mu.Lock()
		changes, progress, fleeting, done, changed := e.list[after:], e.progress, e.fleeting, e.ended || e.closed, e.changed
		e.mu.Unlock()
		for _, m := range changes {
			if err := send(m); err != nil {
				return err
			}
			after++
		}
		if progress != nil && fleeting > seen && progress.GetSequence() == int64(after) {
			seen = fleeting
			if err := send(progress); err != nil {
				return err
			}
		}
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// length is the number of the last change.
func (e *events) length() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.list)
}

// after is the number that a resume token stands for.
func (e *events) after(tok string) (int, error) {
	if tok == "" {
		return 0, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	i := strings.LastIndexByte(tok, ':')
	n, err := strconv.Atoi(tok[i+1:])
	if i < 0 || err != nil || n < 0 || tok[:i] != e.run {
		return 0, service.Bad("resume_token", "%.100q is no token of run %s; take it from the last event as it is", tok, e.run)
	}
	if n > len(e.list) {
		return 0, service.Bad("resume_token", "it stands for event %d, run %s has %d", n, e.run, len(e.list))
	}
	return n, nil
}

func token(run string, n int) string { return fmt.Sprintf("%s:%d", run, n) }
