package plugin

import (
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// valid replaces what is not UTF-8 in every string of m and returns m. Engines print what they like into logs and answers,
// and protobuf refuses a whole message for one such byte. Lists and maps are replaced rather than written to, because they
// are the adapter's own.
func valid[M proto.Message](m M) M {
	validMessage(m.ProtoReflect())
	return m
}

func validMessage(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		changed := false
		switch {
		case f.IsList():
			list := m.NewField(f).List()
			for i := range v.List().Len() {
				list.Append(validValue(f.Kind(), v.List().Get(i), &changed))
			}
			v = protoreflect.ValueOfList(list)
		case f.IsMap():
			entries := m.NewField(f).Map()
			v.Map().Range(func(k protoreflect.MapKey, x protoreflect.Value) bool {
				k = validValue(f.MapKey().Kind(), k.Value(), &changed).MapKey()
				entries.Set(k, validValue(f.MapValue().Kind(), x, &changed))
				return true
			})
			v = protoreflect.ValueOfMap(entries)
		default:
			v = validValue(f.Kind(), v, &changed)
		}
		if changed {
			m.Set(f, v)
		}
		return true
	})
}

// validValue looks into a message in place; of a string it returns the valid form.
func validValue(k protoreflect.Kind, v protoreflect.Value, changed *bool) protoreflect.Value {
	switch k {
	case protoreflect.MessageKind:
		validMessage(v.Message())
	case protoreflect.StringKind:
		if s := v.String(); !utf8.ValidString(s) {
			*changed = true
			return protoreflect.ValueOfString(strings.ToValidUTF8(s, "\uFFFD"))
		}
	}
	return v
}
