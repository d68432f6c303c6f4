// Package pins says what should be running.
//
// A pin is one keyed record of one engine on one box, in a file of its own: the exact strings that what runs must match, who
// wrote it and why. A reference that runs and repeats itself cannot be told from the right one except by its identity, so a
// declared pin that is not met aborts a load before anything is timed, with expected and found for each field. A version string
// with a suffix is another string.
//
// A pin is never replaced in silence. A pin whose engine cannot start stays on record as "recorded, but does not run"; moving
// on is Advance, a separate act with a reason, which keeps the old record and what it carried in the same file.
package pins

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
)

// Pin is one record. What Expect leaves empty is not checked; at least one field must be there.
type Pin struct {
	Name     string     `yaml:"pin"` // unique; the file is NAME.yaml
	Engine   string     `yaml:"engine"`
	Box      string     `yaml:"box,omitempty"`
	Expect   Expect     `yaml:"expect"`
	Recorded Act        `yaml:"recorded"`
	Copy     Copy       `yaml:"copy,omitempty"`
	History  []Replaced `yaml:"history,omitempty"` // oldest first
}

// Expect holds the exact strings to match.
type Expect struct {
	Version      string            `yaml:"version,omitempty"`      // as the running server says it
	Distribution Distribution      `yaml:"distribution,omitempty"` // as the installed package says it: these two differ in practice
	Commit       string            `yaml:"commit,omitempty"`
	Packages     map[string]string `yaml:"packages,omitempty"`      // distribution: version
	BinarySHA256 string            `yaml:"binary_sha256,omitempty"` // of the main program's file
	Build        string            `yaml:"build,omitempty"`         // build fingerprint
	Backend      string            `yaml:"backend,omitempty"`       // compute backend library
	Image        string            `yaml:"image,omitempty"`         // digest, never a tag
	Artifacts    map[string]string `yaml:"artifacts,omitempty"`     // artifact id: sha256 of its manifest
}

// Distribution is an installed package and its version.
type Distribution struct {
	Name    string `yaml:"name"`
	Version string `yaml:"version"`
}

// Act says who did something to a pin, when and why.
type Act struct {
	By  string `yaml:"by"`
	At  string `yaml:"at"` // date, or date and time with zone (RFC 3339)
	Why string `yaml:"why"`
}

// Copy says whether what the pin names can still be had: revisions and tags vanish upstream (bugs.md N30).
type Copy struct {
	Present    bool   `yaml:"present"` // here, on this box
	Where      string `yaml:"where,omitempty"`
	Origin     string `yaml:"origin,omitempty"`
	OriginGone string `yaml:"origin_gone,omitempty"` // date since which the origin is known to be gone
}

// Replaced is an earlier state of a pin.
type Replaced struct {
	Expect   Expect   `yaml:"expect"`
	Recorded Act      `yaml:"recorded"`
	Replaced Act      `yaml:"replaced"`
	Carried  []string `yaml:"carried,omitempty"` // runs, cells and goldens that rest on it
}

// Set is the pins of a directory by name.
type Set map[string]Pin

const (
	extension = ".yaml"
	maxFile   = 4 << 20 // bytes of one pin [own]; its history lists what it carried
)

var pinName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*$`)

// Load reads every pin of a directory; one that does not exist holds none. The error joins all faults, each with file and line.
func Load(dir string) (Set, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return Set{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("pins: %w", err)
	}
	set, faults := Set{}, []error(nil)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		path := filepath.Join(dir, e.Name())
		name, isPin := strings.CutSuffix(e.Name(), extension)
		if !isPin {
			faults = append(faults, fmt.Errorf("%s: not a pin: pins are NAME%s", path, extension))
			continue
		}
		p, err := read(path)
		if err == nil && p.Name != name {
			err = fmt.Errorf("%s: pin: %q is not the name of the file", path, p.Name)
		}
		if err != nil {
			faults = append(faults, err)
			continue
		}
		set[name] = p
	}
	return set, errors.Join(faults...)
}

func read(path string) (Pin, error) {
	f, err := os.Open(path)
	if err != nil {
		return Pin{}, fmt.Errorf("pins: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return Pin{}, fmt.Errorf("pins: %w", err)
	}
	if len(b) > maxFile {
		return Pin{}, fmt.Errorf("%s: larger than the %d bytes a pin may have", path, maxFile)
	}
	return parse(path, b)
}

// parse reads one pin. Unknown and repeated fields are errors.
func parse(path string, b []byte) (Pin, error) {
	var p Pin
	dec := yaml.NewDecoder(bytes.NewReader(b), yaml.DisallowUnknownField())
	if err := dec.Decode(&p); err != nil {
		return p, fault(path, err)
	}
	if err := dec.Decode(new(Pin)); !errors.Is(err, io.EOF) {
		return p, fmt.Errorf("%s: more than one document in the file", path)
	}
	if err := p.check(); err != nil {
		return p, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

// fault puts file and line before a message of the YAML reader.
func fault(path string, err error) error {
	var y yaml.Error
	if errors.As(err, &y) && y.GetToken() != nil && y.GetToken().Position != nil {
		at := y.GetToken().Position
		return fmt.Errorf("%s:%d:%d: %s", path, at.Line, at.Column, y.GetMessage())
	}
	return fmt.Errorf("%s: %w", path, err)
}

// check demands what makes a record a pin.
func (p Pin) check() error {
	switch {
	case !pinName.MatchString(p.Name):
		return fmt.Errorf("pin: %q is no name: lower-case letters, digits, dot, dash, underscore", p.Name)
	case p.Engine == "":
		return errors.New("engine: absent")
	case (p.Expect.Distribution.Name == "") != (p.Expect.Distribution.Version == ""):
		return errors.New("expect.distribution: needs both name and version")
	}
	if tag := p.Expect.Image; tag != "" && !imageDigest.MatchString(tag) {
		return fmt.Errorf("expect.image: %q is no digest: a tag moves; write sha256:…", tag)
	}
	for _, m := range []map[string]string{p.Expect.Packages, p.Expect.Artifacts} {
		for name, v := range m {
			if v == "" {
				return fmt.Errorf("expect: %s: empty", name)
			}
		}
	}
	if len(p.Expect.fields()) == 0 && len(p.Expect.Artifacts) == 0 {
		return errors.New("expect: empty: a pin that expects nothing is met by everything")
	}
	if err := p.Recorded.check(); err != nil {
		return fmt.Errorf("recorded.%w", err)
	}
	for i, h := range p.History {
		if err := errors.Join(h.Recorded.check(), h.Replaced.check()); err != nil {
			return fmt.Errorf("history[%d]: %w", i, err)
		}
	}
	return nil
}

var imageDigest = regexp.MustCompile(`(^|@)sha256:[0-9a-f]{64}$`)

func (a Act) check() error {
	switch {
	case strings.TrimSpace(a.By) == "":
		return errors.New("by: absent: who answers for it")
	case strings.TrimSpace(a.Why) == "":
		return errors.New("why: absent: a pin needs a reason")
	}
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if _, err := time.Parse(layout, a.At); err == nil {
			return nil
		}
	}
	return fmt.Errorf("at: %q is no date (2026-12-01, or RFC 3339)", a.At)
}

// Names lists the pins in order.
func (s Set) Names() []string {
	var out []string
	for n := range s {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}
