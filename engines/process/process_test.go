package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"enginebroker/matrix"
)

// stub is the built misbehaving server.
var stub string

func TestMain(m *testing.M) {
	if path := os.Getenv("PROCESS_TEST_PARENT"); path != "" {
		parent(path)
		return
	}
	dir, err := os.MkdirTemp("", "stub-")
	if err != nil {
		panic(err)
	}
	stub = filepath.Join(dir, "stub")
	if out, err := exec.Command("go", "build", "-o", stub, "./testdata/stub").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build of the stub: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	removeImages()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// spec is a load of the stub with a port of its own.
func spec(t *testing.T, mode string) Spec {
	t.Helper()
	port, err := FreePort("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	return Spec{
		LoadID: strings.ReplaceAll(t.Name(), "/", "-") + "-" + strconv.Itoa(port), Argv: []string{stub, "-port", strconv.Itoa(port), "-mode", mode},
		Host: "127.0.0.1", Port: port, LogPath: filepath.Join(dir, "log"), StatePath: filepath.Join(dir, "state"),
	}
}

// up starts the stub and waits for a line of its log.
func up(t *testing.T, s Spec, line string) Tree {
	t.Helper()
	tree, err := Local{}.Start(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := tree.Stop(context.Background(), 5*time.Second); err != nil {
			t.Error(err)
		}
	})
	children := 0
	for _, m := range strings.Split(s.Argv[len(s.Argv)-1], ",") {
		if m == "fork" || m == "worker" {
			children++
		}
	}
	eventually(t, func() bool {
		tail, _ := tree.LogTail(50)
		up := 0
		for _, l := range tail {
			if l == "stub: child up" {
				up++
			}
		}
		return slices.Contains(tail, line) && up == children
	})
	return tree
}

func eventually(t *testing.T, done func() bool) {
	t.Helper()
	for until := time.Now().Add(20 * time.Second); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("did not happen")
		}
	}
}

func alive(p matrix.Process) bool {
	s, err := readStat(p.PID)
	return err == nil && s.start == p.StartTime && !s.zombie
}

func TestStopProvesGone(t *testing.T) {
	for _, c := range []struct {
		mode    string
		members int
		how     string
		exit    int
	}{
		{"listen", 1, "term", 0},
		{"listen,ignoreterm", 1, "kill", 137},
		{"listen,fork", 2, "kill", 0},       // E01, E02: reparented, renamed, own session
		{"listen,fork,strip", 2, "kill", 0}, // and without the marker in its environment
		{"listen,worker", 2, "kill", 0},     // outlives its parent
		{"listen,fork,worker,ignoreterm", 3, "kill", 137},
	} {
		t.Run(c.mode, func(t *testing.T) {
			s := spec(t, c.mode)
			tree := up(t, s, "stub: up")
			var members []matrix.Process
			eventually(t, func() bool {
				var err error
				if members, err = tree.Processes(); err != nil {
					t.Fatal(err)
				}
				return len(members) == c.members
			})
			if members[0].PID != tree.Launched().Root.PID {
				t.Errorf("root is not first: %v", members)
			}
			got, err := tree.Stop(t.Context(), 3*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			if !got.Gone() || got.How != c.how || got.Exit != matrix.Some(c.exit) {
				t.Errorf("stopped %+v, want how %s, exit %d, gone", got, c.how, c.exit)
			}
			for _, p := range members {
				if alive(p) {
					t.Errorf("pid %d is alive", p.PID)
				}
			}
			if err := CheckPortFree(s.Host, s.Port); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(s.StatePath); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the state file of a tree proved gone is still there: %v", err)
			}
		})
	}
}

