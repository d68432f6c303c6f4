package report

import (
	"fmt"
	"io"
	"strings"

	"enginebroker/matrix"
)

// Explain writes one cell in words: its verdict, every reason with its evidence, and what would release it.
func Explain(w io.Writer, c matrix.Cell, o Options) error {
	p := newPage(w, o)
	if c.Simulated {
		p.banner(Stamp)
	}
	l := lineOf(c)
	p.title(clean(c.ID.String()), "")
	p.wrapIn(styleOf(c.Verdict), "", l.Verdict+": "+verdictWords[c.Verdict])
	if l.Metric != "" { // a refused pair has no metric
		p.wrap("metric: ", fmt.Sprintf("%s in %s per %s, formula %s", l.Metric, l.Unit, clean(c.Metric.Denominator), clean(c.Metric.Formula)))
	}
	if n, ok := c.Numbers.Get(); ok {
		p.numbers(l, n)
	} else {
		p.wrap("", "No number of this cell may be shown.")
	}
	for _, r := range c.Reasons {
		p.blank()
		p.title(clean(string(r.Code)), "")
		p.wrap("", clean(Words(r.Code)))
		if r.Detail != "" {
			p.wrap("here: ", clean(r.Detail))
		}
		for _, e := range r.Evidence {
			p.wrap("evidence: ", clean(e))
		}
		if r.Next != "" {
			p.wrapIn(bold, "next: ", clean(r.Next))
		}
	}
	if len(c.Annotated)+len(c.History) > 0 {
		p.blank()
	}
	for _, a := range c.Annotated {
		p.wrap("note: ", clean(a))
	}
	for _, h := range c.History {
		codes := make([]string, len(h.Reasons))
		for i, r := range h.Reasons {
			codes[i] = string(r)
		}
		p.wrap("before: ", fmt.Sprintf("run %s said %s (%s), superseded by %s", clean(h.Run), h.Verdict, clean(strings.Join(codes, ", ")), clean(h.By)))
	}
	return p.err
}

func (p *page) numbers(l line, n matrix.Numbers) {
	if d := l.Says(); d != "" {
		p.wrap("direction: ", d)
	}
	if l.Ratio != "" {
		p.wrap("ratio: ", l.Ratio)
	}
	if iv, ok := n.Interval.Get(); ok {
		p.wrap("interval: ", fmt.Sprintf("%s (%s, %d degrees of freedom)", l.Interval, clean(iv.Kind), iv.DF))
		if n.ShowRatio {
			p.wrap("blocks: ", fmt.Sprintf("median %s, least %s, greatest %s, %s reversed", point(iv.Median), point(iv.Min), point(iv.Max), counted(n.Reversed)))
		}
	}
	for _, a := range l.Arms {
		p.wrap("arm: ", fmt.Sprintf("%s median %s %s, spread %s over %s loads", a.Label, a.Median, l.Unit, a.Spread, a.Loads))
	}
	for i, g := range l.Grids {
		p.wrap(fmt.Sprintf("grid %d: ", i+1), armList(g))
	}
	if n.NoEquivalent {
		p.wrap("", "The noise between loads of one engine is wider than the margin: equivalence cannot be shown here.")
	}
}

var verdictWords = map[matrix.Verdict]string{
	matrix.Established:   "shown on two boots, with nothing against it.",
	matrix.Provisional:   "measured; the reasons below say what is missing to call it shown.",
	matrix.Inconclusive:  "measured, and the measurement does not decide; no direction may be said.",
	matrix.NotReproduced: "two grids disagree by more than noise; there is no ratio.",
	matrix.Withheld:      "something must be run again before a number may be shown.",
	matrix.Void:          "the measurement did not take place under its own conditions.",
	matrix.NotComparable: "the two sides are not the same task; there is nothing to compare.",
}

// Words says what a reason means; for an unknown one, that it is unknown.
func Words(r matrix.Reason) string {
	if s, ok := words[r]; ok {
		return s
	}
	return "This reason is unknown to this version of the broker."
}

