package verdict

import (
	"slices"

	"enginebroker/matrix"
)

// Block is one block of a pair at a point, in execution order. A superblock that was cut short has one block or none.
type Block struct {
	Superblock int // distinguishes superblocks; equal for the two blocks of one
	Void       bool
	Causes     []matrix.Cause // of its void legs
	LagOnly    bool           // HARNESS among the causes is the client's lateness alone
}

// Tally is which superblocks of a pair at a point count, and what the others cost (protocol §4.4).
type Tally struct {
	Used    []int // the first S whole superblocks, in execution order
	Lone    []int // superblocks cut short whose only block counts because there are fewer than S whole ones
	N       int   // blocks
	Env     []int // superblocks void by the environment
	Lag     []int // superblocks void by the client's lateness
	Reasons []matrix.Reason
}

// Count decides which superblocks count (protocol §4.4, vectors R01–R07). planned is S, extensions included. Its reasons
// are those of the voids; what N itself costs is CountReasons, because a metric may lack values.
func Count(planned int, blocks []Block) Tally {
	type state struct {
		id, seen         int
		void             bool
		engine, env, lag bool
		fault            bool
	}
	var sbs []*state
	for _, b := range blocks {
		i := slices.IndexFunc(sbs, func(s *state) bool { return s.id == b.Superblock })
		if i < 0 {
			sbs, i = append(sbs, &state{id: b.Superblock}), len(sbs)
		}
		s := sbs[i]
		s.seen++
		s.void = s.void || b.Void
		for _, c := range b.Causes {
			switch c {
			case matrix.CauseEngine:
				s.engine = true
			case matrix.CauseEnv:
				s.env = true
			case matrix.CauseHarness:
				s.lag, s.fault = s.lag || b.LagOnly, s.fault || !b.LagOnly
			}
		}
	}
	var t Tally
	var engine, fault bool
	for _, s := range sbs {
		engine, fault = engine || s.engine, fault || s.fault
		switch {
		case s.env:
			t.Env = append(t.Env, s.id)
		case s.lag && !s.engine && !s.fault:
			t.Lag = append(t.Lag, s.id)
		}
		if !s.void && s.seen == 2 && len(t.Used) < planned {
			t.Used = append(t.Used, s.id)
		}
	}
	for _, s := range sbs {
		if !s.void && s.seen == 1 && len(t.Used)+len(t.Lone) < planned {
			t.Lone = append(t.Lone, s.id)
		}
	}
	t.N = 2*len(t.Used) + len(t.Lone)
	if engine {
		t.Reasons = append(t.Reasons, matrix.EngineVoidOnRecord)
	}
	allowed := Allowance(planned)
	if len(t.Env) > allowed {
		t.Reasons = append(t.Reasons, matrix.TooManyEnvVoids)
	}
	if fault || len(t.Lag) > 0 && len(t.Env)+len(t.Lag) > allowed {
		t.Reasons = append(t.Reasons, matrix.HarnessFault)
	}
	slices.Sort(t.Reasons)
	return t
}

// Allowance is how many superblocks of S may be run again: ⌈S/2⌉ (protocol §4.4) [own].
func Allowance(planned int) int { return (planned + 1) / 2 }
