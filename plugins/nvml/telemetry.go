package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"enginebroker/matrix"
)

// driver is what answers for the devices of this box. Calls come from one thread, one at a time; any of them may hang.
type driver interface {
	count() int
	describe(i int) matrix.Device
	library() matrix.Facts
	// read fills the reading of one device, field by field, so that what came before a hanging call is kept. It sets every
	// field that is due, absent ones too.
	read(i int, r *reading)
	// burst takes n passes over the fast fields of the one device in a single call, the first now and each later one a period
	// after from, and ends early where end or wanted is not 0. Before it calls the driver it hands out what it fills. It
	// reports false where nothing was taken: then the passes are read one by one.
	burst(n int, from, period int64, end, wanted *atomic.Int32, running func(burst)) bool
}

// burst is several passes that are being taken.
type burst interface{ samples() []matrix.Sample }

// Fields are read on every pass, or only on slow ones. Reading energy took 4 to 5 ms of CPU on an H200 (580.159.04) and the
// event counters 1 ms; they only count up, so nothing is lost between. Memory and heat change slowly.
var (
	fastFields = []string{matrix.FieldSMClock, matrix.FieldUtilization, matrix.FieldEventReasons, matrix.FieldPower, matrix.FieldProcesses}
	slowFields = []string{
		matrix.FieldTemperature, matrix.FieldMemUsed, matrix.FieldMemFree, matrix.FieldMemClock, matrix.FieldPState,
		matrix.FieldEnergy, matrix.FieldSWThermal, matrix.FieldHWThermal, matrix.FieldPowerBrake, matrix.FieldSWPowerCap,
	}
)

// slowEvery bounds what the slow fields cost to 0.12 % of a core on that card.
const slowEvery = 5 * time.Second

// Limits on one visit to the driver. A healthy pass takes a few milliseconds; opening a card whose driver keeps no state
// takes seconds.
const (
	passLimit = time.Second // so that a hung driver is noticed within 2 s
	openLimit = 20 * time.Second
	mostHz    = 100
)

var errStuck = errors.New("a call into the driver has not returned; nothing can be read until it does")

// telemetry implements engines.Telemetry over a driver.
type telemetry struct {
	path string // of the NVML library; empty: the loader's own search
	open func(path string) (driver, error)
	work *worker
	now  func() int64

	mu  sync.Mutex
	drv driver
}

func newTelemetry(path string) *telemetry {
	return &telemetry{path: path, open: openDriver, work: newWorker(), now: monotonic}
}

// Describe lists the devices. No library, no driver and no device are answers: Why says which.
func (t *telemetry) Describe(ctx context.Context) (matrix.Telemetry, error) {
	drv, err := t.driver(ctx)
	if err != nil {
		return matrix.Telemetry{Why: err.Error()}, ended(ctx, err)
	}
	var out matrix.Telemetry // written by the worker; read only when it is done
	if !t.work.do(ctx, openLimit, func() {
		d := matrix.Telemetry{Library: drv.library()}
		for i := range drv.count() {
			d.Devices = append(d.Devices, drv.describe(i))
		}
		if len(d.Devices) == 0 {
			d.Why = "the driver answers and knows no device"
		}
		out = d
	}) {
		return matrix.Telemetry{Why: errStuck.Error()}, ended(ctx, errStuck)
	}
	return out, nil
}

// ended is the error of a call whose ctx ran out, with what it was waiting for.
func ended(ctx context.Context, why error) error {
	if ctx.Err() == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ctx.Err(), why)
}

// driver opens the library once it can be opened; a failure is tried again at the next call.
func (t *telemetry) driver(ctx context.Context) (driver, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.drv != nil {
		return t.drv, nil
	}
	opened := make(chan driver, 1)
	failed := make(chan error, 1)
	if !t.work.do(ctx, openLimit, func() {
		if d, err := t.open(t.path); err != nil {
			failed <- err
		} else {
			opened <- d
		}
	}) {
		return nil, errStuck
	}
	select {
	case t.drv = <-opened:
		return t.drv, nil
	case err := <-failed:
		return nil, err
	}
}

// visitFor is how long one visit to the driver lasts where passes follow each other: the driver's thread then sleeps between
// them itself. Woken for each pass by the runtime it took twice the CPU time (docs/performance.md). A hang at the start of a
// visit is noticed visitFor + passLimit later.
const visitFor = 500 * time.Millisecond

// Sample reads every device hz times a second until ctx ends. A pass that does not come back in time gives a sample whose
// missing fields are stale, and so does every later one until the driver returns.
func (t *telemetry) Sample(ctx context.Context, hz int, fn func(matrix.Sample)) error {
	if hz < 1 || hz > mostHz {
		return fmt.Errorf("sampling at %d Hz: between 1 and %d are possible", hz, mostHz)
	}
	drv, err := t.driver(ctx)
	if err != nil {
		return err
	}
	period := time.Second / time.Duration(hz)
	v := visit{t: t, drv: drv, period: period}
	at := t.now()
	for visits := 0; ; visits++ {
		at += int64(period)
		if late := t.now() - at; late > int64(period) { // a visit that took long, or a box that slept: no passes to catch up
			at += late
		}
		if err := sleep(ctx, time.Duration(at-t.now())); err != nil {
			return err
		}
		passes := max(1, int(visitFor/period))
		if visits == 0 {
			passes = 1 // whoever wants one reading has it at once
		}
		samples, n, done := v.read(ctx, at, passes)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		for _, s := range samples {
			fn(s)
		}
		at += int64(n-1) * int64(period)
		if !done && n == 0 { // the driver hangs already
			at += int64(period)
		}
	}
}

