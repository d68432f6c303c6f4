package artifact

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"enginebroker/matrix"
)

func TestParseLocator(t *testing.T) {
	for in, want := range map[string]Locator{
		"/models/x":                        {Path: "/models/x"},
		"hf:Qwen/Qwen3.8-27B@1d4bf0f2":     {Repository: "Qwen/Qwen3.8-27B", Revision: "1d4bf0f2"},
		"hf:a/b-GGUF@main:b-Q4_K_M.gguf":   {Repository: "a/b-GGUF", Revision: "main", File: "b-Q4_K_M.gguf"},
		"hf:nvidia/Qwen3.6-27B-NVFP4@pr/1": {Repository: "nvidia/Qwen3.6-27B-NVFP4", Revision: "pr/1"},
	} {
		got, err := ParseLocator(in)
		if err != nil || got != want || got.String() != in {
			t.Errorf("%s: %+v %v", in, got, err)
		}
	}
	for _, bad := range []string{"", "hf:Qwen/Qwen3", "hf:Qwen@main", "hf:../etc@main", "hf:a/b@../../x", "hf:a/b@/etc", "hf:a/b/c@main", "hf:a/b@main:../x"} {
		if got, err := ParseLocator(bad); err == nil {
			t.Errorf("%q was taken for %+v", bad, got)
		}
	}
}

func TestHubDir(t *testing.T) {
	env := map[string]string{"HOME": "/home/u"}
	get := func(k string) string { return env[k] }
	for _, step := range []struct{ set, to, want string }{
		{"HOME", "/home/u", "/home/u/.cache/huggingface/hub"}, {"XDG_CACHE_HOME", "/x", "/x/huggingface/hub"}, {"HF_HOME", "/hf", "/hf/hub"},
		{"HUGGINGFACE_HUB_CACHE", "/old", "/old"}, {"HF_HUB_CACHE", "/hub", "/hub"},
	} {
		env[step.set] = step.to
		if got := HubDir(get); got != step.want {
			t.Errorf("with %s: %s, want %s", step.set, got, step.want)
		}
	}
	if got := HubDir(func(string) string { return "" }); got != "" {
		t.Errorf("of no environment: %s", got)
	}
}

const (
	commitA = "1d4bf0f2a0000000000000000000000000000000"
	commitB = "1d4bf0f2b0000000000000000000000000000000"
)

// hub makes a cache as huggingface_hub lays it out: blobs by hash, snapshots of links, refs.
func hub(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "hub[1]") // which a pattern would not match
	repo := filepath.Join(dir, "models--Qwen--Qwen3.8-27B")
	for _, commit := range []string{commitA, commitB} {
		blob := filepath.Join(repo, "blobs", "blob-"+commit)
		writeSafetensors(t, blob, layers(1, plain("BF16")))
		link(t, "../../blobs/blob-"+commit, filepath.Join(repo, "snapshots", commit, "model.safetensors"))
	}
	writeFile(t, filepath.Join(repo, "refs/main"), commitA+"\n")
	writeFile(t, filepath.Join(repo, "refs/pr/1"), commitB)
	return dir
}

func link(t *testing.T, to, at string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(to, at); err != nil {
		t.Fatal(err)
	}
}

// What names no place is not the working folder, even where a checkpoint lies in it.
func TestNoPlace(t *testing.T) {
	dir := t.TempDir()
	writeSafetensors(t, filepath.Join(dir, "model.safetensors"), layers(1, plain("BF16")))
	t.Chdir(dir)
	m, _, err := Open(t.Context(), Locator{}, Options{})
	if r, ok := errors.AsType[*Refusal](err); !ok || r.Code != NotFound {
		t.Errorf("%+v %v", m, err)
	}
}

