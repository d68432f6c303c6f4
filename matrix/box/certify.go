package box

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"enginebroker/matrix"
	"enginebroker/matrix/regular"
)

const (
	certifyFor    = 40 * time.Second // gives the 30 busy seconds that a clock record needs (protocol §4.1)
	certifyBusy   = 30
	flatSpreadPct = 1.5  // "pinned flat" (protocol §4.5) [own]
	gb10FloorMHz  = 1400 // below it under load the box is in its low-power state (§4.1)
	gb10PinMHz    = 2190 // held by every report (protocol §4.7)
)

// clockState is what the last certification on this boot saw.
type clockState struct {
	BootID     string `json:"boot_id"`
	CeilingMHz int64  `json:"ceiling_mhz"`
	LowMHz     int64  `json:"low_mhz"` // the card kept it up by itself
	Flat       bool   `json:"flat"`
}

// PinState is the method's pin state: none without a GPU's clock, pinned when a load of this boot ran flat under Doctor's
// eyes, unpinned otherwise. No call of the driver tells it: a lock set at boot shows in no event reason (bugs.md N08).
func (b *Box) PinState() string {
	if !b.profile.GPU {
		return "none"
	}
	if c, ok := b.clocks().Get(); ok && c.Flat {
		return "pinned"
	}
	return "unpinned"
}

// clocks is what Doctor saw on this boot.
func (b *Box) clocks() matrix.Opt[clockState] {
	var c clockState
	data, err := regular.ReadFile(b.runtimePath("clocks.json"), sharedLimit)
	if err != nil || json.Unmarshal(data, &c) != nil || c.BootID != b.bootID {
		return matrix.Opt[clockState]{}
	}
	return matrix.Some(c)
}

// Ceiling is the highest clock of the busy seconds: the observed ceiling of a box or grid, absent where nothing was busy.
func Ceiling(clocks ...matrix.Clock) matrix.Opt[int64] {
	var top matrix.Opt[int64]
	for _, c := range clocks {
		for _, s := range c.Seconds {
			if s.Util > 0 && s.MHz > top.Or(0) {
				top = matrix.Some(s.MHz)
			}
		}
	}
	return top
}

// certifyClocks watches the clock under a load of its own making.
func (b *Box) certifyClocks(ctx context.Context, d *Diagnosis, c Checks) error {
	if !b.device.Present() {
		return nil // telemetry has said so
	}
	seen, known := b.clocks().Get()
	switch {
	case c.Load != nil:
		clock, env, tokens, err := b.underLoad(ctx, c.Load)
		if err != nil {
			return err
		}
		b.keepClocks(d, b.judgeClock(d, c, clock, env, tokens))
	case known && seen.Flat:
		d.add("clocks", StateOK, fmt.Sprintf("flat under load when doctor last looked on this boot; ceiling %d MHz", seen.CeilingMHz), "", "")
	default:
		d.add("clocks", StateCannot, "not judged: an idle clock proves nothing (2223 MHz idle became 695 MHz under load on one box)", string(matrix.BoxUncertified), "let doctor make a load: broker doctor --engine INSTANCE --model MODEL")
	}
	b.checkPin(d, c)
	return nil
}

func (b *Box) underLoad(ctx context.Context, load Load) (matrix.Opt[matrix.Clock], matrix.Env, int64, error) {
	var none matrix.Opt[matrix.Clock]
	var tree slot
	guarded, end := context.WithCancel(ctx) // the memory guard ends it
	defer end()
	w, err := b.Watch(ctx, tree.get, func(string) { end() })
	if err != nil {
		return none, matrix.Env{}, 0, err
	}
	defer w.Close()
	start, tokens, err := b.generate(guarded, load, &tree)
	if err != nil && ctx.Err() != nil {
		return none, matrix.Env{}, 0, ctx.Err()
	}
	if trip, ok := w.Trip().Get(); ok {
		return none, matrix.Env{}, 0, fmt.Errorf("the memory guard ended the load: %s", trip)
	}
	if err != nil {
		return none, matrix.Env{}, 0, fmt.Errorf("the load failed: %w", err)
	}
	env, clock, _ := w.Window(start, b.opt.Now(), nil)
	return clock, env, tokens, nil
}

