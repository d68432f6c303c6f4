package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-plugin/runner"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// child is the process of a plugin. It replaces go-plugin's own runner to know what was really printed, to parse log lines
// that would make go-plugin panic, and to own group, lifeline and reaping.
type child struct {
	cmd   *exec.Cmd
	first *firstLine
	tail  *tail
	stdin io.Closer // the lifeline
	mark  string    // in the environment of whatever it starts
	pid   int
	done  chan struct{} // closed once the process is reaped and what it left is killed

	mu     sync.Mutex
	killed bool // by us, before it ended by itself
	reaped bool
}

var _ runner.Runner = (*child)(nil)

// outputDelay is how long output is still read after the process ended: something it left may hold the pipe open.
const outputDelay = time.Second

func newChild(path string, env []string, log *zap.Logger) *child {
	c := &child{cmd: exec.Command(path), done: make(chan struct{}), tail: &tail{}, mark: newMark()}
	c.first = newFirstLine(lines(printed(log, "stdout")))
	c.cmd.Env = append(env, c.mark)
	stderr := printed(log, "stderr")
	c.cmd.Stdout = c.first
	c.cmd.Stderr = lines(func(line string) {
		message, level, ok := logLine(log, line)
		if !ok {
			stderr(line)
		}
		if !ok || level == zap.ErrorLevel {
			c.tail.add(message)
		}
	})
	c.cmd.WaitDelay = outputDelay
	// SIGTERM, not SIGKILL: a plugin stops its engine's server before it leaves.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	return c
}

// Start launches the process from a thread that lives as long as the process: the kernel sends the signal of Pdeathsig when
// the launching thread ends, not when the process does.
func (c *child) Start(context.Context) error {
	stdin, err := c.cmd.StdinPipe()
	if err != nil {
		return err
	}
	c.stdin = stdin
	launched := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.cmd.Start()
		if err == nil {
			c.mu.Lock()
			c.pid = c.cmd.Process.Pid
			doomed := c.killed
			c.mu.Unlock()
			if doomed {
				c.kill()
			}
		}
		launched <- err
		if err == nil {
			c.reap()
		}
	}()
	return <-launched
}

// reap waits for the end of the process, kills what is left of its group while the number is still taken, collects it, and
// kills what it put elsewhere.
func (c *child) reap() {
	for errors.Is(unix.Waitid(unix.P_PID, c.pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
	c.mu.Lock()
	_ = unix.Kill(-c.pid, unix.SIGKILL)
	c.reaped = true
	c.mu.Unlock()
	sweep(c.mark)    // before Wait: what was left may hold the pipes open
	_ = c.cmd.Wait() // the state is in ProcessState
	c.first.end()
	close(c.done)
}

// started reports whether there was a process.
func (c *child) started() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pid != 0
}

// kill kills the whole group. It may be called at any time; before the start it ends the process as soon as there is one.
func (c *child) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reaped {
		return
	}
	c.killed = true
	if c.pid != 0 {
		_ = unix.Kill(-c.pid, unix.SIGKILL)
	}
}

// killedByUs reports whether the process had to be killed.
func (c *child) killedByUs() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.killed
}

// Kill implements runner.Runner.
func (c *child) Kill(context.Context) error {
	c.kill()
	return nil
}

// Wait implements runner.Runner.
func (c *child) Wait(context.Context) error {
	<-c.done
	if !c.cmd.ProcessState.Success() {
		return errors.New(c.cmd.ProcessState.String())
	}
	return nil
}

// lastWords says how the process ended and what it printed last.
func (c *child) lastWords() string {
	select {
	case <-c.done:
	case <-time.After(outputDelay):
		return "its process still runs"
	}
	words := c.cmd.ProcessState.String()
	if ws, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		words += ", sender unknown"
	}
	if last := c.tail.words(); last != "" {
		words += fmt.Sprintf(", last words %q", last)
	}
	return words
}

// Stdout implements runner.Runner: go-plugin reads the handshake.
func (c *child) Stdout() io.ReadCloser { return io.NopCloser(c.first) }

// Stderr implements runner.Runner: log lines never reach go-plugin.
func (c *child) Stderr() io.ReadCloser { return io.NopCloser(strings.NewReader("")) }

// Name implements runner.Runner.
func (c *child) Name() string { return c.cmd.Path }

// ID implements runner.Runner.
func (c *child) ID() string { return strconv.Itoa(c.pid) }

// Diagnose implements runner.Runner; handshakeProblem says it better.
func (c *child) Diagnose(context.Context) string { return "" }

// PluginToHost implements runner.Runner: both see the same file system.
func (c *child) PluginToHost(network, address string) (string, string, error) {
	return network, address, nil
}

// HostToPlugin implements runner.Runner.
func (c *child) HostToPlugin(network, address string) (string, string, error) {
	return network, address, nil
}
