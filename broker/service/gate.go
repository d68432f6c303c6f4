package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"enginebroker/matrix"
)

// gateTokens is how long each answer of a gate is (issue 5: n prompts × 128 tokens, twice).
const gateTokens = 128

// gatePrompts are what a gate asks. They are of several kinds of text, because a wrong kernel may show in one only, and are
// fixed, because goldens are kept of them.
var gatePrompts = []string{
	"The lighthouse keeper wrote in his diary every evening, and on the last page he",
	"A recipe for bread needs only four things. First, take",
	"def merge(left, right):\n    \"\"\"Merge two sorted lists.\"\"\"\n    result = []\n",
	"Q: Why is the sky blue?\nA:",
	"In the year 1687 a book appeared that",
	"1, 1, 2, 3, 5, 8, 13,",
	"Sehr geehrte Damen und Herren, hiermit",
	"| planet | moons |\n|--------|-------|\n| Mars | 2 |\n",
}

// gateKey names what a gate says something about: a build and files, and how an instance is declared to run them.
type gateKey struct {
	preflightKey
	Settings     map[string]string `json:"settings"`
	Policy       string            `json:"policy"`
	ComputeDtype string            `json:"compute_dtype"`
}

func gateKeyOf(m *member, a matrix.Artifact) (gateKey, bool) {
	k, ok := keyOf(m, a)
	return gateKey{k, m.recorded(), m.Policy.String(), m.ComputeDtype}, ok
}

// Gate is the dated evidence that an instance is fit to be measured: it starts, answers equally twice, answers as it did
// when its golden was accepted, and understands the weights.
type Gate struct {
	Key       gateKey                         `json:"key"`
	Label     string                          `json:"label"`
	Simulated bool                            `json:"simulated,omitempty"`
	Artifact  string                          `json:"artifact"`
	At        time.Time                       `json:"at"`
	Prompts   int                             `json:"prompts"`
	Tokens    int                             `json:"tokens"`               // asked for per prompt
	SelfMatch []Drift                         `json:"self_match,omitempty"` // prompts answered otherwise the second time
	Golden    string                          `json:"golden"`               // none, match, drift, accepted
	Drift     []Drift                         `json:"drift,omitempty"`      // against the golden
	Canary    matrix.Opt[matrix.CanaryResult] `json:"canary,omitzero"`      // absent: the artifact has no question
	Failures  []string                        `json:"failures,omitempty"`   // why the gate is not passed
	Start     matrix.Opt[matrix.StartFailure] `json:"start_failure,omitzero"`
}

// OK reports a gate that was passed.
func (g Gate) OK() bool { return len(g.Failures) == 0 }

// Drift is one prompt that was answered otherwise.
type Drift struct {
	Prompt int    `json:"prompt"`
	At     int    `json:"at"` // bytes of the answer that are equal
	Want   string `json:"want"`
	Got    string `json:"got"`
}

// golden is what an instance answered when somebody accepted it. It is kept by instance and files and not by build: another
// build of one engine is what it is to be compared with.
type golden struct {
	Label    string    `json:"label"`
	Artifact string    `json:"artifact"`
	Manifest string    `json:"manifest"`
	Build    string    `json:"build"`
	Pin      string    `json:"pin,omitempty"`
	At       time.Time `json:"at"`
	Texts    []string  `json:"texts"`
}

type goldenKey struct {
	Label    string `json:"label"`
	Manifest string `json:"manifest"`
}

// GateRequest says which instance is to be gated on what.
type GateRequest struct {
	Engines []string
	Model   string
	Quant   string
	Prompts int  // of gatePrompts; 0: all
	Accept  bool // keep the answers as the golden
}

func (q GateRequest) check() error {
	if q.Prompts < 0 || q.Prompts > len(gatePrompts) {
		return About("trial.gate.prompts", fail(CauseUsage, "", "%d prompts; there are 1 to %d", q.Prompts, len(gatePrompts)))
	}
	return nil
}

