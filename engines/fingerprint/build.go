package fingerprint

import (
	"bufio"
	"bytes"
	"path/filepath"
	"regexp"
	"strings"

	"enginebroker/matrix"
	"enginebroker/matrix/regular"
)

// cmakeKeys are the cache entries that decide what a native engine is built with.
var cmakeKeys = regexp.MustCompile(`^(CMAKE_BUILD_TYPE|CMAKE_HOME_DIRECTORY|CMAKE_CUDA_ARCHITECTURES|CMAKE_(C|CXX|CUDA)_COMPILER|CMAKE_(C|CXX|CUDA)_FLAGS(_[A-Z]+)?|BUILD_SHARED_LIBS|(VLLM_CPP|VT|GGML|LLAMA|CUTLASS|BENCH)_[A-Z0-9_]+)$`)

// searchDepth is how far above a binary its build directory may be: build/examples/server is one, build/bin/Release/x two [own].
const searchDepth = 4

// buildConfiguration finds the CMake cache of the build directory that holds a binary. It is claimed: nothing proves that the
// binary was built after the last configuration. The digest leaves paths out.
func buildConfiguration(binary string, inside func(string) string) (matrix.Facts, string) {
	dir := filepath.Dir(binary)
	for range searchDepth {
		path := filepath.Join(dir, "CMakeCache.txt")
		if b, err := regular.ReadFile(inside(path), 8<<20); err == nil {
			return cmakeFacts(b, path, inside)
		}
		if dir == "/" || dir == "." {
			break
		}
		dir = filepath.Dir(dir)
	}
	return nil, ""
}

func cmakeFacts(b []byte, path string, inside func(string) string) (matrix.Facts, string) {
	var facts matrix.Facts
	var source string
	s := bufio.NewScanner(bytes.NewReader(b))
	for s.Scan() {
		key, value, ok := strings.Cut(s.Text(), "=")
		name, _, typed := strings.Cut(key, ":")
		if !ok || !typed || !cmakeKeys.MatchString(name) {
			continue
		}
		if name == "CMAKE_HOME_DIRECTORY" {
			source = value
		}
		facts = append(facts, claimed(FactCMake+name, scrubText(value), path))
	}
	facts = sorted(facts)
	var text strings.Builder
	for _, f := range facts {
		if !strings.HasPrefix(f.Value, "/") {
			text.WriteString(f.Name + "=" + f.Value + "\n")
		}
	}
	digest := digestText(text.String())
	facts = append(facts, claimed(FactCMakeDigest, digest, path))
	if source != "" {
		if !exists(inside(source)) {
			return append(facts, observed(FactSource, source+Gone, path)), digest
		}
		facts = append(facts, observed(FactSource, source, path))
		if commit := gitHead(inside(source)); commit != "" {
			facts = append(facts, claimed(matrix.FactCommit, commit, filepath.Join(source, ".git")+": HEAD now, not proved to be the commit that was built"))
		}
	}
	return facts, digest
}

var commitHash = regexp.MustCompile(`^[0-9a-f]{40}([0-9a-f]{24})?$`)

// gitHead reads the commit a work tree is at, from the files of git.
func gitHead(dir string) string {
	git := filepath.Join(dir, ".git")
	if b, err := regular.ReadFile(git, 4096); err == nil { // a work tree's .git is a file that names the directory
		to, ok := strings.CutPrefix(strings.TrimSpace(string(b)), "gitdir: ")
		if !ok {
			return ""
		}
		if git = to; !filepath.IsAbs(to) {
			git = filepath.Join(dir, to)
		}
	}
	head, err := regular.ReadFile(filepath.Join(git, "HEAD"), 4096)
	if err != nil {
		return ""
	}
	ref, symbolic := strings.CutPrefix(strings.TrimSpace(string(head)), "ref: ")
	if !symbolic {
		return hash(ref)
	}
	common := git
	if b, err := regular.ReadFile(filepath.Join(git, "commondir"), 4096); err == nil {
		common = filepath.Join(git, strings.TrimSpace(string(b)))
	}
	if b, err := regular.ReadFile(filepath.Join(common, filepath.Clean("/"+ref)), 4096); err == nil {
		return hash(strings.TrimSpace(string(b)))
	}
	packed, err := regular.Open(filepath.Join(common, "packed-refs"))
	if err != nil {
		return ""
	}
	defer packed.Close()
	for s := bufio.NewScanner(packed); s.Scan(); {
		if commit, name, ok := strings.Cut(s.Text(), " "); ok && name == ref {
			return hash(commit)
		}
	}
	return ""
}

func hash(s string) string {
	if commitHash.MatchString(s) {
		return s
	}
	return ""
}
