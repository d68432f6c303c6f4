package stopwatch

import "enginebroker/matrix"

// Ending says how the transport of one request ended. The numbers are part of the recording format.
type Ending uint8

const (
	EndClean     Ending = iota // the body ended as HTTP framing says, or by close where nothing else delimits it
	EndEarly                   // closed before the body was complete
	EndReset                   // connection lost: reset, or any other read error
	EndIdle                    // no byte for the point's idle limit
	EndTotal                   // not finished within the point's total limit
	EndCancelled               // the caller ended the pass
	EndDial                    // no connection
	EndWrite                   // the request could not be written
	EndOversize                // more bytes than the response cap
	EndProtocol                // not HTTP/1.1 as we speak it
	endings
)

// Segment is the return of one read.
type Segment struct {
	At    int64 // ns since Recording.Start
	Lag   int64 // ns from the kernel's receive stamp to At; -1 where the platform gave none
	Bytes int
}

// Exchange is the raw evidence of one request. Stamps are ns since Recording.Start.
type Exchange struct {
	Index     int
	Prompt    string            // prompt id
	Expected  matrix.Opt[int64] // prompt tokens the server must report
	Scheduled int64             // when it should have been sent: its schedule, or the end of the request before it on the connection
	Begin     int64             // write began
	Sent      int64             // write returned
	End       int64             // last byte, or the moment it was given up
	Ending    Ending
	Error     string // what ended it, where not clean
	Segments  []Segment
	Wire      [][]byte // response bytes from the status line on, as they came; segments run over the blocks without gap
}

// Recording is the raw evidence of one pass, before any parsing.
type Recording struct {
	Repetition int
	ExpectCold bool
	Start      int64  // CLOCK_MONOTONIC ns
	End        int64  // CLOCK_MONOTONIC ns
	Address    string // the address that answered
	Planned    int
	Exchanges  []Exchange
	CPU        int64  // ns of process CPU time in the window, user + system, all of the process; -1: unknown
	GCPauses   int    // in the window
	GCPauseNs  int64  //
	Dials      int    // connections opened inside the window
	Stopped    string // why no further requests were sent, empty where all were
}

// Hung reports whether a request was given up on a limit of the point: nothing came for the idle limit, or it was not
// finished within the total limit (a server that sends keep-alives and no tokens).
func (r *Recording) Hung() bool {
	for i := range r.Exchanges {
		if e := r.Exchanges[i].Ending; e == EndIdle || e == EndTotal {
			return true
		}
	}
	return false
}
