package stopwatch

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// unwrap runs the wire parser over a response in pieces of the given size.
func unwrap(b []byte, size int) (*wire, []byte) {
	w := &wire{}
	var body []byte
	for piece := range slices.Chunk(b, size) {
		for len(piece) > 0 && w.state != atEnd && w.err == nil {
			var payload []byte
			payload, piece = w.next(piece)
			body = append(body, payload...)
		}
	}
	return w, body
}

func dechunk(b []byte, size int) []byte {
	_, body := unwrap(b, size)
	return body
}

func TestWire(t *testing.T) {
	const chunk = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, c := range []struct {
		name, in  string
		status    int
		body, err string
		whole     bool
	}{
		{"length", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcdef", 200, "abc", "", true},
		{"no length", "HTTP/1.1 200 OK\r\n\r\nabc", 200, "abc", "", true},
		{"HTTP/1.0", "HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na", 200, "a", "", true},
		{"connection close", "HTTP/1.1 200 OK\r\nConnection: foo, Close\r\nContent-Length: 1\r\n\r\na", 200, "a", "", true},
		{"bare LF", "HTTP/1.1 200 OK\nContent-Length: 1\n\na", 200, "a", "", true},
		{"chunks", chunk + "3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n", 200, "abcde", "", true},
		{"trailers", chunk + "1\r\na\r\n0\r\nX: y\r\nZ: w\r\n\r\n", 200, "a", "", true},
		{"upper case and zeros", chunk + "00A\r\n0123456789\r\n0\r\n\r\n", 200, "0123456789", "", true},
		{"cut in a chunk", chunk + "5\r\nab", 200, "ab", "", false},
		{"cut before the end", chunk + "1\r\na\r\n", 200, "a", "", false},
		{"no size", chunk + "\r\n", 200, "", "chunk size", false},
		{"negative size", chunk + "-1\r\n", 200, "", "chunk size", false},
		{"huge size", chunk + "ffffffffffffffff\r\n", 200, "", "chunk size", false},
		{"longer chunk than said", chunk + "1\r\nab\r\n", 200, "a", "longer than its size", false},
		{"endless size line", chunk + strings.Repeat("0", 2*maxChunkLine), 200, "", "longer than", false},
		{"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 200, "", "two content-lengths", false},
		{"negative length", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", 200, "", "no length", false},
		{"other coding", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 200, "", "not spoken", false},
		{"two codings", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n\r\n", 200, "", "not spoken", false},
		{"interim", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", 200, "a", "", true},
		{"switching", "HTTP/1.1 101 Switching\r\n\r\n", 101, "", "101", false},
		{"no content", "HTTP/1.1 204 No Content\r\n\r\n", 204, "", "", true},
		{"HTTP/2", "HTTP/2 200\r\n\r\n", 0, "", "status line", false},
		{"no status", "HTTP/1.1 OK\r\n\r\n", 0, "", "no status", false},
		{"bad header", "HTTP/1.1 200 OK\r\nno colon\r\n\r\n", 200, "", "malformed", false},
	} {
		for _, size := range []int{1, 3, 1 << 20} {
			w, body := unwrap([]byte(c.in), size)
			failed := ""
			if w.err != nil {
				failed = w.err.Error()
			}
			whole := w.state == atEnd || w.state == inRest
			if w.status != c.status || string(body) != c.body || (c.err == "") != (failed == "") || !strings.Contains(failed, c.err) || whole != c.whole {
				t.Errorf("%s in pieces of %d: status %d body %q error %q whole %v", c.name, size, w.status, body, failed, whole)
			}
		}
	}
}

// FuzzWire: the result does not depend on the segmentation, and where net/http accepts a response too, it sees the same body.
func FuzzWire(f *testing.F) {
	files, err := filepath.Glob("testdata/captures/*/*.http")
	if err != nil || len(files) == 0 {
		f.Fatal(err, len(files))
	}
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		if len(b) < 1<<13 {
			f.Add(b, uint8(3))
		}
	}
	for _, path := range corpusFiles(f) {
		if _, body, err := readCompanion(path); err != nil {
			f.Fatal(err)
		} else if len(body) < 1<<13 {
			f.Add(fmt.Appendf(nil, "%s%x\r\n%s\r\n0\r\n\r\n", sseHead, len(body), body), uint8(5))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, size uint8) {
		w, body := unwrap(b, len(b)+1)
		for _, n := range []int{1, int(size) + 1} {
			x, same := unwrap(b, n)
			if !bytes.Equal(body, same) || w.state != x.state || (w.err == nil) != (x.err == nil) || w.status != x.status {
				t.Fatalf("in pieces of %d: %q %v %v, whole: %q %v %v", n, same, x.state, x.err, body, w.state, w.err)
			}
		}
		if w.state != atEnd || w.status < 200 || bytes.Contains(b, []byte("HTTP/1.1 1")) {
			return
		}
		r, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(b)), nil)
		if err != nil || r.StatusCode != w.status {
			return
		}
		theirs, err := io.ReadAll(r.Body)
		if err == nil && !bytes.Equal(theirs, body) {
			t.Fatalf("net/http reads %q, the wire parser %q", theirs, body)
		}
	})
}
