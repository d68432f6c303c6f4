package service

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"enginebroker/broker/catalog"
	"enginebroker/engines/host"
	"enginebroker/matrix"
	"enginebroker/matrix/metrics"
	"enginebroker/matrix/negotiate"
	"enginebroker/matrix/schedule"
	"enginebroker/matrix/workload"
)

// Versions of what a method id stands for. A change that moves a number raises the one it belongs to; a change of the
// program that moves none leaves them, so that A/A results and history stay valid (protocol §8).
const (
	protocolVersion = 1
	clientVersion   = 1
	gateVersion     = 1
	samplerHz       = 10
)

// Request is what somebody wants measured.
type Request struct {
	Model    string             `json:"model"`
	Profile  string             `json:"profile,omitempty"`  // quick, standard, binding; empty: quick
	Quant    string             `json:"quant,omitempty"`    // empty: the best common one per pair; all; or a label to force
	Engines  []string           `json:"engines,omitempty"`  // instance labels; empty: all that are configured
	Pairs    []string           `json:"pairs,omitempty"`    // A:B; empty: every pair
	Workload string             `json:"workload,omitempty"` // empty: the configuration's, else serve-low
	Points   []string           `json:"points,omitempty"`   // empty: what the profile runs
	Seed     matrix.Opt[uint64] `json:"seed,omitzero"`      // absent: drawn, and shown in the plan
	Budget   time.Duration      `json:"budget,omitempty"`   // 0: none
	Run      string             `json:"run,omitempty"`      // name of the run; empty: made from model and time
	// AcceptLikelyVoid lets a run begin on a GPU whose clock is not pinned (protocol §4.7).
	AcceptLikelyVoid bool `json:"accept_likely_void,omitempty"`

	Experiment
	special special // what the experiment wants otherwise
}

// Planned is a plan with what a reader should know beside it.
type Planned struct {
	Plan  matrix.Plan `json:"plan"`
	Notes []string    `json:"notes,omitempty"`
	// Missing lists, per instance without which nothing can run, what was looked for and where.
	Missing map[string][]string `json:"missing,omitempty"`
	// NoFiles lists artifacts that arms need and that have no files on this machine.
	NoFiles []string `json:"no_files,omitempty"`
	// Unpinned is why the clock forbids a run that does not accept to be void, and the way out.
	Unpinned string `json:"unpinned,omitempty"`
	// Margin is what the margin of two builds costs.
	Margin *Margined `json:"margin,omitempty"`
}

// Plan negotiates and schedules without starting anything.
func (s *Service) Plan(ctx context.Context, q Request) (Planned, error) {
	return s.planned(ctx, q, func(q Request, t *team) (Planned, error) { return s.plan(ctx, q, t) })
}

// planned plans by what the experiment of a request asks, with its instances launched.
func (s *Service) planned(ctx context.Context, q Request, plan func(Request, *team) (Planned, error)) (Planned, error) {
	q, err := s.checked(q)
	if err != nil {
		return Planned{}, err
	}
	margin := s.margined(ctx, &q)
	t, err := s.team(ctx, q)
	if err != nil {
		return Planned{}, err
	}
	defer t.close()
	if err := s.misset(t); err != nil {
		return Planned{}, err
	}
	p, err := plan(q, t)
	p.Margin = margin
	return p, err
}

