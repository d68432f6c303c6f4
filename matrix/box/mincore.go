package box

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mincore asks the kernel which pages of a mapping are in memory; x/sys has no wrapper for it.
func mincore(mapping, vec []byte) error {
	_, _, e := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&mapping[0])), uintptr(len(mapping)), uintptr(unsafe.Pointer(&vec[0])))
	if e != 0 {
		return e
	}
	return nil
}
