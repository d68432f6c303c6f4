package service

import (
	"context"
	"slices"

	"enginebroker/engines/host"
	"enginebroker/matrix"
	"enginebroker/matrix/box"
	"enginebroker/matrix/gates"
)

// nvmlLibraryEnv names another NVML library to the telemetry plugin than its loader finds.
const nvmlLibraryEnv = "BROKER_NVML_LIBRARY"

// box opens the machine under a profile, with the telemetry plugin that the configuration names. done releases what was
// launched for it.
func (s *Service) box(ctx context.Context, profile string, say func(string)) (*box.Box, func(), error) {
	return s.openBox(ctx, box.Options{Profile: profile, Progress: say})
}

// look opens the machine to be looked at, whatever it is.
func (s *Service) look(ctx context.Context, profile string) (*box.Box, func(), error) {
	return s.openBox(ctx, box.Options{Profile: profile, Look: true})
}

func (s *Service) openBox(ctx context.Context, opt box.Options) (*box.Box, func(), error) {
	opt.Device, opt.RuntimeDir, opt.Hz, opt.Guard = s.cfg.Device, s.cfg.Runtime, samplerHz, box.Guard{FloorKiB: s.cfg.FloorKiB}
	if dir := s.getenv("BROKER_RUNTIME_DIR"); dir != "" {
		opt.RuntimeDir = dir
	}
	done := func() {}
	if s.cfg.Telemetry != "" && opt.Profile != simulatedBox {
		t, err := s.telemetry(ctx)
		if err != nil {
			return nil, nil, &Error{Cause: CauseNotInstalled, Err: err}
		}
		opt.Sampler = t
		done = func() {
			ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
			defer cancel()
			t.Close(ctx)
		}
	}
	b, err := box.Open(ctx, opt)
	if err != nil {
		done()
		return nil, nil, &Error{Cause: CauseUsage, Err: err}
	}
	for _, w := range b.Warnings() {
		s.log.Warn(w)
	}
	return b, done, nil
}

func (s *Service) telemetry(ctx context.Context) (*host.Telemetry, error) {
	plugins, _ := host.Find(s.pluginDirs())
	for _, p := range plugins {
		if p.Name == s.cfg.Telemetry {
			return host.LaunchTelemetry(ctx, host.Config{Plugin: p, Label: "telemetry", Env: []string{nvmlLibraryEnv}, Log: s.log})
		}
	}
	return nil, &host.Problem{Plugin: s.cfg.Telemetry, Label: "telemetry", Kind: host.Missing, Message: "no such plugin in " + joined(s.pluginDirs()), Fix: "run make build, or leave telemetry out of broker.yaml"}
}

// simulatedBox is the profile of a team of simulated engines: no box stands behind them.
const simulatedBox = "simulated"

// boxState is what a plan has to know of the machine.
type boxState struct {
	profile gates.Profile
	pin     string   // pinned, unpinned or none (protocol §4.7)
	pinning []string // how to pin, where that is not the case
	facts   matrix.Facts
}

// boxState opens the box of a team for a look.
func (s *Service) boxState(ctx context.Context, t *team) (boxState, error) {
	b, done, err := s.box(ctx, s.profileFor(t), nil)
	if err != nil {
		return boxState{}, err
	}
	defer done()
	out := boxState{pin: b.PinState(), facts: b.Facts()}
	if out.pin == "unpinned" {
		out.pinning = b.PinCommands()
	}
	if out.profile, err = gates.ProfileByName(b.Profile().Name); err != nil {
		return out, &Error{Cause: CauseUsage, Err: err}
	}
	return out, nil
}

// profileFor is the box profile of a team: the configured one, or the one that is detected.
func (s *Service) profileFor(t *team) string {
	if len(t.members) > 0 && !slices.ContainsFunc(t.members, func(m *member) bool { return !m.desc.Simulated }) {
		return simulatedBox
	}
	return s.cfg.Box
}
