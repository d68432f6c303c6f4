package stopwatch

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"enginebroker/matrix"
)

// readWhole reads a recording into memory.
func readWhole(r io.Reader) (*Recording, error) {
	d, err := NewReader(r)
	if err != nil {
		return nil, err
	}
	rec := d.Recording
	for {
		var segments []Segment
		var wire [][]byte
		x, err := d.next(func(s Segment, b []byte) {
			segments = append(segments, s)
			size := len(b)
			if n := len(wire); n > 0 {
				if len(wire[n-1])+len(b) <= cap(wire[n-1]) {
					wire[n-1] = append(wire[n-1], b...)
					return
				}
				size = max(size, min(2*cap(wire[n-1]), maxBlock))
			}
			wire = append(wire, append(make([]byte, 0, size), b...))
		})
		if err != nil {
			return nil, err
		}
		if x == nil {
			return &rec, nil
		}
		x.Segments, x.Wire = segments, wire
		rec.Exchanges = append(rec.Exchanges, *x)
	}
}

// sample is a recording of three answers: a whole one, a lost one, one that was never sent.
func sample(t testing.TB) *Recording {
	t.Helper()
	wire, err := os.ReadFile("testdata/captures/vllm/completions-stream-continuous-ids.http")
	if err != nil {
		t.Fatal(err)
	}
	r := recorded(wire, 500, EndClean)
	r.Repetition, r.ExpectCold, r.Start, r.Planned, r.CPU, r.GCPauses, r.GCPauseNs, r.Dials, r.Stopped = -1, true, 1e15, 4, 12345, 2, 999, 1, "request 1: gone"
	r.Address = "127.0.0.1:8000"
	r.End = r.Start + 5e9
	r.Exchanges[0].Expected = matrix.Some(int64(11))
	r.Exchanges[0].Segments[3].Lag = 40_000
	lost := recorded(wire[:1000], 1, EndReset).Exchanges[0]
	lost.Index, lost.Prompt, lost.Error = 1, "p1", "connection reset by peer"
	never := Exchange{Index: 3, Prompt: "ünïcode", Begin: -1, Sent: -1, Ending: EndDial, Error: "refused"}
	r.Exchanges = append(r.Exchanges, lost, never)
	return r
}

func encode(t testing.TB, r *Recording) []byte {
	t.Helper()
	var b bytes.Buffer
	n, err := r.WriteTo(&b)
	if err != nil || n != int64(b.Len()) {
		t.Fatalf("wrote %d of %d bytes: %v", n, b.Len(), err)
	}
	return b.Bytes()
}

// flat joins the blocks of every exchange: where they are cut is no part of a recording.
func flat(r *Recording) *Recording {
	c := *r
	c.Exchanges = append([]Exchange(nil), r.Exchanges...)
	for i := range c.Exchanges {
		x := &c.Exchanges[i]
		x.Wire = [][]byte{bytes.Join(x.Wire, nil)}
		if len(x.Segments) == 0 {
			x.Segments = nil
		}
	}
	return &c
}

