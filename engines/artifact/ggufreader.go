package artifact

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"fmt"
	"hash"
	"io"

	"enginebroker/matrix"
)

// ggufReader is a cursor over one file: it knows the offset of what it reads and how much is left.
type ggufReader struct {
	r    *bufio.Reader
	path string
	at   int64
	size int64
	kept int // bytes of keys and texts
	buf  [8]byte
}

func (r *ggufReader) fail(field, format string, a ...any) error {
	return &HeaderError{Path: r.path, Field: field, Offset: r.at, Message: fmt.Sprintf(format, a...)}
}

// need refuses a read past the end of the file.
func (r *ggufReader) need(n int64, field string) error {
	if left := r.size - r.at; n > left {
		return &Refusal{Code: Truncated, Path: r.path, Message: fmt.Sprintf("ends at offset %d, in the middle of %s", r.size, cmp.Or(field, "its header")),
			Missing: matrix.Some(n - left), Fix: "download it again"}
	}
	if r.at+n > maxGGUFHead {
		return r.fail(field, "metadata of more than %d bytes", maxGGUFHead)
	}
	return nil
}

// keep counts what stays in memory of the metadata.
func (r *ggufReader) keep(n int, field string) error {
	if r.kept += n; r.kept > maxKept {
		return r.fail(fmt.Sprintf("%.80s", field), "keys and texts of more than %d bytes; no file has as many", maxKept)
	}
	return nil
}

func (r *ggufReader) take(n int, field string) ([]byte, error) {
	if err := r.need(int64(n), field); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(r.r, r.buf[:n]); err != nil {
		return nil, unreadable(r.path, err)
	}
	r.at += int64(n)
	return r.buf[:n], nil
}

func (r *ggufReader) u32(field string) (uint32, error) {
	b, err := r.take(4, field)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

func (r *ggufReader) u64(field string) (uint64, error) {
	b, err := r.take(8, field)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b), nil
}

func (r *ggufReader) str(field string, limit uint64) (string, error) {
	n, err := r.u64(field)
	if err != nil {
		return "", err
	}
	if n > limit {
		return "", r.fail(field, "%d bytes of text; at most %d are allowed here", n, limit)
	}
	if err := r.need(int64(n), field); err != nil {
		return "", err
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r.r, b); err != nil {
		return "", unreadable(r.path, err)
	}
	r.at += int64(n)
	return string(b), nil
}

func (r *ggufReader) skipString(field string, sum hash.Hash) error {
	n, err := r.u64(field)
	if err != nil {
		return err
	}
	if n > uint64(r.size-r.at) {
		return r.fail(field, "%d bytes of text, but %d are left in the file", n, r.size-r.at)
	}
	if sum != nil {
		fmt.Fprintf(sum, "%d\n", n)
	}
	return r.skip(int64(n), field, sum)
}

// skip passes over n bytes, into sum where there is one.
func (r *ggufReader) skip(n int64, field string, sum hash.Hash) error {
	if err := r.need(n, field); err != nil {
		return err
	}
	to := io.Discard
	if sum != nil {
		to = sum
	}
	if _, err := io.CopyN(to, r.r, n); err != nil {
		return unreadable(r.path, err)
	}
	r.at += n
	return nil
}
