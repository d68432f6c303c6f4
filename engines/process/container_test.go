package process

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"enginebroker/matrix"
)

var someDigest = digestOf("a")

func digestOf(c string) string { return "sha256:" + strings.Repeat(c, 64) }

// The whole command line, for both tools: image by digest, entrypoint untouched, no restart, no pull, host network, our user,
// weights read-only, no value of a variable in sight.
func TestContainerCommand(t *testing.T) {
	s := Spec{LoadID: "0001-g0 b", Argv: []string{"--port", "8000"}, Env: map[string]string{"VLLM_API_KEY": "secret", "HOME": "/cache"}}
	img := image{ID: someDigest, Entrypoint: []string{"vllm", "serve"}}
	common := []string{"run", "--pull=never", "--restart=no", "--network=host", "--sig-proxy=false", "--log-driver=none", "--name=broker-0001-g0-b",
		"--label=enginebroker.load=0001-g0 b", "--cidfile=/x/cid", "--user=1000:1000"}
	rest := []string{"--mount=type=bind,source=/weights,target=/weights,readonly", "--mount=type=bind,source=/disk/blobs,target=/blobs,readonly", "--mount=type=bind,source=/cache,target=/cache",
		"--env=BROKER_LOAD_ID", "--env=HOME=/cache", "--env=VLLM_API_KEY", "--ipc=host", someDigest, "--port", "8000"}
	for name, c := range map[string]struct {
		tool []string
		gpu  string
		want []string
	}{
		"docker":         {[]string{"docker"}, "", slices.Concat([]string{"docker"}, common, rest)},
		"docker, GPU":    {[]string{"docker"}, "all", slices.Concat([]string{"docker"}, common, []string{"--gpus=all"}, rest)},
		"podman":         {[]string{"/usr/bin/podman", "--storage-driver=vfs"}, "", slices.Concat([]string{"/usr/bin/podman", "--storage-driver=vfs"}, common, rest)},
		"podman and GPU": {[]string{"podman"}, "all", slices.Concat([]string{"podman"}, common, []string{"--device=nvidia.com/gpu=all"}, rest)},
	} {
		t.Run(name, func(t *testing.T) {
			k := Container{Tool: c.tool, Image: someDigest, Forms: [][]string{{"vllm", "serve"}}, Mounts: []Mount{{Path: "/weights"}, {Path: "/blobs", From: "/disk/blobs"}, {Path: "/cache", Write: true}},
				User: "1000:1000", GPU: c.gpu, Options: []string{"--ipc=host"}}
			argv, env := k.command(s, img, "/x/cid")
			if d := cmp.Diff(c.want, argv); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff([]string{"BROKER_LOAD_ID=0001-g0 b", "VLLM_API_KEY=secret"}, env); d != "" {
				t.Error(d)
			}
		})
	}
}

