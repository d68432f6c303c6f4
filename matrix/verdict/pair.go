package verdict

import (
	"fmt"
	"slices"
	"strings"

	"enginebroker/matrix"
	"enginebroker/matrix/gates"
)

// minColdLoads is how many cold loads of an arm, over all grids, make its load state tested (protocol §4.5) [own].
const minColdLoads = 10

// judge collects the reasons that hold for every metric of the pair at the point.
func (p *pairing) judge(x *index) {
	g := x.in.Plan.Groups[p.group]
	primary := p.grids[x.primary]
	p.voids(x, primary)
	p.facts(x, g)
	for _, arm := range []int{p.a, p.b} {
		p.arm(x, g.Arms[arm], armKey{p.group, arm})
	}
	p.box(x, primary)
}

func (p *pairing) add(x *index, code matrix.Reason, detail string, evidence ...string) {
	p.reasons = append(p.reasons, matrix.CellReason{Code: code, Detail: detail, Evidence: evidence, Next: x.next(code, p, primaryBlocks(p, x))})
}

func primaryBlocks(p *pairing, x *index) int { return p.grids[x.primary].tally.N }

// voids turns what did not count into reasons (protocol §4.2, §4.4). An engine's failure and a harness fault stay on
// record whatever grid they are in; the environment is judged on the primary grid.
func (p *pairing) voids(x *index, primary gridPairing) {
	for i, g := range p.grids {
		for _, r := range g.tally.Reasons {
			cause := map[matrix.Reason]matrix.Cause{matrix.EngineVoidOnRecord: matrix.CauseEngine, matrix.HarnessFault: matrix.CauseHarness,
				matrix.TooManyEnvVoids: matrix.CauseEnv}[r]
			if i != x.primary && cause == matrix.CauseEnv {
				continue
			}
			detail, ids := g.evidence(cause)
			p.add(x, r, detail, ids...)
		}
		for _, d := range g.static {
			p.add(x, matrix.MachineMismatch, d)
		}
	}
	if len(primary.codes) > 0 {
		p.add(x, matrix.ClockSeries, strings.Join(primary.codes, ", "))
	}
	if primary.seen > 0 && primary.cotest == primary.seen {
		_, ids := primary.evidence(matrix.CauseEnv)
		p.add(x, matrix.CotenantSeries, fmt.Sprintf("a neighbour used the card in all %d superblocks", primary.seen), ids...)
	}
	p.acrossMachines(x, primary)
}

// acrossMachines refuses grids of two machines, or of one whose clock was capped otherwise: nothing of them may be set side by side.
func (p *pairing) acrossMachines(x *index, primary gridPairing) {
	static := func(g gridPairing) matrix.Facts {
		for _, sb := range g.blocks {
			for _, r := range sb {
				return r.a.window.Static
			}
		}
		return nil
	}
	for i, g := range p.grids {
		if i == x.primary {
			continue
		}
		d := gates.StaticMismatch(static(primary), static(g))
		if c := gates.CeilingMismatch(x.in.Grids[x.primary].Info.CeilingMHz, x.in.Grids[i].Info.CeilingMHz); c != "" {
			d = append(d, c)
		}
		if len(d) > 0 {
			p.add(x, matrix.MachineMismatch, fmt.Sprintf("grids %d and %d: %s", x.in.Grids[x.primary].Info.Index, x.in.Grids[i].Info.Index, strings.Join(d, ", ")))
		}
	}
}

func (p *pairing) facts(x *index, g matrix.Group) {
	sides := [2]gates.Side{}
	for i, arm := range []int{p.a, p.b} {
		sides[i].Arm = g.Arms[arm]
		if l := x.first[armKey{p.group, arm}]; l != nil {
			sides[i].Ready, sides[i].LoadID = l.Ready, l.ID
		}
	}
	p.reasons = append(p.reasons, gates.Facts(sides[0], sides[1])...)
	subject := subjectKind(x.in.Plan)
	for _, s := range sides {
		if s.Arm.Engine != subject && s.Arm.Pin == "" {
			p.add(x, matrix.ReferenceNotPin, s.Arm.Label+" has no declared pin", s.LoadID)
		}
		if r, ok := s.Ready.Get(); !ok || !gates.BuildRecorded(r) {
			p.add(x, matrix.BuildUnrecorded, s.Arm.Label+" has no observed build fingerprint", s.LoadID)
		}
	}
}

