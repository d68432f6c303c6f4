package artifact

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"enginebroker/matrix"
)

// Every hostile header is refused with its path, and says what is wrong; none is described in part.
func TestHostileSafetensors(t *testing.T) {
	one := func(member string) []byte {
		return append(withLength([]byte("{"+member+"}")), make([]byte, 64)...)
	}
	const ok = `"a.weight":{"dtype":"F32","shape":[16],"data_offsets":[0,64]}`
	for _, c := range []struct {
		name string
		file []byte
		want string
	}{
		{"empty file", nil, "shorter than the length"},
		{"header longer than the file", append(withLength([]byte("{}"))[:8], 'x'), "shorter than its header needs (1 bytes missing)"},
		{"header of 2^63 bytes", binary.LittleEndian.AppendUint64(nil, 1<<63), "a safetensors header has at most"},
		{"no JSON", append(withLength([]byte("hello")), 0), `'h' where '{' is expected`},
		{"JSON that ends", one(`"a":{"dtype":"F32`), "the JSON ends in the middle"},
		{"unknown type", one(`"a":{"dtype":"F5","shape":[16],"data_offsets":[0,64]}`), `a.dtype: "F5" is no safetensors type`},
		{"NaN in a shape", one(`"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,64]}`), `'N' where a whole number is expected`},
		{"negative shape", one(`"a":{"dtype":"F32","shape":[-16],"data_offsets":[0,64]}`), `'-' where a whole number is expected`},
		{"fraction in a shape", one(`"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,64]}`), "a fraction or an exponent"},
		{"2^64 elements", one(`"a":{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,64]}`), "is beyond any count"},
		{"2^60 times 2^60 elements", one(`"a":{"dtype":"F32","shape":[1152921504606846976,1152921504606846976],"data_offsets":[0,64]}`), "more than 2^63 bits"},
		{"end before begin", one(`"a":{"dtype":"F32","shape":[16],"data_offsets":[64,0]}`), "end 0 before begin 64"},
		{"offsets and shape disagree", one(`"a":{"dtype":"F32","shape":[15],"data_offsets":[0,64]}`), "64 bytes, but [15] of F32 needs 60"},
		{"three offsets", one(`"a":{"dtype":"F32","shape":[16],"data_offsets":[0,32,64]}`), "more than 2 numbers"},
		{"no shape", one(`"a":{"dtype":"F32","data_offsets":[0,64]}`), "a.shape: absent"},
		{"a field of its own", one(`"a":{"dtype":"F32","shape":[16],"data_offsets":[0,64],"stride":[1]}`), "a.stride: no such field"},
		{"offsets outside the file", one(`"a":{"dtype":"F32","shape":[32],"data_offsets":[0,128]}`), "shorter than its tensors needs (64 bytes missing)"},
		{"overlap", one(`"a":{"dtype":"F32","shape":[16],"data_offsets":[0,64]},"b":{"dtype":"F32","shape":[8],"data_offsets":[32,64]}`), "b.data_offsets: begins at 32, inside a, which ends at 64"},
		{"hole", one(`"b":{"dtype":"F32","shape":[8],"data_offsets":[32,64]}`), "32 bytes before it belong to no tensor"},
		{"bytes after the last tensor", append(one(ok), 1), "1 bytes follow the last tensor"},
		{"duplicate name", one(`"a.weight":{"dtype":"F32","shape":[8],"data_offsets":[0,32]},"a.weight":{"dtype":"F32","shape":[8],"data_offsets":[32,64]}`), "a second tensor of this name"},
		{"duplicate field", one(`"a":{"dtype":"F32","dtype":"F16","shape":[16],"data_offsets":[0,64]}`), "a.dtype: appears twice"},
		{"name of a kilobyte", one(`"` + strings.Repeat("x", 1024) + `":{}`), "a string longer than 512 bytes"},
		{"deep nesting", one(`"__metadata__":{"a":` + strings.Repeat("[", 100) + `}`), "nested deeper than 32"},
		{"text after the JSON", append(withLength([]byte(`{} x`)), make([]byte, 4)...), `'x' after the end`},
		{"half a byte", one(`"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}`), "no whole bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "model.safetensors")
			writeFile(t, path, string(c.file))
			refused(t, path, c.want)
		})
	}
}

// refused opens path and demands a typed error that names the file and says want, and nothing else.
func refused(t *testing.T, path, want string) {
	t.Helper()
	m, r, err := Open(t.Context(), Locator{Path: path}, Options{})
	if err == nil {
		t.Fatalf("accepted: %+v", m)
	}
	if r != nil || m.Tensors != 0 || len(m.Files) != 0 {
		t.Errorf("a part of a refused artifact was described: %+v", m)
	}
	_, header := errors.AsType[*HeaderError](err)
	_, refusal := errors.AsType[*Refusal](err)
	if !header && !refusal || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), filepath.Base(path)) {
		t.Errorf("%T %v; want %q", err, err, want)
	}
}

