package pins

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"enginebroker/engines/fingerprint"
	"enginebroker/matrix"
)

var update = flag.Bool("update", false, "write golden files anew")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// oracle makes the two environments of the source story: the link points at the rollback, the pin is an editable install.
func oracle(t *testing.T) (venvs string) {
	t.Helper()
	venvs, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	file := func(path, content string) {
		t.Helper()
		path = filepath.Join(venvs, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for venv, packages := range map[string][]string{
		"vllm-oracle-v0.25.0-stage": {"vllm-0.25.0", "torch-2.11.0", "flashinfer_python-0.6.13"},
		"vllm-oracle-next":          {"vllm-0.26.0.dev0+g5559679", "torch-2.13.0", "flashinfer_python-0.6.15.post1"},
	} {
		file(venv+"/pyvenv.cfg", "")
		file(venv+"/bin/vllm", "#!"+filepath.Join(venvs, venv)+"/bin/python\n")
		for _, p := range packages {
			file(venv+"/lib/python3.12/site-packages/"+p+".dist-info/METADATA", "")
		}
	}
	file("vllm-oracle-next/lib/python3.12/site-packages/vllm-0.26.0.dev0+g5559679.dist-info/direct_url.json",
		`{"url":"file://`+venvs+`/vllm-src-5559679","dir_info":{"editable":true}}`)
	if err := os.Symlink("vllm-oracle-v0.25.0-stage", filepath.Join(venvs, "vllm-oracle")); err != nil {
		t.Fatal(err)
	}
	return venvs
}

func observed(name, value, where string) matrix.Fact {
	return matrix.Fact{Name: name, Value: value, Where: where, Standing: matrix.Observed}
}

// The source story: every script resolved a link, and the link had moved to the rollback. The version string of what the
// record called 0.26.0.dev0 was another one.
func TestOracleStory(t *testing.T) {
	set, err := Load("testdata/pins")
	if err != nil {
		t.Fatal(err)
	}
	pin, venvs := set["vllm-oracle"], oracle(t)
	static := func(venv string) matrix.Facts {
		t.Helper()
		facts, err := fingerprint.Static(t.Context(), filepath.Join(venvs, venv, "bin/vllm"), nil)
		if err != nil {
			t.Fatal(err)
		}
		return facts
	}
	relative := func(s string) string { return strings.ReplaceAll(s, venvs, "~/venvs") }

	running := append(static("vllm-oracle"), observed(matrix.FactVersion, "0.25.0", "GET /version"))
	links, _ := running.Get(fingerprint.FactBinaryLinks)
	text := relative("$ the link: " + links.Value + "\n" + Describe(Check(pin, running)))

	next := append(static("vllm-oracle-next"), observed(matrix.FactVersion, "0.23.1rc1.dev1511+g555967922", "GET /version"),
		matrix.Fact{Name: matrix.FactCommit, Value: "5559679229bc961848b121ccdeaa8fa5d79bec98", Where: "git of a source tree", Standing: matrix.Claimed})
	text += relative("$ the pin itself\n" + Describe(Check(pin, next)))

	text += relative(fmt.Sprintf("$ can it run\n%v\n%v\n%v\n", Runs(pin, matrix.Description{Installed: true, Identity: static("vllm-oracle-next")}),
		Runs(pin, matrix.Description{LookedFor: []string{"/opt/vllm", "/usr/bin/vllm"}}),
		DoesNotRun(pin, &matrix.StartFailure{Message: "exited with 1", RootCause: []string{"ModuleNotFoundError: No module named 'vllm'"}})))
	golden(t, "oracle.txt", text)
	if err := Runs(pin, matrix.Description{Installed: true, Identity: static("vllm-oracle")}); err != nil {
		t.Errorf("the rollback runs, it is only not the pin: %v", err)
	}
}

func valid() Pin {
	return Pin{Name: "ours", Engine: "vllmcpp", Expect: Expect{Version: "0.0.1", BinarySHA256: "ab"}, Recorded: Act{"u", "2026-12-01", "first"}}
}

func TestCheck(t *testing.T) {
	p := valid()
	p.Expect = Expect{Version: "1.0", Distribution: Distribution{"vllm", "1.0.precompiled"}, Commit: "c0ffee", Packages: map[string]string{"torch": "2", "triton": "3"}, BinarySHA256: "aa",
		Build: "bb", Backend: "libggml-cpu-x64.so", Image: "sha256:" + strings.Repeat("0", 64), Artifacts: map[string]string{"m@nvfp4": "dd", "m@bf16": "ee"}}
	other := "sha256:" + strings.Repeat("1", 64)
	facts := func(change ...string) matrix.Facts {
		f := matrix.Facts{}
		for _, kv := range [][2]string{{"engine", "vllmcpp"}, {"version", "1.0"}, {"package.vllm", "1.0.precompiled"}, {"commit", "c0ffee"}, {"package.torch", "2"}, {"package.triton", "3"},
			{"binary.sha256", "aa"}, {"build", "bb"}, {"backend", "libggml-cpu-x64.so"}, {"image", p.Expect.Image}, {"artifact.m@nvfp4", "dd"}} {
			value := kv[1]
			drop := false
			for i := 0; i < len(change); i += 2 {
				if change[i] == kv[0] {
					value, drop = change[i+1], change[i+1] == ""
				}
			}
			if !drop {
				f = append(f, observed(kv[0], value, "here"))
			}
		}
		return f
	}
	for _, c := range []struct {
		name string
		f    matrix.Facts
		want []matrix.PinMismatch
	}{
		{"all met", facts(), nil},
		{"a suffix is another version", facts("version", "1.0+g1"), []matrix.PinMismatch{{Field: "version", Expected: "1.0", Found: "1.0+g1", Where: "here"}}},
		{"a prefix of a commit is another string", facts("commit", "c0ff"), []matrix.PinMismatch{{Field: "commit", Expected: "c0ffee", Found: "c0ff", Where: "here"}}},
		{"metadata is not the module", facts("package.vllm", "1.0"), []matrix.PinMismatch{{Field: "distribution", Expected: "1.0.precompiled", Found: "1.0", Where: "here"}}},
		{"not observed", facts("build", "", "package.torch", ""), []matrix.PinMismatch{{Field: "packages.torch", Expected: "2", Found: "not observed"}, {Field: "build", Expected: "bb", Found: "not observed"}}},
		{"the tag moved to another image", facts("image", other), []matrix.PinMismatch{{Field: "image", Expected: p.Expect.Image, Found: other, Where: "here"}}},
		{"a container that was patched", facts("image", p.Expect.Image+" changed 0011"), []matrix.PinMismatch{{Field: "image", Expected: p.Expect.Image, Found: p.Expect.Image + " changed 0011", Where: "here"}}},
		{"another engine", facts("engine", "vllm"), []matrix.PinMismatch{{Field: "engine", Expected: "vllmcpp", Found: "vllm", Where: "here"}}},
		{"another artifact of the pin", facts("artifact.m@nvfp4", "ff"), []matrix.PinMismatch{{Field: "artifacts.m@nvfp4", Expected: "dd", Found: "ff", Where: "here"}}},
		{"no artifact seen", facts("artifact.m@nvfp4", ""), []matrix.PinMismatch{{Field: "artifacts", Expected: "m@bf16, m@nvfp4", Found: "not observed"}}},
		{"installed twice", append(facts(), observed("package.torch", "1", "there")), []matrix.PinMismatch{{Field: "packages.torch", Expected: "2", Found: "1", Where: "there"}}},
		{"claimed", append(facts("commit", ""), matrix.Fact{Name: "commit", Value: "c0ffee", Where: "git", Standing: matrix.Claimed}),
			[]matrix.PinMismatch{{Field: "commit", Expected: "c0ffee", Found: "c0ffee (only claimed)", Where: "git"}}},
	} {
		got := Check(p, c.f)
		if len(got.Unlisted) > 0 {
			t.Errorf("%s: %v is unlisted", c.name, got.Unlisted)
		}
		if diff := cmp.Diff(c.want, got.Mismatch); diff != "" || got.OK != (c.want == nil) || got.Pin != "ours" {
			t.Errorf("%s: %v\n%s", c.name, got.OK, diff)
		}
	}
}

// A pin that has no manifest of what was opened says nothing of those files, and its check does not either.
func TestUnlistedArtifact(t *testing.T) {
	p := valid()
	p.Expect = Expect{Version: "1.0", Artifacts: map[string]string{"m@bf16": "ee"}}
	got := Check(p, matrix.Facts{observed("engine", "vllmcpp", ""), observed("version", "1.0", ""), observed("artifact.m@q4", "ff", "")})
	if says := Describe(got); !got.OK || !slices.Equal(got.Unlisted, []string{"m@q4"}) || !strings.Contains(says, "no manifest of m@q4") || strings.Contains(says, "what runs is what is pinned") {
		t.Errorf("%+v: %s", got, says)
	}
}

func TestRecordAndAdvance(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pins")
	if set, err := Load(dir); err != nil || len(set) != 0 {
		t.Fatalf("%v %v", set, err)
	}
	p := valid()
	if err := Record(dir, p); err != nil {
		t.Fatal(err)
	}
	if err := Record(dir, p); err == nil || !strings.Contains(err.Error(), "advance it, with a reason") {
		t.Errorf("a pin was replaced in silence: %v", err)
	}
	next := Expect{Version: "0.0.2"}
	if _, err := Advance(dir, "ours", next, Copy{}, Act{By: "u", At: "2026-12-02"}, nil); err == nil || !strings.Contains(err.Error(), "a pin needs a reason") {
		t.Errorf("advanced without a reason: %v", err)
	}
	if _, err := Advance(dir, "ours", Expect{}, Copy{}, Act{"u", "2026-12-02", "x"}, nil); err == nil || !strings.Contains(err.Error(), "met by everything") {
		t.Errorf("advanced to nothing: %v", err)
	}
	if _, err := Advance(dir, "../ours", next, Copy{}, Act{"u", "2026-12-02", "x"}, nil); err == nil {
		t.Error("advanced a file outside the directory")
	}
	carried := []string{"run 2026-12-01-a", "cell ours:vllm/bf16/c1/output_tok_s"}
	old, err := Advance(dir, "ours", next, Copy{Present: true, Where: "/pins/copy"}, Act{"v", "2026-12-02T10:00:00Z", "fix of the server"}, carried)
	if err != nil || old.Expect.Version != "0.0.1" {
		t.Fatalf("%+v %v", old, err)
	}
	set, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := Pin{Name: "ours", Engine: "vllmcpp", Expect: next, Recorded: Act{"v", "2026-12-02T10:00:00Z", "fix of the server"}, Copy: Copy{Present: true, Where: "/pins/copy"},
		History: []Replaced{{Expect: p.Expect, Recorded: p.Recorded, Replaced: Act{"v", "2026-12-02T10:00:00Z", "fix of the server"}, Carried: carried}}}
	if diff := cmp.Diff(want, set["ours"]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v %v", entries, err)
	}
}

func TestLoadErrors(t *testing.T) {
	const head = "pin: x\nengine: vllm\n"
	const tail = "recorded: {by: u, at: 2026-12-01, why: w}\n"
	for _, c := range []struct{ name, content, want string }{
		{"unknown field", head + "expect:\n  verzion: 1\n" + tail, `x.yaml:4:3: unknown field "verzion"`},
		{"twice", head + "engine: sglang\nexpect: {version: \"1\"}\n" + tail, "x.yaml:3:1"},
		{"no YAML", head + "expect: [", "x.yaml:"},
		{"no expectation", head + "expect: {}\n" + tail, "met by everything"},
		{"no reason", head + "expect: {version: \"1\"}\nrecorded: {by: u, at: 2026-12-01}\n", "recorded.why: absent"},
		{"no author", head + "expect: {version: \"1\"}\nrecorded: {at: 2026-12-01, why: w}\n", "recorded.by: absent"},
		{"no date", head + "expect: {version: \"1\"}\nrecorded: {by: u, at: yesterday, why: w}\n", `"yesterday" is no date`},
		{"a tag for an image", head + "expect: {image: \"lmsysorg/sglang:v0.5.15\"}\n" + tail, "a tag moves"},
		{"half a distribution", head + "expect: {distribution: {name: vllm}}\n" + tail, "needs both name and version"},
		{"an empty package", head + "expect: {packages: {torch: \"\"}}\n" + tail, "expect: torch: empty"},
		{"another name", "pin: y\nengine: vllm\nexpect: {version: \"1\"}\n" + tail, `"y" is not the name of the file`},
		{"two documents", head + "expect: {version: \"1\"}\n" + tail + "---\npin: z\n", "more than one document"},
		{"empty", "", "x.yaml"},
	} {
		dir := t.TempDir()
		for name, content := range map[string]string{"x.yaml": c.content, "good.yaml": "pin: good\nengine: vllm\nexpect: {version: \"1\"}\n" + tail} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		set, err := Load(dir)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if _, ok := set["good"]; !ok || len(set) != 1 {
			t.Errorf("%s: one bad file hid another: %v", c.name, set.Names())
		}
	}
}

// A pipe in a folder of records is a fault like any other, and nobody waits for its other end.
func TestPipeForARecord(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "x.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "x.yaml: a named pipe is no regular file") {
		t.Error(err)
	}
}

func FuzzPin(f *testing.F) {
	b, err := os.ReadFile("testdata/pins/vllm-oracle.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("pin: x\nengine: y\nexpect: {version: \"1\"}\nrecorded: {by: u, at: 2026-12-01, why: w}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parse[Pin]("x.yaml", b)
		if err == nil && Check(p, nil).OK {
			t.Error("nothing meets a pin")
		}
		if c, err := parse[Claim]("x.yaml", b); err == nil && len(c.Figures) == 0 {
			t.Error("a claim of nothing")
		}
	})
}

func claim() Claim {
	return Claim{Name: "sglang-spark", Source: "https://forums.developer.nvidia.com/t/x", Retrieved: Retrieved{"indexed", "2026-08-20", "HTTP 402"}, Engine: "sglang", Model: "Qwen3.8-27B",
		Artifact: "nvfp4", Policy: "drafted", Drafter: "DSpark", PrefixCache: unknown, Nodes: "1", Clock: unknown,
		Figures:    []Figure{{Metric: "output rate", Value: "38.0", Unit: "tok/s", Condition: "average of eval-style workloads"}, {Metric: "output rate", Value: "~34", Unit: "tok/s"}},
		Unverified: []string{"drafter size", "batch size"}, Recorded: Act{"u", "2026-08-20", "quoted in the campaign"}}
}

func TestClaims(t *testing.T) {
	dir := t.TempDir()
	if err := RecordClaim(dir, claim()); err != nil {
		t.Fatal(err)
	}
	if err := RecordClaim(dir, claim()); err == nil {
		t.Error("a claim was replaced in silence")
	}
	set, err := LoadClaims(dir)
	if diff := cmp.Diff(map[string]Claim{"sglang-spark": claim()}, set); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for want, spoil := range map[string]func(*Claim){
		"source: absent":            func(c *Claim) { c.Source = "" },
		`policy: "" is none of raw`: func(c *Claim) { c.Policy = "" }, // what is not known is said to be unknown
		"prefix_cache":              func(c *Claim) { c.PrefixCache = "maybe" },
		"retrieved.state":           func(c *Claim) { c.Retrieved.State = "remembered" },
		"nodes":                     func(c *Claim) { c.Nodes = "0" },
		"clock_ceiling_mhz":         func(c *Claim) { c.Clock = "" },
		"figures: none":             func(c *Claim) { c.Figures = nil },
		"\"NaN\" is no measured":    func(c *Claim) { c.Figures[0].Value = "NaN" },
		"\"~-Inf\" is no measured":  func(c *Claim) { c.Figures[0].Value = "~-Inf" },
		"\"1e999\" is no measured":  func(c *Claim) { c.Figures[0].Value = "1e999" },
		"\"-3\" is no measured":     func(c *Claim) { c.Figures[1].Value = "-3" },
		"figures[0]":                func(c *Claim) { c.Figures[0].Unit = "" },
		"retrieved.at":              func(c *Claim) { c.Retrieved.At = "August" },
		"recorded.by":               func(c *Claim) { c.Recorded.By = "" },
		"is no name":                func(c *Claim) { c.Name = "../x" },
	} {
		c := claim()
		spoil(&c)
		if err := RecordClaim(t.TempDir(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// A pin made of what runs is met by what runs, and takes no claim and no doubt into its expectations.
func TestExpectOf(t *testing.T) {
	seen := func(name, value string) matrix.Fact {
		return matrix.Fact{Name: name, Value: value, Where: "x", Standing: matrix.Observed}
	}
	facts := matrix.Facts{
		{Name: matrix.FactEngine, Value: "vllm", Standing: matrix.Claimed}, seen(matrix.FactVersion, "0.32.0+cpu"), {Name: matrix.FactCommit, Value: "abc", Standing: matrix.Claimed},
		seen("package.vllm", "0.32.0"), seen("package.torch", "2.13.0"), seen("package.requests", "2.0"), seen("package.torch.origin", "https://x"),
		seen("package.triton", "3.1"), seen("package.triton", "3.2"), seen(matrix.FactBuild, "b1"), seen(matrix.FactBackend, "_C.abi3.so"),
	}
	got := ExpectOf(facts)
	want := Expect{Version: "0.32.0+cpu", Distribution: Distribution{Name: "vllm", Version: "0.32.0"}, Packages: map[string]string{"torch": "2.13.0"}, Build: "b1", Backend: "_C.abi3.so"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if c := Check(Pin{Name: "p", Engine: "vllm", Expect: got}, facts); !c.OK {
		t.Error(Describe(c))
	}
}
