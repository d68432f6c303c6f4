package plugin

import (
	"strings"
	"testing"
)

// What a host of another make leaves out is named, and nothing is served in the clear.
func TestHandshakeNeedsItsEnvironment(t *testing.T) {
	for _, c := range []struct{ name, cert, want string }{
		{"no certificate", "", envClientCert},
		{"no certificate but text", "hello", envClientCert},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv(envClientCert, c.cert)
			t.Setenv(envSocketDir, t.TempDir())
			var stdout strings.Builder
			if err := (&life{}).serve(telemetryService{}, &stdout); err == nil || !strings.Contains(err.Error(), c.want) || stdout.Len() > 0 {
				t.Errorf("%v, printed %q", err, stdout.String())
			}
		})
	}
}
