// Package run performs a plan: it is, with stopwatch and box, the only room of matrix that has clocks and goroutines.
//
// It records and never judges. What a leg was worth is decided later, from the evidence, by gates and verdict; the one
// question it asks them is which superblocks have to be run again and whether a group wants one more.
//
// The way of one grid:
//
//  1. open the grid: boot id, seed
//  2. for every superblock, round-robin over groups: lead-in, forward block, backward block
//  3. for every load: settle, evict, start, identity against pin and plan, canary, legs, stop, proof of absence
//  4. for every leg: warm-up, repetitions, canary; written to the ledger before the next step
//  5. run again what the operator asks for; ask the judge what to run again or to add, run that, ask again
//  6. close the grid
//
// A cancelled context drops the leg in flight, stops the engine, closes the record and returns ErrInterrupted: what was
// written stays, and the same plan goes on at the first incomplete superblock.
package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"enginebroker/matrix"
	"enginebroker/matrix/ledger"
	"enginebroker/matrix/stopwatch"
)

// ErrInterrupted says that the run was stopped before its plan was complete; its evidence is kept.
var ErrInterrupted = errors.New("interrupted; the evidence is kept")

// ErrBudget says that the time allowed was used up before the plan was complete; its evidence is kept.
var ErrBudget = errors.New("the budget is used up; the evidence is kept")

// ErrPluginGone says that the plugin of an engine ended, and its server with it: nothing that the engine did.
var ErrPluginGone = errors.New("its plugin ended")

// Why a superblock that was not planned is run; the ledger's superblock_start says it.
const (
	Rerun    = "rerun"    // for one that the environment or the client voided
	Extend   = "extend"   // because primary cells are undecided
	Operator = "operator" // for one that an engine voided, because the operator asks for it
)

// Engine is what a run needs of one instance.
type Engine interface {
	Start(ctx context.Context, r matrix.StartRequest, progress func(matrix.Progress)) (matrix.Ready, error)
	Observe(ctx context.Context) (matrix.State, error)
	Stop(ctx context.Context, deadline time.Duration) (matrix.Stopped, error)
}

// Box is what a run needs of the machine.
type Box interface {
	BootID() string
	// Settle waits until the box is as a load needs it and reports what it showed (protocol §2.6). It never fails a run: a
	// limit that was not met is in the Env.
	Settle(ctx context.Context) (matrix.Env, error)
	// Evict drops the page cache of exactly these files and reports what is still resident; absent: not evaluable.
	Evict(files []string) (matrix.Opt[int64], error)
	// Watch samples until it is closed. tree lists the engine's processes; stop is called by the memory guard.
	Watch(ctx context.Context, tree func() []int, stop func(why string)) (Watch, error)
}

// Watch is the telemetry of one load.
type Watch interface {
	// Window returns what the box showed between two CLOCK_MONOTONIC stamps, and the raw samples. heads are
	// [request sent, first token] of each request.
	Window(start, end int64, heads [][2]int64) (matrix.Env, matrix.Opt[matrix.Clock], func(io.Writer) error)
	// Killed says who ended the engine's process, empty where nothing on the box shows it.
	Killed(p matrix.Process) string
	Close() error
}

// Client is the timed client of one load at one concurrency.
type Client interface {
	Run(ctx context.Context, j stopwatch.Job) (Recording, error)
	Close() error
}

// Recording is the raw evidence of one pass.
type Recording interface {
	Write(w io.Writer) error
	Reduce(d matrix.Dialect, p matrix.Point) []matrix.Request
	Window() (start, end int64) // CLOCK_MONOTONIC ns
	Cost() matrix.ClientCost
	Hung() bool // a request was given up because no token came within the idle limit
}

// Stopwatch opens timed clients and asks single questions.
type Stopwatch interface {
	Open(ctx context.Context, d matrix.Dialect, p matrix.Point) (Client, error)
	// Ask generates greedily, outside any timed window.
	Ask(ctx context.Context, d matrix.Dialect, prompt string, tokens int, limit time.Duration) (matrix.Request, error)
}

// Prompts hands out the prompts of a block; partitions never overlap and are shared by all arms of the block.
type Prompts interface {
	// Take returns n prompts of a group's superblock partition. rep −1 is the warm-up's.
	Take(block int, point matrix.Point, rep, n int) ([]stopwatch.Prompt, error)
}

// Recorder writes evidence durably: a call returns when it is on disk.
type Recorder interface {
	Append(kind ledger.Kind, at time.Time, body any) (ledger.Record, error)
	PutLeg(rec matrix.LegRecord, files ledger.LegFiles) error
	// LogPath is where the engine of a load writes its log.
	LogPath(loadID string) string
}

// Next is what still has to run after the planned superblocks.
type Next struct {
	Rerun  []Redo // one entry per superblock that the environment or the client voided
	Extend []int  // groups that want one more superblock
}

