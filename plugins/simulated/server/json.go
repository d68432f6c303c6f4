package server

import (
	"encoding/json"
	"strconv"
)

// object is a JSON object in the order of its fields: name, value, name, value. Engines write theirs in a fixed order, and
// an event must cost little: the simulated engine shares its cores with the client under test.
type object []any

func (o object) append(b []byte) []byte {
	b = append(b, '{')
	for i := 0; i+1 < len(o); i += 2 {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendValue(b, o[i])
		b = append(b, ':')
		b = appendValue(b, o[i+1])
	}
	return append(b, '}')
}

// MarshalJSON lets an object stand inside other values.
func (o object) MarshalJSON() ([]byte, error) { return o.append(nil), nil }

func appendValue(b []byte, v any) []byte {
	switch x := v.(type) {
	case nil:
		return append(b, "null"...)
	case object:
		return x.append(b)
	case []object:
		b = append(b, '[')
		for i, o := range x {
			if i > 0 {
				b = append(b, ',')
			}
			b = o.append(b)
		}
		return append(b, ']')
	case string:
		return appendString(b, x)
	case int:
		return strconv.AppendInt(b, int64(x), 10)
	case bool:
		return strconv.AppendBool(b, x)
	case []int:
		b = append(b, '[')
		for i, n := range x {
			if i > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendInt(b, int64(n), 10)
		}
		return append(b, ']')
	}
	raw, err := json.Marshal(v)
	if err != nil { // only values of this package come here
		panic(err)
	}
	return append(b, raw...)
}

// appendString quotes; what is not plain ASCII goes the slow way.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			raw, err := json.Marshal(s)
			if err != nil {
				panic(err)
			}
			return append(b, raw...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}
