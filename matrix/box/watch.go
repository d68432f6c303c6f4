package box

import (
	"context"
	"io"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"enginebroker/matrix"
)

const (
	hostEvery    = time.Second
	resumeEvery  = time.Second     // a telemetry stream that broke is opened again after this
	lastReading  = 6 * time.Second // telemetry reads counters every 5 s
	keepPerTrack = 80_000          // samples of each kind: more than 2 h at 10 Hz, about 20 MiB
)

// Watch samples one engine's life: the host once a second, MemAvailable in a thread of its own, the GPU at the telemetry
// rate. A source that breaks or hangs costs its samples and nothing else. Close it.
type Watch struct {
	box     *Box
	base    matrix.Opt[Baseline]
	started int64
	tree    func() []int
	stop    func(why string)
	cancel  context.CancelFunc
	done    sync.WaitGroup

	mu      sync.Mutex // series but its mem, and account
	series  series
	account *account
	dropped int64         // samples before this were given up for space
	arrived chan struct{} // closed and replaced when a device reading comes

	memMu      sync.Mutex // series.mem: the guard waits for nobody who reads /proc
	memDropped int64

	armed  atomic.Pointer[[]*os.Process] // the engine's processes, for a SIGKILL that needs no /proc
	trip   atomic.Pointer[Trip]
	killer *killers
	hostNS bool // PIDs of the driver are PIDs of this /proc
}

// Watch starts sampling. tree lists the engine's processes and may be empty while it starts; their children are found.
// When MemAvailable is about to reach its floor the memory guard calls stop with the reason, from a goroutine of its own,
// and kills the engine's processes itself after the guard's grace, or at once at the floor. stop must not call Close. ctx
// ends the sampling as Close does.
func (b *Box) Watch(ctx context.Context, tree func() []int, stop func(why string)) (*Watch, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &Watch{box: b, started: b.opt.Now(), tree: tree, stop: stop, cancel: cancel, account: newAccount(b.proc),
		arrived: make(chan struct{}), killer: newKillers(b.proc, b.opt.Now()), hostNS: b.proc.initialPIDNamespace()}
	if base, ok := readBaseline(b.runtimePath("baseline.json"), b.bootID); ok {
		w.base = matrix.Some(base)
	}
	if !b.profile.Watched {
		return w, nil
	}
	file, err := os.Open(b.proc.path("meminfo"))
	if err != nil {
		cancel()
		return nil, err
	}
	w.sampleHost()
	w.done.Go(func() { defer file.Close(); w.guardMemory(ctx, file) })
	w.done.Go(func() { w.watchHost(ctx) })
	if d, ok := b.device.Get(); ok && b.profile.GPU {
		w.done.Go(func() { w.watchDevice(ctx, d.Index) })
	}
	return w, nil
}

// Close ends the sampling; Window still answers. It does not stop the engine.
func (w *Watch) Close() error {
	w.cancel()
	w.done.Wait()
	if ps := w.armed.Swap(nil); ps != nil {
		release(*ps)
	}
	return nil
}

// Trip is what made the memory guard act, absent while it has not.
func (w *Watch) Trip() matrix.Opt[Trip] {
	if t := w.trip.Load(); t != nil {
		return matrix.Some(*t)
	}
	return matrix.Opt[Trip]{}
}

// Window returns what the box showed between two CLOCK_MONOTONIC stamps, and a writer of the raw samples (JSON lines).
// heads are [request sent, first token] of each request. It waits up to 6 s for telemetry from after the window's end. Facts of
// the time before a load (baseline, settling, residency) are Settle's and Evict's.
func (w *Watch) Window(start, end int64, heads [][2]int64) (matrix.Env, matrix.Opt[matrix.Clock], func(io.Writer) error) {
	if w.box.profile.Watched {
		w.sampleHost()
		w.awaitDevice(end)
	}
	win := window{start: start, end: end, heads: heads, profile: w.box.profile, base: w.base, bootID: w.box.bootID, device: w.box.device}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.memMu.Lock()
	defer w.memMu.Unlock()
	env := w.series.env(win)
	if id, err := w.box.proc.bootID(); err == nil {
		env.BootIDEnd = id
	}
	clock, why := w.series.clock(win)
	env.Unevaluable = append(env.Unevaluable, why...)
	if max(w.dropped, w.memDropped) > start {
		env.Unevaluable = append(env.Unevaluable, "SAMPLES: the window is longer than what is kept of it; its start is missing")
	}
	return env, clock, w.series.raw(win)
}

// awaitDevice waits until a reading from after t arrived, counters included where the device has them.
func (w *Watch) awaitDevice(t int64) {
	d, ok := w.box.device.Get()
	if !ok || !w.box.profile.GPU {
		return
	}
	field := matrix.FieldSMClock
	if d.Fields[matrix.FieldSWThermal] == matrix.ReadingValue {
		field = matrix.FieldSWThermal
	}
	limit := time.NewTimer(lastReading)
	defer limit.Stop()
	for {
		w.mu.Lock()
		there := false
		for _, x := range slices.Backward(w.series.gpu) {
			if _, has := x.value(field); has && x.at >= t {
				there = true
			}
			if there || x.at < t {
				break
			}
		}
		next := w.arrived
		w.mu.Unlock()
		if there {
			return
		}
		select {
		case <-next:
		case <-limit.C:
			return
		}
	}
}

