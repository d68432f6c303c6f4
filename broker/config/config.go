// Package config reads broker.yaml: which plugin instances take part, under which labels and settings, and where things
// live. It validates once into an immutable value; errors name the file, the line and the field.
//
// A configuration says nothing about which numbers may be compared. That is negotiated from evidence.
package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"enginebroker/matrix"
)

// Config is a validated broker.yaml with all paths resolved against the file's folder.
type Config struct {
	File      string              // empty: the built-in default
	Subject   string              // label of the instance that is "ours"
	Plugins   []string            // extra folders to look for plugins in
	Catalog   []string            // extra catalog files or folders
	Pins      string              // folder of pin records, empty: none
	Claims    string              // folder of published figures of others, empty: none
	Box       string              // box profile, empty: detected
	Device    string              // UUID of the GPU that runs the engines; needed only where there are several
	Runtime   string              // folder of the box's lock and baselines, empty: /run/lock
	FloorKiB  int64               // MemAvailable that the memory guard defends, 0: its own
	Workload  string              // named workload, empty: the default of the run profile
	Telemetry string              // telemetry plugin, empty: none
	Clocks    string              // pinned or unpinned, as the operator declares it; doctor verifies it
	Evidence  time.Duration       // how old a preflight or gate may be and still count: drivers and caches change beside a build
	Artifacts map[string]string   // artifact id → local path, for every instance
	Instances []Instance          // in label order
	Workloads map[string]Workload // user-defined workloads by name

	source []byte // of File
}

// At says where a field stands in the file.
func (c Config) At(field string) string { return At(c.File, c.source, field) }

// Instance is one use of a plugin under a label of its own. One plugin may be used several times.
type Instance struct {
	Label        string
	Plugin       string            // name of the plugin binary
	Checksum     string            // sha256 of the binary, empty: recorded, not checked
	Settings     map[string]string // handed to the plugin, which checks them against its own schema
	Pin          string            // name of the declared pin
	Policy       matrix.Policy
	ComputeDtype string
	Compares     []string          // facts declared as the thing compared, so that they may differ
	Artifacts    map[string]string // overrides of local paths
	Attach       string            // URL of a server this program did not launch: descriptive only
}

// Workload is a user-defined workload.
type Workload struct {
	Endpoint     string `yaml:"endpoint"`
	PromptTokens int    `yaml:"prompt_tokens"`
	OutputTokens int    `yaml:"output_tokens"`
	Concurrency  []int  `yaml:"concurrency"`
	IgnoreEOS    *bool  `yaml:"ignore_eos"`
	SharedPrefix int    `yaml:"shared_prefix"`
	// Rates make the workload open loop, a point for each: requests are sent when the seeded Arrivals (poisson or constant) say,
	// whatever is in flight. Concurrency is then the one number of streams that the servers are started for.
	Rates        []int  `yaml:"rates_per_minute"`
	Arrivals     string `yaml:"arrivals"`
	IdleSeconds  int    `yaml:"idle_limit_s"`
	TotalSeconds int    `yaml:"total_limit_s"`
	// LegSeconds and StreamRate grow the number of requests until a repetition lasts about so many seconds: on a fast model a
	// leg of half a second decides nothing. StreamRate is the decode rate of one stream of the fastest arm, in tokens per
	// second, by concurrency level. It is declared, not measured, so that a plan does not depend on an earlier run. Where rates
	// say when requests are sent, LegSeconds alone does.
	LegSeconds int             `yaml:"leg_seconds"`
	StreamRate map[int]float64 `yaml:"stream_tok_s"`
}

type file struct {
	Subject   string                  `yaml:"subject"`
	Plugins   []string                `yaml:"plugins"`
	Catalog   []string                `yaml:"catalog"`
	Pins      string                  `yaml:"pins"`
	Box       string                  `yaml:"box"`
	Device    string                  `yaml:"device"`
	Runtime   string                  `yaml:"runtime_dir"`
	FloorMiB  int64                   `yaml:"memory_floor_mib"`
	Workload  string                  `yaml:"workload"`
	Telemetry string                  `yaml:"telemetry"`
	Clocks    string                  `yaml:"clocks"`
	Claims    string                  `yaml:"claims"`
	Evidence  *int                    `yaml:"evidence_days"`
	Artifacts map[string]string       `yaml:"artifacts"`
	Instances map[string]fileInstance `yaml:"instances"`
	Workloads map[string]Workload     `yaml:"workloads"`
}

