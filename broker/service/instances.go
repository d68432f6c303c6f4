package service

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"enginebroker/broker/config"
	"enginebroker/engines"
	"enginebroker/engines/fingerprint"
	"enginebroker/engines/host"
	"enginebroker/matrix"
	"enginebroker/matrix/negotiate"
)

// pluginEnv names the variables by which engines are found where no setting says where they are.
var pluginEnv = []string{"VLLM", "SGLANG", "LLAMA_SERVER", "VLLMCPP_SERVER", "HF_HOME", "HF_HUB_CACHE"}

// closeLimit is how long a plugin may take to end after its engine is gone.
const closeLimit = 10 * time.Second

// team is the plugin instances of one request, launched and described.
type team struct {
	members []*member // in label order
}

// member is one instance: its plugin, and what it says of itself.
type member struct {
	config.Instance
	host *host.Instance
	desc matrix.Description
	err  error // why it cannot take part; the others go on
}

// team launches and describes the instances that a request names. A plugin that cannot be used is a member with an error.
func (s *Service) team(ctx context.Context, q Request) (*team, error) {
	labels := q.Engines
	if len(labels) == 0 {
		labels = s.cfg.Labels()
	}
	t := &team{}
	for _, l := range slices.Compact(slices.Sorted(slices.Values(labels))) {
		in, err := s.instance(l)
		if err != nil {
			return nil, err
		}
		t.members = append(t.members, &member{Instance: in})
	}
	plugins, problems := host.Find(s.pluginDirs())
	var wg sync.WaitGroup
	for _, m := range t.members {
		wg.Go(func() { s.describe(ctx, m, plugins, problems) })
	}
	wg.Wait()
	if ctx.Err() != nil {
		t.close()
		return nil, &Error{Cause: CauseInterrupted, Err: ctx.Err()}
	}
	return t, nil
}

func (s *Service) describe(ctx context.Context, m *member, plugins []host.Plugin, problems []*host.Problem) {
	i := slices.IndexFunc(plugins, func(p host.Plugin) bool { return p.Name == m.Plugin })
	if i < 0 {
		m.err = &host.Problem{Plugin: m.Plugin, Label: m.Label, Kind: host.Missing, Message: "no such plugin in " + joined(s.pluginDirs()), Fix: "run make build, or list its folder under plugins in broker.yaml"}
		for _, p := range problems {
			if filepath.Base(p.Plugin) == m.Plugin {
				m.err = p
			}
		}
		return
	}
	in, err := host.Launch(ctx, host.Config{Plugin: plugins[i], Label: m.Label, Pin: m.Checksum, Settings: m.settings(), Env: pluginEnv, Log: s.log})
	if err != nil {
		m.err = err
		return
	}
	m.host, m.desc = in, in.Description()
}

func (m *member) settings() engines.Settings {
	out := engines.Settings(maps.Clone(m.Settings))
	if m.Attach != "" {
		out["attach"] = m.Attach
	}
	return out
}

// misset refuses settings that a plugin refuses: a plan without the instance would be another one than was asked for. A
// container tool that is missing is not a fault of the file, and leaves its instance out as an engine that is missing does.
func (s *Service) misset(t *team) error {
	var errs []error
	for _, m := range t.members {
		p, ok := errors.AsType[*host.Problem](m.err)
		if !ok || p.Kind != host.Settings {
			continue
		}
		for _, f := range p.Fields {
			if f.Field == "runtime" {
				continue
			}
			field := "instances." + m.Label + ".settings." + f.Field
			if f.Field == "attach" {
				field = "instances." + m.Label + ".attach"
			}
			hint := ""
			if !slices.Contains(p.Known, f.Field) {
				hint = near(f.Field, p.Known)
			}
			f.Field = field
			errs = append(errs, fail(CauseUsage, hint, "%s: %w", s.cfg.At(field), f))
		}
	}
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	}
	return &Error{Cause: CauseUsage, Err: errors.Join(errs...)}
}

// recorded are the settings as they stand in evidence: without secrets.
func (m *member) recorded() map[string]string { return fingerprint.ScrubSettings(m.Settings) }

// pluginDirs are the configured folders and the one beside the binary.
func (s *Service) pluginDirs() []string {
	dirs := slices.Clone(s.cfg.Plugins)
	if exe, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(exe); err == nil {
			dirs = append(dirs, filepath.Join(filepath.Dir(real), "plugins"))
		}
	}
	return dirs
}

func joined(dirs []string) string {
	out := ""
	for i, d := range dirs {
		if i > 0 {
			out += ", "
		}
		out += d
	}
	return cmp.Or(out, "no folder")
}

func (t *team) close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	var wg sync.WaitGroup
	for _, m := range t.members {
		if m.host != nil {
			wg.Go(func() { m.host.Close(ctx) })
		}
	}
	wg.Wait()
}

