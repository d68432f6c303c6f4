package matrix

// Direction is what a cell says about its first arm.
type Direction string

const (
	DirNone       Direction = "NONE"
	DirFaster     Direction = "FASTER"
	DirSlower     Direction = "SLOWER"
	DirEquivalent Direction = "EQUIVALENT"
)

// MetricClass decides which gates bound a metric and how wide its equivalence margin is (protocol §1).
type MetricClass string

const (
	ClassIntegral MetricClass = "integral"
	ClassPhase    MetricClass = "phase"
	ClassTail     MetricClass = "tail"
	ClassITL      MetricClass = "itl"
	ClassMemory   MetricClass = "memory"
	ClassEnergy   MetricClass = "energy"
)

// Metric names a number: its unit, denominator and formula are part of it.
type Metric struct {
	Name        string      `json:"name"`    // output_tok_s, tpot_median …
	Formula     string      `json:"formula"` // broker/1
	Unit        string      `json:"unit"`
	Denominator string      `json:"denominator"`
	Class       MetricClass `json:"class"`
	Higher      bool        `json:"higher_is_better"`
	Primary     bool        `json:"primary"`
	Percentile  int         `json:"percentile,omitempty"` // for tails
}

// GateResult is what the gates say about one leg.
type GateResult struct {
	Codes  []LegCode          `json:"codes,omitempty"`
	Cause  Cause              `json:"cause,omitempty"` // resolved over all codes; empty for a valid leg
	Flags  []string           `json:"flags,omitempty"` // metric flags: ITL_COALESCED, no_done …
	Detail map[LegCode]string `json:"detail,omitempty"`
	Absent []string           `json:"absent,omitempty"` // gates that could not be evaluated, as CODE or "CODE: why"

	// Requests of the leg by how they ended; counted where the requests are still at hand.
	OK      int `json:"ok,omitempty"`
	Failed  int `json:"failed,omitempty"` // not_ready included
	Suspect int `json:"suspect,omitempty"`
}

// Valid reports a leg without any code.
func (g GateResult) Valid() bool { return len(g.Codes) == 0 }

// Value is one metric of one leg after folding over repetitions, or why there is none.
type Value struct {
	Metric string       `json:"metric"`
	X      Opt[float64] `json:"x,omitzero"`
	Spread Opt[float64] `json:"spread,omitzero"` // max/min over repetitions
	CV     Opt[float64] `json:"cv_pct,omitzero"` // population CV over repetitions, percent
	N      int          `json:"n"`               // repetitions
	Why    string       `json:"why,omitempty"`   // when absent
}

// ArmSummary is one arm of a cell over one grid.
type ArmSummary struct {
	Label  string       `json:"label"`
	Median Opt[float64] `json:"median,omitzero"`
	Spread Opt[float64] `json:"spread,omitzero"` // max/min over loads
	Loads  int          `json:"loads"`
}

// Interval is an estimate of ln(a/b), direction-normalised, with the ratio it stands for. Where the point ratio may not be
// shown, all but the two ends is absent.
type Interval struct {
	Theta   Opt[float64] `json:"theta,omitzero"`
	Lo      float64      `json:"lo"`
	Hi      float64      `json:"hi"`
	SE      Opt[float64] `json:"se,omitzero"`
	DF      int          `json:"df"`
	Kappa   float64      `json:"kappa"`
	Ratio   Opt[float64] `json:"ratio,omitzero"` // exp(theta): > 1 means the first arm is better
	RatioLo float64      `json:"ratio_lo"`
	RatioHi float64      `json:"ratio_hi"`
	Median  Opt[float64] `json:"median_ratio,omitzero"`
	Min     Opt[float64] `json:"min_ratio,omitzero"`
	Max     Opt[float64] `json:"max_ratio,omitzero"`
	Kind    string       `json:"kind"` // paired_t, lag_adjusted, grid_envelope
}

// Numbers are everything a cell may print when its verdict allows it. Verdict building leaves out what it does not allow:
// a renderer never has to know the rule.
type Numbers struct {
	Interval     Opt[Interval]  `json:"interval,omitzero"`
	ShowRatio    bool           `json:"show_ratio"` // false: the interval may be shown, the point ratio and direction may not
	Arms         []ArmSummary   `json:"arms,omitempty"`
	Grids        [][]ArmSummary `json:"grids,omitempty"`    // per grid, for NOT_REPRODUCED
	Reversed     Opt[int]       `json:"reversed,omitzero"`  // absent for NOT_REPRODUCED
	Detected     Direction      `json:"detected,omitempty"` // an EQUIVALENT cell may carry one
	AAHalfWidth  Opt[float64]   `json:"aa_half_width,omitzero"`
	Margin       float64        `json:"margin"`
	QDir         Opt[float64]   `json:"q_dir,omitzero"`
	QEq          Opt[float64]   `json:"q_eq,omitzero"`
	NoEquivalent bool           `json:"cannot_show_equivalence,omitempty"`
}

