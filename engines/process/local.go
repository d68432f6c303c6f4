package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"enginebroker/matrix"
)

// children are the processes this package started itself, so that an orphan that came to us can be told from them.
var children = registry{pids: map[int]bool{}}

type registry struct {
	sync.Mutex
	pids map[int]bool
}

func (r *registry) started(pid int) bool {
	r.Lock()
	defer r.Unlock()
	return r.pids[pid]
}

// subreap makes orphans of our trees come to us instead of init, where they could not be told from anybody's.
var subreap = sync.OnceValue(func() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) })

// Local is the runtime that runs servers as processes of this machine.
type Local struct{}

var _ Runtime = Local{}

// Kind is process.
func (Local) Kind() matrix.Runtime { return matrix.RuntimeProcess }

// Start launches the tree.
func (Local) Start(ctx context.Context, s Spec) (Tree, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if len(s.Argv) == 0 || !filepath.IsAbs(s.Argv[0]) {
		return nil, fmt.Errorf("launch: the executable needs an absolute path, got %q", s.Argv)
	}
	if s.LoadID == "" {
		return nil, errors.New("launch: no load id, so the tree could not be found again")
	}
	if _, err := os.Lstat(s.StatePath); err == nil {
		return nil, fmt.Errorf("launch: %s names a server of an earlier start: recover it first, or it is lost", s.StatePath)
	}
	if err := subreap(); err != nil {
		return nil, fmt.Errorf("launch: child subreaper: %w", err)
	}
	boot, err := BootID()
	if err != nil {
		return nil, err
	}
	log, err := openLog(s.LogPath, s.LogLimit)
	if err != nil {
		return nil, err
	}
	env, withheld := BuildEnv(os.Environ(), s.Inherit, s.Env)
	env[MarkerName] = s.LoadID
	t := &local{
		spec: s, log: log, done: make(chan struct{}), rotated: make(chan struct{}), sent: map[syscall.Signal]bool{},
		launched: Launched{Argv: s.Argv, Env: env, Scrubbed: withheld, LogPath: s.LogPath},
		state:    State{LoadID: s.LoadID, BootID: boot, Host: s.Host, Port: s.Port, Argv0: s.Argv[0]},
	}
	if err := t.launch(boot); err != nil {
		return nil, errors.Join(err, log.close(), removeState(s.StatePath))
	}
	go t.keepLog()
	return t, nil
}

// local is one tree of Local.
type local struct {
	spec     Spec
	launched Launched
	state    State
	log      *logFile
	dir      string // the empty working directory
	cgroup   string // memory.events of the root's cgroup, empty where there is none

	done    chan struct{} // root gone, exit known
	rotated chan struct{} // keepLog returned

	mu    sync.Mutex
	tree  *tree
	exit  matrix.Opt[Exit]
	sent  map[syscall.Signal]bool // by Stop
	oomAt int64

	stopping sync.Mutex
	stopped  matrix.Opt[matrix.Stopped]
}

// launch starts the root and leaves a goroutine waiting for it.
func (t *local) launch(boot string) error {
	// A directory named like a Python package, or a stray configuration file, must not change what is started.
	dir, err := os.MkdirTemp("", dirPrefix)
	if err != nil {
		return err
	}
	t.dir, t.state.Dir = dir, dir
	if t.spec.StatePath != "" {
		if err := t.state.write(t.spec.StatePath); err != nil {
			return errors.Join(err, os.RemoveAll(dir))
		}
	}
	for name, target := range t.spec.Links {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			return errors.Join(fmt.Errorf("launch: %w", err), os.RemoveAll(dir))
		}
	}
	cmd := &exec.Cmd{
		Path: t.spec.Argv[0], Args: t.spec.Argv, Env: environ(t.launched.Env), Dir: dir,
		Stdout: t.log.f, Stderr: t.log.f, // a nil Stdin is /dev/null
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	}
	t.launched.Start = time.Now()
	root := matrix.Process{BootID: boot}
	started := make(chan error)
	go func() {
		// The death signal is tied to the thread that forked, not to the process: this goroutine keeps its thread until the
		// root is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		children.Lock()
		err := startBeside(cmd, t.spec.SpareCPUs)
		if err == nil {
			children.pids[cmd.Process.Pid] = true
		}
		children.Unlock()
		if err == nil { // before Wait even a root that died at once can be read
			root.PID = cmd.Process.Pid
			s, serr := readStat(root.PID)
			root.StartTime, err = s.start, serr
			root.Exe, _ = os.Readlink("/proc/" + strconv.Itoa(root.PID) + "/exe")
		}
		started <- err
		if err == nil {
			_ = cmd.Wait() // the state below says all there is
			t.ended(cmd.ProcessState)
		}
	}()
	if err := <-started; err != nil {
		return errors.Join(fmt.Errorf("launch: %w", err), os.RemoveAll(dir))
	}
	t.mu.Lock()
	t.launched.Root = root
	t.tree = newTree(t.spec.LoadID, root)
	t.tree.adopts = true
	t.cgroup = memoryEvents(root.PID)
	t.oomAt = oomKills(t.cgroup)
	t.mu.Unlock()
	t.state.Root = matrix.Some(root)
	if t.spec.StatePath == "" {
		return nil
	}
	if err := t.state.write(t.spec.StatePath); err != nil {
		_, serr := t.kill(context.Background(), time.Now().Add(5*time.Second))
		return errors.Join(err, serr, os.RemoveAll(dir))
	}
	return nil
}

