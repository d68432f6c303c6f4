package plugin

import (
	"google.golang.org/protobuf/types/known/durationpb"

	"enginebroker/matrix"
	enginev1 "enginebroker/proto/gen/engine/v1"
)

func (e enc) policy(p matrix.Policy) *enginev1.Policy {
	return &enginev1.Policy{Kind: policyKinds.encode(e, "decoding", p.Kind), Drafter: text(p.Drafter), Length: number(p.Length)}
}

func (d dec) policy(m *enginev1.Policy) matrix.Policy {
	m = given(m)
	return matrix.Policy{Kind: policyKinds.decode(d, "decoding", m.Kind), Drafter: m.GetDrafter(), Length: toInt(m.GetLength())}
}

func (e enc) limits(l matrix.Limits) *enginev1.Limits {
	return &enginev1.Limits{ContextTokens: number(l.ContextTokens), Concurrency: number(l.Concurrency), KvTokens: number(l.KVTokens)}
}

func (d dec) limits(m *enginev1.Limits) matrix.Limits {
	return matrix.Limits{ContextTokens: toInt(m.GetContextTokens()), Concurrency: toInt(m.GetConcurrency()), KVTokens: toInt(m.GetKvTokens())}
}

func (e enc) file(f matrix.File) *enginev1.File {
	return &enginev1.File{Path: text(f.Path), Bytes: optional(f.Bytes, same), Sha256: optional(f.SHA256, same)}
}

func (d dec) file(m *enginev1.File) matrix.File {
	m = given(m)
	return matrix.File{Path: m.GetPath(), Bytes: fromOptional(m.Bytes, same), SHA256: fromOptional(m.Sha256, same)}
}

func (e enc) canary(c matrix.Canary) *enginev1.Canary {
	return &enginev1.Canary{Prompt: text(c.Prompt), Answer: text(c.Answer), Tokens: number(c.Tokens)}
}

func (d dec) canary(m *enginev1.Canary) matrix.Canary {
	return matrix.Canary{Prompt: m.GetPrompt(), Answer: m.GetAnswer(), Tokens: toInt(m.GetTokens())}
}

func (e enc) manifest(x matrix.Manifest) *enginev1.Manifest {
	return &enginev1.Manifest{
		Sha256:       text(x.SHA256),
		Files:        each(x.Files, e.file),
		Container:    text(x.Container),
		Architecture: text(x.Architecture),
		Tensors:      new(x.Tensors),
		Parameters:   new(x.Parameters),
		DtypeBytes:   x.DtypeBytes,
		Quantization: text(x.Quantization),
		Claimed:      each(x.Claimed, e.fact),
		Contradicts:  x.Contradicts,
		Tokenizer:    optional(x.Tokenizer, same),
		ChatTemplate: optional(x.ChatTemplate, same),
		KvDtype:      optional(x.KVDtype, same),
		Drafter:      new(x.Drafter),
	}
}

func (d dec) manifest(m *enginev1.Manifest) matrix.Manifest {
	m = given(m)
	return matrix.Manifest{
		SHA256:       m.GetSha256(),
		Files:        each(m.GetFiles(), d.file),
		Container:    m.GetContainer(),
		Architecture: m.GetArchitecture(),
		Tensors:      m.GetTensors(),
		Parameters:   m.GetParameters(),
		DtypeBytes:   m.GetDtypeBytes(),
		Quantization: m.GetQuantization(),
		Claimed:      each(m.GetClaimed(), d.fact),
		Contradicts:  m.GetContradicts(),
		Tokenizer:    fromOptional(m.Tokenizer, same),
		ChatTemplate: fromOptional(m.ChatTemplate, same),
		KVDtype:      fromOptional(m.KvDtype, same),
		Drafter:      m.GetDrafter(),
	}
}

func (e enc) artifact(a matrix.Artifact) *enginev1.Artifact {
	return &enginev1.Artifact{
		Id:           text(a.ID),
		Quantization: text(a.Quantization),
		Container:    text(a.Container),
		Architecture: text(a.Architecture),
		Repository:   text(a.Repository),
		Revision:     text(a.Revision),
		Path:         text(a.Path),
		Files:        each(a.Files, e.file),
		Bytes:        optional(a.Bytes, same),
		KvDtype:      text(a.KVDtype),
		Converted:    new(a.Converted),
		ConvertedBy:  text(a.ConvertedBy),
		Note:         text(a.Note),
		Statements:   eachValue(a.Statements, e.statement),
		Canary:       part(a.Canary, e.canary),
		Manifest:     part(a.Manifest, e.manifest),
	}
}

func (d dec) artifact(m *enginev1.Artifact) matrix.Artifact {
	m = given(m)
	return matrix.Artifact{
		ID:           m.GetId(),
		Quantization: m.GetQuantization(),
		Container:    m.GetContainer(),
		Architecture: m.GetArchitecture(),
		Repository:   m.GetRepository(),
		Revision:     m.GetRevision(),
		Path:         m.GetPath(),
		Files:        each(m.GetFiles(), d.file),
		Bytes:        fromOptional(m.Bytes, same),
		KVDtype:      m.GetKvDtype(),
		Converted:    m.GetConverted(),
		ConvertedBy:  m.GetConvertedBy(),
		Note:         m.GetNote(),
		Statements:   eachValue(m.GetStatements(), d.statement),
		Canary:       fromPart(m.GetCanary(), d.canary),
		Manifest:     fromPart(m.GetManifest(), d.manifest),
	}
}

func (e enc) launch(r matrix.StartRequest) *enginev1.Launch {
	return &enginev1.Launch{
		LoadId:       text(r.LoadID),
		ModelName:    text(r.ModelName),
		Artifact:     e.artifact(r.Artifact),
		Policy:       e.policy(r.Policy),
		Limits:       e.limits(r.Limits),
		PrefixCache:  text(r.PrefixCache),
		ComputeDtype: text(r.ComputeDtype),
		Seed:         new(r.Seed),
		Host:         text(r.Host),
		Port:         number(r.Port),
		LogPath:      text(r.LogPath),
		CacheDir:     text(r.CacheDir),
		StatePath:    text(r.StatePath),
		ReadyLimit:   durationpb.New(r.ReadyLimit),
		Settings:     r.Settings,
	}
}

func (d dec) launch(m *enginev1.Launch) matrix.StartRequest {
	return matrix.StartRequest{
		LoadID:       m.GetLoadId(),
		ModelName:    m.GetModelName(),
		Artifact:     d.artifact(m.GetArtifact()),
		Policy:       d.policy(m.GetPolicy()),
		Limits:       d.limits(m.GetLimits()),
		PrefixCache:  m.GetPrefixCache(),
		ComputeDtype: m.GetComputeDtype(),
		Seed:         m.GetSeed(),
		Host:         m.GetHost(),
		Port:         toInt(m.GetPort()),
		LogPath:      m.GetLogPath(),
		CacheDir:     m.GetCacheDir(),
		StatePath:    m.GetStatePath(),
		ReadyLimit:   m.GetReadyLimit().AsDuration(),
		Settings:     m.GetSettings(),
	}
}