func TestHubSnapshot(t *testing.T) {
	dir := hub(t)
	open := func(rev string) (matrix.Manifest, *Report, error) {
		return Open(t.Context(), Locator{Repository: "Qwen/Qwen3.8-27B", Revision: rev}, Options{HubDir: dir})
	}
	for rev, want := range map[string]string{"main": commitA, "pr/1": commitB, commitB: commitB, commitA[:9]: commitA} {
		m, r, err := open(rev)
		if err != nil || r.Revision != want || m.Quantization != "bf16" || m.Files[0].Path != "model.safetensors" {
			t.Errorf("%s: %+v %v", rev, r, err)
		}
	}
	for rev, want := range map[string]struct {
		code Code
		says string
	}{
		"1d4bf0f2": {Ambiguous, "several snapshots begin with"},
		"a767244d": {NotFound, "it holds " + commitA + ", " + commitB}, // a revision that vanished (bugs.md N30)
		"v2":       {NotFound, "hf download Qwen/Qwen3.8-27B --revision v2"},
	} {
		_, _, err := open(rev)
		if r, ok := errors.AsType[*Refusal](err); !ok || r.Code != want.code || !strings.Contains(err.Error(), want.says) {
			t.Errorf("%s: %v", rev, err)
		}
	}
	if _, _, err := Open(t.Context(), Locator{Repository: "Qwen/Other", Revision: "main"}, Options{HubDir: dir}); err == nil {
		t.Error("a repository that is not there was opened")
	}
	if _, _, err := Open(t.Context(), Locator{Repository: "Qwen/Other", Revision: "main"}, Options{}); err == nil {
		t.Error("a repository was opened without a cache")
	}

	// A repository of several GGUFs, one of them named; the file keeps its name, not its blob's.
	writeGGUF(t, filepath.Join(dir, "models--a--b-GGUF/blobs/one"), ggufModel("qwen3", 7), blocks(8, 8))
	for _, name := range []string{"b-Q8_0.gguf", "b-Q8_0-again.gguf"} {
		link(t, "../../blobs/one", filepath.Join(dir, "models--a--b-GGUF/snapshots", commitA, name))
	}
	loc, err := ParseLocator("hf:a/b-GGUF@" + commitA + ":b-Q8_0.gguf")
	if err != nil {
		t.Fatal(err)
	}
	if m, r, err := Open(t.Context(), loc, Options{HubDir: dir}); err != nil || len(m.Files) != 1 || m.Files[0].Path != "b-Q8_0.gguf" || len(m.Contradicts) != 0 {
		t.Errorf("%+v %+v %v", m, r, err)
	}
	loc.File = ""
	if _, _, err := Open(t.Context(), loc, Options{HubDir: dir}); err == nil || !strings.Contains(err.Error(), "several GGUF models") {
		t.Errorf("%v", err)
	}

	// bugs.md N14: one unfinished blob refuses the whole repository.
	writeFile(t, filepath.Join(dir, "models--Qwen--Qwen3.8-27B/blobs/abc.incomplete"), "1234567")
	_, _, err = open("main")
	if r, ok := errors.AsType[*Refusal](err); !ok || r.Code != Incomplete || !strings.Contains(err.Error(), "7 bytes are there") {
		t.Errorf("unfinished blob: %v", err)
	}
}

// A blob is named by the sha256 of its content; a file that is not what its name says is corrupt.
func TestHubBlobNames(t *testing.T) {
	dir := t.TempDir()
	repo := filepath.Join(dir, "models--a--b")
	name := strings.Repeat("0", 64)
	writeSafetensors(t, filepath.Join(repo, "blobs", name), layers(1, plain("BF16")))
	link(t, "../../blobs/"+name, filepath.Join(repo, "snapshots", commitA, "model.safetensors"))
	_, _, err := Open(t.Context(), Locator{Repository: "a/b", Revision: commitA}, Options{HubDir: dir})
	if r, ok := errors.AsType[*Refusal](err); !ok || r.Code != Corrupt {
		t.Errorf("%v", err)
	}
}