// Gate starts each instance and asks it what shows whether it is fit to be measured.
func (s *Service) Gate(ctx context.Context, q GateRequest, on func(Event)) ([]Gate, error) {
	if err := q.check(); err != nil {
		return nil, err
	}
	q.Prompts = cmp.Or(q.Prompts, len(gatePrompts))
	var out []Gate
	err := s.each(ctx, "gate", PreflightRequest{q.Engines, q.Model, q.Quant}, func(m *member, model matrix.Model, a matrix.Artifact) error {
		g, err := s.gate(ctx, m, model, a, q, on)
		out = append(out, g)
		return err
	})
	return out, err
}

func (s *Service) gate(ctx context.Context, m *member, model matrix.Model, a matrix.Artifact, q GateRequest, on func(Event)) (Gate, error) {
	key, _ := gateKeyOf(m, a)
	g := Gate{Key: key, Label: m.Label, Simulated: m.desc.Simulated, Artifact: a.ID, At: s.now().UTC(), Prompts: q.Prompts, Tokens: gateTokens, Golden: "none"}
	say := func(text string) { on(Event{At: s.now(), Kind: "phase", Arm: m.Label, Text: text}) }
	req, err := s.single("gate", m, model, a)
	if err != nil {
		return g, err
	}
	say("gate on " + a.ID)
	ready, err := m.host.Start(ctx, req, func(x matrix.Progress) { say(strings.TrimSpace(x.Phase + " " + x.Line)) })
	if err != nil {
		if ctx.Err() != nil {
			return g, &Error{Cause: CauseInterrupted, Err: ctx.Err()}
		}
		f, ok := errors.AsType[*matrix.StartFailure](err)
		if !ok {
			f = &matrix.StartFailure{Code: "plugin", Phase: "start", Message: err.Error(), LogPath: req.LogPath}
		}
		g.Start, g.Failures = matrix.Some(*f), []string{"does not start: " + f.Error()}
		return g, s.keep("gates", key, g)
	}
	texts, askErr := g.ask(ctx, ready.Dialect, a, say)
	stopped, err := m.host.Stop(context.WithoutCancel(ctx), time.Minute)
	switch {
	case ctx.Err() != nil:
		return g, &Error{Cause: CauseInterrupted, Err: ctx.Err()}
	case askErr != nil:
		g.Failures = append(g.Failures, askErr.Error())
	case err != nil || !stopped.Gone():
		return g, fail(CauseInternal, "end them by hand: whatever they hold is missing to the next load", "the server of %s could not be proved gone: survivors %v, %v", m.Label, stopped.Survivors, err)
	}
	if askErr == nil {
		if err := s.against(&g, m, texts, q.Accept); err != nil {
			return g, err
		}
	}
	return g, s.keep("gates", key, g)
}

// ask makes every answer twice and puts the artifact's question. The error is a server that does not answer.
func (g *Gate) ask(ctx context.Context, d matrix.Dialect, a matrix.Artifact, say func(string)) ([]string, error) {
	var passes [2][]string
	for pass := range passes {
		say(fmt.Sprintf("pass %d of 2: %d prompts, %d tokens each", pass+1, g.Prompts, g.Tokens))
		for i, p := range gatePrompts[:g.Prompts] {
			r, err := clock{}.Ask(ctx, d, p, g.Tokens, gateLimit)
			if err != nil {
				return nil, fmt.Errorf("prompt %d: %w", i, err)
			}
			if r.Outcome != matrix.OutcomeOK {
				return nil, fmt.Errorf("prompt %d: %s %s %s", i, r.Outcome, strings.Join(r.Reasons, ","), r.Error)
			}
			passes[pass] = append(passes[pass], r.Text)
		}
	}
	if g.SelfMatch = drifts(passes[0], passes[1]); len(g.SelfMatch) > 0 {
		g.Failures = append(g.Failures, fmt.Sprintf("%d of %d greedy answers differ between two passes of one server", len(g.SelfMatch), g.Prompts))
	}
	if q, ok := a.Canary.Get(); ok {
		r, err := clock{}.Ask(ctx, d, q.Prompt, q.Tokens, gateLimit)
		if err != nil {
			return nil, fmt.Errorf("canary: %w", err)
		}
		c := matrix.CanaryResult{When: "gate", Want: q.Answer, Got: r.Text, OK: r.Outcome == matrix.OutcomeOK && strings.Contains(r.Text, q.Answer)}
		g.Canary = matrix.Some(c)
		if !c.OK {
			g.Failures = append(g.Failures, fmt.Sprintf("the canary wanted %q and got %.80q", c.Want, c.Got))
		}
	}
	return passes[0], nil
}

