package negotiate_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"enginebroker/matrix"
	"enginebroker/matrix/negotiate"
)

const (
	bf16  = "qwen3.8-27b@bf16"
	nvfp4 = "qwen3.8-27b@nvfp4"
	q4km  = "qwen3.8-27b@q4_k_m"
)

// campaign is the model of the GB10 campaign: what each kind of engine is said to do with each artifact, as of the source.
func campaign() matrix.Model {
	yes := matrix.Statement{Status: matrix.StatusClaimed, Why: "runs", Source: "campaign"}
	owed := matrix.Statement{Status: matrix.StatusOwed, Why: "refused at last sight", Source: "vllm.cpp#821"}
	gguf := matrix.Statement{Status: matrix.StatusRefused, Why: "opens GGUF only", Source: "campaign"}
	st := matrix.Statement{Status: matrix.StatusRefused, Why: "opens safetensors only", Source: "vllm#39612"}
	return matrix.Model{
		Name:       "qwen3.8-27b",
		Preference: []string{nvfp4, bf16, q4km},
		Artifacts: []matrix.Artifact{
			{ID: bf16, Quantization: "bf16", Container: "safetensors", Architecture: "Qwen3_5ForConditionalGeneration",
				Statements: map[string]matrix.Statement{"vllmcpp": yes, "vllm": yes, "sglang": yes, "llamacpp": gguf}},
			{ID: nvfp4, Quantization: "nvfp4", Container: "safetensors", Architecture: "Qwen3_5ForConditionalGeneration",
				Statements: map[string]matrix.Statement{"vllmcpp": owed, "vllm": yes, "sglang": yes, "llamacpp": gguf}},
			{ID: q4km, Quantization: "q4_k_m", Container: "gguf", Architecture: "qwen35",
				Statements: map[string]matrix.Statement{"vllmcpp": owed, "vllm": st, "sglang": st, "llamacpp": yes}},
		},
	}
}

func four() []negotiate.Side {
	return []negotiate.Side{
		{Label: "ours", Engine: "vllmcpp", Subject: true}, {Label: "vllm", Engine: "vllm"},
		{Label: "sglang", Engine: "sglang"}, {Label: "llamacpp", Engine: "llamacpp"},
	}
}

// opened puts a preflight of each artifact of the side on record.
func opened(sides []negotiate.Side, label string, artifacts ...string) []negotiate.Side {
	for i := range sides {
		if sides[i].Label == label {
			sides[i].Preflighted = map[string]string{}
			for _, a := range artifacts {
				sides[i].Preflighted[a] = "preflight/" + a
			}
		}
	}
	return sides
}

// shape writes groups as "artifact: arms; pairs" and refusals as "a:b REASON".
func shape(r negotiate.Result) (groups, refusals []string) {
	for _, g := range r.Groups {
		var arms, pairs []string
		for _, a := range g.Arms {
			arms = append(arms, a.Label)
		}
		for _, p := range g.Pairs {
			pairs = append(pairs, p.A+":"+p.B)
		}
		groups = append(groups, g.ID+": "+strings.Join(arms, " ")+"; "+strings.Join(pairs, " "))
	}
	for _, f := range r.Refusals {
		refusals = append(refusals, f.Pair.A+":"+f.Pair.B+" "+string(f.Reason))
	}
	return groups, refusals
}

