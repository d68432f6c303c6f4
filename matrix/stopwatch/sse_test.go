package stopwatch

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// frame runs a framer over the body in pieces of the given size.
func frame(body []byte, size int) [][]byte {
	var f framer
	f.reset()
	var out [][]byte
	for piece := range slices.Chunk(body, size) {
		piece = bytes.Clone(piece) // what next returned before must not lie in it
		f.feed(piece)
		for {
			data, ok := f.next()
			if !ok {
				break
			}
			out = append(out, bytes.Clone(data))
		}
		for i := range piece {
			piece[i] = '#' // nor may the framer keep it
		}
	}
	return out
}

// whatwg is the standard's text turned into code without care for speed: the whole body, line by line.
func whatwg(body []byte) [][]byte {
	s := strings.TrimPrefix(string(body), "\ufeff")
	s = strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", "\n"), "\r", "\n")
	lines := strings.Split(s, "\n")
	var out [][]byte
	var data []string
	for _, line := range lines[:len(lines)-1] { // the last one has no end
		if line == "" {
			if joined := strings.Join(data, "\n"); joined != "" {
				out = append(out, []byte(joined))
			}
			data = nil
			continue
		}
		name, value, _ := strings.Cut(line, ":")
		if name == "data" {
			data = append(data, strings.TrimPrefix(value, " "))
		}
	}
	return out
}

func TestFramer(t *testing.T) {
	for _, c := range []struct {
		name, body string
		want       []string
	}{
		{"LF", "data: a\n\ndata: b\n\n", []string{"a", "b"}},
		{"CR alone", "data: a\r\rdata: b\r\r", []string{"a", "b"}},
		{"CRLF", "data: a\r\n\r\ndata: b\r\n\r\n", []string{"a", "b"}},
		{"mixed ends", "data: a\r\n\ndata: b\n\rdata: c\r\n\r", []string{"a", "b", "c"}},
		{"one space at most", "data:  a\n\ndata:b\n\n", []string{" a", "b"}},
		{"several lines", "data: a\ndata\ndata: b\n\n", []string{"a\n\nb"}},
		{"empty data dispatches nothing", "data\n\ndata:\n\ndata: \n\n", nil},
		{"comments and other fields", ":\n\n: x\nid: 1\nevent: e\nretry: 3\ndatax: y\n data: z\ndata: a\n\n", []string{"a"}},
		{"no blank line", "data: a\n\ndata: b\n", []string{"a"}},
		{"byte-order mark", "\ufeffdata: a\n\n", []string{"a"}},
		{"a second mark is no mark", "\ufeff\ufeffdata: a\n\ndata: b\n\n", []string{"b"}},
		{"blank lines", "\n\n\r\n\rdata: a\n\n\n\n", []string{"a"}},
	} {
		for _, size := range []int{1, 2, 3, 1000} {
			var got []string
			for _, e := range frame([]byte(c.body), size) {
				got = append(got, string(e))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%s in pieces of %d: got %q, want %q", c.name, size, got, c.want)
			}
		}
	}
}

// A line or an event above the cap stops the framer; memory stays at the cap.
func TestFramerCap(t *testing.T) {
	piece := bytes.Repeat([]byte("x"), 1<<20)
	for name, head := range map[string]string{"no newline": "data: ", "many data lines": "data: a\ndata: "} {
		var f framer
		f.reset()
		f.feed([]byte(head))
		f.next()
		for range 2 * maxEvent / len(piece) {
			f.feed(piece)
			if _, ok := f.next(); ok {
				t.Fatal("an event came")
			}
		}
		if !f.over || cap(f.partial) > 2*maxEvent || cap(f.gathered) > 2*maxEvent {
			t.Errorf("%s: over %v, %d and %d bytes held", name, f.over, cap(f.partial), cap(f.gathered))
		}
	}
}

// The cap of a line does not depend on where it was cut.
func TestFramerCapInPieces(t *testing.T) {
	for _, n := range []int{maxEvent, maxEvent + 1} {
		body := append(append([]byte("data: "), bytes.Repeat([]byte("x"), n-len("data: "))...), "\n\ndata: a\n\n"...)
		for _, cut := range []int{0, 3, n - 1, n, n + 1} {
			var f framer
			f.reset()
			events := 0
			for _, piece := range [][]byte{body[:cut], body[cut:]} {
				f.feed(piece)
				for _, ok := f.next(); ok; _, ok = f.next() {
					events++
				}
			}
			if f.over != (n > maxEvent) || (events == 2) != (n == maxEvent) {
				t.Errorf("a line of %d bytes cut at %d: over %v, %d events", n, cut, f.over, events)
			}
		}
	}
}

func FuzzFramer(f *testing.F) {
	for _, path := range corpusFiles(f) {
		if _, body, err := readCompanion(path); err != nil {
			f.Fatal(err)
		} else if len(body) < 1<<14 {
			f.Add(body, uint8(1))
			f.Add(body, uint8(7))
		}
	}
	f.Fuzz(func(t *testing.T, body []byte, size uint8) {
		want := whatwg(body)
		for _, n := range []int{int(size) + 1, len(body) + 1, 1} {
			if got := frame(body, n); !slices.EqualFunc(got, want, bytes.Equal) {
				t.Fatalf("in pieces of %d: got %q, want %q", n, got, want)
			}
		}
	})
}
