package config

import (
	"strings"
	"testing"
)

// A fault of a value is told with the line and column of its field, whatever the style of the file and the dots in its keys.
func TestFaultsSayWhereTheyAre(t *testing.T) {
	const data = `subject: c
instances:
  a.b: {plugin: simulated, settings: {env.X: 1, ttft: 1ms}}
  b:
    plugin: simulated
    policy:
      length: 2
list:
  - name: x
    engines:
      vllm: {status: fine}
`
	for field, want := range map[string]string{
		"subject": "f:1:1", "instances.a.b.settings.env.X": "f:3:39", "instances.a.b.settings.ttft": "f:3:49", "instances.b.policy.length": "f:7:7",
		"list[0].engines.vllm.status": "f:11:14", "list[0].engines.vllm.why": "f:11:7", "list[3].name": "f:8:1", "nothing": "f",
	} {
		if got := At("f", []byte(data), field); got != want {
			t.Errorf("%s is at %s, want %s", field, got, want)
		}
	}
	_, err := Parse("broker.yaml", []byte(strings.SplitN(data, "list:", 2)[0]))
	if err == nil || !strings.Contains(err.Error(), "broker.yaml:7:7: instances.b.policy.drafter") && !strings.Contains(err.Error(), "broker.yaml:6:5: instances.b.policy.drafter") {
		t.Error(err)
	}
	_, err = Parse("broker.yaml", []byte("subject: c\ninstances: {a: {plugin: x}, b: {plugin: y}}\n"))
	if err == nil || !strings.Contains(err.Error(), "broker.yaml:1:1: subject: there is no instance") {
		t.Error(err)
	}
}
