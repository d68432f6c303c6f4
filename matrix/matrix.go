// Package matrix is the vocabulary of a comparison: the plain values that every stage hands to the next.
//
// The way of the data, one direction only, each arrow handing on one named type:
//
//  1. flags, broker.yaml and catalog   → Model: which artifacts of a model exist
//  2. plugins found and described      → Description: what an engine is, opens and refuses
//  3. files read                       → Manifest: what the files really hold
//  4. negotiate                        → Agreement or Refusal, per pair
//  5. schedule                         → Plan: groups, superblocks, loads, legs, from a seed
//  6. run (stopwatch, box)             → LoadRecord and LegRecord, written to the ledger before anything is judged
//  7. metrics, gates, stats, verdict   → Cell: a verdict with all its reasons, and numbers only where it allows them
//  8. report                           → text; it computes nothing
//
// The package imports the standard library alone and owns no clock, network or process. Words are those of the
// measurement protocol (docs/protocol.md): engine, artifact, policy, arm, pair, group, point, load, repetition, leg,
// lead-in, block, superblock, grid, cell, method, verdict, reason. Absent is not zero: what may be missing is an Opt.
package matrix

import "strings"

// Status says how well it is known that an engine opens an artifact unchanged (protocol §2.1).
type Status string

const (
	// StatusOK means a load preflight of this artifact on this build is on record.
	StatusOK Status = "ok"
	// StatusClaimed means a catalog or a capability says so; every cell of it carries NOT_PREFLIGHTED.
	StatusClaimed Status = "claimed"
	// StatusOwed means it is known not to work yet; not a candidate.
	StatusOwed Status = "owed"
	// StatusRefused means the engine cannot open it.
	StatusRefused Status = "refused"
)

// Runs reports whether an arm of this status may be scheduled.
func (s Status) Runs() bool { return s == StatusOK || s == StatusClaimed }

// Standing says whether a fact was read from what runs or only stated by somebody.
type Standing string

const (
	Observed Standing = "observed"
	Claimed  Standing = "claimed"
)

// Fact is one piece of identity or state: a value, where it was read, and its standing.
type Fact struct {
	Name     string   `json:"name"`
	Value    string   `json:"value"`
	Where    string   `json:"where"`
	Standing Standing `json:"standing"`
}

// Facts is a list of facts; names may repeat (several libraries), the first one wins in Get.
type Facts []Fact

// Get returns the first fact of that name.
func (f Facts) Get(name string) (Fact, bool) {
	for _, x := range f {
		if x.Name == name {
			return x, true
		}
	}
	return Fact{}, false
}

// Value returns the value of the first fact of that name, absent where there is none.
func (f Facts) Value(name string) Opt[string] {
	if x, ok := f.Get(name); ok {
		return Some(x.Value)
	}
	return Opt[string]{}
}

// Names of facts that cell gates and reports look up. An adapter uses exactly these where it knows the fact.
const (
	FactEngine          = "engine"           // kind: vllm, sglang, llamacpp, vllmcpp, simulated
	FactVersion         = "version"          // as the running server says it
	FactCommit          = "commit"           //
	FactBuild           = "build"            // build fingerprint: sha256 over every loaded binary and library
	FactBinary          = "binary"           // resolved real path of the executable
	FactBackend         = "backend"          // compute backend library or kernel family in use
	FactQuantization    = "quantization"     // resolved method in effect, e.g. modelopt_mixed
	FactComputeDtype    = "compute_dtype"    // bfloat16, float32 …
	FactActivationDtype = "activation_dtype" //
	FactKVDtype         = "kv_dtype"         //
	FactPrefixCache     = "prefix_cache"     // "off" or "on", as read back
	FactSpeculation     = "speculation"      // "none" or the method in effect
	FactContextTokens   = "context_tokens"   // usable context per request
	FactConcurrency     = "concurrency"      // requests that can run at once
	FactModelPath       = "model_path"       // what the server says it loaded
	FactWeightsProof    = "weights_proof"    // rung of the ladder: mappings, open_files, bytes_read, argv
	FactChatTemplate    = "chat_template"    // sha256 of the template in force
	FactImage           = "image"            // container image digest
	FactSleepOnIdle     = "sleep_on_idle"    //
)

// PolicyKind separates raw decoding from decoding with a drafter; they never meet in one ratio.
type PolicyKind string

const (
	Raw     PolicyKind = "raw"
	Drafted PolicyKind = "drafted"
)

// Policy is the decoding policy of an arm, declared before the run.
type Policy struct {
	Kind    PolicyKind `json:"kind"`
	Drafter string     `json:"drafter,omitempty"` // drafter artifact or method, for Drafted
	Length  int        `json:"length,omitempty"`  // drafted tokens per step, for Drafted
}

func (p Policy) String() string {
	if p.Kind != Drafted {
		return string(Raw)
	}
	return string(Drafted) + "(" + p.Drafter + "," + itoa(p.Length) + ")"
}

// Statement is what one side says about opening one artifact, with the source of the statement.
type Statement struct {
	Status     Status   `json:"status"`
	Why        string   `json:"why,omitempty"`
	Source     string   `json:"source,omitempty"`
	Conditions []string `json:"conditions,omitempty"`
}

