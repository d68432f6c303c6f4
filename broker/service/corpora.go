package service

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"enginebroker/matrix/workload"
)

// CorpusInfo is one prompt corpus of the state folder: what its manifest says, and, where it was checked, whether it holds.
type CorpusInfo struct {
	Key      string            `json:"key"` // names the file: digest of what the corpus is made for
	Path     string            `json:"path"`
	Bytes    int64             `json:"bytes"`
	Manifest workload.Manifest `json:"manifest"`
	Built    bool              `json:"built,omitempty"`   // by this call
	Problem  string            `json:"problem,omitempty"` // why it cannot be used
}

// BuildCorpus makes the corpus that a request's plan needs, through the tokenizer of the first engine that has one, unless
// it is there. Nothing is measured.
func (s *Service) BuildCorpus(ctx context.Context, q Request, on func(Event)) (CorpusInfo, error) {
	t, err := s.team(ctx, q)
	if err != nil {
		return CorpusInfo{}, err
	}
	defer t.close()
	p, err := s.plan(ctx, q, t)
	if err != nil {
		return CorpusInfo{}, err
	}
	model, err := s.model(ctx, q.Model)
	if err != nil {
		return CorpusInfo{}, err
	}
	profile, _ := workload.ProfileNamed(p.Plan.Profile)
	spec := corpusSpec(model, p.Plan.Method.Points, profile, p.Plan.Groups)
	path, err := s.corpusPath(spec)
	if err != nil {
		return CorpusInfo{}, err
	}
	built, err := s.ensureCorpus(ctx, t, model, spec, func(text string) { on(Event{At: s.now(), Kind: "corpus", Text: text}) })
	if err != nil {
		return CorpusInfo{}, err
	}
	if !exists(path) {
		return CorpusInfo{}, fail(CauseNotInstalled, "install an engine that opens the model; it counts, so that prompts have exactly the length their point names", "no engine here counts tokens of %s", q.Model)
	}
	out := corpusInfo(path)
	out.Built = built
	return out, out.err()
}

// Corpora lists the corpora of the state folder whose key begins with one of the given, or all. check reads each whole;
// else only its manifest is read.
func (s *Service) Corpora(ctx context.Context, check bool, keys ...string) ([]CorpusInfo, error) {
	dir := filepath.Join(s.state, "corpus")
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []CorpusInfo
	found := map[string]bool{}
	for _, e := range entries {
		key, ok := strings.CutSuffix(e.Name(), ".jsonl")
		i := slices.IndexFunc(keys, func(k string) bool { return strings.HasPrefix(key, k) })
		if !ok || len(keys) > 0 && i < 0 {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, &Error{Cause: CauseInterrupted, Err: err}
		}
		if i >= 0 {
			found[keys[i]] = true
		}
		c := corpusInfo(filepath.Join(dir, e.Name()))
		if check && c.Problem == "" {
			c.verify()
		}
		out = append(out, c)
	}
	for _, k := range keys {
		if !found[k] {
			return nil, fail(CauseNotFound, "broker corpus list prints them", "no prompt corpus %s in %s", k, dir)
		}
	}
	slices.SortFunc(out, func(a, b CorpusInfo) int {
		return cmp.Or(cmp.Compare(a.Manifest.Spec.Tokenizer.Name, b.Manifest.Spec.Tokenizer.Name), cmp.Compare(a.Key, b.Key))
	})
	return out, nil
}

// corpusInfo reads the first line of a corpus.
func corpusInfo(path string) CorpusInfo {
	c := CorpusInfo{Key: strings.TrimSuffix(filepath.Base(path), ".jsonl"), Path: path}
	f, err := os.Open(path)
	if err != nil {
		c.Problem = err.Error()
		return c
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil {
		c.Bytes = st.Size()
	}
	line, err := bufio.NewReader(f).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &c.Manifest)
	}
	if err != nil {
		c.Problem = fmt.Sprintf("line 1 is no manifest: %v", err)
	}
	return c
}

// verify reads every prompt of a corpus against its manifest and its name.
func (c *CorpusInfo) verify() {
	if _, err := openCorpus(c.Path); err != nil {
		c.Problem = err.Error()
		return
	}
	switch key, err := c.Manifest.Spec.Key(); {
	case err != nil:
		c.Problem = err.Error()
	case key != c.Key:
		c.Problem = fmt.Sprintf("the file is named %.16s…, its spec makes %.16s…", c.Key, key)
	}
}

func (c CorpusInfo) err() error {
	if c.Problem == "" {
		return nil
	}
	return fail(CauseEvidence, "remove the file; it will be built again", "prompt corpus %s: %s", c.Path, c.Problem)
}

// Where says in words what a corpus is for.
func (c CorpusInfo) Where() string {
	var points []string
	for _, p := range c.Manifest.Spec.Parts {
		points = append(points, fmt.Sprintf("%s:%d", p.Point, p.PromptTokens))
	}
	return strings.Join(points, " ")
}
