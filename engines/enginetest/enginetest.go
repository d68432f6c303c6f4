// Package enginetest is the one conformance suite that every adapter runs, through the real gRPC shims.
package enginetest

import (
	"testing"

	"enginebroker/engines"
	"enginebroker/matrix"
)

// Config says what the suite may use. Nothing may need a GPU.
type Config struct {
	New      func() engines.Engine                    // a fresh instance, as given to plugin.Serve
	Settings engines.Settings                         // under which the engine can start here; nil: only the checks without a server run
	Bad      engines.Settings                         // settings in which every field is wrong
	Request  func(t testing.TB) matrix.StartRequest // a request the engine can serve under Settings
	Secrets  []string                                 // values of Settings that must not show up in argv, environment or facts
}

// Run checks that an engine keeps the contract.
func Run(t *testing.T, c Config) {}
