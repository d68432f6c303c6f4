package pins

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"enginebroker/matrix"
)

// Facts that a pin is checked against beside those of package matrix; engines/fingerprint names them the same.
const (
	factBinarySHA256 = "binary.sha256"
	factPackage      = "package."
	// FactArtifact + artifact id: sha256 of the manifest of the artifact that a load opens.
	FactArtifact = "artifact."
	goneMark     = " (gone)"
)

// field is one thing a pin expects: its name in the pin, the fact it is met by, the exact string.
type field struct {
	name string
	fact string
	want string
}

// fields lists what is expected, in the order it is printed.
func (e Expect) fields() []field {
	all := []field{{"version", matrix.FactVersion, e.Version}}
	if e.Distribution.Name != "" {
		all = append(all, field{"distribution", factPackage + e.Distribution.Name, e.Distribution.Version})
	}
	all = append(all, field{"commit", matrix.FactCommit, e.Commit})
	for _, name := range slices.Sorted(maps.Keys(e.Packages)) {
		all = append(all, field{"packages." + name, factPackage + name, e.Packages[name]})
	}
	all = append(all, field{"binary_sha256", factBinarySHA256, e.BinarySHA256}, field{"build", matrix.FactBuild, e.Build},
		field{"backend", matrix.FactBackend, e.Backend}, field{"image", matrix.FactImage, e.Image})
	return slices.DeleteFunc(all, func(f field) bool { return f.want == "" })
}

// Check compares what runs with its pin, exactly. What was not observed does not match: a fact that is only claimed is said to
// be so, and every value of a fact that was seen twice has to match.
func Check(p Pin, facts matrix.Facts) matrix.PinCheck {
	out := matrix.PinCheck{Pin: p.Name}
	if engine, ok := facts.Get(matrix.FactEngine); ok && engine.Value != p.Engine {
		out.Mismatch = append(out.Mismatch, matrix.PinMismatch{Field: "engine", Expected: p.Engine, Found: engine.Value, Where: engine.Where})
	}
	for _, f := range p.Expect.fields() {
		out.Mismatch = append(out.Mismatch, compare(f, facts)...)
	}
	opened, unlisted := artifacts(p.Expect.Artifacts, facts)
	out.Mismatch, out.Unlisted = append(out.Mismatch, opened...), unlisted
	out.OK = len(out.Mismatch) == 0
	return out
}

func compare(f field, facts matrix.Facts) []matrix.PinMismatch {
	var out []matrix.PinMismatch
	seen := false
	for _, x := range facts {
		if x.Name != f.fact {
			continue
		}
		seen = true
		found := x.Value
		if x.Standing != matrix.Observed {
			found += " (only claimed)"
		}
		if found != f.want {
			out = append(out, matrix.PinMismatch{Field: f.name, Expected: f.want, Found: found, Where: x.Where})
		}
	}
	if !seen {
		return []matrix.PinMismatch{{Field: f.name, Expected: f.want, Found: "not observed"}}
	}
	return out
}

// artifacts checks the artifact that this load opens. The others of the pin are checked when they are opened. A pin that lists
// artifacts and not this one says nothing of it: that is no mismatch of the engine, and no match of the files either.
func artifacts(want map[string]string, facts matrix.Facts) (out []matrix.PinMismatch, unlisted []string) {
	if len(want) == 0 {
		return nil, nil
	}
	seen := false
	for _, f := range facts {
		id, ok := strings.CutPrefix(f.Name, FactArtifact)
		if !ok {
			continue
		}
		seen = true
		sum, pinned := want[id]
		if !pinned {
			unlisted = append(unlisted, id)
		} else if sum != f.Value {
			out = append(out, matrix.PinMismatch{Field: "artifacts." + id, Expected: sum, Found: f.Value, Where: f.Where})
		}
	}
	if !seen {
		ids := slices.Sorted(maps.Keys(want))
		return []matrix.PinMismatch{{Field: "artifacts", Expected: strings.Join(ids, ", "), Found: "not observed"}}, nil
	}
	return out, unlisted
}

// Describe prints a check for people: expected and found of each field.
func Describe(c matrix.PinCheck) string {
	if c.OK {
		s := "pin " + c.Pin + ": what runs is what is pinned"
		if len(c.Unlisted) > 0 {
			s = fmt.Sprintf("pin %s: the engine that runs is the one that is pinned; the pin has no manifest of %s, so that its files were compared with nothing (broker pins advance adds it)",
				c.Pin, strings.Join(c.Unlisted, ", "))
		}
		return s
	}
	var b strings.Builder
	fmt.Fprintf(&b, "pin %s: what runs is not what is pinned; nothing was timed\n", c.Pin)
	for _, m := range c.Mismatch {
		fmt.Fprintf(&b, "  %s\n    expected %s\n    found    %s\n", m.Field, m.Expected, m.Found)
		if m.Where != "" {
			fmt.Fprintf(&b, "    read     %s\n", m.Where)
		}
	}
	return b.String()
}

// Unrunnable is a pin that is recorded and does not run.
type Unrunnable struct {
	Pin  string
	Why  string
	Copy Copy
}

func (u *Unrunnable) Error() string {
	s := fmt.Sprintf("pin %s: recorded, but does not run: %s", u.Pin, u.Why)
	if u.Copy.OriginGone != "" {
		s += "; its origin " + u.Copy.Origin + " is gone since " + u.Copy.OriginGone
	}
	if u.Copy.Present {
		s += "; a copy is at " + u.Copy.Where
	}
	return s + ". Nothing stands in for it: restore it, or advance the pin with a reason"
}

// Runs reports, from files on disk, whether a pinned engine can start at all: an engine that is not installed and an editable
// install whose source is gone cannot, whatever their metadata says. The error is an *Unrunnable.
func Runs(p Pin, d matrix.Description) error {
	if !d.Installed {
		return &Unrunnable{p.Name, "not installed; " + strings.Join(d.LookedFor, ", "), p.Copy}
	}
	for _, f := range d.Identity {
		if strings.HasPrefix(f.Name, factPackage) && strings.HasSuffix(f.Name, ".origin") && strings.HasSuffix(f.Value, goneMark) {
			name := strings.TrimSuffix(strings.TrimPrefix(f.Name, factPackage), ".origin")
			return &Unrunnable{p.Name, fmt.Sprintf("%s is an %s", name, f.Value), p.Copy}
		}
	}
	return nil
}

// DoesNotRun turns the failure of a start into the pin's state.
func DoesNotRun(p Pin, failure *matrix.StartFailure) error {
	return &Unrunnable{p.Name, failure.Error(), p.Copy}
}

// Lines prints what is expected, one field a line.
func (e Expect) Lines() []string {
	var out []string
	for _, f := range e.fields() {
		out = append(out, fmt.Sprintf("%-24s %s", f.name, f.want))
	}
	for _, id := range slices.Sorted(maps.Keys(e.Artifacts)) {
		out = append(out, fmt.Sprintf("%-24s %s", "artifacts."+id, e.Artifacts[id]))
	}
	return out
}
