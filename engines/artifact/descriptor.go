package artifact

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// plainTypes are the storage types that are no quantization, with the label of a checkpoint made of them.
var plainTypes = map[string]string{"BF16": "bf16", "F16": "fp16", "F32": "fp32", "F64": "fp64"}

// method says how one module of a safetensors checkpoint is stored, and how many parameters it stands for. Scales, zero points
// and index tensors are no parameters. bits is the integer width a configuration states, for the packings that do not show it.
func (m *module) method(bits int64) (string, int64) {
	fp8Scale := strings.HasPrefix(m.scale, "F8_E4M3")
	byteScale := m.scale == "U8" || m.scale == "F8_E8M0"
	has := func(p part) bool { return m.have&p != 0 }
	switch {
	case m.stored == 0: // dimensions of an empty tensor are no sizes
		return strings.ToLower(cmp.Or(m.dtype, "aux")), 0
	case has(partTrellis): // [in/16, out/16, 16·bits] (exllamav3)
		return "exl3", m.dims[0] * m.dims[1] * 256
	case has(partBlocks): // gpt-oss: two values in a byte, one exponent for 32
		return "mxfp4", 2 * m.stored
	case has(partPacked) && m.dtype == "U8", m.dtype == "U8" && has(partWeight) && m.scale != "":
		switch {
		case fp8Scale:
			return "nvfp4", 2 * m.stored
		case byteScale:
			return "mxfp4", 2 * m.stored
		}
		return "fp4", 2 * m.stored
	case has(partPacked): // compressed-tensors pack-quantized: words of 32 bits
		return "int" + itoa(bits), m.stored * 32 / bits
	case has(partQWeight):
		return m.gptq(bits)
	case m.dtype == "U8" && m.have&(partAbsmax|partQuantMap) != 0:
		if has(partFP4) {
			return "bnb_fp4", 2 * m.stored
		}
		return "bnb_nf4", 2 * m.stored
	case m.dtype == "I8" && has(partSCB):
		return "bnb_int8", m.stored
	case m.dtype == "I8" && has(partScale):
		return "int8", m.stored
	case m.dtype == "F4" && fp8Scale:
		return "nvfp4", m.stored
	case m.dtype == "F4":
		return "mxfp4", m.stored
	case strings.HasPrefix(m.dtype, "F8_") && byteScale:
		return "mxfp8", m.stored
	case strings.HasPrefix(m.dtype, "F8_"):
		return "fp8", m.stored
	case plainTypes[m.dtype] != "":
		return plainTypes[m.dtype], m.stored
	}
	return strings.ToLower(cmp.Or(m.dtype, "aux")), 0 // index tensors, and scales without a weight
}

// gptq tells GPTQ from AWQ: GPTQ packs along the input width and AWQ along the output width, so that only GPTQ's qweight is as
// wide as its scales.
func (m *module) gptq(bits int64) (string, int64) {
	name, width := "gptq", m.sdims[1]
	switch {
	case width > 0 && m.dims[1] != width:
		name = "awq"
		if b := 32 * m.dims[1] / width; b > 0 {
			bits = b
		}
	case m.groups > 0:
		if b := 32 * m.dims[0] / m.groups; b > 0 {
			bits = b
		}
	}
	return name + "_int" + itoa(bits), m.stored * 32 / bits
}

// unscaled reports an NVFP4 weight without its second-level scale: its values are off by a factor nobody wrote down. A GGUF
// that was quantized to NVFP4 without calibration has none (llama.cpp#22858).
func (m *module) unscaled(method string, gguf bool) bool {
	if gguf {
		return m.dtype == "NVFP4" && m.have&partScale == 0
	}
	return method == "fp4" || method == "nvfp4" && m.have&(partScale2|partGlobalScale) == 0
}

// shares sums the modules up by method, and names the modules that lack a scale.
func (c *census) shares(gguf bool, bits int64) (shares map[string]Share, parameters int64, unscaled []string) {
	shares = map[string]Share{}
	for name, m := range c.modules {
		method, n := m.method(bits)
		if gguf {
			method, n = ggufMethod(cmp.Or(m.dtype, "F32")), m.stored
		}
		s := shares[method]
		shares[method] = Share{s.Tensors + m.count, s.Parameters + n, s.Bytes + m.bytes}
		parameters += n
		if m.unscaled(method, gguf) {
			unscaled = append(unscaled, name)
		}
	}
	slices.Sort(unscaled)
	return shares, parameters, unscaled
}

func ggufMethod(dtype string) string { return cmp.Or(plainTypes[dtype], strings.ToLower(dtype)) }

// fallbacks are what llama-quantize takes where rows are no whole blocks of 256 (llama-quant.cpp): a Q4_K_M of a model 640 wide
// is mostly Q5_0.
var fallbacks = map[string]string{"Q5_0": "Q4_K", "Q5_1": "Q5_K", "Q8_0": "Q6_K", "IQ4_NL": "Q3_K"}

