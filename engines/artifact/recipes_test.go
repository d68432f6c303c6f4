package artifact

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"enginebroker/matrix"
)

// join puts modules of a layer together under numbered prefixes.
func layers(n int, of func(prefix string) []entry) []entry {
	out := []entry{{"model.embed_tokens.weight", "BF16", []int64{320, 64}}, {"model.norm.weight", "BF16", []int64{64}}}
	for i := range n {
		out = append(out, of(fmt.Sprintf("model.layers.%d.mlp.down_proj", i))...)
	}
	return out
}

func plain(dtype string) func(string) []entry {
	return func(p string) []entry { return []entry{{p + ".weight", dtype, []int64{64, 128}}} }
}

func modeloptNVFP4(p string) []entry {
	return []entry{{p + ".weight", "U8", []int64{64, 64}}, {p + ".weight_scale", "F8_E4M3", []int64{64, 8}},
		{p + ".weight_scale_2", "F32", []int64{}}, {p + ".input_scale", "F32", []int64{}}}
}

func compressedNVFP4(p string) []entry {
	return []entry{{p + ".weight_packed", "U8", []int64{64, 64}}, {p + ".weight_scale", "F8_E4M3", []int64{64, 8}},
		{p + ".weight_global_scale", "F32", []int64{1}}, {p + ".input_global_scale", "F32", []int64{1}}}
}

func fp8Channel(p string) []entry {
	return []entry{{p + ".weight", "F8_E4M3", []int64{64, 128}}, {p + ".weight_scale", "BF16", []int64{64, 1}}}
}

