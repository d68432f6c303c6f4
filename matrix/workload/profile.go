package workload

import (
	"fmt"
	"math"
	"slices"
	"time"

	"enginebroker/matrix"
)

// Profile is a run profile: how much evidence a run gathers (protocol §2.8).
type Profile struct {
	Name         string
	Superblocks  int   // per group; 0: the number recommended for the group's arms (protocol §2.4)
	Repetitions  int   // R, timed passes of a point in one load
	Levels       []int // concurrency levels that are run; empty: all of the workload
	MinRequests  int   // requests of a repetition, at least
	PerStream    int   // requests of a repetition per concurrent stream
	Grids        int   // boots a run needs to be complete
	DedicatedAA  bool  // wants the same arm under two labels on record, once per (machine, driver, method id); else the embedded pairs do
	Confirmation int   // superblocks of every grid after the first; 0: none
}

// profiles is the table of protocol §2.8. 6·c requests are [S3]; R = 3 exists so that a spread can be printed (§2.4 e);
// a confirmation grid has 4 blocks (§2.4).
var profiles = []Profile{
	{Name: "quick", Superblocks: 2, Repetitions: 1, Levels: []int{1, 8}, MinRequests: 4, PerStream: 2, Grids: 1},
	{Name: "standard", Superblocks: matrix.MinBlocks / 2, Repetitions: 3, PerStream: 6, Grids: 1},
	{Name: "binding", Superblocks: 0, Repetitions: 3, PerStream: 6, Grids: 2, DedicatedAA: true, Confirmation: matrix.ConfirmationSuperblocks},
}

// ProfileNames lists the run profiles, cheapest first.
func ProfileNames() []string {
	out := make([]string, len(profiles))
	for i, p := range profiles {
		out[i] = p.Name
	}
	return out
}

// ProfileNamed returns a run profile.
func ProfileNamed(name string) (Profile, bool) {
	for _, p := range profiles {
		if p.Name == name {
			p.Levels = slices.Clone(p.Levels)
			return p, true
		}
	}
	return Profile{}, false
}

// Requests is the number of requests of one repetition at concurrency c.
func (p Profile) Requests(c int) int { return max(p.MinRequests, p.PerStream*c) }

// Points returns the points of a workload that a profile runs, ascending as the workload lists them. A profile that names
// levels of which the workload has none runs the first and the last of its points, so that no workload comes out empty.
func Points(w Workload, p Profile) []matrix.Point {
	shapes := slices.DeleteFunc(slices.Clone(w.Shapes), func(s Shape) bool {
		return len(p.Levels) > 0 && (!slices.Contains(p.Levels, s.Concurrency) || s.ID != "")
	})
	if len(shapes) == 0 && len(w.Shapes) > 0 {
		shapes = slices.CompactFunc([]Shape{w.Shapes[0], w.Shapes[len(w.Shapes)-1]}, func(a, b Shape) bool { return a.id() == b.id() })
	}
	out := make([]matrix.Point, len(shapes))
	for i, s := range shapes {
		out[i] = s.point(w, p.Requests(s.Concurrency))
	}
	return out
}

func (s Shape) point(w Workload, requests int) matrix.Point {
	pt := matrix.Point{
		ID: s.id(), Workload: w.Name, Endpoint: s.Endpoint, PromptTokens: s.PromptTokens, OutputTokens: s.OutputTokens, IgnoreEOS: s.IgnoreEOS,
		Concurrency: s.Concurrency, Rate: s.Rate, Requests: requests, Warmup: s.Concurrency, SharedPrefix: s.SharedPrefix, Seed: w.Seed,
		IdleLimit: s.IdleLimit, TotalLimit: s.TotalLimit,
	}
	if pt.IdleLimit == 0 {
		pt.IdleLimit = patience + time.Duration(s.Concurrency)*seconds(s.PromptTokens, slowestPrefill)
	}
	if pt.TotalLimit == 0 {
		pt.TotalLimit = pt.IdleLimit + seconds(s.OutputTokens, slowestDecode)
	}
	return pt
}

// Default limits [own]. They tell a hang from a slow engine, so they are far beyond anything worth comparing: a first
// token may wait for the prompts of all streams at 100 tokens per second, and a stream may decode at one token every
// two seconds.
const (
	patience       = 2 * time.Minute
	slowestPrefill = 100.0
	slowestDecode  = 0.5
)

func seconds(tokens int, perSecond float64) time.Duration {
	return time.Duration(math.Ceil(float64(tokens)/perSecond)) * time.Second
}

// Grow raises the requests of each point until a repetition is expected to last at least as long as asked, and says what
// it changed. decode is the decode rate of one stream of the fastest arm, in tokens per second: no stream of a busier
// server is faster, so the expectation is a lower bound. Requests stay a multiple of the concurrency.
// In open loop arrivals alone decide, and decode is not needed.
//
// On models of thousands of tokens per second a leg of half a second decides nothing (engines.md D8: two loads of one arm
// differed by 32 %); 5 s and more do [own].
func Grow(points []matrix.Point, atLeast time.Duration, decode float64) ([]matrix.Point, []string, error) {
	closed := slices.ContainsFunc(points, func(p matrix.Point) bool { return p.Rate.IsZero() })
	if atLeast < 0 || closed && (math.IsNaN(decode) || math.IsInf(decode, 0) || decode <= 0) {
		return nil, nil, fmt.Errorf("workload: cannot size requests for %v at %v tokens per second: give a positive measured rate", atLeast, decode)
	}
	out := slices.Clone(points)
	var notes []string
	for i, p := range out {
		if !p.Rate.IsZero() {
			if need := int(math.Ceil(atLeast.Minutes() * float64(p.Rate.PerMinute))); need > p.Requests {
				out[i].Requests = need
				notes = append(notes, fmt.Sprintf("%s: %d requests per repetition instead of %d, so that they arrive over %v", p.ID, need, p.Requests, atLeast))
			}
			continue
		}
		waves := max(1, int(math.Ceil(atLeast.Seconds()*decode/float64(p.OutputTokens))))
		if need := waves * p.Concurrency; need > p.Requests {
			out[i].Requests = need
			notes = append(notes, fmt.Sprintf("%s: %d requests per repetition instead of %d, so that one lasts at least %v at %.4g tokens/s per stream", p.ID, need, p.Requests, atLeast, decode))
		}
	}
	return out, notes, nil
}

// clipMargin is the room kept above prompt and output: all four engines shorten an answer silently near the limit of the
// context (engines.md C8, D8, E3, B9; the largest seen is 2 tokens of SGLang), and a chat template adds its own tokens.
const (
	clipMargin     = 16
	templateMargin = 240
	contextStep    = 128 // limits are rounded up to a multiple that every engine's block size divides
)

// LimitsOf returns what the points need of a server: context per request, requests at once, and tokens of KV cache for
// all of them.
func LimitsOf(points []matrix.Point) matrix.Limits {
	var l matrix.Limits
	for _, p := range points {
		need := p.PromptTokens + p.OutputTokens + clipMargin
		if p.Endpoint == "chat" {
			need += templateMargin
		}
		need = (need + contextStep - 1) / contextStep * contextStep
		l.ContextTokens = max(l.ContextTokens, need)
		l.Concurrency = max(l.Concurrency, p.Concurrency)
		l.KVTokens = max(l.KVTokens, p.Concurrency*need)
	}
	return l
}