// Redo is a superblock that is run for another one.
type Redo struct {
	Group      int
	Replaces   int
	Superblock int  // as drawn; not known before
	Operator   bool // asked for by the operator, not by the judge
}

// Leg is one recorded leg without its requests, as the judge of a running grid sees it.
type Leg struct {
	Record matrix.LegRecord
	Gate   matrix.GateResult
	Values map[string]matrix.Value
}

// Judge reduces a leg and decides what has to run again.
type Judge interface {
	Leg(rec matrix.LegRecord, arm matrix.Arm, point matrix.Point) (Leg, error)
	Next(grid matrix.GridInfo, loads []matrix.LoadRecord, legs []Leg, redone []Redo) (Next, error)
}

// Config is everything one grid needs.
type Config struct {
	Plan      matrix.Plan
	Grid      matrix.GridInfo
	Resumed   bool                // the grid is open already
	Done      []matrix.LoadRecord // of this grid, complete superblocks from before a resume
	DoneLegs  []Leg
	Redone    []Redo // of this grid, from before a resume
	Again     []Redo // what the operator asks for, before anything else is run again or added
	Seq       int    // loads that the run has begun so far, in all grids
	Engine    func(ctx context.Context, instance string) (Engine, error)
	Artifact  func(arm matrix.Arm) (matrix.Artifact, []string, error) // local artifact and every file to evict
	Request   func(arm matrix.Arm, a matrix.Artifact) (matrix.StartRequest, error)
	CheckPin  func(arm matrix.Arm, ready matrix.Ready) matrix.Opt[matrix.PinCheck]
	NextSB    func(group, drawn int) matrix.Superblock
	Points    func(points []matrix.Point, block int) []matrix.Point
	Box       Box
	Stopwatch Stopwatch
	Prompts   Prompts
	Recorder  Recorder
	Judge     Judge
	Now       func() time.Time
	Deadline  matrix.Opt[time.Time] // no superblock starts after it
	Event     func(Event)
	// Window opens a timed window; what it returns closes the window and says what the process did inside beside measuring.
	Window func() (done func() []matrix.DaemonWork)
}

// Event is one step of a run, for people and watchers.
type Event struct {
	At         time.Time `json:"at"`
	Kind       string    `json:"kind"` // grid, superblock, load, phase, ready, leg, stopped, rerun, extend, drop, done
	Group      string    `json:"group,omitempty"`
	Superblock int       `json:"superblock,omitempty"`
	Block      int       `json:"block,omitempty"`
	Arm        string    `json:"arm,omitempty"`
	Point      string    `json:"point,omitempty"`
	Load       string    `json:"load,omitempty"`
	Text       string    `json:"text,omitempty"`
	Codes      []string  `json:"codes,omitempty"` // of a finished leg
	LoadsDone  int       `json:"loads_done"`
	LoadsTotal int       `json:"loads_total"`
}

// Run performs the grid. It returns ErrInterrupted or ErrBudget when it ended early; any other error means that evidence
// could not be written or the configuration is unusable.
func Run(ctx context.Context, c Config) error {
	r := &runner{Config: c, prints: map[string]string{}, dropped: map[string]string{}, byHost: map[string]string{}, fails: map[string]int{}, loads: c.Done, legs: c.DoneLegs, redone: slices.Clone(c.Redone), seq: c.Seq}
	for _, l := range c.Done {
		if ready, ok := l.Ready.Get(); ok {
			r.prints[l.ArmKey] = ready.Print
		}
	}
	r.done = len(c.Done)
	r.total = r.count() + r.beyond()
	if !c.Resumed {
		if _, err := r.Recorder.Append(ledger.KindGridOpen, r.Now(), ledger.GridOpen{Grid: c.Grid.Index, BootID: c.Grid.BootID, Seed: c.Grid.Seed}); err != nil {
			return err
		}
	}
	r.event(Event{Kind: "grid", Text: fmt.Sprintf("grid %d on boot %s", c.Grid.Index, c.Grid.BootID)})
	for _, gs := range c.Plan.Order() {
		if err := r.superblock(ctx, gs[0], c.Plan.Groups[gs[0]].Superblocks[gs[1]], "", matrix.Opt[int]{}); err != nil {
			return err
		}
	}
	return r.rest(ctx)
}

type runner struct {
	Config
	loads   []matrix.LoadRecord
	legs    []Leg
	redone  []Redo
	prints  map[string]string // arm key → arm_print of its first load
	dropped map[string]string // arm key → why its loads are not attempted any more
	byHost  map[string]string // arm key → who of the host ended the last loads before the arm was dropped
	fails   map[string]int    // arm key → loads in a row that did not become ready
	seq     int               // of the last load
	done    int
	total   int
}