// CellReason is a reason with what it is about in this cell and the cheapest way out.
type CellReason struct {
	Code     Reason   `json:"code"`
	Detail   string   `json:"detail,omitempty"`
	Evidence []string `json:"evidence,omitempty"` // leg or load ids, files
	Next     string   `json:"next,omitempty"`     // what would release it, with its cost
}

// CellID names a cell.
type CellID struct {
	Pair   Pair   `json:"pair"`
	Group  string `json:"group"` // artifact|policy; empty for a refused pair
	Point  string `json:"point"`
	Metric string `json:"metric"`
}

func (c CellID) String() string {
	s := c.Pair.A + ":" + c.Pair.B
	for _, x := range []string{c.Group, c.Point, c.Metric} {
		if x != "" {
			s += "/" + x
		}
	}
	return s
}

// Cell is (pair, point, metric) with its verdict. Cells are never merged.
type Cell struct {
	ID        CellID       `json:"id"`
	Metric    Metric       `json:"metric"`
	Verdict   Verdict      `json:"verdict"`
	Reasons   []CellReason `json:"reasons"`
	Direction Direction    `json:"direction"`
	Blocks    int          `json:"blocks"` // valid blocks of the primary grid
	Numbers   Opt[Numbers] `json:"numbers,omitzero"`
	Simulated bool         `json:"simulated,omitempty"`
	Annotated []string     `json:"annotations,omitempty"` // content differences and the like, never judged
	History   []PastCell   `json:"history,omitempty"`
}

// PastCell is an earlier verdict of the same cell and what superseded it.
type PastCell struct {
	Run     string   `json:"run"`
	Verdict Verdict  `json:"verdict"`
	Reasons []Reason `json:"reasons"`
	By      string   `json:"superseded_by"`
}

// Codes lists the reason codes of the cell in order.
func (c Cell) Codes() []Reason {
	out := make([]Reason, len(c.Reasons))
	for i, r := range c.Reasons {
		out[i] = r.Code
	}
	return out
}

// LegSummary is one leg as reports list it.
type LegSummary struct {
	ID      LegID            `json:"id"`
	LoadID  string           `json:"load_id"`
	Gate    GateResult       `json:"gate"`
	Values  map[string]Value `json:"values,omitempty"` // empty for a void leg
	OK      int              `json:"ok"`
	Failed  int              `json:"failed"`
	Suspect int              `json:"suspect"`
	Reused  string           `json:"reused,omitempty"` // time of evidence reused by a resume
}

// Report is a judged run: what every renderer and the API show. It is derived from the ledger alone.
type Report struct {
	Schema     int          `json:"schema"`
	Run        string       `json:"run"`
	Plan       Plan         `json:"plan"`
	PlanSHA256 string       `json:"plan_sha256"`
	State      string       `json:"state"` // complete, interrupted, pending_grid, aborted
	Next       string       `json:"next,omitempty"`
	Simulated  bool         `json:"simulated"`
	External   bool         `json:"external,omitempty"`
	Imported   []Imported   `json:"imported,omitempty"` // of an EXTERNAL run, which has nothing else
	Cells      []Cell       `json:"cells"`
	Legs       []LegSummary `json:"legs"`
	Loads      []LoadRecord `json:"loads,omitempty"`
	Box        Facts        `json:"box,omitempty"`
	Absent     []string     `json:"absent_gates,omitempty"` // gates the box or profile could not evaluate
	Grids      []GridInfo   `json:"grids"`
	Reloads    []Reload     `json:"reloads,omitempty"` // of a reload experiment, which has no cells
	Beside     Beside       `json:"beside,omitzero"`   // evidence of other runs that the judgement rests on
}

// GridInfo is one grid of a run.
type GridInfo struct {
	Index  int    `json:"index"`
	BootID string `json:"boot_id"`
	Seed   string `json:"seed"`
	Done   bool   `json:"done"` // completed its planned superblocks
	// CeilingMHz is the highest SM clock of the busy seconds of its legs: a cap set at boot shows in no event reason, and
	// grids of different ceilings do not merge (protocol §4.7). Absent where no clock was read.
	CeilingMHz Opt[int64] `json:"clock_ceiling_mhz,omitzero"`
}
