package service

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"enginebroker/matrix"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

// The functions of the convert files carry plain values over the wire: one per message, ToX from a value to its message,
// XOf back where a client needs the value. What is empty or absent is left out of a message; what is unknown is an error,
// never a default.

// Prefixes of resource names.
const (
	RunPrefix    = "runs/"
	EnginePrefix = "engines/"
	ModelPrefix  = "models/"
)

// ResourceID is the last segment of a resource name. Only names of one plain segment pass, so that no name is a path.
func ResourceID(prefix, name string) (string, error) {
	id, ok := strings.CutPrefix(name, prefix)
	if !ok || !runRule.MatchString(id) {
		return "", fail(CauseUsage, "", "%.100q is no name; write %sNAME with letters, digits, '.', '_' and '-', at most 80", name, prefix)
	}
	return id, nil
}

// text is a field that is left out where it is empty.
func text(s string) *string {
	if s == "" {
		return nil
	}
	return new(utf8Of(s))
}

// utf8Of makes foreign text fit for the wire, which takes valid UTF-8 alone.
func utf8Of(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func texts(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = utf8Of(s)
	}
	return out
}

func flag(b bool) *bool {
	if !b {
		return nil
	}
	return new(true)
}

func count[T ~int | ~int64](n T) *int64 { return new(int64(n)) }

func opt[T any](o matrix.Opt[T]) *T {
	if v, ok := o.Get(); ok {
		return new(v)
	}
	return nil
}

func optOf[T any](p *T) matrix.Opt[T] {
	if p == nil {
		return matrix.Opt[T]{}
	}
	return matrix.Some(*p)
}

func each[A, B any](list []A, f func(A) B) []B {
	if len(list) == 0 {
		return nil
	}
	out := make([]B, len(list))
	for i, x := range list {
		out[i] = f(x)
	}
	return out
}

// word pairs a value of the vocabulary with its enum; a pair of tables that both directions use.
type word[V, E comparable] struct {
	value V
	enum  E
}

func enumOf[V, E comparable](table []word[V, E], v V) *E {
	for _, w := range table {
		if w.value == v {
			return new(w.enum)
		}
	}
	return nil // the unspecified value: a reader refuses it
}

func valueOf[V, E comparable](table []word[V, E], e E) (V, error) {
	for _, w := range table {
		if w.enum == e {
			return w.value, nil
		}
	}
	var none V
	return none, fmt.Errorf("unknown %T %v", e, e)
}

var standings = []word[matrix.Standing, brokerv1.Standing]{
	{matrix.Observed, brokerv1.Standing_STANDING_OBSERVED},
	{matrix.Claimed, brokerv1.Standing_STANDING_CLAIMED},
}

var policyKinds = []word[matrix.PolicyKind, brokerv1.PolicyKind]{
	{matrix.Raw, brokerv1.PolicyKind_POLICY_KIND_RAW},
	{matrix.Drafted, brokerv1.PolicyKind_POLICY_KIND_DRAFTED},
}

var statuses = []word[matrix.Status, brokerv1.Status]{
	{matrix.StatusOK, brokerv1.Status_STATUS_OK},
	{matrix.StatusClaimed, brokerv1.Status_STATUS_CLAIMED},
	{matrix.StatusOwed, brokerv1.Status_STATUS_OWED},
	{matrix.StatusRefused, brokerv1.Status_STATUS_REFUSED},
}

// converter collects the first value that the vocabulary does not have.
type converter struct{ err error }

func back[V, E comparable](c *converter, table []word[V, E], e *E) V {
	var none V
	if e == nil {
		return none
	}
	v, err := valueOf(table, *e)
	if err != nil && c.err == nil {
		c.err = fmt.Errorf("the daemon speaks of something this program does not know: %w; use the program of its version", err)
	}
	return v
}

func toFact(f matrix.Fact) *brokerv1.Fact {
	return &brokerv1.Fact{Name: text(f.Name), Value: text(f.Value), Where: text(f.Where), Standing: enumOf(standings, f.Standing)}
}

func (c *converter) fact(f *brokerv1.Fact) matrix.Fact {
	return matrix.Fact{Name: f.GetName(), Value: f.GetValue(), Where: f.GetWhere(), Standing: back(c, standings, f.Standing)}
}

func toPolicy(p matrix.Policy) *brokerv1.Policy {
	out := &brokerv1.Policy{Kind: enumOf(policyKinds, p.Kind)}
	if p.Kind == matrix.Drafted {
		out.Drafter, out.Length = text(p.Drafter), count(p.Length)
	}
	return out
}

