package fingerprint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"enginebroker/matrix"
	"enginebroker/matrix/regular"
)

// Rung is how well it is known which weights a server loaded (engines.md I), best first. The served name is no rung: it is
// what somebody typed.
type Rung string

const (
	RungMappings  Rung = "mappings"   // every weight file is mapped
	RungOpenFiles Rung = "open_files" // every weight file is open
	RungBytesRead Rung = "bytes_read" // the tree read more from storage than its programs and these files have
	RungArgv      Rung = "argv"       // the path stands on the command line
	RungNone      Rung = "none"
)

var rungs = []Rung{RungMappings, RungOpenFiles, RungBytesRead, RungArgv, RungNone}

// Proof is the best evidence so far of which weights a tree loaded.
type Proof struct {
	Rung   Rung
	Detail string
}

// Fact is the proof as a fact; a path on a command line is only claimed.
func (p Proof) Fact() matrix.Fact {
	f := observed(matrix.FactWeightsProof, string(p.Rung), p.Detail)
	if p.Rung == RungArgv || p.Rung == RungNone {
		f.Standing = matrix.Claimed
	}
	return f
}

// Better returns the proof that stands higher on the ladder. Loaders that read and close leave traces only during the load:
// sample it there and keep the best.
func (p Proof) Better(q Proof) Proof {
	for _, r := range rungs {
		switch r {
		case p.Rung:
			return p
		case q.Rung:
			return q
		}
	}
	return p
}

// Weights looks for proof that a tree loaded these files, given by absolute path.
func Weights(proc string, pids []int, files []string) (Proof, error) {
	if proc == "" {
		proc = "/proc"
	}
	if len(files) == 0 {
		return Proof{}, errors.New("fingerprint: no weight files given")
	}
	want := make([]weight, len(files))
	var size int64
	for i, f := range files {
		var st unix.Stat_t
		if err := unix.Stat(f, &st); err != nil {
			return Proof{}, fmt.Errorf("fingerprint: weights: %s: %w", f, err)
		}
		real, err := filepath.EvalSymlinks(f)
		if err != nil {
			return Proof{}, fmt.Errorf("fingerprint: weights: %w", err)
		}
		want[i] = weight{dev: uint64(st.Dev), inode: st.Ino, path: f, real: real}
		size += st.Size
	}
	held := func(by func(*weight) bool) int {
		n := 0
		for i := range want {
			if by(&want[i]) {
				n++
			}
		}
		return n
	}
	var read int64
	argv := ""
	tree, err := readTree(proc, pids)
	if err != nil {
		return Proof{}, err
	}
	for _, p := range tree {
		p.mapsOf(want)
		n, err := p.readBytes()
		if err = errors.Join(err, p.openOf(want)); err != nil && p != tree[0] && isGone(err) {
			continue // it ended meanwhile
		} else if err != nil {
			return Proof{}, err
		}
		read += n
		for _, a := range p.argv {
			if argv == "" && p.names(a, want) {
				argv = a
			}
		}
	}
	mapped, open := held(func(w *weight) bool { return w.mapped }), held(func(w *weight) bool { return w.open })
	switch {
	case mapped == len(want):
		return Proof{RungMappings, fmt.Sprintf("%d of %d files mapped", mapped, len(want))}, nil
	case open == len(want):
		return Proof{RungOpenFiles, fmt.Sprintf("%d of %d files open", open, len(want))}, nil
	case read >= size+programs(tree):
		return Proof{RungBytesRead, fmt.Sprintf("%d bytes read, the files have %d and the programs %d", read, size, programs(tree))}, nil
	}
	detail := fmt.Sprintf("%d of %d files mapped, %d open, %d of %d bytes read", mapped, len(want), open, read, size)
	if argv != "" {
		return Proof{RungArgv, argv + " on the command line; " + detail}, nil
	}
	return Proof{RungNone, detail}, nil
}

// programs is the size of every executable file the tree has mapped: what it may have read besides weights. A Python engine
// reads half a gigabyte before it opens a model.
func programs(tree []*process) int64 {
	seen := map[string]bool{}
	var n int64
	for _, p := range tree {
		for _, m := range p.maps {
			if !m.exec || seen[m.path] {
				continue
			}
			seen[m.path] = true
			if st, err := os.Stat(p.inside(m.path)); err == nil {
				n += st.Size()
			}
		}
	}
	return n
}

// weight is one file that is looked for.
type weight struct {
	dev, inode   uint64
	path, real   string
	mapped, open bool
}

// mapsOf marks the files that the process has mapped. An inode number alone is not a file: either the device is the same, or,
// where overlays and volumes hide it, the name.
func (p *process) mapsOf(want []weight) {
	for _, m := range p.maps {
		for i, w := range want {
			if m.inode == w.inode && (m.dev == w.dev || filepath.Base(m.path) == filepath.Base(w.real)) {
				want[i].mapped = true
			}
		}
	}
}

// openOf marks the files that the process holds open.
func (p *process) openOf(want []weight) error {
	dir := filepath.Join(p.dir, "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return p.cannot(err)
	}
	for _, e := range entries {
		var st unix.Stat_t
		if unix.Stat(filepath.Join(dir, e.Name()), &st) != nil {
			continue // closed since
		}
		for i, w := range want {
			if st.Ino == w.inode && uint64(st.Dev) == w.dev {
				want[i].open = true
			}
		}
	}
	return nil
}

// readBytes is what the process fetched from storage (proc_pid_io(5), read_bytes): pages that were cached are not in it.
func (p *process) readBytes() (int64, error) {
	b, err := regular.ReadFile(filepath.Join(p.dir, "io"), 4096)
	if errors.Is(err, fs.ErrPermission) {
		return 0, nil // a rung that cannot be reached, no fault
	}
	if err != nil {
		return 0, p.cannot(err)
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		if v, ok := strings.CutPrefix(line, "read_bytes: "); ok {
			return strconv.ParseInt(v, 10, 64)
		}
	}
	return 0, fmt.Errorf("fingerprint: %s/io has no read_bytes", p.dir)
}

// names reports whether an argument is one of the files, or the directory they lie in.
func (p *process) names(arg string, want []weight) bool {
	_, value, joined := strings.Cut(arg, "=")
	if !joined {
		value = arg
	}
	if !strings.ContainsAny(value, "/.") {
		return false
	}
	if !filepath.IsAbs(value) {
		value = filepath.Join(p.cwd, value)
	}
	value = p.inside(value)
	real, err := filepath.EvalSymlinks(value)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(want, func(w weight) bool {
		return w.real == real || w.path == value || filepath.Dir(w.path) == value || filepath.Dir(w.real) == real
	})
}
