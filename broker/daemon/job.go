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
	"enginebroker/matrix/regular"
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
	Cancelled bool                  `json:"cancelled,omitempty"`
	State     string                `json:"state"` // name of the RunState
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

// begins reports that the next turn plans a run of its own.
func (j *job) begins() bool { return j.Trial == nil && !j.Resume }

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

// has reports that something of a name lies here, also what cannot be read.
func (s store) has(name string) bool {
	_, err := os.Lstat(filepath.Join(s.dir, name))
	return err == nil
}

// drop takes back what was written of a job that was not taken.
func (s store) drop(name string) error { return os.RemoveAll(filepath.Join(s.dir, name)) }

// events opens the events of a job, and makes its folder.
func (s store) events(name string) (*events, error) {
	if err := os.MkdirAll(filepath.Join(s.dir, name), 0o700); err != nil {
		return nil, failf(service.CauseInternal, "make "+s.dir+" a folder with room, and ask again", "the run was not taken: %w", err)
	}
	return openEvents(s.path(name, eventsFile), name)
}

// lock keeps the folder for one process: two would write over each other's record.
func (s store) lock() (*os.File, error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("the daemon needs a folder that it can write: %w", err)
	}
	l, held, err := lockFile(s.dir + ".lock")
	if held {
		err = failf(service.CauseBusy, "ask that one, or give --runs another folder", "a daemon serves the runs beside %s already%s", s.dir, holder(s.dir+".lock"))
	}
	return l, err
}

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
		if s.untaken(e.Name()) {
			if err := s.drop(e.Name()); err != nil {
				bad = append(bad, err)
			}
			continue
		}
		j, err := s.read(e.Name())
		if err != nil {
			bad = append(bad, err)
			continue
		}
		out = append(out, j)
	}
	return out, bad
}

// untaken reports the folder of a job that nobody heard of: its daemon ended before the job was written.
func (s store) untaken(name string) bool {
	_, err := os.Lstat(s.path(name, jobFile))
	if !errors.Is(err, os.ErrNotExist) {
		return false
	}
	told, err := os.Lstat(s.path(name, eventsFile))
	return errors.Is(err, os.ErrNotExist) || err == nil && told.Mode().IsRegular() && told.Size() == 0
}

// maxJobBytes bounds a job, whose result is at most an answer.
const maxJobBytes = maxAnswerBytes

// read reads a job. What it asks for is held to the rules of a request, so that damage is found before it has its turn.
func (s store) read(name string) (*job, error) {
	path := s.path(name, jobFile)
	damaged := func(err error) error {
		return failf(service.CauseEvidence, "evidence of the run is not in it; move its folder away to use the name again", "the daemon's record of run %s: %w", name, err)
	}
	data, err := regular.ReadFile(path, maxJobBytes)
	if err != nil {
		return nil, damaged(err)
	}
	j := &job{}
	if err = json.Unmarshal(data, j); err == nil {
		err = j.check(name)
	}
	if err != nil {
		return nil, damaged(fmt.Errorf("%s: %s", path, err.Error())) // not wrapped: a rule of a request that it breaks is no fault of the caller's
	}
	return j, nil
}

// check refuses a job that is not whole.
func (j *job) check(name string) error {
	if _, err := service.ResourceID(service.RunPrefix, service.RunPrefix+j.Name); err != nil || j.Name != name {
		return fmt.Errorf("it is of run %q", j.Name)
	}
	if j.state() == brokerv1.RunState_RUN_STATE_UNSPECIFIED {
		return fmt.Errorf("it is in state %q", j.State)
	}
	if len(j.Failure) > 0 && j.failure() == nil {
		return errors.New("its failure cannot be read")
	}
	if len(j.Result) > 0 && j.result() == nil {
		return errors.New("its result cannot be read")
	}
	switch {
	case j.Request != nil && j.Trial != nil:
		return errors.New("it asks for a run and a trial")
	case j.Trial != nil:
		_, err := service.TrialOf(service.ToTrial(*j.Trial))
		return err
	case j.Request != nil && j.Request.Run != "" && j.Request.Run != name:
		return fmt.Errorf("it asks for run %q", j.Request.Run)
	case j.Request != nil:
		m, err := service.ToSpec(*j.Request)
		if err == nil {
			_, err = service.SpecOf(m)
		}
		return err
	case !j.Resume:
		return errors.New("it asks for nothing")
	}
	return nil
}
