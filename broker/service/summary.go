package service

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"enginebroker/matrix"
	"enginebroker/matrix/ledger"
)

// runRule is what a run may be called: it stands in paths, resource names and arguments.
var runRule = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$`)

// RunInfo is one run as a listing shows it. It is a copy for quick listing; the ledger decides.
type RunInfo struct {
	Name      string    `json:"name"`
	Model     string    `json:"model"`
	Profile   string    `json:"profile"`
	Box       string    `json:"box"`
	State     string    `json:"state"`
	Next      string    `json:"next,omitempty"`
	Simulated bool      `json:"simulated,omitempty"`
	External  bool      `json:"external,omitempty"` // imported results of other clients
	Loads     int       `json:"loads"`
	Planned   int       `json:"planned"`
	Updated   time.Time `json:"updated"`
	Marks     []string  `json:"marks,omitempty"` // what happened since to something the run rests on
}

// summaryFile lies beside the ledger. It is written anew at every change of state and is no evidence.
const summaryFile = "summary.json"

// summarise writes the listing entry of a run; a listing that cannot be written costs nothing but speed.
func (s *Service) summarise(led *ledger.Run, state, next string) {
	info := describeRun(led, state, next)
	info.Updated = s.now().UTC()
	old, _ := listed(led.Dir())
	info.Marks = old.Marks
	if err := writeSummary(led.Dir(), info); err != nil {
		s.log.Warn("run summary not written: " + err.Error())
	}
}

func writeSummary(dir string, info RunInfo) error {
	data, err := json.Marshal(info)
	if err != nil {
		return err
	}
	return writeWhole(filepath.Join(dir, summaryFile), func(f *os.File) error { _, err := f.Write(data); return err })
}

// mark adds a line to a run's listing entry, once.
func (s *Service) mark(run, text string) error {
	dir := filepath.Join(s.runs, run)
	info, ok := listed(dir)
	if !ok || slices.Contains(info.Marks, text) {
		return nil
	}
	info.Marks = append(info.Marks, text)
	return writeSummary(dir, info)
}

func describeRun(led *ledger.Run, state, next string) RunInfo {
	p := led.Plan()
	info := RunInfo{Name: filepath.Base(led.Dir()), Model: p.Model, Profile: p.Profile, Box: p.Box, State: state, Next: next, Planned: p.Cost.Loads, Simulated: p.Simulated()}
	for _, err := range led.Records(ledger.KindLoad) {
		if err == nil {
			info.Loads++
		}
	}
	info.Planned = max(info.Planned, info.Loads) // superblocks that were run again or added count as planned
	return info
}

// Runs lists the runs, newest first. A run without a listing entry is read from its ledger; one that cannot be read is
// listed as unreadable, with why.
func (s *Service) Runs(ctx context.Context) ([]RunInfo, error) {
	entries, err := os.ReadDir(s.runs)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []RunInfo
	for _, e := range entries {
		if !e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if info, ok := readSummary(filepath.Join(s.runs, e.Name())); ok {
			out = append(out, info)
		}
	}
	s.unclosed(ctx, out)
	slices.SortStableFunc(out, func(a, b RunInfo) int {
		return cmp.Or(b.Updated.Compare(a.Updated), cmp.Compare(b.Name, a.Name))
	})
	return out, nil
}

// listed is the listing entry of a run.
func listed(dir string) (info RunInfo, ok bool) {
	data, err := os.ReadFile(filepath.Join(dir, summaryFile))
	ok = err == nil && json.Unmarshal(data, &info) == nil && info.Name == filepath.Base(dir)
	return info, ok
}

// glance marks a run whose ledger does not end as it should: one that has lost records is in no state that its entry names.
func (i *RunInfo) glance(dir string) {
	if i.External {
		return
	}
	found, err := ledger.Glance(dir)
	if err != nil {
		i.State, i.Next = stateUnreadable, err.Error()
		return
	}
	for _, f := range found {
		i.Marks = append(i.Marks, f.String())
	}
	if lost := found.Without(ledger.TornLine); len(lost) > 0 {
		i.State, i.Next = stateUnreadable, lost[0].String()
	}
}

// stateUnreadable is the state of a run whose record cannot be read.
const stateUnreadable = "unreadable"

func readSummary(dir string) (RunInfo, bool) {
	info, ok := listed(dir)
	if ok {
		info.glance(dir)
		return info, true
	}
	led, _, err := ledger.Read(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return info, false // not a run
	}
	if err != nil {
		return RunInfo{Name: filepath.Base(dir), State: stateUnreadable, Next: err.Error(), Marks: []string{err.Error()}}, true
	}
	defer led.Close()
	return describeRun(led, "unknown", ""), true
}

// Cells finds the cells of a run whose name contains every word; an empty run is the newest one.
func (s *Service) Cells(ctx context.Context, run string, words []string) ([]matrix.Cell, error) {
	out, _, err := s.cells(ctx, run, words)
	return out, err
}

// cells is Cells with what is said of a torn last line.
func (s *Service) cells(ctx context.Context, run string, words []string) ([]matrix.Cell, string, error) {
	if run == "" {
		runs, err := s.Runs(ctx)
		if err != nil {
			return nil, "", err
		}
		runs = slices.DeleteFunc(runs, func(r RunInfo) bool { return r.External })
		if len(runs) == 0 {
			return nil, "", fail(CauseNotFound, "", "there are no runs in %s", s.runs)
		}
		run = runs[0].Name
	}
	r, torn, err := s.rejudged(ctx, run)
	if err != nil {
		return nil, "", err
	}
	var out []matrix.Cell
	for _, c := range r.Cells {
		name := c.ID.String()
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(name, w) }) {
			out = append(out, c)
		}
	}
	if len(out) == 0 {
		return nil, "", fail(CauseNotFound, "a cell is named A:B/ARTIFACT|POLICY/POINT/METRIC, as the report prints it", "no cell of run %s contains %s", run, strings.Join(words, " and "))
	}
	return out, torn, nil
}