// Artifact is one immutable set of weight files of a model, as a catalog names it.
type Artifact struct {
	ID           string     `json:"id"`           // model@quantization, unique in a catalog: qwen3.8-27b@nvfp4
	Quantization string     `json:"quantization"` // the label users force with --quant: bf16, nvfp4, q4_k_m
	Container    string     `json:"container"`    // safetensors, gguf, exl3
	Architecture string     `json:"architecture,omitempty"`
	Repository   string     `json:"repository,omitempty"`
	Revision     string     `json:"revision,omitempty"`
	Path         string     `json:"path,omitempty"` // local path; empty where only a repository is known
	Files        []File     `json:"files,omitempty"`
	Bytes        Opt[int64] `json:"bytes,omitzero"` // of all files, as published
	KVDtype      string     `json:"kv_dtype,omitempty"`
	Converted    bool       `json:"converted,omitempty"` // re-quantised or repacked from another artifact
	ConvertedBy  string     `json:"converted_by,omitempty"`
	Note         string     `json:"note,omitempty"`
	// Statements holds what is known per engine kind (not per instance); an engine without a row is judged by its capabilities.
	Statements map[string]Statement `json:"statements,omitempty"`
	Canary     Opt[Canary]          `json:"canary,omitzero"`
	Manifest   Opt[Manifest]        `json:"manifest,omitzero"`
}

// File is one file of an artifact.
type File struct {
	Path   string      `json:"path"` // relative to the artifact's root
	Bytes  Opt[int64]  `json:"bytes,omitzero"`
	SHA256 Opt[string] `json:"sha256,omitzero"`
}

// Canary is a question whose answer shows that the weights were understood: a greedy generation must contain Answer.
// An artifact without one is checked by greedy self-match.
type Canary struct {
	Prompt string `json:"prompt"`
	Answer string `json:"answer"`
	Tokens int    `json:"tokens"`
}

// Manifest is what the files of an artifact really hold, read from their headers, and the hash of every file.
type Manifest struct {
	SHA256       string           `json:"sha256"` // over the canonical list of (path, bytes, sha256)
	Files        []File           `json:"files"`
	Container    string           `json:"container"`
	Architecture string           `json:"architecture"`
	Tensors      int64            `json:"tensors"`
	Parameters   int64            `json:"parameters"`
	DtypeBytes   map[string]int64 `json:"dtype_bytes"`       // tensor bytes by stored type
	Quantization string           `json:"quantization"`      // from the tensors
	Claimed      Facts            `json:"claimed,omitempty"` // file_type, config, repository name
	Contradicts  []string         `json:"contradicts,omitempty"`
	Tokenizer    Opt[string]      `json:"tokenizer,omitzero"`     // fingerprint, sha256
	ChatTemplate Opt[string]      `json:"chat_template,omitzero"` // sha256
	KVDtype      Opt[string]      `json:"kv_dtype,omitzero"`
	Drafter      bool             `json:"drafter,omitempty"` // carries MTP or other drafter layers
}

// Model is a catalog entry.
type Model struct {
	Name       string     `json:"name"`
	Title      string     `json:"title,omitempty"`
	Artifacts  []Artifact `json:"artifacts"`
	Preference []string   `json:"preference"` // artifact IDs, best first; negotiation takes the first one common to a pair
	Notes      []string   `json:"notes,omitempty"`
}

// Artifact finds an artifact by ID or by quantization label.
func (m Model) Artifact(name string) (Artifact, bool) {
	for _, a := range m.Artifacts {
		if a.ID == name || strings.EqualFold(a.Quantization, name) {
			return a, true
		}
	}
	return Artifact{}, false
}

// Capability is one line of what an engine build opens.
type Capability struct {
	Container     string   `json:"container"`
	Quantization  string   `json:"quantization"`            // label, or "*" for any of the container
	Architectures []string `json:"architectures,omitempty"` // empty: any
	Statement
}

// Setting is one field of an instance's settings, as the plugin's own schema names it.
type Setting struct {
	Name     string   `json:"name"`
	Type     string   `json:"type"` // string, path, int, duration, bool, list, map
	Help     string   `json:"help"`
	Required bool     `json:"required,omitempty"`
	Default  string   `json:"default,omitempty"`
	Values   []string `json:"values,omitempty"`
}

// Description is an engine's answer to "who are you, from where did you read that, what do you open, what do you refuse".
// It is read from files on disk, without starting the engine. Not installed is an answer, not an error.
type Description struct {
	Engine       string       `json:"engine"` // kind
	Installed    bool         `json:"installed"`
	LookedFor    []string     `json:"looked_for,omitempty"` // what was looked for and where, when not installed
	Identity     Facts        `json:"identity,omitempty"`
	Capabilities []Capability `json:"capabilities,omitempty"`
	Refuses      []Statement  `json:"refuses,omitempty"` // launch forms it refuses: router mode, several hosts
	Settings     []Setting    `json:"settings,omitempty"`
	Simulated    bool         `json:"simulated,omitempty"`
}
