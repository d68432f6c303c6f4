package ledger

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"enginebroker/matrix"
)

// Kind says what a record is about.
type Kind string

// The kinds of record and their bodies.
const (
	KindGridOpen        Kind = "grid_open"        // GridOpen
	KindGridClose       Kind = "grid_close"       // GridClose
	KindSuperblockStart Kind = "superblock_start" // SuperblockStart
	KindSuperblockEnd   Kind = "superblock_end"   // SuperblockEnd
	KindLoad            Kind = "load"             // matrix.LoadRecord
	KindLeg             Kind = "leg"              // Leg, written by PutLeg alone
	KindCanary          Kind = "canary"           // Canary
	KindPreflight       Kind = "preflight"        // Preflight
	KindRefusal         Kind = "refusal"          // Refusal
	KindAbort           Kind = "abort"            // Abort
	KindNote            Kind = "note"             // Note
	KindHold            Kind = "hold"             // Hold
	KindBox             Kind = "box"              // Box
	KindResume          Kind = "resume"           // Resume
	KindRerun           Kind = "rerun"            // Rerun
	KindRunClose        Kind = "run_close"        // RunClose
)

var kinds = []Kind{KindGridOpen, KindGridClose, KindSuperblockStart, KindSuperblockEnd, KindLoad, KindLeg, KindCanary, KindPreflight,
	KindRefusal, KindAbort, KindNote, KindHold, KindBox, KindResume, KindRerun, KindRunClose}

// GridOpen begins a grid: the box's boot and the seed its superblocks are drawn from.
type GridOpen struct {
	Grid   int    `json:"grid"`
	BootID string `json:"boot_id"`
	Seed   string `json:"seed"` // decimal uint64
}

// GridClose ends a grid.
type GridClose struct {
	Grid int    `json:"grid"`
	Done bool   `json:"done"` // completed its planned superblocks
	Why  string `json:"why,omitempty"`
}

// SuperblockStart begins a superblock, planned or drawn afresh for a void one.
type SuperblockStart struct {
	Grid       int               `json:"grid"`
	Group      string            `json:"group"`
	Superblock matrix.Superblock `json:"superblock"`
	Replaces   matrix.Opt[int]   `json:"replaces,omitzero"` // index of the superblock it is run for again
	Why        string            `json:"why,omitempty"`
}

// SuperblockEnd says that every load of a superblock has its record.
type SuperblockEnd struct {
	Grid       int    `json:"grid"`
	Group      string `json:"group"`
	Superblock int    `json:"superblock"`
}

// Canary is a canary pass that belongs to a load and to no leg.
type Canary struct {
	LoadID string              `json:"load_id"`
	Result matrix.CanaryResult `json:"result"`
}

// Preflight is the proof that an arm's build opened its artifact and answered.
type Preflight struct {
	Arm     string                             `json:"arm"`
	ArmKey  string                             `json:"arm_key"`
	Result  matrix.Opt[matrix.PreflightResult] `json:"result,omitzero"`
	Failure matrix.Opt[matrix.StartFailure]    `json:"failure,omitzero"`
}

// Refusal is something the run would not do: a pair, or a load whose identity did not match.
type Refusal struct {
	Pair   matrix.Opt[matrix.Refusal]  `json:"pair,omitzero"`
	LoadID string                      `json:"load_id,omitempty"`
	Reason matrix.Reason               `json:"reason"`
	Pin    matrix.Opt[matrix.PinCheck] `json:"pin,omitzero"`
	Detail string                      `json:"detail"`
}

// Abort is something that was begun and not finished.
type Abort struct {
	What   string `json:"what"` // run, superblock, load, leg
	ID     string `json:"id,omitempty"`
	Detail string `json:"detail"`
}

// Note is a line for the reader of the record.
type Note struct {
	Text string `json:"text"`
}

// Hold is a cell held back by hand (OPERATOR_HOLD), or released again.
type Hold struct {
	Cell    matrix.CellID `json:"cell"`
	Who     string        `json:"who"`
	Why     string        `json:"why"`
	Release bool          `json:"release,omitempty"`
}

