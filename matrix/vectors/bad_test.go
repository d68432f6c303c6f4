package vectors_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"enginebroker/matrix/vectors"
)

func file(cases string) string {
	return `{"schema": "broker-protocol-vectors/1", "tolerance": {"abs": 1e-9, "rel": 1e-9},
"cases": [` + cases + `]}`
}

// A file that cannot be understood names the place and what is wrong.
func TestMalformedFiles(t *testing.T) {
	for _, c := range []struct{ name, data, want string }{
		{"empty", "", "line 1, column 1: the file ends"},
		{"not json", "x", "line 1, column 1: invalid character 'x'"},
		{"truncated", "{\n\"schema\": ", "line 2, column 11: the file ends"},
		{"bad inside", "{\n\"schema\": \"a\",\n  ?}", "line 3, column 3: invalid character '?'"},
		{"type", "{\"schema\": 7}", "line 1, column"},
		{"trailing", file(`{"id":"a","kind":"verdict","input":{},"expect":{}}`) + "\n{}", "something follows"},
		{"schema", `{"schema": "other"}`, `schema is "other"`},
		{"no tolerance", `{"schema": "broker-protocol-vectors/1", "cases": []}`, "tolerance needs"},
		{"negative tolerance", `{"schema": "broker-protocol-vectors/1", "tolerance": {"abs": -1, "rel": 0}, "cases": [1]}`, "tolerance needs"},
		{"no cases", `{"schema": "broker-protocol-vectors/1", "tolerance": {"abs": 0, "rel": 0}}`, "no cases"},
		{"empty cases", file(""), "no cases"},
		{"cases no array", `{"schema": "broker-protocol-vectors/1", "tolerance": {"abs": 0, "rel": 0}, "cases": 5}`, "not an array"},
		{"no id", file(`{"kind":"verdict","input":{},"expect":{}}`), "line 2, column 11: a case without id"},
		{"unknown kind", file("\n  " + `{"id":"Z9","kind":"astrology","input":{},"expect":{}}`), `line 3, column 3: case Z9: unknown kind "astrology"`},
		{"no expect", file(`{"id":"Z9","kind":"verdict","input":{}}`), "case Z9: a case needs input and expect"},
		{"expects nothing", file(`{"id":"Z9","kind":"verdict","input":{},"expect":{}}`), "line 2, column 11: case Z9: it expects nothing"},
		{"expects nothing below", file(`{"id":"Z9","kind":"verdict","input":{},"expect":{"a":{}}}`), "case Z9: it expects nothing"},
		{"constants of nothing", strings.Replace(file(`{"id":"Z9","kind":"verdict","input":{},"expect":{"verdict":"VOID"}}`), `"cases"`, `"constants": {}, "cases"`, 1), "case constants: it expects nothing"},
		{"twice", file(`{"id":"a","kind":"verdict","input":{},"expect":{"verdict":"VOID"}},` + "\n" + `{"id":"a","kind":"verdict","input":{},"expect":{}}`), "line 3, column 1: case a: the id is used twice"},
		{"case no object", file(`7`), "line 2, column 11"},
	} {
		_, err := vectors.Read([]byte(c.data))
		if _, ok := errors.AsType[*vectors.FileError](err); !ok || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// A case that the product refuses, or whose input makes no sense, fails by itself with its place; the others run.
func TestRefusedCases(t *testing.T) {
	for _, c := range []struct{ kind, input, want string }{
		{"paired_ci", `{"d":[0.1],"conf":0.95}`, "needs at least 2"},
		{"paired_ci", `{"d":[],"conf":0.95}`, "needs at least 2"},
		{"paired_ci", `{"d":[0.1,0.2],"conf":2}`, "a confidence lies between"},
		{"paired_ci", `{"d":"x"}`, "input: json"},
		{"leg_fold", `{"reps":[]}`, "needs at least 1"},
		{"block_logratio", `{"a":0,"b":1,"better":"higher"}`, "a ratio needs positive values"},
		{"block_logratio", `{"a":-1,"b":1,"better":"higher"}`, "a ratio needs positive values"},
		{"block_logratio", `{"a":1,"b":1,"better":"sideways"}`, "higher or lower"},
		{"lag_adjusted_ci", `{"d":[1,2,3],"lag":[1,1,1],"conf":0.95}`, "order and effect cannot be told apart"},
		{"lag_adjusted_ci", `{"d":[1,2,3],"lag":[1,1],"conf":0.95}`, "one lag for each block"},
		{"bh", `{"p":[1.5]}`, "a p value lies in 0..1"},
		{"t_quantile", `{"p":0.975,"df":[0]}`, "degrees of freedom start at 1"},
		{"splitmix64", `{"seed0":"-1","seed1":"0"}`, "not a decimal number"},
		{"splitmix64", `{"seed0":"1","seed1":"0","perm_n":1000000000}`, "must be 0.."},
		{"williams_base", `{"t":[0]}`, "must be 1.."},
		{"schedule", `{"arms":["a"],"superblocks":3,"seed":"1","lead_in":true}`, "at least 2"},
		{"schedule", `{"arms":["a","a"],"superblocks":3,"seed":"1","lead_in":true}`, "not unique"},
		{"schedule", `{"arms":["a","b"],"superblocks":1000000000,"seed":"1","lead_in":true}`, "must be 0.."},
		{"design_cost", `{"t":[1],"n_min":6}`, "no design"},
		{"reload", `{"values":[1,0,2,3,4,5],"delta_m":0.02}`, "positive"},
		{"reload", `{"values":[1,2],"delta_m":-1}`, "a margin is positive"},
		{"grid_shift", `{"m1":1,"m2":0,"s1":1,"s2":1,"n1":3,"n2":3}`, "positive"},
		{"grid_shift", `{"m1":1,"m2":1,"s1":0.5,"s2":1,"n1":3,"n2":3}`, "at least 1"},
		{"grid_cell", `{"arm_a":"MAYBE","arm_b":"REPRODUCED","ratio":"REPRODUCED"}`, "unknown grid verdict"},
		{"clock_compare", `{"a":{"busy":[[2000,1000000000]]},"b":{}}`, "at most"},
		{"clock_compare", `{"a":{"busy":[[2000,-1]]},"b":{}}`, "at most"},
		{"clock_compare", `{"a":{"busy":[[2000,40]],"throttle":["0xZZ"]},"b":{}}`, "hexadecimal"},
		{"leg_cause", `{"codes":["SUNSPOTS"]}`, `unknown leg code "SUNSPOTS"`},
		{"cell_reasons", `{"superblocks_planned":3,"blocks":[{"superblock":0,"status":"MAYBE"}],"aa":"pass","grids":1}`, `status "MAYBE"`},
		{"cell_reasons", `{"superblocks_planned":3,"blocks":[],"aa":"perhaps","grids":1}`, `aa "perhaps"`},
		{"verdict", `{"reasons":["SUNSPOTS"]}`, `unknown reason "SUNSPOTS"`},
		{"identity", `{"object":{"a":1.5}}`, "only integers are allowed"},
		{"tail_floor", `{"metric":["mean"]}`, "not a percentile"},
		{"missed_state", `{"loads":[0],"p":0.2}`, "needs at least 1"},
	} {
		f, err := vectors.Read([]byte(file(fmt.Sprintf(`{"id":"Z1","kind":%q,"input":%s,"expect":{"x":1}},{"id":"Z2","kind":"verdict","input":{"reasons":[]},"expect":{"verdict":"ESTABLISHED"}}`, c.kind, c.input))))
		if err != nil {
			t.Fatalf("%s %s: %v", c.kind, c.input, err)
		}
		out := f.Run()
		if out[0].Pass() || out[0].Err == nil || !strings.Contains(out[0].Err.Error(), c.want) || !strings.Contains(out[0].Err.Error(), "line 2") {
			t.Errorf("%s %s: %v, want %q with its place", c.kind, c.input, out[0].Err, c.want)
		}
		if !out[1].Pass() {
			t.Errorf("the case after it: %v %v", out[1].Err, out[1].Diff)
		}
	}
}

// What differs is named by path; a result the product does not give is never a pass.
func TestDifferencesAreNamed(t *testing.T) {
	for _, c := range []struct{ expect, want string }{
		{`{"verdict":"VOID"}`, `verdict: want "VOID", got "PROVISIONAL"`},
		{`{"prints":["ratio"]}`, "prints: want"},
		{`{"rank":1}`, "rank: want 1, got null"},
		{`{"verdict":["PROVISIONAL"]}`, "verdict: want"},
		{`{"verdict":{"x":1}}`, "verdict: want"},
		{`[]`, "expect: want"},
	} {
		f, err := vectors.Read([]byte(file(`{"id":"Z","kind":"verdict","input":{"reasons":["SINGLE_GRID"]},"expect":` + c.expect + `}`)))
		if err != nil {
			t.Fatal(err)
		}
		out := f.Run()
		if out[0].Pass() || len(out[0].Diff) != 1 || !strings.HasPrefix(out[0].Diff[0], c.want) {
			t.Errorf("%s: %q, want %q", c.expect, out[0].Diff, c.want)
		}
		if failed, err := vectors.Print(io.Discard, out); failed != 1 || err != nil {
			t.Errorf("%d failed, %v", failed, err)
		}
	}
}

// A number moved by more than the tolerance fails in every case that has one: the check can fail.
func TestMutationsAreCaught(t *testing.T) {
	data, err := os.ReadFile("testdata/protocol-vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range [][2]string{
		{`"theta": 0.021666666666666667`, `"theta": 0.021666676666666667`},
		{`"noise_floor": 0.001183472345799757`, `"noise_floor": 0.001183482345799757`},
		{`"trend_p": 0.016666666666666666`, `"trend_p": 0.016766666666666666`},
		{`"reason": "GAP"`, `"reason": "STEP_CHANGE"`},
		{`"perm_seed42_n5": [`, `"perm_seed42_n5": [9, `},
		{`"min_requests": [`, `"min_requests": [2, `},
	} {
		edited := bytes.Replace(data, []byte(m[0]), []byte(m[1]), 1)
		if bytes.Equal(edited, data) {
			t.Errorf("%s is not in the file", m[0])
			continue
		}
		f, err := vectors.Read(edited)
		if err != nil {
			t.Fatal(err)
		}
		if failed, _ := vectors.Print(io.Discard, f.Run()); failed != 1 {
			t.Errorf("%s: %d cases fail, want 1", m[1], failed)
		}
	}
}

// Any bytes give a file or an error with its place, and any file runs to its end.
func FuzzRead(f *testing.F) {
	f.Add([]byte(file(`{"id":"a","kind":"verdict","input":{"reasons":["SINGLE_GRID"]},"expect":{"verdict":"PROVISIONAL"}}`)))
	f.Add([]byte(file(`{"id":"a","kind":"clock_compare","input":{"a":{"busy":[[2489,3]]},"b":{"busy":[[0,0]]}},"expect":{"x":1}}`)))
	f.Add([]byte(file(`{"id":"a","kind":"reload","input":{"values":[1,2,1,2,1,2],"delta_m":0.02},"expect":{"x":1}}`)))
	f.Add([]byte(file(`{"id":"a","kind":"schedule","input":{"arms":["A","B","C"],"superblocks":3,"seed":"5","lead_in":true},"expect":{"x":1}}`)))
	f.Add([]byte(file(`{"id":"a","kind":"plan","input":{"engines":{"x":{"m@q":{"policy":"raw","status":"ok"}}},"pairs":[["x","x"]],"preference":["m@q"]},"expect":{"x":1}}`)))
	f.Add([]byte(file(`{"id":"a","kind":"leg_gates","input":{"expected":{"requests":1},"requests":[{"ok":true,"ttft_s":1e300}],"env":{}},"expect":{"x":1}}`)))
	for _, c := range protocol(f).Cases {
		f.Add([]byte(file(fmt.Sprintf(`{"id":%q,"kind":%q,"input":%s,"expect":%s}`, c.ID, c.Kind, c.Input, c.Expect))))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := vectors.Read(data)
		if err != nil {
			if _, ok := errors.AsType[*vectors.FileError](err); !ok {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		if _, err := vectors.Print(io.Discard, file.Run()); err != nil {
			t.Fatal(err)
		}
	})
}
