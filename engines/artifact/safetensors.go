package artifact

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"path/filepath"
	"slices"
	"strings"

	"enginebroker/matrix"
	"enginebroker/matrix/regular"
)

// Bits per element of the safetensors types (safetensors, src/tensor.rs, Dtype).
var safetensorsBits = map[string]int64{
	"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
	"F8_E5M2FNUZ": 8, "F8_E4M3FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
	"C64": 64, "F64": 64, "I64": 64, "U64": 64,
}

const (
	maxHeader = 100_000_000 // safetensors, src/tensor.rs, MAX_HEADER_SIZE
	maxName   = 512         // bytes of a tensor's name [own]; the longest public ones have some 120
	maxDims   = 8           // [own]; weights have at most 5
)

// tensor is one entry of a header.
type tensor struct {
	name   string
	dtype  string
	shape  []int64
	begin  int64 // within the data section
	end    int64
	offset int64 // of its name in the file
}

// span is what is kept of a tensor to prove that tensors tile the data section.
type span struct{ begin, end, offset int64 }

// readSafetensors reads one file's header, gives each tensor to add, and proves that the tensors tile the rest of the file
// without hole or overlap, as the reference reader demands. metadata holds the strings of __metadata__.
func readSafetensors(path string, add func(tensor) error) (metadata map[string]string, err error) {
	f, err := regular.Open(path)
	if err != nil {
		return nil, unreadable(path, err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, unreadable(path, err)
	}
	return scanSafetensors(f, path, st.Size(), add)
}

func scanSafetensors(f io.ReaderAt, path string, size int64, add func(tensor) error) (map[string]string, error) {
	var head [8]byte
	if size < int64(len(head)) {
		return nil, truncated(path, int64(len(head))-size, "the length of a safetensors header")
	}
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return nil, unreadable(path, err)
	}
	length := binary.LittleEndian.Uint64(head[:])
	switch {
	case length > maxHeader:
		return nil, &HeaderError{Path: path, Field: "header length", Message: fmt.Sprintf("%d bytes; a safetensors header has at most %d", length, maxHeader)}
	case length < 2:
		return nil, &HeaderError{Path: path, Field: "header length", Message: fmt.Sprintf("%d bytes hold no JSON object", length)}
	case int64(length) > size-8:
		return nil, truncated(path, int64(length)-(size-8), "its header")
	}
	s := newScanner(io.NewSectionReader(f, 8, int64(length)), path, 8, int64(length))
	metadata := map[string]string{}
	var spans []span
	err := s.object(func(name string, at int64) error {
		if name == "__metadata__" {
			return s.object(func(key string, _ int64) error {
				if b, err := s.peek(); err != nil || b != '"' || len(metadata) == 64 {
					return cmp.Or(err, s.skip(1))
				}
				v, err := s.str(64 << 10)
				metadata[key] = v
				return err
			})
		}
		t, err := s.tensor(name, at)
		if err != nil {
			return err
		}
		spans = append(spans, span{t.begin, t.end, at})
		return add(t)
	})
	if err != nil {
		return nil, err
	}
	if err := s.tail(); err != nil {
		return nil, err
	}
	return metadata, tile(f, path, spans, 8+int64(length), size)
}

// object calls member for every key of an object; the value is member's to take.
func (s *scanner) object(member func(key string, at int64) error) error {
	if err := s.expect('{'); err != nil {
		return err
	}
	for first := true; ; first = false {
		ok, err := s.more(first, '}')
		if err != nil || !ok {
			return err
		}
		if _, err := s.peek(); err != nil {
			return err
		}
		at := s.at
		key, err := s.str(maxName)
		if err != nil {
			return err
		}
		if err := s.expect(':'); err != nil {
			return err
		}
		if err := member(key, at); err != nil {
			return err
		}
	}
}

// integers reads an array of whole numbers.
func (s *scanner) integers(limit int) ([]int64, error) {
	if err := s.expect('['); err != nil {
		return nil, err
	}
	var out []int64
	for first := true; ; first = false {
		ok, err := s.more(first, ']')
		if err != nil || !ok {
			return out, err
		}
		n, err := s.integer()
		if err != nil {
			return nil, err
		}
		if len(out) == limit {
			return nil, s.fail("", "more than %d numbers", limit)
		}
		out = append(out, n)
	}
}

// tensor reads the value of one tensor's entry and checks that its bytes are what its type and shape need.
func (s *scanner) tensor(name string, at int64) (tensor, error) {
	t := tensor{name: name, offset: at}
	var offsets []int64
	seen := map[string]bool{}
	err := s.object(func(key string, _ int64) (err error) {
		if seen[key] {
			return s.fail(key, "appears twice")
		}
		seen[key] = true
		switch key {
		case "dtype":
			t.dtype, err = s.str(32)
		case "shape":
			t.shape, err = s.integers(maxDims)
		case "data_offsets":
			offsets, err = s.integers(2)
		default:
			err = s.fail(key, "no such field in a safetensors header")
		}
		return err
	})
	if err != nil {
		if h, ok := errors.AsType[*HeaderError](err); ok {
			h.Field = strings.TrimSuffix(name+"."+h.Field, ".")
		}
		return t, err
	}
	fail := func(field, format string, a ...any) error {
		return &HeaderError{Path: s.path, Field: name + "." + field, Offset: at, Message: fmt.Sprintf(format, a...)}
	}
	width, ok := safetensorsBits[t.dtype]
	switch {
	case !seen["shape"]:
		return t, fail("shape", "absent")
	case !ok:
		return t, fail("dtype", "%q is no safetensors type", t.dtype)
	case len(offsets) != 2:
		return t, fail("data_offsets", "%d numbers instead of two", len(offsets))
	}
	t.begin, t.end = offsets[0], offsets[1]
	want, ok := product(width, t.shape)
	switch {
	case !ok:
		return t, fail("shape", "%v elements of %s are more than 2^63 bits", t.shape, t.dtype)
	case want%8 != 0:
		return t, fail("shape", "%v elements of %s are no whole bytes", t.shape, t.dtype)
	case t.end < t.begin:
		return t, fail("data_offsets", "end %d before begin %d", t.end, t.begin)
	case t.end-t.begin != want/8:
		return t, fail("data_offsets", "%d bytes, but %v of %s needs %d", t.end-t.begin, t.shape, t.dtype, want/8)
	}
	return t, nil
}

