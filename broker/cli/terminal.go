package cli

import (
	"os"

	"golang.org/x/term"
)

// terminal reports the width of a terminal and whether to colour it (https://no-color.org).
func terminal(f *os.File) (width int, color bool) {
	if !term.IsTerminal(int(f.Fd())) {
		return 0, false
	}
	if w, _, err := term.GetSize(int(f.Fd())); err == nil {
		width = w
	}
	return width, os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}
