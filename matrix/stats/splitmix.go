package stats

import "math/bits"

// SplitMix64 is the generator of every schedule (protocol §2.2). Its zero value has seed 0.
type SplitMix64 struct{ state uint64 }

// NewSplitMix64 returns a generator of that seed.
func NewSplitMix64(seed uint64) *SplitMix64 { return &SplitMix64{state: seed} }

// Next returns the next 64 bits.
func (g *SplitMix64) Next() uint64 {
	g.state += 0x9E3779B97F4A7C15
	z := g.state
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// UintN returns the high half of next·k: a number below k. k = 0 gives 0.
func (g *SplitMix64) UintN(k uint64) uint64 {
	hi, _ := bits.Mul64(g.Next(), k)
	return hi
}

// Coin returns the top bit of one draw.
func (g *SplitMix64) Coin() bool { return g.Next()>>63 == 1 }

// Float64 returns a number in [0, 1) made of the high 53 bits of one draw.
func (g *SplitMix64) Float64() float64 { return float64(g.Next()>>11) / (1 << 53) }

// Perm returns a permutation of 0..n−1 by Fisher–Yates from the end. n < 2 draws nothing.
func (g *SplitMix64) Perm(n int) []int {
	p := make([]int, n)
	for i := range p {
		p[i] = i
	}
	for i := n - 1; i > 0; i-- {
		j := int(g.UintN(uint64(i + 1)))
		p[i], p[j] = p[j], p[i]
	}
	return p
}
