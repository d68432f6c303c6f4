package box

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"enginebroker/matrix"
)

// Evict drops the page cache of exactly these files and counts what is still resident, in pages, by mincore (protocol
// §2.6). A file reached by two names counts once. Files that this user neither owns nor may write report every page as
// resident: then the count is absent, the gate is not evaluable. A file that is missing or unreadable, and a count above
// what the file can have, are errors.
func (b *Box) Evict(files []string) (matrix.Opt[int64], error) {
	type inode struct{ dev, ino uint64 }
	seen := map[inode]bool{}
	var resident int64
	evaluable := true
	for _, path := range files {
		n, id, ok, err := func() (int64, inode, bool, error) {
			f, err := os.Open(path)
			if err != nil {
				return 0, inode{}, false, err
			}
			defer f.Close()
			st, err := f.Stat()
			if err != nil {
				return 0, inode{}, false, err
			}
			sys, isUnix := st.Sys().(*syscall.Stat_t)
			if !isUnix || !st.Mode().IsRegular() {
				return 0, inode{}, false, fmt.Errorf("%s is not a regular file", path)
			}
			id := inode{sys.Dev, sys.Ino}
			if seen[id] || st.Size() == 0 {
				return 0, id, true, nil
			}
			if !mayKnowResidency(path, sys.Uid) {
				return 0, id, false, nil
			}
			n, err := evict(f, st.Size())
			return n, id, true, err
		}()
		if err != nil {
			return matrix.Opt[int64]{}, fmt.Errorf("page cache: %w", err)
		}
		seen[id] = true
		resident += n
		evaluable = evaluable && ok
	}
	if !evaluable {
		return matrix.Opt[int64]{}, nil
	}
	return matrix.Some(resident), nil
}

// mayKnowResidency mirrors the kernel's rule: mincore tells the truth to the owner, to root and to who may write the file.
func mayKnowResidency(path string, uid uint32) bool {
	me := os.Geteuid()
	return me == 0 || uint32(me) == uid || unix.Access(path, unix.W_OK) == nil
}

func evict(f *os.File, size int64) (int64, error) {
	// Dirty pages cannot be dropped; a freshly downloaded artifact has them.
	if err := unix.Fdatasync(int(f.Fd())); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EROFS) {
		return 0, fmt.Errorf("%s: sync: %w", f.Name(), err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return 0, fmt.Errorf("%s: fadvise: %w", f.Name(), err)
	}
	n, err := residentPages(f, size)
	if err != nil {
		return 0, err
	}
	page := int64(os.Getpagesize())
	if most := (size + page - 1) / page; n > most {
		return 0, fmt.Errorf("%s: %d pages resident of a file that has %d: program error", f.Name(), n, most)
	}
	return n, nil
}

// residentPages maps the file piecewise, so that an artifact of any size costs one bounded buffer.
func residentPages(f *os.File, size int64) (int64, error) {
	const piece = 1 << 30
	page := int64(os.Getpagesize())
	var n int64
	for off := int64(0); off < size; off += piece {
		length := min(piece, size-off)
		m, err := unix.Mmap(int(f.Fd()), off, int(length), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return 0, fmt.Errorf("%s: mmap: %w", f.Name(), err)
		}
		vec := make([]byte, (length+page-1)/page)
		err = mincore(m, vec)
		if e := unix.Munmap(m); err == nil {
			err = e
		}
		if err != nil {
			return 0, fmt.Errorf("%s: mincore: %w", f.Name(), err)
		}
		for _, b := range vec {
			n += int64(b & 1)
		}
	}
	return n, nil
}
