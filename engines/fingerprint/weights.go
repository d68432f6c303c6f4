package fingerprint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"enginebroker/matrix"
)

// Rung is how well it is known which weights a server loaded (engines.md I), best first. The served name is no rung: it is
// what somebody typed.
type Rung string

const (
	RungMappings  Rung = "mappings"   // every weight file is mapped
	RungOpenFiles Rung = "open_files" // every weight file is open
	RungBytesRead Rung = "bytes_read" // the tree read at least as many bytes from storage as the files have
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
	var size int64
	mappedFiles, open := map[string]bool{}, map[string]bool{}
	inodes := map[uint64]string{}
	for _, f := range files {
		st, err := os.Stat(f)
		if err != nil {
			return Proof{}, fmt.Errorf("fingerprint: weights: %w", err)
		}
		size += st.Size()
		inodes[inode(f)] = f
	}
	var read int64
	argv := ""
	for _, pid := range pids {
		p, err := readProcess(proc, pid)
		if err != nil {
			return Proof{}, err
		}
		for _, m := range p.maps {
			if f, ok := inodes[m.inode]; ok && filepath.Base(m.path) != "" {
				mappedFiles[f] = true
			}
		}
		if err := p.openFiles(inodes, open); err != nil {
			return Proof{}, err
		}
		n, err := p.readBytes()
		if err != nil {
			return Proof{}, err
		}
		read += n
		for _, a := range p.argv {
			if argv == "" && p.names(a, files) {
				argv = a
			}
		}
	}
	switch {
	case len(mappedFiles) == len(inodes):
		return Proof{RungMappings, fmt.Sprintf("%d of %d files mapped", len(mappedFiles), len(inodes))}, nil
	case len(open) == len(inodes):
		return Proof{RungOpenFiles, fmt.Sprintf("%d of %d files open", len(open), len(inodes))}, nil
	case read >= size:
		return Proof{RungBytesRead, fmt.Sprintf("%d bytes read, the files have %d", read, size)}, nil
	case argv != "":
		return Proof{RungArgv, fmt.Sprintf("%s on the command line; %d of %d files mapped, %d of %d bytes read", argv, len(mappedFiles), len(inodes), read, size)}, nil
	}
	return Proof{RungNone, fmt.Sprintf("%d of %d files mapped, %d open, %d of %d bytes read", len(mappedFiles), len(inodes), len(open), read, size)}, nil
}

// openFiles adds the given files that the process holds open.
func (p *process) openFiles(inodes map[uint64]string, open map[string]bool) error {
	dir := filepath.Join(p.dir, "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return p.cannot(err)
	}
	for _, e := range entries {
		if f, ok := inodes[inode(filepath.Join(dir, e.Name()))]; ok {
			open[f] = true
		}
	}
	return nil
}

// readBytes is what the process fetched from storage (proc_pid_io(5), read_bytes): pages that were cached are not in it.
func (p *process) readBytes() (int64, error) {
	b, err := readBounded(filepath.Join(p.dir, "io"), 4096)
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

// names reports whether an argument is one of the files or a directory that holds them all.
func (p *process) names(arg string, files []string) bool {
	_, value, joined := strings.Cut(arg, "=")
	if !joined {
		value = arg
	}
	if !strings.Contains(value, "/") && !strings.Contains(value, ".") {
		return false
	}
	if !filepath.IsAbs(value) {
		value = filepath.Join(p.cwd, value)
	}
	value = p.inside(value)
	real, err := filepath.EvalSymlinks(value)
	if err != nil || real == "/" {
		return false
	}
	for _, f := range files {
		r, err := filepath.EvalSymlinks(f)
		if err == nil && (r == real || f == value) {
			return true
		}
		if filepath.Dir(f) == value || err == nil && filepath.Dir(r) == real {
			return true
		}
	}
	return false
}
