package box

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"enginebroker/matrix"
	"enginebroker/matrix/regular"
)

// unfinishedName is the file that marks a run as going on. It lies with the run's evidence, which survives a boot.
const unfinishedName = "unfinished.json"

// Fate says what became of a run that never ended.
type Fate string

const (
	FateRunning  Fate = "running"       // its broker lives
	FateDied     Fate = "broker_died"   // same boot, its broker is gone
	FateVanished Fate = "host_vanished" // the box was rebooted or lost under it
)

// Unfinished is the mark of a run.
type Unfinished struct {
	Holder
	Fate Fate `json:"-"`
}

// Begin marks a run in its directory as going on, fsynced: running out of unified memory takes the host without a word,
// and this mark with another boot id is all that tells. End removes it.
func (b *Box) Begin(dir, name string) (end func() error, err error) {
	me, err := b.self()
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(Holder{Process: me, Name: name, Since: time.Now().UTC()})
	if err != nil {
		return nil, err
	}
	// A process that ends while it writes leaves no mark, and nothing was begun.
	f, err := os.Create(filepath.Join(dir, "."+unfinishedName))
	if err != nil {
		return nil, err
	}
	_, err = f.Write(append(data, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return nil, err
	}
	if err := os.Rename(f.Name(), filepath.Join(dir, unfinishedName)); err != nil {
		return nil, err
	}
	return func() error { return Forget(dir) }, syncDir(dir)
}

// Unfinished reads the mark of a run directory; absent where the run ended or never began.
func (b *Box) Unfinished(dir string) (matrix.Opt[Unfinished], error) {
	path := filepath.Join(dir, unfinishedName)
	data, err := regular.ReadFile(path, sharedLimit)
	if errors.Is(err, fs.ErrNotExist) {
		return matrix.Opt[Unfinished]{}, nil
	}
	if err != nil {
		return matrix.Opt[Unfinished]{}, err
	}
	var u Unfinished
	if err := json.Unmarshal(data, &u.Holder); err != nil || u.BootID == "" {
		return matrix.Opt[Unfinished]{}, fmt.Errorf("%s cannot be read: a run was going on here and what ended it is unknown; remove the file once you have looked at the run", path)
	}
	switch {
	case u.BootID != b.bootID:
		u.Fate = FateVanished
	case b.alive(u.Process):
		u.Fate = FateRunning
	default:
		u.Fate = FateDied
	}
	return matrix.Some(u), nil
}

// Forget removes the mark of a run that did not end, once its fate is on record.
func Forget(dir string) error { return os.Remove(filepath.Join(dir, unfinishedName)) }

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
