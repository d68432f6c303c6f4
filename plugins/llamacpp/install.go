package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"enginebroker/engines/adapter"
	"enginebroker/engines/fingerprint"
	"enginebroker/engines/openai"
	"enginebroker/matrix"
)

// install is one llama-server on disk.
type install struct {
	binary   string            // llama-server itself
	command  []string          // how it is run: the binary, or loader, library path and binary
	env      map[string]string // that it needs to run at all
	links    map[string]string // backend libraries it may choose from, by name
	backends []string          // names of the CPU backends of a tree
	libs     []string          // further libraries of the package, for the build on disk
	status   string            // dpkg's status file of a tree
	looked   []string          // what was looked for, in order
}

// errNotInstalled says that there is no server where it was looked for.
var errNotInstalled = errors.New("llama-server is not installed")

// errBackend says that the tree lacks the backend that was asked for.
var errBackend = errors.New("no such backend")

// locate finds the server that the settings name. The error is an *adapter.NotInstalled; the install is returned with what
// was found in any case.
func locate(v openai.Values) (install, error) {
	var in install
	err := in.find(v)
	if err != nil {
		err = &adapter.NotInstalled{Err: err, Looked: in.looked, Fix: "set binary or root"}
	}
	return in, err
}

func (in *install) find(v openai.Values) error {
	if root := v.Path("root"); root != "" {
		return in.tree(root, v.Text("backend"))
	}
	name := v.Path("binary")
	if name == "" {
		in.looked = append(in.looked, "llama-server in PATH", "setting binary", "setting root")
		path, err := exec.LookPath("llama-server")
		if err != nil {
			return errNotInstalled
		}
		name, _ = filepath.Abs(path)
	} else {
		in.looked = append(in.looked, name)
	}
	if !adapter.Executable(name) {
		return fmt.Errorf("%w: %s is no executable file", errNotInstalled, name)
	}
	in.binary, in.command, in.env = name, []string{name}, map[string]string{}
	if b := v.Text("backend"); b != "auto" {
		in.looked = append(in.looked, b)
		if _, err := os.Stat(b); err != nil {
			return fmt.Errorf("%w: %w", errBackend, err)
		}
		in.env["GGML_BACKEND_PATH"] = b
	}
	return nil
}

// tree finds the server of a Debian tree. ggml searches its backends in a directory that is compiled in, beside the
// executable (which is the loader here) and in the working directory; so they are offered in the working directory, all
// of them or one, and the engine still makes its own choice among what it is offered.
func (in *install) tree(root, backend string) error {
	in.binary = filepath.Join(root, "usr/bin/llama-server")
	loaders := filepath.Join(root, "usr/lib/*-linux-gnu/ld-linux-*.so.*")
	in.looked = []string{in.binary, loaders}
	if _, err := os.Stat(in.binary); err != nil {
		return fmt.Errorf("%w: no %s", errNotInstalled, in.binary)
	}
	found, _ := filepath.Glob(loaders) // the pattern is ours
	if len(found) == 0 {
		return fmt.Errorf("%w: no %s", errNotInstalled, loaders)
	}
	lib := filepath.Dir(found[0])
	in.command = []string{found[0], "--library-path", lib + ":" + filepath.Join(lib, "llama"), in.binary}
	in.status = filepath.Join(root, "var/lib/dpkg/status")
	in.env, in.links = map[string]string{}, map[string]string{}
	for _, pattern := range []string{"libggml*.so.*", "libllama*.so.*", "llama/*.so*"} {
		libs, _ := filepath.Glob(filepath.Join(lib, pattern))
		in.libs = append(in.libs, libs...)
	}
	dirs := filepath.Join(lib, "ggml/backends*")
	in.looked = append(in.looked, filepath.Join(dirs, "libggml-*.so"))
	all, _ := filepath.Glob(filepath.Join(dirs, "libggml-*.so"))
	for _, path := range all {
		name := filepath.Base(path)
		cpu, isCPU := strings.CutPrefix(strings.TrimSuffix(name, ".so"), "libggml-cpu-")
		if isCPU {
			in.backends = append(in.backends, cpu)
		}
		if !isCPU || backend == "auto" || backend == cpu {
			in.links[name] = path
		}
	}
	if backend != "auto" && !slices.Contains(in.backends, backend) {
		return fmt.Errorf("%w: %s; this tree has %s", errBackend, backend, strings.Join(in.backends, ", "))
	}
	return nil
}