// Box is what the box is at the time of the record.
type Box struct {
	Facts     matrix.Facts     `json:"facts"`
	Telemetry matrix.Telemetry `json:"telemetry"`
	Absent    []string         `json:"absent,omitempty"` // gates this box cannot evaluate
}

// Resume continues a run that stopped.
type Resume struct {
	BootID string          `json:"boot_id"`
	Grid   int             `json:"grid"`
	Torn   matrix.Opt[int] `json:"torn_seq,omitzero"` // record that a crash left torn
	Reused []string        `json:"reused,omitempty"`  // superblocks whose evidence is used again
}

// Rerun says that the operator has superblocks run again in which an engine failed (protocol §4.4). The superblocks that
// follow are theirs.
type Rerun struct {
	Grid        int      `json:"grid"`
	Superblocks []Redone `json:"superblocks"`
	Who         string   `json:"who"`
	Why         string   `json:"why"`
}

// Redone is one superblock that is run again, and the legs that are void in it.
type Redone struct {
	Group      string   `json:"group"`
	Superblock int      `json:"superblock"`
	Legs       []string `json:"legs"`
}

// RunClose ends a run.
type RunClose struct {
	State string `json:"state"` // complete, interrupted, pending_grid, aborted
	Next  string `json:"next,omitempty"`
}

// Record is one line of the ledger. Sum is the sha256 of the line's other fields as they are written.
type Record struct {
	Sum  string          `json:"-"`
	Seq  int             `json:"seq"`
	Prev string          `json:"prev"`
	Plan string          `json:"plan"`
	Kind Kind            `json:"kind"`
	Time time.Time       `json:"time"`
	Body json.RawMessage `json:"body"`
}

// Decode reads the body into v; a field that v does not know is an error, because ignoring it would be guessing.
func (r Record) Decode(v any) error {
	if err := strict(r.Body, v); err != nil {
		return fmt.Errorf("%s record %d: %w", r.Kind, r.Seq, err)
	}
	return nil
}

// maxLine bounds one record: requests and samples live in files, so a line is far smaller.
const maxLine = 16 << 20

var (
	sumOpen  = []byte(`{"sum":"`)
	sumClose = []byte(`",`)
	errLine  = errors.New("the line is longer than a record may be")
)

const sumLen = 64

// encode sets the record's sum and returns its line without the newline.
func (r *Record) encode() ([]byte, error) {
	if !slices.Contains(kinds, r.Kind) {
		return nil, fmt.Errorf("unknown record kind %q", r.Kind)
	}
	payload, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("%s record: %w", r.Kind, err)
	}
	if len(payload) > maxLine-128 {
		return nil, fmt.Errorf("%s record of %d bytes: %w", r.Kind, len(payload), errLine)
	}
	r.Sum = sum(payload)
	return slices.Concat(sumOpen, []byte(r.Sum), sumClose, payload[1:]), nil
}

// errEdited marks a line whose sum does not match its content.
var errEdited = errors.New("the line's content does not match its own sum")

// parse reads one line and checks its sum.
func parse(line []byte) (Record, error) {
	var r Record
	n := len(sumOpen) + sumLen
	if len(line) < n+len(sumClose) || !bytes.HasPrefix(line, sumOpen) || !bytes.HasPrefix(line[n:], sumClose) {
		return r, errors.New("the line does not begin with a sum")
	}
	r.Sum = string(line[len(sumOpen):n])
	payload := slices.Concat([]byte("{"), line[n+len(sumClose):])
	if sum(payload) != r.Sum {
		return r, errEdited
	}
	if err := strict(payload, &r); err != nil {
		return r, err
	}
	if !slices.Contains(kinds, r.Kind) {
		return r, fmt.Errorf("unknown record kind %q: written by another version of the broker", r.Kind)
	}
	return r, nil
}

func strict(b []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("there is something behind the JSON value")
	}
	return nil
}

// readLine returns the next line without its newline. whole is false for a last line that has none.
func readLine(r *bufio.Reader) (line []byte, whole bool, err error) {
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case err == nil:
			return line[:len(line)-1], true, nil
		case errors.Is(err, io.EOF) && len(line) > 0:
			return line, false, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, false, err
		case len(line) > maxLine:
			return nil, false, errLine
		}
	}
}
