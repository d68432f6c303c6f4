package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"enginebroker/broker/service"
	"enginebroker/matrix"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

// job is what the daemon remembers of a run beside its evidence: who asked for what, and where it stands.
type job struct {
	Name      string                `json:"name"`
	RequestID string                `json:"request_id,omitempty"`
	Digest    string                `json:"digest,omitempty"` // of what was asked under RequestID
	Request   *service.Request      `json:"request,omitempty"`
	Trial     *service.Trial        `json:"trial,omitempty"`   // in the place of Request
	Result    json.RawMessage       `json:"result,omitempty"`  // of a trial that is complete
	Resume    bool                  `json:"resume,omitempty"`  // the next turn goes on with evidence that is there
	Rerun     *rerun                `json:"rerun,omitempty"`   // or runs some of it again
	Before    string                `json:"before,omitempty"`  // where the run stood, to go back to where it cannot go on
	Drained   bool                  `json:"drained,omitempty"` // stopped because its daemon was
	State     string                `json:"state"`             // name of the RunState
	Failure   json.RawMessage       `json:"failure,omitempty"`
	Created   time.Time             `json:"created"`
	Updated   time.Time             `json:"updated"`
	Deadline  matrix.Opt[time.Time] `json:"deadline,omitzero"` // of waiting for the box
	Profile   string                `json:"profile,omitempty"`
	Box       string                `json:"box,omitempty"`
	Simulated bool                  `json:"simulated,omitempty"`
	Planned   int                   `json:"planned,omitempty"`

	found  bool // an earlier daemon left it in flight
	loads  int  // done, of a run in flight
	log    *events
	cancel func() // of a run in flight; safe to call again
}

// rerun is what an operator wants run again of a complete run.
type rerun struct {
	Words []string        `json:"words,omitempty"`
	By    service.RerunBy `json:"by"`
}

// reruns reports that the re-run is still to begin. One that an earlier daemon began has changed the run's state, and is gone
// on with like any run.
func (j *job) reruns() bool {
	return j.Rerun != nil && (!j.found || j.Before == brokerv1.RunState_RUN_STATE_COMPLETE.String())
}

func (j *job) state() brokerv1.RunState { return brokerv1.RunState(brokerv1.RunState_value[j.State]) }

// live reports a run that waits or runs.
func (j *job) live() bool {
	switch j.state() {
	case brokerv1.RunState_RUN_STATE_QUEUED, brokerv1.RunState_RUN_STATE_PREPARING, brokerv1.RunState_RUN_STATE_RUNNING, brokerv1.RunState_RUN_STATE_CANCELLING:
		return true
	}
	return false
}

// unbegun is the state of a turn that came to nothing: a run with evidence stands where it stood.
func (j *job) unbegun(otherwise brokerv1.RunState) brokerv1.RunState {
	if before := brokerv1.RunState(brokerv1.RunState_value[j.Before]); j.Resume && before != brokerv1.RunState_RUN_STATE_UNSPECIFIED {
		return before
	}
	return otherwise
}

func (j *job) failure() *brokerv1.Failure {
	if len(j.Failure) == 0 {
		return nil
	}
	f := &brokerv1.Failure{}
	if protojson.Unmarshal(j.Failure, f) != nil {
		return nil
	}
	return f
}

func (j *job) fail(err error) *brokerv1.Failure {
	j.Failure = nil
	if err == nil {
		return nil
	}
	f := service.FailureOf(err)
	if data, err := protojson.Marshal(f); err == nil {
		j.Failure = data
	}
	return f
}

// stem is what the run is named after where nobody names it.
func (j *job) stem() string {
	if j.Trial != nil {
		return j.Trial.Stem()
	}
	return j.Request.Stem()
}

func (j *job) result() *brokerv1.TrialResult {
	if len(j.Result) == 0 {
		return nil
	}
	r := &brokerv1.TrialResult{}
	if protojson.Unmarshal(j.Result, r) != nil {
		return nil
	}
	return r
}

// store is the folder of jobs: one folder a run, with its job and its events.
type store struct{ dir string }

const (
	jobFile    = "job.json"
	eventsFile = "events.jsonl"
)

func (s store) path(name, file string) string { return filepath.Join(s.dir, name, file) }

// save writes a job so that it is there whole or not at all, even where the machine stops.
func (s store) save(j *job) error {
	dir := filepath.Join(s.dir, j.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	data, err := json.Marshal(j)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(data)
	if err := errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), s.path(j.Name, jobFile))
}

// load reads every job. One that cannot be read is an error of its own, and the others are loaded.
func (s store) load() ([]*job, []error) {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, []error{err}
	}
	var out []*job
	var bad []error
	for _, e := range entries {
		data, err := os.ReadFile(s.path(e.Name(), jobFile))
		j := &job{}
		if err == nil {
			err = json.Unmarshal(data, j)
		}
		if err == nil && (j.Name != e.Name() || j.state() == brokerv1.RunState_RUN_STATE_UNSPECIFIED) {
			err = fmt.Errorf("it is of run %q in state %q", j.Name, j.State)
		}
		if err != nil {
			bad = append(bad, fmt.Errorf("job %s: %w", e.Name(), err))
			continue
		}
		out = append(out, j)
	}
	return out, bad
}
