package stopwatch

import (
	"encoding/binary"
	"math"
	"math/bits"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"enginebroker/matrix"
)

// maxDepth is the nesting that encoding/json accepts; deeper is malformed here as there.
const maxDepth = 10000

// scanner walks one JSON text once, without building anything. It accepts exactly what encoding/json accepts. After a
// syntax error bad is set and every loop over members or elements ends.
type scanner struct {
	b     []byte
	i     int
	depth int
	bad   bool
	first bool   // nothing of the innermost object or array was read yet
	name  []byte // the key of the member whose value is next
	key   []byte // scratch for keys with escapes
}

// text is a JSON string as it stands in the source, without its quotes.
type text struct {
	raw     []byte
	escaped bool // needs unquote: a backslash or a byte ≥ 0x80
	set     bool // present and a string; null and other types leave it unset
}

func (t text) empty() bool { return len(t.raw) == 0 }

// plain returns how many bytes at the start of b stand for themselves inside a JSON string: ASCII that is no control
// character, quote or backslash. It looks at eight bytes at once, because most of an event is the inside of strings.
func plain(b []byte) int {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	n := 0
	for ; len(b)-n >= 8; n += 8 {
		w := binary.LittleEndian.Uint64(b[n:])
		// The subtractions borrow into a high bit where a byte is too small. A borrow runs only upwards from a byte that is
		// marked itself, so the lowest mark is always right.
		marks := (w | (w - ones*' ') | ((w ^ ones*'"') - ones) | ((w ^ ones*'\\') - ones)) & high
		if marks != 0 {
			return n + bits.TrailingZeros64(marks)/8
		}
	}
	for n < len(b) && b[n] >= ' ' && b[n] < 0x80 && b[n] != '"' && b[n] != '\\' {
		n++
	}
	return n
}

func (s *scanner) reset(b []byte) { *s = scanner{b: b, key: s.key} }

func (s *scanner) fail() {
	s.bad = true
	s.i = len(s.b)
}

// peek skips white space and returns the next byte, 0 at the end.
func (s *scanner) peek() byte {
	if s.i < len(s.b) && s.b[s.i] > ' ' { // engines write no space: this much is inlined
		return s.b[s.i]
	}
	return s.space()
}

func (s *scanner) space() byte {
	for s.i < len(s.b) {
		switch c := s.b[s.i]; c {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return c
		}
	}
	return 0
}

// end reports that nothing but white space is left.
func (s *scanner) end() bool { return s.peek() == 0 && s.i == len(s.b) && !s.bad }

// open enters an object or an array and reports true. A value of another type is passed over.
func (s *scanner) open(bracket byte) bool {
	if s.peek() != bracket {
		s.skip()
		return false
	}
	s.i++
	s.first = true
	if s.depth++; s.depth > maxDepth {
		s.fail()
	}
	return true
}

// member advances to the next member of the object: its key is in name until the next call, its value is next.
func (s *scanner) member() bool {
	if !s.next('}') {
		return false
	}
	if s.peek() != '"' {
		s.fail()
		return false
	}
	k := s.str()
	if s.peek() != ':' {
		s.fail()
	}
	if s.bad {
		return false
	}
	s.i++
	s.name = k.raw
	if k.escaped {
		s.key = unquote(s.key[:0], k)
		s.name = s.key
	}
	return true
}

// element advances to the next element of the array.
func (s *scanner) element() bool { return s.next(']') }

func (s *scanner) next(closing byte) bool {
	first := s.first
	s.first = false
	switch c := s.peek(); {
	case s.bad:
		return false
	case c == closing:
		s.i++
		s.depth--
		return false
	case first:
		return true
	case c != ',':
		s.fail()
		return false
	}
	s.i++
	return true
}

// str reads a string; the caller has peeked the quote.
func (s *scanner) str() text {
	s.i++
	start, escaped := s.i, false
	for s.i < len(s.b) {
		s.i += plain(s.b[s.i:])
		if s.i == len(s.b) {
			break
		}
		switch c := s.b[s.i]; {
		case c == '"':
			t := text{raw: s.b[start:s.i], escaped: escaped, set: true}
			s.i++
			return t
		case c >= 0x80:
			escaped = true
			s.i++
		case c == '\\':
			escaped = true
			n := escapeLength(s.b[s.i:])
			if n == 0 {
				s.fail()
				return text{}
			}
			s.i += n
		default:
			s.fail()
		}
	}
	s.fail()
	return text{}
}

// escapeLength returns the length of the escape b begins with, 0 where it is not one.
func escapeLength(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if len(b) < 6 {
			return 0
		}
		for _, c := range b[2:6] {
			if hexDigit(c) < 0 {
				return 0
			}
		}
		return 6
	}
	return 0
}