// gateLimit bounds one answer of a gate: 128 tokens at half a token per second.
const gateLimit = 5 * time.Minute

// against compares answers with the golden, or makes them the golden where somebody accepts them. What does not even match
// itself is never accepted.
func (s *Service) against(g *Gate, m *member, texts []string, accept bool) error {
	key := goldenKey{m.Label, g.Key.Manifest}
	var old golden
	had, err := s.find("goldens", key, &old)
	if err != nil {
		return &Error{Cause: CauseUsage, Err: err}
	}
	if accept && g.OK() {
		g.Golden = "accepted"
		return s.keep("goldens", key, golden{Label: m.Label, Artifact: g.Artifact, Manifest: g.Key.Manifest, Build: g.Key.Build, Pin: m.Pin, At: g.At, Texts: texts})
	}
	if !had {
		return nil
	}
	n := min(len(old.Texts), len(texts))
	g.Golden, g.Drift = "match", drifts(old.Texts[:n], texts[:n])
	if len(g.Drift) > 0 {
		g.Golden = "drift"
		g.Failures = append(g.Failures, fmt.Sprintf("%d of %d answers are not those of the golden of %s (build %.12s)", len(g.Drift), n, old.At.Format(time.DateOnly), old.Build))
	}
	return nil
}

// drifts lists the answers that differ.
func drifts(want, got []string) []Drift {
	var out []Drift
	for i := range want {
		if want[i] == got[i] {
			continue
		}
		at := 0
		for at < min(len(want[i]), len(got[i])) && want[i][at] == got[i][at] {
			at++
		}
		out = append(out, Drift{Prompt: i, At: at, Want: from(want[i], at), Got: from(got[i], at)})
	}
	return out
}

// from is what follows the equal part, bounded.
func from(s string, at int) string { return strings.ToValidUTF8(s[at:min(len(s), at+80)], "\uFFFD") }

// failedGates says, by arm key, why an arm's last gate was not passed.
func (s *Service) failedGates(t *team, model matrix.Model, groups []matrix.Group) map[string]string {
	out := map[string]string{}
	for _, g := range groups {
		for _, arm := range g.Arms {
			a, _ := model.Artifact(arm.Artifact)
			m := t.member(arm.Instance)
			if m == nil {
				continue
			}
			if last, ok := s.lastGate(m, a); ok && !last.OK() {
				out[arm.Key] = fmt.Sprintf("gate of %s: %s", last.At.Format(time.RFC3339), strings.Join(last.Failures, "; "))
			}
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

func (s *Service) lastGate(m *member, a matrix.Artifact) (Gate, bool) {
	key, known := gateKeyOf(m, a)
	var g Gate
	if !known {
		return g, false
	}
	found, err := s.find("gates", key, &g)
	return g, err == nil && found
}

// goldensOf lists the goldens that were accepted of an instance under a pin.
func (s *Service) goldensOf(pin string) ([]Carried, error) {
	var out []Carried
	err := s.entries("goldens", func(key string) error {
		var g golden
		if _, err := s.load("goldens", key, &g); err != nil {
			return err
		}
		if g.Pin == pin {
			out = append(out, Carried{Golden: fmt.Sprintf("%s on %s of %s", g.Label, g.Artifact, g.At.Format(time.DateOnly))})
		}
		return nil
	})
	slices.SortFunc(out, func(a, b Carried) int { return strings.Compare(a.Golden, b.Golden) })
	return out, err
}
