// Package ledger keeps the evidence of a run: one directory, written before anything is judged, and never rewritten.
//
// What is not in the directory did not happen; what is in it and does not verify is reported by name and used by nobody.
// The package owns no clock: every time comes in with the record it belongs to.
//
// The directory (architecture §7):
//
//	plan.json            canonical; its sha256 stands in every record
//	ledger.jsonl         append-only, one record a line, each carrying its own sum and the sum of the one before
//	ledger.head          sequence number and sum of the last record: a ledger cut at a line's end is found out
//	ledger.torn-SEQ      what a crash left of a half-written line, set aside when the run was opened again
//	legs/LEG/            arrivals (zstd, one file a repetition), requests, clocks, memory, tail of the engine's log
//	report.json …        derived from the above, replaced at will
//
// The way of one leg: its files are written into a temporary directory and synced, the directory takes its name, and only
// then does the ledger line that lists them with their hashes appear. A crash at any point loses at most that leg.
package ledger

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"enginebroker/matrix"
	"enginebroker/matrix/regular"
)

// Names of the files of a run.
const (
	PlanFile   = "plan.json"
	LedgerFile = "ledger.jsonl"
	HeadFile   = "ledger.head"
	LegsDir    = "legs"
)

// ErrReadOnly is returned by every write to a run that was opened by Read.
var ErrReadOnly = errors.New("the run is open for reading only")

// ErrBusy says that another process is writing this run.
var ErrBusy = errors.New("another process is writing this run")

// Run is an open run directory. Its methods may be called from several goroutines.
type Run struct {
	dir  string
	root *os.Root
	plan matrix.Plan
	hash string // sha256 of plan.json
	disk disk

	mu    sync.Mutex
	file  *os.File // ledger.jsonl, locked; nil when reading only
	head  head
	size  int64 // bytes of the ledger that verify
	stuck error // set when the ledger may hold bytes that could not be taken back
}

// head names the last record. Before the first one its sum is the plan's sha256.
type head struct {
	Seq int    `json:"seq"`
	Sum string `json:"sum"`
}

// Create makes the directory of a new run with its plan. It refuses a directory that exists, and a file system with less
// room than the plan is expected to need.
func Create(dir string, plan matrix.Plan) (*Run, error) { return create(dir, plan, realDisk()) }

func create(dir string, plan matrix.Plan, d disk) (*Run, error) {
	text, err := matrix.Canonical(plan)
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	parent := filepath.Dir(filepath.Clean(dir))
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, err
	}
	if err := d.room(parent, Estimate(plan)); err != nil {
		return nil, err
	}
	exists := func(err error) error {
		if errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("%s exists already: a run is never written over; resume it, or name another directory", dir)
		}
		return err
	}
	if _, err := os.Lstat(dir); err == nil {
		return nil, exists(fs.ErrExist)
	}
	// The directory gets its name when all of a run is in it: a process that is killed before has begun no run. Listings pass
	// over names that begin with a dot.
	made, err := os.MkdirTemp(parent, ".new-"+filepath.Base(dir)+"-")
	if err != nil {
		return nil, err
	}
	r := &Run{dir: dir, plan: plan, hash: sum(text), disk: d}
	if r.root, err = os.OpenRoot(made); err != nil {
		return nil, errors.Join(err, os.Remove(made))
	}
	r.head = head{Sum: r.hash}
	err = errors.Join(
		os.Chmod(made, 0o755),
		r.root.Mkdir(LegsDir, 0o755),
		r.replace(PlanFile, text),
		r.writeHead(),
		r.lock(os.O_CREATE|os.O_EXCL),
		d.syncDir(r.root, "."),
	)
	if err == nil {
		err = exists(os.Rename(made, dir))
	}
	if err != nil {
		r.Close()
		os.RemoveAll(made)
		return nil, fmt.Errorf("create run %s: %w", dir, err)
	}
	if err := syncPath(parent); err != nil {
		r.Close()
		os.RemoveAll(dir) // made a moment ago, and in the way of another try
		return nil, fmt.Errorf("create run %s: %w", dir, err)
	}
	return r, nil
}

