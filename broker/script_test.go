package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// plugins is where TestMain builds the adapters; scripts see it as $PLUGINS.
var plugins string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "broker-plugins-")
	if err != nil {
		panic(err)
	}
	plugins = filepath.Join(dir, "plugins")
	// The command re-executes this test binary; it must not build again.
	if filepath.Base(os.Args[0]) != "broker" {
		build := exec.Command("go", "build", "-tags=grpcnotrace", "-o", plugins+string(os.PathSeparator), "../plugins/simulated", "../plugins/llamacpp", "../plugins/vllm", "../plugins/sglang", "../plugins/vllmcpp", "./testdata/boxed")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%s%v\n", out, err)
			os.Exit(1)
		}
		telemetry := exec.Command("go", "build", "-tags=grpcnotrace", "-ldflags", "-s -w -extldflags=-Wl,-z,lazy", "-o", filepath.Join(plugins, "nvml"), "../plugins/nvml")
		telemetry.Env = append(os.Environ(), "CGO_CFLAGS=-w") // scripts that need NVML skip where there is no C compiler
		if out, err := telemetry.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%s%v\n", out, err)
			os.Exit(1)
		}
	}
	defer os.RemoveAll(dir)
	testscript.Main(m, map[string]func(){"broker": main})
}

// TestScripts runs the real binary by the scripts in testdata/script.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			shipped, err := filepath.Abs("config/simulated.yaml")
			if err != nil {
				return err
			}
			e.Setenv("REPO", filepath.Dir(filepath.Dir(filepath.Dir(shipped))))
			e.Setenv("PLUGINS", plugins)
			e.Setenv("SIMULATED", shipped)
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("BROKER_RUNTIME_DIR", filepath.Join(e.WorkDir, "runtime")) // scripts run side by side; the box's lock is tested in matrix/box
			return nil
		},
	})
}
