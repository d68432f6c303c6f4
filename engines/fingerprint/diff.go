package fingerprint

import (
	"cmp"
	"slices"
	"strings"

	"enginebroker/matrix"
)

// Difference is one fact that differs between two arms, or that only one of them recorded.
type Difference struct {
	Name        string             `json:"name"`
	Class       string             `json:"class"`      // what kind of difference, see Classes
	A           matrix.Opt[string] `json:"a,omitzero"` // absent: known not to be there, unless NotRecorded
	B           matrix.Opt[string] `json:"b,omitzero"`
	WhereA      string             `json:"where_a,omitempty"`
	WhereB      string             `json:"where_b,omitempty"`
	NotRecorded bool               `json:"not_recorded,omitempty"` // on one side: unknown, which is not equal
}

// classes rank differences by what is known to move speed: one binary at 3.3 times its own speed by the backend library it
// picked (engines.md E8), text and speed by compute dtype (C8), kernels by a package's patch release (the source story), tuned
// caches (bugs.md N05), a build flag that was left out. Where something lies and when it started moves nothing.
var classes = []struct {
	name  string
	facts []string
}{
	{"backend", []string{matrix.FactBackend}},
	{"precision", []string{matrix.FactComputeDtype, matrix.FactActivationDtype, matrix.FactKVDtype}},
	{"quantization", []string{matrix.FactQuantization, "artifact."}},
	{"kernels", []string{FactKernel}},
	{"policy", []string{matrix.FactSpeculation, matrix.FactPrefixCache, matrix.FactSleepOnIdle}},
	{"code", []string{FactBinaryCode, FactBinarySHA256, matrix.FactBuild, matrix.FactImage, "image.", "container.change", FactDeleted}},
	{"libraries", []string{FactLibrary + ".", FactCUDA, FactDriver}},
	{"packages", []string{FactPackage, FactPackages, FactWarning, FactShadow}},
	{"build", []string{FactCMake, FactCMakeDigest}},
	{"caches", []string{FactCache}},
	{"limits", []string{matrix.FactContextTokens, matrix.FactConcurrency, "container.memory_limit_bytes"}},
	{"configuration", []string{FactConfig, FactFlag, "container.entrypoint"}},
	{"environment", []string{FactEnv}},
	{"prompt", []string{matrix.FactChatTemplate}},
	{"version", []string{matrix.FactEngine, matrix.FactVersion, matrix.FactCommit}},
	{"other", nil},
	{"location", []string{matrix.FactBinary, FactBinaryLinks, FactPython, FactPrefix, FactSource, matrix.FactModelPath, matrix.FactWeightsProof, FactHelper,
		"container.started_at", "container.restarts"}},
}

// classOf returns the rank and name of a fact's class.
func classOf(name, value string) (int, string) {
	other := 0
	for i, c := range classes {
		if c.facts == nil {
			other = i
		}
		for _, f := range c.facts {
			if name == f || strings.HasSuffix(f, ".") && strings.HasPrefix(name, f) {
				if isLocation(name, value) || strings.HasSuffix(name, ".origin") && !strings.HasSuffix(value, Gone) {
					return len(classes) - 1, "location"
				}
				return i, c.name
			}
		}
	}
	return other, classes[other].name
}