// Open replays a run for writing. A torn last line is set aside and found; every other finding is an error as well: nobody
// appends to evidence that does not verify. The findings are returned either way.
func Open(dir string) (*Run, Findings, error) {
	r, found, err := open(dir, realDisk())
	if err != nil {
		return nil, found, err
	}
	// What replays is a file: locking a pipe in its place would wait for ever.
	if err := found.Without(TornLine, SetAside).Err(); err != nil {
		r.Close()
		return nil, found, fmt.Errorf("open run %s: %w", dir, err)
	}
	if err := r.lock(0); err != nil {
		r.Close()
		return nil, found, err
	}
	// Replayed again under the lock: another process may have written in between.
	if found, err = r.replay(); err == nil {
		err = found.Without(TornLine, SetAside, OrphanLeg).Err()
	}
	if err == nil {
		err = r.setAside(found)
	}
	if err == nil {
		var orphans Findings
		orphans, err = r.orphans()
		found = append(found, orphans...)
	}
	if err != nil {
		r.Close()
		return nil, found, fmt.Errorf("open run %s: %w", dir, err)
	}
	return r, found, nil
}

// Read replays a run for reading. Records up to the first one that does not verify can be read; the findings say what is
// lost. The error is set when nothing can be read: no plan, or none that its ledger was written for. Of a live writer the
// record being written is no finding; the head is read first, so that a running append is never taken for a loss.
func Read(dir string) (*Run, Findings, error) {
	r, found, err := open(dir, realDisk())
	if err != nil || !found.Has(TornLine) {
		return r, found, err
	}
	// The lock tells what a writer is at from what a dead one left.
	f, err := regular.OpenIn(r.root, LedgerFile)
	if err != nil {
		r.Close()
		return nil, found, err
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		return r, found.Without(TornLine), nil
	}
	if found, err = r.replay(); err != nil {
		r.Close()
		return nil, found, err
	}
	return r, found, nil
}

func open(dir string, d disk) (*Run, Findings, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("open run: %w", err)
	}
	r := &Run{dir: dir, root: root, disk: d}
	found, err := r.replay()
	if err != nil {
		r.Close()
		return nil, found, err
	}
	return r, found, nil
}

// Close releases the run.
func (r *Run) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var err error
	if r.file != nil {
		err = r.file.Close()
		r.file = nil
	}
	if r.root != nil {
		err = errors.Join(err, r.root.Close())
	}
	return err
}

// Dir returns the directory of the run.
func (r *Run) Dir() string { return r.dir }

// Plan returns the plan of the run.
func (r *Run) Plan() matrix.Plan { return r.plan }

// PlanSHA256 returns the sha256 of plan.json.
func (r *Run) PlanSHA256() string { return r.hash }

// Len returns the number of records that verify.
func (r *Run) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.head.Seq
}

func (r *Run) writable() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.file != nil
}

// Append writes one record and returns once it is on the disk. The time is the caller's.
func (r *Run) Append(kind Kind, at time.Time, body any) (Record, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return Record{}, fmt.Errorf("%s record: %w", kind, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil {
		return Record{}, ErrReadOnly
	}
	if r.stuck != nil {
		return Record{}, fmt.Errorf("%s: an earlier write failed and could not be taken back, open the run again: %w", LedgerFile, r.stuck)
	}
	rec := Record{Seq: r.head.Seq + 1, Prev: r.head.Sum, Plan: r.hash, Kind: kind, Time: at.UTC(), Body: raw}
	line, err := rec.encode()
	if err != nil {
		return Record{}, err
	}
	w := r.disk.wrap(LedgerFile, r.file)
	_, err = w.Write(append(line, '\n'))
	if err == nil {
		err = w.Sync()
	}
	if err != nil {
		if back := r.file.Truncate(r.size); back != nil {
			r.stuck = back
		}
		return Record{}, r.nameSpace(LedgerFile, err)
	}
	r.size += int64(len(line)) + 1
	r.head = head{Seq: rec.Seq, Sum: rec.Sum}
	// The line is on the disk: a head that could not be written is one behind, which a replay accepts.
	return rec, r.writeHead()
}

func (r *Run) writeHead() error {
	b, err := json.Marshal(r.head)
	if err != nil {
		return err
	}
	return r.replace(HeadFile, append(b, '\n'))
}

// lock opens the ledger for appending, for this process alone.
func (r *Run) lock(flags int) error {
	f, err := r.root.OpenFile(LedgerFile, os.O_WRONLY|os.O_APPEND|flags, 0o644)
	if err != nil {
		return err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return fmt.Errorf("%s: %w (%w)", filepath.Join(r.dir, LedgerFile), ErrBusy, err)
	}
	r.file = f
	return nil
}

// replace writes a file so that it is there whole or not at all.
func (r *Run) replace(name string, content []byte) error {
	tmp := name + ".tmp"
	_, _, err := r.write(tmp, func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	})
	if err == nil {
		err = r.root.Rename(tmp, name)
	}
	if err != nil {
		r.root.Remove(tmp)
		return r.nameSpace(name, err)
	}
	return r.disk.syncDir(r.root, ".")
}

func sum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}
