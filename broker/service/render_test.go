package service

import (
	"errors"
	"strings"
	"testing"

	"enginebroker/matrix"
)

// TestAbsentIsNotSuccess: a matrix that is in order says at its end that an engine which was asked for was not there.
func TestAbsentIsNotSuccess(t *testing.T) {
	r := matrix.Report{State: StateComplete, Cells: []matrix.Cell{{ID: matrix.CellID{Pair: matrix.Pair{A: "a", B: "b"}, Group: "g"}, Verdict: matrix.Provisional}}}
	if err := Judge(r, ""); err != nil {
		t.Fatal(err)
	}
	r.Plan.Absent = map[string]string{"c": "not installed"}
	e, ok := errors.AsType[*Error](Judge(r, ""))
	if !ok || e.Cause != CauseNotInstalled || e.Fix == "" || !strings.HasPrefix(e.Error(), "c took no part: not installed") {
		t.Errorf("%+v", e)
	}
	r.Cells[0].Verdict = matrix.Void
	if e, ok := errors.AsType[*Error](Judge(r, "")); !ok || e.Cause != CauseVoid {
		t.Errorf("a void cell comes first: %+v", e)
	}
}
