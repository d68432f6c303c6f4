package main

import (
	"fmt"
	"regexp"

	"enginebroker/engines/adapter"
	"enginebroker/engines/openai"
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
