package artifact

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"enginebroker/matrix"
)

// rest waits until a file's stamp is old enough to be trusted.
func rest(t *testing.T, path string) {
	t.Helper()
	for {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		left := settled - time.Since(time.Unix(0, unix.TimespecToNsec(st.Ctim))) + time.Millisecond
		if left <= 0 {
			return
		}
		time.Sleep(left)
	}
}

func TestSumsCache(t *testing.T) {
	dir := t.TempDir()
	path, cache := filepath.Join(dir, "model.gguf"), filepath.Join(dir, "cache/sums.json")
	writeGGUF(t, path, ggufModel("qwen3", 7), blocks(8, 8))
	rest(t, path)
	if f, err := os.Open(path); err != nil || !traces(f) {
		t.Skipf("nothing is remembered of files on this file system (%v)", err)
	}
	open := func(want string) matrix.Manifest {
		t.Helper()
		sums, err := OpenSums(cache)
		if err != nil {
			t.Fatal(err)
		}
		m, r, err := Open(t.Context(), Locator{Path: path}, Options{Sums: sums})
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%d read, %d known", r.Hashed, r.Cached); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if err := sums.Save(); err != nil {
			t.Fatal(err)
		}
		return m
	}
	first := open("1 read, 0 known")
	if second := open("0 read, 1 known"); second.SHA256 != first.SHA256 || first.SHA256 == "" {
		t.Errorf("%s then %s", first.SHA256, second.SHA256)
	}

	// An edit in place through another hard link, with the time of modification set back: ctime tells.
	other := filepath.Join(dir, "other.gguf")
	if err := os.Link(path, other); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(other, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{7}, st.Size()-1); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := os.Chtimes(other, st.ModTime(), st.ModTime()); err != nil {
		t.Fatal(err)
	}
	rest(t, path)
	if edited := open("1 read, 0 known"); edited.SHA256 == first.SHA256 {
		t.Error("an edited file kept its hash")
	}

	// A cache that cannot be parsed is no cache and no error.
	writeFile(t, cache, "{half")
	open("1 read, 0 known")
}

// Weights that somebody edits through a mapping while the page is still dirty have another hash each time.
func TestStoresThroughAMapping(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	writeFile(t, path, string(make([]byte, 8192)))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := unix.Mmap(int(f.Fd()), 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(m)
	s, err := OpenSums("")
	if err != nil {
		t.Fatal(err)
	}
	for i := range byte(4) {
		m[70] = i
		rest(t, path)
		for range 2 {
			got, err := s.Sum(t.Context(), path)
			if want := sha256.Sum256(m); err != nil || got != hex.EncodeToString(want[:]) {
				t.Errorf("store %d: a stale hash (%v)", i, err)
			}
		}
	}
}

// A hash that is known is made again on demand.
func TestRehash(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.gguf")
	writeGGUF(t, path, ggufModel("qwen3", 7), blocks(8, 8))
	rest(t, path)
	s, err := OpenSums("")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, r, err := Open(t.Context(), Locator{Path: path}, Options{Sums: s, Rehash: true}); err != nil || r.Hashed != 1 || r.Cached != 0 {
			t.Errorf("%+v %v", r, err)
		}
	}
}

// A stamp that is as new as the clock's tick is not kept: the next write may carry the same.
func TestFreshStampIsNotCached(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	writeFile(t, path, "x")
	s, err := OpenSums("")
	if err != nil {
		t.Fatal(err)
	}
	future := time.Now().Add(time.Hour)
	if err := os.Chtimes(path, future, future); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := s.Sum(t.Context(), path); err != nil {
			t.Fatal(err)
		}
	}
	if s.hits.Load() != 0 {
		t.Error("a fresh stamp was trusted")
	}
}

func TestReplacedWhileHashing(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"replaced": func(p string) error {
			if err := os.WriteFile(p+".new", []byte("other"), 0o644); err != nil {
				return err
			}
			return os.Rename(p+".new", p)
		},
		"written to": func(p string) error { return os.WriteFile(p, []byte("other"), 0o644) },
		"removed":    os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "f")
			writeFile(t, path, "content")
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			var st unix.Stat_t
			if err := unix.Fstat(int(f.Fd()), &st); err != nil {
				t.Fatal(err)
			}
			if err := change(path); err != nil {
				t.Fatal(err)
			}
			_, err = hashFile(t.Context(), path, f, stampOf(&st), nil)
			if r, ok := errors.AsType[*Refusal](err); !ok || r.Code != Replaced {
				t.Errorf("%v", err)
			}
		})
	}
}

// A file that is exchanged between its header and its hash is no artifact.
func TestReplacedBetween(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.gguf")
	writeGGUF(t, path, ggufModel("qwen3", 7), blocks(8, 8))
	f, err := locate(Locator{Path: path}, "")
	if err != nil {
		t.Fatal(err)
	}
	before, err := stamps(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := unchanged(f, before); err != nil {
		t.Error(err)
	}
	writeGGUF(t, path, ggufModel("qwen3", 15), blocks(14, 12))
	if r, ok := errors.AsType[*Refusal](unchanged(f, before)); !ok || r.Code != Replaced {
		t.Errorf("%v", unchanged(f, before))
	}
}

func TestHashes(t *testing.T) {
	dir := t.TempDir()
	writeSafetensors(t, filepath.Join(dir, "model.safetensors"), layers(1, plain("BF16")))
	for _, n := range []string{"config.json", "tokenizer.json"} {
		writeFile(t, filepath.Join(dir, n), "{}")
	}
	m, _, err := Open(t.Context(), Locator{Path: dir}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("{}"))
	if got := m.Files[0].SHA256.Or(""); got != hex.EncodeToString(sum[:]) {
		t.Errorf("config.json hashes to %s", got)
	}
	headers, _, err := Open(t.Context(), Locator{Path: filepath.Join(dir, "model.safetensors")}, Options{HeadersOnly: true})
	if err != nil || headers.SHA256 != "" {
		t.Errorf("%v %v", headers.SHA256, err)
	}
}

func TestCancel(t *testing.T) {
	dir := t.TempDir()
	writeSafetensors(t, filepath.Join(dir, "model.safetensors"), layers(1, plain("BF16")))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := Open(ctx, Locator{Path: dir}, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// Hashing asks between two reads whether it may go on, and ends where it may not.
func TestHashingPauses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w")
	if err := os.WriteFile(path, make([]byte, 3*hashChunk), 0o600); err != nil {
		t.Fatal(err)
	}
	refused := errors.New("not now")
	for _, most := range []int{1, 2, 100} {
		asked := 0
		_, err := (&Sums{known: map[stamp]string{}}).all(t.Context(), filepath.Dir(path), []string{"w"}, Options{Workers: 1, Pause: func(context.Context) error {
			if asked++; asked > most {
				return refused
			}
			return nil
		}})
		if ends := most < 100; errors.Is(err, refused) != ends || ends && asked != most+1 || !ends && asked < 3 {
			t.Errorf("asked %d times of %d: %v", asked, most, err)
		}
	}
}