// product multiplies, and reports whether the result fits.
func product(n int64, shape []int64) (int64, bool) {
	for _, d := range shape {
		hi, lo := bits.Mul64(uint64(n), uint64(d))
		if hi != 0 || lo > 1<<62 {
			return 0, false
		}
		n = int64(lo)
	}
	return n, true
}

// tile proves that the tensors of one file cover its data section exactly once.
func tile(f io.ReaderAt, path string, spans []span, data, size int64) error {
	slices.SortFunc(spans, func(a, b span) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end))
	})
	var at int64
	for i, sp := range spans {
		if sp.begin == at {
			at = sp.end
			continue
		}
		what := fmt.Sprintf("begins at %d, but %d bytes before it belong to no tensor", sp.begin, sp.begin-at)
		if sp.begin < at {
			what = fmt.Sprintf("begins at %d, inside %s, which ends at %d", sp.begin, nameAt(f, spans[i-1].offset), at)
		}
		return &HeaderError{Path: path, Field: nameAt(f, sp.offset) + ".data_offsets", Offset: sp.offset, Message: what}
	}
	switch have := size - data; {
	case at > have:
		return truncated(path, at-have, "its tensors")
	case at < have:
		return &HeaderError{Path: path, Field: "data", Offset: data + at, Message: fmt.Sprintf("%d bytes follow the last tensor", have-at)}
	}
	return nil
}

// nameAt reads a tensor's name again, for an error message only: names are not kept.
func nameAt(f io.ReaderAt, offset int64) string {
	s := newScanner(io.NewSectionReader(f, offset, maxName+2), "", offset, maxName+2)
	name, err := s.str(maxName)
	if err != nil {
		return fmt.Sprintf("the tensor at offset %d", offset)
	}
	return name
}

func truncated(path string, missing int64, what string) *Refusal {
	return &Refusal{Code: Truncated, Path: path, Message: "shorter than " + what + " needs", Missing: matrix.Some(missing), Fix: "download it again"}
}

// shardIndex is what model.safetensors.index.json says.
type shardIndex struct {
	shards  []string // sorted
	tensors int64
	total   int64 // bytes of all tensors; 0 where it is not said
	check   uint64
}

// readIndex reads an index of shards in constant memory: of the weight map only its shards, its length and a checksum stay.
func readIndex(root, name string) (shardIndex, error) {
	path := filepath.Join(root, name)
	f, err := regular.Open(path)
	if err != nil {
		return shardIndex{}, unreadable(path, err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return shardIndex{}, unreadable(path, err)
	}
	if st.Size() > maxHeader {
		return shardIndex{}, &HeaderError{Path: path, Offset: maxHeader, Message: fmt.Sprintf("%d bytes are more than an index has", st.Size())}
	}
	return scanIndex(f, path, st.Size())
}

func scanIndex(f io.Reader, path string, size int64) (ix shardIndex, err error) {
	s := newScanner(f, path, 0, size)
	mapped := false
	err = s.object(func(key string, _ int64) error {
		switch key {
		case "metadata":
			return s.object(func(key string, _ int64) error {
				if key != "total_size" {
					return s.skip(1)
				}
				n, err := s.number()
				if err == nil && (n < 0 || n > 1<<60) {
					err = s.fail("metadata.total_size", "%g is no size", n)
				}
				ix.total = int64(n)
				return err
			})
		case "weight_map":
			if mapped {
				return s.fail(key, "appears twice")
			}
			mapped = true
			return s.object(func(tensor string, _ int64) error {
				shard, err := s.str(maxName)
				if err != nil {
					return err
				}
				if shard == "" || shard != filepath.Base(shard) || strings.HasPrefix(shard, ".") {
					return s.fail("weight_map."+tensor, "%q is not the name of a file beside the index", shard)
				}
				if i, ok := slices.BinarySearch(ix.shards, shard); !ok {
					if len(ix.shards) == maxFiles {
						return s.fail("weight_map", "more than %d shards", maxFiles)
					}
					ix.shards = slices.Insert(ix.shards, i, shard)
				}
				ix.tensors++
				ix.check += placed(tensor, shard)
				return nil
			})
		}
		return s.skip(1)
	})
	if err == nil {
		err = s.tail()
	}
	if err == nil && len(ix.shards) == 0 {
		err = s.fail("weight_map", "names no shard")
	}
	return ix, err
}

// placed is the share of one tensor in an order-free checksum over (tensor, shard), FNV-1a.
func placed(tensor, shard string) uint64 {
	h := uint64(14695981039346656037)
	for _, s := range []string{tensor, "\x00", shard} {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * 1099511628211
		}
	}
	return h
}
