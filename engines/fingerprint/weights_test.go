package fingerprint

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"enginebroker/matrix"
)

// Each rung of the ladder, and what stands on none.
func TestWeights(t *testing.T) {
	b := newBox(t)
	b.file("/srv/server", "server")
	b.file("/models/m/a.safetensors", strings.Repeat("a", 100))
	b.file("/models/m/b.safetensors", strings.Repeat("b", 50))
	files := []string{filepath.Join(b.root, "models/m/a.safetensors"), filepath.Join(b.root, "models/m/b.safetensors")}
	argv := []string{"server", "--model", "/models/m"}
	for i, c := range []struct {
		p        proc
		want     Rung
		standing matrix.Standing
	}{
		{proc{maps: []string{"r:/models/m/a.safetensors", "r:/models/m/b.safetensors"}, argv: argv}, RungMappings, matrix.Observed},
		{proc{maps: []string{"r:/models/m/a.safetensors"}, open: []string{"/models/m/a.safetensors", "/models/m/b.safetensors"}}, RungOpenFiles, matrix.Observed},
		{proc{maps: []string{"r:/models/m/a.safetensors"}, read: 156}, RungBytesRead, matrix.Observed}, // 150 of weights, 6 of the server
		{proc{read: 155, argv: argv}, RungArgv, matrix.Claimed},
		{proc{argv: []string{"server", "--model=m/a.safetensors"}, cwd: "/models"}, RungArgv, matrix.Claimed},
		{proc{argv: []string{"server", "--served-model-name", "m"}, open: []string{"/models/m/a.safetensors"}}, RungNone, matrix.Claimed},
	} {
		c.p.pid, c.p.exe = i+1, "/srv/server"
		b.start(c.p)
		got, err := Weights(b.proc, []int{i + 1}, files)
		if err != nil || got.Rung != c.want || got.Fact().Standing != c.standing || got.Detail == "" {
			t.Errorf("%d: %+v %v, want %s", i, got, err, c.want)
		}
	}
	// The inode number of a weight file on another device, under another name, proves nothing.
	b.must(os.MkdirAll(filepath.Join(b.root, "other"), 0o755))
	for i, f := range files {
		b.must(os.Link(f, filepath.Join(b.root, "other", fmt.Sprint(i))))
	}
	b.start(proc{pid: 10, exe: "/srv/server", maps: []string{"r:/other/0", "r:/other/1"}})
	if got, err := Weights(b.proc, []int{10}, files); err != nil || got.Rung != RungNone {
		t.Errorf("%+v %v", got, err)
	}
	// Files that two processes hold together are all held.
	b.start(proc{pid: 11, exe: "/srv/server", maps: []string{"r:/models/m/a.safetensors"}})
	b.start(proc{pid: 12, exe: "/srv/server", maps: []string{"r:/models/m/b.safetensors"}})
	if got, err := Weights(b.proc, []int{11, 12}, files); err != nil || got.Rung != RungMappings {
		t.Errorf("%+v %v", got, err)
	}
	if _, err := Weights(b.proc, []int{11}, []string{filepath.Join(b.root, "absent")}); err == nil {
		t.Error("an absent file was proved to be loaded")
	}
	low, high := Proof{Rung: RungArgv}, Proof{Rung: RungOpenFiles}
	if low.Better(high) != high || high.Better(low) != high {
		t.Error("the better proof is the higher rung")
	}
}

func TestCaches(t *testing.T) {
	b := newBox(t)
	b.file("/private/run/triton/k1/kernel.cubin", "one")
	b.file("/home/u/.nv/ComputeCache/x", "x")
	env := map[string]string{"TRITON_CACHE_DIR": "/private/run/triton", "HOME": "/home/u", "VLLM_CACHE_ROOT": "/private/run-other/vllm"}
	b.file("/private/run-other/vllm/y", "y")
	o := CacheOptions{Env: env, Root: b.root, Private: "/private/run"}
	get := func() map[string]string {
		facts, err := Caches(t.Context(), o)
		b.must(err)
		out := map[string]string{}
		for _, f := range facts {
			out[f.Name] = f.Value
		}
		return out
	}
	first := get()
	for name, part := range map[string]string{"cache.triton": "/private/run/triton private entries=1 sha256=", "cache.cuda": "/home/u/.nv/ComputeCache shared entries=1", "cache.vllm": "/private/run-other/vllm shared"} {
		if !strings.HasPrefix(first[name], part) {
			t.Errorf("%s: %q, want %q", name, first[name], part)
		}
	}
	if len(first) != 3 {
		t.Errorf("a cache that is not there was recorded: %v", first)
	}
	if second := get(); second["cache.triton"] != first["cache.triton"] {
		t.Error("nothing changed and the hash did")
	}
	b.file("/private/run/triton/k1/kernel.cubin", "two")
	if third := get(); third["cache.triton"] == first["cache.triton"] || third["cache.cuda"] != first["cache.cuda"] {
		t.Error("content of one cache decides its hash alone")
	}
}