func (c *converter) policy(p *brokerv1.Policy) matrix.Policy {
	return matrix.Policy{Kind: back(c, policyKinds, p.GetKind().Enum()), Drafter: p.GetDrafter(), Length: int(p.GetLength())}
}

func toStatement(s matrix.Statement) *brokerv1.Statement {
	return &brokerv1.Statement{Status: enumOf(statuses, s.Status), Why: text(s.Why), Source: text(s.Source), Conditions: texts(s.Conditions)}
}

func (c *converter) statement(s *brokerv1.Statement) matrix.Statement {
	return matrix.Statement{Status: back(c, statuses, s.Status), Why: s.GetWhy(), Source: s.GetSource(), Conditions: s.GetConditions()}
}

func toPair(p matrix.Pair) *brokerv1.Pair { return &brokerv1.Pair{A: text(p.A), B: text(p.B)} }

// ToEngine is the message of an engine.
func ToEngine(e Engine) *brokerv1.Engine {
	out := &brokerv1.Engine{Name: text(EnginePrefix + e.Label), Plugin: text(e.Plugin), Subject: flag(e.Subject), Pin: text(e.Pin), Policy: toPolicy(e.Policy), Problem: text(e.Problem)}
	if e.Problem == "" {
		out.Description = toDescription(e.Description)
	}
	return out
}

// EngineOf is the engine of a message.
func EngineOf(m *brokerv1.Engine) (Engine, error) {
	var c converter
	e := Engine{Label: strings.TrimPrefix(m.GetName(), EnginePrefix), Plugin: m.GetPlugin(), Subject: m.GetSubject(), Pin: m.GetPin(), Problem: m.GetProblem(), Policy: c.policy(m.GetPolicy())}
	if m.Description != nil {
		e.Description = c.description(m.Description)
	}
	return e, c.err
}

func toDescription(d matrix.Description) *brokerv1.Description {
	return &brokerv1.Description{Engine: text(d.Engine), Installed: new(d.Installed), LookedFor: texts(d.LookedFor), Identity: each(d.Identity, toFact),
		Capabilities: each(d.Capabilities, func(x matrix.Capability) *brokerv1.Capability {
			return &brokerv1.Capability{Container: text(x.Container), Quantization: text(x.Quantization), Architectures: texts(x.Architectures), Statement: toStatement(x.Statement)}
		}),
		Refuses: each(d.Refuses, toStatement),
		Settings: each(d.Settings, func(x matrix.Setting) *brokerv1.Setting {
			return &brokerv1.Setting{Name: text(x.Name), Type: text(x.Type), Help: text(x.Help), Required: flag(x.Required), Default: text(x.Default), Values: texts(x.Values)}
		}),
		Simulated: flag(d.Simulated)}
}

func (c *converter) description(d *brokerv1.Description) matrix.Description {
	return matrix.Description{Engine: d.GetEngine(), Installed: d.GetInstalled(), LookedFor: d.GetLookedFor(), Identity: each(d.GetIdentity(), c.fact),
		Capabilities: each(d.GetCapabilities(), func(x *brokerv1.Capability) matrix.Capability {
			return matrix.Capability{Container: x.GetContainer(), Quantization: x.GetQuantization(), Architectures: x.GetArchitectures(), Statement: c.statement(x.GetStatement())}
		}),
		Refuses: each(d.GetRefuses(), c.statement),
		Settings: each(d.GetSettings(), func(x *brokerv1.Setting) matrix.Setting {
			return matrix.Setting{Name: x.GetName(), Type: x.GetType(), Help: x.GetHelp(), Required: x.GetRequired(), Default: x.GetDefault(), Values: x.GetValues()}
		}),
		Simulated: d.GetSimulated()}
}

// ToModel is the message of a model.
func ToModel(m CatalogModel) *brokerv1.Model {
	return &brokerv1.Model{Name: text(ModelPrefix + m.Model.Name), Title: text(m.Model.Title), Artifacts: each(m.Model.Artifacts, toArtifact),
		Preference: m.Model.Preference, Notes: texts(m.Model.Notes), From: text(m.From)}
}

// ModelOf is the model of a message.
func ModelOf(m *brokerv1.Model) (CatalogModel, error) {
	var c converter
	return CatalogModel{From: m.GetFrom(), Model: matrix.Model{Name: strings.TrimPrefix(m.GetName(), ModelPrefix), Title: m.GetTitle(),
		Artifacts: each(m.GetArtifacts(), c.artifact), Preference: m.GetPreference(), Notes: m.GetNotes()}}, c.err
}