type fileInstance struct {
	Plugin       string            `yaml:"plugin"`
	Checksum     string            `yaml:"checksum"`
	Settings     map[string]any    `yaml:"settings"`
	Pin          string            `yaml:"pin"`
	Policy       filePolicy        `yaml:"policy"`
	ComputeDtype string            `yaml:"compute_dtype"`
	Compares     []string          `yaml:"compares"`
	Artifacts    map[string]string `yaml:"artifacts"`
	Attach       string            `yaml:"attach"`
}

type filePolicy struct {
	Drafter string `yaml:"drafter"`
	Length  int    `yaml:"length"`
}

// evidenceAge is how long a preflight or gate counts where evidence_days says nothing [own].
const evidenceAge = 30 * 24 * time.Hour

// Default is what runs without a broker.yaml: the four engines under their usual names, each found where its plugin looks.
func Default() Config {
	c := Config{Subject: "ours", Evidence: evidenceAge}
	for label, plugin := range map[string]string{"ours": "vllmcpp", "vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp"} {
		c.Instances = append(c.Instances, Instance{Label: label, Plugin: plugin, Policy: matrix.Policy{Kind: matrix.Raw}})
	}
	c.sort()
	return c
}

// Load reads a file. Relative paths in it are relative to its folder.
func Load(path string) (Config, error) {
	data, err := ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("configuration: %w", err)
	}
	return Parse(path, data)
}

// maxFile bounds a configuration or catalog file [own]; the shipped ones have a few KiB.
const maxFile = 1 << 20

// ReadFile reads a file that people write: a regular one, of at most 1 MiB.
func ReadFile(path string) ([]byte, error) {
	st, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !st.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", path)
	case st.Size() > maxFile:
		return nil, fmt.Errorf("%s has %d bytes; a file of this kind has at most %d", path, st.Size(), maxFile)
	}
	return os.ReadFile(path)
}

