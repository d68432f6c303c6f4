package metrics

import (
	"maps"
	"math"
	"slices"

	"enginebroker/matrix/stats"
)

// dist is a set of weighted observations in bounded memory. Up to exactLimit of them every statistic is exact; beyond, the
// mean, smallest and largest stay exact and percentiles come from buckets of a relative width of 2^-11, so they are off by
// at most 0.025 %.
type dist struct {
	n           int
	sum, weight float64
	values      []float64
	weights     []float64 // nil while all are 1
	buckets     map[int]float64
}

const (
	exactLimit = 1 << 16
	subBits    = 11
)

func (d *dist) add(x, w float64) {
	d.n++
	d.sum += x * w
	d.weight += w
	if d.buckets != nil {
		d.buckets[bucket(x)] += w
		return
	}
	if w != 1 && d.weights == nil {
		d.weights = slices.Repeat([]float64{1}, len(d.values))
	}
	if d.weights != nil {
		d.weights = append(d.weights, w)
	}
	if d.values = append(d.values, x); len(d.values) > exactLimit {
		d.spill()
	}
}

func (d *dist) spill() {
	d.buckets = map[int]float64{}
	for i, x := range d.values {
		d.buckets[bucket(x)] += d.weightOf(i)
	}
	d.values, d.weights = nil, nil
}

func (d *dist) weightOf(i int) float64 {
	if d.weights == nil {
		return 1
	}
	return d.weights[i]
}

// bucket numbers grow with the value; observations are not negative.
func bucket(x float64) int {
	if x <= 0 {
		return math.MinInt
	}
	f, e := math.Frexp(x) // x = f·2^e, f in [0.5, 1)
	return e<<subBits + int((f-0.5)*(2<<subBits))
}

// middle is the middle of a bucket.
func middle(b int) float64 {
	if b == math.MinInt {
		return 0
	}
	return math.Ldexp(0.5+(float64(b&(1<<subBits-1))+0.5)/(2<<subBits), b>>subBits)
}

func (d *dist) mean() (float64, bool) { return d.sum / d.weight, d.weight > 0 }

// linear is the p-th percentile by linear interpolation at h = (n−1)p/100, the method of protocol §3.1 and of numpy.
func (d *dist) linear(p float64) (float64, bool) {
	if d.n == 0 {
		return 0, false
	}
	if d.buckets == nil {
		out, err := stats.Percentiles(d.values, p)
		if err != nil {
			return 0, false
		}
		return out[0], true
	}
	h := float64(d.n-1) * p / 100
	lo, hi := d.ranked(math.Floor(h)), d.ranked(math.Ceil(h))
	return lo + (h-math.Floor(h))*(hi-lo), true
}

// ranked is the observation of a 0-based rank among the buckets.
func (d *dist) ranked(rank float64) float64 {
	seen := 0.0
	keys := slices.Sorted(maps.Keys(d.buckets))
	for _, b := range keys {
		if seen += d.buckets[b]; seen > rank {
			return middle(b)
		}
	}
	return middle(keys[len(keys)-1])
}

// inverted is the p-th percentile as the inverse of the weighted empirical distribution: the smallest value up to which at
// least p % of the weight lies (guidellm statistics.py, searchsorted left).
func (d *dist) inverted(p float64) (float64, bool) {
	if d.weight <= 0 {
		return 0, false
	}
	type part struct{ x, w float64 }
	parts := make([]part, 0, len(d.values)+len(d.buckets))
	for i, x := range d.values {
		parts = append(parts, part{x, d.weightOf(i)})
	}
	for b, w := range d.buckets {
		parts = append(parts, part{middle(b), w})
	}
	slices.SortFunc(parts, func(a, b part) int {
		switch {
		case a.x < b.x:
			return -1
		case a.x > b.x:
			return 1
		}
		return 0
	})
	seen := 0.0
	for _, q := range parts {
		if seen += q.w; seen/d.weight >= p/100 {
			return q.x, true
		}
	}
	return parts[len(parts)-1].x, true
}
