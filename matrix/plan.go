package matrix

import (
	"slices"
	"time"
)

// Point is one workload point. Every field is part of the method id.
type Point struct {
	ID           string        `json:"id"`       // c8, or a name of the workload's own
	Workload     string        `json:"workload"` // serve-low, chat-short …
	Endpoint     string        `json:"endpoint"` // completions or chat
	PromptTokens int           `json:"prompt_tokens"`
	OutputTokens int           `json:"output_tokens"` // requested, and required where IgnoreEOS
	IgnoreEOS    bool          `json:"ignore_eos"`
	Concurrency  int           `json:"concurrency"`
	Rate         Rate          `json:"rate,omitzero"` // zero: closed loop
	Requests     int           `json:"requests"`      // per repetition
	Warmup       int           `json:"warmup"`        // untimed requests before the first repetition
	SharedPrefix int           `json:"shared_prefix,omitempty"`
	IdleLimit    time.Duration `json:"idle_limit_ns"`  // no byte for this long: hang
	TotalLimit   time.Duration `json:"total_limit_ns"` // one request may take at most this long
	Seed         int64         `json:"seed"`           // sampling seed sent to the engine
}

// Rate is an open-loop arrival process. PerMinute is an integer so that it can stand in an identity.
type Rate struct {
	Process   string `json:"process,omitempty"` // poisson or constant
	PerMinute int    `json:"per_minute,omitempty"`
}

// IsZero reports a closed loop.
func (r Rate) IsZero() bool { return r.PerMinute == 0 }

// Method is everything that defines the measurement (protocol §8). Its digest is the method id; different id, not comparable.
type Method struct {
	Protocol     int               `json:"protocol"`
	Client       int               `json:"client"`  // version of the timed client
	Formula      string            `json:"formula"` // broker/1
	GateTable    int               `json:"gate_table"`
	Box          string            `json:"box"`     // box profile
	Profile      string            `json:"profile"` // run profile
	Points       []Point           `json:"points"`
	Corpus       string            `json:"corpus"` // sha256 of the prompt corpus, or "none: text prompts" said so
	Repetitions  int               `json:"repetitions"`
	WarmupRecipe string            `json:"warmup_recipe"`
	Fold         string            `json:"fold"`
	Cache        string            `json:"cache"` // prefix cache policy
	PageCache    string            `json:"page_cache"`
	Residency    string            `json:"residency"` // alternating
	Schedule     string            `json:"schedule"`
	PinState     string            `json:"pin_state"` // clocks: pinned, unpinned, none
	SamplerHz    int               `json:"sampler_hz"`
	Margins      map[string]string `json:"margins"` // equivalence margin per metric class, as decimal text
	Primary      []string          `json:"primary"` // primary metrics
	Sampling     map[string]string `json:"sampling"`
	ChatTemplate string            `json:"chat_template,omitempty"`
}

// ID returns the method id.
func (m Method) ID() (string, error) { return Digest(m) }

// Limits is what the workload needs of a server.
type Limits struct {
	ContextTokens int `json:"context_tokens"` // per request: prompt + output + margin
	Concurrency   int `json:"concurrency"`
	KVTokens      int `json:"kv_tokens"`
}

// Arm is engine × artifact × policy × launch recipe under a label. Key is known before anything runs.
type Arm struct {
	Label        string            `json:"label"` // unique in its group; orders pairs
	Instance     string            `json:"instance"`
	Engine       string            `json:"engine"` // kind
	Artifact     string            `json:"artifact"`
	Policy       Policy            `json:"policy"`
	Pin          string            `json:"pin,omitempty"` // name of the declared pin, empty: none declared
	Subject      bool              `json:"subject,omitempty"`
	Settings     map[string]string `json:"settings,omitempty"` // declared and normalised; never ports, paths of logs
	Limits       Limits            `json:"limits"`
	ComputeDtype string            `json:"compute_dtype,omitempty"`
	Compares     []string          `json:"compares,omitempty"` // facts declared as the thing compared: compute_dtype
	Cache        string            `json:"cache"`
	Status       Status            `json:"status"` // ok or claimed
	Simulated    bool              `json:"simulated,omitempty"`
	Attached     bool              `json:"attached,omitempty"`
	Key          string            `json:"key"` // arm_key
}

// ArmKey returns the digest of what is declared of an arm. Status is left out: a preflight does not make another arm.
func (a Arm) ArmKey() (string, error) {
	a.Key, a.Status = "", ""
	return Digest(a)
}

// Pair is two arm labels of one group, A < B.
type Pair struct {
	A string `json:"a"`
	B string `json:"b"`
}

// NewPair orders two labels.
func NewPair(x, y string) Pair {
	if y < x {
		x, y = y, x
	}
	return Pair{A: x, B: y}
}

// Superblock is one lead-in and two blocks in mirrored order, by arm label.
type Superblock struct {
	Index    int      `json:"index"` // within its group
	LeadIn   string   `json:"lead_in"`
	Forward  []string `json:"forward"`
	Backward []string `json:"backward"`
}