// rest runs what the judge wants again or in addition, until it wants nothing more.
func (r *runner) rest(ctx context.Context) error {
	drawn := make([]int, len(r.Plan.Groups))
	for g := range r.Plan.Groups {
		drawn[g] = len(r.Plan.Groups[g].Superblocks)
		for _, l := range r.loads {
			if l.Group == r.Plan.Groups[g].ID {
				drawn[g] = max(drawn[g], l.Slot.Superblock+1)
			}
		}
	}
	for _, redo := range r.Again {
		if err := r.redo(ctx, redo, Operator, drawn); err != nil {
			return err
		}
	}
	for {
		next, err := r.Judge.Next(r.Grid, r.loads, r.legs, r.redone)
		if err != nil {
			return err
		}
		if len(next.Rerun)+len(next.Extend) == 0 {
			break
		}
		for _, redo := range next.Rerun {
			if err := r.redo(ctx, redo, Rerun, drawn); err != nil {
				return err
			}
		}
		for _, g := range next.Extend {
			if err := r.superblock(ctx, g, r.draw(g, Extend, drawn), Extend, matrix.Opt[int]{}); err != nil {
				return err
			}
		}
	}
	if _, err := r.Recorder.Append(ledger.KindGridClose, r.Now(), ledger.GridClose{Grid: r.Grid.Index, Done: true}); err != nil {
		return err
	}
	r.event(Event{Kind: "done", Text: fmt.Sprintf("grid %d complete", r.Grid.Index)})
	return nil
}

// draw takes the next superblock of a group's stream: what is run for another one is never chosen.
func (r *runner) draw(g int, kind string, drawn []int) matrix.Superblock {
	sb := r.NextSB(g, drawn[g])
	drawn[g]++
	r.total += len(sb.Slots(g))
	r.event(Event{Kind: kind, Group: r.Plan.Groups[g].ID, Superblock: sb.Index})
	return sb
}

// redo runs a superblock for another one.
func (r *runner) redo(ctx context.Context, redo Redo, why string, drawn []int) error {
	sb := r.draw(redo.Group, why, drawn)
	redo.Superblock, redo.Operator = sb.Index, why == Operator
	r.redone = append(r.redone, redo)
	return r.superblock(ctx, redo.Group, sb, why, matrix.Some(redo.Replaces))
}

// beyond counts the loads from before a resume that no plan has: those of superblocks run again or added.
func (r *runner) beyond() int {
	n := 0
	for _, l := range r.loads {
		if i := slices.IndexFunc(r.Plan.Groups, func(g matrix.Group) bool { return g.ID == l.Group }); i >= 0 && l.Slot.Superblock >= len(r.Plan.Groups[i].Superblocks) {
			n++
		}
	}
	return n
}

func (r *runner) count() int {
	n := 0
	for g, group := range r.Plan.Groups {
		for _, sb := range group.Superblocks {
			n += len(sb.Slots(g))
		}
	}
	return n
}

// superblock runs the loads of one superblock. One that an earlier process completed is left as it is; one that it left
// half-done is run again from its lead-in, because half a mirrored block has no use.
func (r *runner) superblock(ctx context.Context, g int, sb matrix.Superblock, why string, replaces matrix.Opt[int]) error {
	group := r.Plan.Groups[g]
	slots := sb.Slots(g)
	if r.complete(group.ID, sb.Index, len(slots)) {
		r.event(Event{Kind: "superblock", Group: group.ID, Superblock: sb.Index, Text: "reused"})
		return nil
	}
	if d, ok := r.Deadline.Get(); ok && r.Now().After(d) {
		return ErrBudget
	}
	if err := ctx.Err(); err != nil {
		return ErrInterrupted
	}
	start := ledger.SuperblockStart{Grid: r.Grid.Index, Group: group.ID, Superblock: sb, Replaces: replaces, Why: why}
	if _, err := r.Recorder.Append(ledger.KindSuperblockStart, r.Now(), start); err != nil {
		return err
	}
	r.event(Event{Kind: "superblock", Group: group.ID, Superblock: sb.Index})
	for _, slot := range slots {
		arm, ok := group.Arm(slot.Arm)
		if !ok {
			return fmt.Errorf("group %s: superblock %d names arm %q, which it does not have", group.ID, sb.Index, slot.Arm)
		}
		if err := r.load(ctx, group, arm, slot); err != nil {
			return err
		}
		r.done++
	}
	_, err := r.Recorder.Append(ledger.KindSuperblockEnd, r.Now(), ledger.SuperblockEnd{Grid: r.Grid.Index, Group: group.ID, Superblock: sb.Index})
	return err
}

func (r *runner) complete(group string, index, loads int) bool {
	n := 0
	for _, l := range r.loads {
		if l.Group == group && l.Slot.Superblock == index {
			n++
		}
	}
	return n == loads
}

func (r *runner) event(e Event) {
	if r.Event == nil {
		return
	}
	e.At, e.LoadsDone, e.LoadsTotal = r.Now(), r.done, r.total
	r.Event(e)
}