func hexDigit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// number reads a number and returns its source.
func (s *scanner) number() []byte {
	start := s.i
	if s.i < len(s.b) && s.b[s.i] == '-' {
		s.i++
	}
	if s.i < len(s.b) && s.b[s.i] == '0' {
		s.i++
	} else if !s.digits() {
		s.fail()
		return nil
	}
	if s.i < len(s.b) && s.b[s.i] == '.' {
		s.i++
		if !s.digits() {
			s.fail()
			return nil
		}
	}
	if s.i < len(s.b) && (s.b[s.i] == 'e' || s.b[s.i] == 'E') {
		s.i++
		if s.i < len(s.b) && (s.b[s.i] == '+' || s.b[s.i] == '-') {
			s.i++
		}
		if !s.digits() {
			s.fail()
			return nil
		}
	}
	return s.b[start:s.i]
}

func (s *scanner) digits() bool {
	b, n := s.b[s.i:], 0
	for n < len(b) && b[n] >= '0' && b[n] <= '9' {
		n++
	}
	s.i += n
	return n > 0
}

func (s *scanner) literal(word string) {
	if len(s.b)-s.i < len(word) || string(s.b[s.i:s.i+len(word)]) != word {
		s.fail()
		return
	}
	s.i += len(word)
}

// skip passes over one value of any type and returns its source.
func (s *scanner) skip() []byte {
	c := s.peek()
	start := s.i
	switch {
	case c == '"':
		s.str()
	case c == '{':
		for open := s.open('{'); open && s.member(); {
			s.skip()
		}
	case c == '[':
		for open := s.open('['); open && s.element(); {
			s.skip()
		}
	case c == 't':
		s.literal("true")
	case c == 'f':
		s.literal("false")
	case c == 'n':
		s.literal("null")
	case c == '-' || c >= '0' && c <= '9':
		s.number()
	default:
		s.fail()
	}
	if s.bad {
		return nil
	}
	return s.b[start:s.i]
}

// text reads a value that should be a string; any other type is passed over and leaves it unset.
func (s *scanner) text() text {
	if s.peek() == '"' {
		return s.str()
	}
	s.skip()
	return text{}
}

// integer reads a value that should be a whole number; anything else is absent.
func (s *scanner) integer() matrix.Opt[int64] {
	if c := s.peek(); c != '-' && (c < '0' || c > '9') {
		s.skip()
		return matrix.Opt[int64]{}
	}
	raw := s.number()
	var n int64
	for _, c := range raw {
		if c < '0' || c > '9' || n > (math.MaxInt64-9)/10 {
			return slowInteger(raw)
		}
		n = n*10 + int64(c-'0')
	}
	if s.bad {
		return matrix.Opt[int64]{}
	}
	return matrix.Some(n)
}

// amount reads a count: a negative number is none.
func (s *scanner) amount() matrix.Opt[int64] {
	n := s.integer()
	if n.Or(0) < 0 {
		return matrix.Opt[int64]{}
	}
	return n
}

// slowInteger reads the numbers that are not plain digits: 5.0 and 5e0 are 5, 5.5 is no integer.
func slowInteger(raw []byte) matrix.Opt[int64] {
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return matrix.Opt[int64]{}
	}
	return matrix.Some(int64(f))
}

// truth reads a value that should be a boolean; anything else is false.
func (s *scanner) truth() bool { return string(s.skip()) == "true" }

// count returns the number of elements of an array, absent for null and other types.
func (s *scanner) count() matrix.Opt[int64] {
	if s.peek() != '[' {
		s.skip()
		return matrix.Opt[int64]{}
	}
	n := int64(0)
	for open := s.open('['); open && s.element(); {
		s.skip()
		n++
	}
	return matrix.Some(n)
}

// unquote appends the decoded string. Invalid UTF-8 and lone surrogates become U+FFFD, as encoding/json does.
func unquote(dst []byte, t text) []byte {
	if !t.escaped {
		return append(dst, t.raw...)
	}
	for b := t.raw; len(b) > 0; {
		c := b[0]
		if c == '\\' {
			n := escapeLength(b)
			if n == 2 {
				dst = append(dst, unescaped(b[1]))
			} else {
				r := hex4(b[2:])
				if utf16.IsSurrogate(r) {
					low := rune(-1)
					if len(b) >= 12 && b[6] == '\\' && b[7] == 'u' {
						low = hex4(b[8:])
					}
					if full := utf16.DecodeRune(r, low); full != utf8.RuneError {
						r, n = full, 12
					} else {
						r = utf8.RuneError
					}
				}
				dst = utf8.AppendRune(dst, r)
			}
			b = b[n:]
			continue
		}
		if c < 0x80 {
			dst = append(dst, c)
			b = b[1:]
			continue
		}
		r, n := utf8.DecodeRune(b)
		dst = utf8.AppendRune(dst, r)
		b = b[n:]
	}
	return dst
}

func unescaped(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}

func hex4(b []byte) rune {
	r := rune(0)
	for _, c := range b[:4] {
		r = r<<4 | rune(hexDigit(c))
	}
	return r
}
