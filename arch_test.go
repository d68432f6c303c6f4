// Package enginebroker_test holds the statement of policy on who may import whom (docs/architecture.md). Do not change the
// table to fix a build: a line that needs another room belongs in another room.
package enginebroker_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "enginebroker/"

// rule bounds the imports of every package that matches one of its patterns. A pattern is a package path below the
// module; a trailing /... takes the whole tree. The first matching rule counts.
type rule struct {
	packages string
	ours     []string // of this module, what may be imported; nil: nothing
	never    []string // foreign packages that may not be imported, by prefix
	why      string
}

var (
	noIO   = []string{"net", "os/exec", "time/tzdata", "google.golang.org/", "go.uber.org/", "github.com/hashicorp/"}
	noWire = []string{"google.golang.org/grpc", "github.com/hashicorp/"}
	core   = []string{"matrix", "matrix/stats"}
)

var rules = []rule{
	{"matrix", nil, append([]string{"github.com/", "golang.org/", "gonum.org/"}, noIO...), "the vocabulary stands on the standard library alone"},
	{"matrix/regular", nil, append([]string{"github.com/", "golang.org/", "gonum.org/"}, noIO...), "opens files; everybody who reads paths that others wrote uses it"},
	{"matrix/stats", nil, append([]string{"github.com/", "golang.org/"}, noIO...), "statistics know no domain words"},
	{"matrix/negotiate", core, noIO, "pure"},
	{"matrix/schedule", core, noIO, "pure"},
	{"matrix/workload", core, noIO, "pure"},
	{"matrix/metrics", core, noIO, "pure"},
	{"matrix/gates", core, noIO, "pure"},
	{"matrix/verdict", append([]string{"matrix/gates"}, core...), noIO, "pure; a verdict depends on the set of reasons and on nothing else"},
	{"matrix/external", core, noIO, "reads other clients' files, never compares"},
	{"matrix/vectors", []string{"matrix", "matrix/stats", "matrix/negotiate", "matrix/schedule", "matrix/workload", "matrix/metrics", "matrix/gates", "matrix/verdict"}, noIO,
		"the protocol's own check runs the functions the product runs"},
	{"matrix/simulate", []string{"matrix", "matrix/stats", "matrix/schedule", "matrix/metrics", "matrix/gates", "matrix/verdict", "matrix/run", "matrix/workload"}, noWire, "calibration runs the real pipeline on scripted values"},
	{"matrix/stopwatch", []string{"matrix", "matrix/regular"}, noWire, "knows HTTP and time, nothing about verdicts"},
	{"matrix/ledger", []string{"matrix", "matrix/regular"}, append([]string{"net"}, noWire...), "evidence, before any judgement"},
	{"matrix/box", []string{"matrix", "matrix/regular"}, append([]string{"net"}, noWire...), "owns /proc and the box's clocks"},
	{"matrix/run", []string{"matrix", "matrix/stats", "matrix/schedule", "matrix/workload", "matrix/metrics", "matrix/gates", "matrix/verdict", "matrix/stopwatch", "matrix/ledger", "matrix/box"},
		append([]string{"net", "os/exec"}, noWire...), "declares the small interfaces it needs"},
	{"matrix/report", []string{"matrix"}, append([]string{"net"}, noWire...), "formats, computes nothing"},
	{"engines", []string{"matrix"}, noWire, "the contract in plain values"},
	{"engines/artifact", []string{"matrix", "matrix/regular"}, noWire, "reads headers"},
	{"engines/fingerprint", []string{"matrix", "matrix/regular"}, noWire, "reads what runs"},
	{"engines/pins", []string{"matrix", "matrix/regular"}, noWire, "what should run"},
	{"engines/process", []string{"engines", "matrix", "matrix/regular"}, noWire, "server trees"},
	{"engines/openai", []string{"engines", "matrix"}, noWire, "what the HTTP engines share"},
	{"engines/adapter", []string{"engines", "engines/process", "engines/openai", "engines/fingerprint", "engines/artifact", "matrix", "matrix/regular"}, noWire, "what the adapters of HTTP engines share"},
	{"engines/adapter/adaptertest/fakeserver", nil, noWire, "answers like an engine, and knows none of us"},
	{"engines/adapter/adaptertest", []string{"engines", "engines/adapter", "engines/openai", "engines/process", "matrix"}, noWire, "what the tests of adapters share"},
	{"engines/plugin", []string{"engines", "matrix", "proto/gen/engine/...", "proto/gen/telemetry/..."}, []string{"github.com/hashicorp/"}, "what every plugin links; it speaks go-plugin's handshake without go-plugin"},
	{"engines/host", []string{"engines", "engines/plugin", "matrix", "matrix/regular", "proto/gen/engine/...", "proto/gen/telemetry/..."}, nil, "the one room that knows go-plugin"},
	{"engines/enginetest", []string{"engines", "engines/plugin", "engines/process", "engines/openai", "matrix"}, nil, "the one conformance suite"},
	{"plugins/...", []string{"engines", "engines/plugin", "engines/adapter", "engines/process", "engines/openai", "engines/artifact", "engines/fingerprint", "matrix", "plugins/self/..."}, []string{"google.golang.org/", "github.com/hashicorp/"}, "adapters know the contract, not each other"},
	{"broker/config", []string{"matrix", "matrix/regular", "engines"}, noWire, ""},
	{"broker/catalog", []string{"matrix", "matrix/regular", "engines", "broker/config"}, noWire, ""},
	{"broker/service", []string{"matrix/...", "matrix", "engines/...", "engines", "broker/config", "broker/catalog", "proto/gen/..."}, nil, "the composition root"},
	{"broker/daemon", []string{"broker/service", "matrix", "matrix/regular", "proto/gen/broker/..."}, nil, "serves what the service does"},
	{"broker/cli", []string{"broker/service", "broker/daemon", "matrix"}, []string{"google.golang.org/grpc/"}, "flags and words; calls the service and nothing below it"},
	{"broker", []string{"broker/cli"}, nil, "os.Exit and signals live here alone"},
	{"proto/gen/...", []string{"proto/gen/..."}, nil, "generated"},
}