// generate runs the load from its start to its end; start is when it began to generate.
func (b *Box) generate(ctx context.Context, load Load, tree *slot) (start, tokens int64, err error) {
	defer func() {
		if e := load.Stop(context.WithoutCancel(ctx)); err == nil {
			err = e
		}
	}()
	pids, err := load.Start(ctx)
	if err != nil {
		return 0, 0, err
	}
	tree.set(pids)
	start = b.opt.Now()
	loading, cancel := context.WithTimeout(ctx, certifyFor)
	defer cancel()
	tokens, err = load.Generate(loading)
	if loading.Err() != nil && ctx.Err() == nil {
		err = nil // it ran as long as it was to
	}
	return start, tokens, err
}

// judgeClock says what the look showed, and returns what may be kept of it: nothing where it failed.
func (b *Box) judgeClock(d *Diagnosis, c Checks, got matrix.Opt[matrix.Clock], env matrix.Env, tokens int64) (keep matrix.Opt[clockState]) {
	if env.GPULost {
		d.add("clocks", StateCannot, "the driver lost the card under the load", string(matrix.GPULost), fixOf(matrix.ReadingError))
		return keep
	}
	if why := silence(env); why != "" {
		d.add("clocks", StateCannot, why, string(matrix.ClockThrottled)+" cannot be judged", "see dmesg; where nvidia-smi answers, run doctor again, else power-cycle the box")
		return keep
	}
	clock, ok := got.Get()
	if !ok {
		d.add("clocks", StateCannot, "no clock was read under the load", string(matrix.ClockFewBusy), "see the telemetry lines above")
		return keep
	}
	d.CeilingMHz = Ceiling(clock)
	var busy []int64
	var bits uint64
	for _, s := range clock.Seconds {
		bits |= s.Bits
		if s.Util > 0 {
			busy = append(busy, s.MHz)
		}
	}
	if tokens == 0 {
		d.add("clocks", StateCannot, errNoTokens.Error()+": a hung engine looks busy, so its clock is not judged", string(matrix.EngineHung), "see the engine's log")
		return keep
	}
	if len(busy) < certifyBusy {
		d.add("clocks", StateCannot, fmt.Sprintf("%d busy seconds, %d are needed", len(busy), certifyBusy), string(matrix.ClockFewBusy), "use a larger model for the check")
		return keep
	}
	slices.Sort(busy)
	low, median, high := busy[0], busy[len(busy)/2], busy[len(busy)-1]
	spread := 100 * float64(high-low) / float64(median)
	floor := int64(gb10FloorMHz)
	if b.profile.Name == "nvidia" {
		floor = clock.MaxMHz.Or(0) / 2
	}
	saw := fmt.Sprintf("%d to %d MHz over %d busy seconds (spread %.1f %%), %d tokens", low, high, len(busy), spread, tokens)
	flat := spread <= flatSpreadPct
	throttled := c.Throttled(bits)
	heat := env.ThermalDelta.Or(0) > 0
	switch {
	case median < floor:
		d.add("clocks", StateCannot, saw+fmt.Sprintf("; below %d MHz under load the box is in its low-power state", floor), string(matrix.ClockDegraded), "take the box off AC power for a minute; a reboot does not cure it")
	case len(throttled) > 0:
		d.add("clocks", StateCannot, saw+fmt.Sprintf("; the driver holds the clock down: %s (event bits %#x)", strings.Join(throttled, ", "), bits), string(matrix.ClockThrottled), "find what holds it (power supply, air, a power cap): nvidia-smi -q -d PERFORMANCE")
	case !flat:
		d.add("clocks", StateCannot, saw, string(matrix.ClockSpread)+", "+string(matrix.ClockHeadUnobserved), fmt.Sprintf("sudo nvidia-smi -pm 1 && sudo nvidia-smi -lgc %d", b.pin(low)))
	case heat:
		d.add("clocks", StateNote, saw+"; no certificate while heat holds the clock", string(matrix.ThermalCounter), "")
	default:
		d.add("clocks", StateOK, saw, "", "")
	}
	if heat {
		d.add("heat", StateCannot, fmt.Sprintf("the thermal counters moved by %d ms under the load; event bits %#x", env.ThermalDelta.Or(0)/1e6, bits), string(matrix.ThermalCounter), fmt.Sprintf("better air, or a lower clock: sudo nvidia-smi -lgc %d", min(b.pin(low), 2100)))
	}
	if most, ok := clock.MaxMHz.Get(); ok && high < most && bits == 0 {
		d.add("clock ceiling", StateNote, fmt.Sprintf("%d MHz of %d: held by a lock that no event reason shows, of unknown source", high, most), "grids of different ceilings do not merge", "")
	}
	if median >= floor && len(throttled) == 0 && !heat {
		keep = matrix.Some(clockState{BootID: b.bootID, CeilingMHz: high, LowMHz: low, Flat: flat})
	}
	return keep
}

