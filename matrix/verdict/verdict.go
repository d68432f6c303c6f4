// Package verdict says what may be said. It turns judged legs into cells, each with a verdict, all the reasons for it, and
// exactly the numbers that the verdict allows.
//
// A verdict is a function of the set of reasons and of nothing else (protocol §4.5): the most severe one decides, all are
// kept. A number that a verdict does not allow is not in the cell, so no renderer can print it by mistake. There is no
// aggregate over cells.
//
// The way through Judge:
//
//  1. index   legs by grid, group, superblock, point and arm; gates that need the whole run are applied
//  2. series  per pair and point: which superblocks are whole, which are void and why, the clock allowance (§4.2, §4.4)
//  3. cells   per metric: block log-ratios, interval, p values; Benjamini–Hochberg over the primary cells (§3.3–3.5)
//  4. reasons decision, A/A, grids, facts, box (§3.4, §3.6, §4.3, §4.5, §6), then the numbers that are left
package verdict

import (
	"enginebroker/matrix"
)

// Of returns the verdict of a set of reasons, the most severe one; no reason is ESTABLISHED. An unknown reason is an
// error, never rank 0 (protocol §4.5, vectors V01–V12).
func Of(reasons []matrix.Reason) (matrix.Verdict, error) {
	worst := matrix.Established
	for _, r := range reasons {
		v, err := r.Verdict()
		if err != nil {
			return matrix.NotComparable, err
		}
		worst = max(worst, v)
	}
	return worst, nil
}

// Print is one kind of thing a verdict allows to be shown.
type Print string

const (
	PrintRatio     Print = "ratio"
	PrintCI        Print = "ci"
	PrintMedians   Print = "medians"
	PrintSpreads   Print = "spreads"
	PrintDirection Print = "direction"
	PrintReasons   Print = "reasons"
)

// Prints lists what a verdict allows to be shown (protocol §4.5). A cell with ITL_COALESCED among its reasons shows its
// reasons only: there is no ITL to print.
func Prints(v matrix.Verdict, reasons ...matrix.Reason) []Print {
	for _, r := range reasons {
		if r == matrix.ITLCoalesced {
			return []Print{PrintReasons}
		}
	}
	switch v {
	case matrix.Established:
		return []Print{PrintRatio, PrintCI, PrintMedians, PrintSpreads, PrintDirection}
	case matrix.Provisional:
		return []Print{PrintRatio, PrintCI, PrintMedians, PrintSpreads, PrintDirection, PrintReasons}
	case matrix.Inconclusive:
		return []Print{PrintCI, PrintMedians, PrintSpreads, PrintReasons}
	case matrix.NotReproduced: // per grid, side by side
		return []Print{PrintMedians, PrintSpreads, PrintReasons}
	}
	return []Print{PrintReasons}
}
