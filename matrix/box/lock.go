package box

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"enginebroker/matrix"
)

// Holder is who holds the box, written into the lock file.
type Holder struct {
	matrix.Process
	Name  string    `json:"holder"` // run r42, doctor …
	Since time.Time `json:"since"`
}

// HeldError says that another broker has the box.
type HeldError struct {
	Path   string
	Holder Holder
	Known  bool // the holder that the file names is alive on this boot
}

func (e *HeldError) Error() string {
	if !e.Known {
		return fmt.Sprintf("the box is held by a process that the lock file %s does not name; find it with: fuser %s", e.Path, e.Path)
	}
	return fmt.Sprintf("the box is held by PID %d (%s) since %s; wait for it, or end it (lock file %s)",
		e.Holder.PID, e.Holder.Name, e.Holder.Since.UTC().Format(time.RFC3339), e.Path)
}

// Lock is the one lock of a box. Two measurements on one box would measure each other.
type Lock struct {
	f    *os.File
	path string
	// Previous is a holder that died without releasing; absent after a clean release.
	Previous matrix.Opt[Holder]
}

// Acquire takes the box for a named holder or returns a *HeldError. The kernel's file lock dies with its process; the
// holder in the file is checked too, by boot id, pid and start time, because a lock file may lie on a filesystem or in a
// container that the file lock does not reach.
func (b *Box) Acquire(holder string) (*Lock, error) {
	path := b.runtimePath("lock")
	for range 3 { // a lock file replaced between open and lock is opened again
		f, err := openShared(path)
		if err != nil {
			return nil, fmt.Errorf("lock file: %w: give the box one place for it that every user of the broker can write (runtime_dir)", err)
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		busy := errors.Is(err, unix.EWOULDBLOCK)
		if err != nil && !busy && !errors.Is(err, unix.ENOTSUP) && !errors.Is(err, unix.ENOLCK) {
			f.Close()
			return nil, fmt.Errorf("lock file %s: %w", path, err)
		}
		prev, had := readHolder(f)
		alive := had && b.alive(prev.Process)
		if busy || alive {
			f.Close()
			return nil, &HeldError{Path: path, Holder: prev, Known: alive}
		}
		if !sameFile(f, path) {
			f.Close()
			continue
		}
		l := &Lock{f: f, path: path}
		if had {
			l.Previous = matrix.Some(prev)
		}
		me, err := b.self()
		if err == nil {
			err = l.write(Holder{Process: me, Name: holder, Since: time.Now().UTC()})
		}
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("lock file %s: %w", path, err)
		}
		return l, nil
	}
	return nil, fmt.Errorf("lock file %s is replaced again and again; another program removes it", path)
}

// Release gives the box back and leaves no holder behind.
func (l *Lock) Release() error {
	return errors.Join(l.f.Truncate(0), l.f.Close())
}

func (l *Lock) write(h Holder) error {
	data, err := json.Marshal(h)
	if err != nil {
		return err
	}
	if err := l.f.Truncate(0); err != nil {
		return err
	}
	if _, err := l.f.WriteAt(append(data, '\n'), 0); err != nil {
		return err
	}
	return l.f.Sync()
}

// openShared opens a file that users share. It is opened without O_CREATE first: the kernel forbids creating over another
// user's file in a sticky directory (fs.protected_regular), opening it is allowed.
func openShared(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
	if errors.Is(err, fs.ErrExist) {
		return os.OpenFile(path, os.O_RDWR, 0)
	}
	if err != nil {
		return nil, err
	}
	return f, f.Chmod(0o666) // whatever the umask: the next holder may be another user
}

func readHolder(f *os.File) (Holder, bool) {
	data, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<16))
	if err != nil {
		return Holder{}, false
	}
	var h Holder
	if json.Unmarshal(data, &h) != nil || h.PID <= 0 {
		return Holder{}, false // empty after a release, torn, or not ours: nobody to respect beyond the file lock
	}
	return h, true
}

func sameFile(f *os.File, path string) bool {
	a, err1 := f.Stat()
	b, err2 := os.Stat(path)
	return err1 == nil && err2 == nil && os.SameFile(a, b)
}

// alive reports whether exactly this process lives: same boot, same pid, same start time.
func (b *Box) alive(p matrix.Process) bool {
	if p.BootID != b.bootID {
		return false
	}
	s, err := b.proc.pid(p.PID)
	return err == nil && s.start == p.StartTime && !s.gone
}

func (b *Box) self() (matrix.Process, error) {
	pid := os.Getpid()
	s, err := b.proc.pid(pid)
	if err != nil {
		return matrix.Process{}, fmt.Errorf("own process: %w", err)
	}
	return matrix.Process{PID: pid, StartTime: s.start, BootID: b.bootID}, nil
}

// holder is who holds the box now, absent for nobody.
func (b *Box) holder() matrix.Opt[Holder] {
	f, err := os.Open(b.runtimePath("lock"))
	if err != nil {
		return matrix.Opt[Holder]{}
	}
	defer f.Close()
	if h, ok := readHolder(f); ok && b.alive(h.Process) {
		return matrix.Some(h)
	}
	return matrix.Opt[Holder]{}
}
