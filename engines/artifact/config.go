package artifact

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"enginebroker/matrix"
)

// claims is what configurations beside the weights say; nothing of it is evidence.
type claims struct {
	architecture string
	label        string // quantization that the configuration announces, as a label; empty where it announces nothing
	bits         int64  // integer width, 4 where it is not said
	kv           string
	mtp          int64
	facts        matrix.Facts
}

func (c *claims) claim(name, value, where string) {
	if value != "" {
		c.facts = append(c.facts, matrix.Fact{Name: name, Value: value, Where: where, Standing: matrix.Claimed})
	}
}

// MaxConfig bounds a configuration file, in bytes [own]; with 1,000 ignore entries they have some 100 KB.
const MaxConfig = 8 << 20

// hfConfig is the part of config.json that describes the weights. Fields of wrappers (vision language models) repeat below
// text_config.
type hfConfig struct {
	Architectures []string         `json:"architectures"`
	ModelType     string           `json:"model_type"`
	TorchDtype    string           `json:"torch_dtype"`
	Dtype         string           `json:"dtype"`
	MTP           int64            `json:"mtp_num_hidden_layers"`
	NextN         int64            `json:"num_nextn_predict_layers"`
	Quantization  *hfQuantization  `json:"quantization_config"`
	Compression   *hfQuantization  `json:"compression_config"`
	Text          *json.RawMessage `json:"text_config"`
}

// hfQuantization is quantization_config of every method that engines.md F lists.
type hfQuantization struct {
	Method     string             `json:"quant_method"`
	Algo       string             `json:"quant_algo"`
	Format     string             `json:"format"`
	Bits       float64            `json:"bits"` // EXL3 has a fraction
	Load4bit   bool               `json:"load_in_4bit"`
	Load8bit   bool               `json:"load_in_8bit"`
	BnbType    string             `json:"bnb_4bit_quant_type"`
	Groups     map[string]hfGroup `json:"config_groups"`
	KV         *hfScheme          `json:"kv_cache_scheme"`
	KVAlgo     string             `json:"kv_cache_quant_algo"`
	WeightSize []int64            `json:"weight_block_size"`
}

type hfGroup struct {
	Format  string    `json:"format"`
	Weights *hfScheme `json:"weights"`
}

type hfScheme struct {
	NumBits float64 `json:"num_bits"`
	Type    string  `json:"type"`
}

func (s *hfScheme) label() string {
	if s == nil || s.NumBits == 0 {
		return ""
	}
	kind := map[string]string{"float": "fp", "int": "int"}[s.Type]
	return fmt.Sprintf("%s%g", cmp.Or(kind, s.Type), s.NumBits)
}

// modelopt is hf_quant_config.json.
type modelopt struct {
	Producer struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	} `json:"producer"`
	Quantization struct {
		Algo   string `json:"quant_algo"`
		KVAlgo string `json:"kv_cache_quant_algo"`
	} `json:"quantization"`
}

// readConfigs reads config.json and hf_quant_config.json where they exist.
func readConfigs(root string, files []string) (claims, error) {
	c := claims{bits: 4}
	for _, f := range []struct {
		name string
		take func(path string, b []byte) error
	}{{"config.json", c.config}, {"hf_quant_config.json", c.modelopt}} {
		if !slices.Contains(files, f.name) {
			continue
		}
		path := filepath.Join(root, f.name)
		b, err := readSmall(path, MaxConfig)
		if err == nil {
			err = f.take(path, b)
		}
		if err != nil {
			return c, err
		}
	}
	return c, nil
}

// config takes config.json; a wrapper's text_config too.
func (c *claims) config(path string, b []byte) error {
	var cfg, text hfConfig
	if err := parseJSON(path, b, &cfg); err != nil {
		return err
	}
	c.take(cfg, "config.json")
	if cfg.Text == nil {
		return nil
	}
	if err := decode(*cfg.Text, &text); err != nil {
		return &HeaderError{Path: path, Field: "text_config", Message: err.Error()}
	}
	c.take(text, "config.json: text_config")
	return nil
}