// subjectKind is the engine kind of the plan's subject; empty where the subject has no arm, and then every arm is a reference.
func subjectKind(p matrix.Plan) string {
	for _, g := range p.Groups {
		for _, a := range g.Arms {
			if a.Subject || a.Instance == p.Subject {
				return a.Engine
			}
		}
	}
	return ""
}

func (p *pairing) arm(x *index, a matrix.Arm, key armKey) {
	if a.Attached {
		p.add(x, matrix.AttachedServer, a.Label+" was not launched by the broker")
	}
	if a.Status != matrix.StatusOK {
		p.add(x, matrix.NotPreflighted, fmt.Sprintf("%s: %s is %s", a.Label, a.Artifact, a.Status))
	}
	if why := x.in.Plan.Ungated[a.Key]; why != "" {
		p.add(x, matrix.CanaryFailed, a.Label+": "+why)
	}
	if a.Simulated || x.in.Profile.Certifies == matrix.Simulated {
		p.add(x, matrix.Simulated, a.Label+" is simulated")
	}
	if l := x.pins[key]; l != nil {
		pin, _ := l.Pin.Get()
		var fields []string
		for _, m := range pin.Mismatch {
			fields = append(fields, fmt.Sprintf("%s is %s, pinned to %s", m.Field, m.Found, m.Expected))
		}
		p.add(x, matrix.IdentityAssertFailed, fmt.Sprintf("%s does not match pin %s: %s", a.Label, pin.Pin, strings.Join(fields, ", ")), l.ID)
	}
	if l := x.offset[key]; l != "" {
		p.add(x, matrix.ThermalStartOffset, a.Label+" started warmer than the series began", l)
	}
	loads := x.cold[key]
	for _, r := range x.in.Reloads {
		if r.Arm != a.Label {
			continue
		}
		loads += r.Result.N
		if r.Result.Verdict == "MULTI_MODE" {
			p.add(x, matrix.LoadStateMulti, fmt.Sprintf("%s has %d load states over %d loads", a.Label, len(r.Result.Modes), r.Result.N), r.ID)
		}
	}
	if loads < minColdLoads {
		p.add(x, matrix.LoadStateUntested, fmt.Sprintf("%s has %d cold loads over all grids, %d needed", a.Label, loads, minColdLoads))
	}
	p.everyLeg(x, a.Label, everyKey{key, p.point, matrix.PromptTokensCode}, matrix.PromptTokensMismatch)
	p.everyLeg(x, a.Label, everyKey{key, allPoints, matrix.CanaryFailedCode}, matrix.CanaryFailed)
}

// everyLeg raises a cell reason when all scored legs of an arm carry a code: at one point, or at all of them.
func (p *pairing) everyLeg(x *index, label string, key everyKey, reason matrix.Reason) {
	e := x.every[key]
	total := x.scored[everyKey{arm: key.arm, point: key.point}]
	if e == nil || len(e.ids) < total {
		return
	}
	p.add(x, reason, fmt.Sprintf("in all %d legs of %s: %s", total, label, e.detail), e.ids...)
}

// box says what the box or its profile could not prove.
func (p *pairing) box(x *index, primary gridPairing) {
	for _, sb := range primary.blocks {
		for _, r := range sb {
			for _, l := range []*leg{r.a, r.b} {
				for _, name := range l.gate.Absent {
					if gates.BoxGate(name) && !slices.Contains(p.absent, name) {
						p.absent = append(p.absent, name)
					}
				}
			}
		}
	}
	slices.Sort(p.absent)
	detail := ""
	if x.in.Profile.Certifies == matrix.BoxUncertified {
		detail = "profile " + x.in.Profile.Name + " certifies nothing above PROVISIONAL"
	}
	if len(p.absent) > 0 {
		detail = strings.TrimPrefix(detail+"; not evaluable: "+strings.Join(p.absent, ", "), "; ")
	}
	if detail != "" {
		p.add(x, matrix.BoxUncertified, detail)
	}
	for _, s := range []*section{x.sections[x.primary][p.group]} {
		for _, sb := range s.sbs {
			if l := sb.leadIn[p.point]; l != nil && l.gate.Cause == matrix.CauseEngine {
				p.notes = append(p.notes, fmt.Sprintf("lead-in %s failed: %s", l.id(), details(l.gate)))
			}
		}
	}
}
