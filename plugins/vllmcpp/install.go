package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"time"

	"enginebroker/engines/openai"
)

var errNotInstalled = errors.New("vllm.cpp's server is not installed")

// locate finds the binary. There is no default place: the server is built by hand and is called "server".
func locate(v openai.Values) (binary string, looked []string, err error) {
	binary = v.Path("binary")
	if binary == "" {
		return "", []string{"setting binary (build/examples/server of a vllm.cpp build)"}, fmt.Errorf("%w: no binary is named", errNotInstalled)
	}
	info, err := os.Stat(binary)
	if err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
		return "", []string{binary}, fmt.Errorf("%w: %s is no executable file", errNotInstalled, binary)
	}
	return binary, []string{binary}, nil
}

// queryLimit bounds --help and --version.
const queryLimit = 3 * time.Second

// ask runs the server with one argument that makes it print and exit.
func ask(ctx context.Context, binary, arg string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, queryLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, arg)
	cmd.Env, cmd.Dir, cmd.WaitDelay = []string{}, os.TempDir(), time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %.300s", binary, arg, err, bytes.TrimSpace(out))
	}
	return string(out), nil
}

var flagName = regexp.MustCompile(`--(\[no-\])?([a-z][a-z0-9]*(?:-[a-z0-9]+)*)`)

// parseHelp reads the flags a build knows; --[no-]x stands for both.
func parseHelp(help string) map[string]bool {
	flags := map[string]bool{}
	for _, m := range flagName.FindAllStringSubmatch(help, -1) {
		flags["--"+m[2]] = true
		if m[1] != "" {
			flags["--no-"+m[2]] = true
		}
	}
	return flags
}

var versionLine = regexp.MustCompile(`vllm\.cpp (\S+) c-abi=(\d+)`)

// parseVersion reads --version of the builds that have it: "vllm.cpp 0.0.1+cuda c-abi=26".
func parseVersion(out string) (version, abi string, err error) {
	m := versionLine.FindStringSubmatch(out)
	if m == nil {
		return "", "", fmt.Errorf("--version not understood: %.120q", out)
	}
	return m[1], m[2], nil
}