func TestHostileGGUF(t *testing.T) {
	arch := []kv{{"general.architecture", "qwen3"}}
	weight := []ggufEntry{{"blk.0.ffn_up.weight", 0, []uint64{64}}}
	make := func(pairs []kv, tensors []ggufEntry) []byte {
		head, data := ggufHead(3, pairs, tensors)
		return append(head, bytes.Repeat([]byte{0}, int(data))...)
	}
	good := make(arch, weight)
	with := func(at int, v any) []byte {
		var b bytes.Buffer
		binary.Write(&b, binary.LittleEndian, v)
		out := bytes.Clone(good)
		copy(out[at:], b.Bytes())
		return out
	}
	// Offsets into good: 24 is the first key, 24+8+20 its type, then its length and five bytes, then the tensor info.
	const info = 24 + 8 + 20 + 4 + 8 + 5
	for _, c := range []struct {
		name string
		file []byte
		want string
	}{
		{"empty", nil, "ends at offset 0, in the middle of magic"},
		{"other magic", []byte("hello, world, this is no model"), `magic: "hell" is not "GGUF"`},
		{"version 1", with(4, uint32(1)), "GGUF version 1 is not read"},
		{"version 4", with(4, uint32(4)), "GGUF version 4 is not known"},
		{"big-endian", with(4, uint32(0x03000000)), "a big-endian GGUF"},
		{"2^60 tensors", with(8, uint64(1<<60)), "no checkpoint has as many"},
		{"2^60 keys", with(16, uint64(1<<60)), "no file has as many"},
		{"more tensors than bytes", with(8, uint64(1<<16)), "too short for the 1 keys and 65536 tensors"},
		{"key of 2^63 bytes", with(24, uint64(1<<63)), "bytes of text; at most 65535"},
		{"unknown value type", with(24+8+20, uint32(13)), "13 is no value type"},
		{"text longer than the file", with(24+8+20+4, uint64(1<<20-1)), "in the middle of general.architecture"},
		{"duplicate key", make([]kv{arch[0], arch[0]}, weight), "this key appears twice"},
		{"nine dimensions", with(info+8+19, uint32(9)), "9 dimensions"},
		{"dimension of 2^63", with(info+8+19+4, uint64(1<<63)), "dimension 0 is"},
		{"dimension of 2^62", with(info+8+19+4, uint64(1<<62)), "more than any file holds"},
		{"removed type", with(info+8+19+4+8, uint32(4)), "tensor type 4 is not known"},
		{"offset outside the file", with(info+8+19+4+8+4, uint64(1<<40)), "shorter than its tensors needs"},
		{"unaligned offset", with(info+8+19+4+8+4, uint64(8)), "not aligned to 32"},
		{"alignment of 3", make(append(arch, kv{"general.alignment", uint32(3)}), weight), "3 is no power of two"},
		{"alignment of 0", make(append(arch, kv{"general.alignment", uint32(0)}), weight), "0 is no power of two"},
		{"alignment in words", make(append(arch, kv{"general.alignment", "64"}), weight), "general.alignment: of value type 8"},
		{"alignment of eight bytes", make(append(arch, kv{"general.alignment", uint64(64)}), weight), "general.alignment: of value type 10"},
		{"5 MiB of keys", make(longKeys(80), weight), "keys and texts of more than 4194304 bytes"},
		{"odd block", make(arch, []ggufEntry{{"a.weight", 8, []uint64{33}}}), "no whole blocks of Q8_0"},
		{"duplicate tensor", make(arch, []ggufEntry{weight[0], weight[0]}), "a second tensor of this name"},
		{"truncated inside the last tensor", good[:len(good)-100], "shorter than its tensors needs (100 bytes missing)"},
		{"truncated inside the metadata", good[:40], "too short for the 1 keys and 1 tensors"},
		{"array of arrays", arrayHeader(t, ggufArray, 1), "an array of arrays"},
		{"array of 2^61", arrayHeader(t, 0, 1<<61), "2305843009213693952 elements, but"},
		{"array of an unknown type", arrayHeader(t, 77, 1), "77 is no value type"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "model.gguf")
			writeFile(t, path, string(c.file))
			refused(t, path, c.want)
		})
	}
	overlap := make(arch, []ggufEntry{weight[0], {"blk.1.ffn_up.weight", 0, []uint64{64}}})
	binary.LittleEndian.PutUint64(overlap[info+2*(8+19+4+8+4+8)-8:], 128)
	path := filepath.Join(t.TempDir(), "model.gguf")
	writeFile(t, path, string(overlap))
	refused(t, path, "blk.1.ffn_up.weight: its data begins at 128, inside blk.0.ffn_up.weight, which ends at 256")
}

