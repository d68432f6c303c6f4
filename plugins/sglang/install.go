package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"enginebroker/engines/openai"
	"enginebroker/matrix"
)

// install is one Python environment that holds SGLang.
type install struct {
	python string            // the interpreter, as it is launched
	prefix string            // directory of the environment
	site   string            // the package directory that holds SGLang's metadata
	dists  map[string]string // installed distributions: version by normalized name
	looked []string
}

var errNotInstalled = errors.New("SGLang is not installed")

// defaultVenv is where `make engines` installs.
const defaultVenv = ".engines/sglang/venv"

// locate finds the environment: by a setting, else by the variable SGLANG, the interpreter beside sglang in PATH and the place
// of `make engines`.
func locate(v openai.Values) (install, error) {
	var in install
	if p := v.Path("python"); p != "" {
		return in.at(p)
	}
	if d := v.Path("venv"); d != "" {
		return in.at(filepath.Join(d, "bin/python"))
	}
	if named := os.Getenv("SGLANG"); named != "" {
		if st, err := os.Stat(named); err == nil && st.IsDir() {
			named = filepath.Join(named, "bin/python")
		}
		return in.at(named)
	}
	var candidates []string
	if found, err := exec.LookPath("sglang"); err == nil {
		candidates = append(candidates, filepath.Join(filepath.Dir(found), "python"))
	} else {
		in.looked = append(in.looked, "sglang in PATH")
	}
	for _, root := range roots() {
		candidates = append(candidates, filepath.Join(root, defaultVenv, "bin/python"))
	}
	for _, c := range candidates {
		found, err := in.at(c)
		if err == nil {
			return found, nil
		}
		in.looked = found.looked
	}
	return in, fmt.Errorf("%w: set venv or python", errNotInstalled)
}

// roots are the directories that the default place is relative to: the working directory, and the tree this plugin was
// built in (bin/plugins/sglang).
func roots() []string {
	var list []string
	if wd, err := os.Getwd(); err == nil {
		list = append(list, wd)
	}
	if exe, err := os.Executable(); err == nil {
		if root := filepath.Dir(filepath.Dir(filepath.Dir(exe))); !slices.Contains(list, root) {
			list = append(list, root)
		}
	}
	return list
}

// at describes the environment of the interpreter at path.
func (in install) at(path string) (install, error) {
	in.looked = append(slices.Clone(in.looked), path)
	no := func(format string, args ...any) (install, error) {
		return in, fmt.Errorf("%w: "+format, append([]any{errNotInstalled}, args...)...)
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return in, err
	}
	if !executable(abs) {
		return no("%s is no executable file", abs)
	}
	in.python, in.prefix = abs, filepath.Dir(filepath.Dir(abs))
	for _, site := range sites(in.prefix) {
		if dists := distributions(site); dists["sglang"] != "" {
			in.site, in.dists = site, dists
			return in, nil
		}
		in.looked = append(in.looked, filepath.Join(site, "sglang-*.dist-info"))
	}
	return no("%s has no metadata of sglang in its package directories", in.prefix)
}

func executable(path string) bool {
	st, err := os.Stat(path)
	return err == nil && !st.IsDir() && st.Mode()&0o111 != 0
}

// sites lists the package directories below a prefix.
func sites(prefix string) []string {
	var list []string
	for _, p := range []string{"lib/python3*/site-packages", "lib/python3*/dist-packages", "lib/python3/dist-packages"} {
		hits, _ := filepath.Glob(filepath.Join(prefix, p)) // a fixed pattern cannot be malformed
		for _, h := range hits {
			if !slices.Contains(list, h) {
				list = append(list, h)
			}
		}
	}
	return list
}

// distributions reads names and versions from the names of the dist-info directories (PEP 427).
func distributions(site string) map[string]string {
	list := map[string]string{}
	entries, err := os.ReadDir(site)
	if err != nil {
		return list
	}
	for _, e := range entries {
		base, ok := strings.CutSuffix(e.Name(), ".dist-info")
		if name, version, dash := strings.Cut(base, "-"); ok && dash {
			list[strings.ToLower(strings.NewReplacer("_", "-", ".", "-").Replace(name))] = version
		}
	}
	return list
}

// version is that of the distribution, and where it is recorded.
func (in install) version() (version, where string) {
	v := in.dists["sglang"]
	return v, filepath.Join(in.site, "sglang-"+v+".dist-info")
}

// cpu reports that the server must run without a GPU: by the setting, else because no NVIDIA device is visible. One package
// serves both.
func cpu(v openai.Values) bool {
	switch v.Text("device") {
	case "cpu":
		return true
	case "cuda":
		return false
	}
	if visible, set := os.LookupEnv("CUDA_VISIBLE_DEVICES"); set && (visible == "" || visible == "-1") {
		return true
	}
	_, err := os.Stat("/dev/nvidiactl")
	return err != nil
}

// key identifies the installed build on disk: every distribution's version, the list of SGLang's own files with their hashes,
// and whether its kernels are a stand-in. It names private caches, and the build before anything runs.
func (in install) key() (string, error) {
	_, dir := in.version()
	record, err := os.ReadFile(filepath.Join(dir, "RECORD"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	kernel, err := os.ReadFile(filepath.Join(in.site, "sgl_kernel/__init__.py"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	sum := func(b []byte) string { s := sha256.Sum256(b); return hex.EncodeToString(s[:]) }
	return matrix.Digest([]any{in.dists, sum(record), sum(kernel)})
}

// launcher is the module that every build has; newer ones name "sglang serve" beside it.
const launcher = "sglang.launch_server"

func bit(on bool) string {
	if on {
		return "1"
	}
	return "0"
}

// helpLimit bounds --help, which imports the whole engine: some ten seconds on an idle desktop, a minute on two busy cores.
const helpLimit = 3 * time.Minute

// flags returns the flags this build knows. They are read once per build and kept in the cache directory.
func (in install) flags(ctx context.Context, cacheDir string, cpu bool) (map[string]bool, error) {
	key, err := in.key()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(cacheDir, "help-"+key[:16]+".txt")
	if cacheDir != "" {
		if b, err := os.ReadFile(path); err == nil {
			if known := parseHelp(string(b)); len(known) > 0 {
				return known, nil
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, helpLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, in.python, "-m", launcher, "--help")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "HF_HUB_OFFLINE=1", "COLUMNS=200", "SGLANG_USE_CPU_ENGINE=" + bit(cpu)}
	cmd.Dir, cmd.WaitDelay = os.TempDir(), time.Second
	out, err := cmd.CombinedOutput()
	known := parseHelp(string(out))
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%s -m "+launcher+" --help: %w", in.python, context.Cause(ctx))
	case err != nil || !known["--context-length"]:
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return nil, fmt.Errorf("%s -m "+launcher+" --help: %v: %s", in.python, err, lines[len(lines)-1])
	}
	if cacheDir != "" {
		if err := errors.Join(os.MkdirAll(cacheDir, 0o755), os.WriteFile(path, out, 0o644)); err != nil {
			return nil, fmt.Errorf("cache directory: %w", err)
		}
	}
	return known, nil
}

// flagName matches an option where argparse prints one: at the start of a line's entry, after a comma or a bracket.
var flagName = regexp.MustCompile(`(?m)(?:^\s+|, |[\[|] ?)(--?[a-zA-Z][a-zA-Z0-9]*(?:[-_][a-zA-Z0-9]+)*)`)

func parseHelp(help string) map[string]bool {
	known := map[string]bool{}
	for _, m := range flagName.FindAllStringSubmatch(help, -1) {
		known[m[1]] = true
	}
	return known
}
