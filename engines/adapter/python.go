package adapter

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"enginebroker/engines/fingerprint"
	"enginebroker/matrix"
)

// Place says where a Python engine is looked for.
type Place struct {
	Engine   string   // as people write it: vLLM
	Program  string   // what is launched, below an environment: bin/vllm, bin/python
	Script   string   // the engine's command in PATH; the program lies beside it
	Variable string   // that names an environment or a program
	Default  string   // the environment of `make engines`
	Dists    []string // distributions that are the engine, the first one its own name
	Fix      string
}

// Python is one environment that holds a Python engine.
type Python struct {
	Program     string            // what is launched
	Interpreter string            // as it is launched
	Prefix      string            // directory of the environment
	Site        string            // the package directory that holds the engine's metadata
	Dists       map[string]string // installed distributions: version by normalized name
	Looked      []string

	place Place
}

// Find finds the environment: by the path of its program or its directory where one is set, else by the variable, the PATH
// and the default place. The error is a *NotInstalled.
func (p Place) Find(program, venv string) (Python, error) {
	in := Python{place: p}
	if program != "" {
		return in.at(program)
	}
	if venv != "" {
		return in.at(filepath.Join(venv, p.Program))
	}
	if named := os.Getenv(p.Variable); named != "" {
		if st, err := os.Stat(named); err == nil && st.IsDir() {
			named = filepath.Join(named, p.Program)
		}
		return in.at(named)
	}
	var candidates []string
	if found, err := exec.LookPath(p.Script); err == nil {
		candidates = append(candidates, filepath.Join(filepath.Dir(found), filepath.Base(p.Program)))
	} else {
		in.Looked = append(in.Looked, p.Script+" in PATH")
	}
	for _, root := range roots() {
		candidates = append(candidates, filepath.Join(root, p.Default, p.Program))
	}
	for _, c := range candidates {
		found, err := in.at(c)
		if err == nil {
			return found, nil
		}
		in.Looked = found.Looked
	}
	return in, in.no("%s", p.Fix)
}

func (in Python) no(format string, args ...any) error {
	return &NotInstalled{Err: fmt.Errorf(in.place.Engine+" is not installed: "+format, args...), Looked: in.Looked, Fix: in.place.Fix}
}

// roots are the directories that the default place is relative to: the working directory, and the tree this plugin was
// built in (bin/plugins/NAME).
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

// at describes the environment of the program at path.
func (in Python) at(path string) (Python, error) {
	in.Looked = append(slices.Clone(in.Looked), path)
	abs, err := filepath.Abs(path)
	if err != nil {
		return in, in.no("%v", err)
	}
	if !Executable(abs) {
		return in, in.no("%s is no executable file", abs)
	}
	if in.Interpreter = interpreter(abs); in.Interpreter == "" {
		return in, in.no("%s names no Python interpreter that exists", abs)
	}
	in.Program, in.Prefix = abs, filepath.Dir(filepath.Dir(in.Interpreter))
	name := in.place.Dists[0]
	for _, site := range sites(in.Prefix) {
		dists := distributions(site)
		if slices.ContainsFunc(in.place.Dists, func(d string) bool { return dists[d] != "" }) {
			in.Site, in.Dists = site, dists
			return in, nil
		}
		in.Looked = append(in.Looked, filepath.Join(site, name+"-*.dist-info"))
	}
	return in, in.no("%s has no metadata of %s in its package directories", in.Prefix, name)
}

