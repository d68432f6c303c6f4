// Command nvml tells what NVIDIA's management library says of the devices of this box (telemetry.v1). It is the only
// program of the project that needs cgo, and a process of its own because a driver call can end or hang its process: then
// samples are lost and nothing else.
//
// It changes nothing on a device. Every field is a value or the reason why there is none; unknown is never zero. A field
// whose call the loaded library lacks is absent: calling it would end the process, so every symbol is looked up first.
//
// By hand, without a broker:
//
//	nvml --sample 10          describe the devices, then sample them for 10 s, as JSON lines
//	nvml --sample 10 --hz 2   the same at 2 Hz
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"enginebroker/engines"
	"enginebroker/engines/plugin"
	"enginebroker/matrix"
)

// libraryEnv names another NVML library than the loader finds.
const libraryEnv = "BROKER_NVML_LIBRARY"

func main() {
	// Between two visits to the driver nothing is to be done: with one processor the runtime wakes no threads to look for work. A
	// hung driver call gives its processor up.
	runtime.GOMAXPROCS(1)
	t := newTelemetry(os.Getenv(libraryEnv))
	if len(os.Args) > 1 && strings.TrimLeft(os.Args[1], "-") == "sample" {
		if err := byHand(t, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "nvml:", err)
			os.Exit(1)
		}
		return
	}
	plugin.ServeTelemetry(func() engines.Telemetry { return t })
}

// byHand samples for a person at a terminal.
func byHand(t engines.Telemetry, args []string) error {
	f := flag.NewFlagSet("nvml", flag.ContinueOnError)
	seconds := f.Float64("sample", 0, "seconds to sample")
	hz := f.Int("hz", 10, "samples a second")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *seconds <= 0 || f.NArg() > 0 {
		return errors.New("say for how many seconds: nvml --sample SECONDS [--hz N]")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(*seconds*float64(time.Second)))
	defer cancel()
	return print(ctx, os.Stdout, t, *hz)
}

// head is the first line of --sample. Adding the offset to a sample's stamp gives Unix time in ns.
type head struct {
	BootID         string           `json:"boot_id"`
	RealtimeOffset int64            `json:"realtime_offset_ns"`
	Telemetry      matrix.Telemetry `json:"telemetry"`
}

// print writes the description and then samples until ctx ends. Without a device it writes the description alone.
func print(ctx context.Context, to io.Writer, t engines.Telemetry, hz int) error {
	d, err := t.Describe(ctx)
	if err != nil {
		return err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	enc := json.NewEncoder(to)
	offset := clock(unix.CLOCK_REALTIME) - monotonic()
	if err := enc.Encode(head{BootID: strings.TrimSpace(string(boot)), RealtimeOffset: offset, Telemetry: d}); err != nil || len(d.Devices) == 0 {
		return err
	}
	var failed error
	err = t.Sample(ctx, hz, func(s matrix.Sample) {
		if e := enc.Encode(s); failed == nil {
			failed = e
		}
	})
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	return errors.Join(err, failed)
}
