package service

import (
	"encoding/json"
	"strings"
	"testing"

	"enginebroker/broker/config"
	"enginebroker/matrix"
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

// What is kept of a gate holds no secret, and another secret is another gate.
func TestGateKeepsNoSecret(t *testing.T) {
	keys := map[string]bool{}
	for _, token := range []string{"hush-one", "hush-two"} {
		k, _ := gateKeyOf(&member{Instance: config.Instance{Settings: map[string]string{"env.HF_TOKEN": token}}}, matrix.Artifact{})
		b, err := json.Marshal(k)
		if err != nil || strings.Contains(string(b), "hush") {
			t.Errorf("%s %v", b, err)
		}
		keys[string(b)] = true
	}
	if len(keys) != 2 {
		t.Error("two secrets are one gate")
	}
}
