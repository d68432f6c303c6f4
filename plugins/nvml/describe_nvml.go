//go:build linux && cgo

package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"enginebroker/matrix"
)

// describe reads the identity of one device and what each of its fields is. MIG and ECC that are not supported are a card
// that cannot do them, no fault.
func (d *nvmlDriver) describe(i int) matrix.Device {
	dev := d.devices[i]
	out := matrix.Device{Index: i, Fields: map[string]matrix.ReadingStatus{}}
	// text asks for one fact; the field map says why there is none.
	text := func(name, symbol string, call func() (string, nvml.Return)) string {
		if !d.can(symbol) {
			out.Fields[name] = matrix.ReadingAbsent
			return ""
		}
		v, r := call()
		out.Fields[name] = as(0, r).Status
		if r != nvml.SUCCESS {
			return ""
		}
		out.Facts = append(out.Facts, matrix.Fact{Name: name, Value: v, Where: symbol, Standing: matrix.Observed})
		return v
	}
	number := func(name, symbol string, call func() (uint32, nvml.Return)) {
		text(name, symbol, func() (string, nvml.Return) {
			v, r := call()
			return strconv.FormatUint(uint64(v), 10), r
		})
	}
	out.Name = text("name", "nvmlDeviceGetName", dev.GetName)
	out.UUID = text("uuid", "nvmlDeviceGetUUID", dev.GetUUID)
	if v, ok := d.facts.Get(matrix.DeviceFactDriver); ok {
		out.Facts = append(out.Facts, v)
	}
	text(matrix.DeviceFactVBIOS, "nvmlDeviceGetVbiosVersion", dev.GetVbiosVersion)
	text("pci_bus", d.pciSymbol(), func() (string, nvml.Return) {
		p, r := dev.GetPciInfo()
		return cstring(p.BusId[:]), r
	})
	text("compute_capability", "nvmlDeviceGetCudaComputeCapability", func() (string, nvml.Return) {
		major, minor, r := dev.GetCudaComputeCapability()
		return fmt.Sprintf("%d.%d", major, minor), r
	})
	text(matrix.DeviceFactPersistence, "nvmlDeviceGetPersistenceMode", func() (string, nvml.Return) {
		m, r := dev.GetPersistenceMode()
		return onOff(m == nvml.FEATURE_ENABLED), r
	})
	number(matrix.DeviceFactMaxSM, "nvmlDeviceGetMaxClockInfo", func() (uint32, nvml.Return) { return dev.GetMaxClockInfo(nvml.CLOCK_SM) })
	number("power_limit_mw", "nvmlDeviceGetEnforcedPowerLimit", dev.GetEnforcedPowerLimit)
	text("ecc", "nvmlDeviceGetEccMode", func() (string, nvml.Return) {
		m, _, r := dev.GetEccMode()
		return onOff(m == nvml.FEATURE_ENABLED), r
	})
	text("mig", "nvmlDeviceGetMigMode", func() (string, nvml.Return) {
		m, _, r := dev.GetMigMode()
		return onOff(m == nvml.DEVICE_MIG_ENABLE), r
	})
	text("addressing_mode", "nvmlDeviceGetAddressingMode", func() (string, nvml.Return) {
		m, r := dev.GetAddressingMode()
		return strconv.FormatUint(uint64(m.Value), 10), r
	})
	if !d.unified[i] && d.can("nvmlDeviceGetMemoryInfo") {
		if m, r := dev.GetMemoryInfo(); r == nvml.SUCCESS && m.Total > 0 {
			out.Facts = append(out.Facts, matrix.Fact{Name: matrix.DeviceFactMemory, Value: strconv.FormatUint(m.Total, 10), Where: "nvmlDeviceGetMemoryInfo", Standing: matrix.Observed})
		}
	}
	if d.unified[i] {
		out.Facts = append(out.Facts, matrix.Fact{Name: "memory", Value: "unified with the host: /proc/meminfo tells it", Where: "nvmlDeviceGetName", Standing: matrix.Observed})
	}
	r := newReading(0, i, true)
	d.read(i, r)
	for f, x := range r.fields {
		out.Fields[f] = x.Status
	}
	return out
}

func (d *nvmlDriver) pciSymbol() string {
	for _, s := range []string{"nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2"} {
		if d.can(s) {
			return s
		}
	}
	return "nvmlDeviceGetPciInfo"
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

func cstring[T int8 | uint8](b []T) string {
	var s strings.Builder
	for _, c := range b {
		if c == 0 {
			break
		}
		s.WriteByte(byte(c))
	}
	return s.String()
}
