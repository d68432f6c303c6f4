package artifact

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"enginebroker/matrix"
	"enginebroker/matrix/regular"
)

// Locator says where an artifact is: a path, or a repository at a revision in the Hugging Face cache.
type Locator struct {
	Path       string // file or directory; of a split GGUF any one part
	Repository string // ORG/NAME
	Revision   string // branch, tag, commit or a unique prefix of a commit (7 digits or more)
	File       string // of the repository, where it holds several models: one GGUF
}

// String is the form that ParseLocator reads.
func (l Locator) String() string {
	if l.Repository == "" {
		return l.Path
	}
	s := "hf:" + l.Repository + "@" + l.Revision
	if l.File != "" {
		s += ":" + l.File
	}
	return s
}

var repository = regexp.MustCompile(`^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$`)

// ParseLocator reads "hf:ORG/NAME@REV", "hf:ORG/NAME@REV:FILE" or a path. A repository without a revision is an error: "main" moves.
func ParseLocator(s string) (Locator, error) {
	rest, ok := strings.CutPrefix(s, "hf:")
	if !ok {
		if s == "" {
			return Locator{}, errors.New("artifact locator: empty: give a path, or hf:ORG/NAME@REVISION")
		}
		return Locator{Path: s}, nil
	}
	repo, rev, ok := strings.Cut(rest, "@")
	rev, file, _ := strings.Cut(rev, ":")
	if !ok || rev == "" {
		return Locator{}, fmt.Errorf("artifact locator %q: no revision: write hf:ORG/NAME@REVISION", s)
	}
	if !repository.MatchString(repo) || strings.Contains(repo, "..") {
		return Locator{}, fmt.Errorf("artifact locator %q: %q is not ORG/NAME", s, repo)
	}
	for _, part := range []string{rev, file} {
		if strings.HasPrefix(part, "/") || slices.Contains(strings.Split(part, "/"), "..") {
			return Locator{}, fmt.Errorf("artifact locator %q: %q leaves the repository", s, part)
		}
	}
	return Locator{Repository: repo, Revision: rev, File: file}, nil
}

// found is an artifact's files before anything of them is read.
type found struct {
	locator  Locator
	root     string
	links    []string
	revision string
	files    []string // relative to root, slash-separated, sorted
	weights  []string // the subset that holds tensors: all .safetensors, or all .gguf of one model
	gguf     bool
	name     string // repository, directory or file name: a claim about the content
}

// maxFiles bounds a directory tree that is taken for a checkpoint [own]; the largest public ones have some 200 files.
const maxFiles = 10_000

func locate(loc Locator, hub string) (found, error) {
	f := found{locator: loc}
	if loc.Path == "" && loc.Repository == "" { // an empty path would be the working folder
		return f, &Refusal{Code: NotFound, Path: "artifact", Message: "neither a path nor a repository is named"}
	}
	path := loc.Path
	if loc.Repository != "" {
		dir, rev, err := snapshot(loc, hub)
		if err != nil {
			return f, err
		}
		path, f.revision, f.name = filepath.Join(dir, filepath.FromSlash(loc.File)), rev, loc.Repository
		if loc.File != "" {
			f.name = loc.File
		}
	}
	real, links, err := resolve(path)
	if err != nil {
		return f, err
	}
	f.links = links
	st, err := os.Stat(real)
	if err != nil {
		return f, unreadable(real, err)
	}
	if f.name == "" {
		f.name = filepath.Base(path)
	}
	if st.IsDir() {
		f.root = real
		return f, f.directory()
	}
	if !st.Mode().IsRegular() {
		return f, &Refusal{Code: Unreadable, Path: real, Message: "neither a file nor a directory"}
	}
	// A file keeps the directory and the name it was asked for: a snapshot's names are links to blobs that are named by hash.
	abs, err := filepath.Abs(path)
	if err != nil {
		return f, err
	}
	f.root = filepath.Dir(abs)
	return f, f.file(filepath.Base(abs))
}

