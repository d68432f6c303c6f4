package service

import (
	"encoding/base64"
	"fmt"
	"unicode/utf8"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	brokerv1 "enginebroker/proto/gen/broker/v1"
)

// trailerRoom is what a status may take as trailers, as they are written: many clients take 8 KiB of headers in all, and one
// that gets more reports an INTERNAL or RESOURCE_EXHAUSTED of its own in place of the code.
const trailerRoom = 7 << 10

// clips are the lengths that texts of a status are cut to, tried in order; the first is none.
var clips = []int{1 << 30, 1 << 10, 1 << 8, 1 << 6}

// fitted makes the fullest status that there is room for: first refused pairs are left out, and counted, then texts are cut,
// where they say so. Several details tell the message; the Failure's, which is what a person reads, is cut last.
func fitted(f *brokerv1.Failure, of func(f *brokerv1.Failure, clip func(string) string) *status.Status) *status.Status {
	all, most := f.GetRefusals(), 0
	for size := 0; most < len(all); most++ {
		if size += proto.Size(all[most]); size > trailerRoom {
			break
		}
	}
	told := &brokerv1.Failure{Cause: f.Cause, Message: f.Message, Fix: f.Fix, ExitCode: f.ExitCode}
	var st *status.Status
	for i, n := range clips {
		if i > 0 {
			told.Message, told.Fix = text(clipped(f.GetMessage(), clips[i-1])), text(clipped(f.GetFix(), n))
		}
		for k := most; k >= 0; k-- {
			told.Refusals, told.RefusalsLeftOut = all[:k], nil
			if k < len(all) {
				told.RefusalsLeftOut = count(len(all) - k)
			}
			if st = of(told, func(s string) string { return clipped(s, n) }); trailers(st) <= trailerRoom {
				return st
			}
		}
	}
	return st
}

// trailers is the size of a status as trailers: the message with three bytes for each that is not printable ASCII, and the
// details in base64.
func trailers(st *status.Status) int {
	n := base64.RawStdEncoding.EncodedLen(proto.Size(st.Proto()))
	for _, c := range []byte(st.Message()) {
		if c < ' ' || c > '~' || c == '%' {
			n += 2
		}
		n++
	}
	return n
}

// clipped cuts a text to a number of bytes and says how many more there are.
func clipped(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return fmt.Sprintf("%s … (and %d more bytes)", s[:n], len(s)-n)
}
