package main

import (
	"context"
	"fmt"
	"regexp"

	"enginebroker/engines/adapter"
	"enginebroker/engines/openai"
	"enginebroker/engines/process"
)

// locate finds the binary; the error is an *adapter.NotInstalled. There is no default place: the server is built by hand and
// is called "server".
func locate(v openai.Values) (string, error) {
	binary := v.Path("binary")
	no := func(looked, why string) (string, error) {
		return "", &adapter.NotInstalled{Err: fmt.Errorf("vllm.cpp's server is not installed: %s", why), Looked: []string{looked}, Fix: "set binary"}
	}
	if binary == "" {
		return no("setting binary (build/examples/server of a vllm.cpp build)", "no binary is named")
	}
	if !adapter.Executable(binary) {
		return no(binary, binary+" is no executable file")
	}
	return binary, nil
}

// images is the command of the server in an image: a program called server in its PATH, or its entrypoint.
var images = [][]string{{"server"}}

// found is the program, and how it is asked for its flags: an installed one, or that of an image, which is launched there.
func found(v openai.Values, image *process.Container) (binary string, ask func(context.Context) (string, error), err error) {
	if image != nil {
		return "", func(ctx context.Context) (string, error) { return image.Help(ctx, nil, "--help") }, nil
	}
	binary, err = locate(v)
	return binary, func(ctx context.Context) (string, error) { return adapter.Ask(ctx, binary, "--help") }, err
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
