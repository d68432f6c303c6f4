package main

import (
	"errors"
	"os"
	"testing"

	"enginebroker/engines/openai"
	"enginebroker/matrix"
)

func read(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/b11669/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func help(t testing.TB) string { return string(read(t, "help.txt")) }

func TestParseHelp(t *testing.T) {
	flags := parseHelp(help(t))
	for _, f := range []string{"-m", "--model", "-np", "--parallel", "--fit", "-fit", "--no-cache-prompt", "--cache-ram", "--no-context-shift", "-no-kvu", "--no-kv-unified", "--spec-type", "--spec-draft-n-max", "--no-ui", "--reuse-port", "--metrics"} {
		if !flags[f] {
			t.Errorf("%s is missing", f)
		}
	}
	for _, f := range []string{"--draft", "--draft-max", "--draft-n", "--draft-min", "--spec-ngram-size-n", "--bogus", "-", "--"} {
		if flags[f] {
			t.Errorf("%s is not a flag of this build", f)
		}
	}
}

func TestParseVersion(t *testing.T) {
	for _, c := range []struct{ out, build, commit string }{
		{"version: 0.7.0 (build 11669, commit Debian)\nbuilt with GNU 16.2.0", "b11669-Debian", ""},
		{"version: 0.7.0 (build 10451, commit 10bf611e)\n", "b10451-10bf611e", "10bf611e"},
		{"warning: something\nversion: 9632 (acd79d603)\nbuilt with cc", "b9632-acd79d603", "acd79d603"},
	} {
		if build, commit, err := parseVersion(c.out); err != nil || build != c.build || commit != c.commit {
			t.Errorf("%q: %s %s %v", c.out, build, commit, err)
		}
	}
	if _, _, err := parseVersion("llama-server: not found"); err == nil {
		t.Error("no error")
	}
}

func TestInterpretRealAnswers(t *testing.T) {
	p, err := parseProps(read(t, "props.json"))
	if err != nil {
		t.Fatal(err)
	}
	slots, err := parseSlots(read(t, "slots.json"))
	if err != nil {
		t.Fatal(err)
	}
	s := interpret(p, slots, matrix.Policy{})
	if want := (matrix.Limits{ContextTokens: 2048, Concurrency: 2, KVTokens: 4096}); s.granted != want {
		t.Errorf("granted %+v", s.granted)
	}
	for name, want := range map[string]string{matrix.FactVersion: "b11669-Debian", matrix.FactSpeculation: "none"} {
		if got := s.facts.Value(name).Or(""); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
	if without := interpret(p, nil, matrix.Policy{}); without.facts.Value(matrix.FactSpeculation).Present() {
		t.Error("without /slots nothing is known of speculation: /props says none even while the server drafts")
	}
	if _, err := parseProps([]byte(`{"default_generation_settings":{"n_ctx":0}}`)); err == nil {
		t.Error("a router was taken for a server")
	} else if _, ok := errors.AsType[*matrix.StartFailure](err); !ok {
		t.Errorf("%v", err)
	}
}

func TestCountersOfRealMetrics(t *testing.T) {
	m, err := openai.ParseMetrics(read(t, "metrics.txt"))
	if err != nil {
		t.Fatal(err)
	}
	var st matrix.State
	counters(&st, m)
	if st.Running != matrix.Some[int64](0) || st.Generated != matrix.Some[int64](64) || st.CachedTokens != matrix.Some[int64](13) || st.DraftedTokens != matrix.Some[int64](0) {
		t.Errorf("%+v", st)
	}
	counters(&st, openai.Metrics{})
	if st.CachedTokens.Present() {
		t.Error("an absent counter became a number")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(read(f, "help.txt")[:1500])
	f.Add([]byte(`{"default_generation_settings":{"n_ctx":2048},"total_slots":2,"model_path":"m","build_info":"b1-x"}`))
	f.Add([]byte("version: 1 (abc)"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for name := range parseHelp(string(b)) {
			if name[0] != '-' {
				t.Errorf("%q is no flag", name)
			}
		}
		_, _, _ = parseVersion(string(b))
		if p, err := parseProps(b); err == nil {
			s, _ := parseSlots(b)
			interpret(p, s, matrix.Policy{})
		}
	})
}
