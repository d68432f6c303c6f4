package artifact

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
)

// scanner reads JSON token by token in constant memory, with the byte offset of everything it reports. Headers of foreign
// files reach 100 MB, and one hostile string in them must not become memory.
type scanner struct {
	r    *bufio.Reader
	path string
	at   int64 // offset in the file of the next byte
	end  int64 // offset where the document must end; reading past it is an error
	buf  []byte
}

func newScanner(r io.Reader, path string, start, length int64) *scanner {
	return &scanner{r: bufio.NewReaderSize(io.LimitReader(r, length), 64<<10), path: path, at: start, end: start + length}
}

func (s *scanner) fail(field, format string, a ...any) error {
	return &HeaderError{Path: s.path, Field: field, Offset: s.at, Message: fmt.Sprintf(format, a...)}
}

func (s *scanner) byte() (byte, error) {
	b, err := s.r.ReadByte()
	if err == io.EOF {
		return 0, s.fail("", "the JSON ends in the middle")
	}
	if err != nil {
		return 0, unreadable(s.path, err)
	}
	s.at++
	return b, nil
}

// peek returns the next byte that is not white space, without taking it.
func (s *scanner) peek() (byte, error) {
	for {
		b, err := s.byte()
		if err != nil {
			return 0, err
		}
		switch b {
		case ' ', '\t', '\n', '\r':
			continue
		}
		s.at--
		return b, s.r.UnreadByte()
	}
}

func (s *scanner) expect(want byte) error {
	b, err := s.peek()
	if err != nil {
		return err
	}
	if b != want {
		return s.fail("", "%q where %q is expected", b, want)
	}
	_, err = s.byte()
	return err
}

// more reports whether another member follows in an object or array, taking the comma or the closing byte.
func (s *scanner) more(first bool, closing byte) (bool, error) {
	b, err := s.peek()
	if err != nil {
		return false, err
	}
	if b == closing {
		_, err = s.byte()
		return false, err
	}
	if first {
		return true, nil
	}
	return true, s.expect(',')
}

// str reads a string of at most limit bytes as written.
func (s *scanner) str(limit int) (string, error) {
	if err := s.expect('"'); err != nil {
		return "", err
	}
	s.buf = append(s.buf[:0], '"')
	escaped := false
	for {
		b, err := s.byte()
		if err != nil {
			return "", err
		}
		s.buf = append(s.buf, b)
		switch {
		case b < 0x20:
			return "", s.fail("", "a control character in a string")
		case b == '\\':
			escaped = true
			e, err := s.byte()
			if err != nil {
				return "", err
			}
			s.buf = append(s.buf, e)
		case b == '"':
			if !escaped {
				return string(s.buf[1 : len(s.buf)-1]), nil
			}
			var v string
			if err := json.Unmarshal(s.buf, &v); err != nil {
				return "", s.fail("", "not a JSON string: %v", err)
			}
			return v, nil
		}
		if len(s.buf) > limit {
			return "", s.fail("", "a string longer than %d bytes", limit)
		}
	}
}

// integer reads a whole number that is not negative. NaN, fractions, exponents and 2^63 are errors.
func (s *scanner) integer() (int64, error) {
	b, err := s.peek()
	if err != nil {
		return 0, err
	}
	s.buf = s.buf[:0]
	for len(s.buf) <= 20 {
		if b, err = s.byte(); err != nil {
			return 0, err
		}
		if b < '0' || b > '9' {
			s.at--
			if err := s.r.UnreadByte(); err != nil {
				return 0, err
			}
			break
		}
		s.buf = append(s.buf, b)
	}
	switch {
	case len(s.buf) == 0:
		return 0, s.fail("", "%q where a whole number is expected", b)
	case b == '.' || b == 'e' || b == 'E':
		return 0, s.fail("", "a fraction or an exponent where a whole number is expected")
	case len(s.buf) > 1 && s.buf[0] == '0':
		return 0, s.fail("", "a number with a leading zero")
	}
	n, err := strconv.ParseInt(string(s.buf), 10, 64)
	if err != nil {
		return 0, s.fail("", "%s is beyond any count", s.buf)
	}
	return n, nil
}

// skip passes over one value of any kind, holding nothing of it.
func (s *scanner) skip(depth int) error {
	if depth > 32 {
		return s.fail("", "nested deeper than 32")
	}
	b, err := s.peek()
	if err != nil {
		return err
	}
	switch b {
	case '"':
		return s.skipString()
	case '{', '[':
		closing := b + 2 // '}' and ']' follow their openers by two
		if err := s.expect(b); err != nil {
			return err
		}
		for first := true; ; first = false {
			ok, err := s.more(first, closing)
			if err != nil || !ok {
				return err
			}
			if b == '{' {
				if err := s.skipString(); err != nil {
					return err
				}
				if err := s.expect(':'); err != nil {
					return err
				}
			}
			if err := s.skip(depth + 1); err != nil {
				return err
			}
		}
	}
	for n := 0; ; n++ { // number, true, false, null
		b, err := s.byte()
		if err != nil {
			return err
		}
		switch {
		case b >= '0' && b <= '9', b >= 'a' && b <= 'z', b == '-', b == '+', b == '.', b == 'E':
			if n < 64 {
				continue
			}
		case n > 0:
			s.at--
			return s.r.UnreadByte()
		}
		return s.fail("", "no JSON value")
	}
}

func (s *scanner) skipString() error {
	if err := s.expect('"'); err != nil {
		return err
	}
	for {
		b, err := s.byte()
		if err != nil {
			return err
		}
		switch b {
		case '\\':
			if _, err := s.byte(); err != nil {
				return err
			}
		case '"':
			return nil
		}
	}
}

// tail demands that nothing but white space follows.
func (s *scanner) tail() error {
	for s.at < s.end {
		b, err := s.byte()
		if err != nil {
			return err
		}
		if b != ' ' && b != '\n' && b != '\t' && b != '\r' {
			return s.fail("", "%q after the end of the JSON", b)
		}
	}
	return nil
}

// number reads any JSON number, for the few fields that writers put down as a fraction.
func (s *scanner) number() (float64, error) {
	if _, err := s.peek(); err != nil {
		return 0, err
	}
	s.buf = s.buf[:0]
	for len(s.buf) < 64 {
		b, err := s.byte()
		if err != nil {
			return 0, err
		}
		if (b < '0' || b > '9') && b != '-' && b != '+' && b != '.' && b != 'e' && b != 'E' {
			s.at--
			if err := s.r.UnreadByte(); err != nil {
				return 0, err
			}
			break
		}
		s.buf = append(s.buf, b)
	}
	n, err := strconv.ParseFloat(string(s.buf), 64)
	if err != nil {
		return 0, s.fail("", "%q is not a number", s.buf)
	}
	return n, nil
}