func TestSafetensorsRecipes(t *testing.T) {
	const embed = 320*64 + 64
	for _, c := range []struct {
		name     string
		config   string
		modelopt string
		tensors  []entry
		want     string
		params   int64 // beside embedding and norm
		cont     string
		kv       string
		contra   string // part of the only contradiction; empty: none
	}{
		{name: "bf16", config: `{"torch_dtype":"bfloat16"}`, tensors: layers(2, plain("BF16")), want: "bf16", params: 2 * 8192},
		{name: "fp16", config: `{"dtype":"float16"}`, tensors: layers(200, plain("F16")), want: "fp16", params: 200 * 8192},
		{name: "fp32 said to be bf16", config: `{"torch_dtype":"bfloat16"}`, tensors: layers(9, plain("F32")), want: "fp32", params: 9 * 8192,
			contra: "bf16 is announced (config.json: dtype), the tensors are fp32"},
		{name: "modelopt nvfp4", tensors: layers(3, modeloptNVFP4), want: "nvfp4", params: 3 * 8192, kv: "fp8",
			modelopt: `{"producer":{"name":"modelopt","version":"0.40"},"quantization":{"quant_algo":"NVFP4","kv_cache_quant_algo":"FP8","group_size":16}}`},
		{name: "compressed-tensors nvfp4", tensors: layers(3, compressedNVFP4), want: "nvfp4", params: 3 * 8192,
			config: `{"quantization_config":{"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized"}}`},
		{name: "mixed precision", tensors: append(layers(3, compressedNVFP4), layers(2, func(p string) []entry { return fp8Channel("mtp." + p) })[2:]...),
			want: "mixed(nvfp4+fp8)", params: 5 * 8192, kv: "fp8",
			config: `{"text_config":{"architectures":["Qwen3_5ForConditionalGeneration"],"quantization_config":{"quant_method":"compressed-tensors","format":"mixed-precision",
				"kv_cache_scheme":{"num_bits":8,"type":"float"},"config_groups":{"group_0":{"format":"float-quantized"},"group_1":{"format":"nvfp4-pack-quantized"}}}}}`},
		{name: "label says NVFP4, tensors are mixed", tensors: append(layers(3, modeloptNVFP4), layers(2, func(p string) []entry { return fp8Channel("x." + p) })[2:]...),
			want: "mixed(nvfp4+fp8)", params: 5 * 8192, contra: "nvfp4 is announced, the tensors are mixed(nvfp4+fp8)",
			config: `{"quantization_config":{"quant_method":"modelopt","quant_algo":"NVFP4"}}`},
		{name: "modelopt mixed", tensors: append(layers(3, modeloptNVFP4), layers(2, func(p string) []entry { return fp8Channel("x." + p) })[2:]...),
			want: "mixed(nvfp4+fp8)", params: 5 * 8192, config: `{"quantization_config":{"quant_method":"modelopt","quant_algo":"MIXED_PRECISION"}}`},
		{name: "nvfp4 without second-level scales", want: "nvfp4", params: 2 * 8192, contra: "2 NVFP4 weights have no second-level scale, the first is model.layers.0.mlp.down_proj",
			tensors: layers(2, func(p string) []entry { return modeloptNVFP4(p)[:2] })},
		{name: "block fp8", want: "fp8", params: 2 * 8192, config: `{"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]}}`,
			tensors: layers(2, func(p string) []entry {
				return []entry{{p + ".weight", "F8_E4M3", []int64{64, 128}}, {p + ".weight_scale_inv", "F32", []int64{1, 1}}}
			})},
		{name: "gpt-oss mxfp4", want: "mxfp4", params: 2 * 4 * 64 * 64, config: `{"quantization_config":{"quant_method":"mxfp4"}}`,
			tensors: layers(2, func(p string) []entry {
				return []entry{{p + ".experts.gate_up_proj_blocks", "U8", []int64{4, 64, 2, 16}}, {p + ".experts.gate_up_proj_scales", "U8", []int64{4, 64, 2}}, {p + ".experts.gate_up_proj_bias", "BF16", []int64{0}}}
			})},
		{name: "compressed-tensors mxfp4", want: "mxfp4", params: 2 * 8192, config: `{"quantization_config":{"quant_method":"compressed-tensors","format":"mxfp4-pack-quantized"}}`,
			tensors: layers(2, func(p string) []entry {
				return []entry{{p + ".weight_packed", "U8", []int64{64, 64}}, {p + ".weight_scale", "U8", []int64{64, 4}}}
			})},
		{name: "awq", want: "awq_int4", params: 2 * 8192, config: `{"quantization_config":{"quant_method":"awq","bits":4,"group_size":64}}`,
			tensors: layers(2, func(p string) []entry {
				return []entry{{p + ".qweight", "I32", []int64{128, 8}}, {p + ".qzeros", "I32", []int64{2, 8}}, {p + ".scales", "F16", []int64{2, 64}}}
			})},
		{name: "gptq", want: "gptq_int4", params: 2 * 8192, config: `{"quantization_config":{"quant_method":"gptq","bits":4}}`,
			tensors: layers(2, func(p string) []entry {
				return []entry{{p + ".qweight", "I32", []int64{16, 64}}, {p + ".qzeros", "I32", []int64{2, 8}}, {p + ".scales", "F16", []int64{2, 64}}, {p + ".g_idx", "I32", []int64{128}}}
			})},
		{name: "gptq 8 bit said to be 4", want: "gptq_int8", params: 2 * 8192, config: `{"quantization_config":{"quant_method":"gptq","bits":4}}`,
			contra: "gptq_int4 is announced, the tensors are gptq_int8",
			tensors: layers(2, func(p string) []entry {
				return []entry{{p + ".qweight", "I32", []int64{32, 64}}, {p + ".scales", "F16", []int64{2, 64}}, {p + ".g_idx", "I32", []int64{128}}}
			})},
		{name: "bitsandbytes", want: "bnb_nf4", params: 2 * 8192, config: `{"quantization_config":{"quant_method":"bitsandbytes","load_in_4bit":true,"bnb_4bit_quant_type":"nf4"}}`,
			tensors: layers(2, func(p string) []entry {
				return []entry{{p + ".weight", "U8", []int64{4096, 1}}, {p + ".weight.absmax", "U8", []int64{128}}, {p + ".weight.quant_map", "F32", []int64{16}}, {p + ".weight.quant_state.bitsandbytes__nf4", "U8", []int64{80}}}
			})},
		{name: "exl3", want: "exl3", cont: "exl3", params: 2 * 8192, config: `{"quantization_config":{"quant_method":"exl3","bits":3.5}}`,
			tensors: layers(2, func(p string) []entry {
				return []entry{{p + ".trellis", "I16", []int64{8, 4, 56}}, {p + ".suh", "F16", []int64{128}}, {p + ".svh", "F16", []int64{64}}}
			})},
		{name: "an empty trellis", want: "bf16", tensors: append(layers(0, nil), entry{"a.trellis", "I16", []int64{1 << 29, 1 << 29, 0}}, entry{"b.qweight", "I32", []int64{0, 1 << 57}})},
		{name: "int4 packed", want: "int4", params: 2 * 8192, config: `{"quantization_config":{"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{"g":{"weights":{"num_bits":4,"type":"int"}}}}}`,
			tensors: layers(2, func(p string) []entry {
				return []entry{{p + ".weight_packed", "I32", []int64{64, 16}}, {p + ".weight_scale", "BF16", []int64{64, 1}}, {p + ".weight_shape", "I64", []int64{2}}}
			})},
		{name: "mtp announced and absent", want: "bf16", params: 8192, tensors: layers(1, plain("BF16")), config: `{"text_config":{"mtp_num_hidden_layers":1}}`,
			contra: "1 multi-token-prediction layers are announced, no tensor of them is here"},
		{name: "python constants in config", want: "bf16", params: 8192, tensors: layers(1, plain("BF16")), config: `{"time_step_limit":[0.0,Infinity],"x":NaN,"s":"NaN \" Infinity"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "checkpoint")
			writeSafetensors(t, filepath.Join(dir, "model.safetensors"), c.tensors)
			if c.config != "" {
				writeFile(t, filepath.Join(dir, "config.json"), c.config)
			}
			if c.modelopt != "" {
				writeFile(t, filepath.Join(dir, "hf_quant_config.json"), c.modelopt)
			}
			m, r, err := Open(t.Context(), Locator{Path: dir}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if m.Quantization != c.want || m.Parameters != c.params+embed || m.Tensors != int64(len(c.tensors)) || r.Kind != KindModel {
				t.Errorf("got %s with %d parameters in %d tensors, want %s with %d in %d", m.Quantization, m.Parameters, m.Tensors, c.want, c.params+embed, len(c.tensors))
			}
			if want := cmp.Or(c.cont, "safetensors"); m.Container != want {
				t.Errorf("container %s, want %s", m.Container, want)
			}
			if m.KVDtype.Or("") != c.kv {
				t.Errorf("KV type %q, want %q", m.KVDtype.Or(""), c.kv)
			}
			if got := strings.Join(m.Contradicts, "; "); got != c.contra {
				t.Errorf("contradictions %q, want %q", got, c.contra)
			}
			if want := strings.Contains(c.name, "mixed precision"); m.Drafter != want {
				t.Errorf("drafter %v, want %v", m.Drafter, want)
			}
			var bytes int64
			for _, n := range m.DtypeBytes {
				bytes += n
			}
			var want int64
			for _, e := range c.tensors {
				want += e.bytes()
			}
			if bytes != want {
				t.Errorf("histogram sums to %d bytes, the tensors have %d", bytes, want)
			}
		})
	}
}

func ggufModel(arch string, fileType uint32, more ...kv) []kv {
	return append([]kv{{"general.architecture", arch}, {"general.name", "tiny"}, {"general.file_type", fileType}, {arch + ".block_count", uint32(2)}}, more...)
}

func blocks(attn, ffn uint32, extra ...string) []ggufEntry {
	out := []ggufEntry{{"token_embd.weight", 8, []uint64{256, 320}}, {"output_norm.weight", 0, []uint64{256}}}
	for i := range 2 {
		p := fmt.Sprintf("blk.%d.", i)
		out = append(out, ggufEntry{p + "attn_v.weight", attn, []uint64{256, 64}}, ggufEntry{p + "ffn_up.weight", ffn, []uint64{256, 1024}},
			ggufEntry{p + "ffn_down.weight", ffn, []uint64{1024, 256}})
		for _, e := range extra {
			out = append(out, ggufEntry{p + e, 0, []uint64{1}})
		}
	}
	return out
}

func TestGGUFRecipes(t *testing.T) {
	scales := []string{"ffn_up.scale", "ffn_down.scale"}
	for _, c := range []struct {
		name    string
		file    string
		pairs   []kv
		tensors []ggufEntry
		want    string
		kind    Kind
		drafter bool
		contra  string
	}{
		{name: "q4_k_m", pairs: ggufModel("qwen35", 15), tensors: blocks(14, 12), want: "q4_k_m"},
		{name: "q4_k_s", pairs: ggufModel("qwen35", 14), tensors: blocks(13, 12), want: "q4_k_s"},
		{name: "q3_k_l", pairs: ggufModel("qwen35", 13), tensors: blocks(13, 11), want: "q3_k_l"},
		{name: "iq3_m", pairs: ggufModel("qwen35", 27), tensors: blocks(12, 21), want: "iq3_s"},
		{name: "q6_k", pairs: ggufModel("qwen35", 18), tensors: blocks(14, 14), want: "q6_k"},
		{name: "q8_0 in a file of that name", file: "tiny-Q8_0.gguf", pairs: ggufModel("qwen3", 7), tensors: blocks(8, 8), want: "q8_0"},
		{name: "bf16", pairs: ggufModel("qwen3", 32), tensors: blocks(30, 30)[1:], want: "bf16"},
		{name: "header says Q8_0, tensors are NVFP4", pairs: ggufModel("qwen3", 7), tensors: blocks(8, 40, scales...), want: "mixed(nvfp4+q8_0)",
			contra: "q8_0 is announced, the tensors are mixed(nvfp4+q8_0)"},
		{name: "naive nvfp4", pairs: ggufModel("qwen3", 39), tensors: blocks(40, 40)[1:], want: "nvfp4", contra: "6 NVFP4 weights have no second-level scale, the first is blk.0.attn_v"},
		{name: "mxfp4 moe", pairs: ggufModel("gpt-oss", 38), tensors: blocks(8, 39), want: "mxfp4"},
		{name: "name lies", file: "tiny-Q4_K_M.gguf", pairs: ggufModel("qwen3", 18), tensors: blocks(14, 14), want: "q6_k",
			contra: "the name tiny-Q4_K_M.gguf says q4_k_m, the tensors are q6_k"},
		// gemma-3-270m is 640 wide: no row of it is a whole block of a k-quant, but those of ffn_down.
		{name: "q4_k_m that fell back", pairs: ggufModel("gemma3", 15), want: "q4_k_m", tensors: []ggufEntry{{"token_embd.weight", 8, []uint64{640, 20_000}},
			{"blk.0.attn_q.weight", 6, []uint64{640, 1024}}, {"blk.0.attn_v.weight", 8, []uint64{640, 256}}, {"blk.0.ffn_up.weight", 6, []uint64{640, 2048}}, {"blk.0.ffn_down.weight", 14, []uint64{2048, 640}},
			{"blk.1.ffn_down.weight", 12, []uint64{2048, 640}}}},
		{name: "q8_0 of odd width", pairs: ggufModel("gemma3", 7), want: "q8_0", tensors: []ggufEntry{{"blk.0.attn_q.weight", 8, []uint64{640, 1024}}, {"blk.0.ffn_down.weight", 8, []uint64{2048, 640}}}},
		{name: "drafter", pairs: ggufModel("qwen35", 15, kv{"qwen35.nextn_predict_layers", uint32(1)}), want: "q4_k_m", drafter: true,
			tensors: append(blocks(14, 12), ggufEntry{"blk.2.nextn.eh_proj.weight", 12, []uint64{256, 256}})},
		{name: "mmproj", pairs: []kv{{"general.architecture", "clip"}, {"general.type", "mmproj"}, {"general.file_type", uint32(32)}, {"clip.has_vision_encoder", true}},
			tensors: []ggufEntry{{"v.blk.0.attn_q.weight", 30, []uint64{64, 64}}}, want: "bf16", kind: KindMMProj},
		{name: "adapter", pairs: []kv{{"general.architecture", "qwen3"}, {"general.type", "adapter"}}, tensors: []ggufEntry{{"blk.0.attn_q.weight.lora_a", 0, []uint64{64, 8}}}, want: "fp32", kind: KindAdapter},
		{name: "vocabulary", pairs: []kv{{"general.architecture", "qwen3"}, {"tokenizer.ggml.tokens", []string{"a", "b"}}}, want: "none", kind: KindVocab},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), cmp.Or(c.file, "model.gguf"))
			writeGGUF(t, path, c.pairs, c.tensors)
			m, r, err := Open(t.Context(), Locator{Path: path}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if m.Quantization != c.want || m.Container != "gguf" || m.Drafter != c.drafter {
				t.Errorf("got %s in %s, drafter %v; want %s in gguf, %v", m.Quantization, m.Container, m.Drafter, c.want, c.drafter)
			}
			if want := Kind(cmp.Or(string(c.kind), string(KindModel))); r.Kind != want {
				t.Errorf("kind %s, want %s", r.Kind, want)
			}
			if got := strings.Join(m.Contradicts, "; "); got != c.contra {
				t.Errorf("contradictions %q, want %q", got, c.contra)
			}
			if arch := c.pairs[0].value.(string); m.Architecture != arch {
				t.Errorf("architecture %q, want %q", m.Architecture, arch)
			}
		})
	}
}

// Every tensor type has a geometry, and each alone names its artifact.
func TestGGUFTypes(t *testing.T) {
	for id, k := range ggmlTypes {
		path := filepath.Join(t.TempDir(), "model.gguf")
		writeGGUF(t, path, []kv{{"general.architecture", "qwen3"}}, []ggufEntry{{"blk.0.ffn_up.weight", id, []uint64{256, 4}}})
		m, _, err := Open(t.Context(), Locator{Path: path}, Options{HeadersOnly: true})
		if err != nil {
			t.Errorf("type %d (%s): %v", id, k.Name, err)
			continue
		}
		if want := 1024 / k.Block * k.Bytes; m.DtypeBytes[k.Name] != want || m.Parameters != 1024 {
			t.Errorf("type %d: %v, %d parameters; want %d bytes of %s and 1024", id, m.DtypeBytes, m.Parameters, want, k.Name)
		}
	}
}

// One tokenizer and one template have one fingerprint, whatever the weights are; templates compare over containers.
func TestTokenizerAndTemplate(t *testing.T) {
	template := "{% for m in messages %}\n{{ m.content }} {% endfor %} "
	dir := t.TempDir()
	tok := []kv{{"tokenizer.ggml.model", "gpt2"}, {"tokenizer.ggml.tokens", []string{"a", "b", "c"}}, {"tokenizer.ggml.token_type", []int32{1, 1, 3}}, {"tokenizer.chat_template", template}}
	one, two, other := filepath.Join(dir, "a.gguf"), filepath.Join(dir, "b.gguf"), filepath.Join(dir, "c.gguf")
	writeGGUF(t, one, ggufModel("qwen3", 7, tok...), blocks(8, 8))
	writeGGUF(t, two, ggufModel("qwen3", 15, tok[3], tok[2], tok[1], tok[0]), blocks(14, 12))
	tok[1].value = []string{"a", "b", "d"}
	writeGGUF(t, other, ggufModel("qwen3", 7, tok...), blocks(8, 8))
	var ms []matrix.Manifest
	for _, p := range []string{one, two, other} {
		m, _, err := Open(t.Context(), Locator{Path: p}, Options{HeadersOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		ms = append(ms, m)
	}
	if !ms[0].Tokenizer.Present() || ms[0].Tokenizer != ms[1].Tokenizer || ms[0].Tokenizer == ms[2].Tokenizer {
		t.Errorf("tokenizer fingerprints %v", []any{ms[0].Tokenizer, ms[1].Tokenizer, ms[2].Tokenizer})
	}
	for _, c := range []struct{ name, file, content string }{
		{"text", "tokenizer_config.json", fmt.Sprintf(`{"chat_template":%q}`, template)},
		{"named", "tokenizer_config.json", fmt.Sprintf(`{"chat_template":[{"name":"tool_use","template":"x"},{"name":"default","template":%q}]}`, template)},
		{"jinja", "chat_template.jinja", template},
	} {
		hf := filepath.Join(dir, c.name)
		writeSafetensors(t, filepath.Join(hf, "model.safetensors"), layers(1, plain("BF16")))
		writeFile(t, filepath.Join(hf, "tokenizer_config.json"), `{"chat_template":"another"}`)
		writeFile(t, filepath.Join(hf, c.file), c.content)
		m, _, err := Open(t.Context(), Locator{Path: hf}, Options{HeadersOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		if m.ChatTemplate != ms[0].ChatTemplate {
			t.Errorf("%s: template %v, in the GGUF it is %v", c.name, m.ChatTemplate, ms[0].ChatTemplate)
		}
	}
}

func TestNames(t *testing.T) {
	for name, want := range map[string]string{
		"nvidia/Qwen3.6-27B-NVFP4": "nvfp4", "unsloth/Qwen3.8-27B-GGUF": "", "Qwen3.8-27B-UD-Q4_K_XL.gguf": "q4_k_xl", "tiny-qwen3-bf16.gguf": "bf16",
		"Qwen/Qwen3.8-27B-FP8": "fp8", "model-F16.gguf": "fp16", "gemma-IQ4_XS.gguf": "iq4_xs", "hf": "", "Qwen3-AWQ-INT4": "int4",
	} {
		if got := claimedByName(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if !slices.IsSorted([]string{base("Q4_K_M"), base("q4_k_s")}) || base("Q4_K_M") != "q4_k" || base("MXFP4_MOE") != "mxfp4" || base("q8_0") != "q8_0" {
		t.Errorf("base: %s %s %s", base("Q4_K_M"), base("MXFP4_MOE"), base("q8_0"))
	}
}

// The model of this repository in its four forms, which llama-quantize and a safetensors writer made: same parameters, each
// what its name says, nothing contradicted.
func TestTinyQwen3(t *testing.T) {
	const root = "../../testdata/models/tiny-qwen3"
	for path, want := range map[string]string{"hf": "bf16", "tiny-qwen3-bf16.gguf": "bf16", "tiny-qwen3-q8_0.gguf": "q8_0", "tiny-qwen3-q4_k_m.gguf": "q4_k_m"} {
		m, _, err := Open(t.Context(), Locator{Path: filepath.Join(root, path)}, Options{})
		if err != nil {
			t.Error(err)
			continue
		}
		if m.Quantization != want || m.Tensors != 47 || m.Parameters != 2_525_952 || len(m.Contradicts) != 0 || m.Drafter || !m.Tokenizer.Present() || !m.ChatTemplate.Present() || len(m.SHA256) != 64 {
			t.Errorf("%s: %+v", path, m)
		}
	}
}
