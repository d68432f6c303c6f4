package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"enginebroker/broker/config"
	"enginebroker/matrix"
	"enginebroker/matrix/workload"
)

// readyLimit is how long an engine may take from launch to its first token: cold loads take 5–15 minutes on a GB10
// (engines.md I), a first start compiles and captures graphs on top.
const readyLimit = 45 * time.Minute

// Prepare is Plan for a run that follows: it builds the prompt corpus first where an engine can count tokens, because the
// corpus is part of the method.
func (s *Service) Prepare(ctx context.Context, q Request, on func(Event)) (Planned, error) {
	return s.planned(ctx, q, func(q Request, t *team) (Planned, error) { return s.prepare(ctx, q, t, on) })
}

func (s *Service) prepare(ctx context.Context, q Request, t *team, on func(Event)) (Planned, error) {
	p, err := s.plan(ctx, q, t)
	if err != nil || p.Runnable() != nil {
		return p, err
	}
	model, err := s.model(ctx, q.Model)
	if err != nil {
		return p, err
	}
	profile, _ := workload.ProfileNamed(p.Plan.Profile)
	spec := corpusSpec(model, p.Plan.Method.Points, profile, p.Plan.Groups)
	built, err := s.ensureCorpus(ctx, t, model, spec, func(text string) { on(Event{At: s.now(), Kind: "corpus", Text: text}) })
	if err != nil || !built {
		return p, err
	}
	if q, err = p.As(q); err != nil {
		return p, err
	}
	return s.plan(ctx, q, t)
}

// As is a request for exactly the plan that was shown: its seed, and its length where that was reckoned.
func (p Planned) As(q Request) (Request, error) {
	seed, err := strconv.ParseUint(p.Plan.Seed, 10, 64)
	if err != nil {
		return q, fmt.Errorf("seed of the plan: %w", err)
	}
	q.Seed = matrix.Some(seed)
	if q.AB != nil && len(p.Plan.Groups) > 0 {
		ab := *q.AB
		ab.Superblocks = len(p.Plan.Groups[0].Superblocks)
		q.AB = &ab
	}
	return q, nil
}

// Runnable says why a plan cannot be run here and now; nil if it can.
func (p Planned) Runnable() error {
	switch {
	case len(p.Missing) > 0:
		var b []byte
		for _, label := range sortedKeys(p.Missing) {
			b = fmt.Appendf(b, "\n  %s", label)
			for _, l := range p.Missing[label] {
				b = fmt.Appendf(b, "\n    %s", l)
			}
		}
		return fail(CauseNotInstalled, "install what is missing, mend its settings in broker.yaml, or leave it out with --engines", "the plan above cannot run, some engines are not here or cannot be used:%s", b)
	case len(p.Plan.Groups) == 0:
		return fail(CauseNotComparable, "", "no pair is comparable: every pair is refused, with its reason, in the plan above")
	case len(p.NoFiles) > 0:
		var b []byte
		for _, id := range slices.Sorted(slices.Values(p.NoFiles)) {
			b = fmt.Appendf(b, "\n  %s", id)
		}
		return fail(CauseNotInstalled, "name their paths under artifacts in broker.yaml, or put the snapshot into the Hugging Face cache", "the plan above cannot run, these artifacts have no local files:%s", b)
	case p.Unpinned != "":
		return fail(CauseUsage, "or run with --accept-likely-void: the method records the clock as unpinned, and legs judge themselves", "%s", p.Unpinned)
	}
	return nil
}

// serverState is where an instance's plugin keeps how to find its server again.
func (s *Service) serverState(label string) string {
	return filepath.Join(s.state, "servers", label+".json")
}

// startRequest is what an arm's server is started with, but for the load's own id, log and port.
func (s *Service) startRequest(in config.Instance, model matrix.Model, a matrix.Artifact, limits matrix.Limits) (matrix.StartRequest, error) {
	port, err := freePort()
	if err != nil {
		return matrix.StartRequest{}, err
	}
	private, err := matrix.Digest([]any{in.Label, in.Plugin, in.Settings})
	if err != nil {
		return matrix.StartRequest{}, err
	}
	cache := filepath.Join(s.state, "cache", in.Label+"-"+private[:12])
	for _, d := range []string{cache, filepath.Join(s.state, "servers"), filepath.Join(s.state, "logs")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return matrix.StartRequest{}, err
		}
	}
	return matrix.StartRequest{
		ModelName: model.Name, Artifact: a, Policy: in.Policy, Limits: limits, PrefixCache: "off", ComputeDtype: in.ComputeDtype, Seed: 0,
		Host: "127.0.0.1", Port: port, CacheDir: cache, StatePath: s.serverState(in.Label), ReadyLimit: readyLimit,
		Settings: in.Settings,
	}, nil
}

// freePort asks the kernel for a port that nobody listens on. The adapter checks again before and after the launch.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("no free port on 127.0.0.1: %w", err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}

// runName is the name of a new run: the one that is asked for, else what it is about and when it began.
func (s *Service) runName(asked, stem string) (string, error) {
	name := cmp.Or(asked, stem+"-"+s.now().Format("20060102-150405"))
	if !runRule.MatchString(name) {
		return "", fail(CauseUsage, "", "run name %q: letters, digits, '.', '_' and '-', at most 80, beginning with a letter or digit", name)
	}
	return name, nil
}

// runDir is the folder of a run by its name; a path to one is taken as well.
func (s *Service) runDir(name string) (string, error) {
	if name == "" {
		return "", fail(CauseUsage, "", "no run is named; broker runs lists them")
	}
	if runRule.MatchString(name) {
		dir := filepath.Join(s.runs, name)
		if _, err := os.Stat(dir); err == nil {
			return dir, nil
		}
	}
	if _, err := os.Stat(filepath.Join(name, "plan.json")); err == nil && filepath.Base(name) != name {
		return filepath.Abs(name)
	}
	list, err := s.Runs(context.Background())
	var known []string
	for _, r := range list {
		known = append(known, r.Name)
	}
	missing := s.NoRun(name, known)
	if err != nil {
		missing = errors.Join(err, missing)
	}
	return "", missing
}

// NoRun says that no run has a name, and which of those that are known has one like it.
func (s *Service) NoRun(name string, known []string) error {
	return fail(CauseNotFound, near(name, known), "no run %q in %s", name, s.runs)
}
