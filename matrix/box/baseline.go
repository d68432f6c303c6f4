package box

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"enginebroker/matrix"
	"enginebroker/matrix/regular"
)

// Baseline is what this boot's box looks like with no engine on it. Two boxes of one kind differ by gigabytes, and so do
// two boots of one box (bugs.md N13), so it belongs to the boot.
type Baseline struct {
	BootID          string            `json:"boot_id"`
	TakenUTC        time.Time         `json:"taken_utc"`
	AvailableKiB    int64             `json:"mem_available_kib"`
	DeviceFreeKiB   matrix.Opt[int64] `json:"gpu_free_kib,omitzero"`
	TemperatureC    matrix.Opt[int64] `json:"t0_c,omitzero"`
	UnattributedKiB matrix.Opt[int64] `json:"unattributed_kib,omitzero"`
	Note            string            `json:"note,omitempty"` // why it replaced an earlier one
}

// unattributedLimitKiB is how much memory nobody may own before the box is not certified: 4 GiB [own]. A crashed container
// was seen to leave 33 GB and a driver reservation 8 GB (bugs.md N13); a healthy kernel's own share is some hundred MiB.
const unattributedLimitKiB = 4 << 20

// ErrUnattributed says that memory is gone which no process owns; only a reboot brings it back.
var ErrUnattributed = errors.New("memory is missing that no process owns")

// Baseline returns the baseline of this boot, and takes it where there is none. Call it under the lock, with no engine
// alive, before a grid. A stored baseline is kept while the box can return to it; one that cannot be reached any more
// because named processes took the memory is replaced, and says so. ErrUnattributed comes with a usable baseline: the box
// may run, but certifies nothing.
func (b *Box) Baseline(ctx context.Context) (Baseline, error) {
	now, err := b.takeBaseline(ctx)
	if err != nil {
		return now, err
	}
	path := b.runtimePath("baseline.json")
	keep := now
	if old, ok := readBaseline(path, b.bootID); ok {
		switch missing := old.AvailableKiB - now.AvailableKiB; {
		case missing <= memorySlackKiB && missing > 0:
			keep = old
		case missing > memorySlackKiB:
			keep.Note = fmt.Sprintf("%d KiB less than the boot's earlier baseline of %s; processes of this box own it", missing, old.TakenUTC.Format(time.RFC3339))
		}
		// T0 is the coolest idle that this boot showed: a grid started on a warm box must not accept its own heat as the start.
		if a, ok := old.TemperatureC.Get(); ok && a < now.TemperatureC.Or(a+1) {
			keep.TemperatureC = old.TemperatureC
		}
	}
	if err := writeBaseline(path, keep); err != nil {
		return keep, err
	}
	if u, ok := keep.UnattributedKiB.Get(); ok && u > unattributedLimitKiB {
		return keep, fmt.Errorf("%w: %d MiB are neither free nor owned (limit %d MiB); reboot the box", ErrUnattributed, u>>10, unattributedLimitKiB>>10)
	}
	return keep, nil
}

func (b *Box) takeBaseline(ctx context.Context) (Baseline, error) {
	m, err := b.proc.meminfo()
	if err != nil {
		return Baseline{}, err
	}
	base := Baseline{BootID: b.bootID, TakenUTC: time.Now().UTC(), AvailableKiB: m.available}
	var held int64
	if r, ok := b.read(ctx); ok {
		base.DeviceFreeKiB = kib(value(r, matrix.FieldMemFree))
		base.TemperatureC = value(r, matrix.FieldTemperature)
		if b.profile.Memory == MemoryHost { // unified memory: what GPU processes hold comes from the same pool
			for _, p := range r.Processes {
				held += p.Bytes.Or(0) >> 10
			}
		}
	}
	if u, err := m.unattributed(held); err == nil {
		base.UnattributedKiB = matrix.Some(u)
	}
	return base, nil
}

// read takes one sample of the box's device, within the time a working driver needs.
func (b *Box) read(ctx context.Context) (matrix.Sample, bool) {
	d, ok := b.device.Get()
	if !ok {
		return matrix.Sample{}, false
	}
	ctx, cancel := context.WithTimeout(ctx, describeLimit)
	defer cancel()
	var got matrix.Sample
	found := false
	// The error of a cancelled stream says nothing beyond the cancel; a stream that never delivers leaves found false.
	_ = b.opt.Sampler.Sample(ctx, b.opt.Hz, func(s matrix.Sample) {
		if s.Device == d.Index && !found {
			got, found = s, true
			cancel()
		}
	})
	return got, found
}

func value(s matrix.Sample, field string) matrix.Opt[int64] {
	if r, ok := s.Fields[field]; ok && r.Status == matrix.ReadingValue {
		return r.Value
	}
	return matrix.Opt[int64]{}
}

func kib(bytes matrix.Opt[int64]) matrix.Opt[int64] {
	if v, ok := bytes.Get(); ok {
		return matrix.Some(v >> 10)
	}
	return bytes
}

// readBaseline returns the stored baseline of this boot; one of another boot, or a damaged file, is none.
func readBaseline(path, bootID string) (Baseline, bool) {
	data, err := regular.ReadFile(path, sharedLimit)
	if err != nil {
		return Baseline{}, false
	}
	var b Baseline
	if json.Unmarshal(data, &b) != nil || b.BootID != bootID || b.AvailableKiB <= 0 {
		return Baseline{}, false
	}
	return b, true
}

func writeBaseline(path string, b Baseline) error {
	data, err := json.Marshal(b)
	if err != nil {
		return err
	}
	if err := writeShared(path, data); err != nil {
		return fmt.Errorf("baseline: %w", err)
	}
	return nil
}

// sharedLimit bounds what is read of a file that users of the box share.
const sharedLimit = 1 << 16

// writeShared replaces the text of a file that users of the box share.
func writeShared(path string, data []byte) error {
	f, err := openShared(path)
	if err != nil {
		return err
	}
	if err := f.Truncate(0); err != nil {
		return errors.Join(err, f.Close())
	}
	_, err = f.WriteAt(append(data, '\n'), 0)
	return errors.Join(err, f.Close())
}
