package fingerprint

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"enginebroker/matrix"
)

// box is a proc root and a file system made for a test.
type box struct {
	t    testing.TB
	proc string
	root string
}

func newBox(t testing.TB) *box {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return &box{t, filepath.Join(dir, "proc"), filepath.Join(dir, "root")}
}

func (b *box) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// file writes a file of the box's own file system.
func (b *box) file(path, content string) {
	b.t.Helper()
	full := filepath.Join(b.root, path)
	b.must(os.MkdirAll(filepath.Dir(full), 0o755))
	b.must(os.WriteFile(full, []byte(content), 0o755))
}

func (b *box) link(to, path string) {
	b.t.Helper()
	full := filepath.Join(b.root, path)
	b.must(os.MkdirAll(filepath.Dir(full), 0o755))
	b.must(os.Symlink(to, full))
}

// proc is one process of a box.
type proc struct {
	pid  int
	exe  string
	argv []string
	env  []string
	cwd  string
	maps []string // paths; " (deleted)" and a leading "r:" for data are understood
	open []string
	read int64
}

func (b *box) start(p proc) {
	b.t.Helper()
	dir := filepath.Join(b.proc, fmt.Sprint(p.pid))
	b.must(os.MkdirAll(filepath.Join(dir, "fd"), 0o755))
	if p.cwd == "" {
		p.cwd = "/"
	}
	b.must(os.Symlink(p.exe, filepath.Join(dir, "exe")))
	b.must(os.Symlink(p.cwd, filepath.Join(dir, "cwd")))
	b.must(os.Symlink(b.root, filepath.Join(dir, "root")))
	var maps strings.Builder
	for i, m := range append(p.maps, p.exe) {
		perms := "r-xp"
		if rest, ok := strings.CutPrefix(m, "r:"); ok {
			m, perms = rest, "r--s"
		}
		n := inode(filepath.Join(b.root, m))
		if strings.HasSuffix(m, "(deleted)") {
			n = 999_999
		}
		fmt.Fprintf(&maps, "%x-%x %s 00000000 ff:7f %d                  %s\n", i*4096, (i+1)*4096, perms, n, m)
	}
	maps.WriteString("7ffd-7ffe rw-p 00000000 00:00 0                          [stack]\n7fff-8000 rw-p 00000000 00:00 0\n5000-6000 r-xp 00000000 00:01 77       /memfd:jit (deleted)\n")
	for name, content := range map[string]string{
		"maps": maps.String(), "cmdline": strings.Join(p.argv, "\x00") + "\x00", "environ": strings.Join(p.env, "\x00") + "\x00",
		"io": fmt.Sprintf("rchar: 1\nread_bytes: %d\nwrite_bytes: 0\n", p.read),
	} {
		b.must(os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	for i, path := range p.open {
		b.must(os.Symlink(filepath.Join(b.root, path), filepath.Join(dir, "fd", fmt.Sprint(i))))
	}
}

func (b *box) of(pids ...int) Print {
	b.t.Helper()
	p, err := Of(b.t.Context(), Options{Proc: b.proc, PIDs: pids})
	b.must(err)
	return p
}

func want(t *testing.T, facts matrix.Facts, expect map[string]string) {
	t.Helper()
	for name, value := range expect {
		var got []string
		for _, f := range facts {
			if f.Name == name {
				got = append(got, f.Value)
			}
		}
		if strings.Join(got, " | ") != value {
			t.Errorf("%s: %q, want %q", name, strings.Join(got, " | "), value)
		}
	}
}

const loader = "/opt/sid/usr/lib64/ld-linux-x86-64.so.2"

// llamacpp starts a llama-server behind a loader with one CPU backend, as engines.md E8 runs it.
func (b *box) llamacpp(pid int, backend string) {
	b.t.Helper()
	b.file(loader, "loader")
	b.file("/opt/sid/usr/bin/llama-server", "llama-server b11669")
	b.file("/opt/sid/usr/lib/libllama.so.0", "llama")
	b.file("/opt/sid/usr/lib/libnss_files.so.2", fmt.Sprint("nss", pid))
	lib := "/opt/sid/usr/lib/ggml/" + backend
	b.file(lib, backend)
	b.start(proc{pid: pid, exe: loader, cwd: "/opt/sid",
		argv: []string{loader, "--library-path", "/opt/sid/usr/lib", "usr/bin/llama-server", "-m", "/models/m.gguf", "--port", fmt.Sprint(9000 + pid), "-c", "4096", "-np", "4", "--seed", "-1", "--api-key", "topsecretvalue"},
		env:  []string{"GGML_BACKEND_PATH=" + lib, "HOME=/home/u", "LLAMA_API_KEY=topsecretvalue", "OMP_NUM_THREADS=2", "SSH_AUTH_SOCK=/run/topsecretvalue"},
		maps: []string{"/opt/sid/usr/bin/llama-server", "/opt/sid/usr/lib/libllama.so.0", lib, "/opt/sid/usr/lib/libnss_files.so.2", "r:/opt/sid/usr/bin/llama-server"}})
}

// vllm makes an environment and starts a server of three processes in it, the way vLLM names them.
func (b *box) vllm(prefix string, pid int, packages map[string]string) {
	b.t.Helper()
	b.environment(prefix, packages)
	python := "/usr/bin/python3.11"
	b.file(python, "python")
	site := prefix + "/lib/python3.11/site-packages"
	b.file(site+"/torch/lib/libtorch.so", "torch "+packages["torch"])
	b.file(site+"/vllm/_C.abi3.so", "kernels "+packages["vllm"])
	b.file("/usr/lib/libcudart.so.13.0.88", "cudart")
	maps := []string{site + "/torch/lib/libtorch.so", site + "/vllm/_C.abi3.so", "/usr/lib/libcudart.so.13.0.88"}
	env := []string{"VIRTUAL_ENV=" + prefix, "HF_TOKEN=hf_abcdefghijklmnop", "VLLM_USE_DEEP_GEMM=0", "HOME=/home/u", "HTTP_PROXY=http://u:p@h"}
	b.start(proc{pid: pid, exe: python, argv: []string{prefix + "/bin/python", prefix + "/bin/vllm", "serve", "/models/m", "--max-model-len=1152", "--enforce-eager", "--dtype", "float32", "--port", "8000"}, env: env, maps: maps})
	b.start(proc{pid: pid + 1, exe: python, argv: []string{"VLLM::EngineCore"}, env: env, maps: maps})
	b.start(proc{pid: pid + 2, exe: "/usr/bin/ptxas", argv: []string{"ptxas"}, env: env})
}

func (b *box) environment(prefix string, packages map[string]string) {
	b.t.Helper()
	b.file(prefix+"/pyvenv.cfg", "home = /usr/bin\n")
	for name, version := range packages {
		b.file(fmt.Sprintf("%s/lib/python3.11/site-packages/%s-%s.dist-info/METADATA", prefix, strings.ReplaceAll(name, "-", "_"), version), "Name: "+name+"\nVersion: "+version+"\n")
	}
}
