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
	"strings"

	"github.com/goccy/go-yaml"

	"enginebroker/matrix/regular"
)

// record is what lies in a directory as one file each: a pin or a claim.
type record interface {
	name() string
	check() error
}

const (
	extension = ".yaml"
	maxFile   = 4 << 20 // bytes of one record [own]; a pin's history lists what it carried
)

var recordName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*$`)

func loadAll[T record](dir string) (map[string]T, error) {
	set := map[string]T{}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return set, nil
	}
	if err != nil {
		return nil, err
	}
	var faults []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		path := filepath.Join(dir, e.Name())
		r, err := read[T](path)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		set[r.name()] = r
	}
	return set, errors.Join(faults...)
}

func read[T record](path string) (T, error) {
	var none T
	name, ok := strings.CutSuffix(filepath.Base(path), extension)
	if !ok {
		return none, fmt.Errorf("%s: no record: records are NAME%s", path, extension)
	}
	b, err := regular.ReadFile(path, maxFile)
	if err != nil {
		return none, err
	}
	r, err := parse[T](path, b)
	if err == nil && r.name() != name {
		err = fmt.Errorf("%s: %q is not the name of the file", path, r.name())
	}
	return r, err
}

// parse reads one record. Unknown and repeated fields are errors.
func parse[T record](path string, b []byte) (T, error) {
	var r, second T
	dec := yaml.NewDecoder(bytes.NewReader(b), yaml.DisallowUnknownField())
	if err := dec.Decode(&r); err != nil {
		return r, fault(path, err)
	}
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		return r, fmt.Errorf("%s: more than one document in the file", path)
	}
	if err := verify(r); err != nil {
		return r, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

func verify(r record) error {
	if !recordName.MatchString(r.name()) {
		return fmt.Errorf("%q is no name: lower-case letters, digits, dot, dash, underscore", r.name())
	}
	return r.check()
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

// create writes a record that is not there yet.
func create(dir string, r record) error {
	if err := verify(r); err != nil {
		return err
	}
	path := filepath.Join(dir, r.name()+extension)
	if _, err := os.Lstat(path); err == nil {
		return &existsError{path}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return write(path, r)
}

// existsError says that a record is never replaced in silence.
type existsError struct{ path string }

func (e *existsError) Error() string { return e.path + ": recorded already" }

// write puts a record on disk as a whole: a reader sees the old file or the new one, and a crash leaves one of them.
func write(path string, r record) error {
	b, err := yaml.Marshal(r)
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(dir, ".record-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(b)
	if err := errors.Join(err, tmp.Chmod(0o644), tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
