package service

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"enginebroker/matrix"
	"enginebroker/matrix/schedule"
	"enginebroker/matrix/verdict"
)

// aaSuperblocks is the length of a dedicated A/A: 6 blocks (protocol §3.6).
const aaSuperblocks = matrix.MinBlocks / 2

// maxAA is how often one may be made: once, and one repeat with a new seed (protocol §3.6).
const maxAA = 2

// aaKey is what a dedicated A/A is made once for (protocol §3.6).
type aaKey struct {
	Method  string `json:"method_id"`
	Machine string `json:"machine"`
	Driver  string `json:"driver"`
}

// aaRecord keeps every A/A of a key; the last one counts.
type aaRecord struct {
	aaKey
	Runs []aaRun `json:"runs"`
}

type aaRun struct {
	Run    string `json:"run"`
	Seed   string `json:"seed"`
	Passed bool   `json:"passed"`
	Why    string `json:"why,omitempty"`
}

// machine names the box and its driver as a run recorded them: the card, or where there is none the processor and kernel.
func machine(box matrix.Facts) (name, driver string) {
	value := func(f string) string { return box.Value(f).Or("?") }
	if uuid := box.Value("gpu_uuid").Or(""); uuid != "" {
		return uuid, value("gpu_" + matrix.DeviceFactDriver)
	}
	return value("cpu_model") + " × " + value("cpus"), value("kernel")
}

func aaKeyOf(method string, box matrix.Facts) aaKey {
	k := aaKey{Method: method}
	k.Machine, k.Driver = machine(box)
	return k
}

// aaRequest is a dedicated A/A: one instance under two labels, 6 blocks, one boot, by the method of the runs it is for.
// Without an instance it is the subject.
func (s *Service) aaRequest(q Request) (Request, error) {
	if len(q.Engines) == 0 && s.cfg.Subject != "" {
		q.Engines = []string{s.cfg.Subject}
	}
	if len(q.Engines) != 1 || len(q.Pairs) > 0 {
		field := "spec.engines"
		if len(q.Engines) == 1 {
			field = "spec.pairs"
		}
		return q, About(field, fail(CauseUsage, "", "an A/A measures one instance against itself: name one with --engines, and no pairs"))
	}
	q.special = special{purpose: matrix.PurposeAA, superblocks: aaSuperblocks}
	return q, nil
}

// aaAllowed refuses a third A/A, and a second one where the first passed or the seed is the same: asking until the answer
// pleases is no control.
func (s *Service) aaAllowed(ctx context.Context, plan matrix.Plan) error {
	b, done, err := s.box(ctx, plan.Box, nil)
	if err != nil {
		return err
	}
	defer done()
	key := aaKeyOf(plan.MethodID, b.Facts())
	var r aaRecord
	if _, err := s.find("aa", key, &r); err != nil || len(r.Runs) == 0 {
		return err
	}
	last := r.Runs[len(r.Runs)-1]
	switch {
	case last.Passed:
		return fail(CauseUsage, "", "the A/A of this method on this machine passed already, in run %s", last.Run)
	case len(r.Runs) >= maxAA:
		return fail(CauseWithheld, "find what tells two like arms apart; a driver, method or machine that changed has an A/A of its own",
			"the A/A of this method failed in runs %s and %s, and one repeat is all that is allowed", r.Runs[0].Run, last.Run)
	case slices.ContainsFunc(r.Runs, func(x aaRun) bool { return x.Seed == plan.Seed }):
		return fail(CauseUsage, "leave out --seed", "the repeat of a failed A/A needs a new seed")
	}
	return nil
}

// aaPassed judges a dedicated A/A: it passes if no primary cell says FASTER or SLOWER (protocol §3.6). ok is false where
// some primary cell has fewer than its blocks or shows nothing: such a series is no A/A.
func aaPassed(r matrix.Report) (passed, ok bool, why string) {
	primary := 0
	for _, c := range r.Cells {
		if !c.Metric.Primary || c.ID.Group == "" {
			continue
		}
		primary++
		if c.Verdict > matrix.Inconclusive || c.Blocks < matrix.MinBlocks {
			return false, false, fmt.Sprintf("%s is %s with %d blocks (%s)", c.ID, c.Verdict, c.Blocks, joinCodes(c.Codes()))
		}
		if c.Direction == matrix.DirFaster || c.Direction == matrix.DirSlower {
			why = fmt.Sprintf("%s says %s of two like arms", c.ID, c.Direction)
		}
	}
	if primary == 0 {
		return false, false, "no primary cell"
	}
	return why == "", true, why
}