// words follow the meaning that protocol §4 gives each reason.
var words = map[matrix.Reason]string{
	matrix.NoCommonQuant:        "There is no artifact that both engines open unchanged.",
	matrix.ConvertedCheckpoint:  "One side would run a converted or re-quantised copy, which is another model.",
	matrix.CheckpointMismatch:   "The two sides loaded different weight files.",
	matrix.DraftedVsRaw:         "One side decodes with a drafter and the other without.",
	matrix.PrefixCacheMismatch:  "The prefix cache was not proved to be the same on both sides.",
	matrix.KVDtypeMismatch:      "The KV caches have different types.",
	matrix.MethodMismatch:       "The two sides were measured by different methods.",
	matrix.WorkloadMismatch:     "The two sides were given different work.",
	matrix.PromptTokensMismatch: "The prompts are not the same tokens on both sides.",
	matrix.MachineMismatch:      "The two sides ran on different machines, or on one that changed.",
	matrix.IdentityAssertFailed: "What runs is not what its declared pin says.",
	matrix.ComputeDtypeMismatch: "The two sides compute in different precision, which was not declared as the thing compared.",
	matrix.LimitsMismatch:       "The servers grant different context or concurrency.",
	matrix.DrafterMismatch:      "The two sides use different drafters or draft lengths.",
	matrix.MultiNodeUnsupported: "A server over several hosts is not compared.",
	matrix.NoValidBlock:         "No block in which both sides have a valid leg.",
	matrix.TooManyEnvVoids:      "The box disturbed more superblocks than may be run again.",
	matrix.ClockSeries:          "The clocks of the two sides over the series are not alike.",
	matrix.ClockBootMismatch:    "The clocks compared come from different boots.",
	matrix.CotenantSeries:       "Another program used the device in every superblock.",
	matrix.HarnessFault:         "The broker or its evidence was at fault.",
	matrix.EngineVoidOnRecord:   "A scored leg is void because of the engine; leaving it out would flatter the engine that failed.",
	matrix.InsufficientBlocks:   "Fewer than three valid blocks.",
	matrix.AAMissing:            "The same engine was not measured against itself often enough to know the noise.",
	matrix.AAFailed:             "Measured against itself, an engine came out different from itself.",
	matrix.RatioInconsistent:    "A published ratio does not follow from the figures it stands beside.",
	matrix.CanaryFailed:         "The engine answered the canary wrongly in every load.",
	matrix.OperatorHold:         "The cell is held back by hand.",
	matrix.AttachedServer:       "A server that the broker did not launch has no cold load and no proof of absence.",
	matrix.GridShiftRatio:       "The ratio of the second grid differs from that of the first by more than noise.",
	matrix.GridShiftArm:         "One engine moved between the grids by more than noise.",
	matrix.WideCI:               "The interval includes both no difference and a difference.",
	matrix.ReversedBlocks:       "The mean has a direction, and too many blocks point the other way.",
	matrix.LoadStateMulti:       "An engine runs in more than one state, chosen at load.",
	matrix.TailUndersampled:     "There are too few requests for this percentile.",
	matrix.ITLCoalesced:         "Events are not tokens here, so there is no time between tokens.",
	matrix.FewBlocks:            "Three to five blocks: fewer than the six that a distribution-free statement needs.",
	matrix.SingleGrid:           "Measured on one boot only; figures can differ between boots by more than any interval says.",
	matrix.GridUndecided:        "The second grid neither confirms nor contradicts the first.",
	matrix.GridShiftCommon:      "Both engines moved together between the grids; the ratio held.",
	matrix.GridInterval:         "The interval over both grids does not carry the direction of the first.",
	matrix.ReferenceNotPin:      "The other engine has no declared pin: nobody vouches that this is the build to compare with.",
	matrix.BuildUnrecorded:      "The exact build of one side is not on record.",
	matrix.SingleResidency:      "All of it ran within one residency and so shares one load state.",
	matrix.ClockHeadUnobserved:  "The clock before the first token was not observed closely enough.",
	matrix.LoadStateSuspect:     "Two neighbouring loads of one engine differ by more than the margin.",
	matrix.LoadStateUntested:    "Fewer than ten cold loads: a second load state could have been missed.",
	matrix.ThermalStartOffset:   "The box did not cool down before a load.",
	matrix.AAEmbeddedOnly:       "The noise is known from neighbouring loads of the same run, not from a dedicated series.",
	matrix.BoxUncertified:       "This box cannot evaluate every gate.",
	matrix.Simulated:            "The engine is a program that plays one.",
	matrix.NotPreflighted:       "That the engine opens this artifact is claimed, not on record.",
	matrix.FactUnobserved:       "One side could not observe a fact that must be equal.",
}
