package stopwatch

import (
	"fmt"
	"math"
	"math/rand/v2"

	"enginebroker/matrix"
)

// schedule returns when each of n requests is due, in ns since the window's start, ascending. Equal rate, n and seed give
// equal schedules. Constant arrivals begin at 0 and do not drift: each is computed from its index. Poisson gaps are
// exponential with the rate's mean, the first one before the first request.
func schedule(r matrix.Rate, n int, seed uint64) ([]int64, error) {
	const minute = 60e9
	if r.PerMinute < 1 {
		return nil, fmt.Errorf("rate: per_minute is %d, must be at least 1", r.PerMinute)
	}
	out := make([]int64, n)
	switch r.Process {
	case "constant":
		for i := range out {
			out[i] = int64(float64(i) * minute / float64(r.PerMinute))
		}
	case "poisson":
		rng := rand.New(rand.NewPCG(seed, 0x62726f6b6572)) // the second word names the stream: "broker"
		at := 0.0
		for i := range out {
			at -= math.Log1p(-rng.Float64()) * minute / float64(r.PerMinute)
			out[i] = int64(at)
		}
	default:
		return nil, fmt.Errorf("rate: process %q is not poisson or constant", r.Process)
	}
	return out, nil
}
