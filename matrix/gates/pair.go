package gates

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"enginebroker/matrix"
)

// Window is what the block gates need of one leg.
type Window struct {
	Env    matrix.Env
	Clock  matrix.Opt[ClockStats]
	Static matrix.Facts // static GPU fields
}

// NewWindow reduces the clock series of a leg once, for as many pairs as use it.
func NewWindow(rec matrix.LegRecord) Window {
	w := Window{Env: rec.Env}
	if c, ok := rec.Clock.Get(); ok {
		w.Clock, w.Static = matrix.Some(ClockWindow(c)), c.Static
	}
	return w
}

// Block judges the two legs of a pair in one block (protocol §4.2): one boot throughout, and clocks within 1 % in median
// and mean where the profile has a clock. Both windows have one where Leg found no clock gate absent.
func Block(a, b Window, p Profile) []matrix.LegCode {
	var codes []matrix.LegCode
	boots := []string{a.Env.BootIDStart, a.Env.BootIDEnd, b.Env.BootIDStart, b.Env.BootIDEnd}
	if slices.ContainsFunc(boots, func(x string) bool { return x != boots[0] }) {
		codes = append(codes, matrix.ClockBootMismatchC)
	}
	ca, okA := a.Clock.Get()
	cb, okB := b.Clock.Get()
	if p.Clock && okA && okB {
		_, more := ClockCompare(ca, cb)
		for _, c := range more {
			if !slices.Contains(codes, c) {
				codes = append(codes, c)
			}
		}
	}
	return codes
}

