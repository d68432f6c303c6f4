package plugin

import (
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"
	"time"
)

// A box whose clock jumps keeps its plugins: their certificate holds at any time.
func TestCertificateOutlivesAClockJump(t *testing.T) {
	host := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf(t, nil)})
	der := leaf(t, host)
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	for _, at := range []time.Time{time.Unix(1, 0), time.Now(), time.Now().AddDate(500, 0, 0)} {
		if _, err := cert.Verify(x509.VerifyOptions{DNSName: "localhost", Roots: roots, CurrentTime: at}); err != nil {
			t.Errorf("at %v: %v", at, err)
		}
	}
}

func leaf(t *testing.T, client []byte) []byte {
	t.Helper()
	if client == nil {
		_, der, err := certificate()
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	_, der, err := mutualTLS(string(client))
	if err != nil {
		t.Fatal(err)
	}
	return der
}

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
