package pins

import (
	"errors"
	"fmt"
	"path/filepath"
)

// Record writes a new pin. One that exists is not replaced: that is Advance.
func Record(dir string, p Pin) error {
	err := create(dir, p)
	if _, ok := errors.AsType[*existsError](err); ok {
		return fmt.Errorf("pin %s: %w: advance it, with a reason", p.Name, err)
	}
	return err
}

// Advance moves a pin on to what next expects. The old record goes into the pin's history with who replaced it, when, why, and
// what it carried: the runs, cells and goldens that rest on it, as the caller knows them. It returns the old record.
func Advance(dir, name string, next Expect, copied Copy, act Act, carried []string) (Replaced, error) {
	if !recordName.MatchString(name) {
		return Replaced{}, fmt.Errorf("%q is no name of a pin", name)
	}
	path := filepath.Join(dir, name+extension)
	p, err := read[Pin](path)
	if err != nil {
		return Replaced{}, err
	}
	if err := act.check(); err != nil {
		return Replaced{}, fmt.Errorf("advance pin %s: %w", name, err)
	}
	old := Replaced{Expect: p.Expect, Recorded: p.Recorded, Replaced: act, Carried: carried}
	p.History = append(p.History, old)
	p.Expect, p.Copy, p.Recorded = next, copied, act
	if err := p.check(); err != nil {
		return Replaced{}, fmt.Errorf("advance pin %s: %w", name, err)
	}
	return old, write(path, p)
}
