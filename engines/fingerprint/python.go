package fingerprint

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"enginebroker/matrix"
	"enginebroker/matrix/regular"
)

// tracked distributions are recorded one by one; all others are in the digest of the whole list.
var tracked = regexp.MustCompile(`^(vllm(-.*)?|torch|triton|flashinfer.*|nvidia-.*|sglang|sgl-kernel|sglang-kernel|transformers|tokenizers|safetensors|compressed-tensors|xgrammar|tilelang|tvm-ffi|apache-tvm-ffi|nvidia-cutlass-dsl|numpy)$`)

// Tracked tells the distributions that are recorded one by one, by their normalized names.
func Tracked(name string) bool { return tracked.MatchString(name) }

var pythonName = regexp.MustCompile(`^(python|pypy)(\d+(\.\d+)?t?)?$`)

// distribution is one installed package, from the name of its dist-info directory.
type distribution struct {
	name    string // normalized (PEP 503)
	version string
	info    string // its dist-info directory, ours
}

// pythonFacts describes every Python environment that the tree imports from, and returns a digest of their packages.
func pythonFacts(tree []*process) (matrix.Facts, string) {
	var facts matrix.Facts
	var lists []string
	for _, p := range tree {
		if !pythonName.MatchString(filepath.Base(p.program)) {
			continue
		}
		facts = append(facts, observed(FactPython, p.real(p.program), filepath.Join(p.dir, "exe")))
		prefix := p.prefix()
		if prefix != "" {
			facts = append(facts, observed(FactPrefix, p.real(prefix), filepath.Join(p.dir, "cmdline, environ")))
		}
		for _, site := range p.sites(prefix) {
			f, list := environment(site, p.inside)
			facts, lists = append(facts, f...), append(lists, list)
		}
		for _, name := range []string{"vllm", "sglang", "torch", "flashinfer"} {
			if st, err := os.Stat(p.inside(filepath.Join(p.cwd, name))); err == nil && st.IsDir() {
				facts = append(facts, observed(FactShadow, filepath.Join(p.cwd, name), filepath.Join(p.dir, "cwd")))
			}
		}
	}
	if len(lists) == 0 {
		return sorted(facts), ""
	}
	slices.Sort(lists)
	sum := digestText(strings.Join(slices.Compact(lists), "\n"))
	return sorted(append(facts, observed(FactPackages, sum, "dist-info directories"))), sum
}

// prefix finds the virtual environment of an interpreter: the one its launch path lies in, else VIRTUAL_ENV. Engines that
// rename their processes leave no launch path.
func (p *process) prefix() string {
	var try []string
	if len(p.argv) > 0 && strings.Contains(p.argv[0], "/") {
		launch := p.argv[0]
		if !filepath.IsAbs(launch) {
			launch = filepath.Join(p.cwd, launch)
		}
		try = append(try, filepath.Dir(filepath.Dir(launch)))
	}
	if v := p.env["VIRTUAL_ENV"]; v != "" {
		try = append(try, v)
	}
	for _, dir := range try {
		if exists(p.inside(filepath.Join(dir, "pyvenv.cfg"))) {
			return dir
		}
	}
	return ""
}

var siteDir = regexp.MustCompile(`^(.*/(?:dist-packages|site-packages))/`)

// sites lists the package directories a process imports from: those it has mapped files of, else those of its environment.
func (p *process) sites(prefix string) []string {
	found := map[string]bool{}
	for _, m := range p.maps {
		if s := siteDir.FindStringSubmatch(m.path); s != nil {
			found[s[1]] = true
		}
	}
	for _, dir := range []string{prefix, filepath.Dir(filepath.Dir(p.program))} {
		if len(found) > 0 {
			break
		}
		if dir == "" { // no environment of its own
			continue
		}
		for _, pattern := range []string{"lib/python3*/site-packages", "lib64/python3*/site-packages", "local/lib/python3*/dist-packages", "lib/python3/dist-packages"} {
			hits, _ := fs.Glob(os.DirFS(p.inside(dir)), pattern) // a fixed pattern cannot be malformed
			for _, h := range hits {
				found[filepath.Join(dir, h)] = true
			}
		}
	}
	return sortedKeys(found)
}