// ask runs the server with one argument that makes it print and exit, and returns both its outputs.
func (in install) ask(ctx context.Context, arg string) (string, error) {
	return adapter.Ask(ctx, append(slices.Clone(in.command), arg)...)
}

// wantedBackend is the library of the CPU backend that must be mapped; empty where the engine chooses.
func (in install) wantedBackend(asked string) string {
	switch path := in.env["GGML_BACKEND_PATH"]; {
	case asked == "auto":
		return ""
	case path != "":
		return filepath.Base(path)
	}
	return "libggml-cpu-" + asked + ".so"
}

// program is the path that the server is launched by; none where it comes from an image.
func (in install) program() string {
	if len(in.command) == 0 {
		return ""
	}
	return in.binary
}

// packageFacts are what the package says of itself, of a tree.
func (in install) packageFacts() matrix.Facts {
	p := packageVersion(in.status)
	if p == "" {
		return nil
	}
	return matrix.Facts{adapter.Said(fingerprint.FactPackage+"llama.cpp-tools", p, in.status)}
}

var (
	versionNew = regexp.MustCompile(`version: \S+ \(build (\d+), commit ([^)]+)\)`)
	versionOld = regexp.MustCompile(`version: (\d+) \(([^)]+)\)`)
	gitSHA     = regexp.MustCompile(`^[0-9a-f]{7,40}$`)
)

// parseVersion reads --version in both its forms and returns the build as /props spells it, and the commit where it is one.
func parseVersion(out string) (build, commit string, err error) {
	m := versionNew.FindStringSubmatch(out)
	if m == nil {
		m = versionOld.FindStringSubmatch(out)
	}
	if m == nil {
		return "", "", fmt.Errorf("--version not understood: %.120q", out)
	}
	if gitSHA.MatchString(m[2]) {
		commit = m[2]
	}
	return "b" + m[1] + "-" + m[2], commit, nil
}

var (
	flagToken = regexp.MustCompile(`^\s*,?\s*(--?[A-Za-z][\w-]*)`)
	removed   = "the argument has been removed"
)

// parseHelp reads the flags that a build knows, leaving out those it only knows to have been removed.
func parseHelp(help string) map[string]bool {
	flags := map[string]bool{}
	var names []string
	var text strings.Builder
	finish := func() {
		if !strings.Contains(text.String(), removed) {
			for _, n := range names {
				flags[n] = true
			}
		}
		names = nil
		text.Reset()
	}
	sc := bufio.NewScanner(strings.NewReader(help))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		line := sc.Text()
		if strings.HasPrefix(line, "-") && !strings.HasPrefix(line, "---") {
			finish()
			rest := line
			for m := flagToken.FindStringSubmatchIndex(rest); m != nil; m = flagToken.FindStringSubmatchIndex(rest) {
				names = append(names, rest[m[2]:m[3]])
				if rest = rest[m[1]:]; !strings.HasPrefix(rest, ",") {
					break
				}
			}
		}
		text.WriteString(strings.Join(strings.Fields(line), " ") + " ")
	}
	finish()
	return flags
}

// packageVersion reads the version of llama.cpp-tools from dpkg's status file; empty where it is not known.
func packageVersion(status string) string {
	f, err := os.Open(status)
	if err != nil {
		return ""
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	inside := false
	for sc.Scan() {
		if name, ok := strings.CutPrefix(sc.Text(), "Package: "); ok {
			inside = name == "llama.cpp-tools"
		}
		if v, ok := strings.CutPrefix(sc.Text(), "Version: "); ok && inside {
			return v
		}
	}
	return ""
}
