package service

import (
	"enginebroker/matrix"
	"enginebroker/matrix/verdict"
)

// aaResult is a dedicated A/A on record: the same arm under two labels through the whole pipeline (protocol §3.6).
type aaResult struct {
	MethodID string   `json:"method_id"`
	Machine  string   `json:"machine"`
	Passed   bool     `json:"passed"`
	Runs     []string `json:"runs"` // both, where one repeat was made
}

// aaOn is the dedicated A/A of a plan's method on this machine; missing where none is on record.
func (s *Service) aaOn(plan matrix.Plan) (verdict.AA, error) {
	var r aaResult
	ok, err := s.load("aa", plan.MethodID, &r)
	switch {
	case err != nil:
		return verdict.AAMissing, err
	case !ok:
		return verdict.AAMissing, nil
	case r.Passed:
		return verdict.AAPass, nil
	}
	return verdict.AAFail, nil
}
