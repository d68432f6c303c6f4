package enginetest

import (
	"context"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"enginebroker/engines"
	"enginebroker/matrix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scripted is an engine whose server is a listener here and a process that sleeps. Its rules can be broken one at a time.
type scripted struct {
	broken map[string]bool

	mu       sync.Mutex
	settings engines.Settings
	starts   int
	listener net.Listener
	sleep    *exec.Cmd
}

func (e *scripted) Describe(context.Context) (matrix.Description, error) {
	d := matrix.Description{Engine: "scripted", LookedFor: []string{"/opt/scripted"},
		Identity:     matrix.Facts{{Name: "version", Value: "1", Where: "/opt/scripted/VERSION", Standing: matrix.Observed}},
		Capabilities: []matrix.Capability{{Container: "gguf", Quantization: "*", Statement: matrix.Statement{Status: matrix.StatusClaimed}}},
		Settings:     []matrix.Setting{{Name: "binary", Type: "path", Help: "the server"}, {Name: "cache", Type: "path", Help: "where"}}}
	if e.broken["silent about what it looked for"] {
		d.LookedFor = nil
	}
	if e.broken["facts without a source"] {
		d.Identity[0].Where = ""
	}
	if e.broken["ok without a preflight"] {
		d.Capabilities[0].Status = matrix.StatusOK
	}
	if e.broken["schema"] {
		d.Settings[1].Name = "binary"
	}
	return d, nil
}

func (e *scripted) Configure(_ context.Context, s engines.Settings) ([]engines.FieldError, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var bad []engines.FieldError
	for name, value := range s {
		known := name == "binary" || name == "cache" || name == "key"
		if !known && !e.broken["unknown settings taken"] || value == "/no/such" {
			bad = append(bad, engines.FieldError{Field: name, Message: "no"})
			if e.broken["first field error only"] {
				break
			}
		}
	}
	if len(bad) == 0 {
		e.settings = s
	}
	return bad, nil
}

func (e *scripted) Start(ctx context.Context, r matrix.StartRequest, progress func(matrix.Progress)) (matrix.Ready, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.settings == nil && !e.broken["starts unconfigured"]:
		return matrix.Ready{}, engines.ErrNotConfigured
	case e.listener != nil && !e.broken["second server"]:
		return matrix.Ready{}, &matrix.StartFailure{Code: "running", Message: "one runs already"}
	}
	if e.broken["second server"] {
		e.end()
	}
	addr := net.JoinHostPort(r.Host, strconv.Itoa(r.Port))
	l, err := net.Listen("tcp", addr)
	if err != nil {
		code := "port_taken"
		if e.broken["vague about the port"] {
			code = "exited"
		}
		return matrix.Ready{}, &matrix.StartFailure{Code: code, Message: err.Error()}
	}
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		l.Close()
		return matrix.Ready{}, err
	}
	e.listener, e.sleep = l, cmd
	progress(matrix.Progress{Phase: "launch"})
	if r.ModelName == "slow" && e.starts == 0 {
		e.starts++
		<-ctx.Done()
		if e.broken["cancel leaks"] {
			e.listener = nil // and still open
			_ = e.sleep.Process.Kill()
			_ = e.sleep.Wait()
		}
		e.end()
		return matrix.Ready{}, ctx.Err()
	}
	e.starts++
	ready := matrix.Ready{
		Dialect: matrix.Dialect{BaseURL: "http://" + addr, Path: "/v1/completions", Form: "openai", Model: r.ModelName, PromptForm: "text", MaxTokensField: "max_tokens",
			End: "done", Usage: "own_chunk", Liveness: matrix.Probe{Kind: "tcp"}, ContextTokens: r.Limits.ContextTokens,
			Sources: []matrix.TokenSource{{Name: "usage", Kind: matrix.CountExact}}},
		Processes:  []matrix.Process{{PID: cmd.Process.Pid, StartTime: startTime(cmd.Process.Pid), BootID: "boot"}},
		Argv:       []string{"sleep", "1000"},
		Facts:      e.facts(),
		FirstToken: time.Second, LogPath: r.LogPath, Print: "print",
	}
	if e.broken["no token"] {
		ready.FirstToken = 0
	}
	if e.broken["shows the key"] {
		ready.Env = map[string]string{"API_KEY": e.settings["key"]}
	}
	if e.broken["half a dialect"] {
		ready.Dialect.End, ready.Dialect.Sources = "", nil
	}
	if e.broken["another process"] {
		ready.Processes[0].StartTime++
	}
	if e.broken["print drifts"] {
		ready.Print += strconv.Itoa(e.starts)
	}
	return ready, nil
}

func (e *scripted) facts() matrix.Facts {
	var f matrix.Facts
	for _, name := range []string{matrix.FactEngine, matrix.FactVersion, matrix.FactPrefixCache, matrix.FactSpeculation} {
		f = append(f, matrix.Fact{Name: name, Value: "x", Where: "GET /x", Standing: matrix.Observed})
	}
	return f
}

