// Package stopwatch is the timed client: it asks a server for streams and says when each byte of the answers came.
//
// Its stance: stamp first, parse later. One reader for all connections notes CLOCK_MONOTONIC the moment a read returns, keeps
// the bytes as they came off the wire, and looks only for the end of the answer; framing, JSON and every judgement happen after the
// repetition, from the recording alone. So a recording is evidence, and anyone can reduce it again years later.
// The client does not retry, follow redirects, use a proxy, accept compression or share state between repetitions, and it
// measures its own lateness, so that the gates can void a leg for the client's fault.
//
// The way of the data:
//
//	Client.Run     Job → Recording       closed loop or schedule-anchored open loop, one connection per request
//	Reduce         Recording → Request   wire (HTTP framing) → framer (server-sent events) → chunk (JSON) → stream (rules, counts, outcome)
//	WriteTo, ReadRequests                the recording as a file, and reduced from it; package ledger compresses it
//	ParseFile      corpus file → record  the same parser on recorded streams, for `broker stream`
package stopwatch

import (
	"enginebroker/matrix"
)

// Prompt is one prompt of a corpus. IDs are used where the dialect takes token ids, Text otherwise and for chat.
type Prompt struct {
	ID     string
	Text   string
	IDs    []int
	Tokens matrix.Opt[int64] // exact length by the corpus tokenizer, without what the server adds; absent: unknown
}

// Job is one pass of a point: a repetition, or the warm-up.
type Job struct {
	Dialect    matrix.Dialect
	Point      matrix.Point
	Repetition int // -1 for the warm-up
	Prompts    []Prompt
	ExpectCold bool   // a cached prompt token makes a request suspect
	Seed       uint64 // of the arrival process; used in open loop alone
}
