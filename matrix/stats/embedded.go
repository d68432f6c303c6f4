package stats

import "math"

// JumpMargin is the largest same-arm difference of adjacent loads that is not suspect: ln 1.02 (protocol §3.6).
const JumpMargin = 0.02

// EmbeddedAA is what the adjacent same-arm pairs of a series say about its own noise.
type EmbeddedAA struct {
	K          int
	RMS        float64 // of ln(second/first)
	NoiseFloor float64 // half-width that two like arms would show with n blocks
	MaxAbs     float64
	Jump       bool // some pair differs by more than 2 %
}

// Embedded evaluates the free A/A of a schedule (protocol §3.6): pairs of values of one arm from adjacent loads, and the
// number of blocks n of the cells it is meant for. The floor is t(0.975, k)·rms/√n.
func Embedded(pairs [][2]float64, blocks int) (EmbeddedAA, error) {
	if err := atLeast("embedded A/A pairs", len(pairs), 1); err != nil {
		return EmbeddedAA{}, err
	}
	if err := atLeast("embedded A/A blocks", blocks, 1); err != nil {
		return EmbeddedAA{}, err
	}
	e, ss := EmbeddedAA{K: len(pairs)}, 0.0
	for _, p := range pairs {
		d, err := LogRatio(p[1], p[0], true)
		if err != nil {
			return EmbeddedAA{}, err
		}
		ss += d * d
		e.MaxAbs = math.Max(e.MaxAbs, math.Abs(d))
	}
	t, err := TQuantile(0.975, e.K)
	if err != nil {
		return EmbeddedAA{}, err
	}
	e.RMS = math.Sqrt(ss / float64(e.K))
	e.NoiseFloor = t * e.RMS / math.Sqrt(float64(blocks))
	e.Jump = e.MaxAbs > Margin(JumpMargin)
	return e, nil
}

// Drift is ln(last/first) of the arm that opens and closes a superblock, and whether it is beyond ln(1+limit)
// (protocol §3.6, terminal control).
func Drift(first, last, limit float64) (log float64, void bool, err error) {
	log, err = LogRatio(last, first, true)
	return log, err == nil && math.Abs(log) > Margin(limit), err
}
