package main

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"enginebroker/matrix"
)

// Captures of two days: the later one by passes that follow each other in C.
var captures = []string{"testdata/h200-2026-12-01/idle", "testdata/h200-2026-12-01/load", "testdata/h200-2026-12-02/load"}

// smiRow is one line of nvidia-smi, in the units of our fields.
type smiRow struct {
	at     int64 // Unix ns
	values map[string]int64
}

func readSMI(t *testing.T, name string) []smiRow {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := csv.NewReader(f)
	r.TrimLeadingSpace = true
	r.FieldsPerRecord = -1 // the last line was cut when nvidia-smi was ended
	lines, err := r.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	head := lines[0]
	var out []smiRow
	for _, l := range lines[1:] {
		if len(l) < len(head) {
			continue
		}
		at, err := time.Parse("2006/01/02 15:04:05.000", l[0])
		if err != nil {
			t.Fatal(err)
		}
		row := smiRow{at: at.UnixNano(), values: map[string]int64{}}
		for i, h := range head {
			number := func(field string, scale float64) {
				v, err := strconv.ParseFloat(l[i], 64)
				if err != nil {
					t.Fatalf("%s: %v", h, err)
				}
				row.values[field] = int64(math.Round(v * scale))
			}
			name, _, _ := strings.Cut(h, " ")
			switch name {
			case "clocks.current.sm":
				number(matrix.FieldSMClock, 1)
			case "clocks.current.memory":
				number(matrix.FieldMemClock, 1)
			case "power.draw.average":
				number(matrix.FieldPower, 1000)
			case "utilization.gpu":
				number(matrix.FieldUtilization, 1)
			case "memory.used":
				number(matrix.FieldMemUsed, 1<<20)
			case "temperature.gpu":
				number(matrix.FieldTemperature, 1)
			case "clocks_event_reasons.active":
				bits, err := strconv.ParseInt(l[i], 0, 64)
				if err != nil {
					t.Fatal(err)
				}
				row.values[matrix.FieldEventReasons] = bits
			}
		}
		out = append(out, row)
	}
	return out
}

func readSamples(t *testing.T, name string) (head, []matrix.Sample) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var h head
	var out []matrix.Sample
	in := bufio.NewScanner(f)
	in.Buffer(nil, 1<<20)
	for n := 0; in.Scan(); n++ {
		if n == 0 {
			if err := json.Unmarshal(in.Bytes(), &h); err != nil {
				t.Fatal(err)
			}
			continue
		}
		var s matrix.Sample
		if err := json.Unmarshal(in.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
		out = append(out, s)
	}
	return h, out
}

// The plugin and nvidia-smi watched the same H200 (driver 580.159.04) idle and under bf16 matrix products. The two sample
// at different moments, so each of our readings must lie within what nvidia-smi showed in the 200 ms before and after it, up to the
// rounding of its columns.
func TestCaptureAgreesWithNvidiaSMI(t *testing.T) {
	slack := map[string]int64{matrix.FieldPower: 500, matrix.FieldMemUsed: 1 << 20, matrix.FieldTemperature: 1, matrix.FieldUtilization: 1}
	for _, name := range captures {
		h, samples := readSamples(t, name+"-nvml.jsonl")
		rows := readSMI(t, name+"-smi.csv")
		compared, apart := map[string]int{}, map[string]int{}
		for _, s := range samples {
			at := s.At + h.RealtimeOffset
			var near []smiRow
			for _, r := range rows {
				if r.at >= at-200e6 && r.at <= at+200e6 {
					near = append(near, r)
				}
			}
			if len(near) < 2 {
				continue
			}
			for field := range near[0].values {
				x, due := s.Fields[field]
				v, ok := x.Value.Get()
				if !due {
					continue
				}
				if !ok {
					t.Fatalf("%s at %d: %+v", field, s.At, x)
				}
				var seen []int64
				for _, r := range near {
					seen = append(seen, r.values[field])
				}
				compared[field]++
				if v < slices.Min(seen)-slack[field] || v > slices.Max(seen)+slack[field] {
					apart[field]++
				}
			}
		}
		for field, n := range compared {
			least := len(samples) / 2
			if slices.Contains(slowFields, field) {
				least /= int(slowEvery/time.Second) * 10
			}
			if n < least {
				t.Errorf("%s %s: only %d of %d samples could be compared", name, field, n, len(samples))
			}
			if apart[field] > 0 {
				t.Errorf("%s %s: %d of %d samples differ from nvidia-smi", name, field, apart[field], n)
			}
		}
		if len(compared) != 7 {
			t.Errorf("%s: compared %d fields", name, len(compared))
		}
	}
}