// silence is what a window's record says of telemetry that stopped, empty where it did not.
func silence(env matrix.Env) string {
	for _, u := range env.Unevaluable {
		if why, ok := strings.CutPrefix(u, unevaluable(matrix.ClockThrottled, "")); ok && strings.HasPrefix(why, silentFor) {
			return why
		}
	}
	return ""
}

// pin is the clock to hold: the one that reports agree on for a GB10, else the lowest the card kept up by itself.
func (b *Box) pin(low int64) int64 {
	if b.profile.Name == "gb10" {
		return gb10PinMHz
	}
	return low
}

// keepClocks makes the latest look the one that counts: a look that failed takes the certificate of an earlier one away.
func (b *Box) keepClocks(d *Diagnosis, seen matrix.Opt[clockState]) {
	c, ok := seen.Get()
	if !ok && !b.clocks().Present() {
		return
	}
	data, err := json.Marshal(c) // of no boot where the look failed
	if err == nil {
		err = writeShared(b.runtimePath("clocks.json"), data)
	}
	switch {
	case err == nil:
	case ok:
		d.add("clock state", StateNote, "could not be stored, so what an earlier look showed still counts: "+err.Error(), "", "")
	default:
		d.add("clock state", StateCannot, "an earlier certificate of this boot could not be taken away: "+err.Error(), string(matrix.BoxUncertified), "remove "+b.runtimePath("clocks.json"))
	}
}

// PinCommands are what an operator runs to pin the clock, and what takes the pin off again. The broker never does. Where no
// clock is known to hold, the number is left to who looks at the card under load.
func (b *Box) PinCommands() []string {
	mhz := "MHZ"
	if b.profile.Name == "gb10" {
		mhz = fmt.Sprint(gb10PinMHz)
	} else if c, ok := b.clocks().Get(); ok {
		mhz = fmt.Sprint(c.LowMHz)
	}
	return []string{"sudo nvidia-smi -pm 1", "sudo nvidia-smi -lgc " + mhz}
}

// checkPin says what an unpinned run is worth (protocol §4.7).
func (b *Box) checkPin(d *Diagnosis, c Checks) {
	if b.PinState() == "pinned" {
		return
	}
	costs := "most legs void"
	if c.CleanWindow != nil {
		var odds []string
		for _, n := range []int{1, 6, 12, 48} {
			odds = append(odds, fmt.Sprintf("%.2g %% of %d", 100*c.CleanWindow(n), n))
		}
		costs = "most legs void: one clock window holds a leg of that many requests with a chance of " + strings.Join(odds, ", ")
	}
	d.add(whatPin, StateCannot, "the clock was not seen flat under load on this boot", costs, strings.Join(b.PinCommands(), " && ")+"; or --accept-likely-void")
}

// slot hands process numbers from the goroutine that starts an engine to the one that watches it.
type slot struct{ pids atomic.Pointer[[]int] }

func (s *slot) set(pids []int) { s.pids.Store(&pids) }

func (s *slot) get() []int {
	if p := s.pids.Load(); p != nil {
		return *p
	}
	return nil
}
