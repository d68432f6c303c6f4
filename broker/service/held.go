package service

import (
	"context"
	"errors"

	"enginebroker/matrix"
	"enginebroker/matrix/box"
)

// held is the box under this run's lock.
type held struct {
	*box.Box
	lock    *box.Lock
	release func()
}

// hold opens the box a plan was made for and takes its lock, before a run directory exists or is written to.
func (s *Service) hold(ctx context.Context, plan matrix.Plan, name string, on func(Event)) (held, error) {
	bx, done, err := s.box(ctx, plan.Box, func(text string) { on(Event{At: s.now(), Kind: "settle", Text: text}) })
	if err != nil {
		return held{}, err
	}
	lock, err := bx.Acquire("run " + name)
	if err != nil {
		done()
		return held{}, &Error{Cause: CauseBusy, Err: err}
	}
	return held{Box: bx, lock: lock, release: func() {
		_ = lock.Release()
		done()
	}}, nil
}

// baseline takes what an empty box looks like on this boot, before the first load. It says what makes the box unfit to
// certify anything, empty where it is fit.
func baseline(ctx context.Context, bx *box.Box, finding func(string)) (uncertified string, err error) {
	base, err := bx.Baseline(ctx)
	switch {
	case errors.Is(err, box.ErrUnattributed):
		finding(err.Error() + "; this box certifies nothing until it is rebooted")
		uncertified = string(matrix.MemoryNotReturned) + ": " + err.Error()
	case err != nil:
		return "", interrupted(ctx, err, "")
	}
	if base.Note != "" {
		finding("memory baseline: " + base.Note)
	}
	return uncertified, nil
}
