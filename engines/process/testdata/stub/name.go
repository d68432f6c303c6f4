package main

import "unsafe"

// nameOf keeps a C string for prctl.
func nameOf(s string) unsafe.Pointer {
	b := append([]byte(s), 0)
	return unsafe.Pointer(&b[0])
}
