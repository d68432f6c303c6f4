package verdict

import (
	"enginebroker/matrix"
	"enginebroker/matrix/stats"
)

// Decision is what the blocks of one cell say about its first arm.
type Decision struct {
	Direction matrix.Direction
	Detected  matrix.Direction // an EQUIVALENT cell may carry one
	Reversed  int
	Reasons   []matrix.Reason // WIDE_CI or REVERSED_BLOCKS when there is no direction
}

// Decide applies the decision rule to block log-ratios whose mean is theta (protocol §3.4, vectors C11–C20). qDir and qEq
// are the p values after correction over the series. Fewer than three blocks decide nothing.
func Decide(d []float64, theta, qDir, qEq float64) (Decision, error) {
	out := Decision{Direction: matrix.DirNone, Detected: matrix.DirNone, Reversed: stats.Reversed(d, theta)}
	if len(d) < minFewBlocks {
		return out, nil
	}
	signOK, err := stats.SignOK(len(d), out.Reversed)
	if err != nil {
		return Decision{}, err
	}
	if qDir <= stats.Alpha && signOK {
		out.Detected = matrix.DirFaster
		if theta < 0 {
			out.Detected = matrix.DirSlower
		}
	}
	switch {
	case qEq <= stats.Alpha:
		out.Direction = matrix.DirEquivalent
	case out.Detected != matrix.DirNone:
		out.Direction = out.Detected
	case qDir <= stats.Alpha:
		out.Reasons = []matrix.Reason{matrix.ReversedBlocks}
	default:
		out.Reasons = []matrix.Reason{matrix.WideCI}
	}
	return out, nil
}

// minFewBlocks is the first n at which a direction may be seen (protocol §3.3).
const minFewBlocks = 3

// CountReasons says what n valid blocks of the primary grid cost a cell (protocol §4.4).
func CountReasons(n int) []matrix.Reason {
	switch {
	case n <= 0:
		return []matrix.Reason{matrix.NoValidBlock}
	case n < minFewBlocks:
		return []matrix.Reason{matrix.InsufficientBlocks}
	case n < matrix.MinBlocks:
		return []matrix.Reason{matrix.FewBlocks}
	}
	return nil
}

// GridReasons turns what two grids say about the arms of a cell and their ratio into reasons, and names the arms that
// moved (protocol §6, vectors G09, G10).
func GridReasons(a, b, ratio stats.GridVerdict) (reasons []matrix.Reason, movedA, movedB bool) {
	movedA, movedB = a == stats.NotReproduced, b == stats.NotReproduced
	switch {
	case movedA && movedB && ratio == stats.Reproduced:
		return []matrix.Reason{matrix.GridShiftCommon}, movedA, movedB
	case movedA || movedB || ratio == stats.NotReproduced:
		if movedA || movedB {
			reasons = append(reasons, matrix.GridShiftArm)
		}
		if ratio == stats.NotReproduced {
			reasons = append(reasons, matrix.GridShiftRatio)
		}
	case a == stats.GridUndecided || b == stats.GridUndecided || ratio == stats.GridUndecided:
		reasons = []matrix.Reason{matrix.GridUndecided}
	}
	return reasons, movedA, movedB
}

// AA says what is known of the pipeline's own noise for a method id.
type AA string

const (
	AAPass    AA = "pass"    // a dedicated A/A passed
	AAFail    AA = "fail"    // a dedicated A/A found a difference where there is none
	AAMissing AA = "missing" // no dedicated A/A; the embedded one may stand in
)

// minEmbedded is how many embedded pairs a series needs to stand in for a dedicated A/A (protocol §3.6).
const minEmbedded = 4

// AAReasons turns A/A evidence into reasons; pairs is how many embedded pairs the series has (protocol §3.6).
func AAReasons(aa AA, pairs int) []matrix.Reason {
	switch {
	case aa == AAPass:
		return nil
	case aa == AAFail:
		return []matrix.Reason{matrix.AAFailed}
	case pairs >= minEmbedded:
		return []matrix.Reason{matrix.AAEmbeddedOnly}
	}
	return []matrix.Reason{matrix.AAMissing}
}
