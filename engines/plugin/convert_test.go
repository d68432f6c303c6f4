package plugin

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"enginebroker/matrix"
	enginev1 "enginebroker/proto/gen/engine/v1"
	telemetryv1 "enginebroker/proto/gen/telemetry/v1"
)

// filler sets every field of a value to something that no other field has and that is not its zero value, unexported fields
// of Opt included. A field that the converters forget comes back empty.
type filler struct {
	n     int
	fresh bool // leave every optional value absent and every list nil
}

func (f *filler) fill(v reflect.Value) {
	f.n++
	if words, ok := enums[v.Type()]; ok {
		v.SetString(words[f.n%len(words)])
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprintf("text %d é", f.n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(f.n) + 1<<40)
	case reflect.Uint64:
		v.SetUint(uint64(f.n) + 1<<63)
	case reflect.Struct:
		if strings.HasPrefix(v.Type().Name(), "Opt[") && f.fresh {
			return
		}
		for i := range v.NumField() {
			field := v.Field(i)
			f.fill(reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem())
		}
	case reflect.Slice:
		if f.fresh {
			return
		}
		s := reflect.MakeSlice(v.Type(), 2, 2)
		for i := range s.Len() {
			f.fill(s.Index(i))
		}
		v.Set(s)
	case reflect.Map:
		if f.fresh {
			return
		}
		m := reflect.MakeMap(v.Type())
		for range 2 {
			k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			f.fill(k)
			f.fill(e)
			m.SetMapIndex(k, e)
		}
		v.Set(m)
	case reflect.Interface: // values of a dialect's body
		v.Set(reflect.ValueOf(json.Number(fmt.Sprint(1<<60 + f.n))))
	default:
		panic("the filler does not know " + v.Type().String())
	}
}

var enums = map[reflect.Type][]string{
	reflect.TypeFor[matrix.Standing]():      {"observed", "claimed"},
	reflect.TypeFor[matrix.Status]():        {"ok", "claimed", "owed", "refused"},
	reflect.TypeFor[matrix.PolicyKind]():    {"raw", "drafted"},
	reflect.TypeFor[matrix.CountKind]():     {"exact", "lossy", "cumulative"},
	reflect.TypeFor[matrix.ReadingStatus](): {"value", "not_supported", "no_permission", "absent", "error", "stale"},
}

// roundTrip sends a filled value over the wire's bytes and expects it back, with everything present and with everything that
// may be absent absent.
func roundTrip[T any, M interface {
	*P
	proto.Message
}, P any](t *testing.T, to func(enc, T) M, from func(dec, M) T) {
	t.Helper()
	t.Run(reflect.TypeFor[T]().Name(), func(t *testing.T) {
		for _, fresh := range []bool{false, true} {
			for seed := range 7 { // every word of every enum
				var want T
				(&filler{n: seed * 1000, fresh: fresh}).fill(reflect.ValueOf(&want).Elem())
				sent, err := encoding(func(e enc) M { return to(e, want) })
				if err != nil {
					t.Fatal(err)
				}
				b, err := proto.Marshal(sent)
				if err != nil {
					t.Fatal(err)
				}
				received := M(new(P))
				if err := proto.Unmarshal(b, received); err != nil {
					t.Fatal(err)
				}
				got, err := decoding(func(d dec) T { return from(d, received) })
				if err != nil {
					t.Fatal(err)
				}
				if !reflect.DeepEqual(got, want) {
					t.Fatalf("fresh %t: came back different:\n%s", fresh, cmp.Diff(want, got, cmp.Exporter(func(reflect.Type) bool { return true })))
				}
			}
		}
		var none M
		var zero T
		if got, err := decoding(func(d dec) T { return from(d, none) }); err != nil || !reflect.DeepEqual(got, zero) {
			t.Errorf("nil message: %v, %v", got, err)
		}
	})
}

func TestRoundTrip(t *testing.T) {
	roundTrip(t, enc.description, dec.description)
	roundTrip(t, enc.launch, dec.launch)
	roundTrip(t, enc.progress, dec.progress)
	roundTrip(t, enc.ready, dec.ready)
	roundTrip(t, enc.state, dec.state)
	roundTrip(t, enc.stopped, dec.stopped)
	roundTrip(t, enc.preflight, dec.preflight)
	roundTrip(t, enc.startFailure, dec.startFailure)
	roundTrip(t, enc.fieldError, dec.fieldError)
	roundTrip(t, enc.telemetry, dec.telemetry)
	roundTrip(t, enc.sample, dec.sample)
}

