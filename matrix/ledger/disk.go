package ledger

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"enginebroker/matrix"
)

// syncWriter is what evidence is written through.
type syncWriter interface {
	io.Writer
	Sync() error
}

// disk is the file system as the ledger sees it; tests fill it up.
type disk struct {
	wrap func(name string, f *os.File) syncWriter
	free func(dir string) (uint64, error)
}

func realDisk() disk {
	return disk{
		wrap: func(_ string, f *os.File) syncWriter { return f },
		free: func(dir string) (uint64, error) {
			var s syscall.Statfs_t
			if err := syscall.Statfs(dir, &s); err != nil {
				return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
			}
			return s.Bavail * uint64(s.Bsize), nil
		},
	}
}

// Bytes that a run is expected to need [own]: one streamed token is an event of 150 to 400 bytes that compresses at least
// four times, and every load brings a log tail, samples and records.
const (
	bytesPerToken = 100
	bytesPerLoad  = 4 << 20
	bytesSpare    = 64 << 20
)

// Estimate returns how many bytes the evidence of a plan is expected to take, from above.
func Estimate(p matrix.Plan) uint64 {
	tokens := 0
	for _, pt := range p.Method.Points {
		tokens = max(tokens, pt.OutputTokens)
	}
	return uint64(max(p.Cost.Requests, 0))*uint64(tokens)*bytesPerToken + uint64(max(p.Cost.Loads, 0))*bytesPerLoad + bytesSpare
}

// room refuses a file system with fewer free bytes than needed.
func (d disk) room(dir string, need uint64) error {
	free, err := d.free(dir)
	if err != nil {
		return err
	}
	if free < need {
		return fmt.Errorf("%s: %d MiB are free and the run may need %d MiB: free space, or put the runs elsewhere: %w",
			dir, free>>20, need>>20, syscall.ENOSPC)
	}
	return nil
}

// syncDir makes the names in a directory of the run last.
func (disk) syncDir(root *os.Root, name string) error {
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func syncPath(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// nameSpace says what a failed write cost and what to do about a full disk.
func (r *Run) nameSpace(name string, err error) error {
	path := filepath.Join(r.dir, name)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%s could not be written, what was recorded before it is intact; free space and resume the run: %w", path, err)
	}
	return fmt.Errorf("%s could not be written, what was recorded before it is intact: %w", path, err)
}
