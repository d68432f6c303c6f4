package host

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	goplugin "github.com/hashicorp/go-plugin"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"enginebroker/engines"
	"enginebroker/engines/plugin"
	"enginebroker/matrix"
)

// The test binary is every program these tests need: a broker, a plugin that behaves, and one per way not to. The name it is
// launched under says which.
var programs = map[string]func(){
	"good":      func() { plugin.Serve(newFake) },
	"telemetry": func() { plugin.ServeTelemetry(func() engines.Telemetry { return fakeTelemetry{} }) },
	"chatty":    func() { fmt.Println("loading 3 libraries"); plugin.Serve(newFake) },
	"flood":     func() { fmt.Print(strings.Repeat("x", 70_000)); time.Sleep(time.Hour) },
	"empty":     func() { fmt.Println(); time.Sleep(time.Hour) },
	"quits":     func() { fmt.Fprintln(os.Stderr, "libcuda.so.1: not found"); os.Exit(3) },
	"silent":    func() { time.Sleep(time.Hour) },
	"leaver":    leaver,
	"future":    func() { serveVersion(9) },
	"netrpc":    func() { fmt.Printf("1|%d|unix|/nowhere|netrpc\n", plugin.Protocol); time.Sleep(time.Hour) },
	"nobody":    func() { fmt.Printf("1|%d|unix|/nowhere|grpc\n", plugin.Protocol); time.Sleep(time.Hour) },
	"dies":      func() { plugin.Serve(func() engines.Engine { return &fake{describe: func() { panicElsewhere() }} }) },
	"killed": func() {
		plugin.Serve(func() engines.Engine { return &fake{describe: func() { die(syscall.SIGKILL) }} })
	},
	"hangs": func() { plugin.Serve(func() engines.Engine { return &fake{describe: func() { select {} }} }) },
	"frozen": func() {
		plugin.Serve(func() engines.Engine { return &fake{describe: func() { die(syscall.SIGSTOP) }} })
	},
	"nameless": func() { plugin.Serve(func() engines.Engine { return &fake{nameless: true} }) },
	"broker":   broker,
}

func TestMain(m *testing.M) {
	if program, ok := programs[filepath.Base(os.Args[0])]; ok {
		program()
		return
	}
	goleak.VerifyTestMain(m)
}

// install gives the test binary another name.
func install(t testing.TB, names ...string) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range names {
		if os.Link(exe, filepath.Join(dir, name)) == nil {
			continue
		}
		in, err := os.Open(exe)
		if err != nil {
			t.Fatal(err)
		}
		out, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_WRONLY, 0o755)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(out, in); err != nil {
			t.Fatal(err)
		}
		_ = in.Close()
		if err := out.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// leaver hangs, with a child in a session of its own.
func leaver() {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	c := exec.Command(filepath.Join(filepath.Dir(exe), "silent"))
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := c.Start(); err != nil {
		panic(err)
	}
	time.Sleep(time.Hour)
}

func kill(pid int, s syscall.Signal) { _ = syscall.Kill(pid, s) }

// die does not outrun the signal.
func die(s syscall.Signal) {
	kill(os.Getpid(), s)
	select {}
}

// panicElsewhere ends the process from a goroutine that nothing recovers.
func panicElsewhere() {
	go func() { panic("index out of range") }()
	select {}
}

func serveVersion(v int) {
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig:  handshake,
		VersionedPlugins: map[int]goplugin.PluginSet{v: {plugin.KindEngine: nothing{}}},
		GRPCServer:       goplugin.DefaultGRPCServer,
	})
}

type nothing struct {
	goplugin.NetRPCUnsupportedPlugin
}

func (nothing) GRPCServer(*goplugin.GRPCBroker, *grpc.Server) error { return nil }
func (nothing) GRPCClient(context.Context, *goplugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, errors.ErrUnsupported
}

// fake is an engine whose server is a sleep in a session of its own, as a real server is.
type fake struct {
	describe func()
	nameless bool

	mu         sync.Mutex
	settings   engines.Settings
	configured bool
	server     *exec.Cmd
}

func newFake() engines.Engine { return &fake{} }

