package verdict

import (
	"enginebroker/matrix"
	"enginebroker/matrix/gates"
	"enginebroker/matrix/stats"
)

// Input is everything a judgement depends on. The order of loads and legs does not matter; their Seq does.
type Input struct {
	Plan    matrix.Plan
	Metrics []matrix.Metric
	Profile gates.Profile
	Grids   []Grid
	AA      AA // of this method id; the embedded A/A is found in the legs
	Holds   []Hold
	Reloads []Reload
	Redone  []Redone // superblocks that were run for another one, in the order of the record
}

// Grid is the evidence of one boot.
type Grid struct {
	Info   matrix.GridInfo
	Target map[string]int // superblocks by group id, extensions included; a group that is missing has its planned ones
	Loads  []matrix.LoadRecord
	Legs   []Leg
}

// Leg is one leg, scored or lead-in, with what gates.Leg says of it and its folded values by metric name.
type Leg struct {
	Record matrix.LegRecord
	Gate   matrix.GateResult
	Values map[string]matrix.Value
}

// Hold is an operator's reason not to publish cells. Empty fields match anything.
type Hold struct {
	Pair   matrix.Pair
	Group  string
	Point  string
	Metric string
	Why    string
}

func (h Hold) matches(id matrix.CellID) bool {
	return (h.Pair == matrix.Pair{} || h.Pair == id.Pair) && (h.Group == "" || h.Group == id.Group) &&
		(h.Point == "" || h.Point == id.Point) && (h.Metric == "" || h.Metric == id.Metric)
}

// Reload is the result of a reload experiment on one arm by the same method class (protocol §5).
type Reload struct {
	Arm    string
	Result stats.Reloaded
	ID     string // where the evidence is
}

// Rerun is a superblock that the environment voided and that has not been replaced yet.
type Rerun struct {
	Group      int // index in the plan
	Superblock int
	Why        string
}

// Result is a judged run.
type Result struct {
	Cells  []matrix.Cell       // every pair × point × metric in plan order, but what Absent lists, then one per refusal
	Legs   []matrix.LegSummary // in execution order; values only where some cell may show them
	Absent []string            // gates that some leg could not be judged by, and metrics that nothing here could measure, with why; sorted
	// Rerun lists what the last grid still has to run again, in order, within the allowance: one fresh draw for each.
	Rerun []Rerun
	// Extend lists the groups (by index) whose primary cells are still undecided and that may have one superblock more
	// (protocol §3.7). It is empty while Rerun is not.
	Extend []int
	// EngineVoids lists what an engine's failure withholds and no operator re-run has released, one entry per pair, point and
	// grid.
	EngineVoids []EngineVoid
	Simulated   bool
}

// outputRate is the metric of the terminal control and of the load-state watch (protocol §2.7, §3.6).
const outputRate = "output_tok_s"
