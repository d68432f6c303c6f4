package stopwatch

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"unicode/utf8"

	"enginebroker/matrix"
)

// The recording format, version 1. It is a stream of unsigned varints (u), signed zig-zag varints (s), and byte strings
// (u length, bytes), in this order:
//
//	"broker/arrivals\n"  u version
//	s repetition, u expect cold (0|1), s start, u window length, u planned, u cpu ns + 1 (0: unknown), u gc pauses, u gc pause ns, u dials, string stopped, string address
//	u number of exchanges, then each:
//	  u index, string prompt id, u expected prompt tokens + 1 (0: unknown)
//	  u scheduled, u begin + 1, u sent + 1, u end (0 in the + 1 fields: never), u ending, string error
//	  u number of segments, then each: u ns since the segment before (the first: since the window's start), u lag + 1 (0: none), string bytes
//
// Nothing follows the last exchange. All times are ns; start is CLOCK_MONOTONIC, the others count from it.
const (
	recordingMagic   = "broker/arrivals\n"
	recordingVersion = 1
)

// Limits of the reader: a file that asks for more is no recording. They bound what one count may claim; memory grows only
// with bytes that were really read.
const (
	maxString   = 1 << 16
	maxPiece    = 1 << 16 // of a segment held at once
	maxSegment  = 1 << 30
	maxRequests = 1 << 28
)

// ErrRecording is wrapped by every error about the content of a recording.
var ErrRecording = errors.New("not a readable recording")

type encoder struct {
	w   *bufio.Writer
	n   int64
	err error // a value the format does not hold
	buf [binary.MaxVarintLen64]byte
}

func (e *encoder) write(b []byte) {
	n, _ := e.w.Write(b) // a bufio.Writer keeps its first error for Flush
	e.n += int64(n)
}

func (e *encoder) u(v int64) {
	if v < 0 && e.err == nil {
		e.err = fmt.Errorf("the recording holds a negative count or a time that runs backwards (%d)", v)
	}
	e.write(e.buf[:binary.PutUvarint(e.buf[:], uint64(v))])
}

func (e *encoder) s(v int64) { e.write(e.buf[:binary.PutVarint(e.buf[:], v)]) }

func (e *encoder) str(s string) {
	s = clip(s)
	e.u(int64(len(s)))
	e.write([]byte(s))
}

// clip keeps a string within what the reader takes.
func clip(s string) string {
	if len(s) <= maxString {
		return s
	}
	s = s[:maxString]
	for !utf8.ValidString(s) && len(s) > maxString-utf8.UTFMax {
		s = s[:len(s)-1]
	}
	return s
}

func newWriter(w io.Writer) *bufio.Writer { return bufio.NewWriterSize(w, 1<<16) }

// WriteTo writes the recording in the format above. It returns the bytes written and the first error of w.
func (r *Recording) WriteTo(w io.Writer) (int64, error) {
	e := &encoder{w: newWriter(w)}
	e.write([]byte(recordingMagic))
	e.u(recordingVersion)
	e.s(int64(r.Repetition))
	e.u(bit(r.ExpectCold))
	e.s(r.Start)
	for _, v := range []int64{r.End - r.Start, int64(r.Planned), r.CPU + 1, int64(r.GCPauses), r.GCPauseNs, int64(r.Dials)} {
		e.u(v)
	}
	e.str(r.Stopped)
	e.str(r.Address)
	e.u(int64(len(r.Exchanges)))
	for i := range r.Exchanges {
		e.exchange(&r.Exchanges[i])
	}
	err := e.w.Flush()
	return e.n - int64(e.w.Buffered()), errors.Join(e.err, err)
}

func (e *encoder) exchange(x *Exchange) {
	e.u(int64(x.Index))
	e.str(x.Prompt)
	if n, ok := x.Expected.Get(); ok {
		e.u(n + 1)
	} else {
		e.u(0)
	}
	for _, v := range []int64{x.Scheduled, x.Begin + 1, x.Sent + 1, x.End, int64(x.Ending)} {
		e.u(v)
	}
	e.str(x.Error)
	pieces := 0
	x.each(func(Segment, []byte) { pieces++ })
	e.u(int64(pieces))
	last := int64(0)
	x.each(func(s Segment, b []byte) {
		e.u(s.At - last)
		last = s.At
		e.u(s.Lag + 1)
		e.u(int64(len(b)))
		e.write(b)
	})
}

