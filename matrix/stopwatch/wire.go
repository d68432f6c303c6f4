package stopwatch

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// Caps of the HTTP framing.
const (
	maxHead      = 64 << 10 // status line and headers of one response, and the trailers
	maxChunkLine = 4 << 10  // a chunk-size line with its extensions
)

// wire finds the body in the bytes of one HTTP/1.1 response: interim responses, head, chunked, content-length or
// close-delimited body. It works on bytes in any segmentation and allocates for the head alone.
type wire struct {
	state wireState
	line  []byte // head, chunk-size line or trailers so far
	left  uint64 // bytes of the body or chunk to come

	status  int
	headers []header
	err     error
}

type header struct{ name, value string } // name in lower case

type wireState uint8

const (
	inHead wireState = iota
	inBody           // content-length
	inRest           // until close
	inSize           // chunk-size line
	inChunk
	inChunkEnd // CRLF after a chunk
	inTrailer
	atEnd
	broken
)

// next consumes a piece of b and returns the payload in it, if any, and what is left. The caller loops until b is empty,
// the state is atEnd (what is left then does not belong to the response) or err is set.
func (w *wire) next(b []byte) (payload, rest []byte) {
	switch w.state {
	case inHead:
		return nil, w.head(b)
	case inBody, inChunk:
		n := min(uint64(len(b)), w.left)
		w.left -= n
		if w.left == 0 && w.state == inChunk {
			w.state = inChunkEnd
		} else if w.left == 0 {
			w.state = atEnd
		}
		return b[:n], b[n:]
	case inRest:
		return b, nil
	case inSize:
		return nil, w.size(b)
	case inChunkEnd:
		return nil, w.chunkEnd(b)
	case inTrailer:
		return nil, w.trailer(b)
	}
	return nil, b
}

func (w *wire) fail(format string, args ...any) []byte {
	w.state, w.err = broken, fmt.Errorf(format, args...)
	return nil
}

// take moves bytes up to and including the next LF into line and reports whether the line is whole.
func (w *wire) take(b []byte, limit int) (rest []byte, whole bool) {
	n := bytes.IndexByte(b, '\n') + 1
	whole = n > 0
	if !whole {
		n = len(b)
	}
	if len(w.line)+n > limit {
		w.fail("a line or head of the response is longer than %d bytes", limit)
		return nil, false
	}
	w.line = append(w.line, b[:n]...)
	return b[n:], whole
}

func (w *wire) head(b []byte) []byte {
	rest, whole := w.take(b, maxHead)
	if !whole || w.err != nil {
		return rest
	}
	if !bytes.HasSuffix(w.line, []byte("\n\n")) && !bytes.HasSuffix(w.line, []byte("\n\r\n")) {
		return rest
	}
	w.parseHead()
	w.line = w.line[:0]
	return rest
}

func (w *wire) parseHead() {
	lines := strings.Split(strings.TrimRight(string(w.line), "\r\n"), "\n")
	proto, after, _ := strings.Cut(strings.TrimSuffix(lines[0], "\r"), " ")
	if proto != "HTTP/1.1" && proto != "HTTP/1.0" {
		w.fail("the response does not begin with an HTTP/1 status line but with %.40q", lines[0])
		return
	}
	code, _, _ := strings.Cut(after, " ")
	status, err := strconv.Atoi(code)
	if err != nil || len(code) != 3 || status < 100 {
		w.fail("the status line has no status: %.60q", lines[0])
		return
	}
	w.status, w.headers = status, w.headers[:0]
	for _, l := range lines[1:] {
		name, value, ok := strings.Cut(strings.TrimSuffix(l, "\r"), ":")
		if !ok || name == "" || strings.ContainsAny(name, " \t") {
			w.fail("a header line is malformed: %.60q", l)
			return
		}
		w.headers = append(w.headers, header{strings.ToLower(name), strings.Trim(value, " \t")})
	}
	if status < 200 {
		if status == 101 {
			w.fail("the server switches protocols (101), which was not asked for")
		}
		return // an interim response: the next head follows
	}
	w.framing(proto)
}

func (w *wire) framing(proto string) {
	te := w.header("transfer-encoding")
	switch {
	case w.status == 204 || w.status == 304:
		w.state = atEnd
	case te != "":
		if proto == "HTTP/1.0" || !strings.EqualFold(te, "chunked") { // RFC 9112 §6.1: HTTP/1.0 has no transfer codings
			w.fail("transfer-encoding %.40q with %s is not spoken here", te, proto)
			return
		}
		w.state = inSize
	case w.has("content-length"):
		length := ""
		for _, h := range w.headers {
			if h.name != "content-length" {
				continue
			}
			if length != "" && h.value != length {
				w.fail("two content-lengths: %.40q and %.40q", length, h.value)
				return
			}
			length = h.value
		}
		n, err := strconv.ParseUint(length, 10, 63)
		if err != nil {
			w.fail("content-length %.40q is no length", length)
			return
		}
		w.left, w.state = n, inBody
		if n == 0 {
			w.state = atEnd
		}
	default:
		w.state = inRest
	}
}

// header returns the values of that name as one list (RFC 9110 §5.3), "" where there is none.
func (w *wire) header(name string) string {
	list := ""
	for _, h := range w.headers {
		switch {
		case h.name != name:
		case list == "":
			list = h.value
		default:
			list += ", " + h.value
		}
	}
	return list
}

func (w *wire) has(name string) bool {
	for _, h := range w.headers {
		if h.name == name {
			return true
		}
	}
	return false
}

func (w *wire) size(b []byte) []byte {
	rest, whole := w.take(b, maxChunkLine)
	if !whole || w.err != nil {
		return rest
	}
	n, ok := chunkSize(w.line)
	if !ok {
		return w.fail("a chunk size is malformed: %.40q", w.line)
	}
	w.line = w.line[:0]
	w.left, w.state = n, inChunk
	if n == 0 {
		w.state = inTrailer
	}
	return rest
}

// chunkSize reads the hexadecimal size at the start of a chunk line; what follows a semicolon is an extension.
func chunkSize(line []byte) (n uint64, ok bool) {
	i := 0
	for ; i < len(line) && hexDigit(line[i]) >= 0; i++ {
		if i == 15 {
			return 0, false
		}
		n = n<<4 | uint64(hexDigit(line[i]))
	}
	after := bytes.TrimLeft(line[i:], " \t")
	return n, i > 0 && (len(after) > 0 && (after[0] == ';' || after[0] == '\r' || after[0] == '\n'))
}

func (w *wire) chunkEnd(b []byte) []byte {
	rest, whole := w.take(b, 2)
	if w.err != nil || whole && string(w.line) != "\r\n" && string(w.line) != "\n" || !whole && string(w.line) != "\r" {
		return w.fail("a chunk is longer than its size says")
	}
	if whole {
		w.line, w.state = w.line[:0], inSize
	}
	return rest
}

func (w *wire) trailer(b []byte) []byte {
	rest, whole := w.take(b, maxHead)
	if !whole || w.err != nil {
		return rest
	}
	if l := w.line; string(l) == "\n" || string(l) == "\r\n" || bytes.HasSuffix(l, []byte("\n\n")) || bytes.HasSuffix(l, []byte("\n\r\n")) {
		w.state, w.line = atEnd, l[:0]
	}
	return rest
}

// headed reports whether the final head has been read.
func (w *wire) headed() bool { return w.state != inHead && (w.state != broken || w.status >= 200) }
