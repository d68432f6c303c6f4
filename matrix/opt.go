package matrix

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// Opt is a value that may be absent. Its zero value is absent; absent marshals to null (and is left out with omitzero).
type Opt[T any] struct {
	value T
	ok    bool
}

// Some returns a present value.
func Some[T any](v T) Opt[T] { return Opt[T]{value: v, ok: true} }

// Get returns the value and whether it is present.
func (o Opt[T]) Get() (T, bool) { return o.value, o.ok }

// Or returns the value, or def where absent. Use it for display and defaults, never to turn unknown into a number.
func (o Opt[T]) Or(def T) T {
	if o.ok {
		return o.value
	}
	return def
}

// Present reports whether there is a value.
func (o Opt[T]) Present() bool { return o.ok }

// IsZero makes omitzero leave an absent value out.
func (o Opt[T]) IsZero() bool { return !o.ok }

// MarshalJSON writes null for absent.
func (o Opt[T]) MarshalJSON() ([]byte, error) {
	if !o.ok {
		return []byte("null"), nil
	}
	return json.Marshal(o.value)
}

// UnmarshalJSON reads null as absent.
func (o *Opt[T]) UnmarshalJSON(b []byte) error {
	*o = Opt[T]{}
	if bytes.Equal(bytes.TrimSpace(b), []byte("null")) {
		return nil
	}
	if err := json.Unmarshal(b, &o.value); err != nil {
		return err
	}
	o.ok = true
	return nil
}

func itoa(n int) string { return strconv.Itoa(n) }
