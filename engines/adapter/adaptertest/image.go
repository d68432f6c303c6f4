package adaptertest

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"enginebroker/engines"
	"enginebroker/engines/adapter"
	"enginebroker/matrix"
)

// Tool is a container tool of this name that only answers: the image's entrypoint, what its python3 lists, and what its server
// prints; its only image is named by its digest. calls gives the command lines it was called with, less those that ask for the
// image.
func Tool(t testing.TB, name string, entrypoint []string, packages, help string) (path, image string, calls func() []string) {
	t.Helper()
	dir := t.TempDir()
	image = fmt.Sprintf("sha256:%x", sha256.Sum256(fmt.Append(nil, name, entrypoint, packages, help)))
	inspect, err := json.Marshal([]any{map[string]any{"Id": image, "Architecture": runtime.GOARCH, "Config": map[string]any{"Entrypoint": entrypoint}}})
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, name)
	script := `#!/bin/sh
[ "$1 $2" = "image inspect" ] && exec cat ` + dir + `/inspect
echo "$@" >>` + dir + `/calls
case "$*" in *--entrypoint=python3*) exec cat ` + dir + `/packages ;; esac
exec cat ` + dir + `/help
`
	if err := errors.Join(WriteFiles(dir, map[string]string{"inspect": string(inspect), "packages": packages, "help": help, name: script}), os.Chmod(path, 0o755)); err != nil {
		t.Fatal(err)
	}
	return path, image, func() []string {
		b, err := os.ReadFile(filepath.Join(dir, "calls"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(string(b)), "\n")
	}
}

// tool and limits run podman where there is no Docker engine: as root, without systemd.
var tool = []string{"podman", "--storage-driver=vfs", "--runtime=runc", "--cgroup-manager=cgroupfs"}

const limits = "--ulimit=nofile=20000:20000,--ulimit=nproc=1000:1000"

// Image builds an image of the files below root and returns the settings that start it. It skips where podman does not work.
func Image(t testing.TB, root, entrypoint string) engines.Settings {
	t.Helper()
	for _, name := range []string{"podman", "runc"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("no %s here: apt-get install --no-install-recommends podman runc", name)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("podman is used as root here")
	}
	file := filepath.Join(t.TempDir(), "Dockerfile")
	// With a label of this run the image is nobody else's, and may be removed with all that is made of it.
	text := fmt.Sprintf("FROM scratch\nLABEL enginebroker.test=%d-%d\nCOPY . /\n%s\n", os.Getpid(), time.Now().UnixNano(), entrypoint)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(tool[0], append(slices.Clone(tool[1:]), "build", "--quiet", "--layers=false", "--file", file, root)...).Output()
	if err != nil {
		t.Skipf("podman does not build images here: %v", err)
	}
	id := "sha256:" + strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command(tool[0], append(slices.Clone(tool[1:]), "rmi", "--force", id)...).CombinedOutput(); err != nil {
			t.Errorf("the image is left: %v: %s", err, out)
		}
	})
	return engines.Settings{"image": id, "runtime": strings.Join(tool, " "), "run_args": limits}
}