func negotiated(t *testing.T, in negotiate.Input) negotiate.Result {
	t.Helper()
	r, err := negotiate.Pairs(in)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func wantShape(t *testing.T, r negotiate.Result, groups, refusals []string) {
	t.Helper()
	gotGroups, gotRefusals := shape(r)
	if d := cmp.Diff(groups, gotGroups); d != "" {
		t.Errorf("groups (-want +got):\n%s", d)
	}
	if d := cmp.Diff(refusals, gotRefusals); d != "" {
		t.Errorf("refusals (-want +got):\n%s", d)
	}
}

// The plan as of the source (protocol §2.1).
func TestCampaignAsOfTheSource(t *testing.T) {
	r := negotiated(t, negotiate.Input{Model: campaign(), Sides: four()})
	wantShape(t, r,
		[]string{
			bf16 + "|raw: ours sglang vllm; ours:sglang ours:vllm",
			nvfp4 + "|raw: sglang vllm; sglang:vllm",
		},
		[]string{"llamacpp:ours NO_COMMON_QUANT", "llamacpp:sglang NO_COMMON_QUANT", "llamacpp:vllm NO_COMMON_QUANT"})
	ours, _ := r.Groups[0].Arm("ours")
	if !ours.Subject || ours.Status != matrix.StatusClaimed {
		t.Errorf("ours is %+v, want the subject, claimed", ours)
	}
	owed := r.Refusals[0]
	if !strings.Contains(owed.Fix, q4km) || !strings.Contains(owed.Fix, "ours") || !strings.Contains(owed.Fix, "refused at last sight") {
		t.Errorf("the fix of an owed arm is %q, want the artifact, the side and why it is owed", owed.Fix)
	}
	for _, f := range r.Refusals {
		if !strings.HasPrefix(f.Detail, "no common container: ") || !strings.Contains(f.Detail, "(gguf)") || !strings.Contains(f.Detail, "(safetensors)") {
			t.Errorf("%v: detail %q does not name the containers", f.Pair, f.Detail)
		}
		if len(f.Sides) != 2 || f.Sides[0].Label != f.Pair.A || f.Sides[1].Label != f.Pair.B {
			t.Fatalf("%v: sides %+v are not those of the pair, in its order", f.Pair, f.Sides)
		}
		for _, side := range f.Sides {
			if len(side.Opens)+len(side.Lacks) != 3 {
				t.Errorf("%v: side %s accounts for %d + %d of 3 artifacts", f.Pair, side.Label, len(side.Opens), len(side.Lacks))
			}
			for _, o := range side.Lacks {
				if o.Why == "" || o.Source == "" {
					t.Errorf("%v: side %s lacks %s without why and source: %+v", f.Pair, side.Label, o.Artifact, o)
				}
			}
		}
	}
}

// The plan once ours opens every artifact (protocol §2.1).
func TestCampaignWithOursOpened(t *testing.T) {
	r := negotiated(t, negotiate.Input{Model: campaign(), Sides: opened(four(), "ours", nvfp4, q4km)})
	wantShape(t, r,
		[]string{
			nvfp4 + "|raw: ours sglang vllm; ours:sglang ours:vllm sglang:vllm",
			q4km + "|raw: llamacpp ours; llamacpp:ours",
		},
		[]string{"llamacpp:sglang NO_COMMON_QUANT", "llamacpp:vllm NO_COMMON_QUANT"})
	ours, _ := r.Groups[0].Arm("ours")
	vllm, _ := r.Groups[0].Arm("vllm")
	if ours.Status != matrix.StatusOK || vllm.Status != matrix.StatusClaimed {
		t.Errorf("ours is %s and vllm %s, want ok by its preflight and claimed", ours.Status, vllm.Status)
	}
	if len(r.Notes) != 2 || !strings.Contains(r.Notes[0], "owed") {
		t.Errorf("notes %q do not say that two preflights overrule the catalog", r.Notes)
	}
}

// Protocol §2.4: with --quant all and all arms open the groups have 3 + 3 + 2 arms; as P01, 3 + 2 + 2.
func TestQuantAllGroupCounts(t *testing.T) {
	for _, c := range []struct {
		name   string
		opened []string
		quant  string
		want   []int
	}{
		{"all open", []string{nvfp4, q4km}, negotiate.All, []int{3, 3, 2}},
		{"P01", []string{q4km}, "", []int{3, 2, 2}},
		{"all open, preferred", []string{nvfp4, q4km}, "", []int{3, 2}},
		{"as of the source, all", nil, negotiate.All, []int{3, 2}},
	} {
		r := negotiated(t, negotiate.Input{Model: campaign(), Sides: opened(four(), "ours", c.opened...), Quant: c.quant})
		var got []int
		for _, g := range r.Groups {
			got = append(got, len(g.Arms))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: groups of %v arms, want %v", c.name, got, c.want)
		}
	}
}

func TestForcedQuantization(t *testing.T) {
	for _, force := range []string{"bf16", "BF16", bf16} {
		r := negotiated(t, negotiate.Input{Model: campaign(), Sides: four(), Quant: force})
		groups, refusals := shape(r)
		if len(groups) != 1 || len(refusals) != 3 || len(r.Groups[0].Pairs) != 3 {
			t.Errorf("--quant %s: groups %v, refusals %v", force, groups, refusals)
		}
	}
	r := negotiated(t, negotiate.Input{Model: campaign(), Sides: four(), Quant: "nvfp4", Pairs: []matrix.Pair{{A: "vllm", B: "ours"}}})
	if len(r.Refusals) != 1 || !strings.Contains(r.Refusals[0].Fix, bf16) ||
		!strings.HasPrefix(r.Refusals[0].Detail, "nvfp4 is not opened") {
		t.Errorf("forced to nvfp4, ours and vllm: %+v; want a refusal that points at bf16", r.Refusals)
	}
}

// A group runs all its arms although one of its pairs was not asked for; two separate pairs of one artifact are two groups.
func TestComponents(t *testing.T) {
	m := campaign()
	sides := []negotiate.Side{{Label: "a", Engine: "vllm"}, {Label: "b", Engine: "vllm"}, {Label: "c", Engine: "vllm"}, {Label: "d", Engine: "vllm"}}
	r := negotiated(t, negotiate.Input{Model: m, Sides: sides, Pairs: []matrix.Pair{{A: "c", B: "a"}, {A: "b", B: "c"}, {A: "a", B: "c"}}})
	wantShape(t, r, []string{nvfp4 + "|raw: a b c; a:c b:c"}, nil)
	r = negotiated(t, negotiate.Input{Model: m, Sides: sides, Pairs: []matrix.Pair{{A: "c", B: "d"}, {A: "b", B: "a"}}})
	wantShape(t, r, []string{nvfp4 + "|raw: a b; a:b", nvfp4 + "|raw#2: c d; c:d"}, nil)
}

func TestPolicies(t *testing.T) {
	raw := matrix.Policy{Kind: matrix.Raw}
	mtp := func(k int) matrix.Policy { return matrix.Policy{Kind: matrix.Drafted, Drafter: "mtp", Length: k} }
	for _, c := range []struct {
		name string
		x, y negotiate.Side
		want matrix.Reason // empty: agreed
	}{
		{"raw and raw", negotiate.Side{Policy: raw}, negotiate.Side{}, ""},
		{"P02: drafted and raw", negotiate.Side{Policy: raw}, negotiate.Side{Policy: mtp(2)}, matrix.DraftedVsRaw},
		{"same drafter", negotiate.Side{Policy: mtp(2)}, negotiate.Side{Policy: mtp(2)}, ""},
		{"other length", negotiate.Side{Policy: mtp(2)}, negotiate.Side{Policy: mtp(3)}, matrix.DrafterMismatch},
		{"drafted on every common artifact but one", negotiate.Side{Policy: mtp(2)},
			negotiate.Side{Policy: mtp(3), PolicyOn: map[string]matrix.Policy{bf16: raw}}, matrix.DraftedVsRaw},
		{"equal on the second choice", negotiate.Side{Policy: raw},
			negotiate.Side{Policy: raw, PolicyOn: map[string]matrix.Policy{nvfp4: mtp(2)}}, ""},
	} {
		c.x.Label, c.x.Engine, c.y.Label, c.y.Engine = "x", "vllm", "y", "sglang"
		r := negotiated(t, negotiate.Input{Model: campaign(), Sides: []negotiate.Side{c.x, c.y}})
		switch {
		case c.want == "" && (len(r.Refusals) != 0 || len(r.Groups) != 1):
			t.Errorf("%s: refused %+v", c.name, r.Refusals)
		case c.want != "" && (len(r.Refusals) != 1 || r.Refusals[0].Reason != c.want || r.Refusals[0].Fix == ""):
			t.Errorf("%s: %+v, want %s", c.name, r.Refusals, c.want)
		}
	}
}

func TestConvertedIsRefusedAsConverted(t *testing.T) {
	m := campaign()
	yes := matrix.Statement{Status: matrix.StatusClaimed, Source: "test"}
	m.Artifacts = append(m.Artifacts, matrix.Artifact{ID: "qwen3.8-27b@bf16-gguf", Quantization: "bf16-gguf", Container: "gguf", Converted: true,
		ConvertedBy: "convert_hf_to_gguf", Statements: map[string]matrix.Statement{"vllmcpp": yes, "llamacpp": yes, "vllm": yes}})
	in := negotiate.Input{Model: m, Sides: four(), Pairs: []matrix.Pair{{A: "ours", B: "llamacpp"}, {A: "ours", B: "vllm"}}}
	r := negotiated(t, in)
	if len(r.Refusals) != 1 || r.Refusals[0].Reason != matrix.ConvertedCheckpoint || !strings.Contains(r.Refusals[0].Detail, "convert_hf_to_gguf") {
		t.Errorf("refusals %+v, want one CONVERTED_CHECKPOINT that names the converter", r.Refusals)
	}
	if len(r.Groups) != 1 || r.Groups[0].Artifact != bf16 {
		t.Errorf("groups %+v, want ours and vllm on the unconverted bf16", r.Groups)
	}
	in.Quant = "bf16-gguf"
	if r = negotiated(t, in); len(r.Groups) != 0 || len(r.Refusals) != 2 || r.Refusals[1].Reason != matrix.ConvertedCheckpoint {
		t.Errorf("forced: %+v, want no group: a converted checkpoint is refused even where it is asked for", r)
	}
}

// Protocol §4.3: an attached server is never scheduled into a group.
func TestAttachedIsInNoGroup(t *testing.T) {
	sides := four()
	sides[1].Attached = true
	r := negotiated(t, negotiate.Input{Model: campaign(), Sides: sides})
	for _, g := range r.Groups {
		if _, ok := g.Arm("vllm"); ok {
			t.Errorf("group %s has an attached arm", g.ID)
		}
	}
	attached := slices.DeleteFunc(r.Refusals, func(f matrix.Refusal) bool { return f.Reason != matrix.AttachedServer })
	if len(attached) != 3 {
		t.Errorf("%d refusals say ATTACHED, want one per pair of vllm", len(attached))
	}
}

func TestDeclaredComputeDtypes(t *testing.T) {
	side := func(label, dtype string, compares ...string) negotiate.Side {
		return negotiate.Side{Label: label, Engine: "vllm", ComputeDtype: dtype, Compares: compares}
	}
	for _, c := range []struct {
		name string
		x, y negotiate.Side
		want int
	}{
		{"equal", side("x", "float32"), side("y", "float32"), 0},
		{"one undeclared: read back later", side("x", "float32"), side("y", ""), 0},
		{"different", side("x", "float32"), side("y", "bfloat16"), 1},
		{"declared by one only", side("x", "float32", matrix.FactComputeDtype), side("y", "bfloat16"), 1},
		{"the thing compared", side("x", "float32", matrix.FactComputeDtype), side("y", "bfloat16", matrix.FactComputeDtype), 0},
	} {
		r := negotiated(t, negotiate.Input{Model: campaign(), Sides: []negotiate.Side{c.x, c.y}})
		if len(r.Refusals) != c.want || (c.want == 1 && r.Refusals[0].Reason != matrix.ComputeDtypeMismatch) {
			t.Errorf("%s: %+v", c.name, r.Refusals)
		}
	}
}

// An engine without a catalog row is judged by its capabilities.
func TestCapabilities(t *testing.T) {
	line := func(container, quantization string, status matrix.Status, arch ...string) matrix.Capability {
		return matrix.Capability{Container: container, Quantization: quantization, Architectures: arch,
			Statement: matrix.Statement{Status: status, Why: "line", Source: "test " + container + " " + quantization}}
	}
	for _, c := range []struct {
		name  string
		lines []matrix.Capability
		want  map[string]matrix.Status
	}{
		{"nothing stated", nil, map[string]matrix.Status{bf16: matrix.StatusRefused, q4km: matrix.StatusRefused}},
		{"any of a container", []matrix.Capability{line("safetensors", "*", matrix.StatusClaimed)},
			map[string]matrix.Status{bf16: matrix.StatusClaimed, nvfp4: matrix.StatusClaimed, q4km: matrix.StatusRefused}},
		{"the exact line wins", []matrix.Capability{line("safetensors", "*", matrix.StatusClaimed), line("safetensors", "NVFP4", matrix.StatusOwed)},
			map[string]matrix.Status{bf16: matrix.StatusClaimed, nvfp4: matrix.StatusOwed}},
		{"other architecture", []matrix.Capability{line("gguf", "*", matrix.StatusClaimed, "llama", "qwen3")}, map[string]matrix.Status{q4km: matrix.StatusRefused}},
		{"this architecture", []matrix.Capability{line("gguf", "q4_k_m", matrix.StatusClaimed, "QWEN35")}, map[string]matrix.Status{q4km: matrix.StatusClaimed}},
		{"ok without a preflight is a claim", []matrix.Capability{line("gguf", "q4_k_m", matrix.StatusOK)}, map[string]matrix.Status{q4km: matrix.StatusClaimed}},
	} {
		side := negotiate.Side{Label: "new", Engine: "new", Description: matrix.Description{Engine: "new", Capabilities: c.lines}}
		got := statuses(t, campaign(), side)
		for id, want := range c.want {
			if got[id].Status != want || got[id].Source == "" {
				t.Errorf("%s: %s is %+v, want %s with a source", c.name, id, got[id], want)
			}
		}
	}
}

// statuses shows what a side states of every artifact, by refusing it against a side that opens nothing.
func statuses(t *testing.T, m matrix.Model, s negotiate.Side) map[string]matrix.Statement {
	t.Helper()
	r := negotiated(t, negotiate.Input{Model: m, Sides: []negotiate.Side{s, {Label: "zz-nothing", Engine: "nothing"}}})
	out := map[string]matrix.Statement{}
	for _, o := range append(r.Refusals[0].Sides[0].Opens, r.Refusals[0].Sides[0].Lacks...) {
		out[o.Artifact] = o.Statement
	}
	return out
}

// What the files hold wins over the label: the catalog's rows speak of something else then.
func TestManifestWinsOverLabel(t *testing.T) {
	hold := func(container, quantization string) matrix.Model {
		m := campaign()
		m.Artifacts[1].Manifest = matrix.Some(matrix.Manifest{Container: container, Quantization: quantization})
		return m
	}
	fp8 := matrix.Capability{Container: "safetensors", Quantization: "fp8", Statement: matrix.Statement{Status: matrix.StatusOwed, Why: "fp8 is owed", Source: "test"}}
	side := negotiate.Side{Label: "vllm", Engine: "vllm", Description: matrix.Description{Engine: "vllm", Capabilities: []matrix.Capability{fp8}}}
	for _, c := range []struct {
		container, quantization string
		want                    matrix.Status
	}{
		{"safetensors", "NVFP4", matrix.StatusClaimed},
		{"safetensors", "mixed(nvfp4+fp8)", matrix.StatusClaimed},
		{"", "", matrix.StatusClaimed},
		{"safetensors", "fp8", matrix.StatusOwed},
		{"gguf", "nvfp4", matrix.StatusRefused},
	} {
		if got := statuses(t, hold(c.container, c.quantization), side)[nvfp4]; got.Status != c.want {
			t.Errorf("files hold %q in %q: %+v, want %s", c.quantization, c.container, got, c.want)
		}
	}
	r := negotiated(t, negotiate.Input{Model: hold("safetensors", "fp8"), Sides: four()})
	if len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "files hold fp8") {
		t.Errorf("notes %q do not name the contradiction", r.Notes)
	}
	var u *negotiate.UnknownError
	if _, err := negotiate.Pairs(negotiate.Input{Model: hold("safetensors", "fp8"), Sides: four(), Quant: "nvfp4"}); !errors.As(err, &u) {
		t.Errorf("--quant nvfp4 found files that hold fp8: %v", err)
	}
	gguf := campaign()
	gguf.Artifacts[2].Manifest = matrix.Some(matrix.Manifest{Container: "gguf", Quantization: "q4_k"})
	if r := negotiated(t, negotiate.Input{Model: gguf, Sides: four()}); len(r.Notes) != 0 {
		t.Errorf("q4_k_m holding q4_k is a contradiction: %q", r.Notes)
	}
}

