package service

import (
	"context"

	"enginebroker/engines/host"
	"enginebroker/matrix/box"
)

// box opens the machine under a profile, with the telemetry plugin that the configuration names. done releases what was
// launched for it.
func (s *Service) box(ctx context.Context, profile string, say func(string)) (*box.Box, func(), error) {
	opt := box.Options{Profile: profile, Hz: samplerHz, Progress: say, RuntimeDir: s.getenv("BROKER_RUNTIME_DIR")}
	done := func() {}
	if s.cfg.Telemetry != "" && profile != "simulated" {
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
			return host.LaunchTelemetry(ctx, host.Config{Plugin: p, Label: "telemetry", Log: s.log})
		}
	}
	return nil, &host.Problem{Plugin: s.cfg.Telemetry, Label: "telemetry", Kind: host.Missing, Message: "no such plugin in " + joined(s.pluginDirs()), Fix: "run make build, or leave telemetry out of broker.yaml"}
}

// pinState says whether clocks are pinned, as the method records it (protocol §4.7). Without telemetry there is no clock to pin.
func (s *Service) pinState() string {
	if s.cfg.Telemetry == "" {
		return "none"
	}
	return s.cfg.Clocks
}