func (s *Service) plan(ctx context.Context, q Request, t *team) (Planned, error) {
	model, err := s.model(ctx, q.Model)
	if err != nil {
		return Planned{}, err
	}
	profile, err := profileOf(q)
	if err != nil {
		return Planned{}, err
	}
	points, notes, err := s.points(q, profile)
	if err != nil {
		return Planned{}, err
	}
	box, err := s.boxState(ctx, t)
	if err != nil {
		return Planned{}, err
	}
	in := negotiate.Input{Model: model, Sides: q.special.sides(t.sides(s, model)), Quant: q.Quant, Subject: s.cfg.Subject}
	if in.Pairs, err = pairs(q.Pairs, t.labels()); err != nil {
		return Planned{}, err
	}
	if !slices.ContainsFunc(in.Sides, func(x negotiate.Side) bool { return x.Label == in.Subject }) {
		in.Subject = ""
	}
	agreed, alone, err := t.agree(in, q.special.purpose)
	if _, ok := errors.AsType[*negotiate.UnknownError](err); ok { // the labels are known, so that it is the quantization
		return Planned{}, About("spec.quant", &Error{Cause: CauseUsage, Err: err})
	} else if err != nil {
		return Planned{}, &Error{Cause: CauseUsage, Err: err}
	}
	notes = append(append(notes, agreed.Notes...), s.misspelt(model, t)...)
	seed, ok := q.Seed.Get()
	if !ok {
		seed = drawSeed()
	}
	p := matrix.Plan{Schema: matrix.PlanSchema, Model: model.Name, Subject: in.Subject, Profile: profile.Name, Box: box.profile.Name, Seed: strconv.FormatUint(seed, 10),
		Grids: profile.Grids, Groups: agreed.Groups, Agreements: agreed.Agreements, Refusals: agreed.Refusals, Absent: t.absent()}
	limits := workload.LimitsOf(points)
	q.special.groups(&p)
	if err := negotiate.Finish(p.Groups, limits, "off"); err != nil {
		return Planned{}, err
	}
	points = q.special.points(points)
	p.Ungated = s.failedGates(t, model, p.Groups)
	for _, g := range p.Groups {
		if a, _ := model.Artifact(g.Artifact); a.Manifest.Present() {
			m, _ := a.Manifest.Get()
			if p.Manifests == nil {
				p.Manifests = map[string]string{}
			}
			p.Manifests[a.ID] = m.SHA256
		}
	}
	corpus, err := s.corpusFor(model, points, profile, p.Groups)
	if err != nil {
		return Planned{}, err
	}
	p.Method = s.method(profile, box, points, corpus)
	if p.MethodID, err = p.Method.ID(); err != nil {
		return Planned{}, err
	}
	if err := q.special.fill(&p, profile); err != nil {
		return Planned{}, err
	}
	s.estimate(&p, model)
	q.special.recount(&p)
	if q.Budget > 0 {
		if err := s.trim(&p, model, q.Budget); err != nil {
			return Planned{}, About("spec.budget", err)
		}
	}
	if profile.DedicatedAA && q.special.purpose == "" && len(p.Groups) > 0 {
		note, err := s.wantsAA(q, p, box.facts)
		if err != nil {
			return Planned{}, err
		}
		notes = append(notes, note...)
	}
	out := Planned{Plan: p, Notes: append(notes, s.unrecorded(p.Groups)...)}
	if !alone {
		out.Missing = t.missing()
	}
	if box.pin == "unpinned" && !q.AcceptLikelyVoid {
		out.Unpinned = unpinned(box.pinning)
	}
	for _, g := range p.Groups {
		a, _ := model.Artifact(g.Artifact)
		simulated := !slices.ContainsFunc(g.Arms, func(a matrix.Arm) bool { return !a.Simulated })
		if !a.Manifest.Present() && !simulated {
			out.NoFiles = append(out.NoFiles, fmt.Sprintf("%s (%s@%s)", a.ID, cmp.Or(a.Repository, "no repository"), cmp.Or(a.Revision, "no revision")))
		}
	}
	return out, nil
}

func superblocks(p workload.Profile, arms int) int {
	if p.Superblocks > 0 {
		return p.Superblocks
	}
	d, err := schedule.NewDesign(arms, matrix.MinBlocks)
	if err != nil {
		return matrix.MinBlocks / 2
	}
	return d.RecommendedBlocks / 2
}

func drawSeed() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails since Go 1.24
	return binary.LittleEndian.Uint64(b[:])
}

// model is the catalog entry with local paths and manifests filled in.
func (s *Service) model(ctx context.Context, name string) (matrix.Model, error) {
	m, err := s.catalog.Model(name)
	if u, ok := errors.AsType[*catalog.UnknownModel](err); ok {
		return m, &Error{Cause: CauseUsage, Err: u}
	} else if err != nil {
		return m, err
	}
	for i := range m.Artifacts {
		if err := s.locate(ctx, &m.Artifacts[i]); err != nil {
			return m, err
		}
	}
	return m, nil
}

