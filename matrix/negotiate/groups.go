package negotiate

import (
	"cmp"
	"slices"
	"strconv"

	"enginebroker/matrix"
)

// groups joins agreements: one group per connected component of pairs that share an artifact and a policy. All arms of a
// component run together even where some of its pairs were not asked for: the joint block costs t loads, separate pairs
// 2(t − 1) or more (protocol §2.1).
func (t *table) groups(agreed []matrix.Agreement) []matrix.Group {
	type key struct {
		artifact string
		policy   matrix.Policy
	}
	byKey := map[key][]matrix.Pair{}
	var keys []key
	for _, a := range agreed {
		k := key{a.Artifact, a.Policy}
		if _, ok := byKey[k]; !ok {
			keys = append(keys, k)
		}
		byKey[k] = append(byKey[k], a.Pair)
	}
	slices.SortFunc(keys, func(x, y key) int {
		return cmp.Or(cmp.Compare(x.artifact, y.artifact), cmp.Compare(x.policy.String(), y.policy.String()))
	})
	var out []matrix.Group
	for _, k := range keys {
		for n, pairs := range components(byKey[k]) {
			g := matrix.Group{ID: k.artifact + "|" + k.policy.String(), Artifact: k.artifact, Policy: k.policy, Pairs: pairs}
			if n > 0 { // a second component of the same artifact and policy needs a name of its own
				g.ID += "#" + strconv.Itoa(n+1)
			}
			for _, label := range labelsOf(pairs) {
				g.Arms = append(g.Arms, t.arm(label, g))
			}
			out = append(out, g)
		}
	}
	return out
}

func (t *table) arm(label string, g matrix.Group) matrix.Arm {
	s := t.sides[label]
	return matrix.Arm{
		Label: label, Instance: s.Instance, Engine: s.Engine, Artifact: g.Artifact, Policy: g.Policy, Pin: s.Pin, Subject: label == t.in.Subject,
		Settings: s.Settings, ComputeDtype: s.ComputeDtype, Compares: s.Compares, Status: t.states[label][g.Artifact].Status, Simulated: s.Simulated,
	}
}

// components splits pairs into connected components, each sorted, in the order of their first label.
func components(pairs []matrix.Pair) [][]matrix.Pair {
	root := map[string]string{}
	var find func(string) string
	find = func(l string) string {
		if r, ok := root[l]; ok && r != l {
			return find(r)
		}
		return l
	}
	for _, p := range pairs {
		a, b := find(p.A), find(p.B)
		root[max(a, b)], root[min(a, b)] = min(a, b), min(a, b) // the smallest label names the component
	}
	byRoot := map[string][]matrix.Pair{}
	for _, p := range pairs {
		byRoot[find(p.A)] = append(byRoot[find(p.A)], p)
	}
	out := make([][]matrix.Pair, 0, len(byRoot))
	for _, ps := range byRoot {
		slices.SortFunc(ps, func(x, y matrix.Pair) int { return cmp.Or(cmp.Compare(x.A, y.A), cmp.Compare(x.B, y.B)) })
		out = append(out, ps)
	}
	slices.SortFunc(out, func(x, y []matrix.Pair) int { return cmp.Compare(x[0].A, y[0].A) })
	return out
}

func labelsOf(pairs []matrix.Pair) []string {
	var out []string
	for _, p := range pairs {
		out = append(out, p.A, p.B)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
