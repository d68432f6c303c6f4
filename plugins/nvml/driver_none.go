//go:build !(linux && cgo)

package main

import "errors"

// openDriver says what this build cannot do. NVML can be called through cgo alone.
func openDriver(string) (driver, error) {
	return nil, errors.New("this nvml plugin was built without cgo and cannot call NVML; install a C compiler and run: make build")
}
