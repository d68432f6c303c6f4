package run

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"enginebroker/matrix"
	"enginebroker/matrix/box"
	"enginebroker/matrix/gates"
)

// programEnv makes the test binary a plugin, or the engine's server that takes memory while it loads.
const programEnv = "BROKER_TEST_PROGRAM"

const (
	polite   = "polite"   // ends on SIGTERM
	stubborn = "stubborn" // has to be killed
)

// The eater takes no more than this, in steps: 0.8 GiB/s.
const (
	eatMiB  = 1024
	stepMiB = 16
	stepFor = 20 * time.Millisecond
)

func TestMain(m *testing.M) {
	switch kind := os.Getenv(programEnv); {
	case kind == "":
		os.Exit(m.Run())
	case len(os.Args) > 1 && os.Args[1] == "server":
		eat(kind)
	default:
		servePlugin(kind)
	}
}

// servePlugin launches a server, as a plugin does, and says which process it is.
func servePlugin(kind string) {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	server := exec.Command(exe, "server")
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := server.Start(); err != nil {
		panic(err)
	}
	fmt.Println(server.Process.Pid)
	go func() { // its own standard input ends: the start is called off
		_, _ = io.Copy(io.Discard, os.Stdin)
		if kind == polite {
			_ = server.Process.Signal(syscall.SIGTERM)
		}
	}()
	_ = server.Wait() // how it ended is printed
	fmt.Println(server.ProcessState.Sys().(syscall.WaitStatus).Signal())
}

func eat(kind string) {
	if kind == stubborn {
		signal.Ignore(syscall.SIGTERM)
	}
	var held [][]byte
	for range eatMiB / stepMiB {
		b := make([]byte, stepMiB<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		held = append(held, b)
		time.Sleep(stepFor)
	}
	fmt.Fprintln(io.Discard, len(held))
	select {} // it never becomes ready
}

// realBox is this machine.
type realBox struct{ *box.Box }

func (b realBox) Watch(ctx context.Context, tree func() []int, stop func(string)) (Watch, error) {
	return b.Box.Watch(ctx, tree, stop)
}

// eater is an engine whose server takes real memory until somebody ends it.
type eater struct {
	fakeEngine
	kind  string
	ended *string // the signal that ended its server
}

func (e eater) Start(ctx context.Context, _ matrix.StartRequest, _ func(matrix.Progress)) (matrix.Ready, error) {
	exe, err := os.Executable()
	if err != nil {
		return matrix.Ready{}, err
	}
	plugin := exec.Command(exe)
	plugin.Env = append(os.Environ(), programEnv+"="+e.kind)
	lifeline, err := plugin.StdinPipe()
	if err != nil {
		return matrix.Ready{}, err
	}
	out, err := plugin.StdoutPipe()
	if err != nil {
		return matrix.Ready{}, err
	}
	if err := plugin.Start(); err != nil {
		return matrix.Ready{}, err
	}
	defer context.AfterFunc(ctx, func() { lifeline.Close() })()
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		*e.ended = lines.Text() // the last line is the signal
	}
	if err := plugin.Wait(); err != nil {
		return matrix.Ready{}, err
	}
	return matrix.Ready{}, &matrix.StartFailure{Code: "died", Phase: "load", Message: "the server ended: " + *e.ended}
}

// A process of the engine's tree really takes memory while it loads. The guard stops it, names itself, the legs are void by
// the host, and the memory is back. The floor lies a little below what this machine has free, so the machine is in no danger.
func TestGuardAgainstARealEater(t *testing.T) {
	for _, c := range []struct{ kind, signal string }{{polite, "terminated"}, {stubborn, "killed"}} {
		t.Run(c.kind, func(t *testing.T) {
			before := available(t)
			if before < 4<<20 {
				t.Skipf("MemAvailable is %d MiB; 4 GiB are wanted to take one of them", before>>10)
			}
			b, err := box.Open(t.Context(), box.Options{Profile: "cpu", RuntimeDir: t.TempDir(), Guard: box.Guard{FloorKiB: before - 700<<10}})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := b.Baseline(t.Context()); err != nil {
				t.Fatal(err)
			}
			w := newWorld()
			w.start = func(instance string, _ int) (matrix.Ready, error) { // no process: nothing that a guard could end
				return matrix.Ready{Print: "print-" + instance, Granted: matrix.Limits{ContextTokens: 256, Concurrency: 1}}, nil
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := ""
			config := w.config(plan(1))
			config.Box = realBox{b}
			config.Grid.BootID = b.BootID()
			config.Engine = func(_ context.Context, instance string) (Engine, error) {
				if instance == "a" {
					return eater{fakeEngine{w, instance}, c.kind, &ended}, nil
				}
				return fakeEngine{w, instance}, nil
			}
			config.Event = func(e Event) {
				if e.Kind == "stopped" && e.Arm == "a" {
					cancel() // one load of it is enough
				}
			}
			_ = Run(ctx, config) // interrupted, as was asked
			if ended != c.signal {
				t.Errorf("the server ended by %q, want %q", ended, c.signal)
			}
			i := slices.IndexFunc(w.loads, func(l matrix.LoadRecord) bool { return l.Failure.Present() })
			if i < 0 {
				t.Fatal("no load failed")
			}
			f, _ := w.loads[i].Failure.Get()
			if f.Code != "killed" || !strings.HasPrefix(f.Message, "the memory guard stopped the engine: MemAvailable is ") {
				t.Errorf("%+v", f)
			}
			profile, err := gates.ProfileByName("cpu")
			if err != nil {
				t.Fatal(err)
			}
			void := 0
			for _, leg := range w.legs {
				if leg.ID.Arm != "a" {
					continue
				}
				void++
				g := gates.Leg(leg, matrix.Arm{}, config.Plan.Method.Points[0], profile)
				if cause, err := gates.Cause(g.Codes); err != nil || cause != matrix.CauseEnv || !slices.Contains(g.Codes, matrix.KilledByHost) {
					t.Errorf("leg %s: codes %v, cause %v (%v)", leg.ID.Point, g.Codes, cause, err)
				}
			}
			if void != 2 {
				t.Errorf("%d void legs of the eater's load, want one for each point", void)
			}
			for limit := time.Now().Add(30 * time.Second); available(t) < before-350<<10; time.Sleep(100 * time.Millisecond) {
				if time.Now().After(limit) {
					t.Fatalf("MemAvailable is %d MiB, %d before: the memory did not come back", available(t)>>10, before>>10)
				}
			}
		})
	}
}

func available(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Skip(err)
	}
	var kib int64
	_, rest, _ := strings.Cut(string(text), "MemAvailable:")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Skip("no MemAvailable")
	}
	return kib
}
