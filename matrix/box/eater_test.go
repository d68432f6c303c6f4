package box

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"enginebroker/matrix"
)

// eaterEnv makes the test binary a process that takes so many MiB, once it is told to on its standard input.
const eaterEnv = "BROKER_TEST_EAT_MIB"

func eat(mib string) {
	n, err := strconv.Atoi(mib)
	if err != nil {
		panic(err)
	}
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n') // a closed pipe starts it too
	var held [][]byte
	for range n {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		held = append(held, b)
	}
	fmt.Println(len(held))
}

// A real process runs into the real limit of a control group, and the record says so by name.
func TestKilledByARealControlGroup(t *testing.T) {
	dir := memoryGroup(t, 128<<20)
	b, err := Open(t.Context(), Options{Profile: "cpu", RuntimeDir: t.TempDir(), Guard: Guard{FloorKiB: 1}})
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	engine := exec.Command(exe)
	engine.Env = append(os.Environ(), eaterEnv+"=512")
	start, err := engine.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := engine.Start(); err != nil {
		t.Fatal(err)
	}
	pid := engine.Process.Pid
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644); err != nil {
		engine.Process.Kill()
		engine.Wait()
		t.Skipf("a process cannot be moved into a control group here: %v", err)
	}
	w, err := b.Watch(t.Context(), func() []int { return []int{pid} }, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	start.Close()
	err = engine.Wait()
	if err == nil {
		t.Fatal("512 MiB fit into 128")
	}
	if who := w.Killed(matrix.Process{PID: pid}); !strings.HasPrefix(who, "its control group's memory limit ("+dir) {
		t.Errorf("it ended by %v, killed by %q", err, who)
	}
	if w.Trip().Present() {
		t.Error("the memory guard claims it")
	}
}

// memoryGroup makes a control group with a memory limit below this process's own, of version 2 or 1.
func memoryGroup(t *testing.T, limit int) string {
	t.Helper()
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Skipf("no control groups: %v", err)
	}
	for l := range strings.Lines(string(own)) {
		f := strings.SplitN(strings.TrimSpace(l), ":", 3)
		if len(f) != 3 {
			continue
		}
		var dir, file string
		switch {
		case f[0] == "0":
			dir, file = filepath.Join("/sys/fs/cgroup", f[2]), "memory.max"
		case f[1] == "memory":
			dir, file = filepath.Join("/sys/fs/cgroup/memory", f[2]), "memory.limit_in_bytes"
		default:
			continue
		}
		dir = filepath.Join(dir, "enginebroker-test-"+strconv.Itoa(os.Getpid()))
		if err = os.Mkdir(dir, 0o755); err != nil {
			continue
		}
		t.Cleanup(func() { os.Remove(dir) })
		if err = os.WriteFile(filepath.Join(dir, file), []byte(strconv.Itoa(limit)), 0); err == nil {
			return dir
		}
	}
	t.Skipf("no control group with a memory limit can be made here (%v): run as root, or in a delegated group", err)
	return ""
}
