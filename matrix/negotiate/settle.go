package negotiate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"enginebroker/matrix"
)

// settle decides one pair: agreements, or the refusal. With All, what stopped one artifact of several is a note.
func (t *table) settle(p matrix.Pair) ([]matrix.Agreement, *matrix.Refusal, []string) {
	a, b := t.sides[p.A], t.sides[p.B]
	for _, s := range []Side{a, b} {
		if s.Attached {
			return nil, t.refuse(p, matrix.AttachedServer,
				s.Label+" is a server this program did not launch: no cold load, no stop and no proof of absence",
				"configure "+s.Label+" to be launched here; an attached server is described, never compared"), nil
		}
	}
	var common, unchanged []matrix.Artifact
	for _, x := range t.order {
		if t.states[a.Label][x.ID].Status.Runs() && t.states[b.Label][x.ID].Status.Runs() {
			if common = append(common, x); !x.Converted {
				unchanged = append(unchanged, x)
			}
		}
	}
	var agreed []matrix.Agreement
	var notes []string
	bothDrafted := true
	for _, x := range unchanged {
		pa, pb := a.policy(x.ID), b.policy(x.ID)
		if pa == pb {
			agreed = append(agreed, matrix.Agreement{Pair: p, Artifact: x.ID, Policy: pa,
				Sides: map[string]matrix.Status{a.Label: t.states[a.Label][x.ID].Status, b.Label: t.states[b.Label][x.ID].Status}})
			continue
		}
		bothDrafted = bothDrafted && pa.Kind == matrix.Drafted && pb.Kind == matrix.Drafted
		notes = append(notes, fmt.Sprintf("%s:%s on %s: %s against %s, not compared", p.A, p.B, x.ID, pa, pb))
	}
	switch {
	case len(agreed) > 0 && dtypeClash(a, b):
		return nil, t.refuse(p, matrix.ComputeDtypeMismatch,
			fmt.Sprintf("%s computes in %s, %s in %s", a.Label, a.ComputeDtype, b.Label, b.ComputeDtype),
			"declare one compute dtype for both, or list "+matrix.FactComputeDtype+" under compares of both where it is the thing compared"), nil
	case len(agreed) > 0 && t.in.Quant == All:
		return agreed, nil, notes
	case len(agreed) > 0:
		return agreed[:1], nil, nil
	case len(unchanged) > 0 && bothDrafted:
		return nil, t.refuse(p, matrix.DrafterMismatch, strings.Join(notes, "; "),
			"declare the same drafter and draft length for both, or decode both raw"), nil
	case len(unchanged) > 0:
		return nil, t.refuse(p, matrix.DraftedVsRaw, strings.Join(notes, "; "),
			"declare one policy for both sides: a drafted arm never meets a raw one"), nil
	case len(common) > 0:
		x := common[0]
		return nil, t.refuse(p, matrix.ConvertedCheckpoint,
			fmt.Sprintf("both open %s, which was converted from other weights%s: it is not the artifact its name says", x.ID, by(x.ConvertedBy)),
			"name in the catalog an artifact that both open as it was published"), nil
	}
	return nil, t.refuse(p, matrix.NoCommonQuant, t.disjoint(a, b), t.wayOut(a, b)), nil
}

// dtypeClash reports two declared compute dtypes that differ without being, on both sides, the thing compared.
func dtypeClash(a, b Side) bool {
	declared := slices.Contains(a.Compares, matrix.FactComputeDtype) && slices.Contains(b.Compares, matrix.FactComputeDtype)
	return a.ComputeDtype != "" && b.ComputeDtype != "" && a.ComputeDtype != b.ComputeDtype && !declared
}

func by(tool string) string {
	if tool == "" {
		return ""
	}
	return " by " + tool
}

func (t *table) refuse(p matrix.Pair, reason matrix.Reason, detail, fix string) *matrix.Refusal {
	return &matrix.Refusal{Pair: p, Reason: reason, Detail: detail, Fix: fix, Sides: []matrix.OfferSide{t.offers(p.A), t.offers(p.B)}}
}

// offers lists every artifact of the model as one side sees it, also those a forced quantization left out.
func (t *table) offers(label string) matrix.OfferSide {
	s := t.sides[label]
	out := matrix.OfferSide{Label: label, Engine: s.Engine, Opens: []matrix.Offer{}, Lacks: []matrix.Offer{}}
	for _, a := range slices.SortedFunc(slices.Values(t.in.Model.Artifacts), func(x, y matrix.Artifact) int { return cmp.Compare(x.ID, y.ID) }) {
		o := matrix.Offer{Artifact: a.ID, Policy: s.policy(a.ID), Statement: t.states[label][a.ID]}
		if o.Status.Runs() {
			out.Opens = append(out.Opens, o)
		} else {
			out.Lacks = append(out.Lacks, o)
		}
	}
	return out
}

// disjoint says what each side opens of the artifacts asked for, and that it is the containers that part them where it is.
func (t *table) disjoint(a, b Side) string {
	saysA, in := t.opens(a)
	saysB, inB := t.opens(b)
	what := "no artifact of " + t.in.Model.Name + " is opened unchanged by both"
	switch {
	case t.forced:
		what = t.in.Quant + " is not opened unchanged by both"
	case len(in) > 0 && len(inB) > 0 && !slices.ContainsFunc(in, func(c string) bool { return slices.Contains(inB, c) }):
		what = "no common container"
	}
	return fmt.Sprintf("%s: %s; %s", what, saysA, saysB)
}

// opens says what a side opens of the artifacts asked for, and in which containers.
func (t *table) opens(s Side) (says string, containers []string) {
	var ids []string
	for _, x := range t.order {
		if !t.states[s.Label][x.ID].Status.Runs() {
			continue
		}
		ids = append(ids, x.ID)
		if c, _ := holds(x); !slices.Contains(containers, c) {
			containers = append(containers, c)
		}
	}
	if len(ids) == 0 {
		return s.Label + " opens none of it", nil
	}
	return s.Label + " opens " + strings.Join(ids, ", ") + " (" + strings.Join(containers, ", ") + ")", containers
}

// wayOut is the cheapest thing that would give the pair a common artifact.
func (t *table) wayOut(a, b Side) string {
	if t.forced {
		for _, x := range t.in.Model.Artifacts {
			if !x.Converted && t.states[a.Label][x.ID].Status.Runs() && t.states[b.Label][x.ID].Status.Runs() {
				return fmt.Sprintf("leave the quantization to the preference list, or force %s, which both open", x.ID)
			}
		}
	}
	for _, x := range t.order {
		sa, sb := t.states[a.Label][x.ID], t.states[b.Label][x.ID]
		for _, side := range []struct {
			label       string
			mine, other matrix.Statement
		}{{a.Label, sa, sb}, {b.Label, sb, sa}} {
			if side.mine.Status == matrix.StatusOwed && side.other.Status.Runs() && !x.Converted {
				return fmt.Sprintf("comparable on %s once %s opens it (owed: %s); a preflight that succeeds shows it", x.ID, side.label, side.mine.Why)
			}
		}
	}
	return fmt.Sprintf("none with the artifacts known: add to the catalog of %s an artifact that both %s and %s open as it was published", t.in.Model.Name, a.Label, b.Label)
}