// TestEveryWireFieldIsUsed finds a field of the protocol that no converter sets.
func TestEveryWireFieldIsUsed(t *testing.T) {
	for _, m := range []proto.Message{
		filled(enc.description), filled(enc.launch), filled(enc.progress), filled(enc.ready), filled(enc.state), filled(enc.stopped),
		filled(enc.preflight), filled(enc.startFailure), filled(enc.fieldError), filled(enc.telemetry), filled(enc.sample),
	} {
		d := m.ProtoReflect().Descriptor().Fields()
		for i := range d.Len() {
			if !m.ProtoReflect().Has(d.Get(i)) {
				t.Errorf("%s is never set", d.Get(i).FullName())
			}
		}
	}
}

func filled[T any, M proto.Message](to func(enc, T) M) M {
	var v T
	(&filler{}).fill(reflect.ValueOf(&v).Elem())
	return to(enc{}, v)
}

func TestUnknownWordsAreErrors(t *testing.T) {
	_, err := encoding(func(e enc) *enginev1.State {
		return e.state(matrix.State{Facts: matrix.Facts{{Name: "version", Standing: "maybe"}}})
	})
	if err == nil || !strings.Contains(err.Error(), `fact version standing is "maybe", not one of claimed, observed`) {
		t.Errorf("encode: %v", err)
	}
	for _, n := range []int32{0, 99} { // unspecified is no default
		_, err = decoding(func(d dec) matrix.State {
			return d.state(&enginev1.State{Facts: []*enginev1.Fact{{Name: new("version"), Standing: new(enginev1.Standing(n))}}})
		})
		if err == nil || !strings.Contains(err.Error(), "fact version standing has the unknown number") {
			t.Errorf("decode %d: %v", n, err)
		}
	}
	if _, err := decoding(func(d dec) matrix.Sample {
		return d.sample(&telemetryv1.SampleResponse{Fields: map[string]*telemetryv1.Reading{"x": {Availability: new(telemetryv1.Availability(77))}}})
	}); err == nil {
		t.Error("an unknown availability was read")
	}
	for _, body := range []string{"", "[1]", "{", `{"a":1} {"b":2}`, "null x"} {
		if _, err := decoding(func(d dec) matrix.Dialect { return d.dialect(&enginev1.Dialect{BodyJson: &body}) }); err == nil {
			t.Errorf("body %q was read", body)
		}
	}
}

// TestInvalidText sends what engines print: protobuf alone would refuse the whole message.
func TestInvalidText(t *testing.T) {
	bad := "caf\xe9 \xff"
	tail := []string{"fine", bad}
	settings := map[string]string{bad: bad}
	for _, m := range []proto.Message{
		must(encoding(func(e enc) *enginev1.Stopped { return e.stopped(matrix.Stopped{LogTail: tail}) })),
		must(encoding(func(e enc) *enginev1.Launch {
			return e.launch(matrix.StartRequest{Settings: settings, Artifact: matrix.Artifact{Statements: map[string]matrix.Statement{bad: {Why: bad}}}})
		})),
		must(encoding(func(e enc) *enginev1.PreflightResult { return e.preflight(matrix.PreflightResult{Text: bad}) })),
	} {
		if _, err := proto.Marshal(m); err != nil {
			t.Error(err)
		}
	}
	if tail[1] != bad || settings[bad] != bad {
		t.Error("the adapter's own values were changed")
	}
	if s := toStatus(&matrix.StartFailure{Message: bad, RootCause: tail}); !utf8.ValidString(fromStatus(s).(*matrix.StartFailure).RootCause[1]) {
		t.Errorf("%q", s)
	}
}

func must[M any](m M, err error) M {
	if err != nil {
		panic(err)
	}
	return m
}

func FuzzDecodeLaunch(f *testing.F) {
	f.Add(must(proto.Marshal(filled(enc.launch))))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var m enginev1.Launch
		if proto.Unmarshal(b, &m) != nil {
			return
		}
		v, err := decoding(func(d dec) matrix.StartRequest { return d.launch(&m) })
		if err != nil {
			return
		}
		again := must(encoding(func(e enc) *enginev1.Launch { return e.launch(v) }))
		if w := must(decoding(func(d dec) matrix.StartRequest { return d.launch(again) })); w.Port != v.Port || w.ReadyLimit != v.ReadyLimit {
			t.Errorf("not stable: %v %v", v, w)
		}
	})
}

func FuzzDecodeReady(f *testing.F) {
	f.Add(must(proto.Marshal(filled(enc.ready))))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m enginev1.Ready
		if proto.Unmarshal(b, &m) == nil {
			_, _ = decoding(func(d dec) matrix.Ready { return d.ready(&m) })
		}
	})
}
