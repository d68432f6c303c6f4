// Package vectors checks the protocol's own arithmetic: it runs a file of cases (protocol §9) through the functions that
// judge real runs and compares what comes out with what the file expects.
//
// A case has a kind and an input; each kind is one small adapter to the product's function, so a file that a reviewer
// brings tests the product and not a copy of it. A case that fails is a result; a file that cannot be understood is an
// error with the line and column of what is wrong. Expectations may leave out results; a result that the product does not
// give is a difference, never a pass.
package vectors

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
)

// Schema is the file format this package reads.
const Schema = "broker-protocol-vectors/1"

// maxFile bounds a file, in bytes: the protocol's own has 72 kB.
const maxFile = 16 << 20

// File is a file of cases.
type File struct {
	Schema    string
	Tolerance Tolerance
	Cases     []Case
}

// Tolerance is how far a number may be off: |got − want| ≤ Abs + Rel·|want|.
type Tolerance struct {
	Abs float64 `json:"abs"`
	Rel float64 `json:"rel"`
}

// Case is one case of a file.
type Case struct {
	ID     string          `json:"id"`
	Kind   string          `json:"kind"`
	Input  json.RawMessage `json:"input"`
	Expect json.RawMessage `json:"expect"`
	Note   string          `json:"note"`
	Line   int             `json:"-"` // where it begins
	Column int             `json:"-"`
}

// FileError says what is wrong with a file, and where.
type FileError struct {
	Line, Column int
	Case         string // id, where it is known
	Msg          string
}

func (e *FileError) Error() string {
	s := fmt.Sprintf("line %d, column %d: ", e.Line, e.Column)
	if e.Case != "" {
		s += "case " + e.Case + ": "
	}
	return s + e.Msg
}

// position turns a byte offset into line and column, both from 1.
func position(data []byte, offset int64) (line, column int) {
	offset = min(max(0, offset), int64(len(data)))
	before := data[:offset]
	line = 1 + bytes.Count(before, []byte("\n"))
	return line, int(offset) - bytes.LastIndexByte(before, '\n')
}

// Read parses a file of cases. Every error is a *FileError.
func Read(data []byte) (File, error) {
	fail := func(offset int64, id, format string, args ...any) (File, error) {
		line, column := position(data, offset)
		return File{}, &FileError{line, column, id, fmt.Sprintf(format, args...)}
	}
	if len(data) > maxFile {
		return fail(0, "", "the file has %d bytes, at most %d are read", len(data), maxFile)
	}
	var head struct {
		schema    string
		tolerance *Tolerance
		constants json.RawMessage
		cases     json.RawMessage
	}
	base, atConstants := int64(0), int64(0) // where they begin in the file
	dec := json.NewDecoder(bytes.NewReader(data))
	broken := func(err error) (File, error) {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return fail(int64(len(data)), "", "the file ends before its object does")
		}
		if u, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return fail(u.Offset-1, "", "%v", err)
		}
		return fail(skip(data, dec.InputOffset()), "", "%v", err)
	}
	if tok, err := dec.Token(); err != nil {
		return broken(err)
	} else if tok != json.Delim('{') {
		return fail(0, "", "the file is not an object")
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return broken(err)
		}
		var value any = new(json.RawMessage)
		switch key {
		case "schema":
			value = &head.schema
		case "tolerance":
			value = &head.tolerance
		case "constants":
			value = &head.constants
		case "cases":
			value = &head.cases
		}
		if err := dec.Decode(value); err != nil {
			return broken(err)
		}
		switch key {
		case "cases":
			base = dec.InputOffset() - int64(len(head.cases))
		case "constants":
			atConstants = dec.InputOffset() - int64(len(head.constants))
		}
	}
	if _, err := dec.Token(); err != nil {
		return broken(err)
	}
	end := dec.InputOffset()
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fail(end, "", "something follows the file's object")
	}
	switch {
	case head.schema != Schema:
		return fail(0, "", "schema is %q, this reads %q", head.schema, Schema)
	case head.tolerance == nil || !(head.tolerance.Abs >= 0) || !(head.tolerance.Rel >= 0):
		return fail(0, "", "tolerance needs abs and rel, zero or more")
	case len(head.cases) == 0:
		return fail(0, "", "there are no cases")
	}
	f := File{Schema: head.schema, Tolerance: *head.tolerance}
	cases := json.NewDecoder(bytes.NewReader(head.cases))
	if tok, err := cases.Token(); err != nil || tok != json.Delim('[') {
		return fail(base, "", "cases is not an array")
	}
	seen := map[string]bool{}
	if len(head.constants) > 0 {
		c := Case{ID: constantsKind, Kind: constantsKind, Input: []byte("{}"), Expect: head.constants, Note: "the constants of the file"}
		c.Line, c.Column = position(data, atConstants)
		if !expects(c.Expect) {
			return fail(atConstants, c.ID, "it expects nothing")
		}
		seen[c.ID] = true
		f.Cases = append(f.Cases, c)
	}
	own := len(f.Cases)
	for cases.More() {
		at := skip(data, base+cases.InputOffset())
		var c Case
		if err := cases.Decode(&c); err != nil {
			return fail(at, c.ID, "%v", err)
		}
		c.Line, c.Column = position(data, at)
		switch {
		case c.ID == "":
			return fail(at, "", "a case without id")
		case seen[c.ID]:
			return fail(at, c.ID, "the id is used twice")
		case len(c.Input) == 0 || len(c.Expect) == 0:
			return fail(at, c.ID, "a case needs input and expect")
		case kinds[c.Kind] == nil:
			return fail(at, c.ID, "unknown kind %q", c.Kind)
		case !expects(c.Expect):
			return fail(at, c.ID, "it expects nothing: name at least one result")
		}
		seen[c.ID] = true
		f.Cases = append(f.Cases, c)
	}
	if len(f.Cases) == own {
		return fail(base, "", "there are no cases")
	}
	return f, nil
}