func TestMistakes(t *testing.T) {
	side := negotiate.Side{Label: "vllm", Engine: "vllm"}
	raw := matrix.Policy{Kind: matrix.Raw, Drafter: "mtp"}
	odd := matrix.Policy{Kind: "speculative"}
	twice := campaign()
	twice.Artifacts = append(twice.Artifacts, twice.Artifacts[0])
	for _, c := range []struct {
		name string
		in   negotiate.Input
		want string
	}{
		{"quantization", negotiate.Input{Model: campaign(), Sides: four(), Quant: "nvpf4"}, "did you mean nvfp4"},
		{"quantization far from all", negotiate.Input{Model: campaign(), Sides: four(), Quant: "zzzzzzzzzzzzzzzzzzzz"}, "known are all, bf16"},
		{"pair", negotiate.Input{Model: campaign(), Sides: four(), Pairs: []matrix.Pair{{A: "ours", B: "vlm"}}}, "did you mean vllm"},
		{"subject", negotiate.Input{Model: campaign(), Sides: []negotiate.Side{side}, Subject: "our"}, "unknown subject our"},
		{"two subjects", negotiate.Input{Model: campaign(), Sides: four(), Subject: "vllm"}, "both"},
		{"self pair", negotiate.Input{Model: campaign(), Sides: four(), Pairs: []matrix.Pair{{A: "ours", B: "ours"}}}, "second label"},
		{"label twice", negotiate.Input{Model: campaign(), Sides: []negotiate.Side{side, side}}, "two sides are called vllm"},
		{"no label", negotiate.Input{Model: campaign(), Sides: []negotiate.Side{{Engine: "vllm"}}}, "no label"},
		{"raw with a drafter", negotiate.Input{Model: campaign(), Sides: []negotiate.Side{{Label: "x", Policy: raw}}}, "names a drafter"},
		{"policy", negotiate.Input{Model: campaign(), Sides: []negotiate.Side{{Label: "x", Policy: odd}}}, "neither raw nor drafted"},
		{"artifact twice", negotiate.Input{Model: twice, Sides: four()}, "twice"},
		{"artifact without id", negotiate.Input{Model: matrix.Model{Name: "m", Artifacts: []matrix.Artifact{{}}}}, "has no id"},
	} {
		if _, err := negotiate.Pairs(c.in); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v does not say %q", c.name, err, c.want)
		}
	}
	odds := campaign()
	odds.Artifacts[0].Statements["vllm"] = matrix.Statement{Status: "maybe"}
	if got := statuses(t, odds, side)[bf16]; got.Status != matrix.StatusRefused || !strings.Contains(got.Why, "maybe") {
		t.Errorf("a status that does not exist became %+v", got)
	}
}