func toArtifact(a matrix.Artifact) *brokerv1.Artifact {
	out := &brokerv1.Artifact{Id: text(a.ID), Quantization: text(a.Quantization), Container: text(a.Container), Architecture: text(a.Architecture),
		Repository: text(a.Repository), Revision: text(a.Revision), Path: text(a.Path), Files: each(a.Files, toFile), Bytes: opt(a.Bytes),
		KvDtype: text(a.KVDtype), Converted: flag(a.Converted), ConvertedBy: text(a.ConvertedBy), Note: text(a.Note)}
	for kind, s := range a.Statements {
		if out.Statements == nil {
			out.Statements = map[string]*brokerv1.Statement{}
		}
		out.Statements[kind] = toStatement(s)
	}
	if x, ok := a.Canary.Get(); ok {
		out.Canary = &brokerv1.Canary{Prompt: text(x.Prompt), Answer: text(x.Answer), Tokens: count(x.Tokens)}
	}
	return out
}

func (c *converter) artifact(m *brokerv1.Artifact) matrix.Artifact {
	a := matrix.Artifact{ID: m.GetId(), Quantization: m.GetQuantization(), Container: m.GetContainer(), Architecture: m.GetArchitecture(),
		Repository: m.GetRepository(), Revision: m.GetRevision(), Path: m.GetPath(), Files: each(m.GetFiles(), fileOf), Bytes: optOf(m.Bytes),
		KVDtype: m.GetKvDtype(), Converted: m.GetConverted(), ConvertedBy: m.GetConvertedBy(), Note: m.GetNote()}
	for kind, s := range m.GetStatements() {
		if a.Statements == nil {
			a.Statements = map[string]matrix.Statement{}
		}
		a.Statements[kind] = c.statement(s)
	}
	if x := m.Canary; x != nil {
		a.Canary = matrix.Some(matrix.Canary{Prompt: x.GetPrompt(), Answer: x.GetAnswer(), Tokens: int(x.GetTokens())})
	}
	return a
}

func toFile(f matrix.File) *brokerv1.File {
	return &brokerv1.File{Path: text(f.Path), Bytes: opt(f.Bytes), Sha256: opt(f.SHA256)}
}

func fileOf(f *brokerv1.File) matrix.File {
	return matrix.File{Path: f.GetPath(), Bytes: optOf(f.Bytes), SHA256: optOf(f.Sha256)}
}

// ToInspection is the message of an inspection: the manifest as fields, and all of it as JSON.
func ToInspection(x Inspection) (*brokerv1.InspectArtifactResponse, error) {
	data, err := json.Marshal(x)
	if err != nil {
		return nil, err
	}
	m := x.Manifest
	return &brokerv1.InspectArtifactResponse{Json: data, Manifest: &brokerv1.Manifest{Sha256: text(m.SHA256), Files: each(m.Files, toFile), Container: text(m.Container),
		Architecture: text(m.Architecture), Tensors: count(m.Tensors), Parameters: count(m.Parameters), DtypeBytes: maps.Clone(m.DtypeBytes), Quantization: text(m.Quantization),
		Claimed: each(m.Claimed, toFact), Contradictions: texts(m.Contradicts), Tokenizer: opt(m.Tokenizer), ChatTemplate: opt(m.ChatTemplate), KvDtype: opt(m.KVDtype), Drafter: flag(m.Drafter)}}, nil
}

// InspectionOf is the inspection of a message.
func InspectionOf(m *brokerv1.InspectArtifactResponse) (Inspection, error) {
	var x Inspection
	err := json.Unmarshal(m.GetJson(), &x)
	return x, err
}

// ToAudit is the message of an audit.
func ToAudit(a AuditResult) *brokerv1.AuditRunResponse {
	return &brokerv1.AuditRunResponse{Run: text(RunPrefix + a.Run), Simulated: flag(a.Simulated), Records: count(a.Records), Legs: count(a.Legs), Requests: count(a.Requests), Cells: count(a.Cells),
		Findings: each(a.Findings, func(f AuditFinding) *brokerv1.AuditFinding {
			return &brokerv1.AuditFinding{Kind: text(f.Kind), Where: text(f.Where), Detail: text(f.Detail)}
		})}
}

// AuditOf is the audit of a message.
func AuditOf(m *brokerv1.AuditRunResponse) AuditResult {
	return AuditResult{Run: strings.TrimPrefix(m.GetRun(), RunPrefix), Simulated: m.GetSimulated(), Records: int(m.GetRecords()), Legs: int(m.GetLegs()), Requests: int(m.GetRequests()), Cells: int(m.GetCells()),
		Findings: each(m.GetFindings(), func(f *brokerv1.AuditFinding) AuditFinding {
			return AuditFinding{Kind: f.GetKind(), Where: f.GetWhere(), Detail: f.GetDetail()}
		})}
}
