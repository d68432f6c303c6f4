package process

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"enginebroker/matrix"
)

// image is what a local image is, as its tool says.
type image struct {
	ID         string // sha256:…
	Digests    []string
	Arch       string
	Entrypoint []string
	Cmd        []string
}

// imageByDigest demands a digest or an id: a tag moves, and says nothing about what runs.
var imageByDigest = regexp.MustCompile(`^([^@\s]+@)?sha256:[0-9a-f]{64}$`)

// ask runs the tool and returns its standard output.
func (c Container) ask(ctx context.Context, args ...string) (string, error) {
	argv := append(slices.Clone(c.Tool), args...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var errOut strings.Builder
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, end(errOut.String()))
	}
	return strings.TrimSpace(string(out)), nil
}

// end is the end of an output, where tools and tracebacks say what went wrong.
func end(out string) string {
	out = strings.TrimSpace(out)
	return out[max(0, len(out)-300):]
}

// image inspects the image as it lies on this machine; nothing is ever pulled.
func (c Container) image(ctx context.Context) (image, error) {
	out, err := c.ask(ctx, "image", "inspect", c.Image)
	if err != nil {
		return image{}, fmt.Errorf("image %s is not on this machine (%w): pull it by hand, nothing is pulled here", c.Image, err)
	}
	img, err := parseImage([]byte(out))
	if err == nil && img.Arch != "" && img.Arch != runtime.GOARCH {
		err = fmt.Errorf("image %s is for %s, this machine is %s: pull the variant of this machine by its own digest", c.Image, img.Arch, runtime.GOARCH)
	}
	return img, err
}

// parseImage reads `image inspect` of docker and of podman.
func parseImage(b []byte) (image, error) {
	var list []struct {
		ID           string `json:"Id"`
		Digest       string // podman
		RepoDigests  []string
		Architecture string
		Config       struct{ Entrypoint, Cmd []string }
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return image{}, fmt.Errorf("image inspect: %w", err)
	}
	if len(list) != 1 || list[0].ID == "" {
		return image{}, fmt.Errorf("image inspect: %d images, want one with an id", len(list))
	}
	x := list[0]
	img := image{ID: "sha256:" + strings.TrimPrefix(x.ID, "sha256:"), Arch: x.Architecture, Entrypoint: x.Config.Entrypoint, Cmd: x.Config.Cmd}
	for _, d := range append(x.RepoDigests, x.Digest) {
		if _, digest, ok := strings.Cut("@"+d, "@sha256:"); ok {
			img.Digests = append(img.Digests, "sha256:"+digest[strings.LastIndex(digest, ":")+1:])
		}
	}
	slices.Sort(img.Digests)
	img.Digests = slices.Compact(img.Digests)
	return img, nil
}

// digest is what the image is known by: the digest it was asked for where it has that one, else its id.
func (i image) digest(asked string) string {
	_, d, _ := strings.Cut("@"+asked, "@sha256:")
	if d = "sha256:" + d[strings.LastIndex(d, ":")+1:]; slices.Contains(i.Digests, d) {
		return d
	}
	return i.ID
}

// arguments chooses the form of the server's arguments by the image's entrypoint, which is never overridden: images set up
// CUDA's forward compatibility there (bugs.md N03). Where the entrypoint ends in the server's own command, the arguments
// follow it; before any other one, and without one, the command comes first. The image's Cmd is replaced in any case.
func arguments(entrypoint []string, forms [][]string, args []string) []string {
	if len(forms) == 0 || entryForm(entrypoint, forms) != nil {
		return args
	}
	return append(slices.Clone(forms[0]), args...)
}

// entryForm is the form that an entrypoint ends in, or nil.
func entryForm(entrypoint []string, forms [][]string) []string {
	for _, form := range forms {
		if n := len(entrypoint) - len(form); n >= 0 && slices.EqualFunc(entrypoint[n:], form, func(a, b string) bool { return path.Base(a) == path.Base(b) }) {
			return form
		}
	}
	return nil
}

// LoadLabel is the label that names the load of a container, so that a later start finds it.
const LoadLabel = "enginebroker.load"