// PythonRoot is a directory for Image with the python3 of this machine, the fake server as /usr/local/bin/fake, its captured
// answers, and texts below the package directory. It skips where this machine has no such python3.
func PythonRoot(t testing.TB, captured string, site map[string]string) (root string) {
	t.Helper()
	root = t.TempDir()
	python, err := filepath.EvalSymlinks("/usr/bin/python3")
	if err != nil {
		t.Skipf("no python3 of the system: %v", err)
	}
	version := filepath.Base(python) // python3.11
	libs, err := exec.Command("ldd", python).Output()
	if err != nil {
		t.Skipf("ldd %s: %v", python, err)
	}
	copies := []string{python}
	for _, f := range strings.Fields(string(libs)) {
		if strings.HasPrefix(f, "/") {
			copies = append(copies, f)
		}
	}
	for _, f := range copies {
		b, err := os.ReadFile(f)
		to := filepath.Join(root, f)
		if err = errors.Join(err, os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, b, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	std := filepath.Join("/usr/lib", version)
	for _, part := range []string{"*.py", "collections", "email", "encodings", "importlib", "json", "re", "urllib", "zipfile"} {
		hits, _ := filepath.Glob(filepath.Join(std, part)) // fixed patterns
		for _, h := range hits {
			to := filepath.Join(root, h)
			if st, err := os.Stat(h); err == nil && st.IsDir() {
				err = os.CopyFS(to, os.DirFS(h))
				if err != nil {
					t.Fatal(err)
				}
				continue
			}
			b, err := os.ReadFile(h)
			if err = errors.Join(err, os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, b, 0o644)); err != nil {
				t.Fatal(err)
			}
		}
	}
	files := map[string]string{"usr/local/bin/data": "/captured", "tmp/.keep": ""}
	for name, text := range site {
		files[filepath.Join("usr/local/lib", version, "dist-packages", name)] = text
	}
	if err := errors.Join(os.Symlink(version, filepath.Join(root, "usr/bin/python3")), WriteFiles(root, files), os.Chmod(filepath.Join(root, "tmp"), 0o1777),
		os.CopyFS(filepath.Join(root, "captured"), os.DirFS(captured)), BuildStatic(filepath.Join(root, "usr/local/bin/fake"))); err != nil {
		t.Fatal(err)
	}
	return root
}

// Serve is Python that runs the fake server as its child, as engines do whose server is no first process, and ends with it.
// before is a Python list of the arguments that go before those it was given.
func Serve(before string) string {
	return `import signal, subprocess, sys
p = subprocess.Popen(["/usr/local/bin/fake"] + ` + before + ` + sys.argv[1:])
signal.signal(signal.SIGTERM, lambda *_: p.terminate())
sys.exit(p.wait())
`
}

// BuildStatic is Build for an image that holds no library.
func BuildStatic(path string) error {
	build := exec.Command("go", "build", "-o", path, "./testdata/fake")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// Contained starts the engine of an image, and checks what every adapter owes: the arguments behind the entrypoint's own, the
// digest, weights that cannot be written, caches of this load alone, one identity while it runs, and nothing left of it.
func Contained(t *testing.T, e *adapter.Instance, image engines.Settings, r matrix.StartRequest, argv0 ...string) matrix.Ready {
	t.Helper()
	ready, err := Configured(t, e, image).Start(t.Context(), r, func(matrix.Progress) {})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	if len(ready.Argv) < len(argv0) || !slices.Equal(ready.Argv[:len(argv0)], argv0) {
		t.Errorf("argv %q, want %q before the arguments", ready.Argv, argv0)
	}
	Observed(t, ready.Facts, map[string]string{matrix.FactImage: image["image"], matrix.FactPrefixCache: "off"})
	if len(ready.Processes) == 0 {
		t.Fatal("no processes")
	}
	proc := "/proc/" + strconv.Itoa(ready.Processes[0].PID)
	mounts, err := os.ReadFile(proc + "/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	weights := r.Artifact.Path
	if st, err := os.Stat(weights); err == nil && !st.IsDir() {
		weights = filepath.Dir(weights) // with the parts of a split file
	}
	for path, access := range map[string]string{weights: "ro", r.CacheDir: "rw"} {
		if !strings.Contains(string(mounts), " "+path+" "+access) {
			t.Errorf("%s is not mounted %s", path, access)
		}
	}
	env, err := os.ReadFile(proc + "/environ")
	if err != nil || !strings.Contains(string(env), "CUDA_CACHE_PATH="+r.CacheDir) {
		t.Errorf("environment %q %v", env, err)
	}
	st, err := e.Observe(t.Context())
	if err != nil || !st.Alive || st.Print != ready.Print {
		t.Errorf("%+v %v: print %s, at the start %s", st.Facts, err, st.Print, ready.Print)
	}
	Stop(t, e, "term")
	out, err := exec.Command(tool[0], append(slices.Clone(tool[1:]), "ps", "--all", "--quiet", "--filter", "label=enginebroker.load="+r.LoadID)...).Output()
	if err != nil || len(out) > 0 {
		t.Errorf("containers are left: %q %v", out, err)
	}
	return ready
}

// WriteProgram writes a script that may be executed.
func WriteProgram(root, path, text string) error {
	return errors.Join(WriteFiles(root, map[string]string{path: text}), os.Chmod(filepath.Join(root, path), 0o755))
}
