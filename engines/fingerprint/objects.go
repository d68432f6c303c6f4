package fingerprint

import (
	"cmp"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"enginebroker/matrix"
	"enginebroker/matrix/regular"
)

// incidental libraries come and go while a server runs: with a name look-up or a backtrace, or because a library of the same
// package loads its own parts when it first needs them (cuDNN, NVRTC, the driver's compiler). They are listed and left out of
// the build, which would change under load otherwise.
var incidental = regexp.MustCompile(`^(libnss_.*|libresolv[.-].*|libgcc_s[.-].*|libcudnn_.*|libnvrtc-builtins.*|libnvidia-.*|libnvJitLink.*)\.so[.\d]*$`)

// mapped hashes every executable file object of the tree once, and returns the build's objects and the facts. Launchers and
// kernels that were compiled into a cache are listed as libraries and belong to the cache, not to the build: a first load makes
// them and a second one finds them.
func mapped(ctx context.Context, tree []*process, private string, sum Sum) ([][2]string, matrix.Facts, error) {
	compiled := []string{private}
	for _, c := range cachePlaces(tree[0].env) {
		compiled = append(compiled, c.path)
	}
	type object struct {
		m    mapping
		path string // ours
	}
	seen := map[string]bool{}
	var list []object
	var facts matrix.Facts
	for _, p := range tree {
		for _, m := range p.maps {
			key := fmt.Sprintf("%d %s", m.inode, m.path)
			if !m.exec || seen[key] {
				continue
			}
			seen[key] = true
			o := object{m: m, path: p.inside(m.path)}
			if m.deleted || replaced(o.path, m.inode) {
				// The file on disk is not the one that runs; the kernel still has that one, for those who may see it.
				facts = append(facts, observed(FactDeleted, m.path, p.dir+"/maps"))
				o.path = filepath.Join(p.dir, "map_files", m.span)
			}
			list = append(list, o)
		}
	}
	slices.SortFunc(list, func(a, b object) int {
		return cmp.Or(cmp.Compare(a.m.path, b.m.path), cmp.Compare(a.m.inode, b.m.inode))
	})
	paths := make([]string, len(list))
	for i, o := range list {
		paths[i] = o.path
	}
	sums, err := sumAll(ctx, func(ctx context.Context, path string) (string, error) {
		s, err := sum(ctx, path)
		if err != nil && strings.Contains(path, "/map_files/") {
			return "unknown", nil // said by FactDeleted
		}
		return s, err
	}, paths)
	if err != nil {
		return nil, nil, fmt.Errorf("fingerprint: %w", err)
	}
	var objects [][2]string
	backends := map[string]bool{}
	for i, o := range list {
		name := filepath.Base(o.m.path)
		facts = append(facts, observed(FactLibrary, name+" "+sums[i], o.m.path))
		made := slices.ContainsFunc(compiled, func(dir string) bool { return below(dir, o.m.path) })
		if !made && !incidental.MatchString(name) && !strings.Contains(o.m.path, "/gconv/") {
			objects = append(objects, [2]string{name, sums[i]})
		}
		if !made && backend.MatchString(name) {
			backends[name] = true
		}
	}
	slices.SortFunc(objects, func(a, b [2]string) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
	objects = slices.Compact(objects)
	if len(backends) > 0 {
		facts = append(facts, observed(matrix.FactBackend, strings.Join(sortedKeys(backends), " "), "executable mappings"))
	}
	return objects, facts, nil
}

// backend matches the libraries that compute: the choice among them decides speed, and sometimes text, while --version stays
// the same (engines.md E8).
var backend = regexp.MustCompile(`^(libggml-(cpu|cuda|vulkan|blas|rpc|hip|sycl|metal|opencl).*|libcuda|libcublas(Lt)?|libcudnn|libcusparse(Lt)?|libcutlass.*|libnvrtc|libnccl|libonednn.*|libdnnl|libmkl_.*|libopenblas.*|_C_?[A-Za-z0-9_]*\.abi3|_moe_C.*|_vllm_fa.*|common_ops.*|flashinfer.*|libtriton)(\.so.*)?$`)

// replaced reports that the file at path is not the mapped one. On an overlay, where images live, older kernels map the lower
// file's inode: there only " (deleted)" tells.
func replaced(path string, mapped uint64) bool {
	var fs unix.Statfs_t
	if unix.Statfs(path, &fs) == nil && fs.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return false
	}
	return inode(path) != mapped
}

func inode(path string) uint64 {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	return st.Ino
}

func sortedKeys(m map[string]bool) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// programFacts names the main program, its hashes and the links that led to it.
func programFacts(ctx context.Context, p *process, opt Options) (matrix.Facts, error) {
	where := filepath.Join(p.dir, "exe")
	path := p.inside(p.program)
	if p.program != p.exe {
		where = filepath.Join(p.dir, "maps") + ", behind the loader " + p.exe
	} else if exe := filepath.Join(p.dir, "exe"); inode(exe) != 0 && inode(exe) != inode(path) {
		path = exe // replaced on disk: the link still opens what runs
	}
	sum, err := opt.Sum(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("fingerprint: the program of process %d: %w", p.pid, err)
	}
	facts := matrix.Facts{observed(matrix.FactBinary, p.program, where), observed(FactBinarySHA256, sum, p.program)}
	if code, err := codeSum(path); err == nil {
		facts = append(facts, observed(FactBinaryCode, code, p.program+": .text"))
	}
	launch := opt.Launch
	if launch == "" {
		if i := p.programArg(); i < len(p.argv) {
			launch = p.argv[i]
		}
	}
	if strings.Contains(launch, "/") && !filepath.IsAbs(launch) {
		launch = filepath.Join(p.cwd, launch)
	}
	if real, hops, err := links(p.root(), launch); err == nil {
		facts = append(facts, observed(FactBinaryLinks, strings.Join(append(hops, "= "+real), ", "), launch))
	}
	return facts, nil
}

// codeSum hashes the .text section of an ELF file.
func codeSum(path string) (string, error) {
	f, err := regular.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	e, err := elf.NewFile(f)
	if err != nil {
		return "", err
	}
	text := e.Section(".text")
	if text == nil {
		return "", fmt.Errorf("%s has no .text section", path)
	}
	h := sha256.New()
	if _, err := io.Copy(h, text.Open()); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

var cudaVersion = regexp.MustCompile(`^lib(cuda|cudart|cublas|cublasLt|cudnn|nccl|nvrtc)\.so\.(\d[\d.]*)$`)

// driverFacts reads the kernel driver's version, and the versions of CUDA libraries from the real names of their files.
func driverFacts(proc string, tree []*process) matrix.Facts {
	var facts matrix.Facts
	path := filepath.Join(proc, "driver/nvidia/version")
	if b, err := regular.ReadFile(path, 4096); err == nil {
		line, _, _ := strings.Cut(string(b), "\n")
		facts = append(facts, observed(FactDriver, strings.Join(strings.Fields(strings.TrimPrefix(line, "NVRM version:")), " "), path))
	}
	for _, p := range tree {
		for _, m := range p.maps {
			if v := cudaVersion.FindStringSubmatch(filepath.Base(m.path)); v != nil {
				facts = append(facts, observed(FactCUDA+v[1], v[2], m.path))
			}
		}
	}
	return sorted(facts)
}
