package artifact

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"enginebroker/matrix"
)

// description is what both containers lead to before it becomes a manifest.
type description struct {
	manifest matrix.Manifest
	report   *Report
	claims   claims
	census   *census
}

func describe(ctx context.Context, f found, opt Options) (matrix.Manifest, *Report, error) {
	d := &description{
		manifest: matrix.Manifest{Container: "safetensors"},
		report:   &Report{Locator: f.locator.String(), Root: f.root, Links: f.links, Revision: f.revision, Kind: KindModel},
		claims:   claims{bits: 4},
		census:   newCensus(),
	}
	read := d.safetensors
	if f.gguf {
		read = d.gguf
	}
	before, err := stamps(f)
	if err == nil {
		err = read(ctx, f)
	}
	if err == nil {
		d.conclude(f)
		err = d.hash(ctx, f, opt)
	}
	if err == nil {
		err = unchanged(f, before)
	}
	if err != nil {
		return matrix.Manifest{}, nil, err
	}
	return d.manifest, d.report, nil
}

// unchanged proves that headers and hashes are of the same files: none was replaced between the two.
func unchanged(f found, before []stamp) error {
	after, err := stamps(f)
	if err != nil {
		return err
	}
	for i, s := range after {
		if s != before[i] {
			return replaced(filepath.Join(f.root, f.files[i]))
		}
	}
	return nil
}