func startTime(pid int) uint64 {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	_, rest, _ := strings.Cut(string(b), ") ")
	n, _ := strconv.ParseUint(strings.Fields(rest)[19], 10, 64)
	return n
}

// end is called with the lock held.
func (e *scripted) end() {
	if e.listener == nil {
		return
	}
	_ = e.listener.Close()
	_ = e.sleep.Process.Signal(syscall.SIGKILL)
	_ = e.sleep.Wait()
	e.listener, e.sleep = nil, nil
}

func (e *scripted) Preflight(ctx context.Context, r matrix.StartRequest, progress func(matrix.Progress)) (matrix.PreflightResult, error) {
	ready, err := e.Start(ctx, r, progress)
	if err != nil {
		return matrix.PreflightResult{}, err
	}
	p := matrix.PreflightResult{Ready: matrix.Some(ready), Text: "437", Made: ready.Facts}
	if e.broken["preflight leaks"] {
		p.Text = ""
		return p, nil
	}
	p.Stopped, err = e.Stop(ctx, time.Second)
	return p, err
}

func (e *scripted) Observe(context.Context) (matrix.State, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.listener == nil && !e.broken["observes nothing"] {
		return matrix.State{}, engines.ErrNotStarted
	}
	return matrix.State{Alive: true, Print: "print", Facts: e.facts()}, nil
}

func (e *scripted) Tokenize(context.Context, string) ([]int, error) {
	if e.broken["no ids"] {
		return nil, nil
	}
	return nil, engines.ErrUnsupported
}

func (e *scripted) Stop(context.Context, time.Duration) (matrix.Stopped, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.listener == nil {
		if e.sleep != nil { // what a lie left behind
			_ = e.sleep.Process.Kill()
			_ = e.sleep.Wait()
			e.sleep = nil
		}
		return matrix.Stopped{}, engines.ErrNotStarted
	}
	if e.broken["stop lies"] {
		_ = e.listener.Close()
		e.listener = nil
	} else {
		e.end()
	}
	return matrix.Stopped{How: "kill", PortFree: true}, nil
}

func config(broken string) Config {
	return Config{
		New:      func() engines.Engine { return &scripted{broken: map[string]bool{broken: true}} },
		Settings: engines.Settings{"binary": "/x", "key": "sesame"},
		Bad:      engines.Settings{"binary": "/no/such", "cache": "/no/such"},
		Request:  matrix.StartRequest{ModelName: "slow"},
		Secrets:  []string{"sesame"},
	}
}

func quick(broken string) Config {
	c := config(broken)
	c.Request = matrix.StartRequest{}
	return c
}

func TestConformance(t *testing.T) { Run(t, quick("")) }

// TestBrokenRules breaks each rule and expects the suite to say so: a check that passes everything checks nothing.
func TestBrokenRules(t *testing.T) {
	for _, test := range []struct{ broken, check, want string }{
		{"silent about what it looked for", "describe without configuration", "nothing says what was looked for"},
		{"facts without a source", "describe without configuration", "name, where and standing are required"},
		{"ok without a preflight", "describe without configuration", "only a preflight"},
		{"schema", "describe without configuration", `setting "binary" is there twice`},
		{"starts unconfigured", "nothing before configure", "want ErrNotConfigured"},
		{"observes nothing", "nothing before configure", "want ErrNotStarted"},
		{"first field error only", "bad settings are all named", "does not name"},
		{"unknown settings taken", "unknown settings are named", "the setting it does not know"},
		{"observes nothing", "calls at the same time", "want ErrNotStarted"},
		{"no token", "start, observe, tokenize, stop, start again", "first token"},
		{"shows the key", "start, observe, tokenize, stop, start again", "Ready shows a secret"},
		{"half a dialect", "start, observe, tokenize, stop, start again", "the dialect lacks end"},
		{"another process", "start, observe, tokenize, stop, start again", "is not one that runs"},
		{"print drifts", "start, observe, tokenize, stop, start again", "two prints"},
		{"no ids", "start, observe, tokenize, stop, start again", "Tokenize twice"},
		{"stop lies", "start, observe, tokenize, stop, start again", "survives Stop"},
		{"second server", "a second server", "started a second server"},
		{"vague about the port", "a taken port", "want a StartFailure port_taken"},
		{"cancel leaks", "cancel mid-start", "leaves its port taken"},
		{"preflight leaks", "preflight", "proof without an answer"},
	} {
		t.Run(test.broken, func(t *testing.T) {
			for _, c := range checks {
				if c.name != test.check {
					continue
				}
				conf := quick(test.broken)
				if test.broken == "cancel leaks" {
					conf = config(test.broken)
				}
				if wrong := strings.Join(c.on(t, conf), "\n"); !strings.Contains(wrong, test.want) {
					t.Errorf("the suite says %q, want %q", wrong, test.want)
				}
				return
			}
			t.Fatalf("there is no check %q", test.check)
		})
	}
}

func TestCancelOnTheWay(t *testing.T) {
	for _, c := range checks {
		if c.name == "cancel mid-start" {
			for _, p := range c.on(t, config("")) {
				t.Error(p)
			}
		}
	}
}
