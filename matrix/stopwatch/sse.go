package stopwatch

import "bytes"

// maxEvent caps one line and one event's data. Above it the request has failed with event_too_large. 32 MiB is twice what
// the largest report asks for (reference bugs A13: 16 MiB was too little).
const maxEvent = 32 << 20

// framer cuts a byte stream into server-sent events by the WHATWG rules, on bytes, whatever the segmentation. An event
// whose lines lie whole in one fed piece is handed out without a copy; anything else is gathered in two scratch buffers
// that grow to the largest event seen, at most maxEvent each.
type framer struct {
	b        []byte // what was fed and is not consumed
	cr, lf   int    // next CR and LF in b, len(b) where there is none; found once each
	afterCR  bool   // the last line ended with CR: an LF that follows belongs to it
	started  bool   // a line has been read: no byte-order mark any more
	partial  []byte // the line so far, from earlier pieces
	data     []byte // the event's data: aliases b for one whole line, else gathered
	gathered []byte // storage of data once it does not alias b
	open     bool   // the event has a data line
	erring   bool   // the event at hand is named error
	failed   bool   // the event that next returned was
	consumed int64  // bytes before b
	begin    int64  // offset of the line that began the event's data
	comments int
	bom      bool
	over     bool // maxEvent was exceeded; nothing is read after that
}

func (f *framer) reset() {
	*f = framer{partial: f.partial[:0], gathered: f.gathered[:0]}
}

// feed hands the next piece over; it must stay unchanged until next has returned false.
func (f *framer) feed(b []byte) {
	f.b = b
	f.cr, f.lf = index(b, '\r'), index(b, '\n')
}

func index(b []byte, c byte) int {
	if i := bytes.IndexByte(b, c); i >= 0 {
		return i
	}
	return len(b)
}

// next returns the data of the next event of what was fed. The slice is valid until the following call.
func (f *framer) next() (data []byte, ok bool) {
	for len(f.b) > 0 && !f.over {
		if f.afterCR {
			f.afterCR = false
			if f.b[0] == '\n' {
				f.advance(1)
				continue
			}
		}
		end := min(f.cr, f.lf)
		if end == len(f.b) {
			f.keep(f.b)
			f.advance(end)
			break
		}
		line, at := f.b[:end], f.consumed
		if len(f.partial)+end > maxEvent {
			f.over = true
			break
		}
		if len(f.partial) > 0 {
			f.keep(line)
			line, at = f.partial, at-int64(len(f.partial)-end)
		}
		f.afterCR = f.b[end] == '\r'
		f.advance(end + 1)
		data, ok = f.line(line, at)
		f.partial = f.partial[:0]
		if ok {
			return data, true
		}
	}
	if f.open && !f.over {
		f.gather()
	}
	return nil, false
}

// advance drops n bytes of b and finds the next line ends where they were passed.
func (f *framer) advance(n int) {
	f.b = f.b[n:]
	f.consumed += int64(n)
	if f.cr -= n; f.cr < 0 {
		f.cr = index(f.b, '\r')
	}
	if f.lf -= n; f.lf < 0 {
		f.lf = index(f.b, '\n')
	}
}

func (f *framer) keep(b []byte) {
	if len(f.partial)+len(b) > maxEvent {
		f.over = true
		return
	}
	f.partial = append(f.partial, b...)
}

// gather moves data out of b into storage of its own.
func (f *framer) gather() {
	if len(f.gathered) == 0 {
		f.gathered = append(f.gathered, f.data...)
	}
	f.data = f.gathered
}

func (f *framer) line(line []byte, at int64) (data []byte, ok bool) {
	if !f.started {
		f.started = true
		if bytes.HasPrefix(line, []byte("\xef\xbb\xbf")) {
			line, f.bom = line[3:], true
		}
	}
	if len(line) == 0 {
		data, ok = f.data, f.open && len(f.data) > 0
		f.data, f.open = nil, false
		f.failed, f.erring = f.erring, false
		f.gathered = f.gathered[:0]
		return data, ok
	}
	if line[0] == ':' {
		f.comments++
		return nil, false
	}
	value, is := fieldValue(line, "data")
	if !is {
		if name, is := fieldValue(line, "event"); is {
			f.erring = string(name) == "error"
		}
		return nil, false
	}
	if !f.open {
		f.open, f.begin = true, at
		f.data = value
		if len(f.partial) > 0 { // the line lies in scratch that the next line reuses
			f.gathered = append(f.gathered[:0], value...)
			f.data = f.gathered
		}
		return nil, false
	}
	f.gather()
	if len(f.gathered)+1+len(value) > maxEvent {
		f.over = true
		return nil, false
	}
	f.gathered = append(append(f.gathered, '\n'), value...)
	f.data = f.gathered
	return nil, false
}

// fieldValue returns the value of a field of that name: "data", "data:x" and "data: x".
func fieldValue(line []byte, name string) ([]byte, bool) {
	if len(line) < len(name) || string(line[:len(name)]) != name {
		return nil, false
	}
	line = line[len(name):]
	switch {
	case len(line) == 0:
		return line, true
	case line[0] != ':':
		return nil, false
	case len(line) > 1 && line[1] == ' ':
		return line[2:], true
	}
	return line[1:], true
}

// broken reports whether the stream ended inside an event: data that no blank line dispatched.
func (f *framer) broken() bool {
	if f.open && len(f.data) > 0 {
		return true
	}
	line := f.partial
	if !f.started {
		line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
	}
	value, is := fieldValue(line, "data")
	return is && len(value) > 0
}