// Diff lists what differs between two arms: first what was recorded on both sides, by rank, then what one side did not record.
func Diff(a, b matrix.Facts) []Difference {
	left, right := byName(a), byName(b)
	names := map[string]bool{}
	for n := range left {
		names[n] = true
	}
	for n := range right {
		names[n] = true
	}
	type ranked struct {
		Difference
		rank int
	}
	var out []ranked
	for n := range names {
		l, r := left[n], right[n]
		if l.value == r.value && l.some == r.some {
			continue
		}
		unknown := !l.some && !listedWhole(n, a) || !r.some && !listedWhole(n, b)
		d := ranked{Difference: Difference{Name: n, WhereA: l.where, WhereB: r.where, NotRecorded: unknown}}
		if l.some {
			d.A = matrix.Some(l.value)
		}
		if r.some {
			d.B = matrix.Some(r.value)
		}
		d.rank, d.Class = classOf(n, cmp.Or(l.value, r.value))
		out = append(out, d)
	}
	slices.SortFunc(out, func(x, y ranked) int {
		if x.NotRecorded != y.NotRecorded {
			if y.NotRecorded {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(x.rank, y.rank), cmp.Compare(x.Name, y.Name))
	})
	diffs := make([]Difference, len(out))
	for i, d := range out {
		diffs[i] = d.Difference
	}
	return diffs
}

// families are facts that are recorded as whole lists, so that an absent one is known not to be there.
var families = []string{FactLibrary + ".", FactFlag, FactEnv, FactPackage, FactCUDA, FactCMake, FactCache, FactDeleted, FactWarning, FactShadow, FactHelper}

func listedWhole(name string, facts matrix.Facts) bool {
	_, running := facts.Get(FactLibrary) // Of lists every family, and every program has a mapping; Static lists none
	_, packages := facts.Get(FactPackages)
	for _, f := range families {
		if name == f || strings.HasSuffix(f, ".") && strings.HasPrefix(name, f) {
			return running || packages && f == FactPackage
		}
	}
	return false
}

type side struct {
	value, where string
	some         bool
}

// byName joins the values of one name. Libraries are keyed by file name, so that one exchanged library is one difference.
func byName(facts matrix.Facts) map[string]side {
	values := map[string][]string{}
	where := map[string]string{}
	for _, f := range facts {
		name, value := f.Name, f.Value
		if lib, sum, ok := strings.Cut(value, " "); ok && name == FactLibrary {
			name, value = FactLibrary+"."+lib, sum
		}
		values[name] = append(values[name], value)
		if where[name] == "" {
			where[name] = f.Where
		}
	}
	out := map[string]side{}
	for n, v := range values {
		slices.Sort(v)
		out[n] = side{strings.Join(slices.Compact(v), "; "), where[n], true}
	}
	return out
}

// TwoArms is what the two-arms guard says of a pair that is meant to differ in its build.
type TwoArms struct {
	Differ  bool   // the builds differ in code
	Unknown bool   // what would tell is not recorded on a side
	Says    string // what was found, in words
}

// Distinct judges whether two arms are two builds. Equal builds are one engine under two names; builds whose code is equal
// differ in where they lie or when they were linked. Such a pair measures nothing but noise, unless a control that should move
// did.
func Distinct(a, b matrix.Facts) TwoArms {
	build, ok := bothSay(a, b, matrix.FactBuild)
	if !ok {
		return TwoArms{Unknown: true, Says: "the build of one side is not recorded: unknown is not different"}
	}
	at, bt := a.Value(matrix.FactBinary).Or("?"), b.Value(matrix.FactBinary).Or("?")
	loaded := loadedOnOne(a, b)
	if build[0] == build[1] && loaded == "" {
		says := "both arms are build " + build[0]
		if at != bt {
			says += ", at two places: " + at + " and " + bt
		}
		return TwoArms{Says: says}
	}
	for _, d := range Diff(a, b) {
		if d.NotRecorded {
			continue
		}
		switch {
		case d.Class == "backend", d.Name == FactBinaryCode, d.Class == "packages", d.Class == "build",
			d.Class == "libraries" && strings.HasPrefix(d.Name, FactLibrary+".") && !isProgram(d.Name, at, bt):
			return TwoArms{Differ: true, Says: d.Name + " differs"}
		}
	}
	if loaded != "" {
		return TwoArms{Unknown: true, Says: loaded + " is recorded on one side only, and one program picks what it computes with when it starts: a preflight records it"}
	}
	if code, ok := bothSay(a, b, FactBinaryCode); ok && code[0] == code[1] {
		return TwoArms{Says: "the hashes differ and the code is equal: they differ only by location, time or build id (" + at + " and " + bt + ")"}
	}
	return TwoArms{Differ: true, Says: "the builds differ"}
}

// loadedOnOne names what a process loaded, where only one side has it: the build of files on disk and that of a process are
// digests of different things, so that neither their being equal nor their differing says anything.
func loadedOnOne(a, b matrix.Facts) string {
	for _, name := range []string{matrix.FactBackend, FactLibrary} {
		if a.Value(name).Present() != b.Value(name).Present() {
			return name
		}
	}
	return ""
}

// isProgram tells the mapping of the main program itself from a library.
func isProgram(name string, programs ...string) bool {
	file := strings.TrimPrefix(name, FactLibrary+".")
	return slices.ContainsFunc(programs, func(p string) bool { return strings.HasSuffix(p, "/"+file) })
}

func bothSay(a, b matrix.Facts, name string) ([2]string, bool) {
	x, okX := a.Get(name)
	y, okY := b.Get(name)
	return [2]string{x.Value, y.Value}, okX && okY
}