func TestStopOfAKilledRoot(t *testing.T) {
	tree := up(t, spec(t, "listen,worker"), "stub: up")
	root := tree.Launched().Root
	if err := unix.Kill(root.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-tree.Done()
	exit, _ := tree.Exit().Get()
	if exit.String() != "SIGKILL, sender unknown" || exit.Code != 137 {
		t.Errorf("exit %q %d", exit, exit.Code)
	}
	if left, err := tree.Processes(); err != nil || len(left) != 1 {
		t.Fatalf("the worker that outlived its parent was not found: %v %v", left, err)
	}
	got, err := tree.Stop(t.Context(), 3*time.Second)
	if err != nil || !got.Gone() {
		t.Errorf("%+v %v", got, err)
	}
	again, err := tree.Stop(t.Context(), time.Second)
	if err != nil || again.How != got.How {
		t.Errorf("second stop: %+v %v", again, err)
	}
}

func TestEnvironmentDirectoryAndStdin(t *testing.T) {
	t.Setenv("LLAMA_ARG_CTX_SIZE", "1")
	t.Setenv("PYTHONPATH", "/nowhere")
	t.Setenv("UNRELATED", "1")
	t.Setenv("MY_ENGINE_KNOB", "7")
	s := spec(t, "env")
	s.Env = map[string]string{"GGML_BACKEND_PATH": "/x.so"}
	s.Inherit = []string{"MY_ENGINE_*"}
	tree := up(t, s, "stub: up")
	tail, err := tree.LogTail(400)
	if err != nil {
		t.Fatal(err)
	}
	log := strings.Join(tail, "\n")
	for _, want := range []string{"env GGML_BACKEND_PATH=/x.so", "env MY_ENGINE_KNOB=7", "env " + MarkerName + "=" + s.LoadID, "env PATH="} {
		if !strings.Contains(log, want) {
			t.Errorf("the server lacks %s", want)
		}
	}
	for _, not := range []string{"LLAMA_ARG", "PYTHONPATH", "UNRELATED"} {
		if strings.Contains(log, not) {
			t.Errorf("the server inherited %s", not)
		}
	}
	if w := tree.Launched().Scrubbed; !slices.Contains(w, "LLAMA_ARG_CTX_SIZE") || !slices.Contains(w, "PYTHONPATH") || slices.Contains(w, "UNRELATED") {
		t.Errorf("withheld %v", w)
	}
	cwd, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", tree.Launched().Root.PID))
	if entries, err := os.ReadDir(cwd); err != nil || len(entries) != 0 {
		t.Errorf("working directory %s: %v %v", cwd, entries, err)
	}
	if stdin, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/0", tree.Launched().Root.PID)); stdin != os.DevNull {
		t.Errorf("stdin is %s", stdin)
	}
}

// A later start finds by the state file what an earlier process left, and stops exactly that.
func TestRecoverAfterTheParentWasKilled(t *testing.T) {
	s := spec(t, "listen,fork,worker")
	bystander := exec.Command(stub, "-mode", "listen", "-port", "0")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = bystander.Process.Kill()
		_ = bystander.Wait()
	}()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "PROCESS_TEST_PARENT="+filepath.Dir(s.LogPath), "STUB="+stub, "PORT="+strconv.Itoa(s.Port), "LOAD="+s.LoadID)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		st, err := ReadState(s.StatePath)
		tail, _ := Tail(s.LogPath, 10)
		up := slices.DeleteFunc(tail, func(l string) bool { return l != "stub: child up" })
		return err == nil && st.Root.Present() && len(up) == 2
	})
	if _, err := (Local{}).Start(t.Context(), s); err == nil || !strings.Contains(err.Error(), "recover it first") {
		t.Errorf("a start over the state file of another: %v", err)
	}
	st, _ := ReadState(s.StatePath)
	root, _ := st.Root.Get()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	eventually(t, func() bool { return !alive(root) }) // killed with its parent

	got, err := Local{}.Recover(t.Context(), s.StatePath, 3*time.Second)
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if got.How != "kill" || !got.Gone() {
		t.Errorf("%+v: the worker and the grandchild ignore SIGTERM", got)
	}
	all, err := readAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if !p.zombie && marker(p.pid) == s.LoadID {
			t.Errorf("pid %d of the load is alive", p.pid)
		}
	}
	if err := bystander.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("a process that is not ours was stopped: %v", err)
	}
	for _, path := range []string{s.StatePath, st.Dir} {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s after recovery: %v", path, err)
		}
	}
	if again, err := (Local{}).Recover(t.Context(), s.StatePath, time.Second); err != nil || again.How != "gone_before" {
		t.Errorf("second recovery: %+v %v", again, err)
	}
}

// parent starts a stub and waits to be killed.
func parent(dir string) {
	port, _ := strconv.Atoi(os.Getenv("PORT"))
	_, err := Local{}.Start(context.Background(), Spec{
		LoadID: os.Getenv("LOAD"), Argv: []string{os.Getenv("STUB"), "-port", os.Getenv("PORT"), "-mode", "listen,fork,worker"},
		Host: "127.0.0.1", Port: port, LogPath: filepath.Join(dir, "log"), StatePath: filepath.Join(dir, "state"),
	})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	time.Sleep(time.Hour)
}

