package daemon

import (
	"strings"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that is wrapped
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"enginebroker/broker/service"
)

// codec is gRPC's own with two things added: what coding takes of a timed window is measured, and a request that is no
// message of its type reaches the guard, which refuses it with a status that says so; gRPC itself would answer INTERNAL
// without details.
type codec struct {
	encoding.CodecV2
	quiet *quiet
}

func newCodec(q *quiet) codec { return codec{encoding.GetCodecV2("proto"), q} }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	defer c.quiet.brief(methodOf(v))()
	return c.CodecV2.Marshal(v)
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	defer c.quiet.brief(methodOf(v))()
	err := c.CodecV2.Unmarshal(data, v)
	if m, ok := v.(proto.Message); ok && err != nil {
		proto.Reset(m)
		m.ProtoReflect().SetUnknown(unreadable)
		return nil
	}
	return err
}

// unreadable marks a message whose bytes could not be read. No field has number 0.
var unreadable = []byte{0}

func refuseUnreadable() error {
	return service.Bad("request", "its bytes are no message of this type, nest too deeply, or have text that is not UTF-8")
}

// methodOf is the method that a message belongs to.
func methodOf(v any) string {
	m, ok := v.(proto.Message)
	if !ok {
		return "a message"
	}
	name := string(m.ProtoReflect().Descriptor().Name())
	name = strings.TrimSuffix(name, "Request")
	return strings.TrimSuffix(name, "Response")
}
