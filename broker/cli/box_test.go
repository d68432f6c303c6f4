package cli

import (
	"strings"
	"testing"
	"time"

	"enginebroker/broker/service"
	"enginebroker/matrix"
)

// A dash stands for what is not known: nought would be a healthy value.
func TestSnapshotLine(t *testing.T) {
	reading := func(v int64) matrix.Reading {
		return matrix.Reading{Status: matrix.ReadingValue, Value: matrix.Some(v)}
	}
	none := matrix.Reading{Status: matrix.ReadingNotSupported}
	for name, c := range map[string]struct {
		s    service.Snapshot
		want string
	}{
		"no GPU, little known": {service.Snapshot{AvailableKiB: 2048, FreeKiB: 1024}, "mem available 2 MiB, free 1, cached – · cpu –, steal –, load –"},
		"all known": {service.Snapshot{AvailableKiB: 2048, FreeKiB: 1024, CachedKiB: matrix.Some[int64](0), Busy: matrix.Some(0.5), Steal: matrix.Some(0.0), LoadAverage: matrix.Some(0.0)},
			"mem available 2 MiB, free 1, cached 0 · cpu 50 %, steal 0 %, load 0.00"},
		"a GPU that answers nothing": {service.Snapshot{GPU: matrix.Some(matrix.Sample{Fields: map[string]matrix.Reading{matrix.FieldProcesses: none}})},
			" · GPU –, – busy, –, – (rail), – processes, event bits –"},
		"a GPU": {service.Snapshot{GPU: matrix.Some(matrix.Sample{Fields: map[string]matrix.Reading{matrix.FieldSMClock: reading(2190), matrix.FieldUtilization: reading(0), matrix.FieldTemperature: reading(40),
			matrix.FieldPower: reading(9000), matrix.FieldProcesses: reading(0), matrix.FieldEventReasons: reading(0)}})}, " · GPU 2190 MHz, 0 % busy, 40 °C, 9 W (rail), 0 processes"},
	} {
		t.Run(name, func(t *testing.T) {
			c.s.At = time.Unix(0, 0)
			if got := snapshotLine(c.s); !strings.HasSuffix(got, c.want) {
				t.Errorf("%s\nwant …%s", got, c.want)
			}
		})
	}
}
