// Package pins says what should be running.
//
// A pin is one keyed record of one engine on one box, in a file of its own: the exact strings that what runs must match, who
// wrote it and why. A reference that runs and repeats itself cannot be told from the right one except by its identity, so a
// declared pin that is not met aborts a load before anything is timed, with expected and found for each field. A version string
// with a suffix is another string.
//
// A pin is never replaced in silence. A pin whose engine cannot start stays on record as "recorded, but does not run"; moving
// on is Advance, a separate act with a reason, which keeps the old record and what it carried in the same file.
//
// Claims, figures that others published, lie in a directory of their own in the same form (claims.go).
package pins

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
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

// Load reads every pin of a directory; one that does not exist holds none. The error joins all faults, each with file and line;
// the pins without fault are there.
func Load(dir string) (Set, error) {
	return loadAll[Pin](dir)
}

func (p Pin) name() string { return p.Name }

// check demands what makes a record a pin.
func (p Pin) check() error {
	switch {
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
	if err := dated(a.At); err != nil {
		return fmt.Errorf("at: %w", err)
	}
	return nil
}

func dated(s string) error {
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if _, err := time.Parse(layout, s); err == nil {
			return nil
		}
	}
	return fmt.Errorf("%q is no date (2026-12-01, or RFC 3339)", s)
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
