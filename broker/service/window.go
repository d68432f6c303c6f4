package service

import (
	"context"
	"strings"

	"enginebroker/matrix/ledger"
)

// Windows is told when a timed window opens and closes, so that a process that does more than measuring keeps quiet
// meanwhile. Both calls return soon: the run waits for them.
type Windows interface {
	// Open returns when nothing expensive runs any more, or gives up waiting for it.
	Open()
	// Close returns what was done inside the window all the same.
	Close() (did []string)
}

type windowsKey struct{}

// WithWindows makes the runs of a context tell w about their timed windows. What was done inside one becomes a note of
// the ledger.
func WithWindows(ctx context.Context, w Windows) context.Context {
	return context.WithValue(ctx, windowsKey{}, w)
}

// WindowsOf is what WithWindows put there; nil where it was not called.
func WindowsOf(ctx context.Context) Windows {
	w, _ := ctx.Value(windowsKey{}).(Windows)
	return w
}

// windowHook is what a run calls around every timed window; nil where nobody wants to know.
func (s *Service) windowHook(ctx context.Context, led *ledger.Run) func(open bool) {
	w := WindowsOf(ctx)
	if w == nil {
		return nil
	}
	return func(open bool) {
		if open {
			w.Open()
			return
		}
		did := w.Close()
		if len(did) == 0 {
			return
		}
		if _, err := led.Append(ledger.KindNote, s.now(), ledger.Note{Text: "inside a timed window the daemon did: " + strings.Join(did, ", ")}); err != nil {
			s.log.Warn("note not written: " + err.Error())
		}
	}
}