// Group is a set of arms with one artifact, one policy and one schedule.
type Group struct {
	ID          string       `json:"id"` // artifact|policy
	Artifact    string       `json:"artifact"`
	Policy      Policy       `json:"policy"`
	Arms        []Arm        `json:"arms"`
	Pairs       []Pair       `json:"pairs"`
	Superblocks []Superblock `json:"superblocks"`
}

// Arm finds an arm of the group by its label.
func (g Group) Arm(label string) (Arm, bool) {
	for _, a := range g.Arms {
		if a.Label == label {
			return a, true
		}
	}
	return Arm{}, false
}

// Agreement is the one artifact that both sides of a pair open unchanged.
type Agreement struct {
	Pair     Pair              `json:"pair"`
	Artifact string            `json:"artifact"`
	Policy   Policy            `json:"policy"`
	Sides    map[string]Status `json:"sides"` // by label
}

// Refusal says why a pair has no cell, with both sides in it and the fix.
type Refusal struct {
	Pair   Pair        `json:"pair"`
	Reason Reason      `json:"reason"`
	Detail string      `json:"detail"`
	Sides  []OfferSide `json:"sides"` // in the order of Pair
	Fix    string      `json:"fix"`
}

// OfferSide is one side of a refusal: what it opens, what it does not and why.
type OfferSide struct {
	Label  string  `json:"label"`
	Engine string  `json:"engine"`
	Opens  []Offer `json:"opens"`
	Lacks  []Offer `json:"lacks"`
}

// Offer is one artifact as one side sees it.
type Offer struct {
	Artifact string `json:"artifact"`
	Policy   Policy `json:"policy"`
	Statement
}

// Cost is what a plan asks for before anything starts. Estimates carry where they come from.
type Cost struct {
	Loads    int           `json:"loads"`
	LeadIns  int           `json:"lead_ins"`
	Legs     int           `json:"legs"`
	Requests int           `json:"requests"`
	Estimate time.Duration `json:"estimate_ns"`
	Basis    string        `json:"basis"` // from where the per-load and per-leg times come
}

// LeftOut is what a budget trimmed from a plan, openly.
type LeftOut struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// PlanSchema is the version of the shape of a plan, and of the records that refer to it.
const PlanSchema = 1

// Plan is what will be measured. It holds no time, host or path: equal input and seed give equal bytes.
type Plan struct {
	Schema     int               `json:"schema"`
	Purpose    string            `json:"purpose,omitempty"` // empty: a matrix of cells; else one of the purposes
	Model      string            `json:"model"`
	Subject    string            `json:"subject"`
	Profile    string            `json:"profile"`
	Box        string            `json:"box"`
	Seed       string            `json:"seed"` // decimal uint64
	Grids      int               `json:"grids"`
	Method     Method            `json:"method"`
	MethodID   string            `json:"method_id"`
	Groups     []Group           `json:"groups"`
	Manifests  map[string]string `json:"manifests,omitempty"` // artifact id → manifest sha256, of local artifacts
	Agreements []Agreement       `json:"agreements"`
	Refusals   []Refusal         `json:"refusals"`
	LeftOut    []LeftOut         `json:"left_out,omitempty"`
	Absent     map[string]string `json:"absent,omitempty"`  // instances that were asked for and cannot take part, with why
	Ungated    map[string]string `json:"ungated,omitempty"` // arm key → why the arm's last gate was not passed
	Cost       Cost              `json:"cost"`
}

// Simulated reports that programs which play an engine take part.
func (p Plan) Simulated() bool {
	return slices.ContainsFunc(p.Groups, func(g Group) bool {
		return slices.ContainsFunc(g.Arms, func(a Arm) bool { return a.Simulated })
	})
}

// Slot is one load of a plan in execution order.
type Slot struct {
	Group      int    `json:"group"`
	Superblock int    `json:"superblock"` // within the group
	Block      int    `json:"block"`      // 2j forward, 2j+1 backward; -1 for a lead-in
	Position   int    `json:"position"`   // within the block
	Arm        string `json:"arm"`
	LeadIn     bool   `json:"lead_in,omitempty"`
}

// Slots lists the loads of one superblock in order: lead-in, forward, backward. Superblocks of a reload experiment have no
// backward row and, after the first, no lead-in.
func (s Superblock) Slots(group int) []Slot {
	var out []Slot
	if s.LeadIn != "" {
		out = append(out, Slot{Group: group, Superblock: s.Index, Block: -1, Arm: s.LeadIn, LeadIn: true})
	}
	for i, row := range [][]string{s.Forward, s.Backward} {
		for p, arm := range row {
			out = append(out, Slot{Group: group, Superblock: s.Index, Block: 2*s.Index + i, Position: p, Arm: arm})
		}
	}
	return out
}

// Order lists the superblocks of the plan round-robin over groups, as (group, superblock) pairs.
func (p Plan) Order() [][2]int {
	var out [][2]int
	for j := 0; ; j++ {
		some := false
		for g := range p.Groups {
			if j < len(p.Groups[g].Superblocks) {
				out, some = append(out, [2]int{g, j}), true
			}
		}
		if !some {
			return out
		}
	}
}
