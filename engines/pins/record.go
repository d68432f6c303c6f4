package pins

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"enginebroker/matrix"
)

// Record writes a new pin. One that exists is not replaced: that is Advance.
func Record(dir string, p Pin) error {
	err := create(dir, p)
	if _, ok := errors.AsType[*existsError](err); ok {
		return fmt.Errorf("pin %s: %w: advance it, with a reason", p.Name, err)
	}
	return err
}

// Advance moves a pin on to what next expects. The old record goes into the pin's history with who replaced it, when, why, and
// what it carried: the runs, cells and goldens that rest on it, as the caller knows them. It returns the old record.
func Advance(dir, name string, next Expect, copied Copy, act Act, carried []string) (Replaced, error) {
	if !recordName.MatchString(name) {
		return Replaced{}, fmt.Errorf("%q is no name of a pin", name)
	}
	path := filepath.Join(dir, name+extension)
	p, err := read[Pin](path)
	if err != nil {
		return Replaced{}, err
	}
	if err := act.check(); err != nil {
		return Replaced{}, fmt.Errorf("advance pin %s: %w", name, err)
	}
	old := Replaced{Expect: p.Expect, Recorded: p.Recorded, Replaced: act, Carried: carried}
	p.History = append(p.History, old)
	p.Expect, p.Copy, p.Recorded = next, copied, act
	if err := p.check(); err != nil {
		return Replaced{}, fmt.Errorf("advance pin %s: %w", name, err)
	}
	return old, write(path, p)
}

// keyPackages are the distributions whose patch releases moved kernels or numbers in the reports we know (bugs.md F): the
// engine itself is the distribution of the pin.
var keyPackages = regexp.MustCompile(`^(vllm|sglang|sgl-kernel|torch|triton|flashinfer.*|transformers|llama\.cpp.*|nvidia-(cublas|cudnn|cutlass|nccl).*)$`)

// ExpectOf makes of what was observed of a running engine what a pin expects of it. What was only claimed, or seen with two
// values, is left out: a pin that nothing can meet is no pin.
func ExpectOf(facts matrix.Facts) Expect {
	seen := map[string][]string{}
	for _, f := range facts {
		if f.Standing == matrix.Observed && !slices.Contains(seen[f.Name], f.Value) {
			seen[f.Name] = append(seen[f.Name], f.Value)
		}
	}
	one := func(name string) string {
		if v := seen[name]; len(v) == 1 {
			return v[0]
		}
		return ""
	}
	e := Expect{Version: one(matrix.FactVersion), Commit: one(matrix.FactCommit), BinarySHA256: one(factBinarySHA256), Build: one(matrix.FactBuild),
		Backend: one(matrix.FactBackend), Image: one(matrix.FactImage)}
	engine := one(matrix.FactEngine)
	if engine == "" {
		claimed, _ := facts.Get(matrix.FactEngine)
		engine = claimed.Value
	}
	if v := one(factPackage + engine); v != "" {
		e.Distribution = Distribution{Name: engine, Version: v}
	}
	for name := range seen {
		p, ok := strings.CutPrefix(name, factPackage)
		if v := one(name); ok && p != engine && v != "" && keyPackages.MatchString(p) {
			if e.Packages == nil {
				e.Packages = map[string]string{}
			}
			e.Packages[p] = v
		}
	}
	return e
}
