package service

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"enginebroker/engines/fingerprint"
	"enginebroker/matrix"
	"enginebroker/matrix/stats"
)

// blockSD is the SD of a block's log-ratio where no earlier run is on record (protocol §7.7) [sim].
const blockSD = 0.0035

// AB is a comparison of two builds of one engine.
type AB struct {
	New       string  `json:"new"`
	Old       string  `json:"old"`
	Margin    float64 `json:"margin,omitempty"`     // largest slow-down that is accepted, a fraction; 0: none is declared
	SameBuild bool    `json:"same_build,omitempty"` // the two differ in settings by intent, not in build
	// Superblocks are those of a plan that was shown; 0: what the margin takes at the noise on record.
	Superblocks int `json:"superblocks,omitempty"`
}

// Margined is what a wanted half-width costs.
type Margined struct {
	Margin float64 `json:"margin"`
	SD     float64 `json:"block_sd"`
	Basis  string  `json:"basis"`
	Blocks int     `json:"blocks"` // needed for that half-width
	Loads  int     `json:"loads"`
	Fits   bool    `json:"fits"` // within the blocks that the protocol looks at
}

func (m Margined) String() string {
	text := fmt.Sprintf("a half-width of %.2f %% takes about %d blocks, %d loads, at an SD of %.2f %% between blocks (%s)", 100*m.Margin, m.Blocks, m.Loads, 100*m.SD, m.Basis)
	if !m.Fits {
		text += fmt.Sprintf("; the protocol looks no further than %d blocks: find the source of the noise, or accept a wider margin", matrix.MaxBlocks)
	}
	return text
}

// abRequest is a comparison of two instances.
func abRequest(q Request) (Request, error) {
	ab := q.AB
	if ab.New == ab.Old {
		return q, About("spec.ab.old_build", fail(CauseUsage, "", "%s against itself is an A/A: broker aa", ab.New))
	}
	if ab.Margin < 0 || ab.Margin >= 1 || math.IsNaN(ab.Margin) {
		return q, About("spec.ab.margin", fail(CauseUsage, "", "a margin is a fraction below 1, like 0.02"))
	}
	q.Engines, q.Pairs = []string{ab.New, ab.Old}, nil
	q.Profile = cmp.Or(q.Profile, "standard")
	q.special = special{purpose: matrix.PurposeAB, superblocks: cmp.Or(ab.Superblocks, aaSuperblocks), sameBuild: ab.SameBuild}
	return q, nil
}

// margined makes a comparison of two builds as long as its margin needs, and says what that costs; nil where none is declared,
// or where the plan was shown already.
func (s *Service) margined(ctx context.Context, q *Request) *Margined {
	if q.AB == nil || q.AB.Margin == 0 || q.AB.Superblocks > 0 {
		return nil
	}
	m := &Margined{Margin: q.AB.Margin}
	m.SD, m.Basis = s.noise(ctx, q.Model, q.AB.New, q.AB.Old)
	m.Blocks = blocksFor(m.SD, stats.Margin(m.Margin))
	m.Fits = m.Blocks <= matrix.MaxBlocks
	m.Loads = m.Blocks / 2 * 5
	q.special.superblocks = min(m.Blocks, matrix.MaxBlocks) / 2
	return m
}

// blocksFor is the even number of blocks, at least 6, whose t interval is no wider than half on each side (protocol §3.3).
func blocksFor(sd, half float64) int {
	for n := matrix.MinBlocks; n < 1000; n += 2 {
		t, err := stats.TQuantile(0.975, n-1)
		if err != nil || t*sd/math.Sqrt(float64(n)) <= half {
			return n
		}
	}
	return 1000
}

