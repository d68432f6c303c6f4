package service

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	brokerv1 "enginebroker/proto/gen/broker/v1"
)

// runStates maps the states of a ledger to those of the wire. Waiting and the like exist in the daemon alone.
var runStates = []word[string, brokerv1.RunState]{
	{StateRunning, brokerv1.RunState_RUN_STATE_RUNNING},
	{StateComplete, brokerv1.RunState_RUN_STATE_COMPLETE},
	{StateInterrupted, brokerv1.RunState_RUN_STATE_INTERRUPTED},
	{StateVanished, brokerv1.RunState_RUN_STATE_INTERRUPTED}, // the run's word says how
	{StateDied, brokerv1.RunState_RUN_STATE_INTERRUPTED},
	{StatePendingGrid, brokerv1.RunState_RUN_STATE_PENDING_GRID},
	{StateAborted, brokerv1.RunState_RUN_STATE_ABORTED},
}

// ToRunState is the state of a run by its listing entry; what the listing does not know is unknown.
func ToRunState(state string) brokerv1.RunState {
	if e := enumOf(runStates, state); e != nil {
		return *e
	}
	return brokerv1.RunState_RUN_STATE_UNKNOWN
}

// ToRun is the message of a listing entry.
func ToRun(i RunInfo) *brokerv1.Run {
	out := &brokerv1.Run{Name: text(RunPrefix + i.Name), State: new(ToRunState(i.State)), Model: text(i.Model), Profile: text(i.Profile), Box: text(i.Box),
		Simulated: flag(i.Simulated), LoadsDone: count(i.Loads), LoadsPlanned: count(i.Planned), Next: text(i.Next), Word: text(i.State), Marks: texts(i.Marks), External: flag(i.External)}
	if !i.Updated.IsZero() {
		out.UpdateTime = timestamppb.New(i.Updated)
	}
	return out
}

// RunOf is the listing entry of a message.
func RunOf(m *brokerv1.Run) RunInfo {
	i := RunInfo{Name: strings.TrimPrefix(m.GetName(), RunPrefix), Model: m.GetModel(), Profile: m.GetProfile(), Box: m.GetBox(), Simulated: m.GetSimulated(),
		State: m.GetWord(), Next: m.GetNext(), Loads: int(m.GetLoadsDone()), Planned: int(m.GetLoadsPlanned()), Marks: m.GetMarks(), External: m.GetExternal()}
	if i.State == "" {
		i.State = strings.ToLower(strings.TrimPrefix(m.GetState().String(), "RUN_STATE_"))
	}
	if t := m.GetUpdateTime(); t != nil {
		i.Updated = t.AsTime()
	}
	return i
}

// ToStep is the message of an event.
func ToStep(e Event) *brokerv1.Step {
	return &brokerv1.Step{Kind: text(e.Kind), Group: text(e.Group), Superblock: count(e.Superblock), Block: count(e.Block), Arm: text(e.Arm), Point: text(e.Point), Load: text(e.Load),
		Text: text(e.Text), Codes: e.Codes, LoadsDone: count(e.LoadsDone), LoadsTotal: count(e.LoadsTotal)}
}

// EventOf is the event of a message.
func EventOf(m *brokerv1.Step, at time.Time) Event {
	return Event{At: at, Kind: m.GetKind(), Group: m.GetGroup(), Superblock: int(m.GetSuperblock()), Block: int(m.GetBlock()), Arm: m.GetArm(), Point: m.GetPoint(), Load: m.GetLoad(),
		Text: m.GetText(), Codes: m.GetCodes(), LoadsDone: int(m.GetLoadsDone()), LoadsTotal: int(m.GetLoadsTotal())}
}
