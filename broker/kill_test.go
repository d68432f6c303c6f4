package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	brokerv1 "enginebroker/proto/gen/broker/v1"
)

const killConfig = `
subject: a
workload: brief
box: simulated
plugins: [%q]
workloads:
  brief: {prompt_tokens: 16, output_tokens: 32, concurrency: [1]}
instances:
  a: {plugin: simulated, settings: {dialect: vllm, opens: [safetensors/bf16], ttft: 5ms, itl: 2ms, seed: 1}}
  b: {plugin: simulated, settings: {dialect: sglang, opens: [safetensors/bf16], ttft: 5ms, itl: 2ms, seed: 2}}
`

// house is a folder in which daemons live one after the other.
type house struct {
	t                         testing.TB
	dir, socket, bin, metrics string
	env                       []string
	config                    string
}

func newHouse(t testing.TB) *house {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h := &house{t: t, dir: t.TempDir()}
	h.bin, h.socket, h.config = filepath.Join(h.dir, "broker"), filepath.Join(h.dir, "b.sock"), filepath.Join(h.dir, "broker.yaml")
	// The adapter has a path of its own, so that the processes of this test can be told from others.
	own := filepath.Join(h.dir, "plugins")
	data, err := os.ReadFile(filepath.Join(plugins, "simulated"))
	l, err2 := net.Listen("tcp", "127.0.0.1:0")
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	h.metrics = l.Addr().String()
	if err := errors.Join(l.Close(), os.Mkdir(own, 0o755), os.WriteFile(filepath.Join(own, "simulated"), data, 0o755), os.Symlink(self, h.bin),
		os.WriteFile(h.config, fmt.Appendf(nil, killConfig, own), 0o644)); err != nil {
		t.Fatal(err)
	}
	h.env = append(os.Environ(), "BROKER_RUNTIME_DIR="+h.dir, "HOME="+h.dir)
	return h
}

// life is one daemon, from its start to its end.
type life struct {
	*house
	cmd  *exec.Cmd
	log  string // path
	conn *grpc.ClientConn
	runs brokerv1.RunServiceClient
}

func (h *house) start(ctx context.Context) *life {
	h.t.Helper()
	log, err := os.CreateTemp(h.dir, "daemon-*.log")
	if err != nil {
		h.t.Fatal(err)
	}
	defer log.Close()
	l := &life{house: h, log: log.Name()}
	l.cmd = exec.Command(h.bin, "serve", "--config", h.config, "--runs", filepath.Join(h.dir, "runs"), "--listen", "unix://"+h.socket, "--metrics", h.metrics)
	l.cmd.Env, l.cmd.Stderr = h.env, log
	if err := l.cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = l.cmd.Process.Kill() }) // of a test that failed; the others have ended theirs
	h.until(ctx, "daemon that serves", func() bool { return strings.Contains(h.read(filepath.Base(l.log)), "serving unix://") })
	if l.conn, err = grpc.NewClient("unix://"+h.socket, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		h.t.Fatal(err)
	}
	l.runs = brokerv1.NewRunServiceClient(l.conn)
	return l
}

func (l *life) kill() {
	l.t.Helper()
	if err := l.cmd.Process.Kill(); err != nil {
		l.t.Fatal(err)
	}
	_ = l.cmd.Wait() // killed
	l.conn.Close()
}

func (h *house) read(path ...string) string {
	data, _ := os.ReadFile(filepath.Join(append([]string{h.dir}, path...)...)) // what is not there has no lines
	return string(data)
}

// until polls what lies on disk or in /proc: a killed process tells nothing.
func (h *house) until(ctx context.Context, what string, ok func() bool) {
	h.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			h.t.Fatalf("there is no %s:\n%s", what, h.logs())
		}
	}
}

func (h *house) logs() string {
	var b strings.Builder
	names, _ := filepath.Glob(filepath.Join(h.dir, "daemon-*.log"))
	for _, n := range names {
		data, _ := os.ReadFile(n)
		fmt.Fprintf(&b, "%s:\n%s", filepath.Base(n), data)
	}
	return b.String()
}

// processes are the plugins and engines of the house.
func (h *house) processes() []string {
	var out []string
	entries, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, e := range entries {
		data, _ := os.ReadFile(e)
		if argv := string(bytes.ReplaceAll(data, []byte{0}, []byte{' '})); strings.HasPrefix(argv, filepath.Join(h.dir, "plugins")) {
			out = append(out, argv)
		}
	}
	return out
}

