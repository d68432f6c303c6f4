// Package host finds plugins, verifies them, launches them and supervises them until they are gone.
//
// A plugin is somebody else's program. Whatever it does before, during and after the handshake ends in one *Problem that
// names it and the fix, and in no process left behind; the other plugins go on.
//
//  1. Find lists the executables of the plugin directories and records their SHA-256.
//  2. Launch checks those bytes again, starts the process in its own group with a clean environment, agrees on a protocol
//     version over a unix socket with mutual TLS, asks who it is, and configures it.
//  3. The Instance is an engines.Engine. A call on a plugin that died is a *Problem that wraps engines.ErrGone and quotes
//     its last words.
//  4. Close stops the engine's server, ends the plugin and its group, reaps it and removes its socket.
//
// The plugin's own standard input is a pipe that only this process holds: it ends with the broker, however the broker ends.
package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"go.uber.org/zap"

	"enginebroker/engines"
	"enginebroker/engines/plugin"
	"enginebroker/matrix"
)

// Limits of a launch where Config names none. An idle plugin answers within 150 ms; a loaded box with cold files may take
// seconds, and a person waits no longer than this for one that hangs.
const (
	DefaultStartTimeout    = 10 * time.Second
	DefaultDescribeTimeout = 5 * time.Second
)

// killGrace is how long a plugin has to leave after the Shutdown call before its whole group is killed. go-plugin itself
// gives 2 s.
const killGrace = 3 * time.Second

// Config says how to launch one instance of a plugin. One plugin may be launched several times under different labels.
type Config struct {
	Plugin          Plugin           // as Find returned it, or a Path alone
	Pin             string           // SHA-256 the plugin must have, hex; empty: the one in Plugin
	Label           string           // names the instance in every message
	Settings        engines.Settings // nil: describe only, do not configure
	Env             []string         // names of environment variables handed on beyond DefaultEnv
	Log             *zap.Logger      // nil: nothing is logged
	StartTimeout    time.Duration    // launch to handshake; 0: DefaultStartTimeout
	DescribeTimeout time.Duration    // each Describe and Configure; 0: DefaultDescribeTimeout
}

// launched is one plugin process with its connection.
type launched struct {
	config Config
	child  *child
	client *goplugin.Client
}

// launch starts the plugin and dispenses one kind of service. The error is a *Problem and leaves nothing behind.
func launch(ctx context.Context, c Config, kind string) (*launched, any, error) {
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	if c.StartTimeout == 0 {
		c.StartTimeout = DefaultStartTimeout
	}
	if c.DescribeTimeout == 0 {
		c.DescribeTimeout = DefaultDescribeTimeout
	}
	if p := verify(&c); p != nil {
		return nil, nil, p
	}
	log := c.Log.With(zap.String("plugin", c.Plugin.Name), zap.String("instance", c.Label))
	l := &launched{config: c, child: newChild(c.Plugin.Path, environment(c.Env), log)}
	own := hclog.NewInterceptLogger(&hclog.LoggerOptions{Output: io.Discard, Level: hclog.Debug})
	own.RegisterSink(sink{log.Named("go-plugin")})
	l.client = goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig:  handshake,
		VersionedPlugins: clientPlugins(),
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		RunnerFunc: func(_ hclog.Logger, cmd *exec.Cmd, _ string) (runner.Runner, error) {
			l.child.cmd.Env = append(l.child.cmd.Env, cmd.Env...)
			return l.child, nil
		},
		AutoMTLS:        true,
		SkipHostEnv:     true,
		StartTimeout:    c.StartTimeout,
		Logger:          own,
		SyncStdout:      lines(printed(log, "stdout")),
		SyncStderr:      lines(printed(log, "stderr")),
		GRPCDialOptions: plugin.DialOptions(),
	})
	stop := context.AfterFunc(ctx, l.child.kill)
	defer stop()
	conn, err := l.client.Client()
	if err != nil {
		l.end()
		return nil, nil, l.handshakeProblem(ctx, err)
	}
	service, err := conn.Dispense(kind)
	if err != nil {
		l.end()
		return nil, nil, l.problem(Protocol, "its connection does not work: "+err.Error(), "rebuild the plugin with this broker's sources", err)
	}
	return l, service, nil
}

