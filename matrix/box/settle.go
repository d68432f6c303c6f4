package box

import (
	"context"
	"fmt"
	"time"

	"enginebroker/matrix"
)

const settlePoll = time.Second

// Settle waits until the box is as a load needs it (protocol §2.6, §2.7), after the caller has proved the last engine
// gone: memory back at the baseline within 120 s, no process on the GPU within as much, then the profile's quiet time, then
// GPU temperature and load average, all within 300 s. It reports what it saw and never fails on a limit: MemBeforeKiB below its baseline, ThermalOffset and
// LoadAverage are for the gates. Verify hashes after it and evict last: hashing fills the page cache. The error is ctx's,
// or /proc's.
func (b *Box) Settle(ctx context.Context) (matrix.Env, error) {
	env := matrix.Env{BootIDStart: b.bootID}
	if !b.profile.Watched {
		return env, nil
	}
	start := b.opt.Now()
	base, ok := readBaseline(b.runtimePath("baseline.json"), b.bootID)
	if !ok {
		return env, fmt.Errorf("no baseline of this boot: call Baseline before the first load")
	}
	if err := b.settleMemory(ctx, base, &env); err != nil {
		return env, err
	}
	if err := b.settleNeighbours(ctx, &env); err != nil {
		return env, err
	}
	if err := b.settleQuiet(ctx, base, &env); err != nil {
		return env, err
	}
	env.SettleTook = b.opt.Now() - start
	return env, nil
}

func (b *Box) settleMemory(ctx context.Context, base Baseline, env *matrix.Env) error {
	env.MemBaselineKiB = matrix.Some(base.AvailableKiB)
	if b.profile.Memory == MemoryDevice {
		env.MemBaselineKiB = base.DeviceFreeKiB
	}
	want, ok := env.MemBaselineKiB.Get()
	if !ok {
		env.Unevaluable = append(env.Unevaluable, unevaluable(matrix.MemoryNotReturned, "the device tells no free memory"))
		return nil
	}
	for began := b.opt.Now(); ; {
		have, err := b.memory(ctx)
		if err != nil {
			return err
		}
		env.MemBeforeKiB = have
		v, ok := have.Get()
		if !ok {
			env.Unevaluable = append(env.Unevaluable, unevaluable(matrix.MemoryNotReturned, "the device tells no free memory now"))
			return nil
		}
		if v >= want-memorySlackKiB || b.opt.Now()-began >= int64(memoryLimit) {
			return nil
		}
		b.opt.Progress(fmt.Sprintf("%s: %d MiB below the baseline", b.profile.Memory, (want-v)>>10))
		if err := wait(ctx, settlePoll); err != nil {
			return err
		}
	}
}

// memory reads what the profile says has to come back, in KiB.
func (b *Box) memory(ctx context.Context) (matrix.Opt[int64], error) {
	if b.profile.Memory == MemoryDevice {
		s, _ := b.read(ctx)
		return kib(value(s, matrix.FieldMemFree)), ctx.Err()
	}
	m, err := b.proc.meminfo()
	return matrix.Some(m.available), err
}

// settleNeighbours waits until no process holds the GPU: no engine of ours lives now, so any that does is foreign.
func (b *Box) settleNeighbours(ctx context.Context, env *matrix.Env) error {
	if !b.profile.GPU {
		return nil
	}
	for began := b.opt.Now(); ; {
		s, _ := b.read(ctx)
		if !value(s, matrix.FieldProcesses).Present() {
			env.Unevaluable = append(env.Unevaluable, unevaluable(matrix.Cotenant, "the device lists no processes before the load"))
			return ctx.Err()
		}
		visible := 0
		for _, p := range s.Processes {
			if _, err := b.proc.pid(p.PID); err == nil && b.proc.initialPIDNamespace() {
				visible++
			}
		}
		if len(s.Processes) == 0 || b.opt.Now()-began >= int64(memoryLimit) {
			if visible > 0 || len(s.Processes) == 0 {
				env.ForeignGPU = matrix.Some(int64(visible))
			} else {
				env.Unevaluable = append(env.Unevaluable, unevaluable(matrix.Cotenant, fmt.Sprintf("%d GPU processes of another PID namespace before the load", len(s.Processes))))
			}
			return ctx.Err()
		}
		b.opt.Progress(fmt.Sprintf("%d processes are on the GPU, the first is PID %d", len(s.Processes), s.Processes[0].PID))
		if err := wait(ctx, settlePoll); err != nil {
			return err
		}
	}
}

// settleQuiet waits the profile's quiet time, then until the GPU is cool and the box idle.
func (b *Box) settleQuiet(ctx context.Context, base Baseline, env *matrix.Env) error {
	began := b.opt.Now()
	if err := wait(ctx, b.profile.Quiet); err != nil {
		return err
	}
	for {
		hot, cannot := b.hot(ctx, base)
		busy := false
		load, err := b.proc.loadAverage()
		if err == nil {
			env.LoadAverage = matrix.Some(load)
			busy = b.profile.LoadAverage && load > loadAverageMax
		} else if b.profile.LoadAverage {
			cannot = append(cannot, unevaluable(matrix.LoadAverageCode, err.Error()))
		}
		if !hot && !busy || b.opt.Now()-began >= int64(settleLimit) {
			env.ThermalOffset = hot
			env.Unevaluable = append(env.Unevaluable, cannot...)
			return ctx.Err()
		}
		b.opt.Progress(fmt.Sprintf("load average %.2f, GPU more than %d °C above its start: %v", load, temperatureSlack, hot))
		if err := wait(ctx, settlePoll); err != nil {
			return err
		}
	}
}

// hot reports whether the GPU is more than 5 °C above T0, or why that cannot be told.
func (b *Box) hot(ctx context.Context, base Baseline) (bool, []string) {
	if !b.profile.Temperature {
		return false, nil
	}
	s, _ := b.read(ctx)
	now, ok := value(s, matrix.FieldTemperature).Get()
	t0, had := base.TemperatureC.Get()
	if !ok || !had {
		return false, []string{string(matrix.ThermalStartOffset) + ": the device tells no temperature"}
	}
	return now > t0+temperatureSlack, nil
}

func unevaluable(code matrix.LegCode, why string) string { return string(code) + ": " + why }

// wait sleeps for d or until ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