// bugs.md N03: the form of the arguments follows the image's entrypoint.
func TestContainerArguments(t *testing.T) {
	forms := [][]string{{"vllm", "serve"}, {"python3", "-m", "vllm.entrypoints.openai.api_server"}}
	args := []string{"--port", "1"}
	for name, c := range map[string]struct{ entrypoint, want []string }{
		"no entrypoint":       {nil, []string{"vllm", "serve", "--port", "1"}},
		"a wrapper":           {[]string{"/opt/nvidia/nvidia_entrypoint.sh"}, []string{"vllm", "serve", "--port", "1"}},
		"the server":          {[]string{"/usr/bin/vllm", "serve"}, args},
		"wrapper and server":  {[]string{"/opt/entry.sh", "vllm", "serve"}, args},
		"its older form":      {[]string{"python3", "-m", "vllm.entrypoints.openai.api_server"}, args},
		"half of the command": {[]string{"vllm"}, []string{"vllm", "serve", "--port", "1"}},
	} {
		if got := arguments(c.entrypoint, forms, args); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestContainerImage(t *testing.T) {
	for name, c := range map[string]struct{ json, digest, asked string }{
		"docker": {`[{"Id":"` + someDigest + `","RepoDigests":["vllm/vllm-openai@` + digestOf("b") + `"],"Architecture":"arm64","Config":{"Entrypoint":["vllm","serve"],"Cmd":null}}]`,
			digestOf("b"), "vllm/vllm-openai@" + digestOf("b")},
		"podman": {`[{"Id":"` + someDigest[7:] + `","Digest":"` + digestOf("c") + `","RepoDigests":[],"Config":{"Entrypoint":["vllm","serve"]}}]`,
			someDigest, someDigest},
	} {
		img, err := parseImage([]byte(c.json))
		if err != nil || img.ID != someDigest || !slices.Equal(img.Entrypoint, []string{"vllm", "serve"}) || img.digest(c.asked) != c.digest {
			t.Errorf("%s: %+v %v, digest %s", name, img, err, img.digest(c.asked))
		}
	}
	for _, bad := range []string{"", "[]", "{}", "[{}]", `[{"Id":"x"},{"Id":"y"}]`} {
		if _, err := parseImage([]byte(bad)); err == nil {
			t.Errorf("%q is an image", bad)
		}
	}
}

func TestContainerSettings(t *testing.T) {
	get := func(m map[string]string) func(string) string { return func(k string) string { return m[k] } }
	if c, bad := NewContainer(get(nil)); c != nil || len(bad) > 0 {
		t.Error("a container without an image")
	}
	for name, c := range map[string]struct {
		set  map[string]string
		says string
	}{
		"a tag":          {map[string]string{"image": "vllm/vllm-openai:v0.32.0", "runtime": "docker"}, "image: "},
		"an entrypoint":  {map[string]string{"image": someDigest, "runtime": "docker", "run_args": "--entrypoint="}, "run_args: --entrypoint="},
		"restart policy": {map[string]string{"image": someDigest, "runtime": "docker", "run_args": "--ipc=host,--restart=always"}, "restart policy"},
		"a volume":       {map[string]string{"image": someDigest, "runtime": "docker", "run_args": "--ipc=host,--volume=/x:/opt/engine"}, "run_args: --volume=/x:/opt/engine: files that lie over"},
		"-v in two":      {map[string]string{"image": someDigest, "runtime": "docker", "run_args": "-v,/x:/opt/engine"}, "run_args: -v: files that lie over"},
		"-v in one":      {map[string]string{"image": someDigest, "runtime": "docker", "run_args": "-itv/x:/opt/engine"}, "files that lie over"},
		"a mount":        {map[string]string{"image": someDigest, "runtime": "docker", "run_args": "--mount type=bind"}, "files that lie over"},
		"a user":         {map[string]string{"image": someDigest, "runtime": "docker", "run_args": "-u=0"}, "set user"},
		"detached":       {map[string]string{"image": someDigest, "runtime": "docker", "run_args": "-itd"}, "the tool follows the server"},
	} {
		k, bad := NewContainer(get(c.set))
		if k != nil || len(bad) != 1 || !strings.Contains(bad[0].Error(), c.says) {
			t.Errorf("%s: %v %v", name, k, bad)
		}
	}
	k, bad := NewContainer(get(map[string]string{"image": "x@" + someDigest, "runtime": "podman --storage-driver=vfs", "run_args": "--ipc=host, --shm-size=1g,-m=4g,-it"}))
	if len(bad) > 0 || !slices.Equal(k.Tool, []string{"podman", "--storage-driver=vfs"}) || !slices.Equal(k.Options, []string{"--ipc=host", "--shm-size=1g", "-m=4g", "-it"}) {
		t.Errorf("%+v %v", k, bad)
	}
}

// A snapshot of a Hugging Face cache is links into the folder of blobs beside it. Where the cache itself is reached through a
// link, the links lead elsewhere inside than here.
func TestWeightMounts(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at := func(p string) string { return filepath.Join(dir, p) }
	for _, d := range []string{"disk/hub/snapshots/rev", "disk/hub/blobs", "other", "loop"} {
		if err := os.MkdirAll(at(d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.WriteFile(at("disk/hub/blobs/b1"), nil, 0o644), os.WriteFile(at("disk/hub/snapshots/rev/own"), nil, 0o644), os.WriteFile(at("other/b2"), nil, 0o644),
		os.Symlink("../../blobs/b1", at("disk/hub/snapshots/rev/model.gguf")), os.Symlink(at("disk"), at("home")), os.Symlink("disk/hub/snapshots", at("short")),
		os.Symlink("b", at("loop/a")), os.Symlink("a", at("loop/b"))); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		root string
		want []Mount
	}{
		"a snapshot":           {"disk/hub/snapshots/rev", []Mount{{Path: at("disk/hub/snapshots/rev")}, {Path: at("disk/hub/blobs")}}},
		"of a linked cache":    {"home/hub/snapshots/rev", []Mount{{Path: at("home/hub/snapshots/rev")}, {Path: at("home/hub/blobs"), From: at("disk/hub/blobs")}}},
		"of a linked folder":   {"short/rev", []Mount{{Path: at("short/rev")}, {Path: at("blobs"), From: at("disk/hub/blobs")}}},
		"one file of it":       {"disk/hub/snapshots/rev/model.gguf", []Mount{{Path: at("disk/hub/snapshots/rev")}, {Path: at("disk/hub/blobs")}}},
		"a file without links": {"other/b2", []Mount{{Path: at("other")}}},
		"a link to a folder":   {"short", []Mount{{Path: at("short")}, {Path: at("blobs"), From: at("disk/hub/blobs")}}},
	} {
		if got, err := WeightMounts(at(c.root)); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v %v, want %v", name, got, err, c.want)
		}
	}
	for _, bad := range []string{"loop", "loop/a", "nowhere"} {
		if got, err := WeightMounts(at(bad)); err == nil {
			t.Errorf("%s: %v", bad, got)
		}
	}
}

// What a load reads is mounted read-only: its weights, and the model of its drafter. What it compiles is written.
func TestMounts(t *testing.T) {
	weights, drafter, cache := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "not/there/yet")
	r := matrix.StartRequest{Artifact: matrix.Artifact{Path: weights}, CacheDir: cache}
	for drafted, want := range map[string][]Mount{
		"":                        {{Path: weights}, {Path: cache, Write: true}},
		"mtp":                     {{Path: weights}, {Path: cache, Write: true}},
		drafter:                   {{Path: weights}, {Path: drafter}, {Path: cache, Write: true}},
		"eagle3:" + drafter:       {{Path: weights}, {Path: drafter}, {Path: cache, Write: true}},
		"draft-simple:" + weights: {{Path: weights}, {Path: cache, Write: true}},
	} {
		r.Policy.Drafter = drafted
		if got, err := Mounts(r); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v %v", drafted, got, err)
		}
	}
	if st, err := os.Stat(cache); err != nil || !st.IsDir() {
		t.Errorf("no directory to mount: %v", err)
	}
}

