package plugin

import (
	"enginebroker/matrix"
	telemetryv1 "enginebroker/proto/gen/telemetry/v1"
)

func (e enc) availability(s matrix.ReadingStatus) telemetryv1.Availability {
	return *given(availabilities.encode(e, "field", s))
}

func (d dec) availability(a telemetryv1.Availability) matrix.ReadingStatus {
	return availabilities.decode(d, "field", &a)
}

func (e enc) device(x matrix.Device) *telemetryv1.Device {
	return &telemetryv1.Device{
		Index:  number(x.Index),
		Uuid:   text(x.UUID),
		Name:   text(x.Name),
		Facts:  each(x.Facts, e.fact),
		Fields: eachValue(x.Fields, e.availability),
	}
}

func (d dec) device(m *telemetryv1.Device) matrix.Device {
	return matrix.Device{
		Index:  toInt(m.GetIndex()),
		UUID:   m.GetUuid(),
		Name:   m.GetName(),
		Facts:  each(m.GetFacts(), d.fact),
		Fields: eachValue(m.GetFields(), d.availability),
	}
}

func (e enc) telemetry(t matrix.Telemetry) *telemetryv1.DescribeResponse {
	return &telemetryv1.DescribeResponse{Devices: each(t.Devices, e.device), Library: each(t.Library, e.fact), Why: text(t.Why)}
}

func (d dec) telemetry(m *telemetryv1.DescribeResponse) matrix.Telemetry {
	return matrix.Telemetry{Devices: each(m.GetDevices(), d.device), Library: each(m.GetLibrary(), d.fact), Why: m.GetWhy()}
}

func (e enc) reading(r matrix.Reading) *telemetryv1.Reading {
	return &telemetryv1.Reading{Availability: availabilities.encode(e, "reading", r.Status), Value: optional(r.Value, same), Code: text(r.Code)}
}

func (d dec) reading(m *telemetryv1.Reading) matrix.Reading {
	m = given(m)
	return matrix.Reading{Status: availabilities.decode(d, "reading", m.Availability), Value: fromOptional(m.Value, same), Code: m.GetCode()}
}

func (e enc) gpuProcess(p matrix.GPUProcess) *telemetryv1.GpuProcess {
	return &telemetryv1.GpuProcess{Pid: number(p.PID), Bytes: optional(p.Bytes, same)}
}

func (d dec) gpuProcess(m *telemetryv1.GpuProcess) matrix.GPUProcess {
	m = given(m)
	return matrix.GPUProcess{PID: toInt(m.GetPid()), Bytes: fromOptional(m.Bytes, same)}
}

func (e enc) sample(s matrix.Sample) *telemetryv1.SampleResponse {
	return &telemetryv1.SampleResponse{
		AtNs:      new(s.At),
		Device:    number(s.Device),
		Fields:    eachValue(s.Fields, e.reading),
		Processes: each(s.Processes, e.gpuProcess),
	}
}

func (d dec) sample(m *telemetryv1.SampleResponse) matrix.Sample {
	return matrix.Sample{
		At:        m.GetAtNs(),
		Device:    toInt(m.GetDevice()),
		Fields:    eachValue(m.GetFields(), d.reading),
		Processes: each(m.GetProcesses(), d.gpuProcess),
	}
}
