package artifact

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"enginebroker/matrix"
	"enginebroker/matrix/regular"
)

// stamp identifies one state of one file's content. ctime moves on every write, even where mtime was set back or the file was
// edited through another hard link.
type stamp struct {
	Dev   uint64 `json:"dev"`
	Inode uint64 `json:"inode"`
	Size  int64  `json:"size"`
	MTime int64  `json:"mtime_ns"`
	CTime int64  `json:"ctime_ns"`
}

func stampOf(st *unix.Stat_t) stamp {
	return stamp{Dev: uint64(st.Dev), Inode: st.Ino, Size: st.Size, MTime: unix.TimespecToNsec(st.Mtim), CTime: unix.TimespecToNsec(st.Ctim)}
}

// Sums hashes files and remembers the result by stamp, in memory and in a file. It serves concurrent callers, and may be
// handed to other rooms as a function from path to sha256.
type Sums struct {
	path  string
	mu    sync.Mutex
	known map[stamp]string
	fresh bool // something is known that the file does not hold
	hits  atomic.Int64
	reads atomic.Int64
}

func stampAt(path string) (stamp, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return stamp{}, unreadable(path, &fs.PathError{Op: "stat", Path: path, Err: err})
	}
	return stampOf(&st), nil
}

func replaced(path string) *Refusal {
	return &Refusal{Code: Replaced, Path: path, Message: "changed while it was read", Fix: "stop what writes to it and try again"}
}

type sumEntry struct {
	stamp
	SHA256 string `json:"sha256"`
}

// maxSumsFile bounds the cache file that is read; 100 000 entries are some 15 MiB [own].
const maxSumsFile = 16 << 20

// OpenSums reads a cache file; one that does not exist, or cannot be parsed, is an empty cache. An empty path keeps hashes in
// memory only.
func OpenSums(path string) (*Sums, error) {
	s := &Sums{path: path, known: map[stamp]string{}}
	if path == "" {
		return s, nil
	}
	b, err := readSmall(path, maxSumsFile)
	if r, ok := errors.AsType[*Refusal](err); ok && r.Code == NotFound {
		return s, nil
	} else if err != nil {
		return nil, err
	}
	var entries []sumEntry
	if json.Unmarshal(b, &entries) != nil {
		return s, nil // a cache is no evidence: it is made anew
	}
	for _, e := range entries {
		if sum, err := hex.DecodeString(e.SHA256); err == nil && len(sum) == sha256.Size {
			s.known[e.stamp] = e.SHA256
		}
	}
	return s, nil
}

// Save writes the cache file, replacing it as a whole.
func (s *Sums) Save() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.path == "" || !s.fresh {
		return nil
	}
	type file struct{ dev, inode uint64 }
	newest := map[file]sumEntry{} // earlier states of a file never come back
	for k, v := range s.known {
		if f := (file{k.Dev, k.Inode}); newest[f].CTime <= k.CTime {
			newest[f] = sumEntry{k, v}
		}
	}
	entries := slices.Collect(maps.Values(newest))
	slices.SortFunc(entries, func(a, b sumEntry) int {
		return cmp.Or(cmp.Compare(a.Dev, b.Dev), cmp.Compare(a.Inode, b.Inode))
	})
	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(entries); err != nil {
		return err
	}
	if buf.Len() > maxSumsFile {
		return fmt.Errorf("%s: the cache of hashes outgrew %d bytes: remove it", s.path, maxSumsFile)
	}
	if err := os.MkdirAll(filepath.Dir(s.path), 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(s.path), ".sums-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(buf.Bytes())
	if err = errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), s.path); err != nil {
		return err
	}
	s.fresh = false
	return nil
}

// Sum returns the sha256 of a file's content, hex, from the cache where the file's stamp is known.
func (s *Sums) Sum(ctx context.Context, path string) (string, error) {
	sum, _, err := s.sum(ctx, path, Options{})
	return sum, err
}

// settled is how old a change must be before its stamp may be trusted: two writes within one tick of the kernel's clock
// (10 ms at HZ=100) carry one stamp [own].
const settled = 20 * time.Millisecond

// traceless are the file systems on which a store through a mapping moves no time, so that a stamp proves nothing
// (mm/shmem.c has no page_mkwrite).
var traceless = []int64{unix.TMPFS_MAGIC, unix.RAMFS_MAGIC, unix.HUGETLBFS_MAGIC}