func TestPathRefusals(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	writeFile(t, at("empty/README.md"), "no weights")
	writeGGUF(t, at("several/a-Q8_0.gguf"), ggufModel("qwen3", 7), blocks(8, 8))
	writeGGUF(t, at("several/b-Q4_K_M.gguf"), ggufModel("qwen3", 15), blocks(14, 12))
	writeGGUF(t, at("both/a.gguf"), ggufModel("qwen3", 7), blocks(8, 8))
	writeSafetensors(t, at("both/model.safetensors"), layers(1, plain("BF16")))
	writeFile(t, at("left/model.safetensors.incomplete"), "")
	writeFile(t, at("pieces/model.gguf.part01"), "")
	link(t, "loop", at("loop"))
	link(t, at("nowhere"), at("dangling/model.safetensors"))
	link(t, "self.gguf", at("inner/self.gguf"))
	for name, err := range map[string]error{"pipe": unix.Mkfifo(at("pipe"), 0o600), "m-2": unix.Mkfifo(at("pieces/m-00002-of-00002.gguf"), 0o600)} {
		if err != nil {
			t.Fatal(name, err)
		}
	}
	writeSafetensors(t, at("device/model.safetensors"), layers(1, plain("BF16")))
	link(t, "/dev/zero", at("device/tokenizer.json"))
	link(t, at("pipe"), at("piped/model.safetensors"))
	writeGGUF(t, at("pieces/m-00001-of-00002.gguf"), append(ggufModel("qwen3", 7), kv{"split.no", uint16(0)}, kv{"split.count", uint16(2)}), blocks(8, 8))
	writeSafetensors(t, at("few/model-00001-of-00002.safetensors"), layers(1, plain("BF16")))
	writeSafetensors(t, at("one/model-00001-of-00002.safetensors"), layers(1, plain("BF16")))
	writeSafetensors(t, at("one/model-00002-of-00002.safetensors"), layers(1, plain("BF16")))
	writeSafetensors(t, at("hidden/model.safetensors"), layers(1, plain("BF16")))
	writeFile(t, at("hidden/.cache/huggingface/download/sub/x.incomplete"), "")
	writeSafetensors(t, at("repo/snapshots/a/model.safetensors"), layers(1, plain("BF16")))
	writeFile(t, at("repo/blobs/x.incomplete"), "")
	for name, want := range map[string]struct {
		code Code
		says string
	}{
		"absent":                               {NotFound, "does not exist"},
		"empty":                                {NotFound, "no .safetensors and no .gguf"},
		"several":                              {Ambiguous, "a-Q8_0.gguf, b-Q4_K_M.gguf"},
		"both":                                 {Ambiguous, "both safetensors and GGUF"},
		"left":                                 {Incomplete, "finish the download"},
		"pieces/model.gguf.part01":             {Incomplete, "cat model.gguf.part* > model.gguf"},
		"loop":                                 {LinkLoop, "loop"},
		"dangling":                             {Incomplete, "nowhere, which is not there"},
		"inner":                                {LinkLoop, "remove the loop"},
		"left/model.safetensors.incomplete":    {Incomplete, "unfinished"},
		"pipe":                                 {Unreadable, "neither a file nor a directory"},
		"piped":                                {Unreadable, "pipe, which is no regular file"},
		"device":                               {Unreadable, "/dev/zero, which is no regular file"},
		"pieces/m-00001-of-00002.gguf":         {Unreadable, "a named pipe is no regular file"},
		"few":                                  {Incomplete, "1 of 2 parts are absent"},
		"one/model-00001-of-00002.safetensors": {Incomplete, "name the directory"},
		"hidden":                               {Incomplete, "finish the download"},
		"repo/snapshots/a":                     {Incomplete, "finish the download"},
	} {
		_, _, err := Open(t.Context(), Locator{Path: at(name)}, Options{HeadersOnly: true})
		if r, ok := errors.AsType[*Refusal](err); !ok || r.Code != want.code || !strings.Contains(err.Error(), want.says) {
			t.Errorf("%s: %v, want %s %q", name, err, want.code, want.says)
		}
	}
}

// A directory with one model and its projector is that model; links on the way are reported.
func TestDirectoryAndLinks(t *testing.T) {
	dir := t.TempDir()
	writeGGUF(t, filepath.Join(dir, "real/model-Q8_0.gguf"), ggufModel("qwen3", 7), blocks(8, 8))
	writeGGUF(t, filepath.Join(dir, "real/mmproj-BF16.gguf"), []kv{{"general.architecture", "clip"}}, []ggufEntry{{"v.w", 30, []uint64{32}}})
	link(t, "real", filepath.Join(dir, "link"))
	m, r, err := Open(t.Context(), Locator{Path: filepath.Join(dir, "link")}, Options{})
	if err != nil || len(m.Files) != 1 || r.Kind != KindModel || m.Architecture != "qwen3" {
		t.Fatalf("%+v %v", m, err)
	}
	if want := []string{filepath.Join(dir, "link") + " -> real"}; !slices.Equal(r.Links, want) || r.Root != filepath.Join(dir, "real") {
		t.Errorf("links %v to %s, want %v", r.Links, r.Root, want)
	}
}

// bugs.md N25: a file that cannot be read refuses the whole artifact, and says whose it is and what to run.
func TestUnreadable(t *testing.T) {
	dir := t.TempDir()
	writeSafetensors(t, filepath.Join(dir, "model.safetensors"), layers(1, plain("BF16")))
	writeFile(t, filepath.Join(dir, "tokenizer.json"), "{}")
	if err := os.Chmod(filepath.Join(dir, "tokenizer.json"), 0); err != nil {
		t.Fatal(err)
	}
	asNobody(t, dir, func() {
		m, r, err := Open(t.Context(), Locator{Path: dir}, Options{HeadersOnly: true})
		f, ok := errors.AsType[*Refusal](err)
		if !ok || f.Code != Unreadable || f.Owner != matrix.Some(os.Getuid()) || !strings.Contains(f.Fix, "sudo chown") || len(m.Files) != 0 || r != nil {
			t.Errorf("%+v %v", m, err)
		}
	})
}

// asNobody runs f without the privilege to read everything, which root has; the thread that f locks dies with its privileges
// changed.
func asNobody(t *testing.T, dir string, f func()) {
	t.Helper()
	if os.Getuid() != 0 {
		f()
		return
	}
	for d := dir; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if _, err := unix.SetfsuidRetUid(65534); err != nil {
			t.Error(err)
			return
		}
		f()
	}()
	<-done
}
