package artifact

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// entry is one tensor of a file made for a test.
type entry struct {
	name  string
	dtype string
	shape []int64
}

func (e entry) bytes() int64 {
	n, _ := product(safetensorsBits[e.dtype], e.shape)
	return n / 8
}

// safetensorsHeader lays tensors out one after another.
func safetensorsHeader(tensors []entry) (header []byte, data int64) {
	var b strings.Builder
	b.WriteString(`{"__metadata__":{"format":"pt"}`)
	for _, e := range tensors {
		shape, _ := json.Marshal(e.shape)
		fmt.Fprintf(&b, `,%q:{"dtype":%q,"shape":%s,"data_offsets":[%d,%d]}`, e.name, e.dtype, shape, data, data+e.bytes())
		data += e.bytes()
	}
	b.WriteString("}")
	return []byte(b.String()), data
}

func withLength(header []byte) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
}

// writeSafetensors makes a file whose data is a hole.
func writeSafetensors(t testing.TB, path string, tensors []entry) {
	t.Helper()
	header, data := safetensorsHeader(tensors)
	writeSparse(t, path, withLength(header), data)
}

func writeSparse(t testing.TB, path string, head []byte, data int64) {
	t.Helper()
	writeFile(t, path, string(head))
	if err := os.Truncate(path, int64(len(head))+data); err != nil {
		t.Fatal(err)
	}
}

func writeFile(t testing.TB, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// kv is one metadata pair of a GGUF made for a test.
type kv struct {
	key   string
	value any
}

type ggufEntry struct {
	name string
	kind uint32
	dims []uint64
}

// ggufHead lays a GGUF out; the data that follows is data bytes long.
func ggufHead(version uint32, pairs []kv, tensors []ggufEntry) (head []byte, data int64) {
	var b bytes.Buffer
	le := binary.LittleEndian
	b.WriteString("GGUF")
	put := func(v any) { binary.Write(&b, le, v) }
	put(version)
	put(uint64(len(tensors)))
	put(uint64(len(pairs)))
	text := func(s string) { put(uint64(len(s))); b.WriteString(s) }
	for _, p := range pairs {
		text(p.key)
		switch v := p.value.(type) {
		case string:
			put(uint32(ggufString))
			text(v)
		case []string:
			put(uint32(ggufArray))
			put(uint32(ggufString))
			put(uint64(len(v)))
			for _, s := range v {
				text(s)
			}
		case []int32:
			put(uint32(ggufArray))
			put(uint32(5))
			put(uint64(len(v)))
			put(v)
		case uint32:
			put(uint32(4))
			put(v)
		case uint16:
			put(uint32(2))
			put(v)
		case int32:
			put(uint32(5))
			put(v)
		case bool:
			put(uint32(ggufBool))
			put(v)
		case float32:
			put(uint32(6))
			put(v)
		case uint64:
			put(uint32(10))
			put(v)
		default:
			panic(fmt.Sprintf("no GGUF value of %T", v))
		}
	}
	for _, e := range tensors {
		text(e.name)
		put(uint32(len(e.dims)))
		n := uint64(1)
		for _, d := range e.dims {
			put(d)
			n *= d
		}
		put(e.kind)
		put(uint64(data))
		k := ggmlTypes[e.kind]
		if k.Block > 0 {
			data += (int64(n)/k.Block*k.Bytes + 31) / 32 * 32
		}
	}
	for b.Len()%32 != 0 {
		b.WriteByte(0)
	}
	return b.Bytes(), data
}

func writeGGUF(t testing.TB, path string, pairs []kv, tensors []ggufEntry) {
	t.Helper()
	head, data := ggufHead(3, pairs, tensors)
	writeSparse(t, path, head, data)
}