func stamps(f found) ([]stamp, error) {
	out := make([]stamp, len(f.files))
	for i, name := range f.files {
		var err error
		if out[i], err = stampAt(filepath.Join(f.root, name)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (d *description) row(name, value, where string) {
	d.report.Rows = append(d.report.Rows, Row{name, value, where})
}

func (d *description) contradict(format string, a ...any) {
	d.manifest.Contradicts = append(d.manifest.Contradicts, fmt.Sprintf(format, a...))
}

// safetensors reads a checkpoint directory, or one file of it.
func (d *description) safetensors(ctx context.Context, f found) error {
	var err error
	if d.claims, err = readConfigs(f.root, f.files); err != nil {
		return err
	}
	weights, index, err := shards(f)
	if err != nil {
		return err
	}
	var check uint64
	var tensors, bytes int64
	var absent []string
	for _, name := range weights {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !slices.Contains(f.files, name) {
			absent = append(absent, name)
			continue
		}
		path := filepath.Join(f.root, name)
		meta, err := readSafetensors(path, func(t tensor) error {
			tensors++
			bytes += t.end - t.begin
			check += placed(t.name, name)
			return d.census.add(path, t)
		})
		if err != nil {
			return err
		}
		for _, key := range slices.Sorted(maps.Keys(meta)) {
			if key != "format" {
				d.row("metadata "+key, meta[key], name+": __metadata__")
			}
		}
	}
	for _, name := range f.weights {
		if !slices.Contains(weights, name) {
			d.row("not loaded", name, "not in the index, or a consolidated copy; hashed and not counted")
		}
	}
	if len(absent) > 0 {
		r := &Refusal{Code: Incomplete, Path: filepath.Join(f.root, indexName), Message: fmt.Sprintf("%d of %d shards are absent: %s", len(absent), len(weights), strings.Join(absent[:min(3, len(absent))], ", ")), Fix: "finish the download"}
		if index.total > bytes {
			r.Missing = matrix.Some(index.total - bytes)
		}
		return r
	}
	if index.tensors > 0 && (index.tensors != tensors || index.check != check) {
		d.contradict("%s places %d tensors, the shards hold %d, or in other shards", indexName, index.tensors, tensors)
	}
	if index.total > 0 && index.total != bytes {
		d.contradict("%s says %d bytes of tensors, the shards hold %d", indexName, index.total, bytes)
	}
	return d.tokenizer(ctx, f)
}

const indexName = "model.safetensors.index.json"

// shards lists the weight files that an engine loads: those of the index where there is one (as vLLM filters them), else all
// but a second, consolidated copy. Without an index the names say how many shards there are.
func shards(f found) ([]string, shardIndex, error) {
	if slices.Contains(f.files, indexName) {
		index, err := readIndex(f.root, indexName)
		return index.shards, index, err
	}
	weights := slices.DeleteFunc(slices.Clone(f.weights), func(n string) bool { return strings.HasPrefix(n, "consolidated") })
	if len(weights) == 0 {
		weights = f.weights
	}
	whole := map[string]bool{}
	for _, name := range weights {
		if whole[name] {
			continue
		}
		parts, err := splitParts(f.root, name)
		if err != nil {
			return nil, shardIndex{}, err
		}
		for _, p := range parts {
			whole[p] = true
		}
	}
	return weights, shardIndex{}, nil
}

func (d *description) tokenizer(ctx context.Context, f found) error {
	for _, name := range []string{"tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json"} {
		if slices.Contains(f.files, name) {
			s := &Sums{known: map[stamp]string{}}
			sum, err := s.Sum(ctx, filepath.Join(f.root, name))
			if err != nil {
				return err
			}
			d.manifest.Tokenizer = matrix.Some(sum)
			d.row("tokenizer", sum, name)
			break
		}
	}
	sum, where, err := chatTemplate(f.root, f.files)
	if err != nil {
		return err
	}
	if v, ok := sum.Get(); ok {
		d.manifest.ChatTemplate = sum
		d.row("chat template", v, where)
	}
	return nil
}

// gguf reads one file or all parts of a split one; the first part carries the metadata.
func (d *description) gguf(ctx context.Context, f found) error {
	d.manifest.Container = "gguf"
	var first *gguf
	var tensors int64
	for i, name := range f.weights {
		if err := ctx.Err(); err != nil {
			return err
		}
		path := filepath.Join(f.root, name)
		g, err := readGGUF(path, func(t tensor) error { return d.census.add(path, t) })
		if err != nil {
			return err
		}
		if i == 0 {
			first = g
		}
		tensors += g.tensors
		no, count := g.numbers["split.no"], g.numbers["split.count"]
		switch {
		case count != int64(len(f.weights)) && (count > 1 || len(f.weights) > 1):
			return &HeaderError{Path: path, Field: "split.count", Message: fmt.Sprintf("says %d parts, the file names say %d", count, len(f.weights))}
		case count > 1 && no != int64(i):
			return &HeaderError{Path: path, Field: "split.no", Message: fmt.Sprintf("says part %d, the file name says %d (counted from 0)", no, i)}
		}
	}
	if want := first.numbers["split.tensors.count"]; want > 0 && want != tensors {
		return &HeaderError{Path: filepath.Join(f.root, f.weights[0]), Field: "split.tensors.count", Message: fmt.Sprintf("says %d tensors, the parts hold %d", want, tensors)}
	}
	d.metadata(first, f.weights[0])
	return nil
}

// metadata takes what the first part of a GGUF says.
func (d *description) metadata(g *gguf, file string) {
	c, arch := &d.claims, g.text["general.architecture"]
	c.architecture = arch
	c.claim("architecture", arch, file+": general.architecture")
	c.claim("name", g.text["general.name"], file+": general.name")
	if n, ok := g.numbers["general.file_type"]; ok {
		name, known := ggufFileTypes[n&^guessedFileType]
		c.claim("file_type", cmp.Or(name, fmt.Sprintf("unknown(%d)", n)), file+": general.file_type")
		if known {
			c.label = strings.NewReplacer("f16", "fp16", "f32", "fp32", "bf16", "bf16").Replace(strings.ToLower(name))
		}
	}
	c.mtp = g.numbers[arch+".nextn_predict_layers"]
	switch kind := g.text["general.type"]; {
	case kind == "mmproj" || arch == "clip":
		d.report.Kind = KindMMProj
	case kind == "adapter":
		d.report.Kind = KindAdapter
	case g.tensors == 0 && len(g.tokenizer) > 0:
		d.report.Kind = KindVocab
	}
	for _, key := range slices.Sorted(maps.Keys(g.numbers)) {
		if strings.HasPrefix(key, arch+".") && (strings.HasSuffix(key, "_count") || strings.HasSuffix(key, "_length") || strings.HasSuffix(key, "_layers")) {
			d.row(key, itoa(g.numbers[key]), file)
		}
	}
	d.row("gguf version", itoa(int64(g.version)), file)
	if t, ok := g.text["tokenizer.chat_template"]; ok {
		d.manifest.ChatTemplate = matrix.Some(textSum(t))
		d.row("chat template", textSum(t), file+": tokenizer.chat_template")
	}
	if len(g.tokenizer) > 0 {
		var all strings.Builder
		for _, key := range slices.Sorted(maps.Keys(g.tokenizer)) {
			fmt.Fprintf(&all, "%s %s\n", key, g.tokenizer[key])
		}
		d.manifest.Tokenizer = matrix.Some(textSum(all.String()))
		d.row("tokenizer", textSum(all.String()), file+": tokenizer.ggml.*")
	}
}

// conclude turns the census into the manifest's fields and sets the claims against them.
func (d *description) conclude(f found) {
	m, c := &d.manifest, d.census
	shares, parameters, unscaled := c.shares(f.gguf, d.claims.bits)
	m.Architecture = d.claims.architecture
	m.Tensors, m.Parameters, m.DtypeBytes = c.tensors, parameters, c.dtypeBytes
	m.Quantization = label(shares, f.gguf, c)
	if strings.Contains(m.Quantization, "exl3") {
		m.Container = "exl3"
	}
	if d.claims.kv != "" {
		m.KVDtype = matrix.Some(d.claims.kv)
	}
	m.Drafter = c.drafter
	d.report.Methods = shares
	d.report.Rows = append(rows(shares), d.report.Rows...)
	if m.Architecture == "" {
		d.row("architecture", "not stated", "no config.json beside the weights")
	}

	if l := d.claims.label; l != "" && d.report.Kind == KindModel && !agrees(l, m.Quantization, f.gguf) {
		d.contradict("%s is announced, the tensors are %s", l, m.Quantization)
	} else if dtype, ok := d.claims.facts.Get("dtype"); l == "" && ok && !f.gguf {
		if want := dtypeLabels[dtype.Value]; want != "" && want != m.Quantization && !d.claims.quantized() {
			d.contradict("%s is announced (%s), the tensors are %s", want, dtype.Where, m.Quantization)
		}
	}
	if l := claimedByName(f.name); l != "" {
		d.claims.claim("name_label", l, "the name "+f.name)
		if !agrees(l, m.Quantization, f.gguf) && !named(l, m.Quantization) {
			d.contradict("the name %s says %s, the tensors are %s", f.name, l, m.Quantization)
		}
	}
	if n := len(unscaled); n > 0 {
		d.contradict("%d NVFP4 weights have no second-level scale, the first is %s", n, unscaled[0])
	}
	if d.claims.mtp > 0 && !m.Drafter {
		d.contradict("%d multi-token-prediction layers are announced, no tensor of them is here", d.claims.mtp)
	}
	m.Claimed = d.claims.facts
}

var dtypeLabels = map[string]string{"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}

func (c *claims) quantized() bool {
	_, ok := c.facts.Get("quantization")
	return ok
}

// agrees reports whether a claimed label fits the one from the tensors. A bare "mixed" fits any mixture.
func agrees(claimed, actual string, gguf bool) bool {
	if claimed == "mixed" {
		return strings.HasPrefix(actual, "mixed(")
	}
	if gguf {
		return base(cmp.Or(defaultTypes[claimed], claimed)) == base(actual)
	}
	return claimed == actual
}

// named is the looser test for names of repositories and files: they say "AWQ" for awq_int4 and "NVFP4" for a mixture that
// holds it.
func named(claimed, actual string) bool { return strings.Contains(actual, base(claimed)) }

// hash fills in the files and the manifest's identity.
func (d *description) hash(ctx context.Context, f found, opt Options) error {
	m := &d.manifest
	if opt.HeadersOnly {
		for _, name := range f.files {
			st, err := stampAt(filepath.Join(f.root, name))
			if err != nil {
				return err
			}
			m.Files = append(m.Files, matrix.File{Path: name, Bytes: matrix.Some(st.Size)})
		}
		return nil
	}
	sums := opt.Sums
	if sums == nil {
		sums = &Sums{known: map[stamp]string{}}
	}
	hits, reads := sums.hits.Load(), sums.reads.Load()
	var err error
	if m.Files, err = sums.all(ctx, f.root, f.files, opt); err != nil {
		return err
	}
	d.report.Cached, d.report.Hashed = int(sums.hits.Load()-hits), int(sums.reads.Load()-reads)
	m.SHA256, err = matrix.Digest(m.Files)
	return err
}
