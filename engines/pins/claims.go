package pins

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Claim is a figure that somebody else published. It is shown beside our cells and is never a denominator and never a target:
// its values are text, so that nothing can be divided by them. What a source leaves open is written down as unknown, because
// most such figures are compared with ours on exactly the point they leave open (drafted or raw, cached or cold).
type Claim struct {
	Name        string    `yaml:"claim"` // unique; the file is NAME.yaml
	Source      string    `yaml:"source"`
	Retrieved   Retrieved `yaml:"retrieved"`
	Engine      string    `yaml:"engine"`
	Version     string    `yaml:"version,omitempty"`
	Model       string    `yaml:"model"`
	Artifact    string    `yaml:"artifact,omitempty"`
	Policy      string    `yaml:"policy"` // raw, drafted, unknown
	Drafter     string    `yaml:"drafter,omitempty"`
	PrefixCache string    `yaml:"prefix_cache"`      // on, off, unknown
	Nodes       string    `yaml:"nodes"`             // a number, or unknown
	Clock       string    `yaml:"clock_ceiling_mhz"` // a number, or unknown
	Figures     []Figure  `yaml:"figures"`
	Unverified  []string  `yaml:"unverified,omitempty"` // what the source says and nobody could check
	Recorded    Act       `yaml:"recorded"`
}

// Retrieved says how the source was seen.
type Retrieved struct {
	State string `yaml:"state"` // read, indexed (its text is a search index's), unreachable
	At    string `yaml:"at"`
	Note  string `yaml:"note,omitempty"`
}

// Figure is one number as it was published.
type Figure struct {
	Metric      string `yaml:"metric"`
	Value       string `yaml:"value"` // as written: 38.0, ~34
	Unit        string `yaml:"unit"`
	Concurrency string `yaml:"concurrency,omitempty"`
	Condition   string `yaml:"condition,omitempty"`
	Field       string `yaml:"field,omitempty"` // of the result file, for an imported one
}

const unknown = "unknown"

// LoadClaims reads every claim of a directory, as Load reads pins.
func LoadClaims(dir string) (map[string]Claim, error) { return loadAll[Claim](dir) }

// RecordClaim writes a new claim; one that exists is not replaced. A public result file is imported this way: read it with
// matrix/external and copy its numbers, as text, into figures.
func RecordClaim(dir string, c Claim) error { return create(dir, c) }

func (c Claim) name() string { return c.Name }

func (c Claim) check() error {
	for _, f := range [][2]string{{"source", c.Source}, {"engine", c.Engine}, {"model", c.Model}} {
		if f[1] == "" {
			return fmt.Errorf("%s: absent", f[0])
		}
	}
	for _, f := range []struct {
		name, value string
		of          []string
	}{
		{"retrieved.state", c.Retrieved.State, []string{"read", "indexed", "unreachable"}}, {"policy", c.Policy, []string{"raw", "drafted", unknown}},
		{"prefix_cache", c.PrefixCache, []string{"on", "off", unknown}},
	} {
		if !slices.Contains(f.of, f.value) {
			return fmt.Errorf("%s: %q is none of %s", f.name, f.value, strings.Join(f.of, ", "))
		}
	}
	for _, f := range [][2]string{{"nodes", c.Nodes}, {"clock_ceiling_mhz", c.Clock}} {
		if n, err := strconv.Atoi(f[1]); f[1] != unknown && (err != nil || n < 1) {
			return fmt.Errorf("%s: %q is neither a number nor unknown", f[0], f[1])
		}
	}
	if len(c.Figures) == 0 {
		return errors.New("figures: none")
	}
	for i, f := range c.Figures {
		if f.Metric == "" || f.Value == "" || f.Unit == "" {
			return fmt.Errorf("figures[%d]: needs metric, value and unit", i)
		}
		// What is no number at all stays as its source wrote it, such as 30–40.
		v, err := strconv.ParseFloat(strings.TrimLeft(strings.TrimSpace(f.Value), "~≈<>≤≥ "), 64)
		if (err == nil || errors.Is(err, strconv.ErrRange)) && !(v >= 0 && v <= math.MaxFloat64) {
			return fmt.Errorf("figures[%d].value: %s of %q is no measured figure: it is a finite number, not below zero", i, f.Metric, f.Value)
		}
	}
	if err := dated(c.Retrieved.At); err != nil {
		return fmt.Errorf("retrieved.at: %w", err)
	}
	if err := c.Recorded.check(); err != nil {
		return fmt.Errorf("recorded.%w", err)
	}
	return nil
}