// ownVariables are those the tool itself reads; their values for the server are given on its command line.
var ownVariables = []string{"PATH", "HOME", "XDG_RUNTIME_DIR", "DOCKER_HOST", "CONTAINER_HOST", "TMPDIR"}

// command is the whole command line that starts a container, for docker and podman alike, and the environment of the tool.
// Values of variables stand in that environment and not on the command line, where every user of the machine could read them.
func (c Container) command(s Spec, img image, cidfile string) (argv, env []string) {
	argv = append(slices.Clone(c.Tool), "run", "--pull=never", "--restart=no", "--network=host", "--sig-proxy=false", "--log-driver=none",
		"--name="+containerName(s.LoadID), "--label="+LoadLabel+"="+s.LoadID, "--cidfile="+cidfile, c.user())
	argv = append(argv, c.gpu()...)
	for _, m := range c.Mounts {
		mount := "--mount=type=bind,source=" + cmp.Or(m.From, m.Path) + ",target=" + m.Path
		if !m.Write {
			mount += ",readonly"
		}
		argv = append(argv, mount)
	}
	vars := map[string]string{MarkerName: s.LoadID}
	for k, v := range s.Env {
		vars[k] = v
	}
	for _, kv := range environ(vars) {
		name, _, _ := strings.Cut(kv, "=")
		if slices.Contains(ownVariables, name) {
			argv = append(argv, "--env="+kv)
			continue
		}
		argv, env = append(argv, "--env="+name), append(env, kv)
	}
	argv = append(append(argv, c.Options...), img.ID)
	return append(argv, arguments(img.Entrypoint, c.Forms, s.Argv)...), env
}

func (c Container) user() string {
	return "--user=" + cmp.Or(c.User, fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid()))
}

// gpu is the option that gives the container its GPUs, or none.
func (c Container) gpu() []string {
	switch {
	case c.GPU == "":
		return nil
	case path.Base(c.Tool[0]) == "podman":
		return []string{"--device=nvidia.com/gpu=" + c.GPU}
	}
	return []string{"--gpus=" + c.GPU}
}

var notInName = regexp.MustCompile(`[^A-Za-z0-9_.-]`)

func containerName(loadID string) string { return "broker-" + notInName.ReplaceAllString(loadID, "-") }

// Mount is a path of this machine that a container sees under the same name.
type Mount struct {
	Path  string
	From  string // where it lies on this machine; empty: Path
	Write bool
}

// WeightMounts lists what has to be mounted to read a path: itself, a file with those beside it, and where its links lead out
// of it, as the snapshots of a Hugging Face cache do.
func WeightMounts(root string) ([]Mount, error) {
	st, err := os.Stat(root)
	if err != nil {
		return nil, err
	}
	if !st.IsDir() {
		return leads([]Mount{{Path: filepath.Dir(root)}}, root) // the parts of a split file lie beside it
	}
	seen := []Mount{{Path: root}}
	err = filepath.WalkDir(root+"/", func(p string, d os.DirEntry, err error) error {
		if err == nil && d.Type()&os.ModeSymlink != 0 {
			seen, err = leads(seen, p)
		}
		return err
	})
	return seen, err
}

// leads adds what a link leads to. Inside, a link leads where its text says, since the directories above it are no links
// there; on this machine it leads where they are.
func leads(seen []Mount, link string) ([]Mount, error) {
	inside, here := link, link
	for range maxLinks {
		to, err := os.Readlink(here)
		if errors.Is(err, unix.EINVAL) {
			return seen, nil // the file that it all leads to
		}
		if err != nil {
			return nil, err
		}
		if filepath.IsAbs(to) {
			inside, here = to, to
		} else {
			dir, err := filepath.EvalSymlinks(filepath.Dir(here))
			if err != nil {
				return nil, err
			}
			inside, here = filepath.Join(filepath.Dir(inside), to), filepath.Join(dir, to)
		}
		st, err := os.Lstat(here)
		if err != nil {
			return nil, err
		}
		m := Mount{Path: inside, From: here}
		if !st.IsDir() {
			m = Mount{Path: filepath.Dir(inside), From: filepath.Dir(here)}
		}
		if m.From == m.Path {
			m.From = ""
		}
		if !slices.ContainsFunc(seen, func(s Mount) bool { return m.Path == s.Path || strings.HasPrefix(m.Path, s.Path+"/") }) {
			seen = append(seen, m)
		}
	}
	return nil, fmt.Errorf("%s: symbolic links in a loop", link)
}

