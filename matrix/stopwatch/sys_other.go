//go:build !unix

package stopwatch

import "time"

var processStart = time.Now()

// monotonic counts from the start of this process: without CLOCK_MONOTONIC stamps of two processes do not compare.
func monotonic() int64 { return int64(time.Since(processStart)) }

// processCPU is not read here: unknown.
func processCPU() int64 { return -1 }
