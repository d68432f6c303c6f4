// Package service is the composition root: the one place that wires catalog, host, box, run, ledger, verdict and report
// together. The command line and the daemon call it and nothing below it.
//
// Every capability of the product is one method of Service and one file: instances, plan, run, judge, and so on. Methods
// take and return plain values; failures that a caller can act on are *Error with a Cause.
package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"enginebroker/broker/catalog"
	"enginebroker/broker/config"
	"enginebroker/matrix/gates"
)

// Cause is what kind of failure it is; the command line maps it to an exit code and the daemon to a status code.
type Cause string

const (
	CauseUsage         Cause = "usage"          // the request, the configuration or a catalog file cannot be used
	CauseNotFound      Cause = "not_found"      // a run, cell, model or instance that does not exist
	CauseNotComparable Cause = "not_comparable" // no pair is comparable
	CauseNotInstalled  Cause = "not_installed"  // an engine that was asked for is not there
	CauseIdentity      Cause = "identity"       // what runs is not what should run
	CauseEvidence      Cause = "evidence"       // missing, edited, or not giving the numbers of the report
	CauseBusy          Cause = "busy"           // another broker holds the box or the run
	CauseInterrupted   Cause = "interrupted"
	CauseVoid          Cause = "void"
	CauseWithheld      Cause = "withheld"
	CauseRequire       Cause = "require"
	CauseDiffers       Cause = "differs" // a check found a difference
	CauseInternal      Cause = "internal"
)

// Error is a failure a caller can act on.
type Error struct {
	Cause Cause
	Err   error
	Fix   string
}

func (e *Error) Error() string {
	if e.Fix == "" {
		return e.Err.Error()
	}
	return e.Err.Error() + "\n  " + e.Fix
}

func (e *Error) Unwrap() error { return e.Err }

func fail(c Cause, fix, format string, args ...any) *Error {
	return &Error{Cause: c, Err: fmt.Errorf(format, args...), Fix: fix}
}

// Options are what a process gives the service once.
type Options struct {
	Config  string // configuration file; empty: broker.yaml here, else the built-in default
	Runs    string // folder of runs; empty: ./runs
	Getenv  func(string) string
	Log     *zap.Logger
	Version string
}

// Service is open for the life of a command or a daemon. It holds no engine between calls.
type Service struct {
	cfg      config.Config
	catalog  catalog.Catalog
	runs     string
	runsFlag string // as the caller wrote it, empty where it did not
	state    string // folder of preflights, corpora and hashes, beside the runs
	getenv   func(string) string
	log      *zap.Logger
	version  string
	now      func() time.Time
}

// Open reads the configuration and the catalog.
func Open(o Options) (*Service, error) {
	s := &Service{runs: o.Runs, runsFlag: o.Runs, getenv: o.Getenv, log: o.Log, version: o.Version, now: time.Now}
	if s.runs == "" {
		s.runs = "runs"
	}
	var err error
	if s.runs, err = filepath.Abs(s.runs); err != nil {
		return nil, err
	}
	s.state = filepath.Join(s.runs, ".broker")
	if s.cfg, err = readConfig(o.Config); err != nil {
		return nil, &Error{Cause: CauseUsage, Err: err}
	}
	if s.cfg.Box != "" {
		if _, err := gates.ProfileByName(s.cfg.Box); err != nil {
			return nil, &Error{Cause: CauseUsage, Err: fmt.Errorf("%s: box: %w", s.cfg.At("box"), err)}
		}
	}
	if s.catalog, err = catalog.Load(s.cfg.Catalog); err != nil {
		return nil, &Error{Cause: CauseUsage, Err: err}
	}
	return s, nil
}

func readConfig(path string) (config.Config, error) {
	if path != "" {
		return config.Load(path)
	}
	c, err := config.Load("broker.yaml")
	if errors.Is(err, os.ErrNotExist) {
		return config.Default(), nil
	}
	return c, err
}

// interrupted turns a cancelled context into the cause callers expect.
func interrupted(ctx context.Context, err error, fix string) error {
	if ctx.Err() != nil {
		return &Error{Cause: CauseInterrupted, Err: err, Fix: fix}
	}
	return err
}