// interpreter is the program itself where it is called python, else the Python beside a script, else the one its first line
// names.
func interpreter(program string) string {
	if strings.HasPrefix(filepath.Base(program), "python") {
		return program
	}
	if beside := filepath.Join(filepath.Dir(program), "python"); Executable(beside) {
		return beside
	}
	b, err := os.ReadFile(program)
	if err != nil {
		return ""
	}
	line, _, _ := bytes.Cut(b, []byte("\n"))
	rest, ok := strings.CutPrefix(string(line), "#!")
	if f := strings.Fields(rest); ok && len(f) > 0 && strings.HasPrefix(filepath.Base(f[0]), "python") && Executable(f[0]) {
		return f[0]
	}
	return ""
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

// DistInfo is the metadata directory of an installed distribution.
func (in Python) DistInfo(name string) string {
	return filepath.Join(in.Site, strings.ReplaceAll(name, "-", "_")+"-"+in.Dists[name]+".dist-info")
}

// Version is that of the first of the engine's distributions that is installed, and where it is recorded.
func (in Python) Version() (version, where string) {
	for _, name := range in.place.Dists {
		if v, ok := in.Dists[name]; ok {
			return v, in.DistInfo(name)
		}
	}
	return "", ""
}

// OnDisk is the identity of an environment before anything runs; key identifies the build, which is read from where. A
// recorded install that does not run is a *NotInstalled beside the facts.
func (in Python) OnDisk(ctx context.Context, kind, key, where string, sum fingerprint.Sum) (matrix.Facts, error) {
	version, recorded := in.Version()
	facts := matrix.Facts{Said(matrix.FactEngine, kind, in.Program), Said(matrix.FactVersion, version, recorded)}
	static, err := fingerprint.Static(ctx, in.Program, sum)
	if err != nil {
		return nil, err
	}
	facts = append(facts, static...)
	own := fingerprint.FactPackage + in.place.Dists[0]
	if c := static.Value(own + ".commit"); c.Present() {
		facts = append(facts, Said(matrix.FactCommit, c.Or(""), recorded))
	}
	facts = append(facts, Seen(matrix.FactBuild, key, where))
	if origin := static.Value(own + ".origin").Or(""); strings.HasSuffix(origin, fingerprint.Gone) {
		return facts, in.no("it is recorded in %s but does not run: %s", recorded, origin)
	}
	return facts, nil
}

// compileCaches are the directories that kernels are compiled into. What lies there decides speed and start, so that each
// build has its own.
var compileCaches = map[string]string{"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor", "FLASHINFER_WORKSPACE_BASE": "flashinfer",
	"TILELANG_CACHE_DIR": "tilelang", "CUDA_CACHE_PATH": "cuda"}

// OwnPythonEnv are the variables of Rules.OwnEnv that every Python engine has, and those that one adds.
func OwnPythonEnv(more map[string]string) map[string]string {
	own := map[string]string{"VIRTUAL_ENV": "set venv", "PYTHONPATH": "it would shadow the packages that are recorded", "PYTHONHOME": "it would replace the interpreter that is recorded"}
	for name := range compileCaches {
		own[name] = PrivateCache
	}
	maps.Copy(own, more)
	return own
}

// Env is what the server gets beside the inherited allow-list: no network, no telemetry, and compile caches of this build
// (key) alone. caches are directories that this engine compiles into beside the usual ones, by the variable that names each.
func (in Python) Env(cacheDir, key string, caches map[string]string) (map[string]string, error) {
	env := map[string]string{
		"VIRTUAL_ENV": in.Prefix, "PATH": filepath.Dir(in.Interpreter) + ":" + os.Getenv("PATH"),
		"DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
	}
	all := maps.Clone(compileCaches)
	maps.Copy(all, caches)
	for name, dir := range all {
		env[name] = filepath.Join(cacheDir, "compile-"+key[:16], dir)
		if err := os.MkdirAll(env[name], 0o755); err != nil {
			return nil, fmt.Errorf("compile cache: %w", err)
		}
	}
	return env, nil
}

// flagName matches an option where argparse prints one: at the start of a line's entry, after a comma or a bracket.
var flagName = regexp.MustCompile(`(?m)(?:^\s+|, |[\[|] ?)(--?[a-zA-Z][a-zA-Z0-9]*(?:[-_][a-zA-Z0-9]+)*)`)

// ParseHelp reads the flags from the help of a program that uses argparse.
func ParseHelp(help string) map[string]bool {
	known := map[string]bool{}
	for _, m := range flagName.FindAllStringSubmatch(help, -1) {
		known[m[1]] = true
	}
	return known
}

// DtypeName is a torch dtype without its package, and by one name: half is float16, float is float32, bf16 is bfloat16.
func DtypeName(s string) string {
	switch s = strings.TrimPrefix(s, "torch."); s {
	case "half":
		return "float16"
	case "float":
		return "float32"
	case "bf16":
		return "bfloat16"
	}
	return s
}
