// Package external reads result files of other clients: vllm bench serve, sglang.bench_serving, guidellm, aiperf,
// inference-perf and llama-benchy, so that a user can see their numbers beside ours.
//
// Stance: these are somebody else's numbers. Every result is marked EXTERNAL, carries the formula it was computed under,
// and has a type of its own that nothing here or elsewhere divides by: a name like TPOT means another thing in each tool
// (harnesses.md §4). Counts are what the file says, and where a tool is known to count wrongly (§3.7) the result says that
// too. What a file does not say is listed as missing, never taken for zero.
//
// The way it works: Read takes the bytes, makes JSON of what Python wrote (bare Infinity and NaN become null), tells the
// tool by the fields only it writes, and hands each result of the file to that tool's reader.
package external

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"enginebroker/matrix"
)

// Mark stands on every result and in everything that prints one.
const Mark = "EXTERNAL"

// Result is what one tool says about one benchmark.
type Result = matrix.Imported

// Number is one figure of a tool under the name our reports use for it, in ms or per second.
type Number = matrix.ImportedNumber

// draft is a result while a tool's reader fills it.
type draft struct{ Result }

// MaxBytes bounds a result file. guidellm writes every request out: a large one has some tens of MB.
const MaxBytes = 256 << 20

// ErrUnknown says that no known tool wrote a file.
var ErrUnknown = errors.New("no result file of a known client")

// Read reads one file, which may hold several results (JSON lines of SGLang, the rates of a guidellm sweep). It is all or
// nothing: a result that cannot be read is an error that names it.
func Read(r io.Reader) ([]Result, error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("external: %w", err)
	}
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("external: the file is larger than %d MiB; give the summary, not the log of all requests", MaxBytes>>20)
	}
	data, marked := bytes.CutPrefix(data, []byte("\xef\xbb\xbf"))
	dec := json.NewDecoder(bytes.NewReader(plainJSON(data)))
	var out []Result
	for n := 1; ; n++ {
		var doc json.RawMessage
		if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("external: value %d at byte %d is no JSON: %w", n, dec.InputOffset(), err)
		}
		rs, err := readOne(doc)
		if err != nil {
			return nil, fmt.Errorf("external: value %d: %w", n, err)
		}
		for i := range rs {
			d := draft{rs[i]}
			d.consistent()
			if marked {
				d.warn("the file begins with a byte-order mark, which none of these tools writes: another program saved it again")
			}
			rs[i] = d.Result
		}
		out = append(out, rs...)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("external: %w: the file holds no result", ErrUnknown)
	}
	return out, nil
}

// tool is a client whose files are known: the fields only it writes, and its reader.
type tool struct {
	name  string
	marks []string
	read  func(json.RawMessage) ([]Result, error)
}

var tools = []tool{
	{"guidellm", []string{"metadata", "benchmarks"}, readGuidellm},
	{"aiperf", []string{"aiperf_version", "time_to_first_token"}, readAiperf},
	{"inference-perf", []string{"load_summary", "successes", "failures"}, readInferencePerf},
	{"llama-benchy", []string{"latency_mode", "benchmarks"}, readLlamaBenchy},
	{"sglang.bench_serving", []string{"total_output_tokens_retokenized", "mean_e2e_latency_ms"}, readSGLang},
	{"vllm bench serve", []string{"total_token_throughput", "mean_ttft_ms"}, readVLLM},
}

func readOne(doc json.RawMessage) ([]Result, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(doc, &fields); err != nil {
		return nil, fmt.Errorf("%w: an object is needed (a log of requests is no result)", ErrUnknown)
	}
	for _, t := range tools {
		if has(fields, t.marks) {
			rs, err := t.read(doc)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", t.name, err)
			}
			return rs, nil
		}
	}
	if has(fields, []string{"metadata", "metrics"}) {
		return nil, fmt.Errorf("%w: this is aiperf's log of requests; give profile_export_aiperf.json", ErrUnknown)
	}
	names := make([]string, len(tools))
	for i, t := range tools {
		names[i] = t.name
	}
	return nil, fmt.Errorf("%w; known are %s", ErrUnknown, strings.Join(names, ", "))
}

