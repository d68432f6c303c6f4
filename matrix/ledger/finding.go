package ledger

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Code names what is wrong with evidence.
type Code string

const (
	PlanMissing   Code = "plan_missing"   // no plan.json, or one that cannot be read
	PlanEdited    Code = "plan_edited"    // plan.json is not the one the ledger was written for
	LedgerMissing Code = "ledger_missing" // no ledger.jsonl
	HeadMissing   Code = "head_missing"   // no ledger.head, or one that cannot be read
	TornLine      Code = "torn_line"      // the last line ends in the middle
	SetAside      Code = "set_aside"      // what was left of a torn line lies in a file of its own
	EditedRecord  Code = "edited_record"  // a line does not match its own sum
	BadRecord     Code = "bad_record"     // a line that is no record
	BrokenChain   Code = "broken_chain"   // a record does not follow the one before it
	LedgerCut     Code = "ledger_cut"     // the ledger ends before its head: whole records are gone
	FileMissing   Code = "file_missing"   //
	FileTruncated Code = "file_truncated" // shorter than recorded
	FileEdited    Code = "file_edited"    // another content than recorded
	FileSwapped   Code = "file_swapped"   // holds what was recorded for another file
	OrphanLeg     Code = "orphan_leg"     // a leg's directory without a record: the leg in flight when the run died
)

// Finding is one thing wrong with the evidence of a run.
type Finding struct {
	Code   Code   `json:"code"`
	Path   string `json:"path"`          // relative to the run's directory
	Seq    int    `json:"seq,omitempty"` // record concerned
	Detail string `json:"detail"`
	Lost   string `json:"lost"` // what cannot be used because of it
}

func (f Finding) String() string {
	s := string(f.Code) + ": " + f.Path
	if f.Seq > 0 {
		s += fmt.Sprintf(" (record %d)", f.Seq)
	}
	return s + ": " + f.Detail + "; lost: " + f.Lost
}

// Findings is what a check of a run found, in the order of the ledger. Empty means that everything verifies.
type Findings []Finding

// mostTold bounds the findings of one error. Verify lists all of them.
const mostTold = 8

// Err returns the first findings as one error, with how many more there are; nil where there are none.
func (f Findings) Err() error {
	if len(f) == 0 {
		return nil
	}
	told := f[:min(mostTold, len(f))]
	lines := make([]string, len(told))
	for i, x := range told {
		lines[i] = x.String()
	}
	if more := len(f) - len(told); more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more findings", more))
	}
	return errors.New(strings.Join(lines, "\n"))
}

// Has reports whether one of the codes was found.
func (f Findings) Has(codes ...Code) bool {
	return slices.ContainsFunc(f, func(x Finding) bool { return slices.Contains(codes, x.Code) })
}

// Without returns the findings of other codes. TornLine, SetAside and OrphanLeg are the marks of a crash and lose at most
// the leg in flight; all others mean that evidence was touched.
func (f Findings) Without(codes ...Code) Findings {
	return slices.DeleteFunc(slices.Clone(f), func(x Finding) bool { return slices.Contains(codes, x.Code) })
}