// Parse validates the content of a configuration file; path is used for messages and for resolving relative paths.
func Parse(path string, data []byte) (Config, error) {
	data, err := expand(data)
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	var f file
	if err := Decode(path, data, &f); err != nil {
		return Config{}, err
	}
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	fault := func(format string, args ...any) error { return Located(path, data, fmt.Errorf(format, args...)) }
	c := Config{File: path, Subject: f.Subject, Pins: resolve(dir, f.Pins), Claims: resolve(dir, f.Claims), Box: f.Box, Device: f.Device,
		Runtime: resolve(dir, f.Runtime), FloorKiB: f.FloorMiB << 10, Workload: f.Workload, Telemetry: f.Telemetry, Clocks: cmp.Or(f.Clocks, "unpinned"),
		Artifacts: resolveAll(dir, f.Artifacts), Workloads: f.Workloads, source: data}
	for _, p := range f.Plugins {
		c.Plugins = append(c.Plugins, resolve(dir, p))
	}
	for _, p := range f.Catalog {
		c.Catalog = append(c.Catalog, resolve(dir, p))
	}
	if c.Clocks != "pinned" && c.Clocks != "unpinned" {
		return Config{}, fault("clocks: %q; write pinned or unpinned", c.Clocks)
	}
	if f.FloorMiB < 0 || f.FloorMiB > 1<<30 {
		return Config{}, fault("memory_floor_mib: %d; MiB of MemAvailable that the memory guard defends", f.FloorMiB)
	}
	if c.Evidence = evidenceAge; f.Evidence != nil {
		if *f.Evidence < 1 {
			return Config{}, fault("evidence_days: %d; at least 1", *f.Evidence)
		}
		c.Evidence = time.Duration(*f.Evidence) * 24 * time.Hour
	}
	if len(f.Instances) == 0 {
		return Config{}, fault("instances: none is named; a comparison needs at least two")
	}
	var errs []error
	for label, in := range f.Instances {
		if err := checkInstance(label, in); err != nil {
			errs = append(errs, fault("instances.%s.%w", label, err))
			continue
		}
		c.Instances = append(c.Instances, instance(dir, label, in))
	}
	c.sort()
	if c.Subject == "" {
		errs = append(errs, fault("subject: name the instance that is the subject of the comparison; there are %s", strings.Join(c.Labels(), ", ")))
	} else if _, ok := c.Instance(c.Subject); !ok && len(errs) == 0 {
		errs = append(errs, fault("subject: there is no instance %q; there are %s", c.Subject, strings.Join(c.Labels(), ", ")))
	}
	for name, w := range f.Workloads {
		if err := w.check(); err != nil {
			errs = append(errs, fault("workloads.%s.%w", name, err))
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return c, errors.Join(errs...)
}

// labels stand in file names, cell names and arguments
var labelRule = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,40}$`)

func checkInstance(label string, in fileInstance) error {
	switch {
	case !labelRule.MatchString(label):
		return fmt.Errorf("label: %q is not a label: letters, digits, '.', '_' and '-', at most 41", label)
	case in.Plugin == "":
		return errors.New("plugin: missing; name the plugin binary, such as vllm or llamacpp")
	case strings.ContainsAny(in.Plugin, "/\\"):
		return fmt.Errorf("plugin: %q is a path; name the binary and list its folder under plugins", in.Plugin)
	case in.Policy.Drafter != "" && in.Policy.Length <= 0:
		return errors.New("policy.length: a drafted instance needs the number of drafted tokens per step")
	case in.Policy.Drafter == "" && in.Policy.Length != 0:
		return errors.New("policy.drafter: length is given without a drafter")
	}
	for k, v := range in.Settings {
		switch v := v.(type) {
		case map[string]any:
			return fmt.Errorf("settings.%s: is a mapping; settings are flat, write %s.NAME: value", k, k)
		case nil:
			return fmt.Errorf("settings.%s: has no value", k)
		case []any:
			for i, e := range v {
				if m, ok := e.(map[string]any); ok {
					return fmt.Errorf("settings.%s[%d]: is a mapping (%v); put text that holds a colon in quotes", k, i, m)
				}
			}
		}
	}
	return nil
}

func instance(dir, label string, in fileInstance) Instance {
	out := Instance{Label: label, Plugin: in.Plugin, Checksum: in.Checksum, Pin: in.Pin, ComputeDtype: in.ComputeDtype, Attach: in.Attach,
		Compares: slices.Sorted(slices.Values(in.Compares)), Artifacts: resolveAll(dir, in.Artifacts), Policy: matrix.Policy{Kind: matrix.Raw}, Settings: map[string]string{}}
	if in.Policy.Drafter != "" {
		out.Policy = matrix.Policy{Kind: matrix.Drafted, Drafter: in.Policy.Drafter, Length: in.Policy.Length}
	}
	for k, v := range in.Settings {
		out.Settings[k] = text(v)
	}
	return out
}

// text turns a YAML value into the flat text a plugin's schema reads; lists are comma-separated.
func text(v any) string {
	list, ok := v.([]any)
	if !ok {
		return fmt.Sprint(v)
	}
	parts := make([]string, len(list))
	for i, e := range list {
		parts[i] = fmt.Sprint(e)
	}
	return strings.Join(parts, ",")
}

// maxTokens is beyond the context of every engine here (262,144 tokens, 1 Mi extended: engines.md G).
const maxTokens = 1 << 20

const (
	maxRate       = 60_000 // requests per minute: a thousand connections a second are what one client opens [own]
	maxLegSeconds = 3600
)

func (w Workload) check() error {
	switch {
	case w.Endpoint != "" && w.Endpoint != "completions" && w.Endpoint != "chat":
		return fmt.Errorf("endpoint: %q; write completions or chat", w.Endpoint)
	case w.PromptTokens <= 0:
		return errors.New("prompt_tokens: must be positive")
	case w.OutputTokens <= 0:
		return errors.New("output_tokens: must be positive")
	case w.PromptTokens > maxTokens || w.OutputTokens > maxTokens:
		return fmt.Errorf("prompt_tokens, output_tokens: at most %d", maxTokens)
	case len(w.Concurrency) == 0:
		return errors.New("concurrency: name at least one level")
	case w.SharedPrefix < 0 || w.SharedPrefix >= w.PromptTokens:
		return errors.New("shared_prefix: must be less than prompt_tokens")
	case w.LegSeconds < 0 || w.LegSeconds > maxLegSeconds:
		return fmt.Errorf("leg_seconds: %d is not in 0..%d", w.LegSeconds, maxLegSeconds)
	case len(w.Rates) == 0 && w.Arrivals != "":
		return errors.New("arrivals: name rates_per_minute too; without them the next request is sent when one ends")
	case len(w.Rates) > 0 && w.Arrivals != "poisson" && w.Arrivals != "constant":
		return fmt.Errorf("arrivals: %q; write poisson or constant", w.Arrivals)
	case len(w.Rates) > 0 && len(w.Concurrency) > 1:
		return errors.New("concurrency: name one level with rates_per_minute, the streams that the servers are started for")
	}
	for _, n := range w.Rates {
		if n < 1 || n > maxRate {
			return fmt.Errorf("rates_per_minute: %d is not in 1..%d", n, maxRate)
		}
	}
	for _, c := range w.Concurrency {
		if c <= 0 || c > 4096 {
			return fmt.Errorf("concurrency: %d is not in 1..4096", c)
		}
		if len(w.Rates) == 0 && w.LegSeconds > 0 && w.StreamRate[c] <= 0 {
			return fmt.Errorf("stream_tok_s.%d: missing; leg_seconds needs the decode rate of one stream of the fastest arm at every level", c)
		}
	}
	return nil
}

// Labels lists the instance labels in order.
func (c Config) Labels() []string {
	out := make([]string, len(c.Instances))
	for i, in := range c.Instances {
		out[i] = in.Label
	}
	return out
}

// Instance finds an instance by its label.
func (c Config) Instance(label string) (Instance, bool) {
	for _, in := range c.Instances {
		if in.Label == label {
			return in, true
		}
	}
	return Instance{}, false
}

// ArtifactPath returns the local path of an artifact for an instance, if the configuration names one.
func (c Config) ArtifactPath(label, artifact string) (string, bool) {
	if in, ok := c.Instance(label); ok {
		if p, ok := in.Artifacts[artifact]; ok {
			return p, true
		}
	}
	p, ok := c.Artifacts[artifact]
	return p, ok
}

func (c *Config) sort() {
	slices.SortFunc(c.Instances, func(a, b Instance) int { return strings.Compare(a.Label, b.Label) })
}

// Decode reads strict YAML: an unknown or repeated field is an error that names file, line and column.
func Decode(path string, data []byte, out any) error {
	dec := yaml.NewDecoder(bytes.NewReader(bytes.TrimPrefix(data, []byte("\ufeff"))), yaml.Strict())
	err := dec.Decode(out)
	if err == nil {
		var more any
		if dec.Decode(&more) == nil {
			return fmt.Errorf("%s: holds a second document after ---; write one file for each", path)
		}
		return nil
	}
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: is empty", path)
	}
	var ye yaml.Error
	if errors.As(err, &ye) {
		if t := ye.GetToken(); t != nil && t.Position != nil {
			return fmt.Errorf("%s:%d:%d: %s", path, t.Position.Line, t.Position.Column, ye.GetMessage())
		}
		return fmt.Errorf("%s: %s", path, ye.GetMessage())
	}
	return fmt.Errorf("%s: %w", path, err)
}

// expand replaces ${NAME} and ${NAME:-default} by the environment, so that one shipped file serves engines that are
// installed in different places. A name that is not set and has no default is an error.
func expand(data []byte) ([]byte, error) {
	var missing []string
	out := reference.ReplaceAllFunc(data, func(m []byte) []byte {
		name, def, has := strings.Cut(string(m[2:len(m)-1]), ":-")
		if v := os.Getenv(name); v != "" {
			return []byte(v)
		}
		if !has {
			missing = append(missing, name)
		}
		return []byte(def)
	})
	if len(missing) > 0 {
		return nil, fmt.Errorf("the environment lacks %s; set it or write ${NAME:-default}", strings.Join(missing, ", "))
	}
	return out, nil
}

var reference = regexp.MustCompile(`\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}\n]*)?\}`)

func resolve(dir, p string) string {
	if p == "" || filepath.IsAbs(p) || strings.HasPrefix(p, "hf:") {
		return p
	}
	if rest, ok := strings.CutPrefix(p, "~/"); ok {
		if home, err := os.UserHomeDir(); err == nil {
			return filepath.Join(home, rest)
		}
	}
	return filepath.Join(dir, p)
}

func resolveAll(dir string, m map[string]string) map[string]string {
	out := maps.Clone(m)
	for k, v := range out {
		out[k] = resolve(dir, v)
	}
	return out
}
