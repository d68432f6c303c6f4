package service

import (
	"context"
	"encoding/json"
	"path/filepath"
	"slices"

	"enginebroker/matrix"
	"enginebroker/matrix/regular"
)

// maxHistory bounds how many earlier runs a report looks at for the history of its cells.
const maxHistory = 20

// past is one earlier run of the same method: verdicts and reasons, never a number.
type past struct {
	run   string
	cells map[matrix.CellID]matrix.PastCell
	arms  map[[2]string]string // group, label → arm key
}

// history fills in what earlier runs said of the same cells: the same method and arms, pair, point and metric. Of two runs
// the later one counts, and the earlier verdict stands beside it without its numbers. Earlier is what was begun earlier. It
// is read from the reports that lie beside the evidence, so that a listing stays cheap; the ledger of each run decides.
func (s *Service) history(ctx context.Context, r *matrix.Report) {
	if r.External || len(r.Cells) == 0 || len(r.Loads) == 0 {
		return
	}
	runs, err := s.Runs(ctx)
	if err != nil {
		return // a report does not fail for want of its past
	}
	began := r.Loads[0].StartUTC
	type found struct {
		past
		began int64
	}
	var earlier []found
	looked := 0
	for _, info := range runs {
		if info.Name == r.Run || info.External || info.Model != r.Plan.Model || info.Profile != r.Plan.Profile || looked >= maxHistory {
			continue
		}
		old, ok := s.reportBeside(info.Name)
		looked++
		if !ok || old.Plan.MethodID != r.Plan.MethodID || old.Plan.Purpose != r.Plan.Purpose || len(old.Loads) == 0 || !old.Loads[0].StartUTC.Before(began) {
			continue
		}
		p := past{run: info.Name, cells: map[matrix.CellID]matrix.PastCell{}, arms: armKeys(old.Plan)}
		for _, c := range old.Cells {
			p.cells[c.ID] = matrix.PastCell{Run: info.Name, Verdict: c.Verdict, Reasons: c.Codes()}
		}
		earlier = append(earlier, found{p, old.Loads[0].StartUTC.UnixNano()})
	}
	slices.SortFunc(earlier, func(a, b found) int { return int(min(1, max(-1, b.began-a.began))) }) // latest first
	mine := armKeys(r.Plan)
	for i := range r.Cells {
		c := &r.Cells[i]
		by := r.Run
		for _, e := range earlier {
			old, ok := e.cells[c.ID]
			if !ok || c.ID.Group == "" || !sameKeys(c.ID, mine, e.arms) {
				continue
			}
			old.By = by
			c.History = append(c.History, old)
			by = e.run
		}
	}
}

func armKeys(p matrix.Plan) map[[2]string]string {
	out := map[[2]string]string{}
	for _, g := range p.Groups {
		for _, a := range g.Arms {
			out[[2]string{g.ID, a.Label}] = a.Key
		}
	}
	return out
}

func sameKeys(id matrix.CellID, a, b map[[2]string]string) bool {
	for _, l := range []string{id.Pair.A, id.Pair.B} {
		k := [2]string{id.Group, l}
		if a[k] == "" || a[k] != b[k] {
			return false
		}
	}
	return true
}

// mostReport bounds what is read of a report: a thousand cells take some megabytes.
const mostReport = 64 << 20

// reportBeside reads the report that lies beside a run's evidence; the report of another run, or of another version, is none.
func (s *Service) reportBeside(name string) (matrix.Report, bool) {
	var r matrix.Report
	data, err := regular.ReadFile(filepath.Join(s.runs, name, "report.json"), mostReport)
	return r, err == nil && json.Unmarshal(data, &r) == nil && r.Run == name && r.Schema == reportSchema
}
