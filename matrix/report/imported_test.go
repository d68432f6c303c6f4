package report

import (
	"strings"
	"testing"

	"enginebroker/matrix"
)

func imported() matrix.Report {
	return matrix.Report{Schema: 1, Run: "peers", State: "external", External: true, Imported: []matrix.Imported{
		{Mark: "EXTERNAL", Tool: "vllm bench serve", Formula: "vllm bench serve (version not in the file)", Model: "m", Concurrency: matrix.Some(int64(4)), File: "files/1-a.json",
			Planned: matrix.Some(int64(32)), OK: matrix.Some(int64(32)), Failed: matrix.Some(int64(0)),
			Numbers:  []matrix.ImportedNumber{{Name: "ttft_mean", Field: "mean_ttft_ms", Unit: "ms", Value: 55.53}, {Name: "req_s", Field: "request_throughput", Unit: "req/s", Value: 7}},
			Warnings: []string{"this tool counts a stream that ends in an error event as ok"}},
		{Mark: "EXTERNAL", Tool: "guidellm", Formula: "guidellm@0.8.1", OK: matrix.Some(int64(24)), Failed: matrix.Some(int64(8)), File: "files/2-b.json",
			Numbers: []matrix.ImportedNumber{{Name: "ttft_mean", Field: "time_to_first_token_ms.successful.mean", Unit: "ms", Value: 51.96}}, Missing: []string{"itl"}},
	}}
}

// Imported results stand side by side in every format, under the stamp, with the counts of their files.
func TestImported(t *testing.T) {
	for name, f := range formats {
		text := render(t, f, imported())
		if name == "all.txt" {
			text = strings.ReplaceAll(strings.ReplaceAll(text, "\x1b[1m", ""), "\x1b[0m", "")
		}
		for _, want := range []string{"EXTERNAL", "guidellm", "0.8.1", "55.53", "51.96", "ttft_mean", "files/2-b.json"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s lacks %q", name, want)
			}
		}
		if name == "report.json" || name == "report.csv" {
			continue
		}
		if !strings.Contains(strings.Join(strings.Fields(text), " "), "– planned, 24 ok, 8 failed") {
			t.Errorf("%s lacks the counts of a result", name)
		}
		if strings.Contains(text, "ratio above 1") {
			t.Errorf("%s speaks of ratios", name)
		}
	}
}

func TestImportedHostileText(t *testing.T) {
	for _, s := range []string{"\x1b[31mred", "<script>alert(1)</script>", "a|b\nc", "=1+1", "\u202Egnp", "\xff\xfe", "{{.}}", ""} {
		r := hostile(s)
		r.External, r.Imported = true, []matrix.Imported{{Tool: s, Formula: s, Model: s, File: s, Warnings: []string{s}, Missing: []string{s},
			Numbers: []matrix.ImportedNumber{{Name: s, Field: s, Unit: s, Value: 1}}}}
		harmless(t, r)
	}
}