// longKeys are keys of 64 KiB.
func longKeys(n int) []kv {
	var out []kv
	for i := range n {
		out = append(out, kv{fmt.Sprintf("%04d", i) + strings.Repeat("k", 65000), uint32(1)})
	}
	return out
}

// Names of the greatest length do not fill the memory that is left for modules.
func TestNamesOfModulesAreBounded(t *testing.T) {
	c := newCensus()
	var err error
	for i := 0; i < maxModules && err == nil; i++ {
		err = c.add("m.safetensors", tensor{name: fmt.Sprintf("%0*d", maxName, i), dtype: "F32", shape: []int64{1}, end: 4})
	}
	if err == nil || !strings.Contains(err.Error(), "names of modules") {
		t.Error(err)
	}
}

// arrayHeader makes a file whose only value is an array of a kind and a length, and which ends there.
func arrayHeader(t *testing.T, kind uint32, n uint64) []byte {
	t.Helper()
	var b bytes.Buffer
	b.WriteString("GGUF")
	for _, v := range []any{uint32(3), uint64(0), uint64(1), uint64(1), byte('k'), uint32(ggufArray), kind, n, uint64(0)} {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func TestHostileConfigs(t *testing.T) {
	for _, c := range []struct{ name, file, content, want string }{
		{"config is no JSON", "config.json", `{"architectures":`, "not JSON"},
		{"config of another shape", "config.json", `{"architectures":"LlamaForCausalLM"}`, "architectures: "},
		{"text_config is a number", "config.json", `{"text_config":3}`, "text_config"},
		{"hf_quant_config is a list", "hf_quant_config.json", `[]`, "hf_quant_config.json"},
		{"chat template is a number", "tokenizer_config.json", `{"chat_template":3}`, "neither a text nor a list"},
		{"config of 9 MiB", "config.json", `{"x":"` + strings.Repeat("x", 9<<20) + `"}`, "longer than the"},
		{"index leaves the directory", indexName, `{"weight_map":{"a.weight":"../../etc/passwd"}}`, "not the name of a file beside the index"},
		{"index of nothing", indexName, `{"metadata":{"total_size":0}}`, "names no shard"},
		{"index twice", indexName, `{"weight_map":{"a":"x.safetensors"},"weight_map":{"a":"y.safetensors"}}`, "appears twice"},
		{"index of 2^70 bytes", indexName, `{"metadata":{"total_size":1e21},"weight_map":{}}`, "is no size"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			writeSafetensors(t, filepath.Join(dir, "model.safetensors"), layers(1, plain("BF16")))
			writeFile(t, filepath.Join(dir, c.file), c.content)
			_, _, err := Open(t.Context(), Locator{Path: dir}, Options{})
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.file) {
				t.Errorf("%v; want %q", err, c.want)
			}
		})
	}
}

