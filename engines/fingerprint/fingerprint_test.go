package fingerprint

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"enginebroker/matrix"
)

// Behind a loader /proc/PID/exe is the loader: the program is what is mapped (engines.md E8).
func TestNativeBehindLoader(t *testing.T) {
	b := newBox(t)
	b.file("/opt/sid/usr/CMakeCache.txt", "# comment\nCMAKE_BUILD_TYPE:STRING=Release\nGGML_CUDA:BOOL=OFF\nCMAKE_HOME_DIRECTORY:INTERNAL=/src/llama\nUNRELATED:STRING=x\nGGML_TOKEN_URL:STRING=https://u:secretpassword@h/x\n")
	b.file("/src/llama/.git/HEAD", "ref: refs/heads/main\n")
	b.file("/src/llama/.git/packed-refs", "# pack-refs\n10bf611e533d81f739128304991c5e133c6aebd8 refs/heads/main\n")
	b.llamacpp(7, "libggml-cpu-haswell.so")
	p := b.of(7)
	want(t, p.Facts, map[string]string{
		matrix.FactBinary:  "/opt/sid/usr/bin/llama-server",
		matrix.FactBackend: "libggml-cpu-haswell.so",
		matrix.FactBuild:   p.Build,
		matrix.FactCommit:  "10bf611e533d81f739128304991c5e133c6aebd8",
		FactBinarySHA256:   digestText("llama-server b11669"),
		FactBinaryLinks:    "= /opt/sid/usr/bin/llama-server",
		"cmake.GGML_CUDA":  "OFF", "cmake.UNRELATED": "", FactSource: "/src/llama",
		"flag.c": "4096", "flag.np": "4", "flag.seed": "-1", "flag.port": "9007", "flag.api-key": Removed, "flag.library-path": "",
		"env.OMP_NUM_THREADS": "2", "env.LLAMA_API_KEY": Removed, "env.HOME": "", FactDeleted: "", FactHelper: "",
	})
	commit, _ := p.Facts.Get(matrix.FactCommit)
	build, _ := p.Facts.Get(matrix.FactBuild)
	if commit.Standing != matrix.Claimed || build.Standing != matrix.Observed {
		t.Errorf("a commit of the source tree is %s, a build is %s", commit.Standing, build.Standing)
	}
	text, err := json.Marshal(p.Facts)
	b.must(err)
	for _, secret := range []string{"topsecretvalue", "secretpassword"} {
		if strings.Contains(string(text), secret) {
			t.Errorf("%s was recorded", secret)
		}
	}
	if again := b.of(7); again.Build != p.Build || fmt.Sprint(again.Facts) != fmt.Sprint(p.Facts) {
		t.Error("one tree gave two identities")
	}
}

// Two real arms of llama.cpp that differ in the backend library only: diff names it first, and the arm print differs.
func TestBackendIsIdentity(t *testing.T) {
	b := newBox(t)
	b.llamacpp(7, "libggml-cpu-haswell.so")
	b.llamacpp2(8, "libggml-cpu-x64.so")
	x, y := b.of(7), b.of(8)
	diff := Diff(x.Facts, y.Facts)
	if len(diff) == 0 || diff[0].Name != matrix.FactBackend || diff[0].A != matrix.Some("libggml-cpu-haswell.so") || diff[0].B != matrix.Some("libggml-cpu-x64.so") {
		t.Fatalf("%+v", diff)
	}
	for i, d := range diff {
		if d.NotRecorded {
			t.Errorf("%s: both trees were read whole, nothing is unknown", d.Name)
		}
		if i > 0 && d.Name == "flag.port" && d.Class != "location" {
			t.Errorf("a port is a %s", d.Class)
		}
	}
	if armPrint(t, x.Facts) == armPrint(t, y.Facts) {
		t.Error("two backends have one print")
	}
	if d := Distinct(x.Facts, y.Facts); !d.Differ || !strings.Contains(d.Says, "backend") {
		t.Errorf("%+v", d)
	}
	if x.Build == y.Build {
		t.Error("two backends are one build")
	}
}

