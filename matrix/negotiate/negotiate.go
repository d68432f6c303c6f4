// Package negotiate finds, for every pair of sides, the one artifact that both open unchanged, or says why there is none.
//
// Stance: an artifact is files, not a label. What the files hold wins over what a catalog calls them; a statement about
// another thing than the files is not used. A side that is known not to open an artifact yet (owed) is no candidate, a
// side that is only said to open it (claimed) is marked, and a preflight on record is the one proof. Converted weights,
// drafted against raw decoding and servers nobody launched here are refused with both sides shown and a way out.
//
// The way it works (protocol §2.1):
//
//  1. every side states what it opens of the model, with the source of each statement
//  2. every pair gets the first artifact of the preference list that both open under one policy, or a Refusal
//  3. pairs that share an artifact and a policy are joined into groups, which run in common blocks
//  4. Finish, once the workload has said what servers must grant: limits, cache policy and key of every arm
package negotiate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"enginebroker/matrix"
)

// Side is one engine instance that asks to take part.
type Side struct {
	Label        string // unique
	Engine       string // kind: vllm, sglang, llamacpp, vllmcpp, simulated
	Instance     string // name of the instance in the configuration
	Description  matrix.Description
	Policy       matrix.Policy
	PolicyOn     map[string]matrix.Policy // by artifact ID, where it differs from Policy
	Preflighted  map[string]string        // artifact ID → evidence that this build opened it and answered
	Settings     map[string]string        // declared and normalised
	Pin          string
	ComputeDtype string   // declared, empty: the engine's own choice
	Compares     []string // facts declared as the thing compared, so that they may differ
	Subject      bool     // the side that is "ours"; Input.Subject says the same by label
	Attached     bool     // a server this program did not launch
	Simulated    bool
}

// policy is what the side declared for one artifact.
func (s Side) policy(artifact string) matrix.Policy {
	p, ok := s.PolicyOn[artifact]
	if !ok {
		p = s.Policy
	}
	if p.Kind == "" {
		p.Kind = matrix.Raw
	}
	return p
}

// All asks for one cell per artifact that a pair has in common, instead of the preferred one.
const All = "all"

// Input is what there is to negotiate.
type Input struct {
	Model   matrix.Model
	Sides   []Side
	Pairs   []matrix.Pair // requested, empty: every pair of sides
	Quant   string        // empty: the preferred artifact; All; or an artifact ID or quantization label to force
	Subject string        // label of the side that is "ours", empty: none
}

// Result is what came of it. Groups have arms and pairs, sorted by label, and no superblocks yet.
type Result struct {
	Groups     []matrix.Group     // by artifact, policy and first arm
	Agreements []matrix.Agreement // as requested; several per pair with All
	Refusals   []matrix.Refusal   // as requested
	Notes      []string           // what a reader should know and no pair is refused for
}

// Pairs negotiates every requested pair. An error is a question that makes no sense: a label, quantization or policy that
// does not exist, with the near ones. That two sides have nothing in common is no error but a Refusal.
func Pairs(in Input) (Result, error) {
	t, err := newTable(in)
	if err != nil {
		return Result{}, err
	}
	r := Result{Notes: t.notes}
	for _, p := range t.pairs {
		agreed, refusal, notes := t.settle(p)
		r.Agreements = append(r.Agreements, agreed...)
		if refusal != nil {
			r.Refusals = append(r.Refusals, *refusal)
		}
		r.Notes = append(r.Notes, notes...)
	}
	r.Groups = t.groups(r.Agreements)
	return r, nil
}

// Finish gives every arm what the workload asks of its server, and then its key (protocol §1, arm_key).
func Finish(groups []matrix.Group, limits matrix.Limits, cache string) error {
	for g := range groups {
		for i := range groups[g].Arms {
			a := &groups[g].Arms[i]
			a.Limits, a.Cache = limits, cache
			key, err := a.ArmKey()
			if err != nil {
				return fmt.Errorf("arm %s of group %s: %w", a.Label, groups[g].ID, err)
			}
			a.Key = key
		}
	}
	return nil
}

// table is the checked input: who states what about which artifact.
type table struct {
	in     Input
	sides  map[string]Side
	pairs  []matrix.Pair
	order  []matrix.Artifact // by preference, then by ID
	forced bool
	states map[string]map[string]matrix.Statement // label → artifact ID → statement
	notes  []string
}

