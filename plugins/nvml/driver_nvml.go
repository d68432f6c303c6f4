//go:build linux && cgo

package main

/*
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

// whence names the file that answers calls of a symbol in this process, a preloaded shim included.
static const char *whence(const char *symbol) {
	void *p = dlsym(RTLD_DEFAULT, symbol);
	Dl_info info;
	return p && dladdr(p, &info) ? info.dli_fname : NULL;
}
*/
import "C"

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"enginebroker/matrix"
)

const libraryName = "libnvidia-ml.so.1"

// nvmlDriver calls NVML. A call whose symbol the loaded library lacks would end the process with exit code 127, and no
// recover helps: every call is guarded by can.
type nvmlDriver struct {
	api     nvml.Interface
	lib     *dl.DynamicLibrary
	known   map[string]bool
	facts   matrix.Facts
	devices []nvml.Device
	unified []bool // by device: the card has no memory of its own
	fast    *fastCalls
}

func openDriver(path string) (driver, error) {
	if path == "" {
		path = libraryName
	}
	d := &nvmlDriver{lib: dl.New(path, dl.RTLD_LAZY|dl.RTLD_GLOBAL), known: map[string]bool{}}
	if err := d.lib.Open(); err != nil {
		return nil, fmt.Errorf("the NVML library cannot be loaded: %w; install the NVIDIA driver, or name the library in %s", err, libraryEnv)
	}
	for _, s := range []string{"nvmlInit_v2", "nvmlShutdown", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2"} {
		if !d.can(s) {
			return nil, fmt.Errorf("%s lacks %s: it is no NVML library, or one too old", whence("nvmlInit_v2", path), s)
		}
	}
	d.api = nvml.New(nvml.WithLibraryPath(path))
	if r := d.api.Init(); r != nvml.SUCCESS { // no Shutdown after this: it may not be bound
		return nil, fmt.Errorf("the NVIDIA driver does not start: %s (%s)", code(r), advice(r))
	}
	d.identify(path)
	n, r := d.api.DeviceGetCount()
	if r != nvml.SUCCESS {
		return nil, fmt.Errorf("the NVIDIA driver does not list its devices: %s", code(r))
	}
	for i := range n {
		dev, r := d.api.DeviceGetHandleByIndex(i)
		if r != nvml.SUCCESS {
			return nil, fmt.Errorf("device %d cannot be opened: %s (%s)", i, code(r), advice(r))
		}
		d.devices = append(d.devices, dev)
		d.unified = append(d.unified, d.isUnified(dev))
	}
	return d, nil
}

// can reports whether the library has a symbol.
func (d *nvmlDriver) can(symbol string) bool {
	ok, seen := d.known[symbol]
	if !seen {
		ok = d.lib.Lookup(symbol) == nil
		d.known[symbol] = ok
	}
	return ok
}

