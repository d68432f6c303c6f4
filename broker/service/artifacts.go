package service

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"enginebroker/engines/artifact"
	"enginebroker/matrix"
)

// locate fills in where an artifact's files are on this machine and what they really hold. An artifact without local files
// stays as the catalog has it: a plan can be made of it, a run cannot.
func (s *Service) locate(ctx context.Context, a *matrix.Artifact) error { return s.read(ctx, a, false) }

// read is locate; rehash takes no hash for granted.
func (s *Service) read(ctx context.Context, a *matrix.Artifact, rehash bool) error {
	loc, named, err := s.locator(*a)
	if err != nil {
		return &Error{Cause: CauseUsage, Err: err}
	}
	sums, err := s.sums()
	if err != nil {
		return err
	}
	manifest, report, err := artifact.Open(ctx, loc, artifact.Options{HubDir: artifact.HubDir(s.getenv), Sums: sums, Pause: pauseOf(ctx), Rehash: rehash})
	if r, ok := errors.AsType[*artifact.Refusal](err); ok && !named && r.Code == artifact.NotFound {
		return nil // only the cache was looked into, and it has no such snapshot
	}
	if err != nil {
		// A file that is there and lies, or a path that somebody named and is not there, is never passed over.
		return &Error{Cause: CauseUsage, Err: err, Fix: "artifact " + a.ID + " is looked for at " + loc.String()}
	}
	a.Path = loc.Path
	if a.Path == "" || loc.Repository != "" {
		a.Path = report.Root
	}
	a.Manifest = matrix.Some(manifest)
	return sums.Save()
}

// locator is the path the configuration or the catalog names, else the artifact's repository in the Hugging Face cache.
func (s *Service) locator(a matrix.Artifact) (artifact.Locator, bool, error) {
	if p, ok := s.cfg.Artifacts[a.ID]; ok {
		loc, err := artifact.ParseLocator(p)
		return loc, true, err
	}
	if a.Path != "" {
		loc, err := artifact.ParseLocator(a.Path)
		return loc, true, err
	}
	return artifact.Locator{Repository: a.Repository, Revision: a.Revision}, false, nil
}

func (s *Service) sums() (*artifact.Sums, error) {
	if err := os.MkdirAll(s.state, 0o755); err != nil {
		return nil, err
	}
	return artifact.OpenSums(filepath.Join(s.state, "sums.json"))
}

// files lists every file of a located artifact by absolute path, for eviction and for the proof of loading.
func files(a matrix.Artifact) []string {
	m, ok := a.Manifest.Get()
	if !ok {
		return nil
	}
	root := a.Path
	if st, err := os.Stat(root); err == nil && !st.IsDir() {
		root = filepath.Dir(root)
	}
	out := make([]string, len(m.Files))
	for i, f := range m.Files {
		out[i] = filepath.Join(root, f.Path)
	}
	return out
}