// wantsAA tells the reader of a plan whose profile rests on a dedicated A/A what the one on record, or its lack, makes of the
// cells (protocol §2.8, §3.6).
func (s *Service) wantsAA(q Request, plan matrix.Plan, box matrix.Facts) ([]string, error) {
	aa, runs, err := s.aaOn(plan, box, nil)
	if err != nil {
		return nil, err
	}
	switch aa {
	case verdict.AAMissing:
		command := fmt.Sprintf("aa --model %s --profile %s", plan.Model, plan.Profile)
		if q.Workload != "" {
			command += " --workload " + q.Workload
		}
		if len(q.Points) > 0 {
			command += " --points " + strings.Join(q.Points, ",")
		}
		return []string{fmt.Sprintf("profile %s rests on a dedicated A/A of its method on this machine and driver, and none is on record: until %s has passed (%d loads), no cell is more than %s (%s)",
			plan.Profile, s.again(command), schedule.Loads(aaSuperblocks, 2), matrix.Provisional, matrix.AAEmbeddedOnly)}, nil
	case verdict.AAFail:
		return []string{fmt.Sprintf("the A/A of this method on this machine failed (%s): every cell will be %s (%s)", strings.Join(runs, ", "), matrix.Withheld, matrix.AAFailed)}, nil
	}
	return nil, nil
}

// fileAA puts a finished A/A on record.
func (s *Service) fileAA(r matrix.Report) error {
	passed, ok, why := aaPassed(r)
	if !ok || r.State != StateComplete {
		return nil
	}
	key := aaKeyOf(r.Plan.MethodID, r.Box)
	rec := aaRecord{aaKey: key}
	if _, err := s.find("aa", key, &rec); err != nil {
		return err
	}
	if slices.ContainsFunc(rec.Runs, func(x aaRun) bool { return x.Run == r.Run }) {
		return nil
	}
	rec.Runs = append(rec.Runs, aaRun{Run: r.Run, Seed: r.Plan.Seed, Passed: passed, Why: why})
	return s.keep("aa", key, rec)
}

// judgeAA is what the caller of an A/A should fail with.
func judgeAA(r matrix.Report) error {
	passed, ok, why := aaPassed(r)
	switch {
	case r.State == StateInterrupted || r.State == StateAborted:
		return fail(CauseInterrupted, "go on with: "+r.Next, "the A/A did not come to its end")
	case !ok:
		return fail(CauseVoid, "run it again; nothing was put on record", "the series is no A/A: %s", why)
	case !passed:
		return fail(CauseWithheld, "find what tells two like arms apart; one repeat with a new seed is allowed", "the A/A failed: %s", why)
	}
	return nil
}

// aaOn is the dedicated A/A that a run is judged by, and its runs; runs limits it to those a report names, nil takes all.
func (s *Service) aaOn(plan matrix.Plan, box matrix.Facts, runs []string) (verdict.AA, []string, error) {
	var r aaRecord
	if _, err := s.find("aa", aaKeyOf(plan.MethodID, box), &r); err != nil {
		return verdict.AAMissing, nil, err
	}
	if runs != nil {
		r.Runs = slices.DeleteFunc(r.Runs, func(x aaRun) bool { return !slices.Contains(runs, x.Run) })
	}
	if len(r.Runs) == 0 {
		return verdict.AAMissing, nil, nil
	}
	var names []string
	for _, x := range r.Runs {
		names = append(names, x.Run)
	}
	if r.Runs[len(r.Runs)-1].Passed {
		return verdict.AAPass, names, nil
	}
	return verdict.AAFail, names, nil
}