// visit is what the passes of one stream share.
type visit struct {
	t      *telemetry
	drv    driver
	period time.Duration
	slowAt int64 // when the slow fields are due again
}

// read takes some passes over every device, the first now and each later one a period after it. It returns how many were
// begun, fewer than asked for where somebody else waits for the driver, and whether all came back.
func (v *visit) read(ctx context.Context, at int64, passes int) (out []matrix.Sample, begun int, done bool) {
	var end atomic.Int32
	defer end.Store(1) // a driver that comes back later finds nobody who wants more passes
	defer context.AfterFunc(ctx, func() { end.Store(1) })()
	var mu sync.Mutex
	var taken []burst
	take := func(b burst) {
		mu.Lock()
		taken = append(taken, b)
		mu.Unlock()
	}
	devices, period := v.drv.count(), int64(v.period)
	slow := int(max(0, v.slowAt-at+period-1) / period) // the pass that reads the slow fields; a visit is too short for two
	run := func() {
		if v.drv.burst(min(passes, slow), at, period, &end, &v.t.work.waiting, take) {
			return
		}
		for k := range passes {
			if k > 0 {
				sleepUntil(at + int64(k)*period)
				if end.Load() != 0 || v.t.work.waiting.Load() > 0 {
					return
				}
			}
			for i := range devices {
				r := newReading(v.t.now(), i, k == slow)
				take(r)
				v.drv.read(i, r)
				r.end()
			}
		}
	}
	done = v.t.work.do(ctx, time.Duration(passes-1)*v.period+passLimit, run)
	mu.Lock()
	defer mu.Unlock()
	for _, b := range taken {
		out = append(out, b.samples()...)
	}
	if len(out) == 0 { // not let in
		for i := range devices {
			out = append(out, newReading(v.t.now(), i, slow == 0).samples()...)
		}
		return out, 0, done
	}
	begun = (len(out) + devices - 1) / devices
	if begun > slow {
		v.slowAt = at + int64(slow)*period + int64(slowEvery)
	}
	return out, begun, done
}

// sleep waits in the runtime's way, so that the end of ctx is seen.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// sleepUntil blocks the calling thread until a moment of CLOCK_MONOTONIC.
func sleepUntil(at int64) {
	ts := unix.NsecToTimespec(at)
	for unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &ts, nil) == unix.EINTR {
	}
}

// reading is one pass over one device, filled by the driver's thread while others may look.
type reading struct {
	mu     sync.Mutex
	at     int64
	device int
	slow   bool // the slow fields are due
	done   bool // every field that is due is there
	fields map[string]matrix.Reading
	procs  []matrix.GPUProcess
}

func newReading(at int64, device int, slow bool) *reading {
	size := len(fastFields)
	if slow {
		size += len(slowFields)
	}
	return &reading{at: at, device: device, slow: slow, fields: make(map[string]matrix.Reading, size)}
}

func (r *reading) set(field string, x matrix.Reading) {
	r.mu.Lock()
	r.fields[field] = x
	r.mu.Unlock()
}

func (r *reading) setProcesses(ps []matrix.GPUProcess) {
	r.mu.Lock()
	r.procs = ps
	r.mu.Unlock()
}

// end says that nothing is set any more.
func (r *reading) end() {
	r.mu.Lock()
	r.done = true
	r.mu.Unlock()
}

// samples is what is there, one sample. What was due and is not there yet is stale: the driver hangs.
func (r *reading) samples() []matrix.Sample {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := matrix.Sample{At: r.at, Device: r.device, Fields: r.fields, Processes: r.procs}
	if r.done {
		return []matrix.Sample{s}
	}
	s.Fields = maps.Clone(r.fields)
	due := fastFields
	if r.slow {
		due = slices.Concat(fastFields, slowFields)
	}
	for _, f := range due {
		if _, ok := s.Fields[f]; !ok {
			s.Fields[f] = matrix.Reading{Status: matrix.ReadingStale}
		}
	}
	return []matrix.Sample{s}
}

// worker is the one thread that calls into the driver. A call cannot be cancelled: it is waited for only so long, and
// while it lasts nothing else is let in.
type worker struct {
	jobs    chan job
	stuck   atomic.Bool
	waiting atomic.Int32 // callers that wait for the one whose job runs
}

type job struct {
	run  func()
	done chan struct{}
}

func newWorker() *worker {
	w := &worker{jobs: make(chan job)}
	go func() {
		runtime.LockOSThread() // never unlocked: the driver keeps state by thread, and unlocked it cost 0.15 % of a core more (H200)
		for j := range w.jobs {
			j.run()
			close(j.done)
			w.stuck.Store(false)
		}
	}()
	return w
}

// do reports whether f ran and returned within the limit.
func (w *worker) do(ctx context.Context, limit time.Duration, f func()) bool {
	if w.stuck.Load() {
		return false
	}
	t := time.NewTimer(limit)
	defer t.Stop()
	j := job{f, make(chan struct{})}
	w.waiting.Add(1)
	select {
	case w.jobs <- j:
		w.waiting.Add(-1)
	case <-t.C:
		w.waiting.Add(-1)
		return false // another caller's job is taking its time
	case <-ctx.Done():
		w.waiting.Add(-1)
		return false
	}
	select {
	case <-j.done:
		return true
	case <-ctx.Done(): // the job goes on, and the next one waits for it
		return false
	case <-t.C:
	}
	w.stuck.Store(true)
	select { // it may have returned between the two lines
	case <-j.done:
		w.stuck.Store(false)
		return true
	default:
		return false
	}
}

func monotonic() int64 { return clock(unix.CLOCK_MONOTONIC) }

func clock(id int32) int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		panic("the clock cannot be read: " + err.Error()) // cannot happen on Linux
	}
	return ts.Nano()
}
