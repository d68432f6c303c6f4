package cli

import (
	"bytes"
	"encoding/json"
	"testing"
)

// What a terminal would obey is written as an escape, which JSON reads back; the report's own colours pass where it has any.
func TestHarmless(t *testing.T) {
	for _, c := range []struct {
		in    string
		color bool
		want  string
	}{
		{"plain ü 模\n\ttext", false, "plain ü 模\n\ttext"},
		{"a\x1b]0;title\x07b\r\x7f", false, `a\u001b]0;title\u0007b\u000d\u007f`},
		{"\u009b2J\u202egnp.exe\u2028", true, `\u009b2J\u202egnp.exe\u2028`},
		{"\x1b[31mred\x1b[0m", true, "\x1b[31mred\x1b[0m"},
		{"\x1b[31mred", false, `\u001b[31mred`},
		{"\x1b[8mhidden\x1b[2J", true, `\u001b[8mhidden\u001b[2J`},
		{"half \xe6\xa8", false, "half \xe6\xa8"},
	} {
		var b bytes.Buffer
		if n, err := (harmless{&b, c.color}).Write([]byte(c.in)); err != nil || n != len(c.in) || b.String() != c.want {
			t.Errorf("%q: %q, %d %v", c.in, b.String(), n, err)
		}
	}
	var b bytes.Buffer
	var back string
	if err := json.NewEncoder(harmless{&b, false}).Encode("x\u009b\x7f\U000e0001y"); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b.Bytes(), &back); err != nil || back != "x\u009b\x7f\U000e0001y" {
		t.Errorf("%s: %q %v", b.Bytes(), back, err)
	}
}