// maxLinks is how many links the kernel follows (path_resolution(7)).
const maxLinks = 40

// Mounts are those of a load: its weights and those of its drafter, read-only, and its private caches, for which there is a
// directory then: a tool mounts no other.
func Mounts(r matrix.StartRequest) ([]Mount, error) {
	var out []Mount
	_, drafter, named := strings.Cut(r.Policy.Drafter, ":") // eagle3:PATH
	if !named {
		drafter = r.Policy.Drafter
	}
	for _, root := range []string{r.Artifact.Path, drafter} {
		if !filepath.IsAbs(root) {
			continue
		}
		list, err := WeightMounts(root)
		if err != nil {
			return nil, err
		}
		for _, m := range list {
			if !slices.Contains(out, m) {
				out = append(out, m)
			}
		}
	}
	if r.CacheDir == "" {
		return out, nil
	}
	return append(out, Mount{Path: r.CacheDir, Write: true}), os.MkdirAll(r.CacheDir, 0o755)
}

// refusedOptions would make the container something else than it is recorded as.
var refusedOptions = []struct{ prefix, why string }{
	{"--entrypoint", "the entrypoint is never overridden: images set up CUDA there"},
	{"--restart", "a restart policy brings a dead server back under the same name"},
	{"--pull", "nothing is pulled"}, {"--network", "the network is the host's"}, {"--net", "the network is the host's"},
	{"--name", "set here"}, {"--cidfile", "set here"}, {"--detach", "the tool follows the server"},
	{"--volume", unmeasured}, {"--mount", unmeasured}, {"--volumes-from", unmeasured}, {"--tmpfs", unmeasured}, {"--image-volume", unmeasured}, {"--secret", unmeasured},
	{"--rootfs", "the engine is the image"}, {"--user", "set user"}, {"--workdir", "set by the image"}, {"--env-host", "nothing is inherited: name the variables under env"},
	{"--rm", "a container that removed itself cannot say how it ended"}, {"--log-driver", "set here"}, {"--pid", "the container's processes are told by their own namespace"},
	{"--env-file", "name the variables under env"}, {"--gpus", "set gpu"},
}

const unmeasured = "files that lie over those of the image are in no digest of it: build them into the image; weights and caches are mounted here"

// shorthands of refused options. Letters of booleans may stand before them in one word: -itd.
var shorthands = map[rune]string{'d': "--detach", 'u': "--user", 'v': "--volume", 'w': "--workdir"}

// refused says why an option of run is not taken, empty where it is.
func refused(option string) string {
	name, _, _ := strings.Cut(option, "=")
	if strings.HasPrefix(name, "-") && !strings.HasPrefix(name, "--") {
		if at := strings.IndexFunc(name[1:], func(r rune) bool { return !strings.ContainsRune("itPq", r) }); at >= 0 {
			name = shorthands[rune(name[1+at])]
		}
	}
	name, _, _ = strings.Cut(name, " ")
	for _, r := range refusedOptions {
		if name == r.prefix {
			return r.why
		}
	}
	return ""
}

func (c Container) check() error {
	if len(c.Tool) == 0 {
		return fmt.Errorf("runtime: no container tool: install podman or docker, or name it")
	}
	if !imageByDigest.MatchString(c.Image) {
		return fmt.Errorf("image: %q is no digest: a tag moves; write NAME@sha256:… or sha256:…", c.Image)
	}
	for _, o := range c.Options {
		if why := refused(o); why != "" {
			return fmt.Errorf("run_args: %s: %s", o, why)
		}
	}
	for _, m := range c.Mounts {
		if strings.ContainsAny(m.Path, ",\n") || !filepath.IsAbs(m.Path) {
			return fmt.Errorf("%q cannot be mounted: it needs an absolute path without a comma", m.Path)
		}
	}
	return nil
}

// Kind is container.
func (Container) Kind() matrix.Runtime { return matrix.RuntimeContainer }
