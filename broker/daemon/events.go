package daemon

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	"enginebroker/broker/service"
	"enginebroker/matrix/regular"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

// events is the log of one run. Changes of state are numbered without gaps and appended to a file before anybody hears of
// them, so that a daemon that starts again goes on counting. Progress is kept only until the next event: a watcher that
// reads slowly skips it. Publishing never waits for a watcher.
type events struct {
	run string

	mu       sync.Mutex
	file     *os.File
	whole    int64                        // length of the file's lines that were told
	torn     bool                         // the file is longer than that
	list     []*brokerv1.WatchRunResponse // changes; list[i] has number i+1, or is nil where a later one says that it is lost
	damage   []string                     // what is lost
	finding  *brokerv1.WatchRunResponse   // the last one that says so
	progress *brokerv1.WatchRunResponse
	fleeting int           // progress events so far
	changed  chan struct{} // closed and replaced at every event
	ended    bool          // the last change ended the run
	closed   bool          // the daemon ends
}

// openEvents reads the log of a run and opens it for more. A last line that a crash left torn is cut off: nobody heard of it.
func openEvents(path, run string) (*events, error) {
	e, err := readEvents(path, run)
	if err != nil {
		return nil, err
	}
	if e.file, err = os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600); err != nil {
		return nil, err
	}
	if err := e.file.Truncate(e.whole); err != nil {
		return nil, errors.Join(err, e.file.Close())
	}
	e.ended = false
	return e, nil
}

// maxEventsBytes bounds the log of one run: some hundred bytes for each leg.
const maxEventsBytes = 1 << 30

// readEvents reads the log of a run that has ended. Damage costs the events that it hit: in the place of each stretch of them
// stands one that says so. What stands behind it was told, under its own number, and is neither passed over nor cut off.
func readEvents(path, run string) (*events, error) {
	e := &events{run: run, changed: make(chan struct{}), ended: true}
	data, err := regular.ReadFile(path, maxEventsBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return e, nil
	}
	if err != nil {
		return nil, failf(service.CauseEvidence, "the run's evidence is not in it; move the file away to go on with the run", "the events of run %s: %w", run, err)
	}
	e.whole = int64(bytes.LastIndexByte(data, '\n') + 1)
	var lines []line
	for text := range bytes.Lines(data[:e.whole]) {
		l := line{m: &brokerv1.WatchRunResponse{}}
		if l.err = protojson.Unmarshal(text, l.m); l.err == nil {
			l.n = l.m.GetSequence()
		}
		lines = append(lines, l)
	}
	at, left := "", 0 // of the damage since the last event that counts: where it begins, and its lines
	for i, l := range lines {
		gap := l.n - int64(len(e.list)) - 1
		if l.err == nil && (gap < 0 || gap > maxLost || gap > 0 && contradicted(l.n, len(e.list), lines[i+1:])) {
			l.err = fmt.Errorf("it has number %d", l.n)
		}
		switch {
		case l.err == nil && gap > 0:
			e.lose(int(l.n)-1, cmp.Or(at, fmt.Sprintf("%s:%d follows event %d", path, i+1, len(e.list))))
			fallthrough
		case l.err == nil:
			e.list = append(e.list, l.m)
			at, left = "", 0
		default:
			at = cmp.Or(at, fmt.Sprintf("%s:%d: %v", path, i+1, l.err))
			left++
		}
	}
	if left > 0 {
		e.lose(len(e.list)+left, at)
	}
	return e, nil
}

// line is a line of the log.
type line struct {
	m   *brokerv1.WatchRunResponse
	n   int64 // its number
	err error // it is no event
}

// maxLost bounds what one stretch of damage may have cost, so that a number that is damaged itself costs no memory.
const maxLost = 1 << 20

// contradicted reports that the number of an event which leaves some out is damage: what stands behind it goes on in turn.
func contradicted(n int64, told int, behind []line) bool {
	for _, l := range behind {
		if l.err == nil {
			return l.n > int64(told) && l.n <= n
		}
	}
	return false
}

// lose says in the place of the events up to number n that they cannot be read.
func (e *events) lose(n int, why string) {
	what := fmt.Sprintf("event %d", n)
	if first := len(e.list) + 1; first < n {
		what = fmt.Sprintf("events %d to %d", first, n)
	}
	e.list = append(e.list, make([]*brokerv1.WatchRunResponse, n-len(e.list))...)
	m := &brokerv1.WatchRunResponse{Step: service.ToStep(service.Event{Kind: "finding", Text: fmt.Sprintf("%s of run %s cannot be read: %s", what, e.run, why)})}
	m.Sequence, m.ResumeToken = new(int64(n)), new(token(e.run, n)) // when it happened is lost too
	e.list[n-1], e.finding = m, m
	e.damage = append(e.damage, m.GetStep().GetText())
}

// settle tells where a run that has ended stands, where the event that told it is lost.
func (e *events) settle(s brokerv1.RunState, why *brokerv1.Failure) {
	for _, m := range slices.Backward(e.list) {
		if m.GetState() == s {
			return
		}
		if m != nil && m.State != nil {
			break
		}
	}
	last := len(e.list)
	if last == 0 || e.list[last-1] != e.finding {
		e.lose(last+1, "the log ends before the run does")
	}
	e.finding.State, e.finding.Failure = &s, why
}

// publish tells a change of state, or a step that no watcher misses. It is written before it is told; where it cannot be
// written nobody hears of it.
func (e *events) publish(m *brokerv1.WatchRunResponse, at time.Time, ends bool) error {
	return e.record(m, at, ends, func() error { return nil })
}

// record is publish together with another write: both are done, or neither.
func (e *events) record(m *brokerv1.WatchRunResponse, at time.Time, ends bool, also func() error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stamp(m, at, len(e.list)+1)
	length, err := e.write(m)
	if err == nil {
		err = also()
	}
	if err != nil {
		e.torn = true
		return errors.Join(err, e.mend())
	}
	e.whole += length
	e.list = append(e.list, m)
	e.progress, e.ended = nil, ends
	e.wake()
	return nil
}

func (e *events) write(m *brokerv1.WatchRunResponse) (int64, error) {
	if err := e.mend(); err != nil {
		return 0, err
	}
	line, err := protojson.Marshal(m)
	if err != nil {
		return 0, err
	}
	if e.file == nil {
		return 0, os.ErrClosed
	}
	n, err := e.file.Write(append(line, '\n'))
	return int64(n), err
}

// mend cuts off what was written and not told.
func (e *events) mend() error {
	if !e.torn || e.file == nil {
		return nil
	}
	err := e.file.Truncate(e.whole)
	e.torn = err != nil
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

// watch sends every change after number `after`, then what comes, until the run ends, the daemon ends or send fails. That
// the daemon ends is an error: a stream that ends well has told how the run ended.
func (e *events) watch(ctx context.Context, after int, send func(*brokerv1.WatchRunResponse) error) error {
	seen := 0
	for {
		e.mu.Lock()
		changes, progress, fleeting, ended, closed, changed := e.list[after:], e.progress, e.fleeting, e.ended, e.closed, e.changed
		e.mu.Unlock()
		for _, m := range changes {
			if m != nil {
				if err := send(m); err != nil {
					return err
				}
			}
			after++
		}
		if progress != nil && fleeting > seen && progress.GetSequence() == int64(after) {
			seen = fleeting
			if err := send(progress); err != nil {
				return err
			}
		}
		switch {
		case ended:
			return nil
		case closed:
			return failf(service.CauseBusy, "watch again with the last resume_token when it is back", "the daemon is ending; the run is not over")
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
