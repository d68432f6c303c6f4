package cli

import (
	"fmt"
	"io"
	"regexp"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// harmless is what everything that is printed goes through: names in model files, answers and logs of engines and names of
// files are foreign text, and a terminal obeys the control sequences in it. Control and format characters are written as
// escapes, which in JSON mean the same characters. Only the report's own colours pass, and only where there are any.
type harmless struct {
	w     io.Writer
	color bool
}

// own is a colour as package report writes it.
var own = regexp.MustCompile(`^\x1b\[(0|1|2|3[1-3]|7;1)m`)

func (h harmless) Write(p []byte) (int, error) {
	var out []byte
	from := 0
	for i := 0; i < len(p); {
		r, n := utf8.DecodeRune(p[i:])
		if h.color && r == 0x1b {
			if m := own.Find(p[i:]); m != nil {
				i += len(m)
				continue
			}
		}
		if r == '\n' || r == '\t' || !unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) {
			i += n
			continue
		}
		out = append(out, p[from:i]...)
		for _, u := range utf16.Encode([]rune{r}) { // two of them beyond U+FFFF, as JSON has it
			out = fmt.Appendf(out, `\u%04x`, u)
		}
		i += n
		from = i
	}
	if from == 0 {
		return h.w.Write(p)
	}
	if _, err := h.w.Write(append(out, p[from:]...)); err != nil {
		return 0, err
	}
	return len(p), nil
}