// modelopt takes hf_quant_config.json.
func (c *claims) modelopt(path string, b []byte) error {
	var m modelopt
	if err := parseJSON(path, b, &m); err != nil {
		return err
	}
	c.claim("producer", strings.TrimSpace(m.Producer.Name+" "+m.Producer.Version), "hf_quant_config.json")
	c.quantization(hfQuantization{Method: "modelopt", Algo: m.Quantization.Algo, KVAlgo: m.Quantization.KVAlgo}, "hf_quant_config.json")
	return nil
}

// take adds what one level of config.json says; an outer level wins over an inner one.
func (c *claims) take(cfg hfConfig, where string) {
	if c.architecture == "" && len(cfg.Architectures) > 0 {
		c.architecture = cfg.Architectures[0]
		c.claim("architecture", strings.Join(cfg.Architectures, ","), where+": architectures")
	}
	c.claim("model_type", cfg.ModelType, where+": model_type")
	c.claim("dtype", cmp.Or(cfg.Dtype, cfg.TorchDtype), where+": dtype")
	c.mtp = max(c.mtp, cfg.MTP, cfg.NextN)
	for _, q := range []*hfQuantization{cfg.Quantization, cfg.Compression} {
		if q != nil {
			c.quantization(*q, where+": quantization_config")
		}
	}
}

func (c *claims) quantization(q hfQuantization, where string) {
	c.claim("quantization", strings.Join(slices.DeleteFunc([]string{q.Method, q.Algo, q.Format}, func(s string) bool { return s == "" }), " "), where)
	if b := int64(q.Bits); b >= 2 && b <= 8 {
		c.bits = b
	}
	for _, g := range q.Groups {
		if g.Weights != nil && g.Weights.Type == "int" && (g.Weights.NumBits == 4 || g.Weights.NumBits == 8) {
			c.bits = int64(g.Weights.NumBits)
		}
	}
	c.label = cmp.Or(c.label, q.label(c.bits))
	kv := cmp.Or(q.KV.label(), strings.ToLower(q.KVAlgo))
	if kv != "" && kv != "none" && c.kv == "" {
		c.kv = kv
		c.claim("kv_dtype", kv, where)
	}
}

// label is what the configuration announces, in the words of label() over tensors. Empty: a method this reader does not name.
func (q hfQuantization) label(bits int64) string {
	algo := strings.ToUpper(q.Algo)
	switch q.Method {
	case "modelopt", "modelopt_fp4", "modelopt_mixed":
		switch {
		case strings.Contains(algo, "MIXED"):
			return "mixed"
		case strings.Contains(algo, "NVFP4"):
			return "nvfp4"
		case strings.Contains(algo, "MXFP4"):
			return "mxfp4"
		case strings.Contains(algo, "MXFP8"):
			return "mxfp8"
		case strings.HasPrefix(algo, "FP8"):
			return "fp8"
		case strings.Contains(algo, "INT8") || strings.Contains(algo, "W8A8"):
			return "int8"
		case strings.Contains(algo, "W4A16"):
			return "awq_int4"
		}
	case "compressed-tensors":
		return q.compressed(bits)
	case "fp8", "fbgemm_fp8":
		return "fp8"
	case "mxfp4", "gpt_oss_mxfp4":
		return "mxfp4"
	case "awq", "gptq":
		return q.Method + "_int" + itoa(bits)
	case "bitsandbytes":
		if q.Load4bit {
			return "bnb_" + cmp.Or(q.BnbType, "fp4")
		}
		if q.Load8bit {
			return "bnb_int8"
		}
	case "exl3":
		return "exl3"
	}
	return ""
}

func (q hfQuantization) compressed(bits int64) string {
	formats := map[string]bool{q.Format: true}
	if q.Format == "" || q.Format == "mixed-precision" {
		formats = map[string]bool{}
		for _, g := range q.Groups {
			formats[g.Format] = true
		}
	}
	if q.Format == "mixed-precision" || len(formats) > 1 {
		return "mixed"
	}
	for f := range formats {
		switch f {
		case "nvfp4-pack-quantized":
			return "nvfp4"
		case "mxfp4-pack-quantized":
			return "mxfp4"
		case "mxfp8-quantized":
			return "mxfp8"
		case "float-quantized", "naive-quantized":
			return "fp8"
		case "int-quantized":
			return "int8"
		case "pack-quantized":
			return "int" + itoa(bits)
		}
	}
	return ""
}