func has(fields map[string]json.RawMessage, names []string) bool {
	for _, n := range names {
		if _, ok := fields[n]; !ok {
			return false
		}
	}
	return true
}

// start makes the result of a tool. An empty version means that its files do not say.
func start(name, version string) *draft {
	r := &draft{Result{Mark: Mark, Tool: name, Formula: name + "@" + version, Numbers: []Number{}}}
	if version == "" {
		r.Formula = name + " (version not in the file)"
		r.Missing = append(r.Missing, "version")
		return r
	}
	r.Version = matrix.Some(version)
	return r
}

// number adds one figure, scaled to ms or to a rate per second. A figure that is not there or cannot be one is missing.
func (r *draft) number(name, field, unit string, v *float64, scale float64) {
	switch {
	case v == nil:
		r.Missing = append(r.Missing, field)
	case *v < 0 || math.IsInf(*v*scale, 0):
		r.Missing = append(r.Missing, fmt.Sprintf("%s (it says %v)", field, *v))
	default:
		r.Numbers = append(r.Numbers, Number{Name: name, Field: field, Unit: unit, Value: *v * scale})
	}
}

// count reads a number of requests or tokens, which Python may write as a float.
func (r *draft) count(field string, v *float64) (matrix.Opt[int64], error) {
	switch {
	case v == nil:
		r.Missing = append(r.Missing, field)
		return matrix.Opt[int64]{}, nil
	case *v < 0 || *v != math.Trunc(*v) || *v > 1<<53:
		return matrix.Opt[int64]{}, fmt.Errorf("%s: %v is no count", field, *v)
	}
	return matrix.Some(int64(*v)), nil
}

// counts reads several of them; the first that is none is the error.
func (r *draft) counts(list []counted) error {
	for _, c := range list {
		n, err := r.count(c.field, c.from)
		if err != nil {
			return err
		}
		*c.to = n
	}
	return nil
}

type counted struct {
	to    *matrix.Opt[int64]
	field string
	from  *float64
}

// seconds takes the length of the benchmark, scaled to seconds.
func (r *draft) seconds(field string, v *float64, scale float64) {
	if v == nil || *v < 0 {
		r.Missing = append(r.Missing, field)
		return
	}
	r.Seconds = matrix.Some(*v * scale)
}

// consistent warns of what the file's own counts contradict: more requests answered than asked for, and rates that are not
// the counts over the duration. Tools take different durations for that (harnesses.md §4), so that a factor of two is allowed.
func (r *draft) consistent() {
	planned, known := r.Planned.Get()
	if all := r.OK.Or(0) + r.Failed.Or(0) + r.Incomplete.Or(0); known && all > planned {
		r.warn(fmt.Sprintf("its counts contradict each other: %d requests ended, %d were asked for", all, planned))
	} else if known && r.OK.Present() && r.Failed.Present() && all < planned {
		r.warn(fmt.Sprintf("%d of %d requests are neither ok nor failed in its counts", planned-all, planned))
	}
	seconds := r.Seconds.Or(0)
	for _, x := range r.Numbers {
		var n matrix.Opt[int64]
		switch x.Name {
		case "output_tok_s":
			n = r.OutputTokens
		case "req_s":
			n = r.OK
		}
		count, known := n.Get()
		if want := float64(count) / seconds; known && seconds > 0 && (x.Value > 2*want || x.Value < want/2) {
			r.warn(fmt.Sprintf("%s is %.4g, but its own counts over its duration give %.4g", x.Field, x.Value, want))
		}
	}
}

func (r *draft) warn(text string) { r.Warnings = append(r.Warnings, text) }

// failuresCountAsOK is what harnesses.md §3.7 measured with a server that ends every fourth stream with an error event.
const failuresCountAsOK = "this tool counts a stream that ends in an error event as ok"