func newTable(in Input) (*table, error) {
	t := &table{in: in, sides: map[string]Side{}, states: map[string]map[string]matrix.Statement{}}
	if err := t.addSides(); err != nil {
		return nil, err
	}
	if err := t.addArtifacts(); err != nil {
		return nil, err
	}
	if err := t.addPairs(); err != nil {
		return nil, err
	}
	for _, a := range in.Model.Artifacts {
		if note := contradiction(a); note != "" {
			t.notes = append(t.notes, note)
		}
	}
	for _, s := range in.Sides {
		row := map[string]matrix.Statement{}
		for _, a := range in.Model.Artifacts {
			st, note := state(s, a)
			row[a.ID] = st
			if note != "" {
				t.notes = append(t.notes, note)
			}
		}
		t.states[s.Label] = row
	}
	return t, nil
}

func (t *table) addSides() error {
	for _, s := range t.in.Sides {
		if s.Label == "" {
			return fmt.Errorf("negotiate: a side of engine %q has no label", s.Engine)
		}
		if _, ok := t.sides[s.Label]; ok {
			return fmt.Errorf("negotiate: two sides are called %s; give one of them another label", s.Label)
		}
		policies := []matrix.Policy{s.policy("")}
		for _, p := range s.PolicyOn {
			policies = append(policies, p)
		}
		for _, p := range policies {
			if err := checkPolicy(p); err != nil {
				return fmt.Errorf("negotiate: side %s: %w", s.Label, err)
			}
		}
		t.sides[s.Label] = s
	}
	return t.findSubject()
}

func (t *table) findSubject() error {
	for _, s := range t.in.Sides {
		if s.Subject && t.in.Subject != "" && t.in.Subject != s.Label {
			return fmt.Errorf("negotiate: both %s and %s are the subject; name one", t.in.Subject, s.Label)
		}
		if s.Subject {
			t.in.Subject = s.Label
		}
	}
	if _, ok := t.sides[t.in.Subject]; t.in.Subject != "" && !ok {
		return unknown("subject", t.in.Subject, t.labels())
	}
	return nil
}

func checkPolicy(p matrix.Policy) error {
	switch p.Kind {
	case matrix.Raw, "":
		if p.Drafter != "" || p.Length != 0 {
			return fmt.Errorf("policy raw names a drafter (%q, %d tokens); declare it drafted or drop the drafter", p.Drafter, p.Length)
		}
	case matrix.Drafted:
	default:
		return fmt.Errorf("policy %q is neither raw nor drafted", p.Kind)
	}
	return nil
}

func (t *table) addArtifacts() error {
	var ids, names []string
	for _, a := range t.in.Model.Artifacts {
		if a.ID == "" {
			return fmt.Errorf("negotiate: an artifact of model %s has no id", t.in.Model.Name)
		}
		if slices.Contains(ids, a.ID) {
			return fmt.Errorf("negotiate: model %s lists artifact %s twice", t.in.Model.Name, a.ID)
		}
		ids, names = append(ids, a.ID), append(names, a.ID, a.Quantization)
	}
	rank := func(a matrix.Artifact) int {
		if i := slices.Index(t.in.Model.Preference, a.ID); i >= 0 {
			return i
		}
		return len(t.in.Model.Preference)
	}
	t.order = slices.SortedFunc(slices.Values(t.in.Model.Artifacts), func(a, b matrix.Artifact) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.ID, b.ID))
	})
	if t.in.Quant == "" || t.in.Quant == All {
		return nil
	}
	t.forced = true
	t.order = slices.DeleteFunc(t.order, func(a matrix.Artifact) bool { return !named(a, t.in.Quant) })
	if len(t.order) == 0 {
		return unknown("quantization of model "+t.in.Model.Name, t.in.Quant, append(names, All))
	}
	return nil
}

// named reports whether a forced label means this artifact: its ID, or what its files hold, or its catalog label where
// the files do not contradict it.
func named(a matrix.Artifact, label string) bool {
	_, quantization := holds(a)
	return a.ID == label || strings.EqualFold(quantization, label) || (contradiction(a) == "" && strings.EqualFold(a.Quantization, label))
}

func (t *table) addPairs() error {
	labels := t.labels()
	if len(t.in.Pairs) == 0 {
		for i, a := range labels {
			for _, b := range labels[i+1:] {
				t.pairs = append(t.pairs, matrix.Pair{A: a, B: b})
			}
		}
		return nil
	}
	for _, p := range t.in.Pairs {
		for _, l := range []string{p.A, p.B} {
			if _, ok := t.sides[l]; !ok {
				return unknown("engine of pair "+p.A+":"+p.B, l, labels)
			}
		}
		if p.A == p.B {
			return fmt.Errorf("negotiate: pair %s:%s compares a side with itself; for an A/A give the same engine a second label", p.A, p.B)
		}
		if p = matrix.NewPair(p.A, p.B); !slices.Contains(t.pairs, p) {
			t.pairs = append(t.pairs, p)
		}
	}
	return nil
}

func (t *table) labels() []string {
	out := make([]string, 0, len(t.sides))
	for l := range t.sides {
		out = append(out, l)
	}
	slices.Sort(out)
	return out
}