func (w *Watch) watchHost(ctx context.Context) {
	t := time.NewTicker(hostEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			w.sampleHost()
		}
	}
}

// watchDevice follows the telemetry stream and opens it again when it breaks; the gap shows in the samples.
func (w *Watch) watchDevice(ctx context.Context, index int) {
	for ctx.Err() == nil {
		_ = w.box.opt.Sampler.Sample(ctx, w.box.opt.Hz, func(s matrix.Sample) {
			if s.Device == index {
				w.addDevice(s)
			}
		})
		_ = wait(ctx, resumeEvery)
	}
}

func (w *Watch) addDevice(s matrix.Sample) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.series.gpu = trim(append(w.series.gpu, compact(s, w.classify)), gpuAt, &w.dropped)
	close(w.arrived)
	w.arrived = make(chan struct{})
}

// classify says whose a process on the card is. A match with the engine's tree counts everywhere; no match counts only
// where the driver's PIDs are this /proc's.
func (w *Watch) classify(pid int) ownership {
	switch _, err := w.box.proc.pid(pid); {
	case w.account.owns(pid):
		return ours
	case w.hostNS && err == nil:
		return foreign
	}
	return unmatched
}

// sampleHost reads the host's counters, follows the engine's tree and re-arms the guard.
func (w *Watch) sampleHost() {
	roots := w.tree()
	w.mu.Lock()
	defer w.mu.Unlock()
	proc := w.box.proc
	h := hostSample{swap: -1, stallCPU: -1, stallIO: -1, stallMem: -1}
	h.ours = w.account.update(roots)
	var err error
	h.cpu, err = proc.stat()
	h.at, h.slept, h.cannot = w.box.opt.Now(), w.box.opt.Slept(), err != nil
	if vm := proc.vmCounters("pswpin", "pswpout"); len(vm) == 2 {
		h.swap = vm["pswpin"] + vm["pswpout"]
	}
	if h.load, err = proc.loadAverage(); err != nil {
		h.load = -1 // shown in the raw samples alone; Settle judges it
	}
	for name, to := range map[string]*int64{"cpu": &h.stallCPU, "io": &h.stallIO, "memory": &h.stallMem} {
		if v, ok := proc.pressure(name); ok {
			*to = v
		}
	}
	w.series.host = trim(append(w.series.host, h), hostAt, &w.dropped)
	tree := w.account.engine()
	w.killer.follow(tree)
	w.arm(tree)
}

// trim bounds a stream and moves the stamp from which on it is complete.
func trim[T any](s []T, at func(T) int64, dropped *int64) []T {
	if len(s) <= keepPerTrack {
		return s
	}
	cut := len(s) / 4
	*dropped = max(*dropped, at(s[cut-1]))
	return append(s[:0], s[cut:]...)
}

// arm opens handles on the engine's processes: a handle outlives the number, so a late SIGKILL cannot hit another process.
func (w *Watch) arm(pids []int) {
	if old := w.armed.Load(); old != nil && samePIDs(*old, pids) {
		return
	}
	var next []*os.Process
	for _, pid := range pids {
		if p, err := os.FindProcess(pid); err == nil {
			next = append(next, p)
		}
	}
	if prev := w.armed.Swap(&next); prev != nil {
		release(*prev)
	}
}

func samePIDs(ps []*os.Process, pids []int) bool {
	if len(ps) != len(pids) {
		return false
	}
	for i, p := range ps {
		if p.Pid != pids[i] {
			return false
		}
	}
	return true
}

func release(ps []*os.Process) {
	for _, p := range ps {
		_ = p.Release() // nothing can be done about a handle that does not close
	}
}

// guardMemory reads MemAvailable in a thread of its own, so that a busy runtime does not delay it.
func (w *Watch) guardMemory(ctx context.Context, meminfo *os.File) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	g := w.box.opt.Guard
	t := time.NewTicker(g.Every)
	defer t.Stop()
	var recent []memSample
	buf := make([]byte, 4096)
	for {
		n, err := meminfo.ReadAt(buf, 0)
		if kib, ok := availableKiB(buf[:n]); ok && (err == nil || err == io.EOF) {
			m := memSample{w.box.opt.Now(), kib}
			recent = append(recent, m)
			if len(recent) > 8 {
				recent = append(recent[:0], recent[1:]...)
			}
			w.memMu.Lock()
			w.series.mem = trim(append(w.series.mem, m), memAt, &w.memDropped)
			w.memMu.Unlock()
			w.act(g, recent)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// act stops the engine when the floor is near, and kills it at the floor or when the grace did not help.
func (w *Watch) act(g Guard, recent []memSample) {
	trip, danger := g.judge(recent)
	first := w.trip.Load()
	if first == nil {
		if !danger {
			return
		}
		first = &trip
		w.trip.Store(first)
		w.done.Go(func() { w.stop(trip.String()) })
	}
	if trip.AvailableKiB <= g.FloorKiB || danger && trip.At-first.At >= int64(g.Grace) {
		w.kill()
	}
}

func (w *Watch) kill() {
	if ps := w.armed.Load(); ps != nil {
		for _, p := range *ps {
			_ = p.Signal(unix.SIGKILL) // one that is gone already needs none
		}
	}
}