// expects reports whether an expectation names a result: an object without one, however deep, is met by anything.
func expects(expect json.RawMessage) bool {
	v, err := decode(expect)
	if err != nil {
		return true // said when the case is run
	}
	return named(v)
}

func named(v any) bool {
	m, ok := v.(map[string]any)
	if !ok {
		return true
	}
	for _, x := range m {
		if !named(x) {
			return false
		}
	}
	return len(m) > 0
}

// skip passes what may stand between two values.
func skip(data []byte, at int64) int64 {
	for at < int64(len(data)) && bytes.IndexByte([]byte(" \t\r\n,:"), data[at]) >= 0 {
		at++
	}
	return at
}

// Outcome is what one case gave.
type Outcome struct {
	Case Case
	Diff []string // what differs, by path; empty where Err is set or the case passes
	Err  error    // the input cannot be used, or the product refused it
}

// Pass reports a case whose every expectation was met.
func (o Outcome) Pass() bool { return o.Err == nil && len(o.Diff) == 0 }

// Run puts every case through the product and compares.
func (f File) Run() []Outcome {
	out := make([]Outcome, len(f.Cases))
	for i, c := range f.Cases {
		out[i] = f.run(c)
	}
	return out
}

func (f File) run(c Case) Outcome {
	o := Outcome{Case: c}
	fail := func(err error) Outcome {
		o.Err = &FileError{c.Line, c.Column, c.ID, err.Error()}
		return o
	}
	got, err := kinds[c.Kind](c.Input)
	if err != nil {
		return fail(err)
	}
	b, err := json.Marshal(got)
	if err != nil {
		return fail(err)
	}
	have, err := decode(b)
	if err != nil {
		return fail(err)
	}
	want, err := decode(c.Expect)
	if err != nil {
		return fail(err)
	}
	o.Diff = f.Tolerance.compare("", want, have)
	return o
}

// Print writes one line per case and what differs below it, then the count. It returns how many failed.
func Print(w io.Writer, outcomes []Outcome) (failed int, err error) {
	var b bytes.Buffer
	for _, o := range outcomes {
		status := "ok  "
		if !o.Pass() {
			status, failed = "FAIL", failed+1
		}
		fmt.Fprintf(&b, "%s %-4s %-28s %s\n", status, o.Case.ID, o.Case.Kind, o.Case.Note)
		if o.Err != nil {
			fmt.Fprintf(&b, "          %v\n", o.Err)
		}
		for _, d := range o.Diff {
			fmt.Fprintf(&b, "          %s\n", d)
		}
	}
	fmt.Fprintf(&b, "%d cases, %d ok, %d failed\n", len(outcomes), len(outcomes)-failed, failed)
	_, err = w.Write(b.Bytes())
	return failed, err
}

func decode(b []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var v any
	err := dec.Decode(&v)
	return v, err
}

// sets are the results that have no order (protocol §9).
var sets = map[string]bool{"codes": true, "causes": true, "reasons": true, "prints": true, "metric_flags": true}

func (t Tolerance) compare(path string, want, got any) []string {
	differ := func() []string {
		return []string{fmt.Sprintf("%s: want %s, got %s", name(path), text(want), text(got))}
	}
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return differ()
		}
		var out []string
		for _, k := range sortedKeys(w) {
			out = append(out, t.compare(join(path, k), w[k], g[k])...)
		}
		return out
	case []any:
		g, ok := got.([]any)
		if !ok && got == nil && len(w) == 0 {
			return nil // a list without members
		}
		if !ok || len(g) != len(w) {
			return differ()
		}
		if sets[lastKey(path)] || strings.HasPrefix(path, "reasons.") {
			if !sameSet(w, g) {
				return differ()
			}
			return nil
		}
		var out []string
		for i := range w {
			out = append(out, t.compare(fmt.Sprintf("%s[%d]", path, i), w[i], g[i])...)
		}
		return out
	case json.Number:
		g, ok := got.(json.Number)
		if !ok {
			return differ()
		}
		x, err1 := w.Float64()
		y, err2 := g.Float64()
		if err1 != nil || err2 != nil || !(math.Abs(x-y) <= t.Abs+t.Rel*math.Abs(x)) {
			return differ()
		}
		return nil
	}
	if want != got { // string, bool or null
		return differ()
	}
	return nil
}
