package box

import (
	"context"
	"iter"
	"time"

	"enginebroker/matrix"
)

// Snapshot is the box at one moment, for a person to look at. Shares are since the snapshot before.
type Snapshot struct {
	At           time.Time                 `json:"at"`
	AvailableKiB int64                     `json:"mem_available_kib"`
	FreeKiB      int64                     `json:"mem_free_kib"`
	CachedKiB    matrix.Opt[int64]         `json:"cached_kib,omitzero"`
	SwapFreeKiB  matrix.Opt[int64]         `json:"swap_free_kib,omitzero"`
	LoadAverage  matrix.Opt[float64]       `json:"loadavg1,omitzero"`
	Busy         matrix.Opt[float64]       `json:"cpu_busy,omitzero"` // share of the box, 0..1
	Steal        matrix.Opt[float64]       `json:"steal,omitzero"`
	GPU          matrix.Opt[matrix.Sample] `json:"gpu,omitzero"`
	Holder       matrix.Opt[Holder]        `json:"holder,omitzero"` // who holds the box
}

// Live yields a snapshot every interval until ctx ends or the loop is left. It takes no lock and disturbs a run by one
// telemetry reading each.
func (b *Box) Live(ctx context.Context, every time.Duration) iter.Seq2[Snapshot, error] {
	return func(yield func(Snapshot, error) bool) {
		before, _ := b.proc.stat()
		for wait(ctx, every) == nil {
			s, err := b.snapshot(ctx, &before)
			if ctx.Err() != nil || !yield(s, err) {
				return
			}
		}
	}
}

func (b *Box) snapshot(ctx context.Context, before *cpuStat) (Snapshot, error) {
	m, err := b.proc.meminfo()
	s := Snapshot{At: time.Now().UTC(), AvailableKiB: m.available, FreeKiB: m.free, CachedKiB: m.field("Cached"), SwapFreeKiB: m.field("SwapFree")}
	if l, err := b.proc.loadAverage(); err == nil {
		s.LoadAverage = matrix.Some(l)
	}
	if now, err := b.proc.stat(); err == nil {
		if total := float64(now.total - before.total); total > 0 {
			s.Busy = matrix.Some(float64(now.busy-before.busy) / total)
			s.Steal = matrix.Some(float64(now.steal-before.steal) / total)
		}
		*before = now
	}
	if r, ok := b.read(ctx); ok {
		s.GPU = matrix.Some(r)
	}
	s.Holder = b.holder()
	return s, err
}
