package process

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"enginebroker/matrix"
)

// Container is the runtime that runs a server in a container of docker or podman. The server is no child of ours: the tool
// follows it, in the foreground, so that its output reaches the log and its end is seen. What belongs to it is told by the
// container's cgroup and process namespace, so that a server that was started beside a sleeping first process is found
// (bugs.md N02).
type Container struct {
	Tool    []string   // command with its global options: podman --storage-driver=vfs
	Image   string     // by digest or id, never by tag
	Forms   [][]string // commands that start the server; the first is used where the entrypoint is none of them
	Mounts  []Mount
	User    string   // UID:GID; empty: ours
	GPU     string   // empty: none; all; or a device
	Options []string // further options of run
}

var _ Runtime = Container{}

// Start launches the container. Spec.Argv are the server's arguments; its environment is that of the image and what is
// declared, nothing inherited.
func (c Container) Start(ctx context.Context, s Spec) (Tree, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if s.LoadID == "" || len(s.Links) > 0 {
		return nil, errors.New("launch: a container needs a load id, and takes no links")
	}
	if _, err := os.Lstat(s.StatePath); err == nil {
		return nil, fmt.Errorf("launch: %s names a server of an earlier start: recover it first, or it is lost", s.StatePath)
	}
	img, err := c.image(ctx)
	if err != nil {
		return nil, err
	}
	boot, err := BootID()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", dirPrefix)
	if err != nil {
		return nil, err
	}
	log, err := openLog(s.LogPath, s.LogLimit)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	t := &contained{Container: c, spec: s, image: img, log: log, dir: dir, done: make(chan struct{}), rotated: make(chan struct{})}
	argv, env := c.command(s, img, t.cidfile())
	t.launched = Launched{Argv: append(slices.Clone(img.Entrypoint), arguments(img.Entrypoint, c.Forms, s.Argv)...), Env: s.Env, LogPath: s.LogPath}
	st := State{LoadID: s.LoadID, BootID: boot, Host: s.Host, Port: s.Port, Argv0: c.Image, Dir: dir, Tool: c.Tool}
	if s.StatePath != "" {
		if err := st.write(s.StatePath); err != nil {
			return nil, errors.Join(err, log.close(), os.RemoveAll(dir))
		}
	}
	if err := t.launch(ctx, argv, env, boot); err != nil {
		_, rerr := recoverContainer(context.WithoutCancel(ctx), st, s.StatePath, DefaultCleanup)
		return nil, errors.Join(err, rerr, log.close())
	}
	go t.keepLog()
	return t, nil
}

// Recover stops what an earlier start left, whatever its runtime was.
func (c Container) Recover(ctx context.Context, statePath string, deadline time.Duration) (matrix.Stopped, error) {
	return Local{}.Recover(ctx, statePath, deadline)
}

// contained is the tree of one container.
type contained struct {
	Container
	spec     Spec
	image    image
	launched Launched
	log      *logFile
	dir      string
	conmon   int    // podman's monitor, which may be our child
	cgroup   string // path of the first process's cgroup that names the container
	pidNS    string // of its process namespace, empty where it is ours
	done     chan struct{}
	rotated  chan struct{}

	mu    sync.Mutex
	known string // id, once read
	exit  matrix.Opt[Exit]
	ours  bool // Stop was called

	stopping sync.Mutex
	stopped  matrix.Opt[matrix.Stopped]
}

func (t *contained) cidfile() string { return filepath.Join(t.dir, "cid") }

// id is the container's, empty before the tool has made it.
func (t *contained) id() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known == "" {
		b, _ := os.ReadFile(t.cidfile()) // written at once, by the tool
		t.known = strings.TrimSpace(string(b))
	}
	return t.known
}

// launchLimit is how long a tool may take to create a container from an image of 20 GB on a cold disk [own].
const launchLimit = 2 * time.Minute