// end ends the plugin, its group and its socket. The service has been stopped before.
func (l *launched) end() {
	t := time.AfterFunc(killGrace, l.child.kill)
	defer t.Stop()
	l.client.Kill()
	l.child.kill()
	if l.child.started() {
		<-l.child.done
	}
}

// limited gives a call its own deadline.
func (l *launched) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, l.config.DescribeTimeout)
}

func (l *launched) problem(k Kind, message, fix string, err error) *Problem {
	return &Problem{Plugin: l.config.Plugin.Path, Label: l.config.Label, Kind: k, Message: message, Fix: fix, Err: err}
}

// handshakeProblem says what went wrong before the plugin could be spoken to, from what it really printed and how it ended
// rather than from the words of go-plugin.
func (l *launched) handshakeProblem(ctx context.Context, err error) *Problem {
	line, complete := l.child.first.seen()
	fields := strings.Split(strings.TrimSpace(line), "|")
	switch {
	case !l.child.started():
		return l.problem(NotExecutable, err.Error(), "install a build for this machine", err)
	case ctx.Err() != nil:
		return l.problem(Hung, "the launch was cancelled before its handshake", "", ctx.Err())
	case (line != "" || complete) && (len(fields) < 4 || fields[0] != fmt.Sprint(goplugin.CoreProtocolVersion)):
		what := fmt.Sprintf("it printed %.120q on stdout before the handshake", line)
		if !complete {
			what = fmt.Sprintf("it printed %d bytes without a newline on stdout before the handshake: %.120q …", l.child.first.total(), line)
		}
		return l.problem(Stdout, what, "a plugin prints nothing on stdout; log through log/slog instead", err)
	case line != "" && fields[1] != fmt.Sprint(plugin.Protocol):
		return l.problem(Protocol, fmt.Sprintf("it speaks protocol %s and this broker speaks %d", fields[1], plugin.Protocol),
			"rebuild the older of the two from the other's sources", err)
	case line != "":
		return l.problem(Protocol, "its handshake cannot be used: "+err.Error(), "rebuild the plugin with this broker's sources", err)
	case l.child.killedByUs():
		return l.problem(Hung, fmt.Sprintf("no handshake within %v", l.config.StartTimeout), "run it by hand with --describe to see where it waits", err)
	}
	return l.problem(Died, "it ended before the handshake: "+l.child.lastWords(), "run it by hand with --describe; is it a plugin of broker?", err)
}

// callProblem says what a failed call means for the plugin; other errors are answers and stay as they are.
func (l *launched) callProblem(ctx context.Context, call string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, engines.ErrGone):
		return l.problem(Died, fmt.Sprintf("it ended during %s: %s", call, l.child.lastWords()), "see its log lines above; run it by hand with --describe", err)
	case errors.Is(err, plugin.ErrNotServed):
		return l.problem(WrongKind, "it does not serve what was asked for: "+err.Error(), "use an engine plugin for an engine and a telemetry plugin for telemetry", err)
	case errors.Is(err, plugin.ErrUnreachable):
		return l.problem(Hung, fmt.Sprintf("it cannot be reached for %s although its process runs: %v", call, err), "rebuild the plugin with this broker's sources", err)
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		return l.problem(Hung, fmt.Sprintf("it did not answer %s within %v", call, l.config.DescribeTimeout), "run it by hand with --describe to see where it waits", err)
	}
	return err
}

// described is the first exchange with an engine.
func (l *launched) described(ctx context.Context, e engines.Engine) (matrix.Description, error) {
	describe, cancel := l.limited(ctx)
	defer cancel()
	d, err := e.Describe(describe)
	if err == nil && d.Engine == "" {
		err = l.problem(Protocol, "it answered Describe without naming its engine", "fix the plugin", nil)
	}
	return d, l.callProblem(ctx, "Describe", err)
}

func (l *launched) configured(ctx context.Context, e engines.Engine) error {
	configure, cancel := l.limited(ctx)
	defer cancel()
	fields, err := e.Configure(configure, l.config.Settings)
	if err != nil {
		return l.callProblem(ctx, "Configure", err)
	}
	if len(fields) == 0 {
		return nil
	}
	var words []string
	for _, f := range fields {
		words = append(words, f.Error())
	}
	p := l.problem(Settings, strings.Join(words, "; "), "", nil)
	p.Fields = fields
	return p
}
