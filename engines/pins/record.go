package pins

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/goccy/go-yaml"
)

// Record writes a new pin. One that exists is not replaced: that is Advance.
func Record(dir string, p Pin) error {
	if err := p.check(); err != nil {
		return fmt.Errorf("pins: %w", err)
	}
	path := filepath.Join(dir, p.Name+extension)
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("%s: pin %s is recorded already: advance it, with a reason", path, p.Name)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("pins: %w", err)
	}
	return write(path, p)
}

// Advance moves a pin on to what next expects. The old record goes into the pin's history with who replaced it, when, why, and
// what it carried: the runs, cells and goldens that rest on it, as the caller knows them. It returns the old record.
func Advance(dir, name string, next Expect, copied Copy, act Act, carried []string) (Replaced, error) {
	path := filepath.Join(dir, name+extension)
	if !pinName.MatchString(name) {
		return Replaced{}, fmt.Errorf("pins: %q is no name of a pin", name)
	}
	p, err := read(path)
	if err != nil {
		return Replaced{}, err
	}
	if err := act.check(); err != nil {
		return Replaced{}, fmt.Errorf("pins: advance %s: %w", name, err)
	}
	old := Replaced{Expect: p.Expect, Recorded: p.Recorded, Replaced: act, Carried: carried}
	p.History = append(p.History, old)
	p.Expect, p.Copy, p.Recorded = next, copied, act
	if err := p.check(); err != nil {
		return Replaced{}, fmt.Errorf("pins: advance %s: %w", name, err)
	}
	return old, write(path, p)
}

// write puts a pin on disk as a whole: a reader sees the old file or the new one.
func write(path string, p Pin) error {
	b, err := yaml.Marshal(p)
	if err != nil {
		return fmt.Errorf("pins: %w", err)
	}
	if again, err := parse(path, b); err != nil {
		return fmt.Errorf("pins: written form cannot be read back: %w", err)
	} else if again.Name != p.Name {
		return fmt.Errorf("pins: written form of %s reads as %s", p.Name, again.Name)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("pins: %w", err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".pin-*")
	if err != nil {
		return fmt.Errorf("pins: %w", err)
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(b)
	err = errors.Join(err, tmp.Chmod(0o644), tmp.Sync(), tmp.Close())
	if err != nil {
		return fmt.Errorf("pins: %w", err)
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return fmt.Errorf("pins: %w", err)
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("pins: %w", err)
	}
	defer d.Close()
	return d.Sync()
}