// whence resolves the file behind a symbol, or returns what was asked for.
func whence(symbol, asked string) string {
	s := C.CString(symbol)
	defer C.free(unsafe.Pointer(s))
	name := C.whence(s)
	if name == nil {
		return asked
	}
	path := C.GoString(name)
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

func (d *nvmlDriver) identify(path string) {
	add := func(name, value, where string) {
		if value != "" {
			d.facts = append(d.facts, matrix.Fact{Name: name, Value: value, Where: where, Standing: matrix.Observed})
		}
	}
	lib := whence("nvmlInit_v2", path)
	add("library_path", lib, "dladdr(nvmlInit_v2)")
	// People replace single calls to make memory figures appear on unified boxes.
	if other := whence("nvmlDeviceGetMemoryInfo", path); other != lib && d.can("nvmlDeviceGetMemoryInfo") {
		add("memory_library_path", other, "dladdr(nvmlDeviceGetMemoryInfo)")
	}
	add("ld_preload", os.Getenv("LD_PRELOAD"), "environment")
	if d.can("nvmlSystemGetDriverVersion") {
		if v, r := d.api.SystemGetDriverVersion(); r == nvml.SUCCESS {
			add(matrix.DeviceFactDriver, v, "nvmlSystemGetDriverVersion")
		}
	}
	if d.can("nvmlSystemGetNVMLVersion") {
		if v, r := d.api.SystemGetNVMLVersion(); r == nvml.SUCCESS {
			add("nvml_version", v, "nvmlSystemGetNVMLVersion")
		}
	}
	if d.can("nvmlSystemGetCudaDriverVersion_v2") || d.can("nvmlSystemGetCudaDriverVersion") {
		if v, r := d.cudaVersion(); r == nvml.SUCCESS {
			add("cuda_driver", fmt.Sprintf("%d.%d", v/1000, v%1000/10), "nvmlSystemGetCudaDriverVersion")
		}
	}
}

func (d *nvmlDriver) cudaVersion() (int, nvml.Return) {
	if d.can("nvmlSystemGetCudaDriverVersion_v2") {
		return d.api.SystemGetCudaDriverVersion_v2()
	}
	return d.api.SystemGetCudaDriverVersion()
}

func (d *nvmlDriver) count() int { return len(d.devices) }

func (d *nvmlDriver) library() matrix.Facts { return d.facts }

// isUnified reports a part that has no memory of its own. Its memory calls answer NOT_SUPPORTED, or total 0, or invent a
// total near MemTotal: all three mean /proc/meminfo. The name decides, because a discrete card may be as large as the
// host's memory by chance.
func (d *nvmlDriver) isUnified(dev nvml.Device) bool {
	if !d.can("nvmlDeviceGetName") {
		return false
	}
	name, r := dev.GetName()
	if r != nvml.SUCCESS {
		return false
	}
	for _, part := range []string{"GB10", "Thor", "Orin"} {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}

// code names a driver's answer without asking the library, which may lack the words.
func code(r nvml.Return) string {
	switch r {
	case nvml.ERROR_UNINITIALIZED:
		return "uninitialized"
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return "driver_not_loaded"
	case nvml.ERROR_TIMEOUT:
		return "timeout"
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return "library_not_found"
	case nvml.ERROR_GPU_IS_LOST:
		return matrix.CodeGPULost
	case nvml.ERROR_RESET_REQUIRED:
		return "reset_required"
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return "lib_rm_version_mismatch"
	case nvml.ERROR_NO_PERMISSION:
		return "no_permission"
	case nvml.ERROR_NO_DATA:
		return "no_data"
	case nvml.ERROR_GPU_NOT_FOUND:
		return "gpu_not_found"
	case nvml.ERROR_UNKNOWN:
		return "unknown"
	}
	return fmt.Sprintf("nvml_%d", int(r))
}

func advice(r nvml.Return) string {
	switch r {
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return "load it: modprobe nvidia, or reboot after an update"
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return "library and kernel module are of two versions: reboot after the driver update"
	case nvml.ERROR_GPU_IS_LOST:
		return "the card fell off the bus: power-cycle the box"
	case nvml.ERROR_NO_PERMISSION:
		return "this user may not open /dev/nvidia*; in a container pass the devices in"
	}
	return "see: nvidia-smi"
}

// as makes a reading of a driver's answer.
func as(v int64, r nvml.Return) matrix.Reading {
	switch r {
	case nvml.SUCCESS:
		return matrix.Reading{Status: matrix.ReadingValue, Value: matrix.Some(v)}
	case nvml.ERROR_NOT_SUPPORTED:
		return matrix.Reading{Status: matrix.ReadingNotSupported}
	case nvml.ERROR_NO_PERMISSION:
		return matrix.Reading{Status: matrix.ReadingNoPermission}
	case nvml.ERROR_FUNCTION_NOT_FOUND:
		return matrix.Reading{Status: matrix.ReadingAbsent}
	}
	return matrix.Reading{Status: matrix.ReadingError, Code: code(r)}
}

// read takes the clock first: it is what the stamp is for.
func (d *nvmlDriver) read(i int, r *reading) {
	dev := d.devices[i]
	one := func(field, symbol string, call func() (int64, nvml.Return)) {
		if !d.can(symbol) {
			r.set(field, matrix.Reading{Status: matrix.ReadingAbsent})
			return
		}
		r.set(field, as(call()))
	}
	one(matrix.FieldSMClock, "nvmlDeviceGetClockInfo", func() (int64, nvml.Return) { return wide(dev.GetClockInfo(nvml.CLOCK_SM)) })
	one(matrix.FieldUtilization, "nvmlDeviceGetUtilizationRates", func() (int64, nvml.Return) {
		u, ret := dev.GetUtilizationRates()
		return int64(u.Gpu), ret
	})
	d.readReasons(dev, r)
	one(matrix.FieldPower, "nvmlDeviceGetPowerUsage", func() (int64, nvml.Return) { return wide(dev.GetPowerUsage()) })
	d.readProcesses(dev, r)
	if !r.slow {
		return
	}
	one(matrix.FieldTemperature, "nvmlDeviceGetTemperature", func() (int64, nvml.Return) { return wide(dev.GetTemperature(nvml.TEMPERATURE_GPU)) })
	one(matrix.FieldPState, "nvmlDeviceGetPerformanceState", func() (int64, nvml.Return) {
		p, ret := dev.GetPerformanceState()
		return int64(p), ret
	})
	one(matrix.FieldMemClock, "nvmlDeviceGetClockInfo", func() (int64, nvml.Return) { return wide(dev.GetClockInfo(nvml.CLOCK_MEM)) })
	one(matrix.FieldEnergy, "nvmlDeviceGetTotalEnergyConsumption", func() (int64, nvml.Return) { return large(dev.GetTotalEnergyConsumption()) })
	d.readMemory(i, r)
	d.readCounters(dev, r)
}

// readReasons prefers the current name of the call over the one it replaced; both give the same mask.
func (d *nvmlDriver) readReasons(dev nvml.Device, r *reading) {
	switch {
	case d.can("nvmlDeviceGetCurrentClocksEventReasons"):
		r.set(matrix.FieldEventReasons, as(large(dev.GetCurrentClocksEventReasons())))
	case d.can("nvmlDeviceGetCurrentClocksThrottleReasons"):
		r.set(matrix.FieldEventReasons, as(large(dev.GetCurrentClocksThrottleReasons())))
	default:
		r.set(matrix.FieldEventReasons, matrix.Reading{Status: matrix.ReadingAbsent})
	}
}

// readMemory prefers the second form of the call: the first counts what the driver reserves as used.
func (d *nvmlDriver) readMemory(i int, r *reading) {
	var m nvml.Memory
	ret := nvml.ERROR_FUNCTION_NOT_FOUND
	switch dev := d.devices[i]; {
	case d.unified[i]:
		ret = nvml.ERROR_NOT_SUPPORTED
	case d.can("nvmlDeviceGetMemoryInfo_v2"):
		var v2 nvml.Memory_v2
		v2, ret = dev.GetMemoryInfo_v2()
		m = nvml.Memory{Total: v2.Total, Free: v2.Free, Used: v2.Used}
	case d.can("nvmlDeviceGetMemoryInfo"):
		m, ret = dev.GetMemoryInfo()
	}
	if ret == nvml.SUCCESS && m.Total == 0 {
		ret = nvml.ERROR_NOT_SUPPORTED
	}
	r.set(matrix.FieldMemUsed, as(int64(m.Used), ret))
	r.set(matrix.FieldMemFree, as(int64(m.Free), ret))
}

// counters are the nanoseconds that each reason has held the clock down since the driver started (nvml.h field ids).
var counters = []struct {
	field string
	id    uint32
}{
	{matrix.FieldSWPowerCap, nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP},
	{matrix.FieldSWThermal, nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN},
	{matrix.FieldHWThermal, nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN},
	{matrix.FieldPowerBrake, nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN},
}

func (d *nvmlDriver) readCounters(dev nvml.Device, r *reading) {
	values := make([]nvml.FieldValue, len(counters))
	for i, c := range counters {
		values[i].FieldId = c.id
	}
	ret := nvml.ERROR_FUNCTION_NOT_FOUND
	if d.can("nvmlDeviceGetFieldValues") {
		ret = dev.GetFieldValues(values)
	}
	for i, c := range counters {
		x := as(0, ret)
		if ret == nvml.SUCCESS {
			v, ok := number(values[i])
			if x = as(v, nvml.Return(values[i].NvmlReturn)); x.Status == matrix.ReadingValue && !ok {
				x = matrix.Reading{Status: matrix.ReadingError, Code: fmt.Sprintf("value_type_%d", values[i].ValueType)}
			}
		}
		r.set(c.field, x)
	}
}

func number(v nvml.FieldValue) (int64, bool) {
	switch nvml.ValueType(v.ValueType) {
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		return int64(binary.NativeEndian.Uint32(v.Value[:])), true
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return int64(binary.NativeEndian.Uint64(v.Value[:])), true
	}
	return 0, false
}

func (d *nvmlDriver) readProcesses(dev nvml.Device, r *reading) {
	if !d.can("nvmlDeviceGetComputeRunningProcesses_v3") && !d.can("nvmlDeviceGetComputeRunningProcesses_v2") && !d.can("nvmlDeviceGetComputeRunningProcesses") {
		r.set(matrix.FieldProcesses, matrix.Reading{Status: matrix.ReadingAbsent})
		return
	}
	ps, ret := dev.GetComputeRunningProcesses()
	r.set(matrix.FieldProcesses, as(int64(len(ps)), ret))
	var out []matrix.GPUProcess
	for _, p := range ps {
		g := matrix.GPUProcess{PID: int(p.Pid)}
		if p.UsedGpuMemory != math.MaxUint64 { // "not available"
			g.Bytes = matrix.Some(int64(p.UsedGpuMemory))
		}
		out = append(out, g)
	}
	r.setProcesses(out)
}

func wide(v uint32, r nvml.Return) (int64, nvml.Return)  { return int64(v), r }
func large(v uint64, r nvml.Return) (int64, nvml.Return) { return int64(v), r }
