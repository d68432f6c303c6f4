package negotiate

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"enginebroker/matrix"
)

// State is what one side says about opening one artifact, as every pair is settled by it.
func State(s Side, a matrix.Artifact) matrix.Statement {
	st, _ := state(s, a)
	return st
}

// state is what one side says about opening one artifact: a preflight on record, else the catalog's row for the engine,
// else the engine's capabilities. The note says where a proof overrules a statement.
func state(s Side, a matrix.Artifact) (matrix.Statement, string) {
	st := stated(s, a)
	evidence, ok := s.Preflighted[a.ID]
	if !ok {
		if st.Status == matrix.StatusOK { // nobody but a preflight can vouch for this build
			st.Status = matrix.StatusClaimed
		}
		return st, ""
	}
	proof := matrix.Statement{Status: matrix.StatusOK, Why: "a preflight of this artifact on this build is on record", Source: evidence, Conditions: st.Conditions}
	if st.Status.Runs() {
		return proof, ""
	}
	return proof, fmt.Sprintf("%s opened %s in a preflight (%s), although it is stated as %s: %s (%s)", s.Label, a.ID, evidence, st.Status, st.Why, st.Source)
}

func stated(s Side, a matrix.Artifact) matrix.Statement {
	if st, ok := a.Statements[s.Engine]; ok && contradiction(a) == "" {
		switch st.Status {
		case matrix.StatusOK, matrix.StatusClaimed, matrix.StatusOwed, matrix.StatusRefused:
			return st
		}
		return matrix.Statement{Status: matrix.StatusRefused, Source: st.Source,
			Why: fmt.Sprintf("the catalog says %q, which is no status (ok, claimed, owed, refused)", st.Status)}
	}
	return capable(s, a)
}

// capable looks for the line of the engine's capabilities that speaks of what the files hold. An exact quantization wins
// over "*"; among equals the first one counts.
func capable(s Side, a matrix.Artifact) matrix.Statement {
	container, quantization := holds(a)
	var any matrix.Statement
	for _, c := range s.Description.Capabilities {
		if !strings.EqualFold(c.Container, container) || !architecture(c, a) {
			continue
		}
		if sameQuantization(c.Quantization, quantization) {
			return c.Statement
		}
		if c.Quantization == "*" && any.Status == "" {
			any = c.Statement
		}
	}
	if any.Status != "" {
		return any
	}
	return matrix.Statement{Status: matrix.StatusRefused, Why: lacking(s, container, quantization), Source: "capabilities of " + s.Engine}
}

func lacking(s Side, container, quantization string) string {
	var containers []string
	for _, c := range s.Description.Capabilities {
		if c.Status.Runs() && !slices.Contains(containers, c.Container) {
			containers = append(containers, c.Container)
		}
	}
	slices.Sort(containers)
	switch {
	case len(containers) == 0:
		return "it states nothing that it opens"
	case !slices.ContainsFunc(containers, func(c string) bool { return strings.EqualFold(c, container) }):
		return "opens " + strings.Join(containers, ", ") + " only, not " + container
	}
	return "no capability for " + quantization + " in " + container
}

func architecture(c matrix.Capability, a matrix.Artifact) bool {
	arch := a.Architecture
	if m, ok := a.Manifest.Get(); ok && m.Architecture != "" {
		arch = m.Architecture
	}
	return len(c.Architectures) == 0 || arch == "" ||
		slices.ContainsFunc(c.Architectures, func(x string) bool { return strings.EqualFold(x, arch) })
}

// holds returns container and quantization of an artifact: as its files say where they were read, else as the catalog does.
func holds(a matrix.Artifact) (container, quantization string) {
	container, quantization = a.Container, a.Quantization
	if m, ok := a.Manifest.Get(); ok {
		if m.Container != "" {
			container = m.Container
		}
		if m.Quantization != "" && !sameQuantization(a.Quantization, m.Quantization) {
			quantization = m.Quantization
		}
	}
	return container, quantization
}

// contradiction says how the files of an artifact contradict its catalog entry, empty where they do not or were not read.
// What a catalog states about engines is stated about its entry, so a contradicted entry has no statements.
func contradiction(a matrix.Artifact) string {
	container, quantization := holds(a)
	if strings.EqualFold(container, a.Container) && quantization == a.Quantization {
		return ""
	}
	return fmt.Sprintf("%s: the catalog calls it %s in %s, its files hold %s in %s; the files count, and the catalog's statements about engines are not used",
		a.ID, a.Quantization, a.Container, quantization, container)
}

// sameQuantization reports whether what files hold may go by a label, without regard to case and punctuation. A recipe of
// several types, joined by a sign, goes by the label of each of its parts: no checkpoint of these models is all one type.
// A GGUF label may add a size to its main type (q4_k_m holds q4_k).
func sameQuantization(label, held string) bool {
	base := label
	if i := strings.LastIndex(label, "_"); i > 0 && slices.Contains([]string{"xs", "s", "m", "l", "xl"}, strings.ToLower(label[i+1:])) {
		base = label[:i]
	}
	for _, part := range append(strings.FieldsFunc(held, func(r rune) bool { return strings.ContainsRune("+,;:/() ", r) }), held) {
		if p := plain(part); p == plain(label) || p == plain(base) {
			return true
		}
	}
	return false
}

func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			return unicode.ToLower(r)
		}
		return -1
	}, s)
}