type pkg struct {
	ImportPath string
	Imports    []string
}

func TestImportRules(t *testing.T) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	dec := json.NewDecoder(strings.NewReader(string(out)))
	seen := map[string]bool{}
	for {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		name, ok := strings.CutPrefix(p.ImportPath, module)
		if !ok || strings.Contains(name, "/testdata/") {
			continue
		}
		i := slices.IndexFunc(rules, func(r rule) bool { return matches(r.packages, name) })
		if i < 0 {
			t.Errorf("%s has no rule: say in arch_test.go and docs/architecture.md who may import whom", name)
			continue
		}
		seen[rules[i].packages] = true
		check(t, rules[i], name, p.Imports)
	}
	for _, r := range rules {
		if !seen[r.packages] && !strings.HasPrefix(r.packages, "broker/") {
			t.Logf("no package matches %s", r.packages)
		}
	}
}

func check(t *testing.T, r rule, name string, imports []string) {
	t.Helper()
	self, _, _ := strings.Cut(strings.TrimPrefix(name, "plugins/"), "/")
	for _, imp := range imports {
		switch {
		case strings.HasPrefix(imp, "github.com/NVIDIA/go-nvml") && !strings.HasPrefix(name, "plugins/nvml"):
			t.Errorf("%s imports %s: only plugins/nvml may", name, imp)
		case strings.HasPrefix(imp, "github.com/hashicorp/") && name != "engines/host":
			t.Errorf("%s imports %s: only engines/host knows go-plugin", name, imp)
		}
		if rest, ok := strings.CutPrefix(imp, module); ok {
			if !slices.ContainsFunc(r.ours, func(p string) bool {
				return matches(strings.Replace(p, "plugins/self", "plugins/"+self, 1), rest)
			}) {
				t.Errorf("%s imports %s, which %s forbids (%s)", name, rest, r.packages, r.why)
			}
			continue
		}
		for _, n := range r.never {
			if imp == strings.TrimSuffix(n, "/") || strings.HasPrefix(imp, strings.TrimSuffix(n, "/")+"/") {
				t.Errorf("%s imports %s, which %s forbids (%s)", name, imp, r.packages, r.why)
			}
		}
	}
}

func matches(pattern, name string) bool {
	if tree, ok := strings.CutSuffix(pattern, "/..."); ok {
		return name == tree || strings.HasPrefix(name, tree+"/")
	}
	return pattern == name
}

// A plugin is resident beside a timed engine. These packages find methods by reflection: where one of them is linked, the
// linker keeps every method of the program, and the plugin is 4 MB larger.
func TestPluginsLinkNoReflectiveMethods(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-tags=grpcnotrace", "./plugins/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for dep := range strings.Lines(string(out)) {
		switch dep = strings.TrimSpace(dep); dep {
		case "net/rpc", "text/template", "html/template":
			t.Errorf("a plugin links %s; see: go list -deps -f '{{.ImportPath}} {{.Imports}}' -tags=grpcnotrace ./plugins/...", dep)
		}
	}
}