func TestAloneHasNothingToCompare(t *testing.T) {
	r := negotiated(t, negotiate.Input{Model: campaign(), Sides: four()[:1]})
	if len(r.Groups)+len(r.Refusals)+len(r.Agreements) != 0 {
		t.Errorf("one side alone gave %+v", r)
	}
}

// Equal input gives equal bytes, whatever the order of sides and pairs; Finish gives every arm a key of its own.
func TestDeterminismAndKeys(t *testing.T) {
	limits := matrix.Limits{ContextTokens: 1280, Concurrency: 16, KVTokens: 20480}
	out := func(sides []negotiate.Side) string {
		r := negotiated(t, negotiate.Input{Model: campaign(), Sides: sides})
		if err := negotiate.Finish(r.Groups, limits, "off"); err != nil {
			t.Fatal(err)
		}
		keys := map[string]bool{}
		for _, g := range r.Groups {
			for _, a := range g.Arms {
				keys[a.Key] = true
				if a.Limits != limits || a.Cache != "off" {
					t.Errorf("arm %s has limits %+v and cache %q", a.Label, a.Limits, a.Cache)
				}
			}
		}
		if len(keys) != 5 || keys[""] {
			t.Errorf("%d distinct keys of 5 arms: %v", len(keys), keys)
		}
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	sides := four()
	first := out(sides)
	slices.Reverse(sides)
	if second := out(sides); first != second {
		t.Errorf("the order of sides changes the result:\n%s\n%s", first, second)
	}
}