func profileOf(q Request) (workload.Profile, error) {
	p, ok := workload.ProfileNamed(cmp.Or(q.Profile, "quick"))
	if !ok {
		return p, About("spec.profile", fail(CauseUsage, "", "no run profile %q; there are %s", q.Profile, strings.Join(workload.ProfileNames(), ", ")))
	}
	return p, nil
}

func (s *Service) points(q Request, profile workload.Profile) ([]matrix.Point, []string, error) {
	name := cmp.Or(q.Workload, s.cfg.Workload, workload.Default)
	w, ok := workload.Named(name)
	u, own := s.cfg.Workloads[name]
	if own {
		shape := workload.Shape{Endpoint: cmp.Or(u.Endpoint, "completions"), PromptTokens: u.PromptTokens, OutputTokens: u.OutputTokens,
			IgnoreEOS: u.IgnoreEOS == nil || *u.IgnoreEOS, SharedPrefix: u.SharedPrefix, IdleLimit: time.Duration(u.IdleSeconds) * time.Second, TotalLimit: time.Duration(u.TotalSeconds) * time.Second}
		w, ok = workload.Levels(name, shape, u.Concurrency...), true
		if len(u.Rates) > 0 {
			shape.Concurrency = u.Concurrency[0]
			w = workload.OpenLoop(name, shape, u.Arrivals, u.Rates...)
		}
	}
	if !ok {
		known := slices.Concat(workload.Names(), slices.Sorted(maps.Keys(s.cfg.Workloads)))
		err := fail(CauseUsage, near(name, known), "no workload %q; there are %s", name, strings.Join(known, ", "))
		if q.Workload == "" {
			return nil, nil, err // the configuration's
		}
		return nil, nil, About("spec.workload", err)
	}
	if err := w.Validate(); err != nil {
		return nil, nil, &Error{Cause: CauseUsage, Err: err}
	}
	if len(q.Points) > 0 {
		profile.Levels = nil
	}
	points := workload.Points(w, profile)
	if len(q.Points) > 0 {
		var ids []string
		for _, p := range points {
			ids = append(ids, p.ID)
		}
		for i, id := range q.Points {
			if !slices.Contains(ids, id) {
				return nil, nil, About(fmt.Sprintf("spec.points[%d]", i), fail(CauseUsage, "", "workload %s has no point %q; there are %s", name, id, strings.Join(ids, ", ")))
			}
		}
		points = slices.DeleteFunc(points, func(p matrix.Point) bool { return !slices.Contains(q.Points, p.ID) })
	}
	var notes []string
	for i, p := range points {
		if u.LegSeconds == 0 {
			break
		}
		grown, said, err := workload.Grow([]matrix.Point{p}, time.Duration(u.LegSeconds)*time.Second, u.StreamRate[p.Concurrency])
		if err != nil {
			return nil, nil, &Error{Cause: CauseUsage, Err: err}
		}
		points[i], notes = grown[0], append(notes, said...)
	}
	return points, notes, nil
}

func pairs(list, labels []string) ([]matrix.Pair, error) {
	var out []matrix.Pair
	for i, x := range list {
		field := fmt.Sprintf("spec.pairs[%d]", i)
		a, b, ok := strings.Cut(x, ":")
		if !ok || a == "" || b == "" || a == b {
			return nil, About(field, fail(CauseUsage, "", "pair %q: write two different labels as A:B", x))
		}
		for _, l := range []string{a, b} {
			if !slices.Contains(labels, l) {
				return nil, About(field, fail(CauseUsage, near(l, labels), "pair %q: there is no instance %q; there are %s", x, l, strings.Join(labels, ", ")))
			}
		}
		out = append(out, matrix.NewPair(a, b))
	}
	return out, nil
}

