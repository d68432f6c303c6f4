package matrix

// Purposes of a plan; empty: a matrix of cells.
const (
	PurposeAA     = "aa"     // one instance under two labels (protocol §3.6)
	PurposeReload = "reload" // cold loads of one arm, compared with each other (protocol §5)
	PurposeAB     = "ab"     // two builds of one engine
)

// Reload is what a reload experiment found for one arm: whether what a load measures is fixed at load time in more than one
// state (protocol §5).
type Reload struct {
	Run      string       `json:"run"` // where the evidence is
	Arm      string       `json:"arm"`
	ArmKey   string       `json:"arm_key"`
	Print    string       `json:"arm_print"` // of its first load
	Point    string       `json:"point"`
	Metric   string       `json:"metric"`
	Unit     string       `json:"unit"`
	Values   []float64    `json:"values"` // leg values in load order
	Loads    []string     `json:"loads"`  // of the values
	Void     []string     `json:"void,omitempty"`
	Verdict  string       `json:"verdict"` // SINGLE_MODE, MULTI_MODE, UNDECIDED
	Reason   string       `json:"reason"`
	Modes    []float64    `json:"modes,omitempty"` // geometric mean of each state
	Sizes    []int        `json:"sizes,omitempty"` // loads of each
	Spread   Opt[float64] `json:"spread,omitzero"` // max/min over loads
	Median   Opt[float64] `json:"median,omitzero"`
	TrendP   Opt[float64] `json:"trend_p,omitzero"`        // exact two-sided Kendall trend; absent where values tie
	Within   Opt[float64] `json:"within_load_sd,omitzero"` // of ln value over repetitions of one load
	Between  Opt[float64] `json:"between_load_sd,omitzero"`
	MissedTo Opt[float64] `json:"missed_state_up_to,omitzero"` // frequency of a second state that could have been missed
	Text     string       `json:"text"`
	Next     string       `json:"next,omitempty"`
}

// Beside is what a judgement took from outside the run's own evidence: by name, so that it can be judged the same again.
type Beside struct {
	AA      string   `json:"aa,omitempty"`      // pass or fail of the dedicated A/A; empty: none on record
	AARuns  []string `json:"aa_runs,omitempty"` // its runs
	Reloads []string `json:"reloads,omitempty"` // runs of reload experiments
}
