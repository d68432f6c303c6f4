package service

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"enginebroker/matrix"
)

// The state folder holds what is worth keeping between runs and can be made again: preflights on record, prompt corpora,
// file hashes, A/A results. Each entry is one JSON file named by the digest of its key.

// load reads an entry of the state folder into v; false where there is none.
func (s *Service) load(kind, key string, v any) (bool, error) {
	path := s.statePath(kind, key)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return false, fmt.Errorf("%s: %w; remove the file, it will be made again", path, err)
	}
	return true, nil
}

// entries calls fn with the key of every entry of a kind.
func (s *Service) entries(kind string, fn func(key string) error) error {
	files, err := os.ReadDir(filepath.Join(s.state, kind))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, f := range files {
		if key, ok := strings.CutSuffix(f.Name(), ".json"); ok {
			if err := fn(key); err != nil {
				return err
			}
		}
	}
	return nil
}

// save writes an entry so that it is there whole or not at all.
func (s *Service) save(kind, key string, v any) error {
	data, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err
	}
	return writeWhole(s.statePath(kind, key), func(f *os.File) error {
		_, err := f.Write(data)
		return err
	})
}

func (s *Service) statePath(kind, key string) string {
	return filepath.Join(s.state, kind, key+".json")
}

// find is load by a key that is a value.
func (s *Service) find(kind string, key, v any) (bool, error) {
	digest, err := matrix.Digest(key)
	if err != nil {
		return false, err
	}
	return s.load(kind, digest, v)
}

// keep is save by a key that is a value.
func (s *Service) keep(kind string, key, v any) error {
	digest, err := matrix.Digest(key)
	if err != nil {
		return err
	}
	return s.save(kind, digest, v)
}
