package vectors

import (
	"encoding/json"
	"fmt"
)

// object is a result as the file writes it.
type object = map[string]any

// kinds are the adapters, by kind. Each takes the input of a case and gives everything the product says about it.
var kinds = map[string]func(json.RawMessage) (any, error){
	constantsKind:                adapt(constants),
	"leg_fold":                   adapt(legFold),
	"percentile":                 adapt(percentile),
	"block_logratio":             adapt(blockLogRatio),
	"paired_ci":                  adapt(pairedCI),
	"lag_adjusted_ci":            adapt(lagAdjustedCI),
	"t_quantile":                 adapt(tQuantile),
	"sign_rule_table":            adapt(signRuleTable),
	"pvalues":                    adapt(pValues),
	"bh":                         adapt(bh),
	"decide":                     adapt(decide),
	"splitmix64":                 adapt(splitMix64),
	"williams_base":              adapt(williamsBase),
	"schedule":                   adapt(scheduleDraw),
	"balance":                    adapt(balance),
	"design_cost":                adapt(designCost),
	"reload":                     adapt(reload),
	"missed_state":               adapt(missedState),
	"grid_shift":                 adapt(gridShift),
	"ratio_consistency":          adapt(ratioConsistency),
	"grid_cell":                  adapt(gridCell),
	"grid_envelope":              adapt(gridEnvelope),
	"embedded_aa":                adapt(embeddedAA),
	"clock_compare":              adapt(clockCompare),
	"clock_compare_static":       adapt(clockCompareStatic),
	"clock_compare_missing_mean": adapt(clockCompareMissingMean),
	"clock_merge":                adapt(clockMerge),
	"throttle_names":             adapt(throttleNames),
	"clean_window_probability":   adapt(cleanWindow),
	"leg_gates":                  adapt(legGates),
	"leg_cause":                  adapt(legCause),
	"cell_reasons":               adapt(cellReasons),
	"verdict":                    adapt(verdictOf),
	"plan":                       adapt(plan),
	"identity":                   adapt(identity),
	"identity_pair":              adapt(identityPair),
	"tail_floor":                 adapt(tailFloor),
}

// adapt decodes the input of a kind and keeps its own errors apart from the file's.
func adapt[T any](f func(T) (any, error)) func(json.RawMessage) (any, error) {
	return func(raw json.RawMessage) (any, error) {
		var in T
		if err := json.Unmarshal(raw, &in); err != nil {
			return nil, fmt.Errorf("input: %w", err)
		}
		return f(in)
	}
}

// maxCount bounds every count an input may ask for, so that no case can exhaust memory.
const maxCount = 100_000

func bounded(what string, n int) error {
	if n < 0 || n > maxCount {
		return fmt.Errorf("input: %s is %d: must be 0..%d", what, n, maxCount)
	}
	return nil
}