// misspelt names the statements of a catalog entry about an engine that nothing here is called, and whose name is near to one
// that is: what such a statement says holds for nobody. Any other name may be an engine that is not installed here.
func (s *Service) misspelt(m matrix.Model, t *team) []string {
	var known []string
	plugins, _ := host.Find(s.pluginDirs())
	for _, p := range plugins {
		known = append(known, p.Name)
	}
	for _, x := range t.members {
		known = append(known, x.desc.Engine)
	}
	slices.Sort(known)
	known = slices.Compact(known) // a plugin and its engine have one name
	var notes []string
	for i, a := range m.Artifacts {
		for _, kind := range slices.Sorted(maps.Keys(a.Statements)) {
			if hint := near(kind, known); hint != "" && !slices.Contains(known, kind) {
				field := fmt.Sprintf("artifacts[%d].engines.%s", i, kind)
				notes = append(notes, fmt.Sprintf("%s: %s: no engine here is called so, and the statement holds for none; %s", s.catalog.At(m.Name, field), field, hint))
			}
		}
	}
	return notes
}

func near(name string, known []string) string {
	if n := catalog.Near(name, known); len(n) > 0 {
		return "did you mean " + strings.Join(n, " or ") + "?"
	}
	return ""
}

// method is everything that defines the measurement (protocol §8).
func (s *Service) method(profile workload.Profile, box boxState, points []matrix.Point, corpus string) matrix.Method {
	m := matrix.Method{
		Protocol: protocolVersion, Client: clientVersion, Formula: metrics.Broker1, GateTable: gateVersion, Box: box.profile.Name, Profile: profile.Name, Points: points, Corpus: corpus,
		Repetitions: profile.Repetitions, WarmupRecipe: "one request per stream, from prompts of its own, same concurrency", Fold: "median", Cache: "off",
		PageCache: "evicted before the load", Residency: "alternating", Schedule: "superblock", PinState: box.pin, SamplerHz: samplerHz,
		Margins:  map[string]string{"integral": "0.02", "energy": "0.02", "phase": "0.05", "tail": "0.05", "itl": "0.05", "memory": "0.05"},
		Sampling: map[string]string{"temperature": "0", "top_p": "1"},
	}
	for _, x := range metrics.Catalog() {
		if x.Primary {
			m.Primary = append(m.Primary, x.Name)
		}
	}
	return m
}

// trim leaves out what does not fit a budget, openly: points from the largest concurrency down, then groups from the last.
// What remains is a smaller plan with a method id of its own, never a plan that is cut off while it runs.
func (s *Service) trim(p *matrix.Plan, model matrix.Model, budget time.Duration) error {
	refit := func() error {
		var err error
		if p.MethodID, err = p.Method.ID(); err != nil {
			return err
		}
		p.Cost = schedule.Cost(*p)
		s.estimate(p, model)
		return nil
	}
	for p.Cost.Estimate > budget && len(p.Method.Points) > 1 {
		last := p.Method.Points[len(p.Method.Points)-1]
		p.Method.Points = p.Method.Points[:len(p.Method.Points)-1]
		p.LeftOut = append(p.LeftOut, matrix.LeftOut{What: "point " + last.ID, Why: fmt.Sprintf("the plan would take about %v, the budget is %v", p.Cost.Estimate.Round(time.Second), budget)})
		if err := refit(); err != nil {
			return err
		}
	}
	for p.Cost.Estimate > budget && len(p.Groups) > 1 {
		last := p.Groups[len(p.Groups)-1]
		p.Groups = p.Groups[:len(p.Groups)-1]
		p.LeftOut = append(p.LeftOut, matrix.LeftOut{What: "group " + last.ID, Why: fmt.Sprintf("the plan would take about %v, the budget is %v", p.Cost.Estimate.Round(time.Second), budget)})
		if err := refit(); err != nil {
			return err
		}
	}
	if p.Cost.Estimate > budget {
		return fail(CauseUsage, "give a larger --budget, fewer --points or another --profile", "the smallest plan takes about %v, more than the budget of %v", p.Cost.Estimate.Round(time.Second), budget)
	}
	return nil
}
