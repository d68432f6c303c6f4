package artifact

import (
	"bufio"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"math"
	"slices"
	"strings"

	"enginebroker/matrix"
	"enginebroker/matrix/regular"
)

// gguf is what the metadata of one GGUF file says.
type gguf struct {
	version   uint32
	text      map[string]string // string values of general.* and the chat template
	numbers   map[string]int64  // whole and boolean values of every key
	tokenizer map[string]string // sha256 of each tokenizer.ggml.* value
	tensors   int64
}

const (
	maxKey      = 65535     // bytes of a key (GGUF specification)
	maxGGUFName = 127       // bytes of a tensor name: GGML_MAX_NAME is 64, some builds use 128
	maxText     = 1 << 20   // bytes of a text that is kept: a chat template [own]
	maxKeys     = 4096      // metadata keys [own]; public files have some 60
	maxKept     = 4 << 20   // bytes of all keys and texts that are kept [own]; a file's chat template has some 10 KiB
	maxGGUFHead = 256 << 20 // bytes of metadata that are walked through [own]; a vocabulary of 250 000 tokens takes some 10 MiB
)

// readGGUF reads one file's metadata and tensor infos, gives each tensor to add, and checks that the tensors lie inside the
// file, aligned and apart.
func readGGUF(path string, add func(tensor) error) (*gguf, error) {
	f, err := regular.Open(path)
	if err != nil {
		return nil, unreadable(path, err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, unreadable(path, err)
	}
	return scanGGUF(f, path, st.Size(), add)
}

func scanGGUF(f io.ReaderAt, path string, size int64, add func(tensor) error) (*gguf, error) {
	r := &ggufReader{r: bufio.NewReaderSize(io.NewSectionReader(f, 0, size), 64<<10), path: path, size: size}
	g := &gguf{text: map[string]string{}, numbers: map[string]int64{}, tokenizer: map[string]string{}}
	tensors, keys, err := r.preamble(g)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for range keys {
		if err := r.entry(g, seen); err != nil {
			return nil, err
		}
	}
	align := int64(32) // GGUF specification: the default of general.alignment
	if n, ok := g.numbers["general.alignment"]; ok {
		if n < 1 || n > 1<<16 || n&(n-1) != 0 {
			return nil, &HeaderError{Path: path, Field: "general.alignment", Offset: r.at, Message: fmt.Sprintf("%d is no power of two up to 65536", n)}
		}
		align = n
	}
	spans := make([]span, 0, tensors)
	for range tensors {
		t, err := r.tensor(align)
		if err != nil {
			return nil, err
		}
		spans = append(spans, span{t.begin, t.end, t.offset})
		if err := add(t); err != nil {
			return nil, err
		}
	}
	g.tensors = tensors
	return g, apart(f, path, spans, (r.at+align-1)/align*align, size)
}

// preamble reads magic, version and counts. A count that the rest of the file cannot hold is refused before anything is made.
func (r *ggufReader) preamble(g *gguf) (tensors, keys int64, err error) {
	magic, err := r.take(4, "magic")
	if err != nil {
		return 0, 0, err
	}
	if string(magic) != "GGUF" {
		return 0, 0, r.fail("magic", "%q is not \"GGUF\"", magic)
	}
	if g.version, err = r.u32("version"); err != nil {
		return 0, 0, err
	}
	switch v := g.version; {
	case v == 2 || v == 3:
	case v == 1:
		return 0, 0, r.fail("version", "GGUF version 1 is not read: convert the file again")
	case v&0xffff == 0:
		return 0, 0, r.fail("version", "a big-endian GGUF; it is not read")
	default:
		return 0, 0, r.fail("version", "GGUF version %d is not known; 2 and 3 are", v)
	}
	nt, err := r.u64("tensor count")
	if err != nil {
		return 0, 0, err
	}
	nk, err := r.u64("metadata count")
	if err != nil {
		return 0, 0, err
	}
	left := uint64(r.size - r.at)
	switch {
	case nt > maxTensors:
		return 0, 0, r.fail("tensor count", "%d tensors; no checkpoint has as many", nt)
	case nk > maxKeys:
		return 0, 0, r.fail("metadata count", "%d keys; no file has as many", nk)
	case nk*13+nt*25 > left: // the least a key-value pair and a tensor info take
		return 0, 0, &Refusal{Code: Truncated, Path: r.path, Message: fmt.Sprintf("too short for the %d keys and %d tensors it announces", nk, nt),
			Missing: matrix.Some(int64(nk*13 + nt*25 - left)), Fix: "download it again"}
	}
	return int64(nt), int64(nk), nil
}

// GGUF value types (GGUF specification, gguf_metadata_value_type) and the bytes of the fixed ones.
const (
	ggufBool   = 7
	ggufString = 8
	ggufArray  = 9
)

var ggufWidth = [...]int64{0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, ggufBool: 1, 10: 8, 11: 8, 12: 8}

// entry reads one key and its value, keeping only what describes the model.
func (r *ggufReader) entry(g *gguf, seen map[string]bool) error {
	key, err := r.str("a key", maxKey)
	if err != nil {
		return err
	}
	if seen[key] {
		return r.fail(key, "this key appears twice")
	}
	if err := r.keep(len(key), key); err != nil {
		return err
	}
	seen[key] = true
	kind, err := r.u32(key)
	if err != nil {
		return err
	}
	if key == "general.alignment" && kind != 4 {
		return r.fail(key, "of value type %d; loaders read a uint32 (4) alone", kind)
	}
	var sum hash.Hash
	if strings.HasPrefix(key, "tokenizer.ggml.") {
		sum = sha256.New()
		fmt.Fprintf(sum, "%d\n", kind)
		defer func() { g.tokenizer[key] = hex.EncodeToString(sum.Sum(nil)) }()
	}
	switch {
	case kind == ggufString && (strings.HasPrefix(key, "general.") || strings.HasPrefix(key, "tokenizer.chat_template")):
		if g.text[key], err = r.str(key, maxText); err != nil {
			return err
		}
		return r.keep(len(g.text[key]), key)
	case kind == ggufString:
		return r.skipString(key, sum)
	case kind == ggufArray:
		return r.skipArray(key, sum)
	case kind >= uint32(len(ggufWidth)) || ggufWidth[kind] == 0:
		return r.fail(key, "%d is no value type", kind)
	}
	b, err := r.take(int(ggufWidth[kind]), key)
	if err != nil {
		return err
	}
	if sum != nil {
		sum.Write(b)
	}
	if n, ok := whole(kind, b); ok {
		g.numbers[key] = n
	}
	return nil
}

// whole reads an integer or a boolean; floats and integers beyond 63 bits have none.
func whole(kind uint32, b []byte) (int64, bool) {
	le := binary.LittleEndian
	switch kind {
	case 0, ggufBool:
		return int64(b[0]), true
	case 1:
		return int64(int8(b[0])), true
	case 2:
		return int64(le.Uint16(b)), true
	case 3:
		return int64(int16(le.Uint16(b))), true
	case 4:
		return int64(le.Uint32(b)), true
	case 5:
		return int64(int32(le.Uint32(b))), true
	case 10, 11:
		n := le.Uint64(b)
		return int64(n), kind == 11 || n <= math.MaxInt64
	}
	return 0, false
}

func (r *ggufReader) skipArray(key string, sum hash.Hash) error {
	kind, err := r.u32(key)
	if err != nil {
		return err
	}
	n, err := r.u64(key)
	if err != nil {
		return err
	}
	if sum != nil {
		fmt.Fprintf(sum, "%d %d\n", kind, n)
	}
	least := int64(8) // a string's length
	switch {
	case kind == ggufString:
	case kind == ggufArray:
		return r.fail(key, "an array of arrays; no loader reads one")
	case kind >= uint32(len(ggufWidth)) || ggufWidth[kind] == 0:
		return r.fail(key, "%d is no value type", kind)
	default:
		least = ggufWidth[kind]
	}
	if left := r.size - r.at; n > uint64(left/least) {
		return r.fail(key, "%d elements, but %d bytes are left in the file", n, left)
	}
	if kind != ggufString {
		return r.skip(int64(n)*least, key, sum)
	}
	for range n {
		if err := r.skipString(key, sum); err != nil {
			return err
		}
	}
	return nil
}

// tensor reads one tensor info.
func (r *ggufReader) tensor(align int64) (tensor, error) {
	t := tensor{offset: r.at}
	var err error
	if t.name, err = r.str("a tensor's name", maxGGUFName); err != nil {
		return t, err
	}
	dims, err := r.u32(t.name)
	if err != nil {
		return t, err
	}
	if dims < 1 || dims > 4 { // GGML_MAX_DIMS
		return t, r.fail(t.name, "%d dimensions; a tensor has 1 to 4", dims)
	}
	t.shape = make([]int64, dims)
	for i := range t.shape {
		d, err := r.u64(t.name)
		if err != nil {
			return t, err
		}
		if d > math.MaxInt64 {
			return t, r.fail(t.name, "dimension %d is %d", i, d)
		}
		t.shape[i] = int64(d)
	}
	id, err := r.u32(t.name)
	if err != nil {
		return t, err
	}
	kind, ok := ggmlTypes[id]
	if !ok {
		return t, r.fail(t.name, "tensor type %d is not known", id)
	}
	t.dtype = kind.Name
	offset, err := r.u64(t.name)
	if err != nil {
		return t, err
	}
	n, ok := product(1, t.shape)
	switch {
	case !ok || n/kind.Block > (1<<61)/kind.Bytes:
		return t, r.fail(t.name, "%v elements are more than any file holds", t.shape)
	case t.shape[0]%kind.Block != 0:
		return t, r.fail(t.name, "rows of %d elements are no whole blocks of %s (%d)", t.shape[0], kind.Name, kind.Block)
	case offset > 1<<61:
		return t, r.fail(t.name, "data offset %d", offset)
	case int64(offset)%align != 0:
		return t, r.fail(t.name, "data offset %d is not aligned to %d", offset, align)
	}
	t.begin = int64(offset)
	t.end = t.begin + n/kind.Block*kind.Bytes
	return t, nil
}

// apart proves that no tensor overlaps another and that the file is long enough for all.
func apart(f io.ReaderAt, path string, spans []span, data, size int64) error {
	slices.SortFunc(spans, func(a, b span) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end))
	})
	var end int64
	for i, sp := range spans {
		if sp.begin < end {
			return &HeaderError{Path: path, Field: ggufNameAt(f, sp.offset), Offset: sp.offset,
				Message: fmt.Sprintf("its data begins at %d, inside %s, which ends at %d", sp.begin, ggufNameAt(f, spans[i-1].offset), end)}
		}
		end = sp.end
	}
	if data+end > size && len(spans) > 0 {
		return truncated(path, data+end-size, "its tensors")
	}
	return nil
}

func ggufNameAt(f io.ReaderAt, offset int64) string {
	r := &ggufReader{r: bufio.NewReader(io.NewSectionReader(f, offset, maxGGUFName+8)), at: 0, size: maxGGUFName + 8}
	name, err := r.str("", maxGGUFName)
	if err != nil {
		return fmt.Sprintf("the tensor at offset %d", offset)
	}
	return name
}
