// Package catalog knows the models that can be named with --model: the shipped entries, and files of the user's own.
//
// A catalog row is a claim with a source. What an engine really opens is shown by a preflight on record.
package catalog

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"enginebroker/broker/config"
	"enginebroker/matrix"
)

//go:embed models/*.yaml
var shipped embed.FS

// Catalog is the set of known models by name.
type Catalog struct {
	models map[string]matrix.Model
	from   map[string]string
	source map[string][]byte
}

// Load reads the shipped entries and then the user's files and folders. A user's entry of a shipped name replaces it;
// two user files with one name are an error that names both.
func Load(paths []string) (Catalog, error) {
	c := Catalog{models: map[string]matrix.Model{}, from: map[string]string{}, source: map[string][]byte{}}
	names, err := fs.Glob(shipped, "models/*.yaml")
	if err != nil {
		return c, err
	}
	for _, n := range names {
		data, err := shipped.ReadFile(n)
		if err != nil {
			return c, err
		}
		if err := c.add("shipped:"+filepath.Base(n), "", data); err != nil {
			return c, err
		}
	}
	for _, p := range paths {
		files := []string{p}
		if st, err := os.Stat(p); err != nil {
			return c, fmt.Errorf("catalog: %w", err)
		} else if st.IsDir() {
			if files, err = filepath.Glob(filepath.Join(p, "*.yaml")); err != nil {
				return c, fmt.Errorf("catalog: %w", err)
			}
		}
		for _, f := range files {
			data, err := config.ReadFile(f)
			if err != nil {
				return c, fmt.Errorf("catalog: %w", err)
			}
			if err := c.add(f, filepath.Dir(f), data); err != nil {
				return c, err
			}
		}
	}
	return c, nil
}

type entry struct {
	Name       string          `yaml:"name"`
	Title      string          `yaml:"title"`
	Preference []string        `yaml:"preference"`
	Notes      []string        `yaml:"notes"`
	Canary     *canary         `yaml:"canary"`
	Artifacts  []entryArtifact `yaml:"artifacts"`
}

type canary struct {
	Prompt string `yaml:"prompt"`
	Answer string `yaml:"answer"`
	Tokens int    `yaml:"tokens"`
}

type entryArtifact struct {
	Quantization string               `yaml:"quantization"`
	Container    string               `yaml:"container"`
	Architecture string               `yaml:"architecture"`
	Repository   string               `yaml:"repository"`
	Revision     string               `yaml:"revision"`
	Path         string               `yaml:"path"`
	KVDtype      string               `yaml:"kv_dtype"`
	Bytes        int64                `yaml:"bytes"`
	Converted    string               `yaml:"converted_by"`
	Note         string               `yaml:"note"`
	Files        []entryFile          `yaml:"files"`
	Canary       *canary              `yaml:"canary"`
	Engines      map[string]statement `yaml:"engines"`
}

type entryFile struct {
	Path   string `yaml:"path"`
	Bytes  int64  `yaml:"bytes"`
	SHA256 string `yaml:"sha256"`
}

type statement struct {
	Status     string   `yaml:"status"`
	Why        string   `yaml:"why"`
	Source     string   `yaml:"source"`
	Conditions []string `yaml:"conditions"`
}

func (c *Catalog) add(from, dir string, data []byte) error {
	var e entry
	if err := config.Decode(from, data, &e); err != nil {
		return err
	}
	m, err := e.model(dir)
	if err != nil {
		return config.Located(from, data, err)
	}
	if old := c.from[m.Name]; old != "" && !strings.HasPrefix(old, "shipped:") {
		return fmt.Errorf("%s: model %q is already defined in %s", from, m.Name, old)
	}
	c.models[m.Name], c.from[m.Name], c.source[m.Name] = m, from, data
	return nil
}