// records counts the ledger's records of a kind.
func (h *house) records(kind string) int {
	return strings.Count(h.read("runs", "r1", "ledger.jsonl"), `"kind":"`+kind+`"`)
}

var kindRule = regexp.MustCompile(`"kind":"[a-z_]+"`)

var endedRule = regexp.MustCompile(`"state":"RUN_STATE_(COMPLETE|FAILED|ABORTED|INTERRUPTED|CANCELLED)"`)

func (h *house) ended() bool {
	return endedRule.MatchString(h.read("runs", ".broker", "jobs", "r1", "job.json"))
}

// watcher follows a run through the lives of daemons by its token.
type watcher struct {
	changes []*brokerv1.WatchRunResponse
	token   *string
}

// follow reads until the daemon is gone or the run has ended.
func (w *watcher) follow(ctx context.Context, l *life) error {
	s, err := l.runs.WatchRun(ctx, &brokerv1.WatchRunRequest{Name: new("runs/r1"), ResumeToken: w.token})
	for err == nil {
		var m *brokerv1.WatchRunResponse
		if m, err = s.Recv(); err == nil {
			w.token = m.ResumeToken
			if !m.GetProgress() {
				w.changes = append(w.changes, m)
			}
		}
	}
	if errors.Is(err, io.EOF) || status.Code(err) == codes.Unavailable || status.Code(err) == codes.Canceled {
		return nil
	}
	return err
}

