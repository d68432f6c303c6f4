// A stand-in for libnvidia-ml.so.1 that answers as reports say a GB10 does, or as it fails. The mode comes from the
// environment, or from -DMODE=\"NAME\"; -DNO_INIT, -DNO_REASONS, -DNO_COUNTERS and -DNO_PROCESSES build a library without those symbols.
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, NOT_SUPPORTED = 3, NO_PERMISSION = 4, GPU_IS_LOST = 15, MISMATCH = 18 };
typedef void *device;

static int mode(const char *name) {
#ifdef MODE
	const char *m = MODE;
#else
	const char *m = getenv("STUB_MODE");
#endif
	return m && strcmp(m, name) == 0;
}

static double since_init(void) {
	static struct timespec first;
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	if (!first.tv_sec) first = now;
	return (now.tv_sec - first.tv_sec) + (now.tv_nsec - first.tv_nsec) / 1e9;
}

// The card answers for a second, then it is lost or the driver hangs.
static int gate(void) {
	if (mode("no_permission")) return NO_PERMISSION;
	if (since_init() < 1) return OK;
	if (mode("hang")) for (;;) pause();
	return mode("lost") ? GPU_IS_LOST : OK;
}

static int busy(void) { return !mode("idle") && !(mode("collapse") && since_init() < 1); }

#ifndef NO_INIT
int nvmlInit_v2(void) {
	since_init();
	if (mode("hang_init")) for (;;) pause();
	return mode("mismatch") ? MISMATCH : mode("no_permission_init") ? NO_PERMISSION : OK;
}
#endif
int nvmlShutdown(void) { return OK; }
int nvmlSystemGetDriverVersion(char *s, unsigned n) { strncpy(s, "580.142", n); return OK; }
int nvmlSystemGetNVMLVersion(char *s, unsigned n) { strncpy(s, "13.580.142", n); return OK; }
int nvmlSystemGetCudaDriverVersion(int *v) { *v = 13000; return OK; }
int nvmlDeviceGetCount_v2(unsigned *c) { *c = mode("two") ? 2 : mode("none") ? 0 : 1; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, device *d) { *d = (device)(long)(i + 1); return OK; }
int nvmlDeviceGetName(device d, char *s, unsigned n) { strncpy(s, mode("discrete") ? "NVIDIA H200" : "NVIDIA GB10", n); return OK; }
int nvmlDeviceGetUUID(device d, char *s, unsigned n) {
	strncpy(s, d == (device)1 ? "GPU-00000000-0000-0000-0000-00000000b10b" : "GPU-00000000-0000-0000-0000-00000000b10c", n);
	return OK;
}
int nvmlDeviceGetVbiosVersion(device d, char *s, unsigned n) { strncpy(s, "9A.0B.12.00.0C", n); return OK; }
int nvmlDeviceGetCudaComputeCapability(device d, int *a, int *b) { *a = 12; *b = 1; return OK; }
int nvmlDeviceGetPersistenceMode(device d, unsigned *m) { *m = mode("no_persistence") ? 0 : 1; return OK; }
int nvmlDeviceGetMaxClockInfo(device d, unsigned type, unsigned *v) { *v = 3003; return OK; }
int nvmlDeviceGetEnforcedPowerLimit(device d, unsigned *v) { *v = 0; return NOT_SUPPORTED; }
int nvmlDeviceGetEccMode(device d, unsigned *a, unsigned *b) { return NOT_SUPPORTED; }
int nvmlDeviceGetMigMode(device d, unsigned *a, unsigned *b) { *a = *b = 1; return mode("mig") ? OK : NOT_SUPPORTED; }

int nvmlDeviceGetClockInfo(device d, unsigned type, unsigned *v) {
	if (type == 2) return NOT_SUPPORTED; // memory clock
	*v = mode("stuck") ? 799 : mode("cap") ? 2190 : 2405;
	if (mode("collapse")) *v = busy() ? 695 : 2223;
	return gate();
}
int nvmlDeviceGetUtilizationRates(device d, unsigned *v) { v[0] = busy() ? 96 : 0; v[1] = 0; return mode("mig") ? NOT_SUPPORTED : gate(); }
#ifndef NO_REASONS
int nvmlDeviceGetCurrentClocksEventReasons(device d, unsigned long long *v) { *v = mode("throttle") ? 0x20 : 0; return gate(); }
#endif
int nvmlDeviceGetPowerUsage(device d, unsigned *v) { *v = mode("stuck") ? 19500 : busy() ? 92000 : 11170; return gate(); }
int nvmlDeviceGetTotalEnergyConsumption(device d, unsigned long long *v) { *v = 1000000 + (unsigned long long)(since_init() * 92000); return gate(); }
int nvmlDeviceGetTemperature(device d, unsigned sensor, unsigned *v) { *v = mode("throttle") ? 92 : 55; return gate(); }
int nvmlDeviceGetPerformanceState(device d, unsigned *v) { *v = 0; return gate(); }

struct memory { unsigned long long total, free, used; };
int nvmlDeviceGetMemoryInfo(device d, struct memory *m) {
	memset(m, 0, sizeof *m);
	if (mode("memory_zero")) return OK;
	if (mode("memory_shim")) {
		m->total = (unsigned long long)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
		m->free = m->total / 2;
		m->used = m->total - m->free;
		return OK;
	}
	if (mode("discrete")) {
		m->total = 143771ULL << 20, m->free = 143000ULL << 20, m->used = 771ULL << 20;
		return OK;
	}
	return NOT_SUPPORTED;
}

struct field { unsigned id, scope; long long at, latency; unsigned type, ret; unsigned long long value; };
#ifndef NO_COUNTERS
int nvmlDeviceGetFieldValues(device d, int n, struct field *f) {
	for (int i = 0; i < n; i++) {
		f[i].type = 3; // unsigned long long
		f[i].ret = f[i].id == 271 ? NOT_SUPPORTED : OK;
		f[i].value = f[i].id == 269 && mode("throttle") ? (unsigned long long)(since_init() * 1e9) : 7;
	}
	return gate();
}
#endif

struct process { unsigned pid; unsigned long long used; unsigned gpu, compute; };
#ifndef NO_PROCESSES
int nvmlDeviceGetComputeRunningProcesses_v3(device d, unsigned *n, struct process *p) {
	if (mode("idle")) { *n = 0; return gate(); }
	if (*n < 2) { *n = 2; return 7; } // insufficient size
	*n = 2;
	p[0] = (struct process){4242, 63931ULL << 20, 0, 0};
	p[1] = (struct process){4243, ~0ULL, 0, 0}; // memory not available
	return gate();
}
#endif
