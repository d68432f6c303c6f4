package vectors

import (
	"enginebroker/matrix"
	"enginebroker/matrix/gates"
	"enginebroker/matrix/stats"
)

// constantsKind is the kind, and the id, of the case that a file's constants make: what they say is expected of the product.
const constantsKind = "constants"

func constants(struct{}) (any, error) {
	box, err := gates.ProfileByName("gb10")
	if err != nil {
		return nil, err
	}
	var order []string
	reasons := object{}
	for v := matrix.Established; v <= matrix.NotComparable; v++ {
		order = append(order, v.String())
		reasons[v.String()] = v.Reasons()
	}
	causes := object{}
	for _, code := range matrix.LegCodes() {
		if causes[string(code)], err = code.Cause(); err != nil {
			return nil, err
		}
	}
	out := stats.Constants()
	out["clock"], out["severity_order"], out["reasons"], out["leg_code_cause"] = gates.ClockConstants(box), order, reasons, causes
	return out, nil
}
