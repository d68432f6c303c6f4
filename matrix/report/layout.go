package report

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"enginebroker/matrix"
)

// page lays text out in columns. Its first error is kept; the writing goes on into nothing.
type page struct {
	w     io.Writer
	width int
	color bool
	err   error
}

func newPage(w io.Writer, o Options) *page { return &page{w: w, width: o.width(), color: o.Color} }

func (p *page) put(s string) {
	if p.err == nil {
		_, p.err = io.WriteString(p.w, s+"\n")
	}
}

func (p *page) blank() { p.put("") }

// wrap puts words behind a prefix and indents what does not fit; a word longer than the line is broken.
func (p *page) wrap(prefix, text string) { p.wrapIn("", prefix, text) }

func (p *page) wrapIn(style, prefix, text string) {
	if utf8.RuneCountInString(prefix) > p.width/2 {
		prefix, text = "", prefix+" "+text
	}
	indent := strings.Repeat(" ", utf8.RuneCountInString(prefix))
	room := max(p.width-utf8.RuneCountInString(prefix), 10)
	row := ""
	flush := func() {
		p.put(prefix + p.paint(style, row))
		prefix, row = indent, ""
	}
	for _, word := range strings.Fields(text) {
		if row != "" && utf8.RuneCountInString(row)+1+utf8.RuneCountInString(word) > room {
			flush()
		}
		for utf8.RuneCountInString(word) > room {
			r := []rune(word)
			row = string(r[:room])
			word = string(r[room:])
			flush()
		}
		if row != "" {
			row += " "
		}
		row += word
	}
	if row != "" {
		flush()
	}
}

const (
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
	invert = "7;1"
)

func (p *page) paint(style, s string) string {
	if !p.color || style == "" {
		return s
	}
	return "\x1b[" + style + "m" + s + "\x1b[0m"
}

func styleOf(v matrix.Verdict) string {
	switch v {
	case matrix.Established:
		return green
	case matrix.Provisional:
		return yellow
	case matrix.Inconclusive:
		return dim
	}
	return red
}

// title puts a heading with a rule to the end of the line.
func (p *page) title(left, right string) {
	n := p.width - utf8.RuneCountInString(left) - utf8.RuneCountInString(right) - 3
	if n < 3 {
		p.wrapIn(bold, "", left+" "+right)
		return
	}
	if right != "" {
		right = " " + right
	}
	p.put(p.paint(bold, left) + " " + strings.Repeat("─", n+1) + right)
}

// banner is a stamp that nobody overlooks.
func (p *page) banner(s string) {
	p.put(p.paint(invert, strings.Repeat("▀", p.width)))
	p.wrapIn(invert, "", s)
	p.put(p.paint(invert, strings.Repeat("▄", p.width)))
}

// fit pads or cuts to exactly n columns.
func fit(s string, n int) string {
	k := utf8.RuneCountInString(s)
	if k > n {
		return string([]rune(s)[:n-1]) + "…"
	}
	return s + strings.Repeat(" ", n-k)
}

func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
