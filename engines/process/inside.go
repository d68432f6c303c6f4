package process

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"enginebroker/engines"
	"enginebroker/matrix"
)

// Names of the facts of a container beside matrix.FactImage.
const (
	FactImageID         = "image.id"
	FactContainerTool   = "container.runtime"    // name and version
	FactContainerEntry  = "container.entrypoint" // of the image, then its Cmd
	FactContainerChange = "container.change"     // "KIND PATH sha256" of a file that differs from the image, repeated
	FactContainerMemory = "container.memory_limit_bytes"
	FactContainerStart  = "container.started_at"
	FactContainerAgain  = "container.restarts"
)

// ContainerFacts says what a tree in a container is from the outside: its image by digest, the tool, and every file that was
// changed since the start. An image that was patched while it runs is another one, so that the image's fact then carries the
// digest of the changes too, and no pin of the digest alone is met (bugs.md N01). Of another tree there are none.
func ContainerFacts(ctx context.Context, tree Tree) (matrix.Facts, error) {
	t, ok := tree.(*contained)
	if !ok {
		return nil, nil
	}
	x, err := t.inspect(ctx)
	if err != nil {
		return nil, err
	}
	changes, err := t.changes(ctx)
	if err != nil {
		return nil, err
	}
	version, err := t.ask(ctx, "--version")
	if err != nil {
		return nil, err
	}
	tool := path.Base(t.Tool[0])
	var facts matrix.Facts
	add := func(name, value, asked string) {
		facts = append(facts, matrix.Fact{Name: name, Value: value, Where: tool + " " + asked, Standing: matrix.Observed})
	}
	digest := t.image.digest(t.Image)
	if len(changes) > 0 {
		sum := sha256.Sum256([]byte(strings.Join(changes, "\n")))
		digest += " changed " + hex.EncodeToString(sum[:8])
	}
	add(matrix.FactImage, digest, "image inspect, diff")
	add(FactImageID, t.image.ID, "image inspect")
	add(FactContainerTool, version, "--version")
	add(FactContainerEntry, fmt.Sprintf("%q %q", t.image.Entrypoint, t.image.Cmd), "image inspect")
	add(FactContainerStart, x.State.StartedAt, "inspect")
	add(FactContainerAgain, strconv.Itoa(x.RestartCount), "inspect")
	if x.HostConfig.Memory > 0 {
		add(FactContainerMemory, strconv.FormatInt(x.HostConfig.Memory, 10), "inspect")
	}
	for _, c := range changes {
		add(FactContainerChange, c, "diff")
	}
	return facts, nil
}

// incidental are the paths that a tool writes by itself, or that hold what a server writes and does not run.
var incidental = regexp.MustCompile(`^/(etc/(passwd|group|hosts|hostname|resolv\.conf|mtab)|(dev|proc|sys|run|tmp)(/.*)?|var/(log|run|tmp|cache)(/.*)?|root/\.cache(/.*)?|home/[^/]+/\.cache(/.*)?)$`)

// changes lists the files of the container that are not those of its image, each with its sha256.
func (t *contained) changes(ctx context.Context) ([]string, error) {
	out, err := t.ask(ctx, "diff", t.id())
	if err != nil {
		return nil, err
	}
	var list []string
	for line := range strings.Lines(out) {
		kind, file, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || incidental.MatchString(file) || slices.ContainsFunc(t.Mounts, func(m Mount) bool {
			return m.Path == file || strings.HasPrefix(m.Path, file+"/") || strings.HasPrefix(file, m.Path+"/")
		}) {
			continue
		}
		if kind == "D" {
			list = append(list, "D "+file)
			continue
		}
		sum, err := t.sum(file)
		if err != nil {
			return nil, fmt.Errorf("%s of container %.12s: %w", file, t.id(), err)
		}
		if sum != "" {
			list = append(list, kind+" "+file+" "+sum)
		}
	}
	slices.Sort(list)
	return list, nil
}

// sum hashes a file as the container's first process sees it; a directory is known by the files in it.
func (t *contained) sum(file string) (string, error) {
	root, err := os.OpenRoot("/proc/" + strconv.Itoa(t.launched.Root.PID) + "/root")
	if err != nil {
		return "", err
	}
	defer root.Close()
	name := strings.TrimPrefix(path.Clean(file), "/")
	st, err := root.Lstat(name)
	switch {
	case err != nil:
		return "", err
	case st.IsDir():
		return "", nil
	case st.Mode()&os.ModeSymlink != 0:
		to, err := root.Readlink(name)
		return "-> " + to, err
	case !st.Mode().IsRegular():
		return st.Mode().Type().String(), nil
	}
	f, err := root.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), err
}

// Sum hashes the program of a running process, wherever its file system is.
func Sum(p matrix.Process) (string, error) {
	f, err := os.Open("/proc/" + strconv.Itoa(p.PID) + "/exe")
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), err
}

// InContainer refuses a server that somebody else started in a container which comes back when it dies: what answers after a
// crash would be another server under the same name (bugs.md N04). tool is a container tool; without one, the one that is in
// PATH. The policy of a container that the tool does not know stays unknown.
func InContainer(ctx context.Context, tool []string, pid int) (id string, err error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return "", err
	}
	id = containerID.FindString(string(b))
	if tool = containerTool(tool); id == "" || len(tool) == 0 {
		return id, nil
	}
	if x, unknown := (&contained{Container: Container{Tool: tool}, known: id}).inspect(ctx); unknown == nil && x.restarts() {
		err = fmt.Errorf("process %d runs in container %.12s with restart policy %s: a server that comes back by itself is not the one that was described", pid, id, x.HostConfig.RestartPolicy.Name)
	}
	return id, err
}