// environment describes one package directory. inside maps its paths to ours.
func environment(site string, inside func(string) string) (matrix.Facts, string) {
	var facts matrix.Facts
	var list strings.Builder
	byName := map[string]string{}
	for _, d := range distributions(inside(site)) {
		fmt.Fprintf(&list, "%s==%s\n", d.name, d.version)
		if !tracked.MatchString(d.name) {
			continue
		}
		where := filepath.Join(site, filepath.Base(d.info))
		facts = append(facts, observed(FactPackage+d.name, d.version, where))
		if other, ok := byName[d.name]; ok && other != d.version {
			facts = append(facts, observed(FactWarning, fmt.Sprintf("%s is installed twice, as %s and %s", d.name, other, d.version), site))
		}
		byName[d.name] = d.version
		facts = append(facts, provenance(d, site, where, inside)...)
	}
	for name, version := range byName {
		if want := byName["flashinfer-python"]; strings.HasPrefix(name, "flashinfer-") && want != "" && !sameRelease(want, version) {
			facts = append(facts, observed(FactWarning, fmt.Sprintf("flashinfer-python %s and %s %s disagree", want, name, version), site))
		}
	}
	return sorted(facts), list.String()
}

// sameRelease compares two versions without their local part: 0.6.14+cu130 belongs to 0.6.14.
func sameRelease(a, b string) bool {
	a, _, _ = strings.Cut(a, "+")
	b, _, _ = strings.Cut(b, "+")
	return a == b
}

// distributions lists the dist-info directories of a package directory, sorted.
func distributions(site string) []distribution {
	hits, _ := filepath.Glob(filepath.Join(escapeGlob(site), "*.dist-info"))
	var out []distribution
	for _, h := range hits {
		name, version, ok := strings.Cut(strings.TrimSuffix(filepath.Base(h), ".dist-info"), "-")
		if ok {
			out = append(out, distribution{normalize(name), version, h})
		}
	}
	slices.SortFunc(out, func(a, b distribution) int { return strings.Compare(a.name+" "+a.version, b.name+" "+b.version) })
	return out
}

func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

func normalize(name string) string {
	return strings.ToLower(strings.NewReplacer("_", "-", ".", "-").Replace(name))
}

// directURL is direct_url.json (PEP 610).
type directURL struct {
	URL string `json:"url"`
	Dir *struct {
		Editable bool `json:"editable"`
	} `json:"dir_info"`
	VCS *struct {
		Commit string `json:"commit_id"`
	} `json:"vcs_info"`
}

var moduleVersion = regexp.MustCompile(`(?m)^\s*(?:__version__|version)\s*(?:=\s*version\s*)?(?::\s*str\s*)?=\s*['"]([^'"]+)['"]`)

var versionCommit = regexp.MustCompile(`\+(?:\w+\.)*g([0-9a-f]{7,40})\b`)

// provenance says where a distribution came from, and what the module itself says its version is. An editable install whose
// directory is gone still has its metadata and its version, and does not run.
func provenance(d distribution, site, where string, inside func(string) string) matrix.Facts {
	var facts matrix.Facts
	module := filepath.Join(site, strings.ReplaceAll(d.name, "-", "_"))
	if b, err := regular.ReadFile(filepath.Join(d.info, "direct_url.json"), 64<<10); err == nil {
		var u directURL
		if json.Unmarshal(b, &u) == nil {
			origin := scrubText(u.URL)
			if u.Dir != nil && u.Dir.Editable {
				origin = "editable " + origin
			}
			if dir, ok := filePath(u.URL); ok && u.Dir != nil && u.Dir.Editable {
				module = filepath.Join(dir, strings.ReplaceAll(d.name, "-", "_"))
				if !exists(inside(dir)) {
					origin += Gone
				}
			}
			facts = append(facts, observed(FactPackage+d.name+".origin", origin, where+"/direct_url.json"))
			if u.VCS != nil && u.VCS.Commit != "" {
				facts = append(facts, claimed(FactPackage+d.name+".commit", u.VCS.Commit, where+"/direct_url.json"))
			}
		}
	}
	for _, file := range []string{"_version.py", "version.py"} {
		path := filepath.Join(module, file)
		b, err := regular.ReadFile(inside(path), 64<<10)
		if err != nil {
			continue
		}
		if v := moduleVersion.FindSubmatch(b); v != nil {
			facts = append(facts, claimed(FactPackage+d.name+".module", string(v[1]), path))
			break
		}
	}
	if c := versionCommit.FindStringSubmatch(d.version); c != nil {
		facts = append(facts, claimed(FactPackage+d.name+".commit", c[1], where))
	}
	return facts
}

// Gone marks the origin of an install that no longer exists.
const Gone = " (gone)"

func filePath(raw string) (string, bool) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "file" || u.Path == "" {
		return "", false
	}
	return u.Path, true
}

func digestText(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}
