package gates

import (
	"fmt"
	"slices"

	"enginebroker/matrix"
)

// loadWide are the codes that void every leg of their load (protocol §1, leg).
var loadWide = []matrix.LegCode{matrix.IdentityChanged, matrix.CanaryFailedCode, matrix.BufferedStream}

// Series adds to the results of single legs what only the rest of the run can tell (protocol §4.1): the method id of the
// plan, the print of the arm's first load, the load's first canary, and the codes that void a whole load. legs and results
// have one order, which need not be that of execution; new results come back in it.
func Series(methodID string, loads []matrix.LoadRecord, legs []matrix.LegRecord, results []matrix.GateResult) []matrix.GateResult {
	out := slices.Clone(results)
	prints := firstPrints(loads, legs)
	canary := map[string]float64{}
	for _, l := range loads {
		for _, c := range l.Canaries {
			if rate, ok := c.Rate.Get(); ok && rate > 0 {
				canary[l.ID] = rate
				break
			}
		}
	}
	for i, rec := range legs {
		if rec.MethodID != methodID {
			out[i] = Add(out[i], matrix.MethodChanged, fmt.Sprintf("the leg was measured by method %s, the plan's is %s", rec.MethodID, methodID))
		}
		// A leg that never began shows no print, and no other one.
		if first := prints[armOf(rec)].print; rec.ArmPrint != first && rec.ArmPrint != "" {
			out[i] = Add(out[i], matrix.IdentityChanged, fmt.Sprintf("arm print %s, the arm's first load had %s", rec.ArmPrint, first))
		}
		for _, c := range rec.Canaries {
			rate, ok := c.Rate.Get()
			if first := canary[rec.LoadID]; ok && first > 0 && rate < stepFactor*first {
				out[i] = Add(out[i], matrix.LoadStep, fmt.Sprintf("canary %s ran at %.0f %% of the load's first", c.When, 100*rate/first))
			}
		}
	}
	wide := map[string]map[matrix.LegCode]string{} // by load
	for i, rec := range legs {
		for _, code := range Telling(out[i].Codes) {
			if slices.Contains(loadWide, code) {
				if wide[rec.LoadID] == nil {
					wide[rec.LoadID] = map[matrix.LegCode]string{}
				}
				// The first point of the load by name, so that the detail does not depend on the order of the input.
				d := fmt.Sprintf("at point %s: %s", rec.ID.Point, out[i].Detail[code])
				if old, ok := wide[rec.LoadID][code]; !ok || d < old {
					wide[rec.LoadID][code] = d
				}
			}
		}
	}
	for i, rec := range legs {
		for _, code := range loadWide {
			if d, ok := wide[rec.LoadID][code]; ok && !slices.Contains(out[i].Codes, code) {
				out[i] = Add(out[i], code, "the whole load is void: "+d)
			}
		}
	}
	return out
}

type arm struct{ group, label string }

func armOf(rec matrix.LegRecord) arm { return arm{rec.ID.Group, rec.ID.Arm} }

type printed struct {
	seq   int
	print string
}

// firstPrints finds the print that each arm showed at its first load.
func firstPrints(loads []matrix.LoadRecord, legs []matrix.LegRecord) map[arm]printed {
	first := map[arm]printed{}
	note := func(a arm, seq int, print string) {
		if old, ok := first[a]; print != "" && (!ok || seq < old.seq) {
			first[a] = printed{seq, print}
		}
	}
	seqs := map[string]int{}
	for _, l := range loads {
		seqs[l.ID] = l.Seq
		if r, ok := l.Ready.Get(); ok {
			note(arm{l.Group, l.Slot.Arm}, l.Seq, r.Print)
		}
	}
	for _, rec := range legs {
		if _, known := seqs[rec.LoadID]; !known { // a leg whose load record is lost stands for it
			note(armOf(rec), rec.Seq, rec.ArmPrint)
		}
	}
	for _, rec := range legs {
		if _, ok := first[armOf(rec)]; !ok {
			note(armOf(rec), rec.Seq, rec.ArmPrint)
		}
	}
	return first
}
