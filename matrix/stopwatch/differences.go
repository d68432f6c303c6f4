package stopwatch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
)

// explanations are members that explain in free text and are not compared: note, and these of timing.
var explanations = []string{"why", "tpot_rule"}

// Expected reports whether the companion states an expectation.
func (r CorpusRecord) Expected() bool { return len(r.expect) > 0 && string(r.expect) != "null" }

// Differences compares the record with the companion's expectation, member by member; empty where they agree or where
// there is no expectation.
func (r CorpusRecord) Differences() ([]string, error) {
	if !r.Expected() {
		return nil, nil
	}
	own, err := r.JSON()
	if err != nil {
		return nil, err
	}
	got, err := members(own)
	if err != nil {
		return nil, err
	}
	want, err := members(r.expect)
	if err != nil {
		return nil, fmt.Errorf("%s: expect: %w", r.id, err)
	}
	return compare("", got, want), nil
}

func members(b []byte) (map[string]any, error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	m := map[string]any{}
	if err := dec.Decode(&m); err != nil {
		return nil, err
	}
	delete(m, "note")
	if t, ok := m["timing"].(map[string]any); ok {
		for _, k := range explanations {
			delete(t, k)
		}
	}
	return m, nil
}

func compare(path string, got, want map[string]any) []string {
	var out []string
	keys := map[string]bool{}
	for k := range got {
		keys[k] = true
	}
	for k := range want {
		keys[k] = true
	}
	for k := range keys {
		g, okG := got[k]
		w, okW := want[k]
		gm, isG := g.(map[string]any)
		wm, isW := w.(map[string]any)
		switch {
		case isG && isW:
			out = append(out, compare(path+k+".", gm, wm)...)
		case okG && okW && reflect.DeepEqual(g, w):
		case !okG:
			out = append(out, fmt.Sprintf("%s%s: expected %s, the record has none", path, k, show(w)))
		case !okW:
			out = append(out, fmt.Sprintf("%s%s: the record has %s, nothing is expected", path, k, show(g)))
		default:
			out = append(out, fmt.Sprintf("%s%s: expected %s, got %s", path, k, show(w), show(g)))
		}
	}
	slices.Sort(out)
	return out
}

func show(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	if len(b) > 200 {
		return string(b[:200]) + "…"
	}
	return string(b)
}
