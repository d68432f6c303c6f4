package fingerprint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"enginebroker/matrix"
)

// CacheOptions of Caches.
type CacheOptions struct {
	Env     map[string]string // of the engine
	Root    string            // its root directory, empty or "/" outside a container
	Private string            // caches below this directory belong to one build alone
	Sum     Sum
}

// compileCaches are the directories where engines keep what they compiled and tuned. Their content decides speed and sometimes
// text (bugs.md N05). Each is the first variable that is set, else a place below the home directory.
var compileCaches = []struct {
	name string
	vars []string // variable, and what is appended to it after a colon
	home string
}{
	{"cuda", []string{"CUDA_CACHE_PATH:"}, ".nv/ComputeCache"},
	{"flashinfer", []string{"FLASHINFER_WORKSPACE_BASE:.cache/flashinfer"}, ".cache/flashinfer"},
	{"inductor", []string{"TORCHINDUCTOR_CACHE_DIR:"}, ""},
	{"tilelang", []string{"TILELANG_CACHE_DIR:"}, ".tilelang/cache"},
	{"triton", []string{"TRITON_CACHE_DIR:", "TRITON_HOME:.triton/cache"}, ".triton/cache"},
	{"vllm", []string{"VLLM_CACHE_ROOT:", "XDG_CACHE_HOME:vllm"}, ".cache/vllm"},
}

// maxCacheFiles bounds what is hashed of one cache [own]; beyond it the count alone is recorded, and said so.
const maxCacheFiles = 20_000

// Caches describes the compile and autotune caches an engine's environment points at: path, private or shared, entries and a
// hash over names, sizes and content. Take it before and after a load.
func Caches(ctx context.Context, o CacheOptions) (matrix.Facts, error) {
	if o.Sum == nil {
		o.Sum = plainSum
	}
	var facts matrix.Facts
	for _, c := range cachePlaces(o.Env) {
		value, err := cacheValue(ctx, c.path, o)
		if err != nil {
			return nil, err
		}
		if value != "" {
			facts = append(facts, observed(FactCache+c.name, value, c.where))
		}
	}
	return facts, nil
}

// cachePlace is where an environment puts one cache.
type cachePlace struct{ name, path, where string }

func cachePlaces(env map[string]string) []cachePlace {
	var out []cachePlace
	for _, c := range compileCaches {
		path, where := "", ""
		for _, v := range c.vars {
			name, below, _ := strings.Cut(v, ":")
			if dir := env[name]; dir != "" && path == "" {
				path, where = filepath.Join(dir, below), name
			}
		}
		switch user := env["USER"]; {
		case path != "":
		case c.home != "" && env["HOME"] != "":
			path, where = filepath.Join(env["HOME"], c.home), "default below HOME"
		case c.name == "inductor" && user != "":
			path, where = "/tmp/torchinductor_"+user, "default"
		default:
			continue
		}
		out = append(out, cachePlace{c.name, path, where})
	}
	return out
}

// below reports whether path lies in dir.
func below(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	return dir != "" && err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

func cacheValue(ctx context.Context, path string, o CacheOptions) (string, error) {
	dir := path
	if in := filepath.Join(o.Root, path); o.Root != "" && exists(in) {
		dir = in
	}
	kind := "shared"
	if below(o.Private, path) {
		kind = "private"
	}
	var names, paths []string
	count := 0
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // an engine at work drops temporary files
			}
			return err
		}
		if !d.Type().IsRegular() {
			return nil
		}
		if count++; count > maxCacheFiles {
			return ctx.Err()
		}
		rel, err := filepath.Rel(dir, p)
		names, paths = append(names, rel), append(paths, p)
		return errors.Join(err, ctx.Err())
	})
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Sprintf("%s %s unreadable", path, kind), nil
	}
	if err != nil {
		return "", fmt.Errorf("fingerprint: cache %s: %w", path, err)
	}
	switch {
	case count == 0 && !exists(dir):
		return "", nil
	case count > maxCacheFiles:
		return fmt.Sprintf("%s %s entries=%d content not hashed: more than %d files", path, kind, count, maxCacheFiles), nil
	}
	sums, err := sumAll(ctx, func(ctx context.Context, p string) (string, error) {
		s, err := o.Sum(ctx, p)
		if err != nil && !exists(p) {
			return "gone", nil
		}
		return s, err
	}, paths)
	if err != nil {
		return "", fmt.Errorf("fingerprint: cache %s: %w", path, err)
	}
	var list strings.Builder
	for i, n := range names {
		fmt.Fprintf(&list, "%s %s\n", n, sums[i])
	}
	return fmt.Sprintf("%s %s entries=%d sha256=%s", path, kind, count, digestText(list.String())), nil
}
