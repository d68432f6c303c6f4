package adapter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"enginebroker/engines/fingerprint"
	"enginebroker/engines/process"
	"enginebroker/matrix"
	"enginebroker/matrix/regular"
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
	Image       *process.Container // that holds the environment, and then the paths are those inside; nil: this machine

	place Place
	id    string // of the image
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
	f, err := regular.Open(program)
	if err != nil {
		return ""
	}
	defer f.Close()
	head, err := io.ReadAll(io.LimitReader(f, 512))
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(head), "\n")
	rest, ok := strings.CutPrefix(line, "#!")
	if f := strings.Fields(rest); ok && len(f) > 0 && strings.HasPrefix(filepath.Base(f[0]), "python") && Executable(f[0]) {
		return f[0]
	}
	return ""
}

// sites lists the package directories below a prefix.
func sites(prefix string) []string {
	var list []string
	for _, p := range []string{"lib/python3*/site-packages", "lib/python3*/dist-packages", "local/lib/python3*/dist-packages", "lib/python3/dist-packages"} {
		hits, _ := fs.Glob(os.DirFS(prefix), p) // a fixed pattern cannot be malformed
		for _, h := range hits {
			h = filepath.Join(prefix, h)
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
			list[distName(name)] = version
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

// Key identifies the build on disk: by the id of the image, else as the engine's own digest does.
func (in Python) Key(digest func() (string, error)) (string, error) {
	if in.Image != nil {
		return strings.TrimPrefix(in.id, "sha256:"), nil
	}
	return digest()
}

// Launch is the program that is launched on this machine; none where it comes from an image.
func (in Python) Launch() string {
	if in.Image != nil {
		return ""
	}
	return in.Program
}

// OnDisk is the identity of an environment before anything runs; key identifies the build, which is read from where. A
// recorded install that does not run is a *NotInstalled beside the facts.
func (in Python) OnDisk(ctx context.Context, kind, key, where string, sum fingerprint.Sum) (matrix.Facts, error) {
	version, recorded := in.Version()
	facts := matrix.Facts{Said(matrix.FactVersion, version, recorded)}
	if in.Image != nil { // its id tells the build, and what runs is read from the running processes
		for _, name := range slices.Sorted(maps.Keys(in.Dists)) {
			if fingerprint.Tracked(name) {
				facts = append(facts, Said(fingerprint.FactPackage+name, in.Dists[name], "python3 of the image"))
			}
		}
		return facts, nil
	}
	facts = append(facts, Said(matrix.FactEngine, kind, in.Program))
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
	env := map[string]string{"DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
	if in.Image == nil {
		env["VIRTUAL_ENV"], env["PATH"] = in.Prefix, filepath.Dir(in.Interpreter)+":"+os.Getenv("PATH")
	} else {
		maps.Copy(env, imageUser(filepath.Join(cacheDir, "home-"+key[:16])))
		if err := os.MkdirAll(env["HOME"], 0o755); err != nil {
			return nil, fmt.Errorf("home in the container: %w", err)
		}
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

// imageUser is what a Python engine needs where it runs as a user that the image does not know: without a name for it torch
// does not start, and what lies in an image stays as it is.
func imageUser(home string) map[string]string {
	return map[string]string{"HOME": home, "USER": "broker", "PYTHONDONTWRITEBYTECODE": "1"}
}

// listDists lists an interpreter's distributions as JSON, the way imports find them.
const listDists = `import importlib.metadata as m, json, sys
print(json.dumps({"interpreter": sys.executable, "prefix": sys.prefix,
  "dists": [[d.metadata["Name"], d.version, str(d.locate_file(""))] for d in m.distributions()]}))`

// insideLimit bounds the start of a container of 20 GB that lists its packages.
const insideLimit = time.Minute

// insides holds what was found in an image, by its id and what was looked for: an image does not change under its id.
var insides sync.Map

// Inside reads the environment of an image by its own python3. The error is a *NotInstalled.
func (p Place) Inside(ctx context.Context, image *process.Container) (Python, error) {
	id, err := image.ID(ctx)
	in := Python{Image: image, place: p, id: id, Looked: []string{image.Image}}
	if err != nil {
		return in, in.no("%v", err)
	}
	if known, ok := insides.Load(p.Engine + id); ok {
		found := known.(Python)
		found.Image = image
		return found, nil
	}
	ctx, cancel := context.WithTimeout(ctx, insideLimit)
	defer cancel()
	out, err := image.Program(ctx, "python3", "-I", "-c", listDists)
	if err != nil {
		return in, in.no("the image's python3 does not list its packages: %v", err)
	}
	if err := in.listed(out); err != nil {
		return in, in.no("the image's python3 does not list its packages: %v", err)
	}
	if !slices.ContainsFunc(p.Dists, func(d string) bool { return in.Dists[d] != "" }) {
		return in, in.no("the image's python3 has no distribution %s among its %d", p.Dists[0], len(in.Dists))
	}
	insides.Store(p.Engine+id, in)
	return in, nil
}

// listed takes the answer of listDists, which stands in the last line: entrypoints and site hooks print before it. Of two
// distributions of one name the first is imported.
func (in *Python) listed(out string) error {
	out = strings.TrimSpace(out)
	var list struct {
		Interpreter, Prefix string
		Dists               [][3]string
	}
	if err := json.Unmarshal([]byte(out[strings.LastIndexByte(out, '\n')+1:]), &list); err != nil {
		return err
	}
	if list.Interpreter == "" || len(list.Dists) == 0 {
		return errors.New("it names no interpreter, or no distribution")
	}
	in.Program, in.Interpreter, in.Prefix, in.Dists = list.Interpreter, list.Interpreter, list.Prefix, map[string]string{}
	for _, d := range list.Dists {
		name := distName(d[0])
		if in.Dists[name] != "" {
			continue
		}
		in.Dists[name] = d[1]
		if slices.Contains(in.place.Dists, name) && in.Site == "" {
			in.Site = d[2]
		}
	}
	return nil
}

// distName is a distribution's name by one spelling (PEP 503).
func distName(s string) string {
	return strings.ToLower(strings.NewReplacer("_", "-", ".", "-").Replace(s))
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
