package service

import (
	"testing"

	"enginebroker/matrix/workload"
)

// A group of 2, 3, 4 and 5 arms runs the superblocks of protocol §2.8.
func TestSuperblocks(t *testing.T) {
	for name, want := range map[string][]int{"quick": {2, 2, 2, 2}, "standard": {3, 3, 3, 3}, "binding": {3, 3, 4, 5}} {
		p, ok := workload.ProfileNamed(name)
		if !ok {
			t.Fatal(name)
		}
		for i, n := range want {
			if got := superblocks(p, i+2); got != n {
				t.Errorf("%s, %d arms: %d superblocks, want %d", name, i+2, got, n)
			}
		}
	}
}