func TestDistinct(t *testing.T) {
	b := newBox(t)
	self, err := os.Executable()
	b.must(err)
	program, err := os.ReadFile(self)
	b.must(err)
	build := func(dir, content string) Print {
		b.t.Helper()
		b.file(dir+"/server", content)
		pid := 40 + len(dir)
		b.start(proc{pid: pid, exe: dir + "/server", argv: []string{dir + "/server"}})
		return b.of(pid)
	}
	one, two, three := build("/a", string(program)), build("/bb", string(program)), build("/ccc", string(program)+"another path in a note")
	with := func(f ...matrix.Fact) matrix.Facts { return append(f, one.Facts...) }
	onDisk := slices.DeleteFunc(with(), func(f matrix.Fact) bool { return f.Name == FactLibrary })
	for _, c := range []struct {
		name            string
		a, b            matrix.Facts
		differ, unknown bool
		says            string
	}{
		{"one build at two places", one.Facts, two.Facts, false, false, "at two places: /a/server and /bb/server"},
		{"one code, two hashes", one.Facts, three.Facts, false, false, "the hashes differ and the code is equal"},
		{"itself", one.Facts, one.Facts, false, false, "both arms are build"},
		{"unknown", one.Facts, nil, false, true, "unknown is not different"},
		{"another package", one.Facts, append(matrix.Facts{observed(matrix.FactBuild, "x", ""), observed(FactPackage+"torch", "2", "")}, one.Facts...), true, false, "package.torch differs"},
		{"a backend that one side did not record", with(observed(matrix.FactBackend, "x64.so", "")), one.Facts, false, true, "backend is recorded on one side only"},
		{"a backend of an unknown build", with(observed(matrix.FactBackend, "x64.so", ""), observed(matrix.FactBuild, "x", "")), one.Facts, false, true, "backend is recorded on one side only"},
		{"files and a process of them", onDisk, one.Facts, false, true, "library is recorded on one side only"},
	} {
		if got := Distinct(c.a, c.b); got.Differ != c.differ || got.Unknown != c.unknown || !strings.Contains(got.Says, c.says) {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

// The identity of a real process: this one.
func TestOfSelf(t *testing.T) {
	p, err := Of(t.Context(), Options{PIDs: []int{os.Getpid()}})
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	sum, err := plainSum(t.Context(), self)
	if err != nil {
		t.Fatal(err)
	}
	want(t, p.Facts, map[string]string{matrix.FactBinary: self, FactBinarySHA256: sum, FactDeleted: "", matrix.FactBuild: p.Build})
}

// Behind the real loader of this machine.
func TestRealLoader(t *testing.T) {
	var ld string
	for _, path := range []string{"/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"} {
		if real, _, err := links("", path); err == nil {
			ld = real
		}
	}
	cat, err := exec.LookPath("cat")
	if ld == "" || err != nil {
		t.Skip("no glibc loader or no cat on this machine")
	}
	cmd := exec.CommandContext(t.Context(), ld, "--argv0", "engine", cat)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer in.Close()
	if _, err := in.Write([]byte("x")); err != nil { // an answer proves that the loader has handed over
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	p, err := Of(t.Context(), Options{PIDs: []int{cmd.Process.Pid}})
	if err != nil {
		t.Fatal(err)
	}
	real, _, err := links("", cat)
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Facts.Value(matrix.FactBinary).Or(""); got != real {
		t.Errorf("the program is %s, want %s", got, real)
	}
	found := false
	for _, f := range p.Facts {
		found = found || f.Name == FactLibrary && strings.HasPrefix(f.Value, "libc.so")
	}
	if !found {
		t.Error("libc is not among the libraries")
	}
}

// The measure: identity of a running engine in at most 500 ms with hashes known: three processes with 300 libraries each, in an
// environment of 200 packages, as vLLM has.
func BenchmarkOf(b *testing.B) {
	box := newBox(b)
	packages := map[string]string{"vllm": "0.32.0", "torch": "2.13.0"}
	for i := range 200 {
		packages[fmt.Sprintf("package%d", i)] = "1.0"
	}
	box.environment("/venv", packages)
	box.file("/usr/bin/python3.11", "python")
	var maps []string
	for i := range 300 {
		maps = append(maps, fmt.Sprintf("/venv/lib/python3.11/site-packages/torch/lib/lib%d.so", i))
		box.file(maps[i], fmt.Sprint("library ", i))
	}
	for pid := range 3 {
		box.start(proc{pid: pid + 1, exe: "/usr/bin/python3.11", argv: []string{"/venv/bin/python"}, maps: maps})
	}
	var known sync.Map
	sum := func(ctx context.Context, path string) (string, error) {
		n := inode(path)
		if s, ok := known.Load(n); ok {
			return s.(string), nil
		}
		s, err := plainSum(ctx, path)
		known.Store(n, s)
		return s, err
	}
	for b.Loop() {
		if _, err := Of(b.Context(), Options{Proc: box.proc, PIDs: []int{1, 2, 3}, Sum: sum}); err != nil {
			b.Fatal(err)
		}
	}
}
