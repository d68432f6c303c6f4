package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"time"

	"enginebroker/engines"
	"enginebroker/matrix"
	"enginebroker/matrix/verdict"
	"enginebroker/matrix/workload"
)

// corpusSeed is fixed: the prompts belong to the method, and a method must not change with the seed of a schedule.
const corpusSeed = 0

// corpusSpec is the corpus that a plan needs, known before anything runs, so that it can be looked up by its key.
func corpusSpec(model matrix.Model, points []matrix.Point, profile workload.Profile, groups []matrix.Group) workload.Spec {
	// As large as four arms need it, and an A/A with its re-runs: the corpus is part of the method, which an A/A has to share.
	most := superblocks(profile, 4)
	for _, g := range groups {
		most = max(most, superblocks(profile, len(g.Arms)))
	}
	reserve := max(workload.Reserve(most), aaSuperblocks+verdict.Allowance(aaSuperblocks))
	return workload.SpecOf(points, profile.Repetitions, reserve, corpusSeed, tokenizerOf(model, groups))
}

// tokenizerOf names whose tokens are counted: the model's, by the fingerprint of the first local artifact that has one.
// Simulated engines count words of their own, whatever the model.
func tokenizerOf(model matrix.Model, groups []matrix.Group) workload.Tokenizer {
	t := workload.Tokenizer{Name: model.Name}
	if len(groups) > 0 && !slices.ContainsFunc(groups, func(g matrix.Group) bool {
		return slices.ContainsFunc(g.Arms, func(a matrix.Arm) bool { return !a.Simulated })
	}) {
		return workload.Tokenizer{Name: "SIMULATED"}
	}
	for _, id := range model.Preference {
		a, _ := model.Artifact(id)
		if m, ok := a.Manifest.Get(); ok && m.Tokenizer.Present() {
			t.Fingerprint = m.Tokenizer.Or("")
			return t
		}
	}
	return t
}

// corpusFor is the identity of the corpus a plan will use, as the method records it. Where none was built, it says so.
func (s *Service) corpusFor(model matrix.Model, points []matrix.Point, profile workload.Profile, groups []matrix.Group) (string, error) {
	c, err := s.corpus(corpusSpec(model, points, profile, groups))
	if err != nil {
		return "", err
	}
	return c.Identity(), nil
}

// corpus opens the corpus of a spec in the state folder; without one it is the text corpus, whose lengths nobody counted.
func (s *Service) corpus(spec workload.Spec) (*workload.Corpus, error) {
	path, err := s.corpusPath(spec)
	if err != nil {
		return nil, err
	}
	c, err := openCorpus(path)
	if errors.Is(err, fs.ErrNotExist) {
		spec.Tokenizer = workload.Tokenizer{}
		return workload.Build(spec, nil)
	}
	return c, err
}

// openCorpus checks a corpus file whole and leaves its prompts in it: a binding run has some 100 MB of them, and the
// process that measures may have 64 MiB (architecture §5).
func openCorpus(path string) (*workload.Corpus, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	c, err := workload.Open(fileAt(path), st.Size())
	if err != nil {
		return nil, fail(CauseEvidence, "remove the file; it will be built again", "prompt corpus %s: %w", path, err)
	}
	return c, nil
}

// fileAt reads from a file by its path, opened for each read: nobody has to close a corpus, and one that was replaced is
// noticed by its sums.
type fileAt string

func (path fileAt) ReadAt(b []byte, off int64) (int, error) {
	f, err := os.Open(string(path))
	if err != nil {
		return 0, err
	}
	n, err := f.ReadAt(b, off)
	if closed := f.Close(); err == nil { // io.EOF has to stay what it is
		err = closed
	}
	return n, err
}

func (s *Service) corpusPath(spec workload.Spec) (string, error) {
	key, err := spec.Key()
	return filepath.Join(s.state, "corpus", key+".jsonl"), err
}

// ensureCorpus builds the corpus of a plan through the tokenizer of the first engine that has one, unless it is there. It
// reports whether it built one. An engine is started only where its tokenizer needs a running server.
func (s *Service) ensureCorpus(ctx context.Context, t *team, model matrix.Model, spec workload.Spec, say func(string)) (bool, error) {
	path, err := s.corpusPath(spec)
	if err != nil {
		return false, err
	}
	if _, err := os.Stat(path); err == nil {
		return false, nil
	}
	for _, m := range subjectFirst(t.members, s.cfg.Subject) {
		if m.host == nil || m.err != nil || !m.desc.Installed || m.Attach != "" {
			continue
		}
		tokenize, stop, err := s.tokenizer(ctx, m, model)
		if errors.Is(err, engines.ErrUnsupported) {
			continue
		}
		if err != nil {
			if ctx.Err() != nil {
				return false, &Error{Cause: CauseInterrupted, Err: ctx.Err()}
			}
			say(fmt.Sprintf("corpus: the tokenizer of %s cannot be asked: %v", m.Label, err))
			continue
		}
		say(fmt.Sprintf("corpus: counting tokens through %s", m.Label))
		c, err := workload.Build(spec, tokenize)
		stop()
		if err != nil {
			return false, interrupted(ctx, fmt.Errorf("prompt corpus through %s: %w", m.Label, err), "")
		}
		err = writeWhole(path, func(f *os.File) error { return c.Write(f) })
		c = nil
		debug.FreeOSMemory() // what was built is in the file; a run may follow in this process
		return true, err
	}
	say("corpus: no engine counts tokens; prompts have approximate lengths, and the plan says so")
	return false, nil
}

func subjectFirst(ms []*member, subject string) []*member {
	out := slices.Clone(ms)
	slices.SortStableFunc(out, func(a, b *member) int {
		switch {
		case a.Label == subject && b.Label != subject:
			return -1
		case b.Label == subject && a.Label != subject:
			return 1
		}
		return 0
	})
	return out
}

// tokenizer asks an engine for token ids; where that needs a running server it starts one, which stop ends.
func (s *Service) tokenizer(ctx context.Context, m *member, model matrix.Model) (func(string) ([]int, error), func(), error) {
	ask := func(text string) ([]int, error) { return m.host.Tokenize(ctx, text) }
	_, err := ask("probe")
	if err == nil {
		return ask, func() {}, nil
	}
	if !errors.Is(err, engines.ErrNotStarted) {
		return nil, nil, err
	}
	i := slices.IndexFunc(model.Artifacts, func(a matrix.Artifact) bool { return a.Path != "" && opens(m.desc, a) })
	if i < 0 {
		return nil, nil, errors.New("it opens none of the model's local artifacts")
	}
	req, err := s.single("corpus", m, model, model.Artifacts[i])
	if err != nil {
		return nil, nil, err
	}
	if _, err := m.host.Start(ctx, req, func(matrix.Progress) {}); err != nil {
		return nil, nil, err
	}
	stop := func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		m.host.Stop(ctx, time.Minute)
	}
	if _, err = ask("probe"); err != nil {
		stop()
		return nil, nil, err
	}
	return ask, stop, nil
}

// opens reports whether an engine states that it opens an artifact of this container.
func opens(d matrix.Description, a matrix.Artifact) bool {
	return slices.ContainsFunc(d.Capabilities, func(c matrix.Capability) bool { return c.Status.Runs() && c.Container == a.Container })
}

// writeWhole writes a file so that it is there whole or not at all.
func writeWhole(path string, write func(*os.File) error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	if err := errors.Join(write(tmp), tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}