// traces makes the next store into a file move its time, through a mapping too: while a page is dirty the kernel lets further
// stores into it pass unseen. It reports false where that cannot be had.
func traces(f *os.File) bool {
	var fs unix.Statfs_t
	return unix.Fstatfs(int(f.Fd()), &fs) == nil && !slices.Contains(traceless, int64(fs.Type)) && unix.Fdatasync(int(f.Fd())) == nil
}

func (s *Sums) sum(ctx context.Context, path string, opt Options) (string, stamp, error) {
	f, err := regular.Open(path)
	if err != nil {
		return "", stamp{}, unreadable(path, err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return "", stamp{}, unreadable(path, &fs.PathError{Op: "stat", Path: path, Err: err})
	}
	key := stampOf(&st)
	s.mu.Lock()
	sum, ok := s.known[key]
	s.mu.Unlock()
	if ok && !opt.Rehash {
		s.hits.Add(1)
		return sum, key, nil
	}
	began := time.Now()
	traced := traces(f)
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return "", stamp{}, unreadable(path, &fs.PathError{Op: "stat", Path: path, Err: err})
	}
	key = stampOf(&st)
	sum, err = hashFile(ctx, path, f, key, opt.Pause)
	if err != nil {
		return "", key, err
	}
	s.reads.Add(1)
	if traced && began.UnixNano()-max(key.CTime, key.MTime) > int64(settled) {
		s.mu.Lock()
		s.known[key], s.fresh = sum, true
		s.mu.Unlock()
	}
	return sum, key, nil
}

// hashChunk is read at once; with maxWorkers at work it bounds the memory of hashing at 16 MiB.
const (
	hashChunk  = 512 << 10
	maxWorkers = 32
)

var chunks = sync.Pool{New: func() any { return new([hashChunk]byte) }}

// hashFile reads an open file to its end and proves that it was one file in one state all the while.
func hashFile(ctx context.Context, path string, f *os.File, before stamp, pause func(context.Context) error) (string, error) {
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_SEQUENTIAL)
	h := sha256.New()
	buf := chunks.Get().(*[hashChunk]byte)
	defer chunks.Put(buf)
	for {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		if pause != nil {
			if err := pause(ctx); err != nil {
				return "", err
			}
		}
		n, err := f.Read(buf[:])
		h.Write(buf[:n])
		if err == io.EOF {
			break
		}
		if err != nil {
			return "", unreadable(path, err)
		}
	}
	var open unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &open); err != nil {
		return "", unreadable(path, &fs.PathError{Op: "stat", Path: path, Err: err})
	}
	if named, err := stampAt(path); err != nil || stampOf(&open) != before || named != before {
		return "", replaced(path)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// all hashes files of root in parallel, largest first.
func (s *Sums) all(ctx context.Context, root string, files []string, opt Options) ([]matrix.File, error) {
	out := make([]matrix.File, len(files))
	order := make([]int, len(files))
	sizes := make([]int64, len(files))
	for i, name := range files {
		order[i] = i
		if st, err := os.Stat(filepath.Join(root, name)); err == nil {
			sizes[i] = st.Size()
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(sizes[b], sizes[a]) })
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(min(opt.Workers, maxWorkers))
	for _, i := range order {
		g.Go(func() error {
			path := filepath.Join(root, files[i])
			sum, st, err := s.sum(ctx, path, opt)
			if err != nil {
				return err
			}
			out[i] = matrix.File{Path: files[i], Bytes: matrix.Some(st.Size), SHA256: matrix.Some(sum)}
			return blobName(path, sum)
		})
	}
	return out, g.Wait()
}

// blobName refuses a file of a Hugging Face cache whose content is not what its blob's name says: large blobs are named by
// their sha256.
func blobName(path, sum string) error {
	to, err := os.Readlink(path)
	if err != nil {
		return nil // not a link
	}
	name := filepath.Base(to)
	if filepath.Base(filepath.Dir(to)) != "blobs" || len(name) != 2*sha256.Size || name == sum {
		return nil
	}
	if _, err := hex.DecodeString(name); err != nil {
		return nil
	}
	return &Refusal{Code: Corrupt, Path: path, Message: "the blob is named " + name + " and hashes to " + sum, Fix: "remove the blob and download it again"}
}
