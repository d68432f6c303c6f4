package stopwatch

import (
	"math/bits"

	"enginebroker/matrix"
)

// stallNs is the lag or lateness above which the client stood still. [own]: a hundred times the p50 lag the client is
// built for, and half the gap between tokens of a 50 tok/s stream.
const stallNs = 10_000_000

// Cost is what the client measured of itself over the pass. requests are those that Reduce made of this recording. Reader
// lag is taken against kernel receive stamps and absent where the platform gives none; CPU is that of the whole process,
// an upper bound of the client's; percentiles are nearest rank, rounded up by at most 1.6 %.
func (r *Recording) Cost(requests []matrix.Request) matrix.ClientCost {
	var late, lag histogram
	c := matrix.ClientCost{GCPauses: r.GCPauses, GCPauseNs: r.GCPauseNs}
	for i := range r.Exchanges {
		x := &r.Exchanges[i]
		if x.Begin >= 0 {
			late.add(max(0, x.Begin-x.Scheduled))
			if x.Begin-x.Scheduled > stallNs {
				c.Stalls++
			}
		}
		for _, s := range x.Segments {
			c.Bytes += int64(s.Bytes)
			if s.Lag < 0 {
				continue
			}
			lag.add(s.Lag)
			if s.Lag > stallNs {
				c.Stalls++
			}
		}
	}
	for _, q := range requests {
		c.Events += int64(q.Events)
	}
	c.LatenessP50, c.LatenessP99 = late.quantile(0.50), late.quantile(0.99)
	c.LagP50, c.LagP99 = lag.quantile(0.50), lag.quantile(0.99)
	if c.Events > 0 && r.CPU >= 0 {
		c.CPUPerEvent = matrix.Some(r.CPU / c.Events)
	}
	return c
}

// subBuckets per power of two bound the error of a quantile to 1/64, always upwards.
const subBits = 6

// histogram counts non-negative nanoseconds in fixed memory.
type histogram struct {
	n      int64
	counts [(64 - subBits) << subBits]int64
}

func (h *histogram) reset() {
	if h.n > 0 {
		*h = histogram{}
	}
}

func (h *histogram) add(ns int64) {
	h.n++
	h.counts[bucket(uint64(ns))]++
}

// bucket keeps the top bit and the six below it.
func bucket(v uint64) int {
	shift := max(0, bits.Len64(v)-1-subBits)
	return shift<<subBits + int(v>>shift)
}

// upper is the largest value of a bucket.
func upper(b int) int64 {
	shift := max(0, b>>subBits-1)
	return int64((uint64(b-shift<<subBits)+1)<<shift - 1)
}

// quantile returns the nearest-rank quantile, absent where nothing was counted.
func (h *histogram) quantile(q float64) matrix.Opt[int64] {
	if h.n == 0 {
		return matrix.Opt[int64]{}
	}
	rank, seen := int64(q*float64(h.n-1))+1, int64(0)
	for b, n := range h.counts {
		if seen += n; seen >= rank {
			return matrix.Some(upper(b))
		}
	}
	return matrix.Opt[int64]{}
}
