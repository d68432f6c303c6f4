package vectors_test

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"enginebroker/matrix/vectors"
)

func protocol(t testing.TB) vectors.File {
	t.Helper()
	data, err := os.ReadFile("testdata/protocol-vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	f, err := vectors.Read(data)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Protocol §9: all 102 cases and the constants, each through the function that judges real runs.
func TestProtocolVectors(t *testing.T) {
	f := protocol(t)
	if len(f.Cases) != 103 {
		t.Errorf("%d cases, want 103", len(f.Cases))
	}
	for _, o := range f.Run() {
		t.Run(o.Case.ID+"_"+o.Case.Kind, func(t *testing.T) {
			if o.Err != nil {
				t.Fatal(o.Err)
			}
			for _, d := range o.Diff {
				t.Error(d)
			}
		})
	}
}

func TestPrint(t *testing.T) {
	var b bytes.Buffer
	failed, err := vectors.Print(&b, protocol(t).Run())
	if err != nil || failed != 0 || !strings.HasSuffix(b.String(), "103 cases, 103 ok, 0 failed\n") {
		t.Errorf("%d failed, %v:\n%s", failed, err, b.String())
	}
}

// What a file says of the thresholds, verdicts and causes is checked like a case: an edited or unknown constant is a difference.
func TestConstants(t *testing.T) {
	data, err := os.ReadFile("testdata/protocol-vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	for old, with := range map[string]string{
		`"delta_r": 0.02`:           `"delta_r": 0.03`,
		`"benign_mask": "0x103"`:    `"benign_mask": "0x3"`,
		`"mode_floor_log"`:          `"mode_floor"`,
		`"REQUEST_COUNT": "ENGINE"`: `"REQUEST_COUNT": "ENV"`,
		`"PROVISIONAL",`:            `"LIKELY",`,
	} {
		f, err := vectors.Read(bytes.Replace(data, []byte(old), []byte(with), 1))
		if err != nil {
			t.Fatal(err)
		}
		if o := f.Run()[0]; o.Case.Kind != "constants" || o.Pass() || len(o.Diff) != 1 {
			t.Errorf("%s: %+v", with, o.Diff)
		}
	}
}
