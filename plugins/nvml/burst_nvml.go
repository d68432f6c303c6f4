//go:build linux && cgo

package main

/*
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <time.h>

enum { CALLS = 5, PROCESSES = 64, FUNCTION_NOT_FOUND = 13, INSUFFICIENT_SIZE = 7, SM_CLOCK = 1 };

typedef struct { unsigned pid; unsigned long long used; unsigned gpu, compute; } process; // of the second and third form of the call

// pass is one pass over the fast fields, in the order of fastFields.
typedef struct {
	long long at;  // CLOCK_MONOTONIC ns; 0: not begun
	int came;      // calls that came back
	int ret[CALLS];
	long long value[CALLS];
	unsigned count;
	process processes[PROCESSES];
} pass;

typedef struct {
	int (*handle)(unsigned, void **);
	int (*clock)(void *, unsigned, unsigned *);
	int (*rates)(void *, unsigned *);
	int (*reasons)(void *, unsigned long long *);
	int (*power)(void *, unsigned *);
	int (*processes)(void *, unsigned *, process *);
	void *device;
} calls;

static void *either(const char *a, const char *b) {
	void *p = dlsym(RTLD_DEFAULT, a);
	return p ? p : dlsym(RTLD_DEFAULT, b);
}

// bind finds the calls of one device. A library with only the oldest form of the process list, whose entries are shorter, is
// left to the bindings.
static int bind(calls *c, unsigned index) {
	c->handle = dlsym(RTLD_DEFAULT, "nvmlDeviceGetHandleByIndex_v2");
	c->clock = dlsym(RTLD_DEFAULT, "nvmlDeviceGetClockInfo");
	c->rates = dlsym(RTLD_DEFAULT, "nvmlDeviceGetUtilizationRates");
	c->reasons = either("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons");
	c->power = dlsym(RTLD_DEFAULT, "nvmlDeviceGetPowerUsage");
	c->processes = either("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2");
	if (!c->processes && dlsym(RTLD_DEFAULT, "nvmlDeviceGetComputeRunningProcesses")) return 0;
	return c->handle && c->handle(index, &c->device) == 0;
}

static void came(pass *p, int ret, long long value) {
	p->ret[p->came] = ret;
	p->value[p->came] = value;
	__atomic_store_n(&p->came, p->came + 1, __ATOMIC_RELEASE);
}

// take makes n passes, the first now and each later one a period after it, and returns how many are whole. It ends early where
// *end or *wanted is set, and where more processes hold the device than there is room for.
static int take(calls *c, pass *out, int n, long long from, long long period, int *end, int *wanted) {
	for (int k = 0; k < n; k++) {
		pass *p = &out[k];
		struct timespec t;
		if (k > 0) {
			long long next = from + k * period;
			t.tv_sec = next / 1000000000;
			t.tv_nsec = next % 1000000000;
			while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, 0) == EINTR) {}
			if (__atomic_load_n(end, __ATOMIC_RELAXED) || __atomic_load_n(wanted, __ATOMIC_RELAXED)) return k;
		}
		clock_gettime(CLOCK_MONOTONIC, &t);
		__atomic_store_n(&p->at, t.tv_sec * 1000000000LL + t.tv_nsec, __ATOMIC_RELEASE);
		unsigned v = 0, rates[2] = {0, 0};
		unsigned long long bits = 0;
		int r = c->clock ? c->clock(c->device, SM_CLOCK, &v) : FUNCTION_NOT_FOUND;
		came(p, r, v);
		r = c->rates ? c->rates(c->device, rates) : FUNCTION_NOT_FOUND;
		came(p, r, rates[0]);
		r = c->reasons ? c->reasons(c->device, &bits) : FUNCTION_NOT_FOUND;
		came(p, r, bits);
		v = 0;
		r = c->power ? c->power(c->device, &v) : FUNCTION_NOT_FOUND;
		came(p, r, v);
		p->count = PROCESSES;
		r = c->processes ? c->processes(c->device, &p->count, p->processes) : FUNCTION_NOT_FOUND;
		if (r == INSUFFICIENT_SIZE) return k;
		if (r != 0) p->count = 0;
		came(p, r, p->count);
	}
	return n;
}
*/
import "C"

import (
	"math"
	"sync/atomic"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"enginebroker/matrix"
)

// nvmlBurst is a burst of fast passes in C. Where Go makes each pass, the runtime wakes four threads around it, and that
// costs more than the driver's calls do.
type nvmlBurst struct {
	passes []C.pass
	whole  atomic.Int32 // passes that may be handed on, once the call is back; before that -1
}

// fastCalls are the calls of the one device.
type fastCalls struct {
	calls C.calls
	bound bool // they can be used
}

// burst implements driver. A box with several devices is read pass by pass.
func (d *nvmlDriver) burst(n int, from, period int64, end, wanted *atomic.Int32, running func(burst)) bool {
	if len(d.devices) != 1 || n < 2 {
		return false
	}
	if d.fast == nil {
		d.fast = new(fastCalls)
		d.fast.bound = C.bind(&d.fast.calls, 0) != 0
	}
	if !d.fast.bound {
		return false
	}
	b := &nvmlBurst{passes: make([]C.pass, n)}
	b.whole.Store(-1)
	running(b)
	whole := C.take(&d.fast.calls, &b.passes[0], C.int(n), C.longlong(from), C.longlong(period),
		(*C.int)(unsafe.Pointer(end)), (*C.int)(unsafe.Pointer(wanted)))
	b.whole.Store(int32(whole))
	return whole > 0
}

// samples implements burst; while the call hangs, what came before it is there and the rest is stale.
func (b *nvmlBurst) samples() []matrix.Sample {
	var out []matrix.Sample
	n, back := int(b.whole.Load()), true
	if n < 0 {
		n, back = len(b.passes), false
	}
	for k := range n {
		p := &b.passes[k]
		at := atomic.LoadInt64((*int64)(unsafe.Pointer(&p.at)))
		if at == 0 {
			break
		}
		s := matrix.Sample{At: at, Fields: make(map[string]matrix.Reading, len(fastFields))}
		came := int(atomic.LoadInt32((*int32)(unsafe.Pointer(&p.came))))
		for i, f := range fastFields {
			if i < came {
				s.Fields[f] = as(int64(p.value[i]), nvml.Return(p.ret[i]))
			} else {
				s.Fields[f] = matrix.Reading{Status: matrix.ReadingStale}
			}
		}
		if came == len(fastFields) {
			for _, x := range p.processes[:p.count] {
				g := matrix.GPUProcess{PID: int(x.pid)}
				if x.used != math.MaxUint64 { // "not available"
					g.Bytes = matrix.Some(int64(x.used))
				}
				s.Processes = append(s.Processes, g)
			}
		}
		if !back && came < len(fastFields) {
			return append(out, s)
		}
		out = append(out, s)
	}
	return out
}
