// Package enginetest is the one conformance suite that every adapter runs.
//
// It drives an adapter through the real shims of engines/plugin over a connection in memory, as a host would, and checks what
// the contract (engines.Engine) says and a signature cannot. The first half needs no engine; the second half starts real
// servers and runs where Config says how.
//
//	func TestConformance(t *testing.T) {
//		enginetest.Run(t, enginetest.Config{New: New, Bad: engines.Settings{"binary": "/no/such"}})
//	}
package enginetest

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"enginebroker/engines"
	"enginebroker/engines/plugin"
	"enginebroker/engines/process"
	"enginebroker/matrix"
)

// Config says what the suite may use. Nothing in it may need a GPU.
type Config struct {
	// New returns a fresh instance, as plugin.Serve takes it.
	New func() engines.Engine
	// Settings let the engine start here. Nil: the checks that need a server are skipped, and said so.
	Settings engines.Settings
	// Bad are settings of which every single one is wrong.
	Bad engines.Settings
	// Request is a start that works under Settings. The suite fills in what is empty: load id, host, port, files.
	Request matrix.StartRequest
	// Secrets are values in Settings or the environment that must not show up in anything the adapter says.
	Secrets []string
	// StopDeadline of each stop; 0: plugin.DefaultStop.
	StopDeadline time.Duration
}

// Run checks that an engine keeps the contract.
func Run(t *testing.T, c Config) {
	for _, check := range checks {
		t.Run(check.name, func(t *testing.T) {
			if check.server && c.Settings == nil {
				t.Skip("no Settings: no server can be started here")
			}
			for _, p := range check.on(t, c) {
				t.Error(p)
			}
		})
	}
}

// check is one rule of the contract.
type check struct {
	name   string
	server bool // starts one
	run    func(*bench)
}

// on runs the check on a fresh instance and returns what is wrong.
func (k check) on(t testing.TB, c Config) []string {
	b := newBench(t, c)
	if k.server && !b.configure() {
		return b.wrong
	}
	k.run(b)
	return b.wrong
}

var checks = []check{
	{"describe without configuration", false, describes},
	{"nothing before configure", false, refusesBeforeConfigure},
	{"bad settings are all named", false, namesBadSettings},
	{"unknown settings are named", false, namesUnknownSettings},
	{"calls at the same time", false, callsAtOnce},
	{"start, observe, tokenize, stop, start again", true, lives},
	{"a second server", true, refusesSecond},
	{"a taken port", true, refusesTakenPort},
	{"cancel mid-start", true, cancels},
	{"preflight", true, preflights},
}

// bench is one instance on the bench, behind the wire.
type bench struct {
	testing.TB
	ctx    context.Context
	config Config
	engine engines.Engine // a plugin.Client

	starts sync.WaitGroup // in progress at the adapter's end: a cancelled client returns before they do

	mu    sync.Mutex
	wrong []string
}

func newBench(t testing.TB, c Config) *bench {
	t.Helper()
	if c.StopDeadline == 0 {
		c.StopDeadline = plugin.DefaultStop
	}
	l := bufconn.Listen(1 << 20)
	b := &bench{TB: t, ctx: t.Context(), config: c}
	s := grpc.NewServer(append(plugin.ServerOptions(),
		grpc.ChainStreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			b.starts.Add(1)
			defer b.starts.Done()
			return next(srv, ss)
		}))...)
	engine := c.New()
	plugin.RegisterEngine(s, engine)
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(l) })
	conn, err := grpc.NewClient("passthrough:///memory", append(plugin.DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = engine.Stop(context.Background(), c.StopDeadline) // of a check that gave up half way
		_ = conn.Close()
		s.Stop()
		wg.Wait()
	})
	b.engine = plugin.NewClient(conn, context.Background())
	return b
}

// fail records a broken rule and reports false, so that a check can stop.
func (b *bench) fail(format string, args ...any) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wrong = append(b.wrong, fmt.Sprintf(format, args...))
	return false
}

func (b *bench) configure() bool {
	fields, err := b.engine.Configure(b.ctx, b.config.Settings)
	if err != nil || len(fields) > 0 {
		return b.fail("Configure(Settings): %v %v", fields, err)
	}
	return true
}

// request completes the start of the configuration with fresh files and a free port.
func (b *bench) request() matrix.StartRequest {
	b.Helper()
	r := b.config.Request
	dir := b.TempDir()
	set := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	set(&r.LoadID, "enginetest-"+filepath.Base(filepath.Dir(dir))+filepath.Base(dir))
	set(&r.ModelName, "enginetest")
	set(&r.Host, "127.0.0.1")
	set(&r.PrefixCache, "off")
	set(&r.LogPath, filepath.Join(dir, "server.log"))
	set(&r.CacheDir, filepath.Join(dir, "cache"))
	set(&r.StatePath, filepath.Join(dir, "state"))
	if r.Policy.Kind == "" {
		r.Policy.Kind = matrix.Raw
	}
	if r.Limits == (matrix.Limits{}) {
		r.Limits = matrix.Limits{ContextTokens: 256, Concurrency: 2, KVTokens: 512}
	}
	if r.ReadyLimit == 0 {
		r.ReadyLimit = 2 * time.Minute
	}
	if r.Port == 0 {
		port, err := process.FreePort(r.Host)
		if err != nil {
			b.Fatal(err)
		}
		r.Port = port
	}
	return r
}
