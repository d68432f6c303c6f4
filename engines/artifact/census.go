package artifact

import (
	"fmt"
	"strings"
)

// census sums tensors up as they pass: bytes by stored type, and what each module (a weight with its scales) is made of.
// Names of tensors are not kept, only of modules.
type census struct {
	tensors    int64
	dtypeBytes map[string]int64
	modules    map[string]*module
	names      int // bytes of the modules' names
	drafter    bool
}

// module is one weight and what belongs to it, which may lie in several shards.
type module struct {
	have   part
	dtype  string // of the weight as stored
	scale  string // type of its block or channel scale
	rank   int
	stored int64    // elements as stored
	dims   [3]int64 // of the weight, or of what is packed
	sdims  [3]int64 // of the scale
	groups int64    // length of a GPTQ g_idx: the input width
	bytes  int64    // of all its tensors
	count  int64
}

// Bounds of a census [own]: the largest public checkpoint (a thousand billion parameters in NVFP4, 384 experts) has 280 000 tensors in
// 70 000 modules. They keep the memory of any artifact below 64 MiB.
const (
	maxTensors = 1 << 19
	maxModules = 1 << 17
	maxNames   = 12 << 20 // bytes of modules' names; those of 70 000 modules have some 8 MiB at most
)

// part is a set of a module's tensors. A part that comes twice is a duplicate name.
type part uint64

const (
	partSelf part = 1 << iota // the tensor's whole name is the module's
	partWeight
	partBias
	partPacked
	partScale
	partScale2
	partGlobalScale
	partScaleInv
	partInputScale
	partInputGlobalScale
	partShape
	partZero
	partGIdx
	partQWeight
	partQZeros
	partScales
	partTrellis
	partSuh
	partSvh
	partSu
	partSv
	partMCG
	partMul1
	partBlocks
	partBlockScales
	partAbsmax
	partQuantMap
	partNestedAbsmax
	partNestedMap
	partNF4
	partFP4
	partSCB
	partWeightFormat
	partKScale
	partVScale
)

// parts are the leaves of a name, after its last dot, that belong to a module's weight: compressed-tensors and ModelOpt
// (engines.md F), AWQ and GPTQ, EXL3, bitsandbytes.
var parts = map[string]part{
	"weight": partWeight, "bias": partBias, "weight_packed": partPacked, "weight_scale": partScale, "weight_scale_2": partScale2,
	"weight_global_scale": partGlobalScale, "weight_scale_inv": partScaleInv, "input_scale": partInputScale,
	"input_global_scale": partInputGlobalScale, "weight_shape": partShape, "weight_zero_point": partZero, "weight_g_idx": partGIdx,
	"qweight": partQWeight, "qzeros": partQZeros, "scales": partScales, "g_idx": partGIdx, "trellis": partTrellis, "suh": partSuh,
	"svh": partSvh, "su": partSu, "sv": partSv, "mcg": partMCG, "mul1": partMul1, "SCB": partSCB, "weight_format": partWeightFormat,
	"scale": partScale, "k_scale": partKScale, "v_scale": partVScale,
}

// weightParts follow "<module>.weight." (bitsandbytes).
var weightParts = map[string]part{
	"absmax": partAbsmax, "quant_map": partQuantMap, "nested_absmax": partNestedAbsmax, "nested_quant_map": partNestedMap,
	"quant_state.bitsandbytes__nf4": partNF4, "quant_state.bitsandbytes__fp4": partFP4,
}

// suffixes are what fused expert tensors carry instead of a leaf of their own (gpt-oss, block FP8).
var suffixes = []struct {
	suffix string
	part   part
}{{"_blocks", partBlocks}, {"_scales", partBlockScales}, {"_scale_inv", partScaleInv}}

// split gives the module of a tensor's name and which of its parts the tensor is.
func split(name string) (string, part) {
	if mod, leaf, ok := strings.Cut(name, ".weight."); ok {
		if p, ok := weightParts[leaf]; ok {
			return mod, p
		}
	}
	i := strings.LastIndexByte(name, '.')
	if p, ok := parts[name[i+1:]]; ok && i > 0 {
		return name[:i], p
	}
	for _, s := range suffixes {
		if mod, ok := strings.CutSuffix(name, s.suffix); ok && mod != "" {
			return mod, s.part
		}
	}
	return name, partSelf
}

func newCensus() *census {
	return &census{dtypeBytes: map[string]int64{}, modules: map[string]*module{}}
}

// add counts one tensor of a file. dims are in storage order, last one fastest.
func (c *census) add(path string, t tensor) error {
	name, p := split(t.name)
	m := c.modules[name]
	if m == nil {
		if len(c.modules) == maxModules {
			return &Refusal{Code: TooMany, Path: path, Message: fmt.Sprintf("more than %d modules; no checkpoint has as many", maxModules)}
		}
		if c.names += len(name); c.names > maxNames {
			return &Refusal{Code: TooMany, Path: path, Message: fmt.Sprintf("names of modules of more than %d bytes; no checkpoint has as many", maxNames)}
		}
		m = &module{}
		c.modules[strings.Clone(name)] = m
	}
	if m.have&p != 0 {
		return &HeaderError{Path: path, Field: t.name, Offset: t.offset, Message: "a second tensor of this name (in this file or in another shard)"}
	}
	if c.tensors++; c.tensors > maxTensors {
		return &Refusal{Code: TooMany, Path: path, Message: fmt.Sprintf("more than %d tensors; no checkpoint has as many", maxTensors)}
	}
	m.have |= p
	m.count++
	m.bytes += t.end - t.begin
	c.dtypeBytes[t.dtype] += t.end - t.begin
	c.drafter = c.drafter || drafts(t.name)
	var dims [3]int64
	copy(dims[:], t.shape)
	switch p {
	case partSelf, partWeight, partPacked, partQWeight, partTrellis, partBlocks:
		m.dtype, m.rank, m.dims = t.dtype, len(t.shape), dims
		m.stored, _ = product(1, t.shape)
	case partScale, partScales, partScaleInv, partBlockScales:
		m.scale, m.sdims = t.dtype, dims
	case partGIdx:
		m.groups = dims[0]
	}
	return nil
}

// drafts tells a tensor of a multi-token-prediction layer: mtp.* (Qwen3.5 and later), nextn (GGUF), eh_proj in the last layer
// (DeepSeek-V3, GLM-4.5). Eagle and DFlash heads have repositories of their own.
func drafts(name string) bool {
	return strings.HasPrefix(name, "mtp.") || strings.Contains(name, ".mtp.") || strings.Contains(name, ".nextn.") || strings.Contains(name, ".mtp_") || strings.Contains(name, ".eh_proj.")
}