// podman is the tool of the real tests: from Debian, as root, with the options that work without a Docker engine.
var podman = []string{"podman", "--storage-driver=vfs", "--runtime=runc", "--cgroup-manager=cgroupfs"}

// built are the images that images made, for removeImages.
var built []string

func removeImages() {
	for _, id := range built {
		_ = exec.Command(podman[0], append(slices.Clone(podman[1:]), "rmi", "--force", id)...).Run() // another test run may use it
	}
}

// images builds the images of the tests once, around the simulated engine.
var images = sync.OnceValues(func() (map[string]string, error) {
	dir, err := os.MkdirTemp("", "images-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	for name, pkg := range map[string]string{"simulated": "../../plugins/simulated", "wrapper": "./testdata/inside"} {
		build := exec.Command("go", "build", "-o", filepath.Join(dir, name), pkg)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w", out, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "engine.so"), []byte("kernels of this release"), 0o644); err != nil {
		return nil, err
	}
	ids := map[string]string{}
	for name, entrypoint := range map[string]string{"server": `["/simulated","serve"]`, "wrapper": `["/wrapper"]`, "sleep": `["/sleep"]`} {
		file := "FROM scratch\nCOPY simulated wrapper engine.so /\nCOPY wrapper /sleep\nENTRYPOINT " + entrypoint + "\n"
		if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(file), 0o644); err != nil {
			return nil, err
		}
		out, err := exec.Command(podman[0], append(slices.Clone(podman[1:]), "build", "--quiet", dir)...).Output()
		if err != nil {
			return nil, fmt.Errorf("podman build: %w", err)
		}
		ids[name] = "sha256:" + strings.TrimSpace(string(out))
		built = append(built, ids[name])
	}
	return ids, nil
})

