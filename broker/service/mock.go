package service

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"enginebroker/engines/host"
)

// mock is a simulated engine in a process of its own, without its plugin: the server that calibrations measure.
type mock struct {
	url  string
	stop func()
}

const (
	mockModel = "simulated"
	mockLimit = 20 * time.Second // from launch to its first log lines
)

var mockListens = regexp.MustCompile(`listening on (\S+?),`)

// mock starts `simulated serve` from the plugin folders on a free port and waits until it has loaded.
func (s *Service) mock(ctx context.Context, args ...string) (*mock, error) {
	plugins, _ := host.Find(s.pluginDirs())
	i := slices.IndexFunc(plugins, func(p host.Plugin) bool { return p.Name == "simulated" })
	if i < 0 {
		return nil, fail(CauseNotInstalled, "run make build, or name a mock with --url", "the simulated engine is not in %s", joined(s.pluginDirs()))
	}
	life, cancel := context.WithCancel(ctx)
	cmd := exec.CommandContext(life, plugins[i].Path, append([]string{"serve", "--addr", "127.0.0.1:0", "--model", mockModel}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	r, w := io.Pipe()
	cmd.Stderr = w
	if err := cmd.Start(); err != nil {
		cancel()
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // it is told to end
		w.Close()
	}()
	m := &mock{stop: func() {
		cancel()
		<-ended
	}}
	found := make(chan string, 1)
	go func() { // until the pipe ends, so that the server never blocks on its log
		defer close(found)
		in, said := bufio.NewScanner(r), ""
		for in.Scan() {
			if x := mockListens.FindStringSubmatch(in.Text()); x != nil {
				said = x[1]
			}
			if said != "" && strings.HasSuffix(in.Text(), "loaded") {
				found <- said
				break
			}
		}
		_, _ = io.Copy(io.Discard, r) // its end is the server's
	}()
	timer := time.NewTimer(mockLimit)
	defer timer.Stop()
	var err error
	select {
	case address, ok := <-found:
		if ok {
			m.url = "http://" + address
			return m, nil
		}
		err = errors.New("it ended before it was ready")
	case <-timer.C:
		err = fmt.Errorf("it was not ready within %v", mockLimit)
	case <-ctx.Done():
		err = ctx.Err()
	}
	m.stop()
	return nil, interrupted(ctx, fmt.Errorf("simulated engine: %w", err), "")
}
