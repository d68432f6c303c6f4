package cli

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"enginebroker/broker/service"
)

// The exit code that a daemon tells with a failure is the one that the command line ends with.
func TestExitCodesAreThoseOfTheService(t *testing.T) {
	for _, r := range service.Causes {
		if got := exitCode(&service.Error{Cause: r.Cause, Err: errors.New("x")}); got != r.Exit {
			t.Errorf("%s: the command line exits with %d, a daemon says %d", r.Cause, got, r.Exit)
		}
	}
}

// What works on this machine alone is never done here for somebody who named another one.
func TestCommandsOfThisMachineAlone(t *testing.T) {
	run := func(args ...string) (int, string) {
		var out bytes.Buffer
		code := Run(t.Context(), Env{Args: args, Stdout: &out, Stderr: &out, Stdin: strings.NewReader(""), Getenv: func(string) string { return "" }})
		return code, out.String()
	}
	for _, words := range []string{"doctor", "box watch", "serve", "stream x", "protocol check x", "protocol calibrate", "calibrate", "corpus list",
		"claims list", "import x"} {
		args := strings.Fields(words)
		path := "broker " + strings.TrimSuffix(words, " x")
		if code, out := run(append([]string{"--server", "unix:///nowhere"}, args...)...); code != ExitUsage || !strings.Contains(out, path+" works on this machine alone") {
			t.Errorf("%s: exit %d, %s", words, code, out)
		}
	}
	for _, args := range [][]string{{"--server=", "models"}, {"models", "--server", ""}} {
		if code, out := run(args...); code != ExitUsage || !strings.Contains(out, "--server is empty") {
			t.Errorf("%q: exit %d, %s", args, code, out)
		}
	}
}
