package service

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"enginebroker/matrix"
)

// Carried is something that rests on a pin.
type Carried struct {
	Run    string `json:"run,omitempty"`
	Cell   string `json:"cell,omitempty"` // empty: the run has none yet
	Now    string `json:"verdict,omitempty"`
	Golden string `json:"golden,omitempty"`
}

func (c Carried) String() string {
	if c.Golden != "" {
		return "golden " + c.Golden
	}
	return strings.TrimSpace("run " + c.Run + " " + c.Cell + " " + c.Now)
}

// Carried lists the runs, their cells and the goldens that rest on a pin. Cells between two arms that do not declare it do
// not depend on it.
func (s *Service) Carried(ctx context.Context, pin string) ([]Carried, error) {
	infos, err := s.Runs(ctx)
	if err != nil {
		return nil, err
	}
	var out []Carried
	for _, r := range infos {
		cells, err := s.carriedBy(r, pin)
		if err != nil {
			return nil, err
		}
		out = append(out, cells...)
	}
	goldens, err := s.goldensOf(pin)
	return append(out, goldens...), err
}

func (s *Service) carriedBy(r RunInfo, pin string) ([]Carried, error) {
	if r.External || r.State == stateUnreadable {
		return nil, nil
	}
	dir := filepath.Join(s.runs, r.Name)
	var plan matrix.Plan
	if err := readJSON(filepath.Join(dir, "plan.json"), &plan); err != nil {
		return nil, err
	}
	declares := map[string]bool{} // group and label
	for _, g := range plan.Groups {
		for _, a := range g.Arms {
			if a.Pin == pin {
				declares[g.ID+" "+a.Label] = true
			}
		}
	}
	if len(declares) == 0 {
		return nil, nil
	}
	var report matrix.Report
	if err := readJSON(filepath.Join(dir, "report.json"), &report); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	var out []Carried
	for _, c := range report.Cells {
		if declares[c.ID.Group+" "+c.ID.Pair.A] || declares[c.ID.Group+" "+c.ID.Pair.B] {
			out = append(out, Carried{Run: r.Name, Cell: c.ID.String(), Now: c.Verdict.String()})
		}
	}
	if len(out) == 0 {
		out = []Carried{{Run: r.Name}}
	}
	return out, nil
}

func readJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