// directory lists a checkpoint directory. Hidden names are no part of an artifact; an unfinished download is refused wherever
// huggingface_hub keeps it: hidden in a local directory, or with the blobs of a snapshot.
func (f *found) directory() error {
	left := []string{filepath.Join(f.root, ".cache/huggingface/download")}
	if up := filepath.Dir(f.root); filepath.Base(up) == "snapshots" {
		left = append(left, filepath.Join(filepath.Dir(up), "blobs"))
	}
	for _, dir := range left {
		if err := unfinished(dir); err != nil {
			return err
		}
	}
	err := filepath.WalkDir(f.root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return unreadable(p, err)
		}
		if p == f.root {
			return nil
		}
		if strings.HasPrefix(d.Name(), ".") {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if strings.HasSuffix(p, ".incomplete") {
			return incomplete(p)
		}
		if d.Type()&fs.ModeSymlink != 0 {
			real, _, err := resolve(p)
			if r, ok := errors.AsType[*Refusal](err); ok && r.Code == NotFound {
				return &Refusal{Code: Incomplete, Path: p, Message: "links to " + r.Path + ", which is not there", Fix: "download it again, or remove the link"}
			} else if err != nil {
				return err
			}
			if st, err := os.Stat(real); err != nil {
				return unreadable(p, err)
			} else if st.IsDir() {
				return nil // a linked directory is another tree
			} else if !st.Mode().IsRegular() {
				return &Refusal{Code: Unreadable, Path: p, Message: "links to " + real + ", which is no regular file", Fix: "remove the link"}
			}
		} else if !d.Type().IsRegular() {
			return nil
		}
		rel, err := filepath.Rel(f.root, p)
		if err != nil {
			return err
		}
		if len(f.files) == maxFiles {
			return &Refusal{Code: TooMany, Path: f.root, Message: fmt.Sprintf("more than %d files: not one checkpoint", maxFiles), Fix: "name the model's own directory"}
		}
		f.files = append(f.files, filepath.ToSlash(rel))
		return nil
	})
	if err != nil {
		return err
	}
	slices.Sort(f.files)
	var st, gg []string
	for _, n := range f.files {
		switch {
		case strings.Contains(n, "/"): // weights lie at the top
		case strings.HasSuffix(n, ".safetensors"):
			st = append(st, n)
		case strings.HasSuffix(n, ".gguf"):
			gg = append(gg, n)
		}
	}
	models := slices.DeleteFunc(slices.Clone(gg), func(n string) bool { return strings.Contains(strings.ToLower(n), "mmproj") })
	switch {
	case len(st) > 0 && len(gg) > 0:
		return &Refusal{Code: Ambiguous, Path: f.root, Message: "holds both safetensors and GGUF", Fix: "name the GGUF file, or separate them"}
	case len(st) > 0:
		f.weights = st
		return nil
	case len(models) > 0:
		parts, err := splitParts(f.root, models[0])
		if err != nil {
			return err
		}
		if len(parts) != len(models) {
			return &Refusal{Code: Ambiguous, Path: f.root, Message: "holds several GGUF models: " + strings.Join(models, ", "), Fix: "name one file"}
		}
		f.gguf, f.weights, f.files = true, parts, parts
		return nil
	case len(gg) == 1:
		return f.file(gg[0])
	case len(gg) > 1:
		return &Refusal{Code: Ambiguous, Path: f.root, Message: "holds several projectors and no model: " + strings.Join(gg, ", "), Fix: "name one file"}
	}
	return &Refusal{Code: NotFound, Path: f.root, Message: "no .safetensors and no .gguf in this directory", Fix: "name a checkpoint directory or a GGUF file"}
}

var bytePart = regexp.MustCompile(`\.part-?\d+$`)

// file takes one weight file, and the other parts where it is one of several.
func (f *found) file(name string) error {
	switch {
	case strings.HasSuffix(name, ".incomplete"):
		return incomplete(filepath.Join(f.root, name))
	case bytePart.MatchString(name):
		whole := bytePart.ReplaceAllString(name, "")
		return &Refusal{Code: Incomplete, Path: filepath.Join(f.root, name), Message: "one piece of a file that was cut by bytes; no engine opens it",
			Fix: fmt.Sprintf("join the pieces: cat %s.part* > %s", whole, whole)}
	case strings.HasSuffix(name, ".safetensors"):
		parts, err := splitParts(f.root, name)
		if err == nil && len(parts) > 1 {
			err = &Refusal{Code: Incomplete, Path: filepath.Join(f.root, name), Message: fmt.Sprintf("one of %d shards; no engine opens it alone", len(parts)), Fix: "name the directory"}
		}
		if err != nil {
			return err
		}
		f.files, f.weights = []string{name}, []string{name}
		return nil
	}
	parts, err := splitParts(f.root, name)
	if err != nil {
		return err
	}
	f.files, f.weights, f.gguf = parts, parts, true
	return nil
}