// StaticMismatch names the static GPU fields that both sides show and that differ (protocol §4.2).
func StaticMismatch(a, b matrix.Facts) []string {
	var out []string
	for _, f := range a {
		if g, ok := b.Get(f.Name); ok && g.Value != f.Value {
			out = append(out, fmt.Sprintf("%s: %s and %s", f.Name, f.Value, g.Value))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// CeilingMismatch names two observed clock ceilings that differ by more than two windows of one block may (protocol §4.7,
// §4.2); empty where they agree or one is unknown.
func CeilingMismatch(a, b matrix.Opt[int64]) string {
	x, okA := a.Get()
	y, okB := b.Get()
	if !okA || !okB || y <= 0 || math.Abs(100*(float64(x)/float64(y)-1)) <= clockMaxOffset+clockEps {
		return ""
	}
	return fmt.Sprintf("clock ceiling %d MHz and %d MHz", x, y)
}

// Side is one arm of a pair as the cell gates see it: what was declared, and what its first load read back.
type Side struct {
	Arm    matrix.Arm
	Ready  matrix.Opt[matrix.Ready]
	LoadID string // of that load
}

// sameFacts are the facts that must be observed on both sides and be equal, and what their difference is called
// (protocol §4.3). compares names the declaration that allows the difference.
var sameFacts = []struct {
	fact     string
	reason   matrix.Reason
	compares bool
}{
	{matrix.FactKVDtype, matrix.KVDtypeMismatch, false},
	{matrix.FactPrefixCache, matrix.PrefixCacheMismatch, false},
	{matrix.FactComputeDtype, matrix.ComputeDtypeMismatch, true},
	{matrix.FactActivationDtype, matrix.ComputeDtypeMismatch, true},
}

// Facts judges what must be equal across the two arms of a cell (protocol §4.3). A fact that one side could not observe is
// not equal: it is named in FACT_UNOBSERVED. A fact somebody only claimed is not observed.
func Facts(a, b Side) []matrix.CellReason {
	var out []matrix.CellReason
	evidence := evidenceOf(a, b)
	differ := func(r matrix.Reason, what, x, y string) {
		out = append(out, matrix.CellReason{Code: r, Evidence: evidence,
			Detail: fmt.Sprintf("%s: %s has %s, %s has %s", what, a.Arm.Label, x, b.Arm.Label, y),
			Next:   "launch both arms with the same " + what + " and run the group again"})
	}
	if a.Arm.Artifact != b.Arm.Artifact {
		differ(matrix.CheckpointMismatch, "artifact", a.Arm.Artifact, b.Arm.Artifact)
	}
	if r, ok := policyReason(a.Arm.Policy, b.Arm.Policy); ok {
		differ(r, "policy", a.Arm.Policy.String(), b.Arm.Policy.String())
	}
	if a.Arm.Cache != b.Arm.Cache {
		differ(matrix.PrefixCacheMismatch, "prefix cache policy", a.Arm.Cache, b.Arm.Cache)
	}
	var unobserved []string
	observe := func(s Side, fact string) (string, bool) {
		if r, ok := s.Ready.Get(); ok {
			if f, ok := r.Facts.Get(fact); ok && f.Standing == matrix.Observed && f.Value != "" {
				return f.Value, true
			}
		}
		unobserved = append(unobserved, s.Arm.Label+" "+fact)
		return "", false
	}
	for _, f := range sameFacts {
		x, ok1 := observe(a, f.fact)
		y, ok2 := observe(b, f.fact)
		declared := f.compares && slices.Contains(a.Arm.Compares, f.fact) && slices.Contains(b.Arm.Compares, f.fact)
		if ok1 && ok2 && x != y && !declared {
			differ(f.reason, f.fact, x, y)
		}
	}
	for _, s := range []Side{a, b} {
		got, ok := observe(s, matrix.FactSpeculation)
		if ok && (got != "none") != (s.Arm.Policy.Kind == matrix.Drafted) {
			out = append(out, matrix.CellReason{Code: matrix.DraftedVsRaw, Evidence: evidence,
				Detail: fmt.Sprintf("%s is declared %s and runs with speculation %s", s.Arm.Label, s.Arm.Policy, got),
				Next:   "launch the arm as it is declared, or declare what it is"})
		}
	}
	for _, l := range []struct {
		fact string
		of   func(matrix.Limits) int
	}{
		{matrix.FactContextTokens, func(l matrix.Limits) int { return l.ContextTokens }},
		{matrix.FactConcurrency, func(l matrix.Limits) int { return l.Concurrency }},
	} {
		limit := func(s Side) (string, bool) {
			if r, ok := s.Ready.Get(); ok && l.of(r.Granted) > 0 {
				return strconv.Itoa(l.of(r.Granted)), true
			}
			return observe(s, l.fact)
		}
		x, ok1 := limit(a)
		y, ok2 := limit(b)
		if ok1 && ok2 && x != y {
			differ(matrix.LimitsMismatch, l.fact, x, y)
		}
	}
	if len(unobserved) > 0 {
		out = append(out, matrix.CellReason{Code: matrix.FactUnobserved, Evidence: evidence,
			Detail: "not observed: " + strings.Join(unobserved, ", "),
			Next:   "an adapter or engine build that reads these back; no load is needed to add a reader, one to use it"})
	}
	return out
}

func policyReason(a, b matrix.Policy) (matrix.Reason, bool) {
	switch {
	case a == b:
		return "", false
	case a.Kind == matrix.Drafted && b.Kind == matrix.Drafted:
		return matrix.DrafterMismatch, true
	}
	return matrix.DraftedVsRaw, true
}

func evidenceOf(sides ...Side) []string {
	var out []string
	for _, s := range sides {
		if s.LoadID != "" {
			out = append(out, s.LoadID)
		}
	}
	return out
}

// BuildRecorded reports whether a load's build is known by content: an image digest or the hash over every loaded
// binary. A commit alone is not a build (protocol §1, engine).
func BuildRecorded(r matrix.Ready) bool {
	for _, name := range []string{matrix.FactBuild, matrix.FactImage} {
		if f, ok := r.Facts.Get(name); ok && f.Standing == matrix.Observed && f.Value != "" {
			return true
		}
	}
	return false
}