// nameLabel finds a quantization in the name of a repository or a file: a claim like any other.
var nameLabel = regexp.MustCompile(`(?i)(?:^|[-_.])(nvfp4|mxfp4|mxfp8|fp8|awq|gptq|exl3|int[48]|bf16|fp16|f16|iq[1-4]_[a-z]+|q[2-8]_(?:k(?:_(?:xxl|xl|[sml]))?|[01]))(?:[-_.]|$)`)

func claimedByName(name string) string {
	last := ""
	for { // a separator may end one word and begin the next
		at := nameLabel.FindStringSubmatchIndex(name)
		if at == nil {
			break
		}
		last, name = strings.ToLower(name[at[2]:at[3]]), name[at[3]:]
	}
	if last == "f16" {
		return "fp16"
	}
	return last
}

// chatTemplate returns the sha256 of the template's text: chat_template.jinja wins over tokenizer_config.json (transformers).
func chatTemplate(root string, files []string) (matrix.Opt[string], string, error) {
	if slices.Contains(files, "chat_template.jinja") {
		b, err := readSmall(filepath.Join(root, "chat_template.jinja"), maxText)
		return matrix.Some(textSum(string(b))), "chat_template.jinja", err
	}
	if !slices.Contains(files, "tokenizer_config.json") {
		return matrix.Opt[string]{}, "", nil
	}
	path := filepath.Join(root, "tokenizer_config.json")
	b, err := readSmall(path, MaxConfig)
	if err != nil {
		return matrix.Opt[string]{}, "", err
	}
	return templateOf(path, b)
}

// templateOf reads the template of tokenizer_config.json: a text, or the default one of a list.
func templateOf(path string, b []byte) (matrix.Opt[string], string, error) {
	none := matrix.Opt[string]{}
	var cfg struct {
		Template json.RawMessage `json:"chat_template"`
	}
	if err := parseJSON(path, b, &cfg); err != nil {
		return none, "", err
	}
	if len(cfg.Template) == 0 || string(cfg.Template) == "null" {
		return none, "", nil
	}
	var text string
	if json.Unmarshal(cfg.Template, &text) == nil {
		return matrix.Some(textSum(text)), "tokenizer_config.json", nil
	}
	var named []struct{ Name, Template string }
	if err := json.Unmarshal(cfg.Template, &named); err != nil {
		return none, "", &HeaderError{Path: path, Field: "chat_template", Message: "neither a text nor a list of named texts"}
	}
	for _, n := range named {
		if n.Name == "default" {
			return matrix.Some(textSum(n.Template)), "tokenizer_config.json: default", nil
		}
	}
	return none, "", nil
}

func textSum(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// parseJSON reads a configuration and says where it is wrong.
func parseJSON(path string, b []byte, v any) error {
	err := decode(b, v)
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return &HeaderError{Path: path, Offset: syntax.Offset, Message: "not JSON: " + syntax.Error()}
	case errors.As(err, &kind):
		return &HeaderError{Path: path, Field: kind.Field, Offset: kind.Offset, Message: "a " + kind.Value + " where " + kind.Type.String() + " is expected"}
	}
	return err
}

// decode reads JSON as Python writes it: NaN and Infinity, which configurations of state-space models hold, become null.
func decode(b []byte, v any) error {
	err := json.Unmarshal(b, v)
	if _, ok := errors.AsType[*json.SyntaxError](err); ok {
		return json.Unmarshal(python(b), v)
	}
	return err
}

var pythonWords = []string{"-Infinity", "Infinity", "NaN"}

func python(b []byte) []byte {
	out := make([]byte, 0, len(b))
	text := false
	for i := 0; i < len(b); i++ {
		switch {
		case text && b[i] == '\\' && i+1 < len(b):
			out = append(out, b[i])
			i++
		case b[i] == '"':
			text = !text
		case !text && (b[i] == '-' || b[i] == 'I' || b[i] == 'N'):
			if w := slices.IndexFunc(pythonWords, func(w string) bool { return strings.HasPrefix(string(b[i:min(i+len(w), len(b))]), w) }); w >= 0 {
				out = append(out, "null"...)
				i += len(pythonWords[w]) - 1
				continue
			}
		}
		out = append(out, b[i])
	}
	return out
}
