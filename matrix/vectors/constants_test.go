package vectors_test

import (
	"encoding/json"
	"os"
	"slices"
	"testing"

	"enginebroker/matrix"
	"enginebroker/matrix/gates"
)

// Protocol §4.1, §4.5: the file's own tables of verdicts, reasons and causes are those of the product, no more and no less.
func TestConstants(t *testing.T) {
	data, err := os.ReadFile("testdata/protocol-vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		Constants struct {
			Order   []string                        `json:"severity_order"`
			Reasons map[string][]matrix.Reason      `json:"reasons"`
			Causes  map[matrix.LegCode]matrix.Cause `json:"leg_code_cause"`
			Clock   struct {
				Mask string `json:"benign_mask"`
			} `json:"clock"`
		} `json:"constants"`
	}
	if err := json.Unmarshal(data, &f); err != nil {
		t.Fatal(err)
	}
	if len(f.Constants.Order) != int(matrix.NotComparable)+1 {
		t.Errorf("%d verdicts, want %d", len(f.Constants.Order), int(matrix.NotComparable)+1)
	}
	for rank, name := range f.Constants.Order {
		v := matrix.Verdict(rank)
		want := slices.Sorted(slices.Values(f.Constants.Reasons[name]))
		if v.String() != name || !slices.Equal(v.Reasons(), want) {
			t.Errorf("rank %d is %v with %v, want %s with %v", rank, v, v.Reasons(), name, want)
		}
	}
	for code, want := range f.Constants.Causes {
		if got, err := code.Cause(); got != want || err != nil {
			t.Errorf("%s: %q (%v), want %q", code, got, err, want)
		}
	}
	if p, err := gates.ProfileByName("gb10"); err != nil || f.Constants.Clock.Mask != "0x103" || p.ClockMask != 0x103 {
		t.Errorf("mask %#x (%v), want %s", p.ClockMask, err, f.Constants.Clock.Mask)
	}
}