func (f *fake) Describe(context.Context) (matrix.Description, error) {
	if f.describe != nil {
		f.describe()
	}
	if f.nameless {
		return matrix.Description{}, nil
	}
	slog.Info("described", "n", 1)
	f.mu.Lock()
	defer f.mu.Unlock()
	return matrix.Description{Engine: "fake", Installed: f.configured, LookedFor: []string{f.settings["binary"], os.Getenv("BROKER_TEST_SECRET")}}, nil
}

func (f *fake) Configure(_ context.Context, s engines.Settings) ([]engines.FieldError, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s["binary"] == "" {
		return []engines.FieldError{{Field: "binary", Message: "it is required", Fix: "name the server"}, {Field: "cache", Message: "no such directory"}}, nil
	}
	f.settings, f.configured = s, true
	return nil, nil
}

func (f *fake) Start(ctx context.Context, r matrix.StartRequest, progress func(matrix.Progress)) (matrix.Ready, error) {
	if r.LoadID == "die" {
		progress(matrix.Progress{Phase: "load"})
		die(syscall.SIGKILL)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return matrix.Ready{}, err
	}
	progress(matrix.Progress{Phase: "ready"})
	if r.LoadID == "slow" { // Start is still on its way when the broker dies
		<-ctx.Done()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return matrix.Ready{}, ctx.Err()
	}
	f.server = cmd
	return matrix.Ready{Processes: []matrix.Process{{PID: cmd.Process.Pid}}}, nil
}

func (f *fake) Preflight(context.Context, matrix.StartRequest, func(matrix.Progress)) (matrix.PreflightResult, error) {
	return matrix.PreflightResult{}, engines.ErrUnsupported
}

func (f *fake) Observe(context.Context) (matrix.State, error) {
	return matrix.State{}, engines.ErrNotStarted
}

func (f *fake) Tokenize(_ context.Context, text string) ([]int, error) {
	for range 1000 {
		slog.Debug("tokenizing", "text", text)
	}
	return []int{len(text)}, nil
}

func (f *fake) Stop(context.Context, time.Duration) (matrix.Stopped, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.server == nil {
		return matrix.Stopped{}, engines.ErrNotStarted
	}
	slog.Info("stopping")
	_ = f.server.Process.Kill()
	_ = f.server.Wait()
	f.server = nil
	return matrix.Stopped{How: "kill", PortFree: true}, nil
}

type fakeTelemetry struct{}

func (fakeTelemetry) Describe(context.Context) (matrix.Telemetry, error) {
	return matrix.Telemetry{Why: "no device"}, nil
}

func (fakeTelemetry) Sample(ctx context.Context, _ int, fn func(matrix.Sample)) error {
	fn(matrix.Sample{At: 1})
	fn(matrix.Sample{At: 2})
	<-ctx.Done()
	return ctx.Err()
}

// broker launches the plugin of its first argument, starts a server as its second says, prints both process ids, and waits to
// be killed.
func broker() {
	fatal := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	ctx := context.Background()
	i, err := Launch(ctx, Config{Plugin: Plugin{Path: os.Args[1]}, Label: "x", Settings: engines.Settings{"binary": "y"}})
	fatal(err)
	if os.Args[2] == "slow" {
		_, err = i.Start(ctx, matrix.StartRequest{LoadID: "slow"}, func(matrix.Progress) { fmt.Println(i.PID(), children(i.PID()), "end") })
		fatal(err)
	}
	r, err := i.Start(ctx, matrix.StartRequest{}, nil)
	fatal(err)
	fmt.Println(i.PID(), r.Processes[0].PID, "end")
	select {}
}

// children is the first child of a process.
func children(pid int) int {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, t := range tasks {
		if len(b) == 0 {
			b, _ = os.ReadFile(t)
		}
	}
	var child int
	_, _ = fmt.Sscan(string(b), &child)
	return child
}

// readPIDs reads the line the broker prints.
func readPIDs(t *testing.T, r io.Reader) (plugin, server int) {
	t.Helper()
	line, err := bufio.NewReader(r).ReadString('\n')
	if _, serr := fmt.Sscan(line, &plugin, &server); err != nil || serr != nil || plugin == 0 || server == 0 {
		t.Fatalf("the broker says %q (%v, %v)", line, err, serr)
	}
	return plugin, server
}
