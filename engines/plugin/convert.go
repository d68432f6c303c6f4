package plugin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"enginebroker/matrix"
)

// enc and dec turn matrix values into messages and back, one method per message, and collect what cannot be turned. They
// are pure, and take nil for a message whose fields are all absent. The zero value forgets errors; use encoding and
// decoding where the outcome matters.
type (
	enc struct{ errs *[]error }
	dec struct{ errs *[]error }
)

func (e enc) fail(err error) { appendTo(e.errs, err) }
func (d dec) fail(err error) { appendTo(d.errs, err) }

func appendTo(errs *[]error, err error) {
	if errs != nil {
		*errs = append(*errs, err)
	}
}

// encoding runs f and returns its message with every string valid UTF-8.
func encoding[M proto.Message](f func(enc) M) (M, error) {
	var errs []error
	m := f(enc{&errs})
	if len(errs) > 0 {
		var none M
		return none, fmt.Errorf("cannot be sent: %w", errors.Join(errs...))
	}
	return valid(m), nil
}

func decoding[T any](f func(dec) T) (T, error) {
	var errs []error
	v := f(dec{&errs})
	if len(errs) > 0 {
		var none T
		return none, fmt.Errorf("cannot be understood: %w", errors.Join(errs...))
	}
	return v, nil
}

// given returns m, or an empty message for nil.
func given[T any](m *T) *T {
	if m == nil {
		return new(T)
	}
	return m
}

// each keeps nil nil.
func each[A, B any](in []A, f func(A) B) []B {
	if in == nil {
		return nil
	}
	out := make([]B, len(in))
	for i, x := range in {
		out[i] = f(x)
	}
	return out
}

func eachValue[K comparable, A, B any](in map[K]A, f func(A) B) map[K]B {
	if in == nil {
		return nil
	}
	out := make(map[K]B, len(in))
	for k, x := range in {
		out[k] = f(x)
	}
	return out
}

// text is absent where empty.
func text(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func number(n int) *int64 { return new(int64(n)) }

// optional and its reverse carry presence.
func optional[A, B any](o matrix.Opt[A], f func(A) B) *B {
	v, ok := o.Get()
	if !ok {
		return nil
	}
	return new(f(v))
}

func fromOptional[A, B any](p *A, f func(A) B) matrix.Opt[B] {
	if p == nil {
		return matrix.Opt[B]{}
	}
	return matrix.Some(f(*p))
}

// part carries the presence of a message.
func part[A any, M any](o matrix.Opt[A], f func(A) *M) *M {
	v, ok := o.Get()
	if !ok {
		return nil
	}
	return f(v)
}

func fromPart[M any, B any](m *M, f func(*M) B) matrix.Opt[B] {
	if m == nil {
		return matrix.Opt[B]{}
	}
	return matrix.Some(f(m))
}

func same[T any](v T) T { return v }

func toInt(n int64) int   { return int(n) }
func fromInt(n int) int64 { return int64(n) }

// object writes the fields that a dialect adds to a request. JSON keeps the digits of a number, which a
// google.protobuf.Struct would not beyond 2^53.
func (e enc) object(o map[string]any) *string {
	if o == nil {
		return nil
	}
	b, err := json.Marshal(o)
	if err != nil {
		e.fail(fmt.Errorf("dialect body: %w", err))
		return nil
	}
	return new(string(b))
}

func (d dec) object(s *string) map[string]any {
	if s == nil {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader([]byte(*s)))
	dec.UseNumber()
	var o map[string]any
	if err := dec.Decode(&o); err != nil || dec.More() {
		d.fail(fmt.Errorf("dialect body is not one JSON object: %.80q", *s))
		return nil
	}
	return o
}