// containerTool is the tool that is named, else the one in PATH, else none.
func containerTool(named []string) []string {
	for _, name := range []string{"podman", "docker"} {
		if _, err := exec.LookPath(name); err == nil && len(named) == 0 {
			named = []string{name}
		}
	}
	return named
}

var containerID = regexp.MustCompile(`[0-9a-f]{64}`)

// ContainerSettings are the settings of every adapter that can launch its engine from an image.
var ContainerSettings = []matrix.Setting{
	{Name: "image", Type: "string", Help: "image to run the engine from, by digest: NAME@sha256:… or sha256:…; it is never pulled"},
	{Name: "runtime", Type: "string", Help: "podman or docker, with global options; unset: the one that is in PATH"},
	{Name: "user", Type: "string", Help: "UID:GID in the container; unset: that of the broker"},
	{Name: "gpu", Type: "string", Help: "GPUs for the container: all, or a device; unset: none"},
	{Name: "run_args", Type: "list", Help: "further options of run, such as --ipc=host"},
}

// NewContainer reads ContainerSettings; nil where no image is named. forms are the commands that start the server in images
// whose entrypoint is something else.
func NewContainer(get func(string) string, forms ...[]string) (*Container, []engines.FieldError) {
	if get("image") == "" {
		return nil, nil
	}
	c := &Container{Tool: containerTool(strings.Fields(get("runtime"))), Image: get("image"), Forms: forms, User: get("user"), GPU: get("gpu")}
	for _, o := range strings.Split(get("run_args"), ",") {
		if o = strings.TrimSpace(o); o != "" {
			c.Options = append(c.Options, o)
		}
	}
	if err := c.check(); err != nil {
		field, message, _ := strings.Cut(err.Error(), ": ")
		return nil, []engines.FieldError{{Field: field, Message: message}}
	}
	return c, nil
}

// Installed says what the image is, before anything is started: the build of an engine in a container.
func (c Container) Installed(ctx context.Context) (matrix.Facts, error) {
	img, err := c.image(ctx)
	if err != nil {
		return nil, err
	}
	where := path.Base(c.Tool[0]) + " image inspect"
	return matrix.Facts{
		{Name: matrix.FactBuild, Value: img.ID, Where: where, Standing: matrix.Observed},
		{Name: matrix.FactImage, Value: img.digest(c.Image), Where: where, Standing: matrix.Observed},
		{Name: FactContainerEntry, Value: fmt.Sprintf("%q %q", img.Entrypoint, img.Cmd), Where: where, Standing: matrix.Observed},
	}, nil
}

// Form is the command of the forms that the image's entrypoint ends in, or the first form, which then goes before the
// arguments.
func (c Container) Form(ctx context.Context) ([]string, error) {
	img, err := c.image(ctx)
	if err != nil || len(c.Forms) == 0 {
		return nil, err
	}
	if form := entryForm(img.Entrypoint, c.Forms); form != nil {
		return form, nil
	}
	return c.Forms[0], nil
}

// ID is the id of the image, which names its content.
func (c Container) ID(ctx context.Context) (string, error) {
	img, err := c.image(ctx)
	return img.ID, err
}

// Help runs the server of the image once with arguments that make it print and exit, such as --help, and returns both its
// outputs. A Python engine looks for its device even then, so that the container has the GPU.
func (c Container) Help(ctx context.Context, env map[string]string, args ...string) (string, error) {
	img, err := c.image(ctx)
	if err != nil {
		return "", err
	}
	return c.short(ctx, env, img.ID, arguments(img.Entrypoint, c.Forms, args))
}

// Program runs another program of the image once, and returns both its outputs. The entrypoint stands back for it, which
// decides how a server runs and not what lies in the image.
func (c Container) Program(ctx context.Context, program string, args ...string) (string, error) {
	img, err := c.image(ctx)
	if err != nil {
		return "", err
	}
	c.GPU = ""
	c.Options = append(slices.Clone(c.Options), "--entrypoint="+program)
	return c.short(ctx, nil, img.ID, args)
}

// short runs a container without a network that ends by itself, and removes it in any case.
func (c Container) short(ctx context.Context, env map[string]string, image string, args []string) (string, error) {
	name := "broker-ask-" + strings.ToLower(rand.Text())
	argv := append([]string{"run", "--rm", "--pull=never", "--network=none", "--name=" + name, c.user()}, c.gpu()...)
	for _, kv := range environ(env) {
		argv = append(argv, "--env="+kv)
	}
	argv = slices.Concat(c.Tool, argv, c.Options, []string{image}, args)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil { // a tool that was killed leaves its container running
		_, _ = c.ask(context.WithoutCancel(ctx), "rm", "--force", name)
		return "", fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, end(string(out)))
	}
	return string(out), nil
}

// ContainerCauses are the lines in which a container tool says why nothing started (bugs.md N29).
var ContainerCauses = []Cause{
	{Pattern: regexp.MustCompile(`(?i)exec format error`), Code: "not_installed", Fix: "the image is for another machine than " + runtime.GOARCH + ", or the NVIDIA runtime needs its legacy mode here"},
	{Pattern: regexp.MustCompile(`(?i)failed to initialize nvml|nvidia-container-cli: initialization error`), Code: "not_installed", Fix: "containers lost the GPU, as after a daemon-reload: restart the container service and check nvidia-container-toolkit"},
	{Pattern: regexp.MustCompile(`(?i)setrlimit|error setting rlimit`), Code: "not_installed", Fix: "pass limits that this machine grants, as run_args: [--ulimit=nofile=20000:20000]"},
	{Pattern: regexp.MustCompile(`(?i)executable file not found in \$PATH`), Code: "not_installed", Fix: "the image has no such server: is it the engine's own image?"},
}