// contains prepares a start of the simulated engine in one of the images; it skips where there is no podman that works.
func contains(t *testing.T, name string, args ...string) (Container, Start) {
	t.Helper()
	for _, tool := range []string{"podman", "runc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("no %s here: apt-get install --no-install-recommends podman runc", tool)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("podman is used as root here")
	}
	ids, err := images()
	if err != nil {
		t.Skipf("podman does not build images here: %v", err)
	}
	c := Container{Tool: podman, Image: ids[name], Forms: [][]string{{"/simulated", "serve"}}, Options: []string{"--ulimit=nofile=20000:20000", "--ulimit=nproc=1000:1000"}}
	s := spec(t, "")
	addr := "127.0.0.1:" + strconv.Itoa(s.Port)
	s.Argv = append([]string{"--addr=" + addr, "--model=m"}, args...)
	return c, Start{Runtime: c, Spec: s, Limit: time.Minute, Causes: ContainerCauses, Ready: func(ctx context.Context, _ Tree, _ func(matrix.Progress)) error {
		for {
			req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/v1/models", nil)
			resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
			if err == nil {
				resp.Body.Close()
				return nil
			}
			select {
			case <-ctx.Done():
				return err
			case <-time.After(50 * time.Millisecond):
			}
		}
	}}
}

func launched(t *testing.T, s Start) Tree {
	t.Helper()
	tree, err := Launch(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := tree.Stop(context.Background(), 10*time.Second); err != nil {
			t.Error(err)
		}
	})
	return tree
}

// gone demands that nothing of a load is left: no process, no container, no state file.
func gone(t *testing.T, c Container, tree Tree, s Spec) {
	t.Helper()
	for _, p := range mustProcesses(t, tree) {
		t.Errorf("process %d %s is left", p.PID, p.Exe)
	}
	if out, err := c.ask(context.Background(), "ps", "--all", "--quiet", "--filter", "label="+LoadLabel+"="+s.LoadID); err != nil || out != "" {
		t.Errorf("containers are left: %q %v", out, err)
	}
	if err := CheckPortFree(s.Host, s.Port); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(s.StatePath); !os.IsNotExist(err) {
		t.Errorf("the state file: %v", err)
	}
}

func mustProcesses(t *testing.T, tree Tree) []matrix.Process {
	t.Helper()
	live, err := tree.Processes()
	if err != nil {
		t.Fatal(err)
	}
	return live
}

