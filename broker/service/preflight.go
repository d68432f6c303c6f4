package service

import (
	"enginebroker/matrix"
)

// preflightKey names a proof: this build opened these files and answered.
type preflightKey struct {
	Engine   string `json:"engine"`
	Build    string `json:"build"`    // fingerprint of the installed build, as Describe reads it from disk
	Manifest string `json:"manifest"` // of the artifact
}

// Preflight is a recorded proof that a build opened an artifact and answered.
type Preflight struct {
	Key    preflightKey           `json:"key"`
	Label  string                 `json:"label"`
	At     string                 `json:"at"` // RFC 3339
	Result matrix.PreflightResult `json:"result"`
}

// preflights lists the artifacts that a member's build is on record to have opened, with where the proof is.
func (s *Service) preflights(m *member, model matrix.Model) map[string]string {
	out := map[string]string{}
	for _, a := range model.Artifacts {
		key, ok := keyOf(m, a)
		if !ok {
			continue
		}
		digest, err := matrix.Digest(key)
		if err != nil {
			continue
		}
		var p Preflight
		if ok, err := s.load("preflights", digest, &p); err == nil && ok {
			out[a.ID] = "preflight of " + p.At
		}
	}
	return out
}

// keyOf is the key of a proof; a build or files that are not known cannot have one.
func keyOf(m *member, a matrix.Artifact) (preflightKey, bool) {
	manifest, ok1 := a.Manifest.Get()
	build, ok2 := m.desc.Identity.Value(matrix.FactBuild).Get()
	return preflightKey{Engine: m.desc.Engine, Build: build, Manifest: manifest.SHA256}, ok1 && ok2
}