// llamacpp2 is a second instance beside the first.
func (b *box) llamacpp2(pid int, backend string) {
	b.t.Helper()
	b.llamacpp(pid, backend)
}

func armPrint(t *testing.T, f matrix.Facts) string {
	t.Helper()
	s, err := ArmPrint(f)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Name service libraries come and go, ports and paths change: one arm, one print, one build.
func TestPrintIsStable(t *testing.T) {
	b := newBox(t)
	b.llamacpp(7, "libggml-cpu-haswell.so")
	first := b.of(7)
	b.llamacpp2(8, "libggml-cpu-haswell.so") // another port, another libnss
	second := b.of(8)
	if first.Build != second.Build || armPrint(t, first.Facts) != armPrint(t, second.Facts) {
		for _, d := range Diff(first.Facts, second.Facts) {
			t.Logf("%+v", d)
		}
		t.Error("a restart changed the identity")
	}
	other := newBox(t)
	other.llamacpp(7, "libggml-cpu-haswell.so")
	if got := other.of(7); got.Build != first.Build {
		t.Error("a copy of the same build is another build")
	}
	// What a first load compiles is mapped by the second.
	cached := newBox(t)
	cached.file("/srv/server", "server")
	var builds []string
	for pid, kernel := range []string{"/srv/server", "/home/u/.triton/cache/k/__triton_launcher.so", "/run/private/x/kernel.so", "/srv/kernel.so"} {
		cached.file(kernel, "server")
		cached.start(proc{pid: pid + 1, exe: "/srv/server", argv: []string{"server"}, env: []string{"HOME=/home/u"}, maps: []string{kernel}})
		p, err := Of(t.Context(), Options{Proc: cached.proc, PIDs: []int{pid + 1}, Private: "/run/private"})
		cached.must(err)
		builds = append(builds, p.Build)
	}
	if builds[0] != builds[1] || builds[0] != builds[2] || builds[0] == builds[3] {
		t.Errorf("builds with a compiled kernel mapped from a cache (2) and from elsewhere: %v", builds)
	}
	base := armPrint(t, first.Facts)
	for name, more := range map[string]matrix.Fact{
		"claimed": claimed(matrix.FactCommit, "x", ""), "cache": observed(FactCache+"triton", "/x private entries=1", ""), "log path": observed(FactFlag+"log-file", "x.log", ""),
		"path": observed(FactEnv+"TRITON_CACHE_DIR", "/var/a", ""), "pid": observed("pid", "7", ""),
	} {
		if armPrint(t, append(first.Facts, more)) != base {
			t.Errorf("%s: %v changed the print", name, more)
		}
	}
	for name, more := range map[string]matrix.Fact{
		"dtype": observed(matrix.FactComputeDtype, "float32", ""), "flag": observed(FactFlag+"enforce-eager", "", ""), "config": observed(FactConfig+"fuse_act_quant", "false", ""),
		"kernel": observed(FactKernel+"fp4", "FlashInferCutlassNvFp4LinearKernel", ""), "template": observed(matrix.FactChatTemplate, "abc", ""),
	} {
		if armPrint(t, append(first.Facts, more)) == base {
			t.Errorf("%s: %v did not change the print", name, more)
		}
	}
}

func TestPython(t *testing.T) {
	b := newBox(t)
	b.vllm("/home/u/venvs/oracle", 20, map[string]string{"vllm": "0.32.0+cpu", "torch": "2.13.0", "flashinfer-python": "0.6.14", "flashinfer-cubin": "0.6.13", "requests": "2.0"})
	p := b.of(20, 21, 22)
	want(t, p.Facts, map[string]string{
		FactPrefix: "/home/u/venvs/oracle", FactPython: "/usr/bin/python3.11", "package.vllm": "0.32.0+cpu", "package.torch": "2.13.0", "package.requests": "",
		FactWarning: "flashinfer-python 0.6.14 and flashinfer-cubin 0.6.13 disagree", FactHelper: "ptxas", matrix.FactBackend: "_C.abi3.so",
		"cuda.cudart": "13.0.88", "flag.max-model-len": "1152", "flag.enforce-eager": "", "flag.dtype": "float32", "env.VLLM_USE_DEEP_GEMM": "0",
	})
	text, err := json.Marshal(p.Facts)
	b.must(err)
	if strings.Contains(string(text), "hf_abc") || strings.Contains(string(text), "PROXY") {
		t.Error("a secret or a foreign variable was recorded")
	}
	// A directory in the working directory shadows a package of its name (bugs.md F04).
	b.file("/home/u/vllm/README.md", "")
	b.must(os.Remove(filepath.Join(b.proc, "20/cwd")))
	b.must(os.Symlink("/home/u", filepath.Join(b.proc, "20/cwd")))
	want(t, b.of(20, 21).Facts, map[string]string{FactShadow: "/home/u/vllm"})
	// A compiler that runs for a moment is no part of the build.
	if again := b.of(20, 21); again.Build != p.Build {
		t.Error("a compiler changed the build")
	}
	// A package that nothing has mapped yet is in the digest of the list.
	b.environment("/home/u/venvs/oracle", map[string]string{"requests": "2.1"})
	if changed := b.of(20, 21); changed.Build == p.Build {
		t.Error("another package is the same build")
	}
}

// Two environments of one name differ by real path and by packages.
func TestTwoEnvironmentsOfOneName(t *testing.T) {
	b := newBox(t)
	b.vllm("/home/a/venvs/vllm", 20, map[string]string{"vllm": "0.32.0", "torch": "2.13.0"})
	b.vllm("/home/b/venvs/vllm", 30, map[string]string{"vllm": "0.32.0", "torch": "2.11.0"})
	x, y := b.of(20, 21), b.of(30, 31)
	if x.Build == y.Build || x.Facts.Value(FactPrefix) == y.Facts.Value(FactPrefix) || x.Facts.Value(FactPackages) == y.Facts.Value(FactPackages) {
		t.Error("two environments look like one")
	}
	found := false
	for _, d := range Diff(x.Facts, y.Facts) {
		found = found || d.Name == "package.torch" && d.A == matrix.Some("2.13.0") && d.B == matrix.Some("2.11.0") && d.Class == "packages"
	}
	if !found {
		t.Errorf("%+v", Diff(x.Facts, y.Facts))
	}
	// Of two arms of one environment the compute dtype comes first, however many flags differ.
	a := append(matrix.Facts{observed(matrix.FactComputeDtype, "float32", "server_info"), observed(matrix.FactVersion, "0.32.0", "/version"), observed(FactFlag+"dtype", "float32", "")}, x.Facts...)
	c := append(matrix.Facts{observed(matrix.FactComputeDtype, "bfloat16", "server_info"), observed(matrix.FactVersion, "0.32.0", "/version"), observed(FactFlag+"dtype", "bfloat16", ""), observed(matrix.FactKVDtype, "fp8", "log")}, x.Facts...)
	diff := Diff(a, c)
	if diff[0].Name != matrix.FactComputeDtype {
		t.Errorf("%+v", diff[0])
	}
	if last := diff[len(diff)-1]; last.Name != matrix.FactKVDtype || !last.NotRecorded {
		t.Errorf("what one side did not record comes last: %+v", last)
	}
	if len(Diff(x.Facts, x.Facts)) != 0 {
		t.Error("an arm differs from itself")
	}
}

// The source story: an editable install whose directory is gone keeps its metadata.
func TestEditableOriginGone(t *testing.T) {
	b := newBox(t)
	venv := "/home/u/venvs/vllm-oracle-next"
	b.environment(venv, map[string]string{"vllm": "0.26.0.dev0+g5559679", "flashinfer-python": "0.6.15.post1"})
	site := venv + "/lib/python3.11/site-packages"
	info := site + "/vllm-0.26.0.dev0+g5559679.dist-info"
	source := "/home/u/src/vllm-src-5559679"
	b.file(info+"/direct_url.json", `{"url":"file://`+source+`","dir_info":{"editable":true}}`)
	same := func(p string) string { return filepath.Join(b.root, p) }
	facts, _ := environment(site, same)
	want(t, facts, map[string]string{"package.vllm.origin": "editable file://" + source + Gone, "package.vllm.commit": "5559679", "package.vllm.module": ""})
	b.file(source+"/vllm/_version.py", "__version__ = version = '0.23.1rc1.dev1511+g555967922'\n")
	facts, _ = environment(site, same)
	want(t, facts, map[string]string{"package.vllm.origin": "editable file://" + source, "package.vllm.module": "0.23.1rc1.dev1511+g555967922"})
	b.file(info+"/direct_url.json", `{"url":"https://user:ghp_abcdefghijkl@github.com/vllm-project/vllm","vcs_info":{"vcs":"git","commit_id":"5559679229bc961848b121ccdeaa8fa5d79bec98"}}`)
	facts, _ = environment(site, same)
	want(t, facts, map[string]string{"package.vllm.origin": "https://(removed)@github.com/vllm-project/vllm", "package.vllm.commit": "5559679229bc961848b121ccdeaa8fa5d79bec98 | 5559679"})
}

// A symlink to the rollback: the chain is recorded, and the real path is what counts.
func TestStatic(t *testing.T) {
	b := newBox(t)
	b.environment("/venvs/vllm-oracle-v0.25.0-stage", map[string]string{"vllm": "0.25.0", "flashinfer-python": "0.6.13"})
	b.file("/venvs/vllm-oracle-v0.25.0-stage/bin/vllm", "#!"+b.root+"/venvs/vllm-oracle-v0.25.0-stage/bin/python\n")
	b.link("vllm-oracle-v0.25.0-stage", "/venvs/vllm-oracle")
	facts, err := Static(t.Context(), filepath.Join(b.root, "venvs/vllm-oracle/bin/vllm"), nil)
	b.must(err)
	stage := filepath.Join(b.root, "venvs/vllm-oracle-v0.25.0-stage")
	want(t, facts, map[string]string{
		matrix.FactBinary: stage + "/bin/vllm", FactPrefix: stage, "package.vllm": "0.25.0", "package.flashinfer-python": "0.6.13",
		FactBinaryLinks: filepath.Join(b.root, "venvs/vllm-oracle") + " -> vllm-oracle-v0.25.0-stage, = " + stage + "/bin/vllm",
	})
	// A script elsewhere belongs to the environment of its interpreter.
	b.file("/usr/local/bin/serve", "#!"+stage+"/bin/python\n")
	facts, err = Static(t.Context(), filepath.Join(b.root, "usr/local/bin/serve"), nil)
	b.must(err)
	want(t, facts, map[string]string{FactPrefix: stage, "package.vllm": "0.25.0"})
	b.link("loop", "/loop")
	for _, bad := range []string{"absent", "loop"} {
		if _, err := Static(t.Context(), filepath.Join(b.root, bad), nil); err == nil {
			t.Errorf("%s was described", bad)
		}
	}
}

func TestDeletedAndReplaced(t *testing.T) {
	b := newBox(t)
	b.file("/srv/server", "server")
	b.file("/srv/lib.so", "one")
	b.start(proc{pid: 5, exe: "/srv/server", argv: []string{"/srv/server"}, maps: []string{"/srv/lib.so", "/srv/old.so (deleted)"}})
	before := b.of(5)
	want(t, before.Facts, map[string]string{FactDeleted: "/srv/old.so"})
	// Replaced by rename: the mapping still holds the old file.
	b.file("/srv/lib.new", "two")
	b.must(os.Rename(filepath.Join(b.root, "srv/lib.new"), filepath.Join(b.root, "srv/lib.so")))
	after := b.of(5)
	want(t, after.Facts, map[string]string{FactDeleted: "/srv/lib.so | /srv/old.so"})
	if before.Build == after.Build {
		t.Error("a replaced library is the same build")
	}
	// Overwritten in place: what is mapped changed with it.
	b2 := newBox(t)
	b2.file("/srv/server", "server")
	b2.file("/srv/lib.so", "one")
	b2.start(proc{pid: 5, exe: "/srv/server", argv: []string{"/srv/server"}, maps: []string{"/srv/lib.so"}})
	x := b2.of(5)
	b2.file("/srv/lib.so", "two")
	if y := b2.of(5); x.Build == y.Build {
		t.Error("an overwritten library is the same build")
	}
}

// Of two arms in containers another image is code; when each was started moves nothing and comes last.
func TestDiffOfContainers(t *testing.T) {
	side := func(image, at, change string) matrix.Facts {
		return matrix.Facts{observed(matrix.FactImage, image, ""), observed("image.id", image, ""), observed("container.started_at", at, ""), observed("container.change", change, ""), observed(FactEnv+"CUDA_VISIBLE_DEVICES", at, "")}
	}
	var got []string
	for _, d := range Diff(side("sha256:1", "10:00", "C /engine.so 1"), side("sha256:2", "11:00", "C /engine.so 2")) {
		got = append(got, d.Class+" "+d.Name)
	}
	if want := []string{"code container.change", "code image", "code image.id", "environment env.CUDA_VISIBLE_DEVICES", "location container.started_at"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// The template that a flag puts in force is identity by its text, wherever the file lies (bugs.md N31).
func TestChatTemplateInForce(t *testing.T) {
	b := newBox(t)
	b.file("/srv/server", "server")
	b.file("/a/chat.jinja", "{{ messages }}")
	b.file("/b/other.jinja", "{{ messages }}")
	b.file("/b/chat.jinja", "{{ messages }} think")
	prints := map[string]string{}
	for pid, flag := range map[int]string{5: "--chat-template=/a/chat.jinja", 6: "--chat-template=/b/other.jinja", 7: "--chat-template=/b/chat.jinja", 8: "--chat-template={{ messages }}", 9: "--dtype=auto"} {
		b.start(proc{pid: pid, exe: "/srv/server", argv: []string{"/srv/server", flag}})
		prints[flag] = b.of(pid).Facts.Value(matrix.FactChatTemplate).Or("")
	}
	same, other := prints["--chat-template=/a/chat.jinja"], prints["--chat-template=/b/chat.jinja"]
	if same == "" || same != prints["--chat-template=/b/other.jinja"] || same != prints["--chat-template={{ messages }}"] || other == "" || other == same || prints["--dtype=auto"] != "" {
		t.Errorf("%v", prints)
	}
}

// A process that executes another program keeps its number and its start time, and is another build.
func TestProcessThatExecutesItselfAnew(t *testing.T) {
	b := newBox(t)
	b.file("/srv/server", "server")
	b.file("/srv/server-next", "the next server")
	b.start(proc{pid: 5, exe: "/srv/server", argv: []string{"/srv/server"}})
	before := b.of(5)
	b.must(os.RemoveAll(filepath.Join(b.proc, "5")))
	b.start(proc{pid: 5, exe: "/srv/server-next", argv: []string{"/srv/server"}})
	after := b.of(5)
	x, err := ArmPrint(before.Facts)
	b.must(err)
	y, err := ArmPrint(after.Facts)
	b.must(err)
	if before.Build == after.Build || x == y {
		t.Error("another program is the same arm")
	}
}

func TestErrors(t *testing.T) {
	b := newBox(t)
	b.file("/bin/bash", "bash")
	b.start(proc{pid: 3, exe: "/bin/bash", argv: []string{"bash"}})
	for name, c := range map[string]struct {
		pids []int
		says string
	}{"none": {nil, "no process given"}, "gone": {[]int{99}, "process 99 is gone"}, "a shell": {[]int{3}, "shells and compilers only"}} {
		if _, err := Of(t.Context(), Options{Proc: b.proc, PIDs: c.pids}); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A child that ended meanwhile is no part of the tree; a root that ended is an error, above.
	b.file("/srv/server", "server")
	b.start(proc{pid: 4, exe: "/srv/server", argv: []string{"server"}})
	if x, y := b.of(4), b.of(4, 99); x.Build != y.Build {
		t.Error("a child that ended changed the build")
	}
	b.must(os.WriteFile(filepath.Join(b.proc, "3/maps"), []byte("garbage\n"), 0o644))
	if _, err := Of(t.Context(), Options{Proc: b.proc, PIDs: []int{3}}); err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("%v", err)
	}
}