// bugs.md N14: a shard that is shorter than its header, and one that is not there, with the bytes that are missing.
func TestShards(t *testing.T) {
	sharded := func(t *testing.T) string {
		dir := t.TempDir()
		a, b := layers(1, plain("BF16")), []entry{{"lm_head.weight", "BF16", []int64{320, 64}}}
		writeSafetensors(t, filepath.Join(dir, "model-00001-of-00002.safetensors"), a)
		writeSafetensors(t, filepath.Join(dir, "model-00002-of-00002.safetensors"), b)
		var total int64
		var members []string
		for i, shard := range [][]entry{a, b} {
			for _, e := range shard {
				total += e.bytes()
				members = append(members, fmt.Sprintf(`%q:"model-0000%d-of-00002.safetensors"`, e.name, i+1))
			}
		}
		writeFile(t, filepath.Join(dir, indexName), fmt.Sprintf(`{"metadata":{"total_size":%d.0},"weight_map":{%s}}`, total, strings.Join(members, ",")))
		return dir
	}
	dir := sharded(t)
	m, _, err := Open(t.Context(), Locator{Path: dir}, Options{})
	if err != nil || len(m.Contradicts) != 0 || m.Tensors != 4 {
		t.Fatalf("%+v %v", m, err)
	}

	if m, _, err := Open(t.Context(), Locator{Path: dir}, Options{HeadersOnly: true}); err != nil || m.Files[0].Bytes.Or(0) == 0 || m.SHA256 != "" {
		t.Errorf("headers only: %+v %v", m.Files, err)
	}
	index, err := os.ReadFile(filepath.Join(dir, indexName))
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, indexName), strings.Replace(string(index), `"total_size":`, `"total_size":1`, 1))
	if m, _, err := Open(t.Context(), Locator{Path: dir}, Options{}); err != nil || len(m.Contradicts) != 1 || !strings.Contains(m.Contradicts[0], "bytes of tensors") {
		t.Errorf("another total: %v %v", m.Contradicts, err)
	}
	writeFile(t, filepath.Join(dir, indexName), string(index))

	// A shard that is in no index is not loaded, and not counted.
	writeSafetensors(t, filepath.Join(dir, "consolidated.safetensors"), layers(1, plain("F32")))
	if again, _, err := Open(t.Context(), Locator{Path: dir}, Options{}); err != nil || again.Parameters != m.Parameters || again.SHA256 == m.SHA256 {
		t.Errorf("with a file beside the index: %d parameters, %v", again.Parameters, err)
	}

	dir = sharded(t)
	if err := os.Remove(filepath.Join(dir, "model-00002-of-00002.safetensors")); err != nil {
		t.Fatal(err)
	}
	_, _, err = Open(t.Context(), Locator{Path: dir}, Options{})
	r, ok := errors.AsType[*Refusal](err)
	if !ok || r.Code != Incomplete || r.Missing != matrix.Some(int64(320*64*2)) {
		t.Errorf("absent shard: %v", err)
	}

	dir = sharded(t)
	if err := os.Truncate(filepath.Join(dir, "model-00001-of-00002.safetensors"), 20_000); err != nil {
		t.Fatal(err)
	}
	_, _, err = Open(t.Context(), Locator{Path: dir}, Options{})
	if r, ok := errors.AsType[*Refusal](err); !ok || r.Code != Truncated || r.Missing.Or(0) <= 0 {
		t.Errorf("short shard: %v", err)
	}

	dir = sharded(t)
	writeSafetensors(t, filepath.Join(dir, "model-00002-of-00002.safetensors"), []entry{{"lm_head2.weight", "BF16", []int64{320, 64}}})
	m, _, err = Open(t.Context(), Locator{Path: dir}, Options{})
	if err != nil || len(m.Contradicts) != 1 || !strings.Contains(m.Contradicts[0], indexName) {
		t.Errorf("an index of other tensors: %v %v", m.Contradicts, err)
	}

	dir = sharded(t)
	writeSafetensors(t, filepath.Join(dir, "model-00002-of-00002.safetensors"), []entry{{"model.norm.weight", "BF16", []int64{64}}})
	if _, _, err = Open(t.Context(), Locator{Path: dir}, Options{}); err == nil || !strings.Contains(err.Error(), "a second tensor of this name") {
		t.Errorf("one name in two shards: %v", err)
	}
}

func TestSplitGGUF(t *testing.T) {
	dir := t.TempDir()
	part := func(no uint16, tensors []ggufEntry, pairs ...kv) {
		pairs = append(pairs, kv{"split.no", no}, kv{"split.count", uint16(2)}, kv{"split.tensors.count", int32(8)})
		writeGGUF(t, filepath.Join(dir, fmt.Sprintf("m-%05d-of-00002.gguf", no+1)), pairs, tensors)
	}
	all := blocks(14, 12)
	part(0, all[:3], ggufModel("qwen35", 15)...)
	part(1, all[3:])
	for _, path := range []string{dir, filepath.Join(dir, "m-00001-of-00002.gguf"), filepath.Join(dir, "m-00002-of-00002.gguf")} {
		m, _, err := Open(t.Context(), Locator{Path: path}, Options{})
		if err != nil || m.Tensors != 8 || m.Quantization != "q4_k_m" || len(m.Files) != 2 || m.Architecture != "qwen35" {
			t.Errorf("%s: %+v %v", path, m, err)
		}
	}
	part(1, all[4:])
	refused(t, filepath.Join(dir, "m-00001-of-00002.gguf"), "says 8 tensors, the parts hold 7")
	part(0, all[3:])
	if err := os.Rename(filepath.Join(dir, "m-00001-of-00002.gguf"), filepath.Join(dir, "m-00002-of-00002.gguf")); err != nil {
		t.Fatal(err)
	}
	_, _, err := Open(t.Context(), Locator{Path: filepath.Join(dir, "m-00002-of-00002.gguf")}, Options{})
	if r, ok := errors.AsType[*Refusal](err); !ok || r.Code != Incomplete || !strings.Contains(err.Error(), "m-00001-of-00002.gguf") {
		t.Errorf("absent part: %v", err)
	}
}
