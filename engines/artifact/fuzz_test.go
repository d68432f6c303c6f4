package artifact

import (
	"bytes"
	"encoding/binary"
	"errors"
	"path/filepath"
	"testing"
)

// sound demands that a reader answers foreign bytes with a value or with a typed error.
func sound(t *testing.T, err error) bool {
	t.Helper()
	if err == nil {
		return true
	}
	_, header := errors.AsType[*HeaderError](err)
	_, refusal := errors.AsType[*Refusal](err)
	if !header && !refusal {
		t.Errorf("%T: %v", err, err)
	}
	return false
}

func FuzzSafetensors(f *testing.F) {
	header, data := safetensorsHeader(append(layers(1, modeloptNVFP4), layers(1, fp8Channel)[2:]...))
	f.Add(header, uint16(data), int64(0))
	f.Add([]byte(`{"a.weight":{"dtype":"F4","shape":[],"data_offsets":[0,0]}}   `), uint16(0), int64(0))
	f.Add([]byte(`{"__metadata__":{"x":1,"y":"\u00e9"},"é\n":{}}`), uint16(3), int64(-1))
	f.Fuzz(func(t *testing.T, header []byte, data uint16, lie int64) {
		b := append(binary.LittleEndian.AppendUint64(nil, uint64(int64(len(header))+lie)), header...)
		b = append(b, make([]byte, data)...)
		c := newCensus()
		var bytesSeen int64
		_, err := scanSafetensors(bytes.NewReader(b), "f", int64(len(b)), func(t tensor) error {
			bytesSeen += t.end - t.begin
			return c.add("f", t)
		})
		if !sound(t, err) {
			return
		}
		if bytesSeen > int64(len(b)) || bytesSeen < 0 {
			t.Errorf("%d bytes of tensors in a file of %d", bytesSeen, len(b))
		}
		shares, parameters, _ := c.shares(false, 4)
		if parameters < 0 || label(shares, false, c) == "" {
			t.Errorf("%d parameters, label %q", parameters, label(shares, false, c))
		}
	})
}

func FuzzGGUF(f *testing.F) {
	head, data := ggufHead(3, ggufModel("qwen3", 7, kv{"tokenizer.ggml.tokens", []string{"a", "bc"}}, kv{"tokenizer.chat_template", "x"}), blocks(8, 40))
	f.Add(append(head, make([]byte, data)...))
	head, data = ggufHead(2, []kv{{"a", true}, {"b", float32(1)}, {"c", uint64(1 << 63)}, {"d", []int32{1}}}, nil)
	f.Add(append(head, make([]byte, data)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := newCensus()
		var bytesSeen int64
		_, err := scanGGUF(bytes.NewReader(b), "f", int64(len(b)), func(t tensor) error {
			bytesSeen += t.end - t.begin
			return c.add("f", t)
		})
		if !sound(t, err) {
			return
		}
		if bytesSeen > int64(len(b)) || bytesSeen < 0 {
			t.Errorf("%d bytes of tensors in a file of %d", bytesSeen, len(b))
		}
		shares, _, _ := c.shares(true, 4)
		if label(shares, true, c) == "" {
			t.Error("no label")
		}
	})
}

func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":1.5e3},"weight_map":{"a.weight":"x.safetensors","b":"y.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"a":"../x"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		ix, err := scanIndex(bytes.NewReader(b), "f", int64(len(b)))
		if sound(t, err) && (len(ix.shards) == 0 || ix.tensors < int64(len(ix.shards)) || ix.total < 0) {
			t.Errorf("%+v", ix)
		}
		for _, s := range ix.shards {
			if filepath.Base(s) != s {
				t.Errorf("a shard outside the directory: %q", s)
			}
		}
	})
}

func FuzzConfig(f *testing.F) {
	for _, s := range []string{
		`{"architectures":["A"],"quantization_config":{"quant_method":"compressed-tensors","format":"mixed-precision","config_groups":{"g":{"weights":{"num_bits":4,"type":"int"}}}}}`,
		`{"text_config":{"mtp_num_hidden_layers":1,"quantization_config":{"quant_method":"gptq","bits":1e300}}}`, `{"x":[NaN,-Infinity,Infinity],"torch_dtype":"bfloat16"}`,
		`{"producer":{"name":"modelopt"},"quantization":{"quant_algo":"MIXED_PRECISION"}}`, `{"chat_template":[{"name":"default","template":"t"}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c := claims{bits: 4}
		for _, take := range []func(string, []byte) error{c.config, c.modelopt} {
			if sound(t, take("f", b)) && (c.bits < 2 || c.bits > 8) {
				t.Errorf("%d bits", c.bits)
			}
		}
		_, _, err := templateOf("f", b)
		sound(t, err)
	})
}