func TestRecoverRefusesWhatItCannotRead(t *testing.T) {
	for name, text := range map[string]string{"torn": `{"load_id":"x`, "empty": "", "no boot": `{"load_id":"x"}`} {
		path := filepath.Join(t.TempDir(), "state")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := (Local{}).Recover(t.Context(), path, time.Second); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRecoverKeepsStrangers(t *testing.T) {
	self, err := readStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	boot, err := BootID()
	if err != nil {
		t.Fatal(err)
	}
	for name, st := range map[string]State{
		"other boot":                {LoadID: "x", BootID: "another", Root: matrix.Some(matrix.Process{PID: self.pid, StartTime: self.start})},
		"number reused":             {LoadID: "x", BootID: boot, Root: matrix.Some(matrix.Process{PID: self.pid, StartTime: self.start + 1})},
		"number reused by a leader": {LoadID: "x", BootID: boot, Root: matrix.Some(matrix.Process{PID: self.session, StartTime: 1})},
	} {
		path := filepath.Join(t.TempDir(), "state")
		if err := st.write(path); err != nil {
			t.Fatal(err)
		}
		if got, err := (Local{}).Recover(t.Context(), path, time.Second); err != nil || got.How != "gone_before" {
			t.Errorf("%s: %+v %v", name, got, err)
		}
	}
}

func ready(ctx context.Context, port int) error {
	for {
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+strconv.Itoa(port), nil)
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			resp.Body.Close()
			http.DefaultClient.CloseIdleConnections()
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func start(s Spec) Start {
	return Start{
		Runtime: Local{}, Spec: s, Limit: 20 * time.Second, Cleanup: time.Second,
		Causes: []Cause{
			{Pattern: regexp.MustCompile(`out of memory`), Code: "limits", Fix: "use a smaller context"},
			{Pattern: regexp.MustCompile(`initialization failed`)},
		},
		Ready: func(ctx context.Context, _ Tree, _ func(matrix.Progress)) error { return ready(ctx, s.Port) },
	}
}

func TestLaunch(t *testing.T) {
	s := spec(t, "listen")
	var phases []string
	st := start(s)
	st.Progress = func(p matrix.Progress) { phases = append(phases, p.Phase) }
	tree, err := Launch(t.Context(), st)
	if err != nil {
		t.Fatal(err)
	}
	if strangers, err := tree.Foreign(); err != nil || len(strangers) > 0 {
		t.Errorf("%v %v", strangers, err)
	}
	if got, err := tree.Stop(t.Context(), 3*time.Second); err != nil || !got.Gone() {
		t.Errorf("%+v %v", got, err)
	}
	if phases[0] != "launch" || phases[len(phases)-1] != "ready" {
		t.Errorf("phases %v", phases)
	}
}

func TestLaunchFailures(t *testing.T) {
	for _, c := range []struct {
		name, mode string
		change     func(*Start)
		code, root string
		message    string
	}{
		{name: "exits during load, cause above the last lines", mode: "exit", code: "limits", root: "out of memory", message: "exit code 3"},
		{name: "never ready", mode: "fork", change: func(s *Start) { s.Limit = 300 * time.Millisecond }, code: CodeNotReady, message: "not ready within 300ms"},
		{name: "hangs and ignores SIGTERM", mode: "listen,ignoreterm", code: "wrong_model", message: "another", change: func(s *Start) {
			s.Ready = func(context.Context, Tree, func(matrix.Progress)) error {
				return &matrix.StartFailure{Code: "wrong_model", Message: "another model"}
			}
		}},
		{name: "no such program", code: CodeLaunch, message: "no such file", change: func(s *Start) { s.Spec.Argv = []string{"/does/not/exist"} }},
		{name: "log exists", mode: "listen", code: CodeLaunch, message: "never overwritten", change: func(s *Start) {
			if err := os.WriteFile(s.Spec.LogPath, []byte("evidence"), 0o644); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "unwritable state", mode: "listen", code: CodeLaunch, message: "state", change: func(s *Start) { s.Spec.StatePath = "/proc/nothing/state" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			st := start(spec(t, c.mode))
			if c.change != nil {
				c.change(&st)
			}
			_, err := Launch(t.Context(), st)
			f, ok := errors.AsType[*matrix.StartFailure](err)
			if !ok {
				t.Fatalf("not a StartFailure: %v", err)
			}
			if f.Code != c.code || !strings.Contains(f.Message, c.message) || c.root != "" && (len(f.RootCause) == 0 || !strings.Contains(f.RootCause[0], c.root)) {
				t.Errorf("%+v", f)
			}
			nothingLeft(t, st.Spec)
		})
	}
}

func nothingLeft(t *testing.T, s Spec) {
	t.Helper()
	all, err := readAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if !p.zombie && marker(p.pid) == s.LoadID {
			t.Errorf("pid %d is left", p.pid)
		}
	}
	if err := CheckPortFree(s.Host, s.Port); err != nil {
		t.Error(err)
	}
}

func TestLaunchCancelledMidStart(t *testing.T) {
	s := spec(t, "fork,worker,ignoreterm")
	ctx, cancel := context.WithCancel(t.Context())
	st := start(s)
	st.Ready = func(ctx context.Context, tree Tree, _ func(matrix.Progress)) error {
		for members, _ := tree.Processes(); len(members) < 3; members, _ = tree.Processes() {
			time.Sleep(5 * time.Millisecond)
		}
		cancel()
		<-ctx.Done()
		return ctx.Err()
	}
	_, err := Launch(ctx, st)
	if f, ok := errors.AsType[*matrix.StartFailure](err); !ok || f.Code != CodeCancelled {
		t.Errorf("%v", err)
	}
	nothingLeft(t, s)
}

// E04: the old process answers.
func TestLaunchPortTaken(t *testing.T) {
	first := spec(t, "reuseport")
	up(t, first, "stub: up")
	second := spec(t, "reuseport")
	second.Port = first.Port
	_, err := Launch(t.Context(), start(second))
	f, ok := errors.AsType[*matrix.StartFailure](err)
	if !ok || f.Code != CodePortTaken || !strings.Contains(f.Message, filepath.Base(stub)) {
		t.Errorf("%v", err)
	}
}

// A twin that binds the same port while the server loads is found after ready, whoever answered.
func TestLaunchFindsATwinOnThePort(t *testing.T) {
	s := spec(t, "reuseport")
	st := start(s)
	st.Ready = func(ctx context.Context, _ Tree, _ func(matrix.Progress)) error {
		if err := ready(ctx, s.Port); err != nil {
			return err
		}
		twin := spec(t, "reuseport")
		twin.Argv = slices.Clone(s.Argv)
		up(t, twin, "stub: up")
		return nil
	}
	_, err := Launch(t.Context(), st)
	if f, ok := errors.AsType[*matrix.StartFailure](err); !ok || f.Code != CodeForeignListener || !strings.Contains(f.Message, strconv.Itoa(s.Port)) {
		t.Errorf("%v", err)
	}
}

// A server that starts itself anew is not the process that was started, however well the new one answers; and the new one is
// stopped with the rest.
func TestLaunchRefusesAServerThatRestartsItself(t *testing.T) {
	s := spec(t, "restart")
	st := start(s)
	st.Ready = func(_ context.Context, tree Tree, _ func(matrix.Progress)) error {
		err := ready(t.Context(), s.Port)
		<-tree.Done()
		return err
	}
	_, err := Launch(t.Context(), st)
	if f, ok := errors.AsType[*matrix.StartFailure](err); !ok || f.Code != CodeExited || f.Exit != matrix.Some(0) {
		t.Errorf("%v", err)
	}
	nothingLeft(t, s)
}

func TestLogIsBoundedAndRotated(t *testing.T) {
	s := spec(t, "spam")
	s.LogLimit = 1 << 20
	tree := up(t, s, "a line that fills the log, over and over again")
	eventually(t, func() bool {
		_, err := os.Stat(s.LogPath + ".1")
		return err == nil
	})
	if _, err := tree.Stop(t.Context(), 3*time.Second); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(s.LogPath + ".1"); err != nil || info.Size() > 8*s.LogLimit { // looked at from time to time: a busy box lets more through
		t.Errorf("rotated part: %v %v", info.Size(), err)
	}
	tail, err := tree.LogTail(300)
	if err != nil || len(tail) != 300 {
		t.Errorf("%d lines, %v", len(tail), err)
	}
}