func bit(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// Reader reads a recording one exchange at a time.
type Reader struct {
	Recording Recording // the header; Exchanges stay empty

	r     *bufio.Reader
	left  int64 // exchanges to come
	index int64 // of the exchange being read
	piece []byte
	err   error
}

// NewReader reads the header of a recording.
func NewReader(r io.Reader) (*Reader, error) {
	d := &Reader{r: bufio.NewReaderSize(r, 1<<16)}
	magic := make([]byte, len(recordingMagic))
	if _, err := io.ReadFull(d.r, magic); err != nil || string(magic) != recordingMagic {
		return nil, fmt.Errorf("%w: it does not begin with %q", ErrRecording, recordingMagic)
	}
	if v := d.u("version", math.MaxInt64); d.err == nil && v != recordingVersion {
		return nil, fmt.Errorf("%w: format version %d, this program reads %d", ErrRecording, v, recordingVersion)
	}
	h := &d.Recording
	h.Repetition = int(d.s("repetition", math.MinInt32, math.MaxInt32))
	h.ExpectCold = d.u("expect cold", 1) == 1
	h.Start = d.s("start", 0, math.MaxInt64/2)
	h.End = h.Start + d.u("window length", math.MaxInt64/2)
	h.Planned = int(d.u("planned", maxRequests))
	h.CPU = d.u("cpu", math.MaxInt64) - 1
	h.GCPauses = int(d.u("gc pauses", math.MaxInt32))
	h.GCPauseNs = d.u("gc pause ns", math.MaxInt64)
	h.Dials = int(d.u("dials", math.MaxInt32))
	h.Stopped = d.str("stopped")
	h.Address = d.str("address")
	d.left = d.u("number of exchanges", maxRequests)
	if d.err != nil {
		return nil, fmt.Errorf("header: %w", d.err)
	}
	return d, nil
}

// next reads one exchange, handing each segment to fn; the bytes are valid during the call. It returns nil, nil at the end.
func (d *Reader) next(fn func(Segment, []byte)) (*Exchange, error) {
	if d.left == 0 {
		if _, err := d.r.ReadByte(); err != io.EOF {
			return nil, fmt.Errorf("%w: bytes after the last exchange", ErrRecording)
		}
		return nil, nil
	}
	x := &Exchange{Index: int(d.u("index", maxRequests)), Prompt: d.str("prompt")}
	if n := d.u("expected prompt tokens", math.MaxInt64/2); n > 0 {
		x.Expected = matrix.Some(n - 1)
	}
	x.Scheduled = d.u("scheduled", math.MaxInt64/2)
	x.Begin = d.u("begin", math.MaxInt64/2) - 1
	x.Sent = d.u("sent", math.MaxInt64/2) - 1
	x.End = d.u("end", math.MaxInt64/2)
	x.Ending = Ending(d.u("ending", int64(endings-1)))
	x.Error = d.str("error")
	at := int64(0)
	for n := d.u("number of segments", math.MaxInt64); n > 0 && d.err == nil; n-- {
		at += d.u("segment time", math.MaxInt64/2)
		if at > math.MaxInt64/2 {
			d.fail("segment time", "the times run beyond what a clock can show")
		}
		lag := d.u("lag", math.MaxInt64/2) - 1
		d.segment(at, lag, fn)
	}
	if d.err != nil {
		return nil, fmt.Errorf("exchange %d: %w", d.index, d.err)
	}
	d.left--
	d.index++
	return x, nil
}

// segment reads the bytes of one segment in pieces of at most 64 KiB; all pieces carry the segment's stamp.
func (d *Reader) segment(at, lag int64, fn func(Segment, []byte)) {
	for n := d.u("segment bytes", maxSegment); n > 0 && d.err == nil; {
		size := min(n, maxPiece)
		if int64(len(d.piece)) < size {
			d.piece = make([]byte, maxPiece)
		}
		b := d.piece[:size]
		if _, err := io.ReadFull(d.r, b); err != nil {
			d.fail("segment", "the file ends inside it")
			return
		}
		fn(Segment{At: at, Lag: lag, Bytes: int(size)}, b)
		n -= size
	}
}

func (d *Reader) fail(field, format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s: %s", ErrRecording, field, fmt.Sprintf(format, args...))
	}
}

func (d *Reader) u(field string, most int64) int64 {
	if d.err != nil {
		return 0
	}
	v, err := binary.ReadUvarint(d.r)
	switch {
	case err != nil:
		d.fail(field, "%v", err)
	case v > uint64(most):
		d.fail(field, "%d is more than %d", v, most)
	default:
		return int64(v)
	}
	return 0
}

func (d *Reader) s(field string, least, most int64) int64 {
	if d.err != nil {
		return 0
	}
	v, err := binary.ReadVarint(d.r)
	switch {
	case err != nil:
		d.fail(field, "%v", err)
	case v < least || v > most:
		d.fail(field, "%d is outside %d..%d", v, least, most)
	default:
		return v
	}
	return 0
}

func (d *Reader) str(field string) string {
	n := d.u(field, maxString)
	b := make([]byte, n)
	if _, err := io.ReadFull(d.r, b); err != nil {
		d.fail(field, "%v", err)
		return ""
	}
	return string(b)
}