// One run whose daemon is killed at every step of it: every next daemon says what it found and goes on, no line of evidence
// is lost, a watcher misses nothing, and the report has the cells of a run that nothing happened to.
func TestDaemonKilledAtEveryStep(t *testing.T) {
	h := newHouse(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	spec := &brokerv1.RunSpec{Model: new("models/qwen3.8-27b"), Seed: new(uint64(7))}
	events := func() string { return h.read("runs", ".broker", "jobs", "r1", "events.jsonl") }
	more := func(kind string) func() func() bool {
		return func() func() bool {
			n := h.records(kind)
			return func() bool { return h.records(kind) > n }
		}
	}
	eventOf := func(kind string) func() func() bool {
		return func() func() bool {
			n := strings.Count(events(), `"kind":"`+kind+`"`)
			return func() bool { return strings.Count(events(), `"kind":"`+kind+`"`) > n }
		}
	}
	steps := []struct {
		name string
		at   func() func() bool // looks at what there is, and returns what sees the step come
	}{
		{"created", func() func() bool { return func() bool { return true } }},
		{"plan told", func() func() bool { return func() bool { return strings.Contains(events(), `"plan"`) } }},
		{"plan written", func() func() bool { return func() bool { return h.read("runs", "r1", "plan.json") != "" } }},
		{"grid open", func() func() bool { return func() bool { return h.records("grid_open") > 0 } }},
		{"superblock begun", more("superblock_start")},
		{"load begun", eventOf("load")},
		{"engine ready", eventOf("ready")},
		{"in a window", func() func() bool { return h.measuring }},
		{"leg written", more("leg")},
		{"load written", more("load")},
		{"superblock ended", more("superblock_end")},
		{"grid closed", more("grid_close")},
		{"run closed", more("run_close")},
		{"report written", func() func() bool { return func() bool { return h.read("runs", "r1", "report.json") != "" } }},
	}
	w := &watcher{}
	var kept []string
	found := ""
	for i, step := range steps {
		seen := step.at()
		l := h.start(ctx)
		if found != "" && !strings.Contains(h.read(filepath.Base(l.log)), found) {
			t.Errorf("after %q the daemon does not say %q:\n%s", steps[i-1].name, found, h.read(filepath.Base(l.log)))
		}
		if _, err := l.runs.CreateRun(ctx, &brokerv1.CreateRunRequest{Spec: spec, RunId: new("r1"), RequestId: new("id")}); err != nil {
			t.Fatalf("%s: %v", step.name, err) // the same request stands for the same run in every life
		}
		followed := make(chan error, 1)
		go func() { followed <- w.follow(ctx, l) }()
		h.until(ctx, step.name, func() bool { return seen() || h.ended() })
		l.kill()
		if err := <-followed; err != nil {
			t.Errorf("%s: watch: %v", step.name, err)
		}
		kept = append(kept, h.read("runs", "r1", "ledger.jsonl"))
		job := h.read("runs", ".broker", "jobs", "r1", "job.json")
		switch {
		case h.ended():
			found = ""
		case strings.Contains(job, "RUN_STATE_QUEUED"):
			found = "found a waiting run; it waits on"
		default:
			found = "found an unfinished run; it goes on"
		}
		last := ""
		if lines := strings.Split(strings.TrimSpace(kept[i]), "\n"); len(lines) > 0 {
			last = kindRule.FindString(lines[len(lines)-1])
		}
		t.Logf("killed at %q: %d records, last %s; ended: %v", step.name, strings.Count(kept[i], "\n"), last, h.ended())
	}
	l := h.start(ctx)
	if err := w.follow(ctx, l); err != nil {
		t.Error(err)
	}
	for i, m := range w.changes {
		if m.GetSequence() != int64(i+1) {
			t.Fatalf("change %d of the watch has number %d", i+1, m.GetSequence())
		}
	}
	if last := w.changes[len(w.changes)-1]; last.GetState() != brokerv1.RunState_RUN_STATE_COMPLETE || last.Failure != nil {
		t.Errorf("the run ended as %v:\n%s", last, h.logs())
	}
	ledger := h.read("runs", "r1", "ledger.jsonl")
	for i, text := range kept {
		whole := text[:strings.LastIndexByte(text, '\n')+1]
		if !strings.HasPrefix(ledger, whole) {
			t.Errorf("after %q the ledger does not begin with what it was", steps[i].name)
		}
	}
	// Beside it a run that nothing happens to.
	if _, err := l.runs.CreateRun(ctx, &brokerv1.CreateRunRequest{Spec: spec, RunId: new("calm")}); err != nil {
		t.Fatal(err)
	}
	calm, err := l.runs.WatchRun(ctx, &brokerv1.WatchRunRequest{Name: new("runs/calm")})
	for err == nil {
		_, err = calm.Recv()
	}
	cells := map[string][]string{}
	for _, run := range []string{"r1", "calm"} {
		rep, err := l.runs.GetReport(ctx, &brokerv1.GetReportRequest{Name: new("runs/" + run)})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range rep.GetReport().GetCells() {
			cells[run] = append(cells[run], c.GetId())
		}
		a, err := l.runs.AuditRun(ctx, &brokerv1.AuditRunRequest{Name: new("runs/" + run)})
		if err != nil || len(a.GetFindings()) != 0 {
			t.Errorf("audit of %s: %v, %v", run, a, err)
		}
	}
	if len(cells["r1"]) == 0 || !slices.Equal(cells["r1"], cells["calm"]) {
		t.Errorf("cells %q, want %q", cells["r1"], cells["calm"])
	}
	if err := errors.Join(l.conn.Close(), l.cmd.Process.Signal(os.Interrupt), l.cmd.Wait()); err != nil {
		t.Errorf("the end of the last daemon: %v", err)
	}
	h.until(ctx, "end of every engine and plugin", func() bool { return len(h.processes()) == 0 })
}

// measuring asks the metrics whether a window is open.
func (h *house) measuring() bool { return strings.Contains(h.scrape(), "\nbroker_measuring 1\n") }

func (h *house) scrape() string {
	r, err := http.Get("http://" + h.metrics + "/metrics")
	if err != nil {
		return ""
	}
	defer r.Body.Close()
	data, _ := io.ReadAll(r.Body) // a daemon that ends meanwhile has no window open
	return string(data)
}

// A plugin that dies in a run is launched again, and the operator sees it.
func TestPluginRestartIsCounted(t *testing.T) {
	h := newHouse(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	l := h.start(ctx)
	if _, err := l.runs.CreateRun(ctx, &brokerv1.CreateRunRequest{Spec: &brokerv1.RunSpec{Model: new("models/qwen3.8-27b"), Seed: new(uint64(7))}, RunId: new("r1")}); err != nil {
		t.Fatal(err)
	}
	h.until(ctx, "load", func() bool { return h.records("load") > 0 })
	for pid, p := range family(l.cmd.Process.Pid) {
		if !p.serves && pid != l.cmd.Process.Pid {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		}
	}
	h.until(ctx, "restart of both plugins", func() bool {
		m := h.scrape()
		return strings.Contains(m, `broker_plugin_restarts_total{engine="a"} 1`) && strings.Contains(m, `broker_plugin_restarts_total{engine="b"} 1`)
	})
	if err := errors.Join(l.conn.Close(), l.cmd.Process.Signal(os.Interrupt), l.cmd.Wait()); err != nil {
		t.Errorf("the end of the daemon: %v", err)
	}
	h.until(ctx, "end of every engine and plugin", func() bool { return len(h.processes()) == 0 })
}
