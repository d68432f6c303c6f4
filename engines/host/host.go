// Package host finds plugins, verifies them, launches them and supervises them until they are gone.
package host

import (
	"context"
	"time"

	"go.uber.org/zap"

	"enginebroker/engines"
	"enginebroker/matrix"
)

// Plugin is one executable that may be a plugin. What it serves is known once it is launched.
type Plugin struct {
	Name   string // file name
	Path   string // absolute, symbolic links resolved
	SHA256 string // hex, of the bytes found
}

// Config says how to launch one instance of a plugin. One plugin may be launched several times under different labels.
type Config struct {
	Plugin          Plugin
	Pin             string // sha256 hex the plugin must have; empty: the bytes that were found
	Label           string // instance; names the instance in every message
	Settings        engines.Settings
	Env             []string // names of environment variables handed on, beyond DefaultEnv
	Log             *zap.Logger
	StartTimeout    time.Duration // launch to handshake, default 10 s
	DescribeTimeout time.Duration // default 5 s
}

// Instance is a running engine plugin. It implements engines.Engine.
type Instance struct {
	engines.Engine
}

// Telemetry is a running telemetry plugin. It implements engines.Telemetry.
type Telemetry struct {
	engines.Telemetry
}

// Find lists the executables of the directories and of plugins/ beside the running binary. The first of a name wins.
func Find(dirs []string) ([]Plugin, []*Problem) { return nil, nil }

// Launch starts an engine plugin, describes it and configures it. The error is a *Problem.
func Launch(ctx context.Context, c Config) (*Instance, error) { return nil, nil }

// LaunchTelemetry starts a telemetry plugin and describes it. The error is a *Problem.
func LaunchTelemetry(ctx context.Context, c Config) (*Telemetry, error) { return nil, nil }

// Description is what the plugin said of itself when it was launched, after Configure.
func (i *Instance) Description() matrix.Description { return matrix.Description{} }

// Close stops the running server, ends the plugin, and leaves no process and no socket behind.
func (i *Instance) Close(ctx context.Context) error { return nil }

// Close ends the plugin and leaves no process and no socket behind.
func (t *Telemetry) Close(ctx context.Context) error { return nil }