var splitName = regexp.MustCompile(`^(.+)-(\d{5})-of-(\d{5})\.(gguf|safetensors)$`)

// splitParts lists the parts of a split GGUF or the shards of a checkpoint, whichever of them is named; a whole file is its
// only part.
func splitParts(root, name string) ([]string, error) {
	m := splitName.FindStringSubmatch(name)
	if m == nil {
		return []string{name}, nil
	}
	total, err := strconv.Atoi(m[3])
	if err != nil || total < 1 || total > maxFiles {
		return nil, &Refusal{Code: TooMany, Path: filepath.Join(root, name), Message: "the name says " + m[3] + " parts"}
	}
	var parts, absent []string
	for i := 1; i <= total; i++ {
		p := fmt.Sprintf("%s-%05d-of-%s.%s", m[1], i, m[3], m[4])
		if _, err := os.Lstat(filepath.Join(root, p)); err != nil {
			absent = append(absent, p)
		}
		parts = append(parts, p)
	}
	if len(absent) > 0 {
		return nil, &Refusal{Code: Incomplete, Path: filepath.Join(root, name), Message: fmt.Sprintf("%d of %d parts are absent: %s", len(absent), total, strings.Join(absent[:min(3, len(absent))], ", ")), Fix: "fetch the absent parts into the same directory"}
	}
	return parts, nil
}

// resolve follows symbolic links in every component and returns the real path and the links it went through.
func resolve(path string) (string, []string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", nil, err
	}
	var links []string
	rest, at := strings.Split(strings.TrimPrefix(abs, "/"), "/"), "/"
	for len(rest) > 0 {
		next := filepath.Join(at, rest[0])
		rest = rest[1:]
		st, err := os.Lstat(next)
		if err != nil {
			return "", links, unreadable(next, err)
		}
		if st.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		if len(links) == 40 { // as the kernel (path_resolution(7))
			return "", links, &Refusal{Code: LinkLoop, Path: path, Message: "too many symbolic links, the last is " + links[39], Fix: "remove the loop"}
		}
		to, err := os.Readlink(next)
		if err != nil {
			return "", links, unreadable(next, err)
		}
		links = append(links, next+" -> "+to)
		if filepath.IsAbs(to) {
			at = "/"
		}
		rest = append(strings.Split(strings.Trim(filepath.Clean(to), "/"), "/"), rest...)
	}
	return at, links, nil
}

func incomplete(path string) *Refusal {
	have := "an unknown number of"
	if st, err := os.Stat(path); err == nil {
		have = fmt.Sprint(st.Size())
	}
	return &Refusal{Code: Incomplete, Path: path, Message: "a download was left unfinished: " + have + " bytes are there, the total is not recorded", Fix: "finish the download, or remove this file"}
}

// unreadable names the owner of what cannot be read and what gives access.
func unreadable(path string, err error) error {
	var r *Refusal
	if errors.As(err, &r) {
		return err
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &Refusal{Code: NotFound, Path: path, Message: "does not exist"}
	case errors.Is(err, syscall.ELOOP):
		return &Refusal{Code: LinkLoop, Path: path, Message: "symbolic links in a loop", Fix: "remove the loop"}
	}
	cause := err
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		cause = pe.Err
	}
	out := &Refusal{Code: Unreadable, Path: path, Message: "unreadable: " + cause.Error()}
	var st unix.Stat_t
	if unix.Lstat(path, &st) == nil {
		out.Owner = matrix.Some(int(st.Uid))
		out.Message += fmt.Sprintf(", owner uid %d, mode %04o", st.Uid, st.Mode&0o7777)
	}
	if errors.Is(err, fs.ErrPermission) {
		out.Fix = fmt.Sprintf("run: sudo chown -R %d %q && chmod -R u+rX %q", os.Getuid(), path, path)
	}
	return out
}

// readSmall reads a whole file of at most limit bytes.
func readSmall(path string, limit int64) ([]byte, error) {
	f, err := regular.Open(path)
	if err != nil {
		return nil, unreadable(path, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, unreadable(path, err)
	}
	if int64(len(b)) > limit {
		return nil, &HeaderError{Path: path, Offset: limit, Message: fmt.Sprintf("longer than the %d bytes such a file may have", limit)}
	}
	return b, nil
}