// intended is the type that a recipe gave to a tensor before falling back; only a file that holds k-quants has such a recipe.
func (m *module) intended(kquants bool) string {
	if meant, ok := fallbacks[m.dtype]; ok && kquants && m.dims[0]%256 != 0 {
		return meant
	}
	return m.dtype
}

// layered are the shares of the layers of a GGUF by intended type. Embedding and output take another type in most recipes, so
// that a small model would be named after its vocabulary.
func (c *census) layered() map[string]Share {
	kquants, blocks := false, false
	for name, m := range c.modules {
		kquants = kquants || strings.HasSuffix(m.dtype, "_K")
		blocks = blocks || strings.HasPrefix(name, "blk.")
	}
	shares := map[string]Share{}
	for name, m := range c.modules {
		if !blocks || strings.HasPrefix(name, "blk.") {
			method := ggufMethod(cmp.Or(m.intended(kquants), "F32"))
			shares[method] = Share{Parameters: shares[method].Parameters + m.stored}
		}
	}
	return shares
}

// minor is the share of all parameters below which a method does not name an artifact [own]: loaders keep an odd
// projector or a fallback row in another type.
const minor = 0.01

// label names what the tensors are: one quantization method, "mixed(a+b)" with the larger one first, or the plain type that
// most parameters have. In a GGUF the k-quants are one recipe, named by the type that most parameters of the layers have.
func label(shares map[string]Share, gguf bool, c *census) string {
	if gguf {
		shares = c.layered()
	}
	var quantized, plain []string
	var total int64
	for _, s := range shares {
		total += s.Parameters
	}
	for m, s := range shares {
		switch {
		case s.Parameters == 0:
		case isPlain(m):
			plain = append(plain, m)
		case float64(s.Parameters) >= minor*float64(total):
			quantized = append(quantized, m)
		}
	}
	bySize := func(a, b string) int {
		return cmp.Or(cmp.Compare(shares[b].Parameters, shares[a].Parameters), cmp.Compare(a, b))
	}
	slices.SortFunc(quantized, bySize)
	slices.SortFunc(plain, bySize)
	if len(quantized) == 0 {
		if len(plain) == 0 {
			return "none"
		}
		return plain[0]
	}
	if len(quantized) == 1 || gguf && recipe(quantized) {
		if gguf {
			return quantized[0] + size(quantized[0], c)
		}
		return quantized[0]
	}
	return "mixed(" + strings.Join(quantized, "+") + ")"
}

// recipe reports types that llama.cpp's own file types combine: k-quants with their fallbacks, and MXFP4 with Q8_0
// (MXFP4_MOE). NVFP4 beside another quantization is no file type of it.
func recipe(types []string) bool {
	if slices.Contains(types, "mxfp4") {
		return types[0] == "mxfp4" && !slices.ContainsFunc(types[1:], func(t string) bool { return t != "q8_0" })
	}
	return !slices.Contains(types, "nvfp4")
}

// size tells S, M and L of a k-quant: which type llama-quantize gave to the attn_v and ffn_down tensors of the layers
// (llama-quant.cpp, llama_tensor_get_type).
func size(main string, c *census) string {
	up := map[string][2]string{"q3_k": {"Q4_K", "Q5_K"}, "q4_k": {"Q6_K"}, "q5_k": {"Q6_K"}}[main]
	if up[0] == "" {
		return ""
	}
	count := map[string]int{}
	for name, m := range c.modules {
		if strings.HasPrefix(name, "blk.") && (strings.Contains(name, ".attn_v") || strings.Contains(name, ".ffn_down") || strings.Contains(name, ".attn_qkv")) {
			count[m.intended(true)]++
		}
	}
	switch {
	case up[1] != "" && count[up[1]] > count[up[0]]:
		return "_l"
	case count[up[0]] > 0:
		return "_m"
	}
	return "_s"
}

func isPlain(method string) bool {
	for _, l := range plainTypes {
		if l == method {
			return true
		}
	}
	return false
}

// rows lists shares, largest first, as text.
func rows(shares map[string]Share) []Row {
	names := slices.SortedFunc(maps.Keys(shares), func(a, b string) int {
		return cmp.Or(cmp.Compare(shares[b].Bytes, shares[a].Bytes), cmp.Compare(a, b))
	})
	var out []Row
	for _, n := range names {
		s := shares[n]
		out = append(out, Row{"method " + n, fmt.Sprintf("%d tensors, %d parameters, %d bytes", s.Tensors, s.Parameters, s.Bytes), "tensor headers"})
	}
	return out
}

// base strips what does not decide a contradiction between two labels of a GGUF: S, M and L, and MXFP4_MOE's suffix.
func base(label string) string {
	l := strings.ToLower(label)
	for _, s := range []string{"_s", "_m", "_l", "_xs", "_xl", "_xxs", "_moe"} {
		if b, ok := strings.CutSuffix(l, s); ok && (strings.Contains(b, "_k") || s == "_moe") {
			return b
		}
	}
	return l
}

func itoa(n int64) string { return fmt.Sprint(n) }
