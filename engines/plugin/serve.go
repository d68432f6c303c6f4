package plugin

import (
	"enginebroker/engines"
)

// Serve is the whole main of an engine adapter.
func Serve(newEngine func() engines.Engine) {}

// ServeTelemetry is the whole main of a telemetry plugin.
func ServeTelemetry(newTelemetry func() engines.Telemetry) {}
