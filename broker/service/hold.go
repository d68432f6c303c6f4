package service

import (
	"context"
	"slices"
	"strings"

	"enginebroker/matrix"
	"enginebroker/matrix/ledger"
	"enginebroker/matrix/verdict"
)

// Held is somebody's decision about cells.
type Held struct {
	Who, Why string
	Release  bool // the hold is lifted
}

// Hold holds back every cell of a run whose name contains all words, or releases it, and returns them as they are judged
// now. The decision is a record of the run's ledger with who and why; an earlier one stays beside it.
func (s *Service) Hold(ctx context.Context, run string, words []string, h Held) ([]matrix.Cell, error) {
	if strings.TrimSpace(h.Who) == "" || strings.TrimSpace(h.Why) == "" {
		return nil, fail(CauseUsage, "", "a hold says who holds and why")
	}
	if slices.Contains(words, "") {
		return nil, About("words", fail(CauseUsage, "", "an empty word is in the name of every cell; say which cells"))
	}
	cells, err := s.Cells(ctx, run, words)
	if err != nil {
		return nil, err
	}
	cells = slices.DeleteFunc(cells, func(c matrix.Cell) bool { return c.ID.Group == "" })
	if len(cells) == 0 {
		return nil, fail(CauseUsage, "", "refused pairs have no number to hold back")
	}
	dir, err := s.runDir(run)
	if err != nil {
		return nil, err
	}
	led, err := s.openRun(dir, func(ledger.Finding) {})
	if err != nil {
		return nil, err
	}
	defer led.Close()
	ev, err := s.evidence(ctx, led)
	if err != nil {
		return nil, err
	}
	for _, c := range cells {
		if h.Release && !slices.ContainsFunc(ev.holds, func(x verdict.Hold) bool { return c.ID == heldCell(x) }) {
			return nil, fail(CauseNotFound, "", "%s is not held", c.ID)
		}
	}
	for _, c := range cells {
		if _, err := led.Append(ledger.KindHold, s.now(), ledger.Hold{Cell: c.ID, Who: h.Who, Why: h.Why, Release: h.Release}); err != nil {
			return nil, err
		}
	}
	r, err := s.judged(ctx, led)
	if err != nil {
		return nil, err
	}
	if err := s.writeReport(led, r); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(r.Cells, func(c matrix.Cell) bool {
		return !slices.ContainsFunc(cells, func(x matrix.Cell) bool { return x.ID == c.ID })
	}), nil
}

func heldCell(h verdict.Hold) matrix.CellID {
	return matrix.CellID{Pair: h.Pair, Group: h.Group, Point: h.Point, Metric: h.Metric}
}
