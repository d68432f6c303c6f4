package ledger

import (
	"fmt"
	"slices"

	"enginebroker/matrix/regular"
)

// Reports are the names that WriteReport and ReadReport take.
var Reports = []string{"report.json", "report.md", "report.csv", "report.html"}

// WriteReport puts a rendered report into the run, whole or not at all. Reports are derived: they stand in no record.
func (r *Run) WriteReport(name string, content []byte) error {
	if !slices.Contains(Reports, name) {
		return fmt.Errorf("%q is no report of a run; it has %v", name, Reports)
	}
	return r.replace(name, content)
}

// ReadReport returns a rendered report as it was written last.
func (r *Run) ReadReport(name string) ([]byte, error) {
	if !slices.Contains(Reports, name) {
		return nil, fmt.Errorf("%q is no report of a run; it has %v", name, Reports)
	}
	return regular.ReadFileIn(r.root, name, maxReport)
}