// launch runs the tool and waits until the container's first process is known.
func (t *contained) launch(ctx context.Context, argv, env []string, boot string) error {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(toolEnv(), env...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = t.dir, t.log.f, t.log.f
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	t.launched.Start = time.Now()
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the death signal is tied to the thread
		defer runtime.UnlockOSThread()
		children.Lock()
		err := cmd.Start()
		if err == nil {
			children.pids[cmd.Process.Pid] = true
		}
		children.Unlock()
		started <- err
		if err == nil {
			_ = cmd.Wait()
			t.ended(cmd.ProcessState)
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("launch: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, launchLimit)
	defer cancel()
	for {
		if t.id() != "" {
			if x, err := t.inspect(ctx); err == nil && x.State.Pid > 0 {
				return t.found(x, boot)
			}
		}
		select {
		case <-t.done:
			// A server that ended at once is a launched one that died, where a container was made of it at all.
			if t.id() != "" {
				return nil
			}
			tail, _ := t.LogTail(maxCauseLines)
			return fmt.Errorf("launch: the container tool gave up: %s", strings.Join(tail, "; "))
		case <-ctx.Done():
			return fmt.Errorf("launch: no container: %w", context.Cause(ctx))
		case <-time.After(pollEvery):
		}
	}
}

// toolEnv is what the tool itself needs.
func toolEnv() []string {
	var out []string
	for _, name := range ownVariables {
		if v, ok := os.LookupEnv(name); ok {
			out = append(out, name+"="+v)
		}
	}
	return out
}

// found takes what the container's first process shows.
func (t *contained) found(x container, boot string) error {
	if x.restarts() {
		return fmt.Errorf("launch: container %s has restart policy %s: what dies would come back", t.id(), x.HostConfig.RestartPolicy.Name)
	}
	t.conmon = x.State.ConmonPid
	t.launched.Root = matrix.Process{PID: x.State.Pid, BootID: boot}
	s, err := readStat(x.State.Pid)
	if err != nil {
		return nil // it ended meanwhile; the tree says so
	}
	t.launched.Root.StartTime = s.start
	t.launched.Root.Exe, _ = os.Readlink("/proc/" + strconv.Itoa(s.pid) + "/exe")
	t.cgroup = containerCgroup(s.pid, t.id())
	if ns := pidNamespace(s.pid); ns != pidNamespace(os.Getpid()) {
		t.pidNS = ns
	}
	if t.cgroup == "" && t.pidNS == "" {
		return fmt.Errorf("launch: container %s has neither a cgroup nor a process namespace of its own, so that its processes cannot be told", t.id())
	}
	if t.spec.StatePath == "" {
		return nil
	}
	st, err := ReadState(t.spec.StatePath)
	if err != nil {
		return err
	}
	st.Root = matrix.Some(t.launched.Root)
	return st.write(t.spec.StatePath)
}

// containerCgroup is the path of a process's cgroup that ends in the container's name.
func containerCgroup(pid int, id string) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		_, group, _ := strings.Cut(strings.TrimSpace(line), ":")
		if _, group, _ = strings.Cut(group, ":"); strings.Contains(group, id) {
			return group
		}
	}
	return ""
}

func pidNamespace(pid int) string {
	ns, _ := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/pid")
	return ns
}

func (t *contained) ended(ps *os.ProcessState) {
	e := Exit{Code: ps.ExitCode()}
	x, err := t.inspect(context.Background())
	if err == nil {
		e.Code, e.OOM = x.State.ExitCode, x.State.OOMKilled
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.Code > 128 && e.Code < 128+65 { // how containers say a signal
		e.Signal, e.ByUs = syscall.Signal(e.Code-128), t.ours
	}
	t.exit = matrix.Some(e)
	children.Lock()
	delete(children.pids, ps.Pid())
	children.Unlock()
	close(t.done)
}

func (t *contained) keepLog() {
	defer close(t.rotated)
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-t.done:
			return
		case <-tick.C:
			_ = t.log.rotate() // see local.keepLog
		}
	}
}

func (t *contained) Launched() Launched              { return t.launched }
func (t *contained) Done() <-chan struct{}           { return t.done }
func (t *contained) LogTail(n int) ([]string, error) { return Tail(t.spec.LogPath, n) }

func (t *contained) Exit() matrix.Opt[Exit] {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.exit
}

// Processes lists what runs in the container. The owner of the listening socket comes first: it is the arm, whatever else
// the image starts before it.
func (t *contained) Processes() ([]matrix.Process, error) {
	live, err := t.members()
	if err != nil {
		return nil, err
	}
	ls, err := Listeners(t.spec.Port)
	if err != nil || t.spec.Port == 0 {
		return live, err
	}
	for _, l := range ls {
		owner, _ := l.Owner.Get()
		if i := slices.IndexFunc(live, func(p matrix.Process) bool { return p.PID == owner.PID && p.StartTime == owner.StartTime }); i > 0 {
			live = slices.Insert(slices.Delete(live, i, i+1), 0, owner)
		}
	}
	return live, nil
}

func (t *contained) members() ([]matrix.Process, error) {
	all, err := readAll()
	if err != nil {
		return nil, fmt.Errorf("process table: %w", err)
	}
	var live []matrix.Process
	for _, s := range all {
		if s.zombie || s.start < t.launched.Root.StartTime || !t.holds(s.pid) {
			continue
		}
		exe, _ := os.Readlink("/proc/" + strconv.Itoa(s.pid) + "/exe")
		live = append(live, matrix.Process{PID: s.pid, StartTime: s.start, BootID: t.launched.Root.BootID, Exe: exe})
	}
	slices.SortFunc(live, func(a, b matrix.Process) int { return int(a.StartTime) - int(b.StartTime) })
	return live, nil
}

func (t *contained) holds(pid int) bool {
	if t.pidNS != "" && pidNamespace(pid) == t.pidNS {
		return true
	}
	if t.cgroup == "" {
		return false
	}
	group := containerCgroup(pid, t.id())
	return group == t.cgroup || strings.HasPrefix(group, t.cgroup+"/")
}

func (t *contained) Foreign() ([]Listener, error) {
	live, err := t.Processes()
	if err != nil {
		return nil, err
	}
	return foreign(t.spec.Port, live)
}