func TestRecordingRoundTrip(t *testing.T) {
	r := sample(t)
	b := encode(t, r)
	got, err := readWhole(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(flat(got), flat(r)) {
		t.Errorf("got %+v\nwant %+v", flat(got), flat(r))
	}
	d := matrix.Dialect{Form: "openai", RunningUsage: true}
	p := matrix.Point{OutputTokens: 16}
	want := Reduce(r, d, p)
	if again := Reduce(got, d, p); !reflect.DeepEqual(again, want) {
		t.Errorf("reduced from the file: %+v\nwant %+v", again, want)
	}
	if !reflect.DeepEqual(got.Cost(want), r.Cost(want)) {
		t.Error("the cost changed")
	}
	// The iterator form gives the same requests, and the same events one by one.
	rd, err := NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	var events []matrix.StreamEvent
	i := 0
	for q, err := range Requests(rd, d, p, func(e matrix.StreamEvent) { events = append(events, e) }) {
		if err != nil {
			t.Fatal(err)
		}
		q.Stream = events
		if !reflect.DeepEqual(q, want[i]) {
			t.Errorf("request %d: %+v\nwant %+v", i, q, want[i])
		}
		events = nil
		i++
	}
	if i != len(want) {
		t.Errorf("%d requests, want %d", i, len(want))
	}
	if read, err := ReadRequests(bytes.NewReader(b), d, p); err != nil || !reflect.DeepEqual(read, want) {
		t.Errorf("read %+v %v\nwant %+v", read, err, want)
	}
}

// A recording cut at any byte, or claiming what it does not hold, is an error and never half a recording.
func TestRecordingHostile(t *testing.T) {
	whole := encode(t, sample(t))
	for n := range len(whole) {
		if r, err := readWhole(bytes.NewReader(whole[:n])); !errors.Is(err, ErrRecording) || r != nil {
			t.Fatalf("cut at %d of %d: %v", n, len(whole), err)
		}
		if q, err := ReadRequests(bytes.NewReader(whole[:n]), matrix.Dialect{}, matrix.Point{}); !errors.Is(err, ErrRecording) || q != nil {
			t.Fatalf("cut at %d of %d: %d requests, %v", n, len(whole), len(q), err)
		}
	}
	header := recordingMagic + "\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	huge := "\xff\xff\xff\xff\xff\xff\xff\xff\x7f"
	for name, c := range map[string]struct{ in, want string }{
		"empty":             {"", "does not begin"},
		"another file":      {"{\"schema\": 1, \"run\": 7}", "does not begin"},
		"another version":   {recordingMagic + "\x02", "format version 2"},
		"trailing bytes":    {string(whole) + "x", "after the last exchange"},
		"too many requests": {header + huge, "number of exchanges"},
		"a long string":     {recordingMagic + "\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00" + huge, "stopped"},
		"unknown ending":    {header + "\x01\x00\x00\x00\x00\x00\x00\x00\x63", "ending"},
		"claimed segments":  {header + "\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00" + huge, "exchange 0"},
		"an endless varint": {recordingMagic + strings.Repeat("\xff", 20), "version"},
	} {
		if _, err := readWhole(strings.NewReader(c.in)); !errors.Is(err, ErrRecording) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	bad := sample(t)
	bad.Exchanges[0].Segments[2].At = 0
	if _, err := bad.WriteTo(io.Discard); err == nil {
		t.Error("a time that runs backwards was written")
	}
	full := errors.New("disk full")
	if _, err := sample(t).WriteTo(failing{full}); !errors.Is(err, full) {
		t.Errorf("a full disk gave %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func FuzzRecording(f *testing.F) {
	f.Add(encode(f, sample(f)))
	f.Add([]byte(recordingMagic + "\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"))
	names, err := filepath.Glob("testdata/sse/s0*.json")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range names {
		_, body, err := readCompanion(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(encode(f, recorded(append([]byte(sseHead), body...), 100, EndEarly)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := readWhole(bytes.NewReader(b))
		if err != nil {
			if r != nil || !errors.Is(err, ErrRecording) {
				t.Fatalf("%v, %v", r, err)
			}
			return
		}
		again, err := readWhole(bytes.NewReader(encode(t, r)))
		if err != nil || !reflect.DeepEqual(flat(r), flat(again)) {
			t.Fatalf("%v: %+v\nwant %+v", err, again, r)
		}
		for _, q := range Reduce(r, matrix.Dialect{}, matrix.Point{OutputTokens: 4}) {
			if (q.Outcome == matrix.OutcomeOK) != (len(q.Reasons) == 0) {
				t.Fatalf("%s with %v", q.Outcome, q.Reasons)
			}
		}
	})
}

func TestHistogram(t *testing.T) {
	var h histogram
	if h.quantile(0.5).Present() {
		t.Error("an empty histogram has a quantile")
	}
	for i := range int64(1000) {
		h.add((i + 1) * 1000)
	}
	for q, want := range map[float64]int64{0.5: 500_000, 0.99: 990_000, 1: 1_000_000} {
		if got := h.quantile(q).Or(0); got < want || float64(got) > float64(want)*(1+1.0/64) {
			t.Errorf("quantile %g: %d, want %d to +1/64", q, got, want)
		}
	}
	for _, v := range []uint64{0, 1, 63, 64, 127, 128, 129, 1 << 20, 1<<63 - 1} {
		if u := uint64(upper(bucket(v))); u < v || u-v > v/64 {
			t.Errorf("bucket of %d ends at %d", v, u)
		}
	}
	h.add(1<<63 - 1)
	h.reset()
	if h != (histogram{}) {
		t.Error("reset left something")
	}
}