func (t *team) member(label string) *member {
	for _, m := range t.members {
		if m.Label == label {
			return m
		}
	}
	return nil
}

func (t *team) labels() []string {
	out := make([]string, len(t.members))
	for i, m := range t.members {
		out[i] = m.Label
	}
	return out
}

// agree negotiates. Of a matrix, engines that are here go on without those that are not, if they have a pair among them; true
// then. Otherwise everybody is negotiated, so that the plan shows what there would be.
func (t *team) agree(in negotiate.Input, purpose string) (negotiate.Result, bool, error) {
	absent := t.absent()
	if purpose == "" && len(absent) > 0 {
		here := in
		here.Sides = slices.DeleteFunc(slices.Clone(in.Sides), func(x negotiate.Side) bool { _, gone := absent[x.Label]; return gone })
		here.Pairs = slices.DeleteFunc(slices.Clone(in.Pairs), func(p matrix.Pair) bool {
			_, a := absent[p.A]
			_, b := absent[p.B]
			return a || b
		})
		if _, gone := absent[here.Subject]; gone {
			here.Subject = ""
		}
		if len(here.Sides) > 1 && (len(in.Pairs) == 0 || len(here.Pairs) > 0) {
			if r, err := negotiate.Pairs(here); err == nil && len(r.Groups) > 0 {
				return r, true, nil
			}
		}
	}
	r, err := negotiate.Pairs(in)
	return r, len(absent) == 0, err
}

// absent says, per instance that cannot take part in a run, why.
func (t *team) absent() map[string]string {
	out := map[string]string{}
	for _, m := range t.members {
		switch {
		case m.err != nil:
			out[m.Label] = m.err.Error()
		case !m.desc.Installed:
			out[m.Label] = "not installed"
		}
	}
	return out
}

// missing says, per instance that is not installed, what was looked for and where.
func (t *team) missing() map[string][]string {
	out := map[string][]string{}
	for _, m := range t.members {
		switch {
		case m.err != nil:
			out[m.Label] = []string{m.err.Error()}
		case !m.desc.Installed:
			out[m.Label] = m.desc.LookedFor
		}
	}
	return out
}

// sides are the members as negotiation sees them. An engine that is not installed is negotiated all the same, from the
// catalog, so that the plan can be shown.
func (t *team) sides(s *Service, model matrix.Model) []negotiate.Side {
	var out []negotiate.Side
	for _, m := range t.members {
		kind := cmp.Or(m.desc.Engine, m.Plugin)
		out = append(out, negotiate.Side{Label: m.Label, Engine: kind, Instance: m.Label, Description: m.desc, Policy: m.Policy,
			Preflighted: s.preflights(m, model), Settings: m.recorded(), Pin: m.Pin, ComputeDtype: m.ComputeDtype, Compares: m.Compares,
			Attached: m.Attach != "", Simulated: m.desc.Simulated})
	}
	return out
}

// Engine is one instance as a listing shows it.
type Engine struct {
	Label       string             `json:"label"`
	Plugin      string             `json:"plugin"`
	Subject     bool               `json:"subject,omitempty"`
	Pin         string             `json:"pin,omitempty"`
	Policy      matrix.Policy      `json:"policy"`
	Description matrix.Description `json:"description"`
	Problem     string             `json:"problem,omitempty"`
}

// Engines lists the configured instances and what each says of itself; labels narrows the list.
func (s *Service) Engines(ctx context.Context, labels ...string) ([]Engine, error) {
	t, err := s.team(ctx, Request{Engines: labels})
	if err != nil {
		return nil, err
	}
	defer t.close()
	out := make([]Engine, len(t.members))
	for i, m := range t.members {
		out[i] = Engine{Label: m.Label, Plugin: m.Plugin, Subject: m.Label == s.cfg.Subject, Pin: m.Pin, Policy: m.Policy, Description: m.desc}
		if m.err != nil {
			out[i].Problem = m.err.Error()
		}
	}
	return out, nil
}

// launched returns the engine of an instance, launching its plugin anew where it has died since; on is told of that.
func (s *Service) launched(ctx context.Context, t *team, label string, on func(Event)) (*host.Instance, error) {
	m := t.member(label)
	if m == nil {
		return nil, errors.New("no instance " + label)
	}
	if m.host != nil {
		if _, err := m.host.Describe(ctx); !errors.Is(err, engines.ErrGone) {
			return m.host, nil
		}
	}
	plugins, problems := host.Find(s.pluginDirs())
	m.err = nil
	died := m.host != nil
	s.describe(ctx, m, plugins, problems)
	if died && m.err == nil {
		on(Event{At: s.now(), Kind: Relaunch, Arm: label, Text: "the plugin of " + label + " had died; it is launched again"})
	}
	return m.host, m.err
}
