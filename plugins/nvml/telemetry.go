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
}

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
	tick := time.NewTicker(time.Second / time.Duration(hz))
	defer tick.Stop()
	slow := int(slowEvery/time.Second) * hz
	for pass := 0; ; pass++ {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		for i := range drv.count() {
			r := newReading(t.now(), pass%slow == 0)
			done := t.work.do(ctx, passLimit, func() { drv.read(i, r) })
			if ctx.Err() != nil {
				return ctx.Err()
			}
			fn(r.sample(i, done))
		}
	}
}

// reading is one pass over one device, filled by the driver's thread while others may look.
type reading struct {
	mu     sync.Mutex
	at     int64
	slow   bool // the slow fields are due
	fields map[string]matrix.Reading
	procs  []matrix.GPUProcess
}

func newReading(at int64, slow bool) *reading {
	return &reading{at: at, slow: slow, fields: make(map[string]matrix.Reading, len(fastFields)+len(slowFields))}
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

// sample copies what is there. What was due and is not there yet is stale: the driver hangs.
func (r *reading) sample(device int, done bool) matrix.Sample {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := matrix.Sample{At: r.at, Device: device, Fields: maps.Clone(r.fields), Processes: r.procs}
	if done {
		return s
	}
	due := fastFields
	if r.slow {
		due = slices.Concat(fastFields, slowFields)
	}
	for _, f := range due {
		if _, ok := s.Fields[f]; !ok {
			s.Fields[f] = matrix.Reading{Status: matrix.ReadingStale}
		}
	}
	return s
}

// worker is the one thread that calls into the driver. A call cannot be cancelled: it is waited for only so long, and
// while it lasts nothing else is let in.
type worker struct {
	jobs  chan job
	stuck atomic.Bool
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
	select {
	case w.jobs <- j:
	case <-t.C:
		return false // another caller's job is taking its time
	case <-ctx.Done():
		return false
	}
	select {
	case <-j.done:
		return true
	case <-t.C:
	case <-ctx.Done():
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
