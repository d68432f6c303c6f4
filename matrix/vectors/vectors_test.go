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

// Protocol §9: all 102 cases, each through the function that judges real runs.
func TestProtocolVectors(t *testing.T) {
	f := protocol(t)
	if len(f.Cases) != 102 {
		t.Errorf("%d cases, want 102", len(f.Cases))
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
	if err != nil || failed != 0 || !strings.HasSuffix(b.String(), "102 cases, 102 ok, 0 failed\n") {
		t.Errorf("%d failed, %v:\n%s", failed, err, b.String())
	}
}
