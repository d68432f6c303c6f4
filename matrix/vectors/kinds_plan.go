package vectors

import (
	"maps"
	"slices"

	"enginebroker/matrix"
	"enginebroker/matrix/negotiate"
)

// plan negotiates engines of which each side says what it opens and under which policy. Labels stand for kinds of engine.
func plan(in struct {
	Engines map[string]map[string]struct {
		Policy matrix.PolicyKind
		Status matrix.Status
	}
	Pairs      [][2]string
	Preference []string
}) (any, error) {
	model := matrix.Model{Name: "vectors", Preference: in.Preference}
	for _, id := range in.Preference {
		a := matrix.Artifact{ID: id, Statements: map[string]matrix.Statement{}}
		for label, opens := range in.Engines {
			a.Statements[label] = matrix.Statement{Status: matrix.StatusRefused, Why: "not listed", Source: "vector"}
			if s, ok := opens[id]; ok {
				a.Statements[label] = matrix.Statement{Status: s.Status, Why: "as listed", Source: "vector"}
			}
		}
		model.Artifacts = append(model.Artifacts, a)
	}
	var sides []negotiate.Side
	for _, label := range slices.Sorted(maps.Keys(in.Engines)) {
		s := negotiate.Side{Label: label, Engine: label, PolicyOn: map[string]matrix.Policy{}, Preflighted: map[string]string{}}
		for id, o := range in.Engines[label] {
			s.PolicyOn[id] = matrix.Policy{Kind: o.Policy}
			if o.Status == matrix.StatusOK {
				s.Preflighted[id] = "vector"
			}
		}
		sides = append(sides, s)
	}
	var pairs []matrix.Pair
	for _, p := range in.Pairs {
		pairs = append(pairs, matrix.Pair{A: p[0], B: p[1]})
	}
	r, err := negotiate.Pairs(negotiate.Input{Model: model, Sides: sides, Pairs: pairs})
	if err != nil {
		return nil, err
	}
	groups, refused := []object{}, []object{}
	for _, g := range r.Groups {
		arms, ps := []string{}, [][2]string{}
		for _, a := range g.Arms {
			arms = append(arms, a.Label)
		}
		for _, p := range g.Pairs {
			ps = append(ps, [2]string{p.A, p.B})
		}
		groups = append(groups, object{"artifact": g.Artifact, "policy": g.Policy.Kind, "arms": arms, "pairs": ps})
	}
	for _, f := range r.Refusals { // ordered by label; the file writes a pair as it was asked for
		for _, p := range in.Pairs {
			if f.Pair == matrix.NewPair(p[0], p[1]) {
				refused = append(refused, object{"pair": p, "reason": f.Reason})
			}
		}
	}
	return object{"groups": groups, "refused": refused}, nil
}
