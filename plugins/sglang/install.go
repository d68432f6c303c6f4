package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"

	"enginebroker/engines/adapter"
	"enginebroker/engines/fingerprint"
	"enginebroker/engines/openai"
	"enginebroker/engines/process"
	"enginebroker/matrix"
)

// place is where SGLang is looked for; its program is the interpreter.
var place = adapter.Place{Engine: "SGLang", Program: "bin/python", Script: "sglang", Variable: "SGLANG", Default: ".engines/sglang/venv",
	Dists: []string{"sglang"}, Fix: "set venv or python"}

// install is one Python environment that holds SGLang.
type install struct{ adapter.Python }

// images are the commands of SGLang's server. Its own images have no server as entrypoint.
var images = [][]string{{"python3", "-m", launcher}, {"python", "-m", launcher}, {"sglang", "serve"}}

// locate finds the environment, in the image where there is one.
func locate(ctx context.Context, v openai.Values, image *process.Container) (install, error) {
	if image != nil {
		in, err := place.Inside(ctx, image)
		return install{in}, err
	}
	in, err := place.Find(v.Path("python"), v.Path("venv"))
	return install{in}, err
}

func (in install) onDisk(ctx context.Context, sum fingerprint.Sum) (matrix.Facts, error) {
	key, err := in.key()
	if err != nil {
		return nil, err
	}
	return in.OnDisk(ctx, kind, key, in.Site+": distributions and their RECORD", sum)
}

// cpu reports that the server must run without a GPU: by the setting, else because no NVIDIA device is visible, or given to
// the container. One package serves both.
func cpu(v openai.Values, image *process.Container) bool {
	switch v.Text("device") {
	case "cpu":
		return true
	case "cuda":
		return false
	}
	if image != nil {
		return image.GPU == ""
	}
	if visible, set := os.LookupEnv("CUDA_VISIBLE_DEVICES"); set && (visible == "" || visible == "-1") {
		return true
	}
	_, err := os.Stat("/dev/nvidiactl")
	return err != nil
}

// key identifies the installed build on disk. It names private caches, and the build before anything runs.
func (in install) key() (string, error) { return in.Key(in.digest) }

// digest is that of every distribution's version, of the list of SGLang's own files with their hashes, and of its kernels,
// which may be a stand-in.
func (in install) digest() (string, error) {
	record, err := os.ReadFile(filepath.Join(in.DistInfo("sglang"), "RECORD"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	kernel, err := os.ReadFile(filepath.Join(in.Site, "sgl_kernel/__init__.py"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	sum := func(b []byte) string { s := sha256.Sum256(b); return hex.EncodeToString(s[:]) }
	return matrix.Digest([]any{in.Dists, sum(record), sum(kernel)})
}

// launcher is the module that every build has; newer ones name "sglang serve" beside it.
const launcher = "sglang.launch_server"

// flags are the flags this build knows.
func (in install) flags(ctx context.Context, cacheDir string, cpu bool) (adapter.Build, error) {
	key, err := in.key()
	if err != nil {
		return adapter.Build{}, err
	}
	device := map[bool]string{true: "1", false: "0"}[cpu]
	h := adapter.Help{Command: []string{in.Program, "-m", launcher, "--help"}, Image: in.Image, Env: map[string]string{"SGLANG_USE_CPU_ENGINE": device}, Key: key, Must: "--context-length"}
	if in.Image != nil {
		h.Command = []string{"--help"}
	}
	return h.Read(ctx, cacheDir)
}

// command is the command line up to the flags; of an image it is what goes before them.
func (in install) command() []string {
	if in.Image != nil {
		return nil
	}
	return []string{in.Program, "-m", launcher}
}
