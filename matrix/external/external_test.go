package external

import (
	"encoding/json"
	"errors"
	"flag"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"enginebroker/matrix"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func files(t testing.TB) []string {
	t.Helper()
	names, err := filepath.Glob("testdata/*.json*")
	if err != nil || len(names) != 18 {
		t.Fatalf("%d result files of six tools in three runs: %v", len(names), err)
	}
	return names
}

func read(t *testing.T, file string) Result {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rs, err := Read(f)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if len(rs) != 1 {
		t.Fatalf("%s: %d results", file, len(rs))
	}
	return rs[0]
}

// Every real file, as it is read.
func TestGolden(t *testing.T) {
	for _, file := range files(t) {
		got, err := json.MarshalIndent(read(t, file), "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		golden := filepath.Join("testdata", "golden", strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))+".golden")
		if *update {
			if err := os.MkdirAll(filepath.Dir(golden), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(golden, append(got, '\n'), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(strings.TrimSpace(string(want)), string(got)); d != "" {
			t.Errorf("%s (-want +got):\n%s", file, d)
		}
	}
}

func number(t *testing.T, r Result, name string) float64 {
	t.Helper()
	for _, n := range r.Numbers {
		if n.Name == name {
			return n.Value
		}
	}
	t.Fatalf("%s has no %s: %+v", r.Tool, name, r.Numbers)
	return 0
}

// The table of harnesses.md §3.7, to the digits it prints: six tools against one server with TTFT 50 ms and ITL 20 ms.
func TestTableOfSixTools(t *testing.T) {
	for _, c := range []struct {
		file      string
		tool      string
		mean, p99 float64 // TTFT at 16 streams; NaN: the file has none
		tpot      string
		tpotMean  float64
		okOf32    int64 // of 32 requests of which 8 ended in an error
		failed    int64 // -1: no such field
	}{
		{"vllm", "vllm bench serve", 55.53, 61.75, "tpot_mean", 20.00, 32, 0},
		{"sglang", "sglang.bench_serving", 54.88, 58.94, "tpot_mean", 20.00, 24, 8},
		{"guidellm", "guidellm", 51.96, 60.77, "tpot_mean", 20.99, 24, 8},
		{"aiperf", "aiperf", 57.69, 68.82, "itl_mean", 20.05, 32, 0},
		{"llama-benchy", "llama-benchy", 55.76, math.NaN(), "", 0, 32, -1},
		{"inference-perf", "inference-perf", 51.73, 60.45, "tpot_mean", 19.99, 27, 0},
	} {
		name := "testdata/" + c.file + "-mock-c16.json"
		if c.file == "sglang" {
			name += "l"
		}
		r := read(t, name)
		near := func(what string, want float64) {
			if got := number(t, r, what); math.Abs(got-want) > 0.0051 {
				t.Errorf("%s: %s is %v, want %v", c.file, what, got, want)
			}
		}
		if r.Tool != c.tool || r.Mark != Mark {
			t.Errorf("%s was read as %s, marked %q", name, r.Tool, r.Mark)
		}
		near("ttft_mean", c.mean)
		if !math.IsNaN(c.p99) {
			near("ttft_p99", c.p99)
		}
		if c.tpot != "" {
			near(c.tpot, c.tpotMean)
		}
		r = read(t, strings.Replace(name, "mock-c16", "mock-sseerr-c4", 1))
		if ok, _ := r.OK.Get(); ok != c.okOf32 {
			t.Errorf("%s says %d ok, want %d", c.file, ok, c.okOf32)
		}
		if failed, ok := r.Failed.Get(); (ok && failed != c.failed) || ok == (c.failed < 0) {
			t.Errorf("%s says %d failed (present %t), want %d", c.file, failed, ok, c.failed)
		}
		if c.okOf32 != 24 && !strings.Contains(strings.Join(r.Warnings, "\n"), failuresCountAsOK) {
			t.Errorf("%s counts failures as ok and no warning says so: %q", c.file, r.Warnings)
		}
	}
}

func TestVersionsAndUnits(t *testing.T) {
	for tool, version := range map[string]string{"guidellm": "0.8.1", "aiperf": "0.13.0", "llama-benchy": "0.4.0"} {
		r := read(t, "testdata/"+tool+"-mock-c16.json")
		if v, _ := r.Version.Get(); v != version || r.Formula != tool+"@"+version {
			t.Errorf("%s: version %q, formula %q", tool, v, r.Formula)
		}
	}
	for _, file := range files(t) {
		r := read(t, file)
		if !r.Version.Present() && (r.Missing[0] != "version" || !strings.Contains(r.Formula, "not in the file")) {
			t.Errorf("%s: no version, and nothing says so", file)
		}
		if strings.Contains(file, "mock-c16") && r.Tool != "llama-benchy" {
			if x := number(t, r, "e2el_mean"); x < 660 || x > 690 { // 50 + 31·20 ms, whatever unit the file has
				t.Errorf("%s: e2el_mean is %v ms", file, x)
			}
		}
		for _, n := range r.Numbers {
			if n.Unit == "" || n.Field == "" || n.Value < 0 || math.IsNaN(n.Value) {
				t.Errorf("%s: %+v", file, n)
			}
		}
	}
}

func TestSeveralResultsInOneFile(t *testing.T) {
	line, err := os.ReadFile("testdata/sglang-mock-c16.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	rs, err := Read(strings.NewReader(string(line) + "\n" + string(line)))
	if err != nil || len(rs) != 2 {
		t.Errorf("two lines gave %d results, %v", len(rs), err)
	}
	if _, err := Read(strings.NewReader(string(line) + `{"completed":`)); err == nil || !strings.Contains(err.Error(), "value 2") {
		t.Errorf("a torn second line gave %v", err)
	}
}

// Python's bare words become null outside strings only; the field is then missing.
func TestBareInfinity(t *testing.T) {
	for in, want := range map[string]string{
		`{"a":Infinity}`:           `{"a":null}`,
		`[NaN,-Infinity,1]`:        `[null,null,1]`,
		`{"a":"Infinity, NaN"}`:    `{"a":"Infinity, NaN"}`,
		`{"\"NaN":NaN}`:            `{"\"NaN":null}`,
		`{"a":"b\\","c":Infinity}`: `{"a":"b\\","c":null}`,
		`{"a":1}`:                  `{"a":1}`,
		`"NaN\`:                    `"NaN\`,
	} {
		if got := string(plainJSON([]byte(in))); got != want {
			t.Errorf("%s became %s, want %s", in, got, want)
		}
	}
	r, err := Read(strings.NewReader(`{"total_token_throughput":Infinity,"mean_ttft_ms":NaN,"median_ttft_ms":1.5,"completed":3}`))
	if err != nil {
		t.Fatal(err)
	}
	missing := strings.Join(r[0].Missing, " ")
	if !strings.Contains(missing, "total_token_throughput") || !strings.Contains(missing, "mean_ttft_ms") || len(r[0].Numbers) != 1 {
		t.Errorf("%+v; want one number and two of the missing named", r[0])
	}
}

func TestWhatIsNoResult(t *testing.T) {
	for name, c := range map[string]struct{ file, want string }{
		"empty":               {"", "holds no result"},
		"text":                {"TTFT 50 ms", "no JSON"},
		"a list":              {`[{"start_time":1}]`, "log of requests"},
		"another object":      {`{"a":1}`, "known are guidellm, aiperf"},
		"log of aiperf":       {`{"metadata":{"session_num":0},"metrics":{}}`, "profile_export_aiperf.json"},
		"null":                {`null`, "no result file"},
		"wrong type":          {`{"aiperf_version":"1","time_to_first_token":{"avg":"fast"}}`, "aiperf"},
		"half a request":      {`{"total_token_throughput":1,"mean_ttft_ms":1,"completed":1.5}`, "completed: 1.5 is no count"},
		"less than none":      {`{"total_token_throughput":1,"mean_ttft_ms":1,"failed":-1}`, "failed: -1"},
		"guidellm, no counts": {`{"metadata":{},"benchmarks":[{"metrics":{"request_totals":{"successful":-3}}}]}`, "benchmark 0"},
		"guidellm, nothing":   {`{"metadata":{},"benchmarks":[]}`, "holds no result"},
	} {
		if _, err := Read(strings.NewReader(c.file)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v does not say %q", name, err, c.want)
		}
	}
	if _, err := Read(strings.NewReader(`{}`)); !errors.Is(err, ErrUnknown) {
		t.Errorf("%v is not ErrUnknown", err)
	}
}

func TestImpossibleNumbersAreMissing(t *testing.T) {
	r, err := Read(strings.NewReader(`{"total_token_throughput":-5,"mean_ttft_ms":1e308,"median_ttft_ms":2}`))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(r[0].Missing, " "), "total_token_throughput (it says -5)") {
		t.Errorf("missing %q does not name the negative rate", r[0].Missing)
	}
	a, err := Read(strings.NewReader(`{"aiperf_version":"1","time_to_first_token":{"unit":"fortnights","avg":1},"error_summary":[{"count":2},{"count":3}],"is_complete":false}`))
	if err != nil {
		t.Fatal(err)
	}
	if a[0].Failed != matrix.Some(int64(5)) || len(a[0].Numbers) != 0 || !strings.Contains(strings.Join(a[0].Missing, " "), "fortnights") ||
		!strings.Contains(strings.Join(a[0].Warnings, " "), "not complete") {
		t.Errorf("%+v", a[0])
	}
	l, err := Read(strings.NewReader(`{"latency_mode":"api","version":"1","benchmarks":[{"ttfr":{"mean":1,"values":[1,1,1]},"tg_req_throughput":{"mean":9,"values":[9]}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(l[0].Warnings, " "), "1 of 3 requests") {
		t.Errorf("dropped requests are not named: %q", l[0].Warnings)
	}
}

// Every reader takes any document, whichever tool it is of.
func FuzzReaders(f *testing.F) {
	for _, file := range files(f) {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"benchmarks":[null,{}],"metadata":null,"input_config":{"phases":[{"kind":"profiling"}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, tool := range tools {
			rs, err := tool.read(plainJSON(data))
			if err != nil {
				continue
			}
			for _, r := range rs {
				if r.Mark != Mark || r.Formula == "" {
					t.Fatalf("%s: unmarked %+v", tool.name, r)
				}
				if _, err := json.Marshal(r); err != nil {
					t.Fatalf("%s: %v", tool.name, err)
				}
			}
		}
		if rs, err := Read(strings.NewReader(string(data))); err == nil && len(rs) == 0 {
			t.Fatal("neither a result nor an error")
		}
	})
}

// aiperf says the unit of every figure: a duration in ms is no number of seconds, and a rate in another unit is missing.
func TestAiperfUnits(t *testing.T) {
	r, err := Read(strings.NewReader(`{"aiperf_version":"1","time_to_first_token":{"unit":"sec","avg":0.05},"benchmark_duration":{"unit":"ms","avg":2500},
		"request_count":{"unit":"requests","avg":10},"request_throughput":{"unit":"requests/min","avg":240},"output_token_throughput":{"unit":"tokens/sec","avg":7}}`))
	if err != nil {
		t.Fatal(err)
	}
	missing := strings.Join(r[0].Missing, "\n")
	if r[0].Seconds != matrix.Some(2.5) || number(t, r[0], "ttft_mean") != 50 || number(t, r[0], "output_tok_s") != 7 ||
		!strings.Contains(missing, `request_throughput in a known unit (it says "requests/min")`) || !strings.Contains(missing, "total_token_throughput in a known unit") {
		t.Errorf("%+v", r[0])
	}
}

// What a file contradicts itself in is said beside its numbers.
func TestInconsistentFilesAreNoted(t *testing.T) {
	for name, c := range map[string]struct{ file, want string }{
		"more than asked for":  {`"num_prompts":4,"completed":4,"failed":1`, "5 requests ended, 4 were asked for"},
		"some are lost":        {`"num_prompts":8,"completed":4,"failed":1`, "3 of 8 requests are neither ok nor failed"},
		"a rate that is none":  {`"completed":10,"duration":10,"request_throughput":5`, "request_throughput is 5, but its own counts over its duration give 1"},
		"tokens of nowhere":    {`"total_output_tokens":100,"duration":10,"output_throughput":1`, "output_throughput is 1, but its own counts over its duration give 10"},
		"all of it is in line": {`"num_prompts":5,"completed":4,"failed":1,"total_output_tokens":100,"duration":10,"output_throughput":9.9`, ""},
	} {
		file := `{"total_token_throughput":1,"mean_ttft_ms":1,` + c.file + `}`
		for _, mark := range []string{"", "\ufeff"} {
			rs, err := Read(strings.NewReader(mark + file))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			said := strings.Join(rs[0].Warnings[1:], "\n") // the first is of the tool itself
			if !strings.Contains(said, c.want) || c.want == "" && strings.Contains(said, "count") || strings.Contains(said, "byte-order mark") != (mark != "") {
				t.Errorf("%s: %q, want %q", name, said, c.want)
			}
		}
	}
}
