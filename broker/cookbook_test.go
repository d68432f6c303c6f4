package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write what the commands of docs/grpc.md print into the page")

// masks stand for what differs from run to run.
var masks = []struct {
	what *regexp.Regexp
	mask string
}{
	{regexp.MustCompile(`20\d\d-\d\d-\d\dT[0-9:.]+Z`), "2026-01-01T00:00:00Z"},
	{regexp.MustCompile(`\b[0-9a-f]{64}\b`), strings.Repeat("0", 64)},
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "00000000-0000-0000-0000-000000000000"},
	{regexp.MustCompile(`"/[^"]*/plugins/`), `"/usr/lib/broker/plugins/`},
}

// TestCookbook runs the console blocks of docs/grpc.md in order against a daemon of simulated engines and compares what
// they print with the page. A block is commands as a shell shows them and what they print.
func TestCookbook(t *testing.T) {
	tool := os.Getenv("GRPCURL")
	if tool == "" {
		t.Skip("scripts/grpcurl.sh runs this with grpcurl")
	}
	const page = "../docs/grpc.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	shell := daemonShell(t, tool)
	out := regexp.MustCompile("(?s)```console\n(.*?)```").ReplaceAllStringFunc(string(text), func(block string) string {
		var b strings.Builder
		b.WriteString("```console\n")
		for _, c := range commands(strings.TrimSuffix(strings.TrimPrefix(block, "```console\n"), "```")) {
			b.WriteString("$ " + strings.ReplaceAll(c, "\n", "\n> ") + "\n" + shell(c))
		}
		return b.String() + "```"
	})
	if *update {
		if err := os.WriteFile(page, []byte(out), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(string(text), out); d != "" {
		t.Errorf("docs/grpc.md is not what its commands print (scripts/grpcurl.sh -update):\n%s", d)
	}
}

// commands are the commands of a block: "$ " begins one, "> " directly below goes on with it.
func commands(block string) []string {
	var out []string
	open := false
	for _, line := range strings.Split(block, "\n") {
		if c, ok := strings.CutPrefix(line, "$ "); ok {
			out, open = append(out, c), true
		} else if c, ok := strings.CutPrefix(line, "> "); ok && open {
			out[len(out)-1] += "\n" + c
		} else {
			open = false
		}
	}
	return out
}

// daemonShell starts a daemon and returns what runs a command beside it.
func daemonShell(t *testing.T, tool string) func(string) string {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"broker": self, "grpcurl": tool} {
		if err := os.Symlink(to, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	shipped, err := os.ReadFile("config/simulated.yaml")
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "broker.yaml")
	if err := os.WriteFile(config, fmt.Appendf(shipped, "\nplugins: [%q]\npins: %q\n", plugins, filepath.Join(dir, "pins")), 0o644); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "broker.sock")
	env := append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "SOCKET="+socket, "BROKER_RUNTIME_DIR="+dir, "HOME="+dir)
	d := exec.Command(filepath.Join(bin, "broker"), "serve", "--config", config, "--runs", filepath.Join(dir, "runs"), "--listen", "unix://"+socket)
	d.Env = env
	stderr, err := d.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan string, 1)
	go func() {
		var log strings.Builder
		buf := make([]byte, 4096)
		for {
			n, err := stderr.Read(buf)
			log.Write(buf[:n])
			if err != nil || strings.Contains(log.String(), "serving unix://") {
				select {
				case ready <- log.String():
				default:
				}
			}
			if err != nil {
				return
			}
		}
	}()
	if log := <-ready; !strings.Contains(log, "serving") {
		t.Fatalf("the daemon does not serve:\n%s", log)
	}
	t.Cleanup(func() {
		_ = d.Process.Signal(os.Interrupt)
		_ = d.Wait() // ends with the code of an interrupted command or 0; the scripts test which
	})
	return func(command string) string {
		c := exec.Command("bash", "-c", command)
		c.Dir, c.Env = dir, env
		out, _ := c.CombinedOutput() // commands that fail are part of the page
		text := strings.ReplaceAll(string(out), dir, "/run/broker")
		for _, m := range masks {
			text = m.what.ReplaceAllString(text, m.mask)
		}
		if text != "" && !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		return strings.ReplaceAll(text, "\t", "  ")
	}
}
