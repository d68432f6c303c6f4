package service

import (
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	"enginebroker/matrix"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

// ToSpec is the message of a request.
func ToSpec(q Request) (*brokerv1.RunSpec, error) {
	out := &brokerv1.RunSpec{Model: text(ModelPrefix + q.Model), Profile: text(q.Profile), Quant: text(q.Quant), Workload: text(q.Workload), Points: q.Points, Seed: opt(q.Seed), AcceptLikelyVoid: flag(q.AcceptLikelyVoid)}
	for _, e := range q.Engines {
		out.Engines = append(out.Engines, EnginePrefix+e)
	}
	for _, p := range q.Pairs {
		a, b, ok := strings.Cut(p, ":")
		if !ok {
			return nil, fail(CauseUsage, "", "pair %q: write two different labels as A:B", p)
		}
		out.Pairs = append(out.Pairs, &brokerv1.Pair{A: &a, B: &b})
	}
	if q.Budget > 0 {
		out.Budget = durationpb.New(q.Budget)
	}
	switch {
	case q.AA:
		out.Experiment = &brokerv1.RunSpec_Aa{Aa: &brokerv1.AaSpec{}}
	case q.Reload != nil:
		x := &brokerv1.ReloadSpec{Engine: text(EnginePrefix + q.Reload.Instance)}
		if q.Reload.With != "" {
			x.With = text(EnginePrefix + q.Reload.With)
		}
		if q.Reload.Loads != 0 {
			x.Loads = count(q.Reload.Loads)
		}
		out.Experiment = &brokerv1.RunSpec_Reload{Reload: x}
	case q.AB != nil:
		x := &brokerv1.AbSpec{NewBuild: text(EnginePrefix + q.AB.New), OldBuild: text(EnginePrefix + q.AB.Old), SameBuild: flag(q.AB.SameBuild)}
		if q.AB.Margin != 0 {
			x.Margin = &q.AB.Margin
		}
		out.Experiment = &brokerv1.RunSpec_Ab{Ab: x}
	}
	return out, nil
}

// experiment is what a spec measures instead of a matrix.
func (x *ids) experiment(m *brokerv1.RunSpec) (e Experiment) {
	switch k := m.GetExperiment().(type) {
	case *brokerv1.RunSpec_Aa:
		e.AA = true
	case *brokerv1.RunSpec_Reload:
		e.Reload = &Reload{Instance: x.id("spec.reload.engine", EnginePrefix, k.Reload.GetEngine()), Loads: int(k.Reload.GetLoads())}
		if k.Reload != nil && k.Reload.Loads != nil && e.Reload.Loads == 0 { // given, and not left out
			x.refuse("spec.reload.loads", fmt.Sprintf("0 loads decide nothing: at least %d", MinReloads))
		}
		if k.Reload.GetWith() != "" {
			e.Reload.With = x.id("spec.reload.with", EnginePrefix, k.Reload.GetWith())
		}
	case *brokerv1.RunSpec_Ab:
		e.AB = &AB{New: x.id("spec.ab.new_build", EnginePrefix, k.Ab.GetNewBuild()), Old: x.id("spec.ab.old_build", EnginePrefix, k.Ab.GetOldBuild()), Margin: k.Ab.GetMargin(), SameBuild: k.Ab.GetSameBuild()}
		if k.Ab != nil && k.Ab.Margin != nil && k.Ab.GetMargin() == 0 {
			x.refuse("spec.ab.margin", "a margin is a fraction between 0 and 1, like 0.02")
		}
	}
	return e
}

// SpecOf is the request of a message. Every field that cannot be used is in its error.
func SpecOf(m *brokerv1.RunSpec) (Request, error) {
	var x ids
	q := Request{Profile: m.GetProfile(), Quant: m.GetQuant(), Workload: m.GetWorkload(), Points: m.GetPoints(), AcceptLikelyVoid: m.GetAcceptLikelyVoid()}
	if m != nil {
		q.Seed = optOf(m.Seed)
	}
	q.Model, q.Engines = x.id("spec.model", ModelPrefix, m.GetModel()), x.list("spec.engines", m.GetEngines())
	q.Experiment = x.experiment(m)
	for i, p := range m.GetPairs() {
		if p.GetA() == "" || p.GetB() == "" || p.GetA() == p.GetB() {
			x.refuse(fmt.Sprintf("spec.pairs[%d]", i), "give two different labels")
		}
		q.Pairs = append(q.Pairs, p.GetA()+":"+p.GetB())
	}
	if b := m.GetBudget(); b != nil {
		if q.Budget = b.AsDuration(); b.CheckValid() != nil || q.Budget <= 0 {
			x.refuse("spec.budget", "give a length of time of more than 0")
		}
	}
	return q, x.bad.Err()
}

// ToPlan is the message of a plan.
func ToPlan(p Planned) (*brokerv1.Plan, error) {
	canonical, err := matrix.Canonical(p.Plan)
	if err != nil {
		return nil, err
	}
	x := p.Plan
	out := &brokerv1.Plan{Model: text(x.Model), Subject: text(x.Subject), Profile: text(x.Profile), Box: text(x.Box), Seed: text(x.Seed), Grids: count(x.Grids), MethodId: text(x.MethodID),
		Points: each(x.Method.Points, toPoint), Groups: each(x.Groups, toGroup), Refusals: each(x.Refusals, toRefusal), Absent: x.Absent, Notes: texts(p.Notes), NoFiles: texts(p.NoFiles), CanonicalJson: canonical,
		Agreements: each(x.Agreements, toAgreement),
		LeftOut: each(x.LeftOut, func(l matrix.LeftOut) *brokerv1.LeftOut {
			return &brokerv1.LeftOut{What: text(l.What), Why: text(l.Why)}
		}),
		Cost: &brokerv1.Cost{Loads: count(x.Cost.Loads), LeadIns: count(x.Cost.LeadIns), Legs: count(x.Cost.Legs), Requests: count(x.Cost.Requests), Basis: text(x.Cost.Basis)}}
	if x.Cost.Estimate > 0 {
		out.Cost.Estimate = durationpb.New(x.Cost.Estimate)
	}
	if m := p.Margin; m != nil {
		out.Margin = &brokerv1.MarginCost{Margin: &m.Margin, BlockSd: number(m.SD), Basis: text(m.Basis), Blocks: count(m.Blocks), Loads: count(m.Loads), Fits: new(m.Fits)}
	}
	out.Simulated = flag(x.Simulated())
	for label, lines := range p.Missing {
		if out.Missing == nil {
			out.Missing = map[string]*brokerv1.Lines{}
		}
		out.Missing[label] = &brokerv1.Lines{Lines: texts(lines)}
	}
	return out, nil
}

// PlannedOf is the plan of a message.
func PlannedOf(m *brokerv1.Plan) (Planned, error) {
	p := Planned{Notes: m.GetNotes(), NoFiles: m.GetNoFiles()}
	if err := json.Unmarshal(m.GetCanonicalJson(), &p.Plan); err != nil {
		return p, fmt.Errorf("plan: %w", err)
	}
	if x := m.GetMargin(); x != nil {
		p.Margin = &Margined{Margin: x.GetMargin(), SD: x.GetBlockSd(), Basis: x.GetBasis(), Blocks: int(x.GetBlocks()), Loads: int(x.GetLoads()), Fits: x.GetFits()}
	}
	for label, l := range m.GetMissing() {
		if p.Missing == nil {
			p.Missing = map[string][]string{}
		}
		p.Missing[label] = l.GetLines()
	}
	return p, nil
}

func toPoint(p matrix.Point) *brokerv1.Point {
	out := &brokerv1.Point{Id: text(p.ID), Workload: text(p.Workload), Endpoint: text(p.Endpoint), PromptTokens: count(p.PromptTokens), OutputTokens: count(p.OutputTokens), Requests: count(p.Requests)}
	if p.Rate.IsZero() {
		out.Concurrency = count(p.Concurrency)
	} else {
		out.RatePerMinute, out.Arrivals = count(p.Rate.PerMinute), text(p.Rate.Process)
	}
	return out
}

func toGroup(g matrix.Group) *brokerv1.Group {
	return &brokerv1.Group{Id: text(g.ID), Artifact: text(g.Artifact), Policy: toPolicy(g.Policy), Pairs: each(g.Pairs, toPair), Superblocks: count(len(g.Superblocks)),
		Arms: each(g.Arms, func(a matrix.Arm) *brokerv1.Arm {
			return &brokerv1.Arm{Label: text(a.Label), Engine: text(EnginePrefix + a.Instance), Kind: text(a.Engine), Pin: text(a.Pin), Key: text(a.Key), Status: enumOf(statuses, a.Status), Simulated: flag(a.Simulated)}
		})}
}

func toAgreement(a matrix.Agreement) *brokerv1.Agreement {
	out := &brokerv1.Agreement{Pair: toPair(a.Pair), Artifact: text(a.Artifact), Policy: toPolicy(a.Policy), Sides: map[string]brokerv1.Status{}}
	for label, s := range a.Sides {
		if e := enumOf(statuses, s); e != nil {
			out.Sides[label] = *e
		}
	}
	return out
}

func toRefusal(r matrix.Refusal) *brokerv1.Refusal {
	offer := func(o matrix.Offer) *brokerv1.Offer {
		return &brokerv1.Offer{Artifact: text(o.Artifact), Policy: toPolicy(o.Policy), Statement: toStatement(o.Statement)}
	}
	return &brokerv1.Refusal{Pair: toPair(r.Pair), Reason: text(string(r.Reason)), Detail: text(r.Detail), Fix: text(r.Fix),
		Sides: each(r.Sides, func(s matrix.OfferSide) *brokerv1.Side {
			return &brokerv1.Side{Label: text(s.Label), Kind: text(s.Engine), Opens: each(s.Opens, offer), Lacks: each(s.Lacks, offer)}
		})}
}