// Stop ends the container politely, then not, removes it, and proves that the tool does not know it any more, that no process
// of it is left and that the port is free.
func (t *contained) Stop(ctx context.Context, deadline time.Duration) (matrix.Stopped, error) {
	t.stopping.Lock()
	defer t.stopping.Unlock()
	if s, ok := t.stopped.Get(); ok && s.Gone() {
		return s, nil
	}
	start := time.Now()
	t.mu.Lock()
	t.ours = true
	_, gone := t.exit.Get()
	t.mu.Unlock()
	s := matrix.Stopped{How: "gone_before"}
	err := error(nil)
	if !gone {
		s.How = "term"
		polite := deadline - min(killReserve, deadline/2)
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), deadline+killReserve)
		_, err = t.ask(stop, "stop", "-t", strconv.Itoa(int(polite.Seconds())), t.id())
		cancel()
	}
	end := stopper{members: t.members, root: t.launched.Root, port: t.spec.Port, signaled: func(unix.Signal) { s.How = "kill" }}
	rest, kerr := end.stop(ctx, start.Add(deadline+killReserve))
	s.Survivors, s.PortFree = rest.Survivors, rest.PortFree
	err = errors.Join(err, kerr, removeContainers(ctx, t.Container, t.spec.LoadID))
	if len(s.Survivors) == 0 {
		<-t.done
		<-t.rotated
		reap([]int{t.conmon})
		err = errors.Join(err, t.log.close(), os.RemoveAll(t.dir))
	}
	if e, ok := t.Exit().Get(); ok {
		s.Exit = matrix.Some(e.Code)
		if e.Signal == syscall.SIGKILL && s.How == "term" {
			s.How = "kill" // the tool sends it itself where its patience ends
		}
	}
	s.Took = time.Since(start)
	tail, terr := t.LogTail(TailLines)
	if s.LogTail = tail; terr != nil && !errors.Is(terr, fs.ErrNotExist) {
		err = errors.Join(err, terr)
	}
	if s.Gone() && err == nil {
		err = removeState(t.spec.StatePath)
	}
	t.stopped = matrix.Some(s)
	return s, err
}

// removeContainers removes every container of a load and proves that the tool knows none any more.
func removeContainers(ctx context.Context, c Container, loadID string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	filter := "label=" + LoadLabel + "=" + loadID
	ids, err := c.ask(ctx, "ps", "--all", "--quiet", "--no-trunc", "--filter", filter)
	if err != nil {
		return err
	}
	for _, id := range strings.Fields(ids) {
		if _, rerr := c.ask(ctx, "rm", "--force", id); rerr != nil {
			err = errors.Join(err, rerr)
		}
	}
	left, lerr := c.ask(ctx, "ps", "--all", "--quiet", "--filter", filter)
	if left != "" {
		err = errors.Join(err, fmt.Errorf("containers of load %s are still there: %s: remove them by hand", loadID, strings.ReplaceAll(left, "\n", " ")))
	}
	return errors.Join(err, lerr)
}

// recoverContainer stops the containers of a load that an earlier broker left.
func recoverContainer(ctx context.Context, st State, statePath string, deadline time.Duration) (matrix.Stopped, error) {
	start := time.Now()
	c := Container{Tool: st.Tool}
	s := matrix.Stopped{How: "gone_before"}
	live, err := c.ask(ctx, "ps", "--quiet", "--filter", "label="+LoadLabel+"="+st.LoadID)
	for _, id := range strings.Fields(live) {
		s.How = "term"
		_, serr := c.ask(context.WithoutCancel(ctx), "stop", "-t", strconv.Itoa(int(deadline.Seconds())), id)
		err = errors.Join(err, serr)
	}
	err = errors.Join(err, removeContainers(ctx, c, st.LoadID))
	if root, ok := st.Root.Get(); ok {
		if now, serr := readStat(root.PID); serr == nil && now.start == root.StartTime && !now.zombie {
			s.Survivors = []matrix.Process{root}
		}
	}
	s.Took, s.PortFree = time.Since(start), true // whoever has the port now is met by the next start
	if err == nil && s.Gone() {
		err = errors.Join(st.removeDir(), removeState(statePath))
	}
	return s, err
}

// container is what a tool says of a container.
type container struct {
	State struct {
		Pid, ConmonPid, ExitCode int
		OOMKilled                bool
		StartedAt                string
	}
	RestartCount int
	HostConfig   struct {
		RestartPolicy struct{ Name string }
		Memory        int64
	}
}

func (x container) restarts() bool {
	return x.HostConfig.RestartPolicy.Name != "" && x.HostConfig.RestartPolicy.Name != "no"
}

func (t *contained) inspect(ctx context.Context) (container, error) {
	id := t.id()
	if id == "" {
		return container{}, errors.New("no container yet")
	}
	out, err := t.ask(ctx, "inspect", "--type", "container", id)
	if err != nil {
		return container{}, err
	}
	var list []container
	if err := json.NewDecoder(bytes.NewReader([]byte(out))).Decode(&list); err != nil {
		return container{}, fmt.Errorf("inspect %s: not understood: %w", id, err)
	}
	if len(list) != 1 {
		return container{}, fmt.Errorf("inspect %s: %d containers answer to it", id, len(list))
	}
	return list[0], nil
}