func mustFacts(t *testing.T, tree Tree) matrix.Facts {
	t.Helper()
	f, err := ContainerFacts(t.Context(), tree)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestContainerServerAsEntrypoint(t *testing.T) {
	c, s := contains(t, "server")
	tree := launched(t, s)
	if live := mustProcesses(t, tree); len(live) != 1 || live[0].Exe != "/simulated" {
		t.Errorf("%+v", live)
	}
	if d := cmp.Diff(append([]string{"/simulated", "serve"}, s.Spec.Argv...), tree.Launched().Argv); d != "" {
		t.Error(d)
	}
	facts := mustFacts(t, tree)
	for name, want := range map[string]string{matrix.FactImage: c.Image, FactImageID: c.Image, FactContainerAgain: "0", FactContainerEntry: `["/simulated" "serve"] []`} {
		if got := facts.Value(name).Or(""); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	stopped, err := tree.Stop(t.Context(), 10*time.Second)
	if err != nil || !stopped.Gone() || stopped.How != "term" || stopped.Exit.Or(-1) != 0 {
		t.Errorf("%+v %v", stopped, err)
	}
	gone(t, c, tree, s.Spec)
}

// bugs.md N03: what a wrapper sets reaches the server.
func TestContainerWrapperAsEntrypoint(t *testing.T) {
	c, s := contains(t, "wrapper")
	s.Spec.Env = map[string]string{"SIMULATED_TOKEN": "x"}
	tree := launched(t, s)
	live := mustProcesses(t, tree)
	if len(live) != 1 || live[0].Exe != "/simulated" {
		t.Fatalf("%+v", live)
	}
	env, err := os.ReadFile("/proc/" + strconv.Itoa(live[0].PID) + "/environ")
	if err != nil || !strings.Contains(string(env), "WRAPPED=1") || !strings.Contains(string(env), "SIMULATED_TOKEN=x") {
		t.Errorf("environment %q %v", env, err)
	}
	if _, err := tree.Stop(t.Context(), 10*time.Second); err != nil {
		t.Error(err)
	}
	gone(t, c, tree, s.Spec)
}

// bugs.md N02: process 1 sleeps, and the server was started beside it: the arm is the owner of the socket, and nothing of the
// container outlives the stop.
func TestContainerSleepAsFirstProcess(t *testing.T) {
	c, s := contains(t, "sleep")
	s.Spec.Argv = nil
	ready := s.Ready
	c.Forms, s.Runtime = nil, Container{Tool: c.Tool, Image: c.Image, Options: c.Options}
	s.Ready = func(ctx context.Context, tree Tree, say func(matrix.Progress)) error {
		if _, err := c.ask(ctx, "exec", "--detach", tree.(*contained).id(), "/simulated", "serve", "--addr=127.0.0.1:"+strconv.Itoa(s.Spec.Port), "--model=m", "--fork_child=true"); err != nil {
			return err
		}
		return ready(ctx, tree, say)
	}
	tree := launched(t, s)
	live := mustProcesses(t, tree)
	if len(live) != 3 || live[0].Exe != "/simulated" || live[1].PID != tree.Launched().Root.PID {
		t.Errorf("%+v, first process %d", live, tree.Launched().Root.PID)
	}
	stopped, err := tree.Stop(t.Context(), 10*time.Second)
	if err != nil || !stopped.Gone() {
		t.Errorf("%+v %v", stopped, err)
	}
	gone(t, c, tree, s.Spec)
}

// bugs.md N01: the digest of a patched container is a lie; the facts say what was patched.
func TestContainerPatchedWhileRunning(t *testing.T) {
	c, s := contains(t, "server")
	tree := launched(t, s)
	patch := filepath.Join(t.TempDir(), "patch")
	if err := os.WriteFile(patch, []byte("kernels of somebody"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := c.ask(t.Context(), "cp", patch, tree.(*contained).id()+":/engine.so"); err != nil {
		t.Fatal(err)
	}
	facts := mustFacts(t, tree)
	if got := facts.Value(matrix.FactImage).Or(""); !strings.HasPrefix(got, c.Image+" changed ") {
		t.Errorf("image %q", got)
	}
	if got := facts.Value(FactContainerChange).Or(""); !strings.HasPrefix(got, "C /engine.so ") && !strings.HasPrefix(got, "A /engine.so ") {
		t.Errorf("change %q", got)
	}
}

// bugs.md N04: somebody's container that comes back by itself is refused.
func TestContainerRestartPolicy(t *testing.T) {
	c, s := contains(t, "server")
	argv := append(slices.Clone(c.Tool[1:]), "run", "--detach", "--restart=always", "--network=host", "--pull=never")
	argv = append(append(append(argv, c.Options...), c.Image), s.Spec.Argv...)
	out, err := exec.Command(c.Tool[0], argv...).Output()
	if err != nil {
		t.Skipf("podman does not run here: %v", err)
	}
	id := strings.TrimSpace(string(out))
	defer c.ask(context.Background(), "rm", "--force", id)
	pid, err := c.ask(t.Context(), "inspect", id, "--format", "{{.State.Pid}}")
	if err != nil {
		t.Fatal(err)
	}
	n, _ := strconv.Atoi(pid)
	if got, err := InContainer(t.Context(), c.Tool, n); got != id || err == nil || !strings.Contains(err.Error(), "restart policy always") {
		t.Errorf("%s: %v", got, err)
	}
	if got, err := InContainer(t.Context(), c.Tool, os.Getpid()); got != "" || err != nil {
		t.Skipf("this test runs in a container itself: %s %v", got, err)
	}
}

// A broker that was killed left a container; the next start finds it by its label.
func TestContainerRecover(t *testing.T) {
	c, s := contains(t, "server", "--ignore_sigterm=true")
	tree, err := Launch(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Start(t.Context(), s.Spec); err == nil {
		t.Error("a state file of a running container was overwritten")
	}
	stopped, err := Local{}.Recover(t.Context(), s.Spec.StatePath, time.Second)
	if err != nil || !stopped.Gone() {
		t.Fatalf("%+v %v", stopped, err)
	}
	<-tree.Done()
	gone(t, c, tree, s.Spec)
	if _, err := tree.Stop(t.Context(), time.Second); err != nil {
		t.Error(err)
	}
}

// A server that ends while it loads is a failed start with its own words, and leaves no container.
func TestContainerEndsDuringTheStart(t *testing.T) {
	c, s := contains(t, "server", "--exit_during_load=true")
	_, err := Launch(t.Context(), s)
	f, ok := errors.AsType[*matrix.StartFailure](err)
	if !ok || f.Code != CodeExited || f.Exit.Or(-1) != 1 || !slices.ContainsFunc(f.RootCause, func(l string) bool { return strings.Contains(l, "simulated: fatal") }) {
		t.Errorf("%+v", err)
	}
	if out, err := c.ask(t.Context(), "ps", "--all", "--quiet", "--filter", "label="+LoadLabel+"="+s.Spec.LoadID); err != nil || out != "" {
		t.Errorf("containers are left: %q %v", out, err)
	}
	missing := c
	missing.Image = someDigest
	s.Runtime, s.Spec.LogPath = missing, s.Spec.LogPath+"2"
	if _, err := Launch(t.Context(), s); err == nil || !strings.Contains(err.Error(), "is not on this machine") {
		t.Errorf("%v", err)
	}
}

// A container that was asked something and did not answer is removed: a tool that was killed leaves it running.
func TestContainerAskedInVain(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\n[ \"$1\" = image ] && echo '[{\"Id\":\"" + someDigest + "\"}]' && exit\necho \"$@\" >>" + dir + "/calls\n[ \"$1\" = rm ] && exit\necho a long story\necho 'no such device' >&2\nexit 1\n"
	tool := filepath.Join(dir, "docker")
	if err := os.WriteFile(tool, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	c := Container{Tool: []string{tool}, Image: someDigest, Forms: [][]string{{"server"}}, GPU: "all", User: "7:8", Options: []string{"--ipc=host"}}
	for name, ask := range map[string]func() (string, error){
		"--gpus=all --env=COLUMNS=200 --ipc=host " + someDigest + " server --help": func() (string, error) { return c.Help(t.Context(), map[string]string{"COLUMNS": "200"}, "--help") },
		"--ipc=host --entrypoint=python3 " + someDigest + " -c pass":               func() (string, error) { return c.Program(t.Context(), "python3", "-c", "pass") },
	} {
		_ = os.Remove(filepath.Join(dir, "calls"))
		if _, err := ask(); err == nil || !strings.HasSuffix(err.Error(), "exit status 1: a long story\nno such device") {
			t.Errorf("%v", err)
		}
		calls, err := os.ReadFile(filepath.Join(dir, "calls"))
		run, remove, _ := strings.Cut(strings.TrimSpace(string(calls)), "\n")
		container, ok := strings.CutPrefix(remove, "rm --force ")
		if err != nil || !ok || run != "run --rm --pull=never --network=none --name="+container+" --user=7:8 "+name {
			t.Errorf("called %q and %q: %v", run, remove, err)
		}
	}
}