// noise is the SD of block log-ratios that the newest run of either instance showed in its primary cells, the widest of
// them; else the protocol's figure.
func (s *Service) noise(ctx context.Context, model string, instances ...string) (float64, string) {
	runs, err := s.Runs(ctx)
	if err != nil {
		return blockSD, "no earlier run could be read"
	}
	looked := 0
	for _, info := range runs {
		if info.External || info.Model != model || looked >= maxHistory {
			continue
		}
		looked++
		r, ok := s.reportBeside(info.Name)
		if !ok {
			continue
		}
		widest := 0.0
		for _, c := range r.Cells {
			iv, ok := c.Numbers.Or(matrix.Numbers{}).Interval.Get()
			if ok && c.Metric.Primary && (slices.Contains(instances, c.ID.Pair.A) || slices.Contains(instances, c.ID.Pair.B)) {
				widest = max(widest, iv.SE.Or(0)*math.Sqrt(float64(iv.DF+1)))
			}
		}
		if widest > 0 {
			return widest, "widest primary cell of run " + info.Name
		}
	}
	return blockSD, "no earlier run of these instances; protocol §7.7"
}

// distinct is the two-arms guard: two builds that are one build measure nothing but noise.
func distinct(q Request, t *team) error {
	if q.special.sameBuild || len(t.members) != 2 {
		return nil
	}
	a, b := t.members[0], t.members[1]
	if d := fingerprint.Distinct(a.desc.Identity, b.desc.Identity); !d.Differ {
		return fail(CauseIdentity, "name two builds; or, where settings are what is compared, say --same-build", "%s and %s: %s", a.Label, b.Label, d.Says)
	}
	return nil
}

// ABCell is one primary cell, seen from the new build.
type ABCell struct {
	Cell  matrix.CellID       `json:"cell"`
	Lo    matrix.Opt[float64] `json:"ratio_lo,omitzero"` // ends of the interval of new/old, above 1 the new one is better
	Hi    matrix.Opt[float64] `json:"ratio_hi,omitzero"`
	Holds bool                `json:"holds"` // the new build is not worse by more than the margin
	Why   string              `json:"why"`
	// Simulated says that no engine was measured on one side or on both.
	Simulated bool `json:"simulated,omitempty"`
}

// JudgeMargin is what the caller of a comparison with a margin should fail with: a primary cell that does not hold it.
func JudgeMargin(cells []ABCell) error {
	if len(cells) == 0 {
		return fail(CauseDiffers, "", "no primary cell says anything of the margin")
	}
	for _, x := range cells {
		if !x.Holds {
			stamp := ""
			if x.Simulated {
				stamp = string(matrix.Simulated) + ", "
			}
			return fail(CauseDiffers, "", "margin: %s%s: %s", stamp, x.Cell, x.Why)
		}
	}
	return nil
}

// JudgeAB says of every primary cell whether its interval excludes a slow-down beyond the margin.
func JudgeAB(r matrix.Report, ab AB) []ABCell {
	var out []ABCell
	for _, c := range r.Cells {
		if !c.Metric.Primary || c.ID.Group == "" {
			continue
		}
		x := ABCell{Cell: c.ID, Simulated: c.Simulated, Why: fmt.Sprintf("%s (%s)", c.Verdict, joinCodes(c.Codes()))}
		if iv, ok := c.Numbers.Or(matrix.Numbers{}).Interval.Get(); ok {
			lo, hi := iv.Lo, iv.Hi
			if c.ID.Pair.A != ab.New {
				lo, hi = -hi, -lo
			}
			x.Lo, x.Hi = matrix.Some(math.Exp(lo)), matrix.Some(math.Exp(hi))
			x.Holds = lo > -stats.Margin(ab.Margin)
			switch {
			case x.Holds:
				x.Why = fmt.Sprintf("%s is slower by %.2f %% at most", ab.New, 100*math.Max(0, math.Expm1(-lo)))
			case hi < -stats.Margin(ab.Margin):
				x.Why = fmt.Sprintf("%s is slower by %.2f %% at least", ab.New, 100*math.Expm1(-hi))
			default:
				x.Why = fmt.Sprintf("%s may be slower by %.2f %%: not decided within the margin", ab.New, 100*math.Expm1(-lo))
			}
		}
		out = append(out, x)
	}
	return out
}