// ended records the root's exit.
func (t *local) ended(ps *os.ProcessState) {
	t.mu.Lock()
	defer t.mu.Unlock()
	ws := ps.Sys().(syscall.WaitStatus)
	e := Exit{Code: ws.ExitStatus()}
	if ws.Signaled() {
		e.Signal = ws.Signal()
		e.Code = 128 + int(e.Signal)
		e.ByUs = t.sent[e.Signal]
		e.OOM = t.cgroup != "" && oomKills(t.cgroup) > t.oomAt
	}
	t.exit = matrix.Some(e)
	children.Lock()
	delete(children.pids, ps.Pid())
	children.Unlock()
	close(t.done)
}

func (t *local) keepLog() {
	defer close(t.rotated)
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-t.done:
			return
		case <-tick.C:
			_ = t.log.rotate() // a full disk keeps the log as it is; the run's own guard of the disk reports it
		}
	}
}

func (t *local) Launched() Launched    { return t.launched }
func (t *local) Done() <-chan struct{} { return t.done }

func (t *local) Exit() matrix.Opt[Exit] {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.exit
}

func (t *local) Processes() ([]matrix.Process, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	live, reapable, err := t.tree.members()
	reap(reapable)
	return live, err
}

func (t *local) LogTail(n int) ([]string, error) { return Tail(t.spec.LogPath, n) }

func (t *local) Foreign() ([]Listener, error) {
	members, err := t.Processes()
	if err != nil {
		return nil, err
	}
	return foreign(t.spec.Port, members)
}

// Stop ends the tree and proves it gone.
func (t *local) Stop(ctx context.Context, deadline time.Duration) (matrix.Stopped, error) {
	t.stopping.Lock()
	defer t.stopping.Unlock()
	if s, ok := t.stopped.Get(); ok && s.Gone() {
		return s, nil
	}
	start := time.Now()
	s, err := t.kill(ctx, start.Add(deadline))
	if len(s.Survivors) == 0 && err == nil {
		<-t.done // a root that is gone from the process table may still have to be waited for
	}
	if e, ok := t.Exit().Get(); ok {
		s.Exit = matrix.Some(e.Code)
	}
	s.Took = time.Since(start)
	tail, terr := t.LogTail(TailLines)
	if errors.Is(terr, fs.ErrNotExist) {
		terr = nil
	}
	s.LogTail = tail
	err = errors.Join(err, terr)
	if len(s.Survivors) == 0 && err == nil {
		<-t.rotated
		err = errors.Join(t.log.close(), os.RemoveAll(t.dir))
	}
	if s.Gone() {
		err = errors.Join(err, removeState(t.spec.StatePath))
	}
	t.stopped = matrix.Some(s)
	return s, err
}

func (t *local) kill(ctx context.Context, until time.Time) (matrix.Stopped, error) {
	s := stopper{members: t.Processes, root: t.launched.Root, port: t.spec.Port, signaled: func(sig unix.Signal) {
		t.mu.Lock()
		t.sent[sig] = true
		t.mu.Unlock()
	}}
	return s.stop(ctx, until)
}

// memoryEvents is the path of memory.events of a process's cgroup, empty where there is none.
func memoryEvents(pid int) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			path := filepath.Join("/sys/fs/cgroup", group, "memory.events")
			if _, err := os.Stat(path); err == nil {
				return path
			}
		}
	}
	return ""
}

// oomKills reads the counter oom_kill; 0 where it cannot be read, which never counts as a kill.
func oomKills(path string) int64 {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(b) {
		if v, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("oom_kill ")); ok {
			n, _ := strconv.ParseInt(string(v), 10, 64)
			return n
		}
	}
	return 0
}