func (e entry) model(dir string) (matrix.Model, error) {
	m := matrix.Model{Name: e.Name, Title: e.Title, Notes: e.Notes}
	if e.Name == "" {
		return m, errors.New("name: missing")
	}
	if len(e.Artifacts) == 0 {
		return m, errors.New("artifacts: none is named")
	}
	for i, a := range e.Artifacts {
		x, err := a.artifact(e.Name, dir)
		if err != nil {
			return m, fmt.Errorf("artifacts[%d].%w", i, err)
		}
		if !x.Canary.Present() && e.Canary != nil {
			x.Canary = e.Canary.value()
		}
		if _, ok := m.Artifact(x.ID); ok {
			return m, fmt.Errorf("artifacts[%d].quantization: %q is named twice", i, a.Quantization)
		}
		m.Artifacts = append(m.Artifacts, x)
	}
	for i, q := range e.Preference {
		a, ok := m.Artifact(q)
		if !ok {
			return m, fmt.Errorf("preference[%d]: there is no artifact %q", i, q)
		}
		m.Preference = append(m.Preference, a.ID)
	}
	return m, nil
}

func (a entryArtifact) artifact(model, dir string) (matrix.Artifact, error) {
	x := matrix.Artifact{ID: model + "@" + a.Quantization, Quantization: a.Quantization, Container: a.Container, Architecture: a.Architecture,
		Repository: a.Repository, Revision: a.Revision, Path: a.Path, KVDtype: a.KVDtype, Converted: a.Converted != "", ConvertedBy: a.Converted,
		Note: a.Note, Canary: a.Canary.value()}
	switch {
	case a.Quantization == "":
		return x, errors.New("quantization: missing")
	case a.Container == "":
		return x, errors.New("container: missing; safetensors, gguf or exl3")
	case a.Repository != "" && a.Revision == "":
		return x, errors.New("revision: missing; a repository without a revision is a label, not an artifact")
	}
	if a.Path != "" && !filepath.IsAbs(a.Path) && dir != "" {
		x.Path = filepath.Join(dir, a.Path)
	}
	if a.Bytes > 0 {
		x.Bytes = matrix.Some(a.Bytes)
	}
	for _, f := range a.Files {
		file := matrix.File{Path: f.Path}
		if f.Bytes > 0 {
			file.Bytes = matrix.Some(f.Bytes)
		}
		if f.SHA256 != "" {
			file.SHA256 = matrix.Some(f.SHA256)
		}
		x.Files = append(x.Files, file)
	}
	for kind, s := range a.Engines {
		st := matrix.Status(s.Status)
		switch st {
		case matrix.StatusClaimed, matrix.StatusOwed, matrix.StatusRefused:
		case matrix.StatusOK:
			return x, fmt.Errorf("engines.%s.status: a catalog cannot say ok; only a preflight on record can, write claimed", kind)
		default:
			return x, fmt.Errorf("engines.%s.status: %q; write claimed, owed or refused", kind, s.Status)
		}
		if st != matrix.StatusClaimed && s.Why == "" {
			return x, fmt.Errorf("engines.%s.why: missing; %s needs its reason", kind, st)
		}
		if x.Statements == nil {
			x.Statements = map[string]matrix.Statement{}
		}
		x.Statements[kind] = matrix.Statement{Status: st, Why: s.Why, Source: s.Source, Conditions: s.Conditions}
	}
	return x, nil
}

func (c *canary) value() matrix.Opt[matrix.Canary] {
	if c == nil {
		return matrix.Opt[matrix.Canary]{}
	}
	return matrix.Some(matrix.Canary{Prompt: c.Prompt, Answer: c.Answer, Tokens: cmp.Or(c.Tokens, 32)})
}

// Names lists the known models.
func (c Catalog) Names() []string {
	out := make([]string, 0, len(c.models))
	for n := range c.models {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

// From says which file a model was read from.
func (c Catalog) From(name string) string { return c.from[name] }

// At says where a field of a model's entry stands.
func (c Catalog) At(model, field string) string {
	return config.At(c.from[model], c.source[model], field)
}

// Model finds a model; an unknown name suggests the near ones.
func (c Catalog) Model(name string) (matrix.Model, error) {
	if m, ok := c.models[name]; ok {
		return m, nil
	}
	return matrix.Model{}, &UnknownModel{Name: name, Near: Near(name, c.Names()), Known: c.Names()}
}

// UnknownModel is a model name that no catalog file has.
type UnknownModel struct {
	Name  string
	Near  []string
	Known []string
}

func (e *UnknownModel) Error() string {
	if len(e.Near) > 0 {
		return fmt.Sprintf("no model %q; did you mean %s?", e.Name, strings.Join(e.Near, " or "))
	}
	return fmt.Sprintf("no model %q; known are %s; add one with a catalog file", e.Name, strings.Join(e.Known, ", "))
}
